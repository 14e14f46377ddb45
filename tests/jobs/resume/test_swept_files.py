"""Staged files that a VACUUM of 24 hours may have deleted are looked up before a commit names them (soundness A16)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.properties import ORPHAN_RETENTION_FLOOR_MS
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.files.staged import check_not_swept
from airflow_txlog.jobs.resume.attempts import Change, run_attempts
from tests.conftest import ManualClock
from tests.helpers.jobs import rows
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

HOUR_S = 3600


def folder_of(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://"))


def staged(table: Table, name: str, hours: float, **fields: Any) -> StagedFile:
    """A file in the table's folder that was written so many hours ago, by the store's clock."""
    location = folder_of(table) / name
    location.write_bytes(b"PAR1")
    written = time.time() - hours * HOUR_S
    os.utime(location, (written, written))
    return StagedFile(
        path=name,
        partition_values={},
        size_bytes=4,
        modification_time_ms=int(written * 1000),
        num_records=1,
        stats='{"numRecords":1}',
        **fields,
    )


def commit(table: Table, change: Change, **options: Any) -> JobResult:
    spec = job_spec(operation="write", table_uri=table.uri, arguments={"source": {"sql": "SELECT 1"}})
    context = LogContext(spec=spec, table=table, log=lambda line: None)
    return run_attempts(context, lambda tx: change, **options)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "t", rows(3), properties={"delta.enableChangeDataFeed": "true"})


def change_of(kind: str, file: StagedFile) -> Change:
    if kind == "vector":
        return Change(operation="WRITE", parameters={}, vector_files=[file], is_creation=True)
    return Change(operation="WRITE", parameters={}, staged=[dataclasses.replace(file, is_change=kind == "change")])


@pytest.mark.parametrize("kind", ["data", "change", "vector"])
def test_a_commit_names_no_file_that_a_vacuum_of_24_hours_has_deleted(table: Table, kind: str) -> None:
    file = staged(table, "swept.parquet", 25)
    before = table.snapshot().version
    done = table.vacuum(0, check_retention=False, orphan_retention=dt.timedelta(hours=24))
    assert [path.rpartition("/")[2] for path in done.files] == ["swept.parquet"]
    with pytest.raises(JobError, match=r"1 of them are gone, the first swept\.parquet") as caught:
        commit(table, change_of(kind, file))
    assert caught.value.retryable
    assert "WRITE" not in [entry["operation"] for entry in table.history(table.snapshot().version - before)]


def test_a_file_is_looked_up_from_a_quarter_of_24_hours_on(table: Table) -> None:
    assert ORPHAN_RETENTION_FLOOR_MS == 24 * HOUR_S * 1000
    young, old = staged(table, "young", 5.9), staged(table, "old", 6.1)
    for file in (young, old):
        (folder_of(table) / file.path).unlink()
    check_not_swept(table.store, [])
    check_not_swept(table.store, [young])
    with pytest.raises(JobError, match="the first old"):
        check_not_swept(table.store, [old])
    # Its siblings are looked up with it, however young they are.
    with pytest.raises(JobError, match="the first young"):
        check_not_swept(table.store, [staged(table, "old", 6.1), young])


def test_a_file_that_is_there_is_committed_while_no_vacuum_may_take_it(table: Table) -> None:
    change = Change(operation="WRITE", parameters={}, staged=[staged(table, "there", 11)])
    assert commit(table, change).status == "committed"
    with pytest.raises(JobError, match="at any moment"):
        commit(table, Change(operation="WRITE", parameters={}, staged=[staged(table, "late", 12.1)]))


def test_the_age_of_a_file_is_told_by_the_clock_of_the_store(table: Table) -> None:
    """The driver's clock stands a day behind: for it, the file is from the future."""
    clock = ManualClock(int(time.time() * 1000) - 24 * HOUR_S * 1000)
    file = staged(table, "swept", 13)
    (folder_of(table) / file.path).unlink()
    with pytest.raises(JobError, match="the first swept"):
        commit(table, change_of("data", file), clock=clock)
