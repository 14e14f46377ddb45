"""One job, from its description to its result. The way in for every runner.

The invariant: a job that fails leaves nothing that a commit names, and a result that says why; whatever happens, its
temporary views, its settings and its materialized inputs are gone when `run_job` returns.
"""

from __future__ import annotations

import contextlib
import importlib
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.job import JobResult, JobSpec, write_document
from airflow_txlog.contract.operations import Merge, Upsert
from airflow_txlog.contract.wording import LinesOnce
from airflow_txlog.datafiles.failures import trace_of
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidInput, JobError
from airflow_txlog.exactly_once.transactions import remove_saved_work
from airflow_txlog.jobs.context import JobContext, Log, LogContext, StepTimes
from airflow_txlog.jobs.files.here import threads_for
from airflow_txlog.jobs.source.places import check_reachable
from airflow_txlog.jobs.spark.errors import failure_of
from airflow_txlog.jobs.spark.installation import not_started
from airflow_txlog.jobs.spark.instants import CurrentTime
from airflow_txlog.jobs.spark.needed import NeedsSpark
from airflow_txlog.jobs.spark.progress import STARTING, logged_while_starting
from airflow_txlog.jobs.spark.session import check_meaning, default_parallelism, job_settings, reads_this_disk
from airflow_txlog.jobs.sql.current_time import fix_current_time
from airflow_txlog.limits import SMALL_JOB
from airflow_txlog.locations import LOCAL, scheme_of
from airflow_txlog.storage import Access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


StartSpark = Callable[[], "SparkSession"]


def run_job(
    spec: JobSpec,
    spark: SparkSession | None,
    *,
    log: Log | None = None,
    start: StartSpark | None = None,
    is_spark_here: bool = True,
    always_starts: bool = False,
) -> JobResult:
    """Run the job, and put its result at `spec.result_uri` where there is one.

    `spark`: a session that runs nothing else meanwhile, best one of `session.local_session`: the source's views are
    made in it and dropped. Without it a job that may spare Spark is tried without, and where it needs Spark, `start`
    gives the session; without that too, the result is an error with the fact `needs_spark`, and nothing was staged.
    `always_starts`: a job that may need Spark starts it, whether it turns out to or not.
    `is_spark_here`: that session reads this machine's disk, so that a path means the same without it. `log` gets lines
    for people on what the job does; the result is summed up by the process that reads it (`wording.summary_lines`).

    Never raises for what goes wrong in the job: the result's `error` says it. Raises only when the result cannot be put
    where it belongs.
    """
    say = log or (lambda line: None)
    say(f"{spec.operation.name} {spec.table_uri}")
    contexts: list[LogContext] = []
    try:
        result = _run(spec, _Sparks(spark, start, is_spark_here, always_starts), say, contexts)
    except Exception as error:
        result = _failed(spec, contexts[-1] if contexts else None, error, say)
    if spec.result_uri is not None:
        write_document(spec.result_uri, result.to_json())
    return result


@dataclass(frozen=True)
class _Sparks:
    """What a job may have of Spark, as the arguments of `run_job` say it."""

    session: SparkSession | None
    start: StartSpark | None
    is_here: bool
    always_starts: bool

    def started(self, steps: StepTimes, say: Log) -> SparkSession:
        """The session, which may have to start. Raises TxlogError where it does not."""
        if self.session is not None:
            return self.session
        assert self.start is not None
        try:
            with steps.step(STARTING), logged_while_starting(say):
                return self.start()
        except Exception as error:
            raise not_started(error) from error


