"""One job, from its description to its result. The way in for every runner.

The invariant: a job that fails leaves nothing that a commit names, and a result that says why; whatever happens, its
temporary views, its settings and its materialized inputs are gone when `run_job` returns.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from airflow_txlog.application import remove_saved_work
from airflow_txlog.contract import JobResult, JobSpec, write_document
from airflow_txlog.datafiles.failures import trace_of
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec, JobError
from airflow_txlog.jobs.context import JobContext, Log, LogContext
from airflow_txlog.jobs.files.source_listing import check_reachable
from airflow_txlog.jobs.spark.errors import failure_of
from airflow_txlog.jobs.spark.instants import CurrentTime
from airflow_txlog.jobs.spark.session import check_meaning, default_parallelism, job_settings
from airflow_txlog.jobs.spark.shipping import ship
from airflow_txlog.jobs.sql.current_time import fix_current_time
from airflow_txlog.storage import Access
from airflow_txlog.wording import job_lines


def needs_spark(spec: JobSpec) -> bool:
    """Whether the job evaluates SQL; without that it needs no session, and saves the ten seconds of its start."""
    return spec.operation.needs_spark


def run_job(spec: JobSpec, spark: SparkSession | None, *, log: Log | None = None) -> JobResult:
    """Run the job, and put its result at `spec.result_uri` where there is one.

    `spark`: a session that runs nothing else meanwhile, best one of `session.local_session`: the source's views are
    made in it and dropped. None will do where `needs_spark` says so. `log` gets lines for people.

    Never raises for what goes wrong in the job: the result's `error` says it. Raises only when the result cannot be put
    where it belongs.
    """
    say = log or (lambda line: None)
    say(f"{spec.operation.name} {spec.table_uri}")
    context: LogContext | None = None
    try:
        table = Table.at(spec.table_uri, Access.of(spec), strict_writers=spec.strict_writers)
        if not needs_spark(spec):
            context = LogContext(spec=spec, table=table, log=say)
            result = _job_of(spec)(context)
        else:
            if spark is None:
                raise InvalidJobSpec(f"{spec.operation.name} needs a Spark session.", argument="operation")
            check_meaning(spec.spark_conf, spec.time_zone)
            check_reachable(table.uri)
            with job_settings(spark, spec.time_zone):
                job = context = begin_job(spec, spark, table, say)
                result = _run_rows(job)
    except Exception as error:
        result = _failed(spec, context, error, say)
    # The result first: what was committed must reach the operator, whatever becomes of a line for people.
    if spec.result_uri is not None:
        write_document(spec.result_uri, result.to_json())
    for line in job_lines(result):
        say(line)
    return result


def _job_of(spec: JobSpec) -> Callable[[Any], JobResult]:
    """The function that the operation's record names. It is imported here and not before: some need pyspark."""
    module, _, name = spec.operation.job.partition(":")
    job: Callable[[Any], JobResult] = getattr(importlib.import_module(module), name)
    return job


def begin_job(spec: JobSpec, spark: SparkSession, table: Table, log: Log) -> JobContext:
    """The context of a job that starts now: from here on the current time in its texts stands still.

    The session must be in the job's time zone. Raises InvalidJobSpec for a parameter with a name of ours.
    """
    current_time = CurrentTime(spark)
    return JobContext(
        spec=spec,
        spark=spark,
        table=table,
        log=log,
        current_time=current_time,
        texts=fix_current_time(spec, current_time),
        parallelism=default_parallelism(spark),
    )


def _run_rows(context: JobContext) -> JobResult:
    spec = context.spec
    try:
        with context.step("prepare"):
            ship(context.spark)
        result = _job_of(spec)(context)
    except Exception as error:
        if not (context.work_folder is not None and _may_be_retried(context.spec, error)):
            _remove_inputs(context)
        raise
    finally:
        context.drop_views()
    _remove_inputs(context)
    return result


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
        steps=[] if context is None else context.steps,
        error=failure.to_dict(),
    )


def _remove_inputs(context: JobContext) -> None:
    """Delete the folder of materialized inputs, large plans and memory; VACUUM sweeps what cannot be deleted now.

    Where a second copy of the work still reads them, it fails and finds on its retry that the work is done.
    """
    with contextlib.suppress(Exception):
        remove_saved_work(context.store, context.inputs_folder)
