"""Jobs on tables with deletion vectors: as plain Spark on the rows that are left, and never a masked row again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.table.files import vectors_of
from tests.jobs.racing import winning
from tests.jobs.tables import (
    DAY,
    append,
    bag,
    committed,
    error_of,
    files_on_disk,
    ids,
    make_table,
    rows,
    run,
    spark_bag,
    spark_view,
)
from tests.vectors import allow_vectors, mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MASKED = {0: [0, 1, 2, 33, 59], 1: range(10, 50)}


def masked_table(folder: Path, **more: Any) -> Table:
    """Three files of 60 rows, ids 0 to 179, of which rows of two are masked; in the order of their paths."""
    table = make_table(folder, *(rows(60, start=start) for start in (0, 60, 120)), **more)
    allow_vectors(table)
    mask(table, MASKED)
    return table


def starts(table: Table) -> list[int]:
    """The first id of each file, in the order of their paths: which file is masked how is a matter of its name."""
    files = table.snapshot().files().sort_by("path")
    return [json.loads(stats)["minValues"]["id"] for stats in files.column("stats").to_pylist()]


def rows_by_delta_rs(folder: Path, version: int) -> pa.Table:
    deltalake = pytest.importorskip("deltalake")
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(folder), version=version))
    return pa.table(query.execute("SELECT * FROM t"))


def last_commit(table: Table) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Adds, removes and commitInfo of the newest version, as the log has them."""
    folder = Path(table.uri.removeprefix("file://")) / "_delta_log"
    lines = [json.loads(line) for line in max(folder.glob("*.json")).read_text().splitlines()]
    adds = [line["add"] for line in lines if "add" in line]
    removes = [line["remove"] for line in lines if "remove" in line]
    return adds, removes, next(line["commitInfo"] for line in lines if "commitInfo" in line)


def check_new_files(table: Table) -> None:
    """The files of the newest version have no vector, and statistics of exactly the rows that they hold."""
    adds, removes, _ = last_commit(table)
    before = table.snapshot(table.snapshot().version - 1).files()
    had = dict(zip(before.column("path").to_pylist(), before.column("deletion_vector").to_pylist(), strict=True))
    for remove in removes:
        vector = had[remove["path"]]
        assert (vector is None) == ("deletionVector" not in remove)
        if vector is not None:
            assert remove["deletionVector"]["pathOrInlineDv"] == vector["path_or_inline_dv"]
            assert remove["deletionVector"]["offset"] == vector["offset"]
    for add in adds:
        stats = json.loads(add["stats"])
        held = pq.read_table(Path(table.uri.removeprefix("file://")) / add["path"]).column("id")
        assert "deletionVector" not in add
        assert stats.get("tightBounds", True) is True
        assert stats["numRecords"] == len(held)
        assert (stats["minValues"]["id"], stats["maxValues"]["id"]) == (
            min(held.to_pylist()),
            max(held.to_pylist()),
        )


def test_a_delete_equals_plain_spark_on_the_rows_that_are_left(tmp_path: Path, spark: SparkSession) -> None:
    table = masked_table(tmp_path / "t")
    visible = table.to_arrow()
    spark_view(spark, "visible_rows", visible)
    # Of what is masked, too, the condition is true: those rows are neither found nor counted.
    condition = "id % 5 = 0 OR id BETWEEN 100 AND 125"
    expected = spark_bag(spark.sql(f"SELECT * FROM visible_rows WHERE NOT ({condition})"))
    result = committed(run(spark, "delete", table, predicate=condition))
    assert bag(table) == expected
    assert result.metrics["numDeletedRows"] == visible.num_rows - sum(expected.values())
    assert result.metrics["numCopiedRows"] == sum(expected.values())
    assert result.metrics["numDeletionVectorsRemoved"] == 2
    # Another engine sees the same, before and after: vectors of ours to read, and files without one.
    for version, wanted in ((table.snapshot().version - 1, bag(visible)), (table.snapshot().version, expected)):
        theirs = rows_by_delta_rs(tmp_path / "t", version)
        assert bag(theirs.select(visible.column_names)) == wanted
    assert not vectors_of(table.snapshot().files())
    check_new_files(table)


