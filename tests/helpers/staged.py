"""Staged changes in tests: stage without Spark, publish and discard by the handle, as the operators do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from tests.helpers.jobs import KEY, application, error_of, run
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Handle = dict[str, Any]


def stage(operation: str, table: Table | Path, *, work: ApplicationTransaction | None = None, **more: Any) -> Handle:
    """Stage the change of an operation without Spark; its handle."""
    result = run(None, operation, table, application=work or application(), publish=False, **more)
    assert result.status == "staged", result.error
    assert result.details.staged is not None
    return result.details.staged


def publish(
    handle: Handle,
    *,
    log: Any = None,
    key: str = KEY,
    on_change: str = "fail",
    audited_by: list[str] | None = None,
    spark: SparkSession | None = None,
    spark_conf: dict[str, str] | None = None,
    **access: Any,
) -> JobResult:
    """Publish a staged change; the result, failed or not. Without a session no audit can run again."""
    spec = _spec("publish", handle, access, on_change=on_change, audited_by=audited_by)
    spec = dataclasses.replace(spec, application=work_of(handle), saved_work_key=key, spark_conf=spark_conf or {})
    return run_job(spec, None, start=None if spark is None else lambda: spark, log=log)


def audit(
    spark: SparkSession, handle: Handle, *, storage_options: dict[str, Any] | None = None, **audits: Any
) -> JobResult:
    """Audit a staged change as a `DeltaAuditOperator` does; the result, failed or not."""
    named = {name: handle[name] for name in ("id", "digest", "base_version", "app_id", "app_version")}
    spec = job_spec(
        operation="audit",
        table_uri=handle["table_uri"],
        arguments=named | audits,
        storage_options=storage_options or {},
        saved_work_key=KEY,
    )
    return run_job(spec, spark)


def work_of(handle: Handle) -> ApplicationTransaction:
    """The work that staged a change, as a publisher knows it."""
    return ApplicationTransaction(
        app_id=handle["app_id"], version=handle["app_version"], first_tried_ms=handle["staged_ms"]
    )


def discard(handle: Handle, *, log: Any = None, **access: Any) -> JobResult:
    """Discard a staged change; the result, failed or not."""
    return run_job(_spec("discard", handle, access), None, log=log)


def refused(result: JobResult, kind: str) -> str:
    """The message of a failure of this class, which no retry may repeat."""
    error = error_of(result)
    assert error["type"] == kind, error
    assert not error["retryable"]
    return str(error["message"])


def _spec(operation: str, handle: Handle, access: dict[str, Any], **more: Any) -> Any:
    named = {"id": handle["id"], "digest": handle["digest"], **more}
    return job_spec(operation=operation, table_uri=handle["table_uri"], arguments=named, **access)
