"""Choose whether this process or Spark does the work of a job, before the job writes data files, and log the reason.

The record and the time zone decide first. Then the job examines its texts, its source and its table's snapshot on the
local executor, which raises NeedsSpark for work that only Spark can do. The job continues with Spark from its saved
work. The invariant: a job keeps its id, its current time and its materialized source when it changes to Spark. The one
exception: if Arrow cannot decode a file of the source while Spark runs already, the job starts again with Spark's own
reader, and deletes its inputs first unless a retry may use them. A job that meets a value which only Spark computes
starts its steps again, and Spark evaluates every text that may meet one.
"""

from __future__ import annotations

import contextlib
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.operations import Delete
from airflow_txlog.contract.operations.base import SourceOperation
from airflow_txlog.contract.wording import LinesOnce
from airflow_txlog.engine import DeltaTable
from airflow_txlog.engine.table.snapshot.files import known_sum, record_counts
from airflow_txlog.errors import InvalidInput, JobError
from airflow_txlog.exactly_once.transactions import remove_saved_work
from airflow_txlog.jobs.context import JobContext, Log, LogContext, StepTimes
from airflow_txlog.jobs.executor.base import NeedsSpark
from airflow_txlog.jobs.executor.local import LocalExecutor
from airflow_txlog.jobs.source.listing import check_reachable
from airflow_txlog.jobs.spark.errors import failure_of
from airflow_txlog.jobs.spark.installation import not_started
from airflow_txlog.jobs.spark.launch import starts_for_little
from airflow_txlog.jobs.spark.progress import STARTING, WAITING, logged_while_starting
from airflow_txlog.jobs.spark.session import check_meaning, has_session, job_settings, reads_this_disk
from airflow_txlog.jobs.sql.current_time import CurrentTime, fix_current_time
from airflow_txlog.locations import LOCAL, scheme_of
from airflow_txlog.process.starting import start_turn
from airflow_txlog.storage.limits import MIB, SMALL_JOB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.jobs.executor.base import Executor
    from airflow_txlog.jobs.executor.spark import SparkExecutor


Job = Callable[[JobContext], JobResult]

# The JVM works a second or two for a small job, too short a time for good compilation to pay off.
_LITTLE_BYTES = 32 * MIB
_LITTLE_ROWS = 1_000_000


@dataclass(frozen=True)
class Sparks:
    """The Spark that a job may have, by the arguments of `run_job`."""

    start: Callable[[], SparkSession] | None
    """Returns the session."""
    is_given: bool
    """Whether it runs already."""
    is_here: bool
    always_starts: bool

    def started(self, steps: StepTimes, say: Log, why: str | None) -> SparkSession:
        """Return the session, starting it if necessary. Raises TxlogError if it does not start.

        `why`: the reason why the job needs it, if it is known.
        """
        assert self.start is not None
        if self.is_given:
            return self.start()
        with contextlib.ExitStack() as held:
            try:
                if self.is_here and not has_session():
                    turn = held.enter_context(start_turn())
                    if turn.num_ahead:
                        with steps.step(WAITING):
                            turn.wait(say)
                with steps.step(STARTING), logged_while_starting(say):
                    return self.start()
            except Exception as error:
                raise not_started(error, why) from error


def run_planned(
    spec: JobSpec, job: Job, table: DeltaTable, sparks: Sparks, say: Log, contexts: list[LogContext]
) -> JobResult:
    """Return the result of a job that succeeds. Its contexts are added to `contexts`."""
    check_meaning(spec.spark_conf, spec.time_zone)
    check_reachable(table.uri)
    with _inputs_removed(spec, contexts):
        lines = LinesOnce(say)
        tried: JobContext | None = None
        may_try = not (sparks.is_given or sparks.always_starts)
        why, unread, for_value = _why_spark(spec) if may_try else None, None, False
        if may_try and why is None:
            try:
                tried = begin_job(spec, LocalExecutor(spec), table, lines.begin())
                tried.is_spark_here = sparks.is_here
                contexts.append(tried)
                return _run_here(job, tried)
            except NeedsSpark as error:
                why, unread, for_value = str(error), error.unread, error.for_value
        steps = StepTimes() if tried is None else tried.times
        # It loads all operations, which a job without Spark does not need.
        from airflow_txlog.jobs.mistakes import check_mistakes  # noqa: PLC0415

        with steps.step("check"):
            is_here = sparks.is_here
            if sparks.is_given and sparks.start is not None:
                is_here = is_here and reads_this_disk(sparks.start())
            check_mistakes(spec, table, is_spark_here=is_here, has_own_session=not sparks.is_given)
        if why is not None:
            if sparks.start is None:
                raise JobError(f"The job needs Spark: {why}.", needs_spark=True)
            say(f"Spark is needed: {why}")
        starts_for_little.set(not sparks.is_given and _reads_little(spec, table))
        spark = sparks.started(steps, say, why)
        with job_settings(spark, spec.time_zone, spec.spark_conf, spec.unrestricted):
            from airflow_txlog.jobs.executor.spark import SparkExecutor  # noqa: PLC0415 - only with Spark

            def run(tried: JobContext | None) -> JobResult:
                executor = SparkExecutor(spark)
                context = begin_job(spec, executor, table, lines.begin(), tried)
                context.times, context.arrow_error, context.leaves_values_to_spark = steps, unread, for_value
                contexts.append(context)
                return _run_by_spark(job, context, executor)

            while True:
                try:
                    return run(tried)
                except NeedsSpark as error:
                    say(f"Spark is needed: {error}")
                    unread, for_value = error.unread or unread, error.for_value or for_value
                    last, tried = contexts[-1], None
                    if error.for_value and isinstance(last, JobContext):
                        tried = last
                    elif last.work_folder is None:
                        _remove_inputs(contexts)


