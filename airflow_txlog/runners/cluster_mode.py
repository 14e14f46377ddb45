"""Runs a job on a cluster by `spark-submit` in cluster mode: its driver is on another machine, and outlives this
process.

The job's description and its result are files in the table's folder (`exchange`). Invariants: every later try of the
work finds the job, because its name is saved before it is submitted; so no try submits work while an earlier one's job
runs. A job counts as cancelled or lost only after the table's log was searched for its commit.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.wording import application_line
from airflow_txlog.errors import ClusterLost, IdempotencyKeyReused, JobError, JobLost, SparkUnavailable, TxlogError
from airflow_txlog.exactly_once.exchange import KEY_SETTING, Exchange, exchange_of
from airflow_txlog.exactly_once.transactions import find_done
from airflow_txlog.jobs.spark.shipping import driver_zip
from airflow_txlog.runners.base import (
    ApplicationState,
    Log,
    SparkSubmit,
    result_of_done,
    result_of_lost,
    result_or_error,
)
from airflow_txlog.runners.child_process import (
    ChildProcessRunner,
    follow_output,
    job_environment,
    job_not_started,
    stop,
)
from airflow_txlog.runners.submit import SHARED_DEFAULTS, SubmitRunner, check_left_to_connection, settings_file

POLL_S = 10.0
_SLICE_S = 0.2
MAIN_SETTING = "spark.txlog.main"
"""The setting with the driver's file, for an image that has the package:
`local:///…/airflow_txlog/jobs/cluster_main.py`.
"""
_ENVIRONMENTS = ("spark.executorEnv", "spark.yarn.appMasterEnv", "spark.kubernetes.driverEnv")


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A submitted job: the number and the name of its submission, the digest of its spec, and its task."""

    exchange: Exchange
    number: int
    name: str
    digest: str
    task: dict[str, Any]
    """The task instance. Its `max_tries` shows whether it was cleared since."""


@dataclass(kw_only=True)
class Watched:
    """The last state that the task has logged of the job for which it waits."""

    job: Submitted
    log: Log
    answered_s: float
    is_started: bool = False
    text: str = ""

    def look_for_driver(self) -> None:
        """Log the driver's location, once it has reported it."""
        started = None if self.is_started else self.job.exchange.get("driver", self.job.number)
        if started is not None:
            self.is_started = True
            self.log(application_line(started["application"], started["master"], started["ui"]))

    def show(self, found: ApplicationState) -> None:
        """Log the cluster's answer if it has changed."""
        self.answered_s = SYSTEM_CLOCK.monotonic_s()
        if found.text != self.text:
            self.text = found.text
            self.log(f"{self.job.name}: {found.text}{f' ({found.ui})' if found.ui else ''}")

    def unanswered(self, spec: JobSpec, error: Exception, *, at_most_s: float) -> None:
        """Log that there was no answer. Raise ClusterLost if there was none for longer than `at_most_s`."""
        silent_s = SYSTEM_CLOCK.monotonic_s() - self.answered_s
        self.log(f"no answer about {self.job.name} for {silent_s:.0f} s ({_text_of(error)})")
        if silent_s > at_most_s:
            raise ClusterLost(
                f"No answer about the {spec.operation.name} job on {spec.table_uri}, {self.job.name}, for "
                f"{silent_s:.0f} s ({_text_of(error)}). It may still run: the next try looks for it, and for its "
                "result.",
                cause_type=type(error).__name__,
                has_application_transaction=spec.application is not None,
            ) from error


