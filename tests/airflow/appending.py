"""A runner that appends one file a job through the engine, and dies before or after its commit as a test asks."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.errors import JobLost
from airflow_txlog.exactly_once.transactions import find_done
from airflow_txlog.runners.base import Log

DEATHS: list[tuple[str, Callable[[], None]]] = []
"""How the next jobs end, and what happens then, before they are retried: ("before" or "after" the commit, action)."""


def append_a_file(spec: JobSpec) -> int:
    """Commit one new file under the spec's application transaction, without asking whether that was done before."""
    tx = Table.open(spec.table_uri).begin()
    tx.add(path=f"{uuid.uuid4()}.parquet", partition_values={}, size=1, modification_time=1, stats=None)
    assert spec.application is not None
    tx.set_application(spec.application.app_id, spec.application.version)
    return tx.commit("WRITE", {}, {}, tags=spec.commit_tags())


class AppendsAFile:
    """Appends a file unless the table's log shows that this was done."""

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        done = find_done(spec)
        if done is not None:
            return done
        death, action = DEATHS.pop(0) if DEATHS else ("never", lambda: None)
        version = append_a_file(spec) if death != "before" else None
        if death != "never":
            action()
            raise JobLost(f"died {death} its commit", has_application_transaction=True)
        return JobResult(status="committed", operation=spec.operation.name, table_uri=spec.table_uri, version=version)

    def kill(self) -> None:
        raise AssertionError("nothing is killed here")
