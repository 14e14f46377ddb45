"""Alone in showing that staged files which a vacuum may have taken are not committed (soundness A16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine.table.schema.properties import ORPHAN_RETENTION_FLOOR_MS
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.files.staged import check_not_swept
from airflow_txlog.jobs.resume.attempts import Change, run_attempts
from airflow_txlog.storage import LocalStore, Store
from tests.conftest import ManualClock
from tests.helpers.jobs import rows
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

NOW_MS = 1_700_000_000_000


def staged(folder: Path, name: str, age_ms: int, *, is_there: bool = True) -> StagedFile:
    path = folder / name
    if is_there:
        path.write_bytes(b"PAR1")
    return StagedFile(
        path=name,
        partition_values={},
        size_bytes=4,
        modification_time_ms=NOW_MS - age_ms,
        num_records=1,
        stats="{}",
    )


def at_noon(folder: Path) -> Store:
    """The folder as a store, whose clock stands."""
    store = LocalStore(str(folder))
    store.now_ms = lambda: NOW_MS  # type: ignore[method-assign]
    return store


def test_a16_young_files_are_not_asked_for(tmp_path: Path) -> None:
    check_not_swept(at_noon(tmp_path), [])
    check_not_swept(at_noon(tmp_path), [staged(tmp_path, "a", ORPHAN_RETENTION_FLOOR_MS // 4 - 1, is_there=False)])


def test_a16_older_files_must_still_be_there(tmp_path: Path) -> None:
    old = ORPHAN_RETENTION_FLOOR_MS // 4
    check_not_swept(at_noon(tmp_path), [staged(tmp_path, "a", old), staged(tmp_path, "b", 0)])
    with pytest.raises(JobError, match="the first c") as caught:
        check_not_swept(at_noon(tmp_path), [staged(tmp_path, "a", old), staged(tmp_path, "c", 0, is_there=False)])
    assert caught.value.retryable


def test_a16_files_that_a_vacuum_may_take_at_any_moment_are_not_committed(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="at any moment"):
        check_not_swept(at_noon(tmp_path), [staged(tmp_path, "a", ORPHAN_RETENTION_FLOOR_MS // 2)])


def test_a16_a_job_asks_right_before_it_commits(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    before = table.snapshot().version
    spec = job_spec(operation="write", table_uri=table.uri, arguments={"source": {"sql": "SELECT 1"}})
    context = LogContext(spec=spec, table=table, log=lambda line: None)
    old = staged(tmp_path / "t", "a", ORPHAN_RETENTION_FLOOR_MS // 2)
    with pytest.raises(JobError, match="at any moment"):
        run_attempts(
            context, lambda tx: Change(operation="WRITE", parameters={}, staged=[old]), clock=ManualClock(NOW_MS)
        )
    assert table.snapshot().version == before
