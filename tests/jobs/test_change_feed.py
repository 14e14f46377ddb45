"""The change data feed of jobs: a commit tells what it did to the rows, and nothing where that follows by itself.

The oracle needs no other engine: the rows before, less those that left, and those that came, are the rows after.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.contract import JobResult
from airflow_txlog.engine import Table
from tests.jobs.racing import winning
from tests.jobs.tables import DAY, append, committed, ids, make_table, rows, run
from tests.vectors import mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FEED = {"delta.enableChangeDataFeed": "true"}
TOMORROW = DAY + dt.timedelta(days=1)

SOURCE = {
    "sql": "SELECT * FROM VALUES (1L, date'2024-01-02', 'one'), (2L, date'2024-01-01', 'two'), (50L, NULL, 'new') "
    "AS s(id, day, name)"
}
# Moves a row to another partition, deletes one, inserts one into no partition, and touches every other file.
CLAUSES = [
    {"when": "matched", "condition": "s.name = 'one'", "then": "update", "set": {"day": "s.day", "name": "s.name"}},
    {"when": "matched", "then": "delete"},
    {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "name": "s.name", "day": "s.day"}},
    {"when": "not_matched_by_source", "condition": "t.id = 13", "then": "update", "set": {"amount": "-1"}},
    {"when": "not_matched_by_source", "condition": "t.id = 14", "then": "delete"},
]


def bag(found: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in ("id", "day", "name", "amount")) for row in found.to_pylist())


def told(table: Table, version: int) -> list[tuple[str, int]]:
    """The change types and ids that the version tells, which must lead from the rows before to the rows after."""
    feed = table.changes(version, version)
    kinds = {row: feed.filter(pa.compute.equal(feed.column("_change_type"), row)) for row in KINDS}
    before, after = bag(table.to_arrow(version=version - 1)), bag(table.to_arrow(version=version))
    left = bag(kinds["delete"]) + bag(kinds["update_preimage"])
    assert left <= before
    assert before - left + bag(kinds["insert"]) + bag(kinds["update_postimage"]) == after
    return sorted((row["_change_type"], row["id"]) for row in feed.to_pylist())


KINDS = ("delete", "insert", "update_postimage", "update_preimage")


def change_files(table: Table, version: int) -> int:
    (commit,) = table.snapshot(version).changes_since(version - 1)
    assert all(not cdc.data_change and cdc.path.startswith("_change_data/") for cdc in commit.cdc)
    return len(commit.cdc)


def fed(folder: Path, **more: Any) -> Table:
    """Three files of ten rows, one of them a partition of its own where the table has partitions."""
    properties = FEED | more.pop("properties", {})
    return make_table(
        folder, rows(10), rows(10, start=10), rows(10, start=20, day=TOMORROW), properties=properties, **more
    )


def version_of(result: JobResult) -> int:
    version = committed(result).version
    assert version is not None
    return version


@pytest.mark.parametrize("partition_by", [[], ["day"]], ids=["unpartitioned", "partitioned"])
def test_every_operation_tells_what_it_did(tmp_path: Path, spark: SparkSession, partition_by: list[str]) -> None:
    table = fed(tmp_path / "t", partition_by=partition_by)
    deleted = run(spark, "delete", table, predicate="id IN (3, 25)")
    version = version_of(deleted)
    assert told(table, version) == [("delete", 3), ("delete", 25)]
    assert deleted.metrics["numAddedChangeFiles"] == change_files(table, version) > 0
    assert deleted.files["added"] == deleted.metrics["numAddedFiles"] == 2
    version = version_of(run(spark, "update", table, predicate="id IN (4, 12)", set={"name": "'u'"}))
    assert told(table, version) == [
        ("update_postimage", 4), ("update_postimage", 12), ("update_preimage", 4), ("update_preimage", 12)
    ]  # fmt: skip
    merged = run(spark, "merge", table, source=SOURCE, on="t.id = s.id", clauses=CLAUSES)
    version = version_of(merged)
    assert told(table, version) == [
        ("delete", 2), ("delete", 14), ("insert", 50), ("update_postimage", 1), ("update_postimage", 13),
        ("update_preimage", 1), ("update_preimage", 13),
    ]  # fmt: skip
    assert merged.metrics["numTargetChangeFilesAdded"] == change_files(table, version) > 0
    assert merged.metrics["numTargetRowsInserted"] == 1
    # Nothing is left but what commits name.
    on_disk = {path.name for path in (tmp_path / "t/_change_data").rglob("*.parquet")}
    named = [cdc.path.rsplit("/", 1)[-1] for each in table.snapshot().changes_since(-1) for cdc in each.cdc]
    assert on_disk == set(named)


def test_where_files_come_and_go_as_a_whole_nothing_is_written_and_all_is_told(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = fed(tmp_path / "t", partition_by=["day"])
    inserts = [{"when": "not_matched", "then": "insert", "values": {"id": "s.id", "name": "s.name"}}]
    jobs: list[Callable[[], JobResult]] = [
        lambda: run(spark, "merge", table, source=SOURCE, on="t.id = s.id", clauses=inserts),
        lambda: run(spark, "delete", table, predicate="id BETWEEN 10 AND 19"),
        lambda: run(spark, "delete", table, predicate="day = date'2024-01-02'"),
        lambda: run(spark, "write", table, source={"sql": "SELECT 7L AS id"}, mode="append"),
        lambda: run(spark, "write", table, source={"sql": "SELECT 8L AS id"}, mode="overwrite"),
    ]
    found = []
    for job in jobs:
        version = version_of(job())
        assert change_files(table, version) == 0
        found.append(told(table, version))
    assert found[0] == [("insert", 50)]
    assert found[1] == [("delete", each) for each in range(10, 20)]
    assert found[2] == [("delete", each) for each in range(20, 30)]
    assert found[3] == [("insert", 7)]
    assert found[4][-1] == ("insert", 8)


def test_a_file_that_loses_all_its_rows_is_told_whole_beside_one_that_keeps_some(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = fed(tmp_path / "t")
    version = version_of(run(spark, "delete", table, predicate="id BETWEEN 9 AND 19"))
    assert told(table, version) == [("delete", each) for each in range(9, 20)]
    assert change_files(table, version) > 0


def test_masked_rows_and_mapped_columns_are_told_as_they_were(tmp_path: Path, spark: SparkSession) -> None:
    properties = {"delta.columnMapping.mode": "name", "delta.feature.deletionVectors": "supported"}
    table = fed(tmp_path / "t", partition_by=["day"], properties=properties)
    mask(table, {0: [0, 5], 1: [4]})
    before = ids(table)
    version = version_of(run(spark, "merge", table, source=SOURCE, on="t.id = s.id", clauses=CLAUSES))
    assert set(told(table, version)) <= {(kind, each) for kind in KINDS for each in {*before, 50}}
    left = [each for each in ids(table) if each != 50]
    version = version_of(run(spark, "delete", table, predicate="id < 40 AND name <> 'new'"))
    assert told(table, version) == [("delete", each) for each in left]
    assert ids(table) == [50]


def test_masked_in_place_deletes_tell_themselves_and_updates_are_told(tmp_path: Path, spark: SparkSession) -> None:
    table = fed(tmp_path / "t", properties={"delta.enableDeletionVectors": "true"})
    version = version_of(run(spark, "delete", table, predicate="id IN (3, 25)"))
    assert change_files(table, version) == 0
    assert told(table, version) == [("delete", 3), ("delete", 25)]
    version = version_of(run(spark, "update", table, predicate="id IN (4, 12)", set={"name": "'u'"}))
    assert change_files(table, version) > 0
    assert told(table, version) == [
        ("update_postimage", 4), ("update_postimage", 12), ("update_preimage", 4), ("update_preimage", 12)
    ]  # fmt: skip
    merged = run(spark, "merge", table, source=SOURCE, on="t.id = s.id", clauses=CLAUSES)
    assert len(told(table, version_of(merged))) == 7
    assert merged.metrics["numTargetDeletionVectorsAdded"] == 2


# --- rounds ---------------------------------------------------------------------------------------------------------


def test_change_rows_of_earlier_rounds_are_kept_where_their_files_are(tmp_path: Path, spark: SparkSession) -> None:
    """The winner copies one touched file and appends one that matches: only they are looked at and told again."""
    table = fed(tmp_path / "t")
    lines: list[str] = []
    once = winning("staged", lambda: _win(table, spark))

    def log(line: str) -> None:
        lines.append(line)
        once(line)

    result = run(spark, "update", table, predicate="id % 5 = 1", set={"name": "'u'"}, log=log)
    version = version_of(result)
    assert result.rounds == 2
    changed = [1, 6, 11, 16, 26, 31, 36]
    assert told(table, version) == sorted(
        (kind, each) for kind in ("update_postimage", "update_preimage") for each in changed
    )
    assert any("2 files remembered, 2 to look at" in line for line in lines), lines
    on_disk = {path.name for path in (tmp_path / "t/_change_data").rglob("*.parquet")}
    named = [cdc.path.rsplit("/", 1)[-1] for each in table.snapshot().changes_since(-1) for cdc in each.cdc]
    assert on_disk == set(named)


def _win(table: Table, spark: SparkSession) -> None:
    committed(run(spark, "delete", table, predicate="id = 21"))
    append(table, rows(10, start=30))


def test_a_merge_that_inserted_alone_tells_its_inserts_once_a_winner_made_it_update(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = fed(tmp_path / "t")
    clauses = [
        {"when": "matched", "then": "update", "set": {"name": "s.name"}},
        {"when": "not_matched", "then": "insert", "values": {"id": "s.id"}},
    ]
    source = {"sql": "SELECT id, 'm' AS name FROM VALUES (100L), (101L), (102L) AS s(id)"}
    log = winning("staged", lambda: append(table, rows(1, start=101)))
    result = run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses, log=log)
    version = version_of(result)
    assert result.rounds == 2
    # The whole file went, but it came back changed.
    assert told(table, version) == [
        ("insert", 100), ("insert", 102), ("update_postimage", 101), ("update_preimage", 101)
    ]  # fmt: skip


def test_rows_that_are_replaced_are_told_with_those_that_replace_them_whichever_round_found_them(
    tmp_path: Path, spark: SparkSession
) -> None:
    """In the first round no row leaves; the winner brings one."""
    table = fed(tmp_path / "t")
    arguments: dict[str, Any] = {
        "source": {"sql": "SELECT id + 100 AS id, 'new' AS name FROM range(3)"},
        "mode": "overwrite",
        "replace_where": "id >= 100",
    }
    log = winning("staged", lambda: append(table, rows(2, start=99)))
    result = run(spark, "write", table, log=log, **arguments)
    version = version_of(result)
    assert result.rounds == 2
    assert told(table, version) == [("delete", 100), *(("insert", each) for each in (100, 101, 102))]
    assert result.metrics["numAddedChangeFiles"] == change_files(table, version) > 0
    on_disk = {path.name for path in (tmp_path / "t").rglob("*.parquet") if "_delta_log" not in path.parts}
    commits = list(table.snapshot().changes_since(-1))
    named = [file.path.rsplit("/", 1)[-1] for each in commits for file in (*each.adds, *each.cdc)]
    assert on_disk == set(named)
