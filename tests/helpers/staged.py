"""Staged changes in tests: stage without Spark, publish and discard by the handle, as the operators do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from tests.helpers.jobs import KEY, application, error_of, run
from tests.helpers.specs import job_spec

Handle = dict[str, Any]


def stage(operation: str, table: Table | Path, *, work: ApplicationTransaction | None = None, **more: Any) -> Handle:
    """Stage the change of an operation without Spark; its handle."""
    result = run(None, operation, table, application=work or application(), publish=False, **more)
    assert result.status == "staged", result.error
    assert result.details.staged is not None
    return result.details.staged


def publish(handle: Handle, *, log: Any = None, key: str = KEY, **access: Any) -> JobResult:
    """Publish a staged change; the result, failed or not."""
    work = ApplicationTransaction(
        app_id=handle["app_id"], version=handle["app_version"], first_tried_ms=handle["staged_ms"]
    )
    return run_job(
        dataclasses.replace(_spec("publish", handle, access), application=work, saved_work_key=key), None, log=log
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


def _spec(operation: str, handle: Handle, access: dict[str, Any]) -> Any:
    named = {"id": handle["id"], "digest": handle["digest"]}
    return job_spec(operation=operation, table_uri=handle["table_uri"], arguments=named, **access)
