"""Alone in showing what a retry may go on with: the saved work of the same spec and number, where it could be saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.storage import LocalStore
from airflow_txlog.storage.base import Output
from tests.helpers.jobs import application, committed, files_on_disk, ids, insert, live_files, merge, rows, run, update
from tests.helpers.racing import winning
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SOURCE = "SELECT id * 5 AS id, date'2024-01-01' AS day, uuid() AS name, 0D AS amount FROM range(8)"


def staged_part(table: Table, before: set[str]) -> set[str]:
    return {path for path in files_on_disk(table) - before if "part-" in path and "txlog-inputs" not in path}


def test_b1_a_retry_after_a_lost_race_stages_nothing_that_was_staged(tmp_path: Path, spark: SparkSession) -> None:
    """The first try may not go on after a conflict, and leaves its memory to the second."""
    table = make_table(tmp_path / "t", rows(10), rows(10, start=10), rows(10, start=100))
    before = files_on_disk(table)
    who = application()
    clauses = [update({"name": "s.name"}), insert()]
    log = winning("staged", lambda: append(table, rows(1, start=35)))
    first = merge(spark, table, SOURCE, *clauses, application=who, conflict_deadline_s=0, log=log)
    assert first.error is not None
    assert first.error["type"] == "ConcurrentAppend"
    told: list[str] = []
    second = committed(merge(spark, table, SOURCE, *clauses, application=who, log=told.append))
    assert "3 files remembered, 1 to look at" in told
    # What the first try staged is kept, but for the inserts: the row 35 has come meanwhile.
    assert "staged 2 files with 4 rows" in told
    assert [line for line in told if line.startswith("reused what was staged before: 4 files (")]
    assert ids(table) == sorted({*range(20), *range(100, 110), 20, 25, 30, 35})
    assert second.metrics["numTargetRowsInserted"] == 3
    assert second.metrics["numTargetRowsUpdated"] == 5
    assert files_on_disk(table) - before >= live_files(table) - before
    assert not [path for path in files_on_disk(table) if path.startswith("txlog-inputs")]


def test_b1_another_spec_or_another_number_does_not_resume(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    who = application()
    log = winning("staged", lambda: append(table, rows(1, start=5)))
    first = run(spark, "delete", table, application=who, conflict_deadline_s=0, log=log, predicate="id = 5")
    assert first.error is not None
    told: list[str] = []
    committed(run(spark, "delete", table, application=who, log=told.append, predicate="id = 4"))
    assert not [line for line in told if "remembered" in line or "resuming" in line]
    assert ids(table) == [0, 1, 2, 3, 5, 5, 6, 7, 8, 9]


def test_b1_a_memory_that_cannot_be_written_down_does_not_fail_the_job(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_new = LocalStore.open_new

    def full(store: LocalStore, path: str) -> Output:
        if "/memory-" in path:
            raise OSError(28, "No space left on device", path)
        return open_new(store, path)

    monkeypatch.setattr(LocalStore, "open_new", full)
    table = make_table(tmp_path / "t", rows(10))
    told: list[str] = []
    committed(run(spark, "delete", table, application=application(), log=told.append, predicate="id = 5"))
    assert ids(table) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [line for line in told if "could not be written down" in line]
