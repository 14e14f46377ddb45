"""Alone in showing how many files an update or a merge leaves: one for each partition of a small table, as delta-spark.

What was staged is kept over a conflict as before, and joined anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.table.changes.versions import changes_since
from tests.helpers.depth import in_long
from tests.helpers.jobs import application, committed, ever_live, files_on_disk, insert, run, update
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("name", pa.string())])
FEED = {"delta.enableChangeDataFeed": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}


def make(folder: Path, properties: dict[str, str], files: int = 1) -> Table:
    """Two partitions of so many files each, with ten rows in a file."""
    table = Table.create(str(folder), SCHEMA, ["p"], properties=properties)
    for number in range(files):
        ids = range(20 * number, 20 * number + 20)
        append(table, pa.table({"id": ids, "p": ["ab"[k % 2] for k in ids], "name": ["old"] * 20}, schema=SCHEMA))
    return table


def arguments(operation: str, folder: Path) -> dict[str, Any]:
    """A job that changes a row of each of the first six files, and a merge inserts one into each partition."""
    changed = [0, 1, 20, 21, 40, 41]
    if operation == "update":
        return {"predicate": f"id IN ({', '.join(map(str, changed))})", "set": {"name": "'new'"}}
    folder.mkdir(exist_ok=True)
    rows = {"id": [*changed, 100, 101], "p": ["a", "b"] * 4, "name": ["new"] * 8}
    pq.write_table(pa.table(rows, schema=SCHEMA), folder / "rows.parquet")
    source = {"format": "parquet", "path": str(folder)}
    return {"source": source, "on": "t.id = s.id", "clauses": [update(), insert()]}


def names(table: Table) -> dict[int, str]:
    rows = table.to_arrow().to_pylist()
    found = {row["id"]: row["name"] for row in rows if row["p"] == "ab"[row["id"] % 2]}
    assert len(found) == len(rows)
    return found


def expected(files: int, operation: str) -> dict[int, str]:
    inserted = {100: "new", 101: "new"} if operation == "merge" else {}
    if operation == "merge":
        inserted |= {number: "new" for number in (20, 21, 40, 41) if number >= 20 * files}
    return {number: "new" if number % 20 < 2 else "old" for number in range(20 * files)} | inserted


def assert_nothing_is_left(table: Table) -> None:
    assert files_on_disk(table) <= ever_live(table)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("operation", ["update", "merge"])
@pytest.mark.parametrize("properties", [{}, *in_long("FEED | MAPPED is run", FEED), FEED | MAPPED], ids=str)
@pytest.mark.parametrize("files", [1, 3])
def test_a_small_change_leaves_a_file_in_each_partition_it_touches(
    tmp_path: Path, spark: SparkSession, operation: str, properties: dict[str, str], files: int
) -> None:
    table = make(tmp_path / "t", properties, files)
    result = committed(run(spark, operation, table, **arguments(operation, tmp_path / "s")))
    snapshot = table.snapshot()
    (commit,) = changes_since(snapshot, snapshot.version - 1)
    has_feed = "delta.enableChangeDataFeed" in properties
    assert (snapshot.num_files, len(commit.adds), len(commit.cdc)) == (2, 2, 2 if has_feed else 0)
    assert result.files["added"] == 2
    copied = result.metrics["numCopiedRows" if operation == "update" else "numTargetRowsCopied"]
    assert copied == 20 * files - 2 * files
    assert names(table) == expected(files, operation)
    assert_nothing_is_left(table)
    if has_feed:
        feed = table.changes(snapshot.version, snapshot.version)
        kinds = feed.column("_change_type").to_pylist()
        assert kinds.count("update_preimage") == kinds.count("update_postimage") == 2 * files
        assert kinds.count("insert") == len(expected(files, operation)) - 20 * files


def test_a_conflict_costs_the_changed_file_alone_and_the_rest_is_joined_anew(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make(tmp_path / "t", {}, 3)
    lines: list[str] = []

    def land(_: object) -> None:
        committed(run(spark, "update", table, predicate="id = 5", set={"name": "'theirs'"}))

    with before_commit(land):
        job = arguments("update", tmp_path / "s")
        result = committed(run(spark, "update", table, **job, log=lines.append))
    assert result.attempts == 2
    assert names(table) == expected(3, "update") | {5: "theirs"}
    staged = [line for line in lines if line.startswith("staged")]
    # Six copies and the images of six files, in groups: those of the changed file are staged again.
    assert [line for line in lines if line.startswith("reused what was staged before: ")]
    assert int(staged[1].split()[1]) < int(staged[0].split()[1])
    assert table.snapshot().num_files == 2
    assert_nothing_is_left(table)


def test_a_retry_takes_up_what_was_joined(tmp_path: Path, spark: SparkSession) -> None:
    table = make(tmp_path / "t", FEED, 3)
    job = arguments("merge", tmp_path / "s")
    work = application()
    with killed_before_commit():
        run(spark, "merge", table, **job, application=work)
    joined = files_on_disk(table)
    committed(run(spark, "merge", table, **job, application=work))
    assert names(table) == expected(3, "merge")
    assert table.snapshot().num_files == 2
    assert set(table.snapshot().files().column("path").to_pylist()) <= joined
    assert_nothing_is_left(table)


@pytest.mark.parametrize("properties", [{"delta.targetFileSize": "1kb"}, {"delta.enableRowTracking": "true"}], ids=str)
def test_files_of_good_size_and_rows_with_ids_are_not_joined(
    tmp_path: Path, spark: SparkSession, properties: dict[str, str]
) -> None:
    table = make(tmp_path / "t", properties)
    result = committed(run(spark, "update", table, **arguments("update", tmp_path / "s")))
    assert result.files["added"] == 4
    assert names(table) == expected(1, "update")