def begin_job(
    spec: JobSpec, executor: Executor, table: DeltaTable, log: Log, tried: JobContext | None = None
) -> JobContext:
    """Return the context of a job that starts now, in whose texts the current time is constant from here on.

    `tried` is the same job on another executor, which it continues. Raises InvalidJobSpec for a reserved parameter,
    NeedsSpark.
    """
    moment = None if tried is None or tried.is_resumed else tried.current_time.saved
    current_time = CurrentTime(executor.now, moment)
    texts = fix_current_time(spec, current_time)
    job = JobContext(spec=spec, executor=executor, table=table, log=log, current_time=current_time, texts=texts)
    if tried is not None:
        job.go_on_from(tried)
    return job


def _reads_little(spec: JobSpec, table: DeltaTable) -> bool:
    """Return whether all that the job can read is small: it has no source, and the whole table is."""
    operation = spec.operation
    if isinstance(operation, SourceOperation) or (isinstance(operation, Delete) and operation.keys is not None):
        return False
    snapshot = table.snapshot()
    if snapshot.size_bytes > _LITTLE_BYTES:
        return False
    rows = known_sum(record_counts(snapshot.files()))
    return rows is not None and rows <= _LITTLE_ROWS


def _why_spark(spec: JobSpec) -> str | None:
    """Return why the job needs Spark, if the record or the time zone shows it."""
    if not spec.operation.may_spare_spark:
        return "the job evaluates SQL, or reads what only Spark reads"
    if not _is_known_zone(spec.time_zone):
        return f"whether there is a time zone {spec.time_zone!r} is for it to say"
    return None


def _run_here(job: Job, context: JobContext) -> JobResult:
    """Return the result of the job by this process alone. Raises NeedsSpark; then only saved work is staged."""
    executor = context.executor
    with _unread_by_arrow(), _left_to_spark():
        result = job(context)
    assert isinstance(executor, LocalExecutor)
    allowed = "" if context.operation.holds_rows else f", of {executor.bytes_allowed} that {SMALL_JOB.setting} allows"
    context.log(
        f"without Spark: all that the job evaluates is plain, and at most {executor.bytes_planned} bytes were read at "
        f"once{allowed}"
    )
    return result


def _run_by_spark(job: Job, context: JobContext, executor: SparkExecutor) -> JobResult:
    """Return the result of a job with its Spark.

    Raises NeedsSpark if Arrow cannot decode a file and Spark has not tried it yet, or for the first value that only
    Spark computes; Arrow's error if Spark cannot decode the file either.
    """
    try:
        executor.prepare(context)
        with contextlib.nullcontext() if context.leaves_values_to_spark else _left_to_spark():
            if context.arrow_error is not None:
                # Before rows of other files are staged.
                executor.check_decodes(context.arrow_error)
                return job(context)
            with _unread_by_arrow():
                return job(context)
    finally:
        context.drop_views()


@contextlib.contextmanager
def _left_to_spark() -> Iterator[None]:
    """Raise NeedsSpark instead of the error of a value that only Spark computes."""
    try:
        yield
    except InvalidInput as error:
        why = error.facts.get("left_to_spark")
        if why is None:
            raise
        raise NeedsSpark(f"its SQL meets {why}", for_value=True) from error


@contextlib.contextmanager
def _unread_by_arrow() -> Iterator[None]:
    """Raise NeedsSpark instead of the error of a file that Spark's own reader may read in another way than Arrow."""
    try:
        yield
    except InvalidInput as error:
        if error.facts.get("only_spark") is not None:
            raise NeedsSpark(f"{error.message.partition('. Nothing')[0]}") from error
        path = error.facts.get("unread_by_arrow")
        if path is None or scheme_of(path) != LOCAL:
            raise
        raise NeedsSpark(f"Arrow cannot decode a file of the source ({error.message})", unread=error) from error


@contextlib.contextmanager
def _inputs_removed(spec: JobSpec, contexts: list[LogContext]) -> Iterator[None]:
    """Delete afterwards the inputs that the job has materialized, unless it fails and a retry may use them."""
    try:
        yield
    except Exception as error:
        found = failure_of(spec, error)
        # An unforeseen failure is retried if the task leaves that to Airflow, which this job does not know.
        may_be_retried = found.retryable or isinstance(found, JobError)
        if not (contexts and contexts[-1].work_folder is not None and may_be_retried):
            _remove_inputs(contexts)
        raise
    _remove_inputs(contexts)


def _is_known_zone(name: str) -> bool:
    if name == "UTC":
        return True
    # Python accepts other files in the folder of zones as zones; Java does not: posix/Europe/Berlin, Factory.
    if "/" not in name or not name[0].isupper():
        return False
    try:
        zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return False
    return True


def _remove_inputs(contexts: list[LogContext]) -> None:
    """Delete the folder of materialized inputs, large plans and memory; VACUUM sweeps what cannot be deleted now."""
    for context in contexts[-1:]:
        # The folder of work without saved work is this job's alone.
        if isinstance(context, JobContext) and (context.has_inputs or context.work_folder is not None):
            with contextlib.suppress(Exception):
                remove_saved_work(context.store, context.inputs_folder, context.kept_inputs)
