"""Alone in showing jobs on tables whose deletion vectors are another engine's, and which have none written themselves:
a masked row is never found, counted, matched, read as a source, or brought back by a copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.table.snapshot.files import vectors_of
from airflow_txlog.jobs.files.scan import plan_files
from tests.helpers.jobs import (
    DAY,
    by_id,
    committed,
    delete,
    error_of,
    files_on_disk,
    ids,
    insert,
    merge,
    read_alike,
    rows,
    run,
    update,
)
from tests.helpers.racing import winning
from tests.helpers.rows import make_table
from tests.helpers.vectors import allow_vectors, mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# The masked ids of three files of 60.
MASKED = {*(0, 1, 2, 33, 59), *range(70, 110)}
LEFT = set(range(180)) - MASKED


def masked_table(folder: Path) -> Table:
    """Ids 0 to 179 in three files, of which rows of two are masked."""
    table = make_table(folder, *(rows(60, start=start) for start in (0, 60, 120)))
    allow_vectors(table)
    mask_ids(table, MASKED)
    return table


def mask_ids(table: Table, masked: set[int]) -> None:
    """Mask these ids of a table of files of 60; which file has which number is a matter of its name."""
    stats = table.snapshot().files().sort_by("path").column("stats").to_pylist()
    starts = {json.loads(each)["minValues"]["id"]: number for number, each in enumerate(stats)}
    positions = {n: [k % 60 for k in masked if k // 60 * 60 == start] for start, n in starts.items()}
    mask(table, {number: found for number, found in positions.items() if found})


def last_commit(table: Table) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Adds and removes of the newest version, as the log has them."""
    folder = Path(table.uri.removeprefix("file://")) / "_delta_log"
    lines = [json.loads(line) for line in max(folder.glob("*.json")).read_text().splitlines()]
    return [line["add"] for line in lines if "add" in line], [line["remove"] for line in lines if "remove" in line]


def check_new_files(table: Table) -> None:
    """The files of the newest version have no vector, and statistics of exactly the rows that they hold."""
    adds, removes = last_commit(table)
    before = table.snapshot(table.snapshot().version - 1).files()
    had = dict(zip(before.column("path").to_pylist(), before.column("deletion_vector").to_pylist(), strict=True))
    for remove in removes:
        vector, said = had[remove["path"]], remove.get("deletionVector")
        wanted = None if vector is None else (vector["path_or_inline_dv"], vector["offset"])
        assert wanted == (said and (said["pathOrInlineDv"], said["offset"]))
    for add in adds:
        stats = json.loads(add["stats"])
        held = pq.read_table(Path(table.uri.removeprefix("file://")) / add["path"]).column("id").to_pylist()
        assert "deletionVector" not in add
        assert stats.get("tightBounds", True) is True
        assert (stats["numRecords"], stats["minValues"]["id"], stats["maxValues"]["id"]) == (
            len(held),
            min(held),
            max(held),
        )


def test_a_delete_neither_finds_nor_counts_nor_copies_a_masked_row(tmp_path: Path, spark: SparkSession) -> None:
    table = masked_table(tmp_path / "t")
    read_alike(table)
    nothing = run(spark, "delete", table, predicate="id = 33")
    assert (nothing.status, nothing.metrics["numDeletedRows"]) == ("nothing_to_do", 0)
    # Of what is masked, too, the condition is true.
    result = committed(run(spark, "delete", table, predicate="pmod(id, 5) = 0 AND id < 120"))
    gone = {k for k in LEFT if k % 5 == 0 and k < 120}
    assert by_id(table) == {k: f"n{k}" for k in LEFT - gone}
    assert result.metrics["numDeletedRows"] == len(gone)
    assert result.metrics["numCopiedRows"] == len({k for k in LEFT - gone if k < 120})
    assert result.metrics["numDeletionVectorsRemoved"] == 2
    assert not vectors_of(table.snapshot().files())
    read_alike(table)
    check_new_files(table)


