"""Descriptions of jobs, from what stands on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import operation_named, read_operation


def job_spec(*, operation: str, arguments: Mapping[str, Any] | None = None, **fields: Any) -> JobSpec:
    """A JobSpec of the operation of this name; `fields` are the spec's other fields."""
    record = read_operation(operation_named(operation), {} if arguments is None else arguments)
    return JobSpec(operation=record, **fields)
