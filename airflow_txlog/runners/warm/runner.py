"""Runs a job on the warm Spark of this machine; its driver side is a child process of the task.

Invariants: what the job leaves in its session no later job sees; a server that does not answer is ended, and the job is
run once more only where nothing of it had begun.
"""

from __future__ import annotations

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.wording import LinesOnce
from airflow_txlog.errors import JobError, JobLost, SparkUnavailable, TxlogError
from airflow_txlog.jobs.spark.connect import ConnectTarget
from airflow_txlog.runners.base import Log, check_stays_here
from airflow_txlog.runners.child_process import JOB, ChildProcessRunner, run_without_spark
from airflow_txlog.runners.warm.server import (
    give_up,
    is_of_session,
    is_started,
    lease_session,
    offering_credentials,
)


class WarmRunner:
    """One session of the shared server a job. A job that Spark Connect cannot run has a Spark of its own."""

    def __init__(self) -> None:
        self._child: ChildProcessRunner | None = None
        self._is_killed = False

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Run the job and wait; see `Runner.run`."""
        self._is_killed = False
        check_stays_here(spec)
        lines = LinesOnce(log)
        # The server is of this machine, and of this user. Before one starts, which takes long, a job is tried without,
        # for whatever it is: that finds mistakes of its author's.
        done = run_without_spark(
            spec,
            lambda child, described: self._in_child(child, described, lines.begin()),
            log,
            is_spark_here=True,
            always=not is_started(spec.spark_conf),
        )
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

    def kill(self) -> None:
        """Stop the job: what runs on the server is cancelled, and the session given up."""
        self._is_killed = True
        child = self._child
        if child is not None:
            child.kill()

    def _on_server(self, spec: JobSpec, log: Log) -> JobResult:
        lease = lease_session(spec.spark_conf, log, lambda: self._check(spec))
        target = ConnectTarget(
            url=lease.url, session_id=lease.slot.session_id, abandoned=lease.abandoned, is_pooled=True
        )
        child = ChildProcessRunner(
            # Not SPARK_HERE: this process does not see the server's own settings, which may say where paths lie.
            (*JOB, "--session", "connect"),
            target.environment(),
            # A child that outlives this process still has the session.
            files=(lease.slot.file,),
        )
        # The server was started with the others.
        of_session = {name: value for name, value in spec.spark_conf.items() if is_of_session(name)}
        try:
            with offering_credentials(lease.server, spec.access.storage_conn_id):
                return self._in_child(child, spec.replace(spark_conf=of_session), log)
        except SparkUnavailable:
            give_up(lease.place, lease.server)
            raise
        finally:
            lease.end(is_well=_has_put_its_session_in_order(child))

    def _in_child(self, child: ChildProcessRunner, spec: JobSpec, log: Log) -> JobResult:
        self._child = child
        try:
            self._check(spec)
            return child.run(spec, log=log)
        finally:
            self._child = None

    def _check(self, spec: JobSpec) -> None:
        if self._is_killed:
            raise JobLost(
                f"The {spec.operation.name} job on {spec.table_uri} was stopped before it began.",
                has_application_transaction=spec.application is not None,
            )


def _has_put_its_session_in_order(child: ChildProcessRunner) -> bool:
    """Whether the next job can have the session of the last one.

    The job itself must have come to its end. One that was stopped has released its session, also where the table's log
    shows its commit.
    """
    if child.answer is None or child.was_killed:
        return False
    return not isinstance(child.answer.typed_error(), JobError)
