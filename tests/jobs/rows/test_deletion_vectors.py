"""Alone in showing jobs that write deletion vectors: no row is copied, one file of vectors a commit, every other file
where it was, and of two that mask rows of one file both commit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.table.snapshot.files import vectors_of
from tests.helpers.jobs import (
    application,
    by_id,
    committed,
    delete,
    error_of,
    files_on_disk,
    ids,
    insert,
    live_files,
    merge,
    read_alike,
    rows,
    run,
    set_property,
    update,
)
from tests.helpers.racing import killed_before_commit, winning
from tests.helpers.rows import append, bag, make_table
from tests.jobs.rows.test_deleted_rows import last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ON = {"delta.enableDeletionVectors": "true"}
COUNTERS = ("numDeletionVectorsAdded", "numDeletionVectorsRemoved", "numDeletionVectorsUpdated")


def vector_table(folder: Path, **more: Any) -> Table:
    """Three files of 60 rows, ids 0 to 179."""
    properties = ON | more.pop("properties", {})
    return make_table(folder, *(rows(60, start=start) for start in (0, 60, 120)), properties=properties, **more)


def vectors_on_disk(table: Table) -> set[str]:
    return {path for path in files_on_disk(table) if path.endswith(".bin")}


def counters(result: JobResult) -> tuple[int, ...]:
    return tuple(result.metrics[name] for name in COUNTERS)


def test_deletes_mask_rows_and_leave_every_file_where_it_is(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    files, data = live_files(table), files_on_disk(table)
    left = set(range(180))
    done: list[tuple[str, set[int], tuple[int, int, int]]] = [
        ("id % 10 = 3 OR id = 60", {60, *range(3, 180, 10)}, (3, 0, 0)),
        ("pmod(id, 20) BETWEEN 3 AND 4 AND id < 120", {k for k in range(120) if k % 20 in (3, 4)}, (2, 2, 2)),
        ("id >= 120", set(range(120, 180)), (0, 1, 0)),
    ]
    for number, (condition, gone, expected) in enumerate(done):
        result = committed(run(spark, "delete", table, predicate=condition))
        assert (result.files.get("deletion_vectors") == 3) == (number == 0), result.files
        assert result.metrics["numDeletedRows"] == len(gone & left), "what was masked is not counted again"
        left -= gone
        assert ids(table) == sorted(left)
        assert counters(result) == expected
        # A file of which no row is left is removed; a file that comes again does not count as one.
        names = ("numCopiedRows", "numAddedFiles", "numAddedBytes", "numRemovedFiles")
        assert [result.metrics[name] for name in names] == [0, 0, 0, 1 if number == 2 else 0]
        # One file of vectors a commit, whatever the number of data files.
        assert len(vectors_on_disk(table)) == min(number + 1, 2)
        assert files_on_disk(table) - vectors_on_disk(table) == data
        read_alike(table)
    again = run(spark, "delete", table, predicate="pmod(id, 10) = 3")
    assert (again.status, again.metrics["numDeletedRows"], len(vectors_on_disk(table))) == ("nothing_to_do", 0, 2)
    assert live_files(table) < files
    for add in table_to_adds(table.snapshot().files(), True):
        stats = json.loads(add.stats or "")
        assert (stats["numRecords"], stats["tightBounds"]) == (60, False)
        assert stats["maxValues"]["id"] == stats["minValues"]["id"] + 59
    # What was masked comes back, with or without the vector that a file had then.
    version = table.snapshot().version
    for back in (version - 2, version - 3):
        assert bag(table.to_arrow(version=table.restore(back))) == bag(table.to_arrow(version=back))
        read_alike(table)


def test_updates_and_merges_mask_the_old_rows_and_write_the_new_ones(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t", partition_by=["day"])
    committed(run(spark, "delete", table, predicate="id IN (5, 65, 7)"))
    names = {k: f"n{k}" for k in range(180) if k not in (5, 65, 7)}
    files = live_files(table)
    result = committed(run(spark, "update", table, predicate="pmod(id, 30) = 6", set={"name": "upper(name)"}))
    names |= {k: f"N{k}" for k in range(6, 180, 30)}
    assert by_id(table) == names
    assert (result.metrics["numUpdatedRows"], result.metrics["numCopiedRows"], counters(result)) == (6, 0, (3, 2, 2))
    adds, removes = last_commit(table)
    assert {add["path"] for add in adds if "deletionVector" in add} == {remove["path"] for remove in removes} == files
    assert {add["path"] for add in adds if "deletionVector" not in add} == live_files(table) - files != set()
    read_alike(table)

    source = "SELECT id, date'2024-05-05' AS day, concat('new', id) AS name, id % 3 = 0 AS gone FROM range(0, 220, 4)"
    values = {"id": "s.id", "day": "s.day", "name": "s.name"}
    clauses = [delete("s.gone"), update({"name": "reverse(concat(reverse(s.name), reverse(t.name)))"}), insert(values)]
    result = committed(merge(spark, table, source, *clauses))
    asked = set(range(0, 220, 4))
    merged = {k: f"{names[k]}new{k}" if k in names else f"new{k}" for k in asked if k not in names or k % 3}
    assert by_id(table) == {k: name for k, name in names.items() if k not in asked} | merged
    assert (result.metrics["numTargetRowsCopied"], result.metrics["numTargetRowsInserted"]) == (0, 10)
    assert result.metrics["numTargetDeletionVectorsUpdated"] == 3
    assert files <= live_files(table)
    read_alike(table)


def test_masking_that_is_off_copies_and_takes_the_vectors_away(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    committed(run(spark, "delete", table, predicate="id IN (3, 63)"))
    set_property(table, "delta.enableDeletionVectors", "false")
    result = committed(run(spark, "delete", table, predicate="id = 4"))
    assert (result.metrics["numCopiedRows"], counters(result)) == (58, (0, 1, 0))
    assert len(vectors_of(table.snapshot().files())) == 1
    assert set(ids(table)) == set(range(180)) - {3, 63, 4}


def test_files_without_statistics_mapped_columns_and_random_prefixes(tmp_path: Path, spark: SparkSession) -> None:
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.randomizeFilePrefixes": "true",
        "delta.enableRowTracking": "true",
    }
    table = vector_table(tmp_path / "t", partition_by=["day"], properties=properties)
    result = committed(run(spark, "delete", table, predicate="pmod(id, 60) = 1"))
    assert result.metrics["numDeletedRows"] == 3
    (path,) = vectors_on_disk(table)
    assert len(path.split("/")[0]) == 2
    assert table.history(1)[0]["tags"]["delta.rowTracking.preserved"] == "true"
    read_alike(table)

    bare = make_table(tmp_path / "bare", rows(10), properties=ON)
    tx = bare.begin()
    (add,) = table_to_adds(bare.snapshot().files(), True)
    tx.remove(bare.snapshot().files())
    tx.commit("DELETE")
    tx = bare.begin()
    tx.add(replace(add, stats=None))
    tx.commit("WRITE")
    committed(run(spark, "delete", bare, predicate="id < 4"))
    (add,) = table_to_adds(bare.snapshot().files(), True)
    assert json.loads(add.stats or "") == {"numRecords": 10, "tightBounds": False}
    # All rows of it gone by and by, so the file goes too.
    committed(run(spark, "delete", bare, predicate="id >= 4"))
    assert bare.snapshot().num_files == 0


# --- two at once ------------------------------------------------------------------------------------------------------


def test_a1_deletes_of_different_rows_of_one_file_all_commit_and_no_file_is_looked_at_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = vector_table(tmp_path / "t")
    before = files_on_disk(table)
    wins = iter(["id IN (7, 70, 8)", "id IN (8, 9)"])
    log = winning("staged", lambda: run(spark, "delete", table, predicate=next(wins)), times=2)
    result = committed(run(spark, "delete", table, predicate="id IN (3, 63, 8)", log=log))
    assert result.attempts == 3
    assert set(ids(table)) == set(range(180)) - {7, 70, 8, 9, 3, 63}
    # Row 8 was the first winner's; what this commit records is its own.
    assert (result.metrics["numDeletedRows"], counters(result)) == (2, (2, 2, 2))
    looked = [line for line in log.lines if "to look at" in line]
    assert (len(looked), all("0 to look at" in line for line in looked)) == (2, True)
    # Nothing is copied, and of the vectors only those of the three commits are there.
    assert len(vectors_on_disk(table)) == 3
    assert files_on_disk(table) - vectors_on_disk(table) == before
    read_alike(table)


def test_a1_rows_that_are_masked_meanwhile_come_back_neither_by_an_update_nor_by_a_merge(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = vector_table(tmp_path / "t")
    log = winning("staged", lambda: committed(run(spark, "delete", table, predicate="id IN (6, 7, 100)")))
    result = committed(run(spark, "update", table, predicate="id IN (6, 20)", set={"name": "'u'"}, log=log))
    assert (result.attempts, result.metrics["numUpdatedRows"]) == (2, 1)
    log = winning("staged", lambda: committed(run(spark, "delete", table, predicate="id IN (21, 130)")))
    clauses = [update({"name": "s.name"}), insert({"id": "s.id", "name": "'inserted'"})]
    result = committed(merge(spark, table, "SELECT id, 'm' AS name FROM range(20, 24)", *clauses, log=log))
    assert (result.attempts, result.metrics["numTargetRowsInserted"]) == (2, 1)
    # Row 21 was deleted first, so the merge found no match for it and inserted it: the serial order.
    changed = {20: "m", 21: "inserted", 22: "m", 23: "m"}
    assert by_id(table) == {k: f"n{k}" for k in range(180) if k not in (6, 7, 100, 130)} | changed


def test_a17_vectors_of_a_commit_that_is_proved_not_to_be_are_deleted(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    before = files_on_disk(table)
    log = winning("staged", lambda: append(table, rows(1, start=3)))
    result = run(spark, "delete", table, predicate="id IN (3, 63)", log=log, conflict_deadline_s=0)
    assert error_of(result)["type"] == "ConcurrentAppend"
    assert len(files_on_disk(table) - before) == 1
    assert vectors_on_disk(table) == set()


def test_b1_a_retry_commits_the_vectors_that_the_try_before_it_had_staged(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    work: dict[str, Any] = {"predicate": "id IN (3, 63)", "set": {"name": "'u'"}, "application": application()}
    with killed_before_commit():
        run(spark, "update", table, **work)
    staged = {path for path in files_on_disk(table) if "txlog-inputs" not in path}
    assert len(vectors_on_disk(table)) == 1
    assert committed(run(spark, "update", table, **work)).metrics["numUpdatedRows"] == 2
    assert by_id(table) == {k: "u" if k in (3, 63) else f"n{k}" for k in range(180)}
    # The parts of the joined file of images are gone.
    assert {path for path in files_on_disk(table) if "txlog-inputs" not in path} < staged


def test_four_who_delete_different_rows_of_one_file_at_once_all_commit(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(400), properties=ON)
    # A job changes settings of its session while it runs, so two jobs at once need two sessions.
    sessions = [spark.newSession() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        deletes = [
            pool.submit(run, session, "delete", table, predicate=f"id % 10 = {rest}")
            for rest, session in enumerate(sessions)
        ]
        results = [delete.result() for delete in deletes]
    assert sorted(committed(result).version or 0 for result in results) == [2, 3, 4, 5]
    assert [result.metrics["numDeletedRows"] for result in results] == [40] * 4
    assert ids(table) == [key for key in range(400) if key % 10 >= 4]
    # One file of rows, and one of vectors for each of the commits: whatever lost a race is gone.
    assert len(files_on_disk(table)) == 1 + 4