def _run(spec: JobSpec, sparks: _Sparks, say: Log, contexts: list[LogContext]) -> JobResult:
    """The result of a job that succeeds. What it began with is added to `contexts`."""
    table = Table.at(spec.table_uri, Access.of(spec), strict_writers=spec.strict_writers)
    if not spec.operation.needs_spark:
        contexts.append(LogContext(spec=spec, table=table, log=say))
        return _job_of(spec)(contexts[-1])
    check_meaning(spec.spark_conf, spec.time_zone)
    check_reachable(table.uri)
    with _inputs_removed(spec, contexts):
        lines = LinesOnce(say)
        tried: JobContext | None = None
        needed: NeedsSpark | None = None
        unread: InvalidInput | None = None
        if sparks.session is None and not sparks.always_starts:
            try:
                tried = _begin_without(spec, table, sparks.is_here, lines.begin())
                contexts.append(tried)
                return _run_without(tried)
            except NeedsSpark as error:
                needed = error
            except InvalidInput as error:
                unread = _unread_by_arrow(error)
                needed = NeedsSpark(f"Arrow cannot decode a file of the source ({unread.message})")
        steps = StepTimes() if tried is None else tried.times
        _check_mistakes(spec, table, sparks, steps)
        if needed is not None:
            if sparks.start is None:
                raise JobError(f"The job needs Spark: {needed}.", needs_spark=True) from needed
            say(f"Spark is needed: {needed}")
        spark = sparks.started(steps, say)
        with job_settings(spark, spec.time_zone, spec.spark_conf, spec.unrestricted):
            job = begin_job(spec, spark, table, lines.begin(), tried)
            job.times = steps
            contexts.append(job)
            if unread is None:
                try:
                    return _run_with(job, spark)
                except InvalidInput as error:
                    unread = _unread_by_arrow(error)
                say(f"Spark's own reader is asked: Arrow cannot decode a file of the source ({unread.message})")
                if job.work_folder is None:
                    _remove_inputs(contexts)
                job = begin_job(spec, spark, table, lines.begin())
                job.times = steps
                contexts.append(job)
            job.arrow_error = unread
            return _run_with(job, spark)


def _run_with(job: JobContext, spark: SparkSession) -> JobResult:
    """The result of a job with its Spark. Raises the error of Arrow where Spark cannot decode the same file either."""
    try:
        _prepare(job, spark)
        if job.arrow_error is not None:
            # Found out before rows of other files are staged.
            _check_spark_decodes(spark, job.arrow_error)
        return _job_of(job.spec)(job)
    finally:
        job.drop_views()


def _check_spark_decodes(spark: SparkSession, error: InvalidInput) -> None:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only with Spark

    try:
        spark.read.parquet(error.facts["unread_by_arrow"]).write.format("noop").mode("overwrite").save()
    except (PySparkException, Py4JJavaError) as found:
        raise error from found


def _unread_by_arrow(error: InvalidInput) -> InvalidInput:
    """The error, where it is of a file that Arrow cannot decode and Spark's own reader can be asked for. Raises it."""
    path = error.facts.get("unread_by_arrow")
    if path is None or scheme_of(path) != LOCAL:
        raise error
    return error


def _check_mistakes(spec: JobSpec, table: Table, sparks: _Sparks, steps: StepTimes) -> None:
    """As `check_mistakes`, which brings what all operations are, and a job without Spark need not load."""
    from airflow_txlog.jobs.mistakes import check_mistakes  # noqa: PLC0415

    with steps.step("check"):
        session = sparks.session
        is_here = sparks.is_here and (session is None or reads_this_disk(session))
        check_mistakes(spec, table, is_spark_here=is_here, has_own_session=session is None)


@contextlib.contextmanager
def _inputs_removed(spec: JobSpec, contexts: list[LogContext]) -> Iterator[None]:
    """Deletes afterwards what the job has materialized, unless it fails and a retry may go on with it."""
    try:
        yield
    except Exception as error:
        if not (contexts and contexts[-1].work_folder is not None and _may_be_retried(spec, error)):
            _remove_inputs(contexts)
        raise
    _remove_inputs(contexts)


def _begin_without(spec: JobSpec, table: Table, is_spark_here: bool, say: Log) -> JobContext:
    """The context of a job that is tried without Spark. Raises NeedsSpark."""
    if not spec.operation.may_spare_spark:
        raise NeedsSpark("the job evaluates SQL, or reads what only Spark reads")
    if not _is_known_zone(spec.time_zone):
        raise NeedsSpark(f"whether there is a time zone {spec.time_zone!r} is for it to say")
    job = begin_job(spec, None, table, say)
    job.is_spark_here = is_spark_here
    return job


