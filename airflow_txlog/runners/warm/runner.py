"""Runs a job on the warm Spark of this machine; its driver side is a child process of the task.

Invariants: no later job sees what a job leaves in its session; a server that does not answer is ended, and the job is
run once more only if nothing of it had begun.
"""

from __future__ import annotations

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.wording import LinesOnce
from airflow_txlog.errors import JobError, SparkUnavailable, TxlogError
from airflow_txlog.jobs.spark.connect import ConnectTarget
from airflow_txlog.runners.base import Log, check_stays_here
from airflow_txlog.runners.child_process import JOB, ChildProcessRunner, RunsChildren
from airflow_txlog.runners.warm.server import (
    give_up,
    is_of_session,
    is_started,
    lease_session,
    offering_credentials,
)


class WarmRunner(RunsChildren):
    """One session of the shared server per job. A job that Spark Connect cannot run gets its own Spark."""

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Run the job and wait; see `Runner.run`."""
        self._is_killed = False
        check_stays_here(spec)
        lines = LinesOnce(log)
        # The server is of this machine, and of this user. Before a slow start, every job is first tried without Spark,
        # which finds its author's mistakes.
        always = not is_started(spec.spark_conf)
        done = self._without_spark(spec, lines.begin, log, is_spark_here=True, always=always)
        if done is not None:
            return done
        try:
            try:
                return self._on_server(spec, lines.begin())
            except SparkUnavailable as error:
                if not error.retryable or error.facts.get("place") is None:
                    raise
                log(f"{error.message} Another one is started.")
                return self._on_server(spec, lines.begin())
        except TxlogError as error:
            if not error.facts.get("is_local_only"):
                raise
            log(
                f"Spark Connect cannot run this job, so it gets a Spark of its own, which takes longer: {error.message}"
            )
            return self._in_child(ChildProcessRunner(), spec, lines.begin())

    def _on_server(self, spec: JobSpec, log: Log) -> JobResult:
        lease = lease_session(spec.spark_conf, log, lambda: self._check_not_killed(spec))
        target = ConnectTarget(
            url=lease.url, session_id=lease.slot.session_id, abandoned=lease.abandoned, is_pooled=True
        )
        child = ChildProcessRunner(
            # Not SPARK_HERE: this process cannot see the server's own settings, which may redirect paths.
            (*JOB, "--session", "connect"),
            target.environment(),
            # A child that outlives this process still has the session.
            files=(lease.slot.file,),
        )
        # The server was started with the others.
        of_session = {name: value for name, value in spec.spark_conf.items() if is_of_session(name)}
        try:
            with offering_credentials(lease.server, spec.access.connections):
                return self._in_child(child, spec.replace(spark_conf=of_session), log)
        except SparkUnavailable:
            give_up(lease.place, lease.server)
            raise
        finally:
            lease.end(is_well=_has_put_its_session_in_order(child))


def _has_put_its_session_in_order(child: ChildProcessRunner) -> bool:
    """Return whether the next job can have the session: the job itself has ended well, and was not stopped."""
    if child.answer is None or child.was_killed:
        return False
    return not isinstance(child.answer.typed_error(), JobError)
