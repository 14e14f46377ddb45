"""Runs a job in the task's own process, in a Spark session that later jobs of the process share.

For tests, demos and `airflow dags test`, where one warm session saves about ten seconds a task. A Spark that dies
takes the task with it, so the child process is the default everywhere else. Invariant: a session that this runner did
not start is never stopped by it.

A Spark that is started here finds this process's credentials endpoint in its environment, and so do its Python workers.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.run import run_job
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
    """One warm Spark session a process."""

    def __init__(self) -> None:
        self._running: tuple[SparkSession, str] | None = None

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Run the job and wait; see `Runner.run`."""
        check_stays_here(spec)
        with contextlib.ExitStack() as held:
            return result_or_error(spec, run_job(spec, None, log=log, start=lambda: self._spark(spec, held, log)))

    def _spark(self, spec: JobSpec, held: contextlib.ExitStack, log: Log) -> SparkSession:
        """The session for a job, which can be killed and has its credentials until `held` ends."""
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
        """Marks the Spark jobs that start inside, so that `kill` finds them and no others."""
        tag = f"airflow_txlog-{SYSTEM_CLOCK.unique_id()}"
        self._running = (spark, tag)
        _add_tag(spark, tag)
        try:
            yield
        finally:
            self._running = None
            with contextlib.suppress(Exception):  # a session that broke cannot be tidied, and the cause is on its way
                _remove_tag(spark, tag)

    def kill(self) -> None:
        """Cancel the Spark jobs of the running job until it has ended in an error: a kill that comes between two Spark
        jobs is meant for the next one. A commit that is on its way stays.
        """
        running = self._running
        if running is None:
            return
        # From a thread of its own: the signal handler interrupts this thread inside a call to the JVM, and that call
        # holds this thread's connection.
        spark, tag = running

        interrupted = threading.Event()

        def interrupt() -> None:
            while self._running is running:
                with contextlib.suppress(Exception):  # a session that broke has nothing left to cancel
                    _interrupt(spark, tag)
                interrupted.set()
                SYSTEM_CLOCK.sleep(INTERRUPT_EVERY_S)

        threading.Thread(target=interrupt, daemon=True).start()
        # Not until the job has ended: the thread that it runs in may be this one.
        interrupted.wait(INTERRUPT_TIMEOUT_S)


# --- credentials ----------------------------------------------------------------------------------------------------


@functools.cache
def _endpoint() -> CredentialsEndpoint:
    """One for as long as the process lives, as its Spark does."""
    return CredentialsEndpoint()


@contextlib.contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """A JVM that is started inside has these variables; this process has them not before and not after."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _credentials(spec: JobSpec, spark: SparkSession) -> Iterator[None]:
    """Inside, Spark's Python workers get the credentials of the job's connection, if it has one.

    Raises InvalidJobSpec where the session was not started here: its workers do not know whom to ask.
    """
    if spec.access.storage_conn_id is None:
        yield
        return
    url = None
    if is_classic(spark):
        jvm: Any = spark.sparkContext._jvm
        url = jvm.java.lang.System.getenv(URL)
    if url != _endpoint().url:
        raise InvalidJobSpec(
            f"The Spark session of this process has no way to the credentials of the connection "
            f"{spec.access.storage_conn_id!r} (storage_conn_id), as it was started by others: its Python workers could "
            'not open the table. Take runner="child", or let the first txlog task of the process start Spark.',
            argument="runner",
        )
    with _endpoint().answering(spec.access.storage_conn_id):
        yield


# --- killing --------------------------------------------------------------------------------------------------------

# A classic session knows its own tags only in the thread that has set them, and its `interruptTag` would find nothing
# from another: there the tags are those of the Spark context, which all threads share.


def _add_tag(spark: SparkSession, tag: str) -> None:
    if is_classic(spark):
        spark.sparkContext.addJobTag(tag)
    else:
        spark.addTag(tag)


def _remove_tag(spark: SparkSession, tag: str) -> None:
    if is_classic(spark):
        spark.sparkContext.removeJobTag(tag)
    else:
        spark.removeTag(tag)


def _interrupt(spark: SparkSession, tag: str) -> None:
    if is_classic(spark):
        spark.sparkContext.cancelJobsWithTag(tag)
    else:
        spark.interruptTag(tag)