def test_a_file_of_which_nothing_is_left_is_removed_and_others_keep_their_vectors(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = masked_table(tmp_path / "t")
    first = starts(table)[0]
    before = {row["id"] for row in table.to_arrow().to_pylist()}
    result = committed(run(spark, "delete", table, predicate=f"id >= {first} AND id < {first + 60}"))
    assert (result.metrics["numDeletedRows"], result.metrics["numCopiedRows"]) == (55, 0)
    adds, removes, _ = last_commit(table)
    assert (len(adds), len(removes)) == (0, 1)
    assert set(ids(table)) == before - set(range(first, first + 60))
    assert len(vectors_of(table.snapshot().files())) == 1
    check_new_files(table)


def test_a_delete_that_finds_only_masked_rows_has_nothing_to_do(tmp_path: Path, spark: SparkSession) -> None:
    table = masked_table(tmp_path / "t")
    gone = starts(table)[0] + 33
    result = run(spark, "delete", table, predicate=f"id = {gone}")
    assert (result.status, result.metrics["numDeletedRows"]) == ("nothing_to_do", 0)
    assert gone not in ids(table)


def test_a_delete_of_whole_partitions_reads_nothing_and_counts_the_rows_that_were_left(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(60), rows(60, start=60, day=None), partition_by=["day"])
    allow_vectors(table)
    mask(table, {0: range(15), 1: [3]})
    files = table.snapshot().files().sort_by("path")
    for path in Path(table.uri.removeprefix("file://")).glob("*.bin"):
        path.unlink()  # what is not read may be gone
    masked = 15 if str(DAY) in files.column("path").to_pylist()[0] else 1
    result = committed(run(spark, "delete", table, predicate=f"day = date'{DAY}'"))
    assert result.metrics["numDeletedRows"] == 60 - masked
    assert result.metrics["numDeletionVectorsRemoved"] == 1
    check_new_files(table)
    committed(run(spark, "delete", table, predicate=None))
    assert table.to_arrow().num_rows == 0


def test_a_merge_equals_plain_spark_on_the_rows_that_are_left(tmp_path: Path, spark: SparkSession) -> None:
    table = masked_table(tmp_path / "t")
    visible = table.to_arrow()
    spark_view(spark, "visible_rows", visible)
    # The source meets rows that are there, rows that are masked, and rows that never were.
    source = (
        "SELECT id, date'2024-05-05' AS day, concat('new', id) AS name, CAST(-id AS DOUBLE) AS amount, "
        "id % 3 = 0 AS gone FROM range(20, 220, 4)"
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
            SELECT coalesce(t.id, s.id) AS id, coalesce(t.day, s.day) AS day,
              coalesce(s.name, t.name) AS name,
              CASE WHEN s.id IS NULL THEN t.amount WHEN t.id IS NULL THEN s.amount
                ELSE t.amount + s.amount END AS amount
            FROM visible_rows t FULL OUTER JOIN ({source}) s ON t.id = s.id
            WHERE t.id IS NULL OR s.id IS NULL OR NOT s.gone
            """
        )
    )
    result = committed(run(spark, "merge", table, source={"sql": source}, on="t.id = s.id", clauses=clauses))
    assert bag(table) == expected
    have = set(visible.column("id").to_pylist())
    asked = set(range(20, 220, 4))
    assert result.metrics["numTargetRowsInserted"] == len(asked - have)
    assert result.metrics["numTargetRowsDeleted"] == len([key for key in asked & have if key % 3 == 0])
    assert result.metrics["numTargetRowsUpdated"] == len([key for key in asked & have if key % 3])
    assert result.metrics["numTargetDeletionVectorsRemoved"] == 2
    adds, removes, _ = last_commit(table)
    assert (len(removes), all("deletionVector" not in add for add in adds)) == (3, True)


def test_an_overwrite_replaces_masked_files_and_counts_the_rows_that_were_left(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(60), rows(60, start=60, day=None), partition_by=["day"])
    allow_vectors(table)
    mask(table, {0: range(20), 1: range(20)})
    source = {"sql": f"SELECT 1000L AS id, date'{DAY}' AS day, 'x' AS name, 0D AS amount"}
    result = committed(
        run(spark, "write", table, source=source, mode="overwrite", partition_predicate=f"day = date'{DAY}'")
    )
    assert result.metrics["numDeletedRows"] == 40
    assert len(table.to_arrow()) == 41
    committed(run(spark, "write", table, source=source, mode="overwrite"))
    assert ids(table) == [1000]
    assert not vectors_of(table.snapshot().files())


def test_a_source_that_is_a_table_with_masked_rows_gives_those_that_are_left(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = masked_table(tmp_path / "t")
    target = make_table(tmp_path / "other", rows(1, start=999))
    committed(run(spark, "write", target, source={"table": table.uri}))
    assert ids(target) == sorted([*ids(table), 999])
    counted = {
        "sql": "SELECT count(*) AS id, NULL AS day, 'n' AS name, 0D AS amount FROM v",
        "views": {"v": {"table": table.uri}},
    }
    committed(run(spark, "write", target, source=counted, mode="overwrite"))
    assert ids(target) == [135]


@pytest.mark.parametrize("operation", ["delete", "merge"])
def test_a1_rows_that_another_engine_masks_meanwhile_do_not_come_back(
    tmp_path: Path, spark: SparkSession, operation: str
) -> None:
    """A copy of a file whose path is still live, but with another vector, must not be committed (soundness A1)."""
    table = masked_table(tmp_path / "t")
    begin = starts(table)
    # Row 7 of the first file, which the job copies, and row 7 of the second, which it has only looked at.
    log = winning(f"to {'delete' if operation == 'delete' else 'update'}", lambda: mask(table, {0: [7], 1: [7]}))
    before = set(ids(table))
    target = begin[0] + 20
    if operation == "delete":
        result = committed(run(spark, "delete", table, predicate=f"id = {target}", log=log))
        expected = before - {target, begin[0] + 7, begin[1] + 7}
    else:
        source = {"sql": f"SELECT {target}L AS id, 'renamed' AS name"}
        clauses = [{"when": "matched", "then": "update", "set": {"name": "s.name"}}]
        result = committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses, log=log))
        expected = before - {begin[0] + 7, begin[1] + 7}
    assert result.rounds == 2
    assert set(ids(table)) == expected
    assert len(ids(table)) == len(expected)


def test_a_broken_vector_fails_the_job_before_anything_is_staged(tmp_path: Path, spark: SparkSession) -> None:
    table = masked_table(tmp_path / "t")
    (path,) = Path(table.uri.removeprefix("file://")).glob("*.bin")
    path.write_bytes(path.read_bytes()[:-1])
    before = files_on_disk(table)
    # Every file is scanned: which of them has the vector that was cut is a matter of its name.
    error = error_of(run(spark, "delete", table, predicate="id % 60 = 3"))
    assert (error["type"], error["retryable"]) == ("CorruptDeletionVector", False)
    assert files_on_disk(table) == before


def test_a_large_mask_travels_in_packed_form(tmp_path: Path, spark: SparkSession) -> None:
    """Two million masked rows of one file are some kilobytes of a plan, not megabytes."""
    from airflow_txlog.jobs.scan import plan_files

    count = 2_500_000
    table = make_table(tmp_path / "t", pa.table({"id": pa.array(range(count), pa.int64())}))
    allow_vectors(table)
    mask(table, {0: range(100, 2_000_100)})
    snapshot = table.snapshot()
    plan = plan_files(snapshot, snapshot.files(), "UTC")
    assert plan.table.column("masked").nbytes < 300_000
    assert plan.live_row_counts() == [500_000]
    append(table, pa.table({"id": pa.array([-1], pa.int64())}))
    result = committed(run(spark, "delete", table, predicate="id < 2000110"))
    assert result.metrics["numDeletedRows"] == 100 + 10 + 1
    assert table.to_arrow().num_rows == 500_000 - 110
