"""Runs a job in the task's own process, in a Spark session that later jobs of the process share.

For tests, demos and `airflow dags test`: one warm session saves about ten seconds per task. A crash of Spark ends the
task too, so the default is the child process. Invariant: this runner never stops a session that it did not start.

A Spark that is started here finds this process's credentials endpoint in its environment, and so do its Python workers.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.source.held_rows import ArrowRows, rows_in_process
from airflow_txlog.jobs.spark.launch import log_start
from airflow_txlog.jobs.spark.session import has_session, is_classic, local_session
from airflow_txlog.runners.base import Log, check_stays_here, result_or_error
from airflow_txlog.runners.credentials_endpoint import CredentialsEndpoint
from airflow_txlog.storage.credentials import URL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERRUPT_TIMEOUT_S = 5.0
INTERRUPT_EVERY_S = 0.2


class InProcessRunner:
    """One warm Spark session per process.

    `rows`: the source of its one job, as `ArrowRows` takes them. Raises as `ArrowRows` does.
    """

    def __init__(self, rows: object = None) -> None:
        self._rows = None if rows is None else ArrowRows(rows)
        self._interrupt: Callable[[], object] | None = None
        """Cancels the Spark jobs of the running job."""

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Run the job and wait; see `Runner.run`."""
        check_stays_here(spec)
        with contextlib.ExitStack() as held:
            held.enter_context(rows_in_process(self._rows))
            return result_or_error(spec, run_job(spec, None, log=log, start=lambda: self._spark(spec, held, log)))

    @property
    def reading_error(self) -> BaseException | None:
        """The error that the stream of the rows has raised."""
        return None if self._rows is None else self._rows.error

    def _spark(self, spec: JobSpec, held: contextlib.ExitStack, log: Log) -> SparkSession:
        """Return the session for a job, which can be killed and has its credentials until `held` ends."""
        # Py4J logs the end of each of its threads, and would do so in the task's log.
        py4j = logging.getLogger("py4j")
        if py4j.level == logging.NOTSET:
            py4j.setLevel(logging.WARNING)
        if not has_session():
            log_start(spec.spark_conf, log, ", for all tasks of this process")
        with _in_environment(_endpoint().environment):
            spark = local_session(spec.spark_conf)
        held.enter_context(_credentials(spec, spark))
        held.enter_context(self._killable(spark))
        return spark

    @contextlib.contextmanager
    def _killable(self, spark: SparkSession) -> Iterator[None]:
        """Tag the Spark jobs that start inside, so that `kill` finds them and no others."""
        tag = f"airflow_txlog-{SYSTEM_CLOCK.unique_id()}"
        interrupt: Callable[[str], object]
        if is_classic(spark):
            # A classic session knows its own tags only in the thread that set them. All threads share the context's.
            context = spark.sparkContext
            add, remove, interrupt = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
        else:
            add, remove, interrupt = spark.addTag, spark.removeTag, spark.interruptTag
        self._interrupt = functools.partial(interrupt, tag)
        add(tag)
        try:
            yield
        finally:
            self._interrupt = None
            with contextlib.suppress(Exception):  # a broken session cannot be tidied, and its cause is being raised
                remove(tag)

    def kill(self) -> None:
        """Cancel the Spark jobs of the running job until it has ended in an error; a commit in progress stays.

        A kill between two Spark jobs must cancel the next one.
        """
        running = self._interrupt
        if running is None:
            return
        interrupted = threading.Event()

        def interrupt() -> None:
            while self._interrupt is running:
                with contextlib.suppress(Exception):  # a broken session has nothing to cancel
                    running()
                interrupted.set()
                SYSTEM_CLOCK.sleep(INTERRUPT_EVERY_S)

        # A separate thread: the signal handler interrupts this thread inside a call to the JVM, which holds this
        # thread's connection.
        threading.Thread(target=interrupt, daemon=True).start()
        # Not until the job has ended: this thread may be the one that it runs in.
        interrupted.wait(INTERRUPT_TIMEOUT_S)


# --- credentials ----------------------------------------------------------------------------------------------------


@functools.cache
def _endpoint() -> CredentialsEndpoint:
    """Return the endpoint, which lives as long as the process, as its Spark does."""
    return CredentialsEndpoint()


@contextlib.contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables that a JVM started inside inherits."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _credentials(spec: JobSpec, spark: SparkSession) -> Iterator[None]:
    """Give Spark's Python workers the credentials of the job's connections, if it has any, inside.

    Raises InvalidJobSpec if the session was not started here: its workers do not know the endpoint.
    """
    connections = spec.access.connections
    if not connections:
        yield
        return
    url = None
    if is_classic(spark):
        jvm: Any = spark.sparkContext._jvm
        url = jvm.java.lang.System.getenv(URL)
    if url != _endpoint().url:
        raise InvalidJobSpec(
            f"The Spark session of this process has no way to the credentials of the connection {connections[0]!r}, "
            "as it was started by others: its Python workers could "
            'not open the table. Take runner="child", or let the first txlog task of the process start Spark.',
            argument="runner",
        )
    with _endpoint().answering(*connections):
        yield
