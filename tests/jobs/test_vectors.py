"""Rows deleted by masking: as plain Spark, no row copied, and two who mask rows of one file both commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from airflow_txlog.contract import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.table.files import vectors_of
from airflow_txlog.jobs import rounds
from tests.jobs.racing import winning
from tests.jobs.tables import (
    append,
    application,
    bag,
    committed,
    error_of,
    files_on_disk,
    ids,
    live_files,
    make_table,
    rows,
    run,
    spark_bag,
    spark_view,
)
from tests.jobs.test_masked_rows import last_commit, rows_by_delta_rs
from tests.vectors import mask

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


def check_read_by_delta_rs(table: Table, *versions: int) -> None:
    """Another engine finds the same rows as ours in each of these versions."""
    folder = Path(table.uri.removeprefix("file://"))
    for version in versions:
        ours = table.to_arrow(version=version)
        assert bag(rows_by_delta_rs(folder, version).select(ours.column_names)) == bag(ours)


def counters(result: JobResult) -> tuple[int, ...]:
    return tuple(result.metrics[name] for name in COUNTERS)


def test_deletes_mask_rows_and_leave_every_file_where_it_is(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    spark_view(spark, "all_rows", table.to_arrow())
    files, data = live_files(table), files_on_disk(table)
    done = ["id % 10 = 3 OR id = 60", "id % 20 BETWEEN 3 AND 4 AND id < 120", "id >= 120"]
    expected_counters = [(3, 0, 0), (2, 2, 2), (0, 1, 0)]
    expected_rows = [19, 6, 54]
    for number, condition in enumerate(done):
        lines: list[str] = []
        result = committed(run(spark, "delete", table, predicate=condition, log=lines.append))
        assert any(" 3 masked, " in line for line in lines) == (number == 0), lines
        gone = " OR ".join(f"({each})" for each in done[: number + 1])
        assert bag(table) == spark_bag(spark.sql(f"SELECT * FROM all_rows WHERE NOT ({gone})"))
        assert counters(result) == expected_counters[number]
        assert result.metrics["numDeletedRows"] == expected_rows[number]
        copied = ("numCopiedRows", "numAddedFiles", "numAddedBytes")
        assert [result.metrics[name] for name in copied] == [0, 0, 0]
        # A file of which no row is left is removed; a file that comes again does not count as one.
        assert result.metrics["numRemovedFiles"] == (1 if number == 2 else 0)
        # One file of vectors a commit, whatever the number of data files.
        assert len(vectors_on_disk(table)) == min(number + 1, 2)
        assert files_on_disk(table) - vectors_on_disk(table) == data
    assert len(files - live_files(table)) == 1
    assert live_files(table) < files
    version = table.snapshot().version
    check_read_by_delta_rs(table, version - 2, version - 1, version)
    for add in table_to_adds(table.snapshot().files(), True):
        stats = json.loads(add.stats or "")
        assert (stats["numRecords"], stats["tightBounds"]) == (60, False)
        assert stats["maxValues"]["id"] == stats["minValues"]["id"] + 59
    # What was masked comes back, with or without the vector that a file had then.
    for back in (version - 2, version - 3):
        assert bag(table.to_arrow(version=table.restore(back))) == bag(table.to_arrow(version=back))
    check_read_by_delta_rs(table, version + 1, version + 2)


def test_what_is_masked_is_neither_found_nor_counted_nor_masked_again(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    committed(run(spark, "delete", table, predicate="id < 10"))
    before = vectors_on_disk(table)
    result = run(spark, "delete", table, predicate="id < 10")
    assert (result.status, result.metrics["numDeletedRows"]) == ("nothing_to_do", 0)
    assert vectors_on_disk(table) == before


def test_updates_and_merges_mask_the_old_rows_and_write_the_new_ones(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t", partition_by=["day"])
    committed(run(spark, "delete", table, predicate="id IN (5, 65, 7)"))
    spark_view(spark, "all_rows", table.to_arrow())
    files = live_files(table)
    result = committed(run(spark, "update", table, predicate="id % 30 = 6", set={"name": "upper(name)"}))
    updated = "SELECT id, day, CASE WHEN id % 30 = 6 THEN upper(name) ELSE name END AS name, amount FROM all_rows"
    assert bag(table) == spark_bag(spark.sql(updated))
    assert result.metrics["numUpdatedRows"] == 6
    assert counters(result) == (3, 2, 2)
    assert result.metrics["numCopiedRows"] == 0
    assert files < live_files(table)
    new = live_files(table) - files
    adds, removes, _ = last_commit(table)
    assert {add["path"] for add in adds if "deletionVector" in add} == {remove["path"] for remove in removes} == files
    assert {add["path"] for add in adds if "deletionVector" not in add} == new

    spark_view(spark, "now_rows", table.to_arrow())
    source = (
        "SELECT id, date'2024-05-05' AS day, concat('new', id) AS name, CAST(-id AS DOUBLE) AS amount, "
        "id % 3 = 0 AS gone FROM range(0, 220, 4)"
    )
    clauses = [
        {"when": "matched", "then": "delete", "condition": "s.gone"},
        {"when": "matched", "then": "update", "set": {"name": "s.name", "amount": "t.amount + s.amount"}},
        {
            "when": "not_matched",
            "then": "insert",
            "values": {"id": "s.id", "day": "s.day", "name": "s.name", "amount": "s.amount"},
        },
    ]
    expected = spark_bag(
        spark.sql(
            f"""
            SELECT coalesce(t.id, s.id) AS id, coalesce(t.day, s.day) AS day, coalesce(s.name, t.name) AS name,
              CASE WHEN s.id IS NULL THEN t.amount WHEN t.id IS NULL THEN s.amount
                ELSE t.amount + s.amount END AS amount
            FROM now_rows t FULL OUTER JOIN ({source}) s ON t.id = s.id
            WHERE t.id IS NULL OR s.id IS NULL OR NOT s.gone
            """
        )
    )
    result = committed(run(spark, "merge", table, source={"sql": source}, on="t.id = s.id", clauses=clauses))
    assert bag(table) == expected
    assert result.metrics["numTargetRowsCopied"] == 0
    assert result.metrics["numTargetRowsInserted"] == 10
    assert result.metrics["numTargetDeletionVectorsUpdated"] == 3
    assert files <= live_files(table)
    version = table.snapshot().version
    check_read_by_delta_rs(table, version - 1, version)


def test_masking_that_is_off_copies_and_takes_the_vectors_away(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    committed(run(spark, "delete", table, predicate="id IN (3, 63)"))
    tx = table.begin()
    metadata = tx.metadata
    assert metadata is not None
    tx.set_metadata(replace(metadata, configuration=metadata.configuration | {"delta.enableDeletionVectors": "false"}))
    tx.commit("SET TBLPROPERTIES")
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
    result = committed(run(spark, "delete", table, predicate="id % 60 = 1"))
    assert result.metrics["numDeletedRows"] == 3
    (path,) = vectors_on_disk(table)
    assert len(path.split("/")[0]) == 2
    assert last_commit(table)[2]["tags"]["delta.rowTracking.preserved"] == "true"
    check_read_by_delta_rs(table, table.snapshot().version)

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


def counting(log: Callable[[str], None]) -> tuple[list[str], Callable[[str], None]]:
    lines: list[str] = []

    def both(line: str) -> None:
        lines.append(line)
        log(line)

    return lines, both


def test_a1_two_deletes_of_different_rows_of_one_file_both_commit(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    before = files_on_disk(table)
    lines, log = counting(
        winning("to delete in", lambda: committed(run(spark, "delete", table, predicate="id IN (7, 70, 8)")))
    )
    result = committed(run(spark, "delete", table, predicate="id IN (3, 63, 8)", log=log))
    assert result.rounds == 2
    assert set(ids(table)) == set(range(180)) - {7, 70, 8, 3, 63}
    # Row 8 was the winner's; what this commit records is its own.
    assert result.metrics["numDeletedRows"] == 2
    assert counters(result) == (2, 2, 2)
    # Every look is remembered, nothing is copied, and of the vectors only those of the two commits are there.
    assert any("files remembered, 0 to look at" in line for line in lines)
    assert len(vectors_on_disk(table)) == 2
    assert files_on_disk(table) - vectors_on_disk(table) == before
    version = table.snapshot().version
    check_read_by_delta_rs(table, version - 1, version)


def test_a1_rows_that_are_masked_meanwhile_come_back_neither_by_an_update_nor_by_a_merge(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = vector_table(tmp_path / "t")
    log = winning("to update", lambda: committed(run(spark, "delete", table, predicate="id IN (6, 7, 100)")))
    result = committed(run(spark, "update", table, predicate="id IN (6, 20)", set={"name": "'u'"}, log=log))
    assert (result.rounds, result.metrics["numUpdatedRows"]) == (2, 1)
    log = winning("to update", lambda: committed(run(spark, "delete", table, predicate="id IN (21, 130)")))
    source = {"sql": "SELECT id, 'm' AS name FROM range(20, 24)"}
    clauses = [
        {"when": "matched", "then": "update", "set": {"name": "s.name"}},
        {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "name": "'inserted'"}},
    ]
    result = committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses, log=log))
    assert result.rounds == 2
    assert result.metrics["numTargetRowsInserted"] == 1
    names = {row["id"]: row["name"] for row in table.to_arrow().to_pylist()}
    assert len(names) == table.to_arrow().num_rows
    # Row 21 was deleted first, so the merge found no match for it and inserted it: the serial order.
    assert set(names) == set(range(180)) - {6, 7, 100, 130}
    assert {key: name for key, name in names.items() if name != f"n{key}"} == {
        20: "m",
        21: "inserted",
        22: "m",
        23: "m",
    }


def test_ten_winners_in_a_row_that_mask_rows_of_one_file(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    victims = iter(range(20, 30))
    log = winning("to delete in", lambda: mask(table, {starts(table).index(0): [next(victims)]}), times=10)
    lines, both = counting(log)
    result = committed(run(spark, "delete", table, predicate="id IN (3, 63)", log=both))
    assert result.rounds == 11
    assert set(ids(table)) == set(range(180)) - {3, 63} - set(range(20, 30))
    looked = [line for line in lines if "to look at" in line]
    assert len(looked) == 10
    assert all("0 to look at" in line for line in looked)
    # Ours: those of the commit alone; the others are the winners'.
    assert len(vectors_on_disk(table)) == 11


def starts(table: Table) -> list[int]:
    files = table.snapshot().files().sort_by("path")
    return [json.loads(stats)["minValues"]["id"] for stats in files.column("stats").to_pylist()]


def test_a17_vectors_of_a_commit_that_is_proved_not_to_be_are_deleted(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    before = files_on_disk(table)
    log = winning("staged", lambda: append(table, rows(1, start=3)))
    result = run(spark, "delete", table, predicate="id IN (3, 63)", log=log, conflict_deadline_s=0)
    assert error_of(result)["type"] == "ConcurrentAppend"
    assert len(files_on_disk(table) - before) == 1
    assert vectors_on_disk(table) == set()


def test_a_vacuum_keeps_the_vectors_that_are_needed_and_no_others(tmp_path: Path, spark: SparkSession) -> None:
    table = vector_table(tmp_path / "t")
    for condition in ("id IN (1, 61)", "id = 2", "id >= 120"):
        committed(run(spark, "delete", table, predicate=condition))
    assert len(vectors_on_disk(table)) == 2
    expected = bag(table)
    table.vacuum(0, check_retention=False)
    # The vector of the second file is the first commit's still; that of the first file is the second's.
    assert len(vectors_on_disk(table)) == 2
    assert len(files_on_disk(table)) == 4
    assert bag(table) == expected
    committed(run(spark, "delete", table, predicate="id IN (3, 63)"))
    table.vacuum(0, check_retention=False, mode="lite")
    assert len(vectors_on_disk(table)) == 1
    assert len(files_on_disk(table)) == 3
    check_read_by_delta_rs(table, table.snapshot().version)


def test_b1_a_retry_commits_the_vectors_that_the_try_before_it_had_staged(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = vector_table(tmp_path / "t")
    identity = application()

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "commit_change", killed)
        with pytest.raises(KeyboardInterrupt):
            run(spark, "update", table, predicate="id IN (3, 63)", set={"name": "'u'"}, application=identity)
    staged = {path for path in files_on_disk(table) if "txlog-inputs" not in path}
    assert len(vectors_on_disk(table)) == 1
    result = committed(
        run(spark, "update", table, predicate="id IN (3, 63)", set={"name": "'u'"}, application=identity)
    )
    assert result.metrics["numUpdatedRows"] == 2
    assert sum(row["name"] == "u" for row in table.to_arrow().to_pylist()) == 2
    assert ids(table) == list(range(180))
    assert {path for path in files_on_disk(table) if "txlog-inputs" not in path} == staged


def test_four_who_delete_different_rows_of_one_file_at_once_all_commit(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(400), properties=ON)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda rest: run(spark, "delete", table, predicate=f"id % 10 = {rest}"), range(4)))
    assert sorted(committed(result).version or 0 for result in results) == [2, 3, 4, 5]
    assert [result.metrics["numDeletedRows"] for result in results] == [40] * 4
    assert ids(table) == [key for key in range(400) if key % 10 >= 4]
    # One file of rows, and one of vectors for each of the commits: whatever lost a race is gone.
    assert len(files_on_disk(table)) == 1 + 4


def test_a_million_rows_are_masked_in_bitmaps_and_not_in_positions(tmp_path: Path, spark: SparkSession) -> None:
    count = 2_000_000
    table = make_table(tmp_path / "t", pa.table({"id": pa.array(range(count), pa.int64())}), properties=ON)
    committed(run(spark, "delete", table, predicate="id % 2 = 0"))
    committed(run(spark, "delete", table, predicate="id BETWEEN 500000 AND 1500000"))
    assert table.to_arrow().column("id").to_pylist() == [
        key for key in range(count) if key % 2 and not 500_000 <= key <= 1_500_000
    ]
    sizes = sorted((tmp_path / "t" / path).stat().st_size for path in vectors_on_disk(table))
    # 31 parts of 65,536 rows, 8 KiB each; the runs of the second commit take next to nothing.
    assert sizes[1] < 31 * 8300
    assert sizes[0] < 17 * 8300