def _run_without(job: JobContext) -> JobResult:
    """The result of the job by this process alone.

    Raises NeedsSpark, and then nothing is staged but what saved work names.
    """
    result = _job_of(job.spec)(job)
    job.log(
        f"without Spark: all that the job evaluates is plain, and at most {job.bytes_planned} bytes were read at once, "
        f"of {job.bytes_allowed} that {SMALL_JOB.setting} allows"
    )
    return result


def _is_known_zone(name: str) -> bool:
    if name == "UTC":
        return True
    # Python takes files beside the zones for zones, which Java does not know: posix/Europe/Berlin, Factory.
    if "/" not in name or not name[0].isupper():
        return False
    try:
        zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return False
    return True


def _job_of(spec: JobSpec) -> Callable[[Any], JobResult]:
    """The function that the operation's record names. It is imported here and not before: some need pyspark."""
    module, _, name = spec.operation.job.partition(":")
    job: Callable[[Any], JobResult] = getattr(importlib.import_module(module), name)
    return job


def begin_job(
    spec: JobSpec, spark: SparkSession | None, table: Table, log: Log, tried: JobContext | None = None
) -> JobContext:
    """The context of a job that starts now: from here on the current time in its texts stands still.

    The session must be in the job's time zone; None for a job that is tried without, which is `tried` where it goes on
    with Spark. Raises InvalidJobSpec for a parameter with a name of ours.
    """
    moment = None if tried is None or tried.is_resumed else tried.current_time.saved
    current_time = CurrentTime(spark, spec.time_zone, moment)
    job = JobContext(
        spec=spec,
        session=spark,
        table=table,
        log=log,
        current_time=current_time,
        texts=fix_current_time(spec, current_time),
        parallelism=threads_for(table.uri) if spark is None else default_parallelism(spark),
        bytes_allowed=SMALL_JOB.allowed,
    )
    if tried is not None:
        job.go_on_from(tried)
    return job


def _prepare(context: JobContext, spark: SparkSession) -> None:
    """Make the cluster ready for the job's tasks. Raises UnfitExecutor."""
    from airflow_txlog.jobs.spark.executors import (  # noqa: PLC0415 - only with Spark
        MERGE_MEMORY_MIB,
        TASK_MEMORY_MIB,
        check_executors,
    )
    from airflow_txlog.jobs.spark.shipping import ship  # noqa: PLC0415

    with context.step("prepare"):
        ship(spark)
        task_mib = MERGE_MEMORY_MIB if isinstance(context.spec.operation, (Merge, Upsert)) else TASK_MEMORY_MIB
        scheme, conf = scheme_of(context.root), context.spec.spark_conf
        check_executors(spark, context.parallelism, scheme, context.log, task_mib, conf)


def _may_be_retried(spec: JobSpec, error: Exception) -> bool:
    """Whether a retry may come, which then goes on from the saved work.

    What failed outside of our rules is retried where the task leaves that to Airflow (`TxlogRetryPolicy` with
    otherwise="default"), which this job does not know.
    """
    found = failure_of(spec, error)
    return found.retryable or isinstance(found, JobError)


def _failed(spec: JobSpec, context: LogContext | None, error: Exception, say: Log) -> JobResult:
    failure = failure_of(spec, error)
    if failure is not error and isinstance(failure, JobError):
        # Not foreseen: the places that it went through help to mend it.
        for line in trace_of(error):
            say(line)
    return JobResult(
        status="failed",
        operation=spec.operation.name,
        table_uri=spec.table_uri,
        steps=[] if context is None else context.times.as_json(),
        error=failure.to_dict(),
    )


def _remove_inputs(contexts: list[LogContext]) -> None:
    """Delete the folder of materialized inputs, large plans and memory; VACUUM sweeps what cannot be deleted now.

    Where a second copy of the work still reads them, it fails and finds on its retry that the work is done.
    """
    for context in contexts[-1:]:
        if isinstance(context, JobContext):
            with contextlib.suppress(Exception):
                remove_saved_work(context.store, context.inputs_folder)