class ClusterModeRunner(SubmitRunner):
    """One application on the cluster per job. The cluster runs its driver."""

    _defaults = SHARED_DEFAULTS

    def __init__(
        self,
        cluster: SparkSubmit,
        *,
        poll_s: float = POLL_S,
        cancelled_s: float = 20.0,
        unanswered_s: float = 600.0,
    ) -> None:
        """`cancelled_s`: how long a cancelled job may take to end, before the task continues anyway.

        `unanswered_s`: how long the cluster or the store may give no answer, before the task leaves the job to its next
        try.
        """
        super().__init__(cluster)
        assert cluster.applications is not None, "a cluster in client mode"
        self._applications = cluster.applications
        self._poll_s, self._cancelled_s, self._unanswered_s = poll_s, cancelled_s, unanswered_s
        self._job: Submitted | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.instead_of_waiting: Callable[[str], NoReturn] | None = None
        """Called with the name of the running job, where another process is to wait for it. It raises."""

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Return the result of the job that an earlier try of this work has submitted, or of one that is submitted now.

        Raises as `Runner.run` does; SparkUnavailable if the cluster does not answer or take the application;
        ClusterLost if it stops answering and the job may still run; IdempotencyKeyReused.
        """
        return self._result(spec, log, may_submit=True)

    def resume(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Return the result of a job that this try has submitted and waited for elsewhere. Submits nothing."""
        return self._result(spec, log, may_submit=False)

    def _result(self, spec: JobSpec, log: Log, *, may_submit: bool) -> JobResult:
        self._is_killed, self._job = False, None
        check_left_to_connection(spec)
        if not spec.operation.needs_spark:
            return self._in_child(ChildProcessRunner(), spec, log)
        exchange = exchange_of(spec)
        job = _last_of(exchange)
        is_alive = job is not None and self._is_alive(job)
        if job is not None and may_submit:
            job = self._to_wait_for(spec, job, is_alive, log)
        if job is None and not may_submit:
            # Another copy of the task has read its result.
            return result_of_lost(spec, self._lost(spec, "its job", None))
        if job is None:
            done = self._without_spark(spec, lambda: log, log)
            if done is not None:
                return done
        with self._cancelled_if_interrupted(spec, log):
            if job is None:
                job, is_alive = self._submit(spec, exchange, log), True
            self._job = job
        if self.instead_of_waiting is not None and is_alive and not self._is_killed:
            if spec.saved_work_key is not None:
                self.instead_of_waiting(job.name)
            log("without a key of its work (see the warning above) this task cannot be resumed: it waits here")
        with self._cancelled_if_interrupted(spec, log):
            return self._wait(spec, job, log)

    def kill(self) -> None:
        """Cancel the job on its cluster. `run` may continue below, and look for the result and in the table's log."""
        super().kill()
        process = self._process
        if process is not None:
            stop(process)
        if self._job is not None:
            with contextlib.suppress(Exception):
                # If the cluster does not answer, `run` reports that.
                self._applications.cancel(self._job.name)

    def cancel(self, spec: JobSpec, *, log: Log) -> None:
        """Cancel the last submitted job of this work, log the outcome, and delete its description."""
        try:
            job = _last_of(exchange_of(spec))
        except JobError as error:
            # The exchange is another build's. The try that found it has failed, and its files may be ignored.
            log(str(error))
            return
        if job is not None and self._end(spec, job, log):
            with contextlib.suppress(Exception):
                job.exchange.remove()

    # --- submitting -------------------------------------------------------------------------------------------------

    def _is_alive(self, job: Submitted) -> bool:
        try:
            return self._applications.look(job.name).is_alive
        except Exception as error:
            if self._result_of(job) is not None:
                return False
            raise SparkUnavailable(
                f"{job.name} was submitted for this work, and the cluster does not answer whether it runs "
                f"({_text_of(error)}). Nothing was submitted now.",
                master=self._cluster.master,
                cause_type=type(error).__name__,
            ) from error

    def _to_wait_for(self, spec: JobSpec, job: Submitted, is_alive: bool, log: Log) -> Submitted | None:
        """Return the job of an earlier try if it still runs, or has left a result that no try has read."""
        application = spec.application
        if application is not None and application.check_digest and job.digest != spec.digest():
            raise IdempotencyKeyReused(
                f"Table {spec.table_uri}: the key {application.app_id!r} names other work, which {job.name} was "
                "submitted for. Nothing was done now. Give the task an idempotency_key that names this work, such as "
                "one with {{ run_id }} in it.",
                table=spec.table_uri,
                app_id=application.app_id,
            )
        is_shared = application is not None and application.check_digest
        if job.task != _task_of(spec) and not (is_alive and is_shared):
            # A result of that time, such as "nothing to do", may be wrong now: another writer may have restored rows.
            log(f"{job.name} was submitted before the task was cleared, or by another task: it does not count")
            if is_alive:
                self._end(spec, job, log)
            return None
        if is_alive:
            log(f"an earlier try has submitted {job.name}, which runs: waiting for it")
            return job
        result = self._result_of(job)
        if result is None:
            log(f"an earlier try has submitted {job.name}, which has ended without a result")
            return None
        if result.status in ("committed", "already_done") and application is not None and find_done(spec) is None:
            log(f"an earlier try has submitted {job.name}, whose commit was rolled back: it does not count")
            return None
        log(f"an earlier try has submitted {job.name}, whose result is there")
        return job

    def _submit(self, spec: JobSpec, exchange: Exchange, log: Log) -> Submitted:
        name = f"txlog-{exchange.folder[-12:]}-{secrets.token_hex(4)}"
        settings = self._settings(spec)
        command = self._command(settings)
        described = json.loads(spec.replace(spark_conf={}, result_uri=None).to_json())
        number = exchange.add({"name": name, "digest": spec.digest(), "spec": described})
        job = self._job = Submitted(
            exchange=exchange, number=number, name=name, digest=spec.digest(), task=_task_of(spec)
        )
        settings |= self._applications.settings(name, settings)
        settings[KEY_SETTING] = exchange.handed_over(
            number,
            {
                "spark_conf": spec.spark_conf,
                "saved_work_key": spec.saved_work_key,
                "ledger_keys": list(spec.ledger_keys),
                "records_key": spec.records_key,
            },
        )
        if spec.access.connections:
            # No process of the cluster reaches the task that holds the connection (docs/credentials.md).
            settings = {f"{each}.TXLOG_CREDENTIALS": "own" for each in _ENVIRONMENTS} | settings
        log(f"submitting {name} to {self._cluster.master}")
        with settings_file(spec, settings) as (path, files), _code(spec, settings) as words:
            exit_code, tail = self._call(
                (*command, "--properties-file", path, "--load-spark-defaults", *words), files, log
            )
        if self._is_killed:
            # It may have arrived after all.
            with contextlib.suppress(Exception):
                self._applications.cancel(name)
        elif exit_code:
            self._check_submitted(spec, job, exit_code, tail)
        return job

    def _call(self, command: tuple[str, ...], files: tuple[int, ...], log: Log) -> tuple[int, str]:
        """Run `spark-submit` until the cluster has the application. Return its exit code and its last lines."""
        process = self._process = subprocess.Popen(
            command,
            pass_fds=files,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=job_environment(),
        )
        try:
            tail, _ = follow_output(process, log, has_own_lines=False)
            return process.wait(), tail
        finally:
            stop(process)
            for stream in filter(None, (process.stdout, process.stderr)):
                stream.close()
            self._process = None

    def _check_submitted(self, spec: JobSpec, job: Submitted, exit_code: int, tail: str) -> None:
        """Raise SparkUnavailable unless the cluster has the application, however `spark-submit` ended."""
        with contextlib.suppress(Exception):
            if self._applications.look(job.name).is_alive or self._result_of(job) is not None:
                return
        raise SparkUnavailable(
            f"spark-submit ended before the cluster had taken the {spec.operation.name} job (exit code {exit_code}). "
            f"Nothing was done. Its last lines:\n{tail}",
            master=self._cluster.master,
            log_tail=tail,
            retryable=False,
        )

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wait(self, spec: JobSpec, job: Submitted, log: Log) -> JobResult:
        found: ApplicationState | None = None
        watched = Watched(job=job, log=log, answered_s=SYSTEM_CLOCK.monotonic_s())
        killed_s: float | None = None
        while True:
            try:
                # Checked after the application has ended, too: writing the result is its last step.
                result = self._result_of(job)
                if result is None and (found is None or found.is_alive):
                    watched.look_for_driver()
                    found = self._applications.look(job.name)
                    watched.show(found)
                    if not found.is_alive:
                        continue
            except Exception as error:
                result = None
                watched.unanswered(spec, error, at_most_s=-1 if self._is_killed else self._unanswered_s)
            if result is not None:
                with contextlib.suppress(Exception):
                    job.exchange.remove()
                return result_or_error(spec, result)
            if self._is_killed:
                killed_s = SYSTEM_CLOCK.monotonic_s() if killed_s is None else killed_s
            is_over = killed_s is not None and SYSTEM_CLOCK.monotonic_s() - killed_s > self._cancelled_s
            if is_over or (found is not None and not found.is_alive):
                return result_of_lost(spec, self._lost(spec, job.name, found))
            self._pause()

    def _lost(self, spec: JobSpec, name: str, found: ApplicationState | None) -> JobLost:
        how = "was cancelled" if self._is_killed else "ended on the cluster"
        said = "it is not known whether it still runs" if found is None or found.is_alive else found.text
        return JobLost(
            f"The {spec.operation.name} job on {spec.table_uri}, {name}, {how} and left no result ({said})"
            + (", and the table's log does not show its transaction" if spec.application else "")
            + (f". What it logged: {found.ui}" if found is not None and found.ui else ". Look into its driver's log."),
            has_application_transaction=spec.application is not None,
        )

    def _pause(self) -> None:
        # A signal handler that cancels the job returns to the middle of a sleep.
        until_s = SYSTEM_CLOCK.monotonic_s() + (_SLICE_S if self._is_killed else self._poll_s)
        was_killed = self._is_killed
        while SYSTEM_CLOCK.monotonic_s() < until_s and self._is_killed == was_killed:
            SYSTEM_CLOCK.sleep(min(_SLICE_S, self._poll_s))

    def _result_of(self, job: Submitted) -> JobResult | None:
        document = job.exchange.get("result", job.number)
        # Numbers begin anew with each exchange: the name alone shows that the result is of this submission.
        is_of_job = document is not None and document.get("submission") == job.name
        return JobResult.from_json(json.dumps(document)) if is_of_job else None

    # --- ending -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _cancelled_if_interrupted(self, spec: JobSpec, log: Log) -> Iterator[None]:
        """Cancel the job if the task is interrupted, for example by its timeout. After an error it may still run."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            if self._job is not None:
                self._end(spec, self._job, log)
            raise

    def _end(self, spec: JobSpec, job: Submitted, log: Log) -> bool:
        """Cancel a job, wait until it has ended, and log whether it has committed. Return whether it has ended."""
        try:
            self._applications.cancel(job.name)
            deadline_s = SYSTEM_CLOCK.monotonic_s() + self._cancelled_s
            while (is_alive := self._applications.look(job.name).is_alive) and SYSTEM_CLOCK.monotonic_s() < deadline_s:
                SYSTEM_CLOCK.sleep(_SLICE_S)
            done = result_of_done(spec)
        except Exception as error:
            log(
                f"{job.name} may run on, and may commit: it could not be cancelled, or not be asked ({_text_of(error)})"
            )
            return False
        log(
            f"{job.name} was cancelled; the table's log "
            + (f"shows its commit, version {done.version}" if done is not None else "does not show its transaction")
        )
        return not is_alive


def _last_of(exchange: Exchange) -> Submitted | None:
    """Return the last submitted job of this work, unless its result was read."""
    number = exchange.last()
    document = exchange.get("spec", number) if number else None
    if document is None:
        return None
    task = _named(document["spec"]["annotations"])
    return Submitted(exchange=exchange, number=number, name=document["name"], digest=document["digest"], task=task)


def _task_of(spec: JobSpec) -> dict[str, Any]:
    return _named(spec.annotations)


def _named(annotations: Mapping[str, Any]) -> dict[str, Any]:
    return {name: annotations.get(name) for name in ("dag_id", "task_id", "run_id", "map_index", "max_tries")}


@contextlib.contextmanager
def _code(spec: JobSpec, settings: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the words of the command line that name the driver's file, and the package's zip if that has to be sent."""
    if MAIN_SETTING in settings:
        yield (settings[MAIN_SETTING],)
        return
    with contextlib.ExitStack() as files:
        try:
            name, content = driver_zip()
            path = Path(files.enter_context(tempfile.TemporaryDirectory(prefix="txlog-")), name)
            path.write_bytes(content)
        except OSError as error:
            raise job_not_started(spec, error) from error
        yield "--py-files", str(path), str(Path(__file__).resolve().parents[1] / "jobs" / "cluster_main.py")


def _text_of(error: Exception) -> str:
    # A client library's message may quote a URL, and so a token. Our own errors do not.
    return str(error) if type(error) is RuntimeError or isinstance(error, TxlogError) else type(error).__name__