def test_a_file_of_which_nothing_is_left_is_removed_and_others_keep_their_vectors(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = masked_table(tmp_path / "t")
    result = committed(run(spark, "delete", table, predicate="id < 60"))
    assert (result.metrics["numDeletedRows"], result.metrics["numCopiedRows"]) == (55, 0)
    assert [len(actions) for actions in last_commit(table)] == [0, 1]
    assert set(ids(table)) == LEFT - set(range(60))
    assert len(vectors_of(table.snapshot().files())) == 1
    check_new_files(table)


def test_jobs_that_remove_whole_partitions_read_no_vector_and_count_the_rows_that_were_left(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(60), rows(60, start=60, day=None), partition_by=["day"])
    allow_vectors(table)
    mask_ids(table, {*range(15), 63})
    for path in (tmp_path / "t").glob("*.bin"):
        path.unlink()  # what is not read may be gone
    source = {"sql": "SELECT 1000L AS id, CAST(NULL AS DATE) AS day"}
    scope = {"mode": "overwrite", "partition_predicate": "day IS NULL"}
    assert committed(run(spark, "write", table, source=source, **scope)).metrics["numDeletedRows"] == 59
    result = committed(run(spark, "delete", table, predicate=f"day = date'{DAY}'"))
    assert (result.metrics["numDeletedRows"], result.metrics["numDeletionVectorsRemoved"]) == (45, 1)
    assert ids(table) == [1000]


def test_a_merge_matches_no_masked_row(tmp_path: Path, spark: SparkSession) -> None:
    table = masked_table(tmp_path / "t")
    # The source meets rows that are there, rows that are masked, and rows that never were.
    source = "SELECT id, concat('new', id) AS name, id % 3 = 0 AS gone FROM range(20, 220, 4)"
    clauses = [delete("s.gone"), update({"name": "s.name"}), insert({"id": "s.id", "name": "s.name"})]
    result = committed(merge(spark, table, source, *clauses))
    asked = set(range(20, 220, 4))
    gone = {k for k in asked & LEFT if k % 3 == 0}
    assert by_id(table) == {k: f"new{k}" if k in asked else f"n{k}" for k in (asked | LEFT) - gone}
    counts = [result.metrics[f"numTargetRows{kind}"] for kind in ("Inserted", "Deleted", "Updated")]
    assert counts == [len(asked - LEFT), len(gone), len(asked & LEFT - gone)]
    assert result.metrics["numTargetDeletionVectorsRemoved"] == 2
    check_new_files(table)


def test_a_source_that_is_a_table_with_masked_rows_gives_those_that_are_left(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = masked_table(tmp_path / "t")
    committed(run(spark, "write", tmp_path / "other", source={"table": table.uri}))
    assert ids(Table.open(str(tmp_path / "other"))) == sorted(LEFT)
    # Also where only their number is asked.
    source = {"sql": "SELECT count(*) AS id FROM v", "views": {"v": {"table": table.uri}}}
    committed(run(spark, "write", tmp_path / "counted", source=source))
    assert ids(Table.open(str(tmp_path / "counted"))) == [len(LEFT)]


@pytest.mark.parametrize(
    "operation",
    ["delete", pytest.param("merge", marks=pytest.mark.long("test_deletion_vectors has a merge that loses so"))],
)
def test_a1_rows_that_another_engine_masks_meanwhile_do_not_come_back(
    tmp_path: Path, spark: SparkSession, operation: str
) -> None:
    """A copy of a file whose path is still live, but with another vector, must not be committed (soundness A1)."""
    table = masked_table(tmp_path / "t")
    # A row of the file that the job copies, and one of a file that it has only looked at.
    log = winning("staged", lambda: mask_ids(table, {7, 67}))
    if operation == "delete":
        result = committed(run(spark, "delete", table, predicate="id IN (20, 67)", log=log))
    else:
        source = "SELECT * FROM VALUES (20L), (67L) AS v(id)"
        result = committed(merge(spark, table, source, update({"id": "t.id + 1000"}), log=log))
    assert result.attempts == 2
    assert set(ids(table)) - {1020} == LEFT - {7, 20, 67}
    assert (1020 in ids(table)) == (operation == "merge")


def test_a_broken_vector_fails_the_job_before_anything_is_staged(tmp_path: Path, spark: SparkSession) -> None:
    table = masked_table(tmp_path / "t")
    (path,) = (tmp_path / "t").glob("*.bin")
    path.write_bytes(path.read_bytes()[:-1])
    before = files_on_disk(table)
    # Every file is scanned: which of them has the vector that was cut is a matter of its name.
    error = error_of(run(spark, "delete", table, predicate="pmod(id, 60) = 3"))
    assert (error["type"], error["retryable"]) == ("CorruptDeletionVector", False)
    assert files_on_disk(table) == before


def test_a_large_mask_travels_in_packed_form(tmp_path: Path) -> None:
    """Hundreds of thousands of masked rows of one file are some kilobytes of a plan, not megabytes."""
    table = make_table(tmp_path / "t", pa.table({"id": pa.array(range(500_000), pa.int64())}))
    allow_vectors(table)
    mask(table, {0: range(100, 400_100)})
    snapshot = table.snapshot()
    plan = plan_files(snapshot, snapshot.files(), "UTC")
    assert plan.table.column("deleted").nbytes < 60_000
    assert plan.live_row_counts() == [100_000]
