"""Descriptions of jobs, from what stands on the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import operation_named, read_operation
from airflow_txlog.locations import Access

_ACCESS = [field.name for field in dataclasses.fields(Access)]


def job_spec(*, operation: str, arguments: Mapping[str, Any] | None = None, **fields: Any) -> JobSpec:
    """A JobSpec of the operation of this name; `fields` are the spec's other fields, and those of its access."""
    access = {name: fields.pop(name) for name in _ACCESS if name in fields}
    if access:
        fields["access"] = Access(**access)
    record = read_operation(operation_named(operation), {} if arguments is None else arguments)
    return JobSpec(operation=record, **fields)
