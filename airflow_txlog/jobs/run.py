"""One job, from its description to its result. The entry point for every runner.

The invariant: a job that fails leaves no file that a commit names, and its result has the reason. Its temporary views,
its settings and its materialized inputs are gone when `run_job` returns.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.job import JobResult, JobSpec, write_document
from airflow_txlog.contract.operations import TableView, Update
from airflow_txlog.datafiles.failures import trace_of
from airflow_txlog.engine import DeltaTable
from airflow_txlog.engine.table.snapshot.snapshot import is_missing_from, vacuumed
from airflow_txlog.errors import CorruptTable, InvalidJobSpec, JobError, TableNotFound, TxlogError
from airflow_txlog.errors.names import shown_names
from airflow_txlog.jobs.context import Log, LogContext
from airflow_txlog.jobs.spark.errors import failure_of
from airflow_txlog.process.progress import measured
from airflow_txlog.storage.limits import USUAL, Limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_job(
    spec: JobSpec,
    spark: SparkSession | None,
    *,
    log: Log | None = None,
    start: Callable[[], SparkSession] | None = None,
    is_spark_here: bool = True,
    always_starts: bool = False,
    limits: Limits = USUAL,
) -> JobResult:
    """Run the job, and put its result at `spec.result_uri` if there is one.

    `spark` is a session that runs nothing else at that time, ideally one of `session.local_session`. Without it, a job
    that may spare Spark first runs without. If it needs Spark, `start` returns the session. Without `start`, the
    result is an error with the fact `needs_spark`, and nothing was staged. `always_starts`: a job that may need Spark
    starts it in any case. `is_spark_here`: that session reads this machine's disk, so a path means the same without it.
    `log` gets lines for people on what the job does; the process that reads the result sums it up
    (`wording.summary_lines`).

    Raises only if the result cannot be put at its URI: a failure of the job is the result's `error`.
    """
    say = log or (lambda line: None)
    say(f"{spec.operation.name} {spec.table_uri}")
    contexts: list[LogContext] = []
    root: str | None = None

    def run(one: JobSpec) -> JobResult:
        if one.operation.needs_spark and not one.operation.runs_jobs:
            # A job on the log alone need not load the modules that plan and that drive Spark.
            from airflow_txlog.jobs.planner import Sparks, run_planned  # noqa: PLC0415

            sparks = Sparks(start, False, is_spark_here, always_starts)
            if spark is not None:
                sparks = Sparks(lambda: spark, True, is_spark_here, always_starts)
            return run_planned(one, _job_of(one), table, sparks, say, contexts)
        context = LogContext(spec=one, table=table, log=say, run=run)
        contexts.append(context)
        return _job_of(one)(context)

    try:
        _check_versions_are_known(spec)
        table = DeltaTable.at(spec.table_uri, spec.access, limits=limits, strict_writers=spec.strict_writers)
        root = table.uri
        table.store.keeps_files = table.store.is_remote
        with measured():
            result = run(spec)
    except Exception as error:
        result = _failed(spec, contexts[-1] if contexts else None, error, say, root)
    for each in contexts:
        each.store.let_go()
    if spec.result_uri is not None:
        write_document(spec.result_uri, result.to_json())
    return result


def _check_versions_are_known(spec: JobSpec) -> None:
    for place, part in spec.operation.parts():
        if isinstance(part, TableView) and part.as_of is not None:
            raise InvalidJobSpec(
                f"{place} reads {part.table} at the version of a run, which only a task of Airflow knows. Nothing was "
                "read. Name a version.",
                argument=f"{place}.as_of",
            )


def _job_of(spec: JobSpec) -> Callable[[Any], JobResult]:
    """Import and return the function that the operation's record names."""
    module, _, name = spec.operation.job_here.partition(":")
    job: Callable[[Any], JobResult] = getattr(importlib.import_module(module), name)
    return job


def _of_named_version(context: LogContext, error: CorruptTable) -> TxlogError:
    """Return the error, or one that states that a VACUUM has deleted what a source at a named version needs."""
    for table, named in context.versions_read:
        if is_missing_from(named, error) and not is_missing_from(newest := table.snapshot(), error):
            return vacuumed(named, newest, error)
    return error


def _with_columns(error: TxlogError, context: LogContext) -> TxlogError:
    """Return the error of a value that does not fit a type, with the columns of that type: Spark names none."""
    from airflow_txlog.jobs.sql.columns import shown_type  # noqa: PLC0415 - a job on the log alone has no columns

    try:
        columns = context.table.snapshot().delta_schema
    except TxlogError:
        return error
    kind, operation = error.facts["column_type"], context.spec.operation.acting
    names = [each.name for each in columns if shown_type(each.type) == kind]
    if isinstance(operation, Update):
        names = [name for name in names if name.lower() in {each.strip("`").lower() for each in operation.set}]
    if not names:
        return error
    advice = (
        f"Columns of that type: {shown_names(names)}. Convert the value in SQL, or widen the column (change_types)."
    )
    return type(error)(f"{error.message} {advice} Nothing was committed.", **error.facts, columns=names)


def _failed(spec: JobSpec, context: LogContext | None, error: Exception, say: Log, root: str | None) -> JobResult:
    failure = failure_of(spec, error)
    if type(failure) is TableNotFound and failure.table == root:
        failure = TableNotFound(f"{failure.message} {spec.operation.acting.how_to_create}", **failure.facts)
    if isinstance(failure, CorruptTable) and context is not None:
        failure = _of_named_version(context, failure)
    if context is not None and "column_type" in failure.facts:
        failure = _with_columns(failure, context)
    if failure is not error and isinstance(failure, JobError):
        # An unforeseen error: the places that it passed help to fix it.
        for line in trace_of(error):
            say(line)
    return JobResult(
        status="failed",
        operation=spec.operation.name,
        table_uri=spec.table_uri,
        steps=[] if context is None else context.times.as_json(),
        error=failure.to_dict(),
    )
