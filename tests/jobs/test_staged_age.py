"""Staged files that a vacuum may have taken are not committed (soundness A16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_txlog.datafiles.output import StagedFile
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.stage import ORPHAN_RETENTION_MS, check_not_swept

NOW_MS = 1_700_000_000_000


def staged(folder: Path, name: str, age_ms: int, *, is_there: bool = True) -> StagedFile:
    path = folder / name
    if is_there:
        path.write_bytes(b"PAR1")
    return StagedFile(
        path=name,
        location=str(path),
        partition_values={},
        size_bytes=4,
        modification_time_ms=NOW_MS - age_ms,
        num_records=1,
        stats="{}",
    )


def test_a16_young_files_are_not_asked_for(tmp_path: Path) -> None:
    check_not_swept([], NOW_MS)
    check_not_swept([staged(tmp_path, "a", ORPHAN_RETENTION_MS // 4 - 1, is_there=False)], NOW_MS)


def test_a16_older_files_must_still_be_there(tmp_path: Path) -> None:
    old = ORPHAN_RETENTION_MS // 4
    check_not_swept([staged(tmp_path, "a", old), staged(tmp_path, "b", 0)], NOW_MS)
    with pytest.raises(JobError, match="the first c") as caught:
        check_not_swept([staged(tmp_path, "a", old), staged(tmp_path, "c", 0, is_there=False)], NOW_MS)
    assert caught.value.retryable
    assert not (tmp_path / "a").exists()


def test_a16_files_that_a_vacuum_may_take_at_any_moment_are_not_committed(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="at any moment"):
        check_not_swept([staged(tmp_path, "a", ORPHAN_RETENTION_MS // 2)], NOW_MS)
    assert not (tmp_path / "a").exists()
