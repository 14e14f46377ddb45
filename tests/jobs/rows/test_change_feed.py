"""Alone in showing that the changes which a job's commit tells lead from the rows before it to the rows after it.

Change files are written only where the changes do not follow from whole files and vectors.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.changes.versions import changes_since
from tests.helpers.jobs import (
    BY_SOURCE,
    DAY,
    SCHEMA,
    committed,
    delete,
    ever_live,
    files_on_disk,
    ids,
    insert,
    merge,
    rows,
    run,
    update,
)
from tests.helpers.racing import winning
from tests.helpers.rows import append, bag, make_table
from tests.helpers.vectors import mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FEED = {"delta.enableChangeDataFeed": "true"}
TOMORROW = DAY + dt.timedelta(days=1)

SOURCE = {
    "sql": "SELECT * FROM VALUES (1L, date'2024-01-02', 'one'), (2L, date'2024-01-01', 'two'), (50L, NULL, 'new') "
    "AS s(id, day, name)"
}
# Moves a row to another partition, deletes one, inserts one into no partition, and touches every other file. Some of it
# only Spark computes.
CLAUSES = [
    update({"day": "s.day", "name": "s.name"}, "s.name = 'one'"),
    delete(),
    insert({"id": "s.id", "name": "s.name", "day": "s.day"}),
    update({"amount": "-array_max(array(t.id, 1)) / t.id"}, "pmod(t.id, 100) = 13", BY_SOURCE),
    delete("t.id = 14", BY_SOURCE),
]


def changes(table: Table, version: int) -> list[tuple[str, int]]:
    """The change types and ids that the version tells, which must lead from the rows before to the rows after."""
    feed = table.changes(version, version)
    kinds = {kind: bag(feed.filter(pc.equal(feed.column("_change_type"), kind)), *SCHEMA.names) for kind in KINDS}
    before, after = table.to_arrow(version=version - 1), table.to_arrow(version=version)
    left = kinds["delete"] + kinds["update_preimage"]
    assert left <= bag(before, *SCHEMA.names)
    new = kinds["insert"] + kinds["update_postimage"]
    assert bag(before, *SCHEMA.names) - left + new == bag(after, *SCHEMA.names)
    return sorted((row["_change_type"], row["id"]) for row in feed.to_pylist())


def updated(*ids: int) -> list[tuple[str, int]]:
    return [(kind, number) for kind in ("update_postimage", "update_preimage") for number in ids]


KINDS = ("delete", "insert", "update_postimage", "update_preimage")


def change_files(table: Table, version: int) -> int:
    (commit,) = changes_since(table.snapshot(version), version - 1)
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


def test_every_operation_tells_what_it_did(tmp_path: Path, spark: SparkSession) -> None:
    table = fed(tmp_path / "t", partition_by=["day"])
    deleted = run(spark, "delete", table, predicate="id IN (3, 25)")
    version = version_of(deleted)
    assert changes(table, version) == [("delete", 3), ("delete", 25)]
    assert deleted.metrics["numAddedChangeFiles"] == change_files(table, version) > 0
    assert deleted.files["added"] == deleted.metrics["numAddedFiles"] == 2
    # A file that loses all its rows is told beside one that keeps some.
    version = version_of(
        run(spark, "update", table, predicate="pmod(id, 100) IN (4, 12) OR id > 19", set={"name": "reverse(name)"})
    )
    assert changes(table, version) == updated(4, 12, *(n for n in range(20, 30) if n != 25))
    merged = run(spark, "merge", table, source=SOURCE, on="t.id = s.id", clauses=CLAUSES)
    version = version_of(merged)
    assert changes(table, version) == [("delete", 2), ("delete", 14), ("insert", 50), *updated(1, 13)]
    assert merged.metrics["numTargetChangeFilesAdded"] == change_files(table, version) > 0
    assert merged.metrics["numTargetRowsInserted"] == 1
    assert files_on_disk(table) == ever_live(table), "a file is left that no commit names"


def test_where_files_come_and_go_as_a_whole_nothing_is_written_and_all_is_told(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = fed(tmp_path / "t", partition_by=["day"])
    inserts = [insert({"id": "s.id", "name": "s.name"})]
    jobs: list[Callable[[], JobResult]] = [
        lambda: run(spark, "merge", table, source=SOURCE, on="t.id = s.id", clauses=inserts),
        lambda: run(spark, "delete", table, predicate="id BETWEEN 10 AND 19"),
        lambda: run(spark, "write", table, source={"sql": "SELECT 7L AS id"}, mode="append"),
        lambda: run(spark, "write", table, source={"sql": "SELECT 8L AS id"}, mode="overwrite"),
    ]
    found = []
    for job in jobs:
        version = version_of(job())
        assert change_files(table, version) == 0
        found.append(changes(table, version))
    assert found[0] == [("insert", 50)]
    assert found[1] == [("delete", each) for each in range(10, 20)]
    assert found[2] == [("insert", 7)]
    assert found[3][-1] == ("insert", 8)


@pytest.mark.long("vectors and mapping at once; each alone is in make test")
def test_deleted_rows_and_mapped_columns_are_told_as_they_were(tmp_path: Path, spark: SparkSession) -> None:
    properties = {"delta.columnMapping.mode": "name", "delta.feature.deletionVectors": "supported"}
    table = fed(tmp_path / "t", partition_by=["day"], properties=properties)
    mask(table, {0: [0, 5], 1: [4]})
    before = ids(table)
    version = version_of(run(spark, "merge", table, source=SOURCE, on="t.id = s.id", clauses=CLAUSES))
    assert set(changes(table, version)) <= {(kind, each) for kind in KINDS for each in {*before, 50}}
    left = [each for each in ids(table) if each != 50]
    version = version_of(run(spark, "delete", table, predicate="id < 40 AND name <> 'new'"))
    assert changes(table, version) == [("delete", each) for each in left]
    assert ids(table) == [50]


def test_masked_in_place_deletes_tell_themselves_and_updates_are_told(tmp_path: Path, spark: SparkSession) -> None:
    table = fed(tmp_path / "t", properties={"delta.enableDeletionVectors": "true"})
    version = version_of(run(spark, "delete", table, predicate="id IN (3, 25)"))
    assert change_files(table, version) == 0
    assert changes(table, version) == [("delete", 3), ("delete", 25)]
    version = version_of(run(spark, "update", table, predicate="id IN (4, 12)", set={"name": "reverse(name)"}))
    assert change_files(table, version) > 0
    assert changes(table, version) == updated(4, 12)
    merged = run(spark, "merge", table, source=SOURCE, on="t.id = s.id", clauses=CLAUSES)
    assert len(changes(table, version_of(merged))) == 7
    assert merged.metrics["numTargetDeletionVectorsAdded"] == 2


# --- rounds ---------------------------------------------------------------------------------------------------------


def test_change_rows_of_earlier_rounds_are_kept_where_their_files_are(tmp_path: Path, spark: SparkSession) -> None:
    """The winner copies one touched file and appends one that matches: only they are looked at and told again."""
    table = fed(tmp_path / "t")

    def land() -> None:
        committed(run(spark, "delete", table, predicate="id = 21"))
        append(table, rows(10, start=30))

    log = winning("staged", land)
    result = run(spark, "update", table, predicate="pmod(id, 5) = 1", set={"name": "'u'"}, log=log)
    version = version_of(result)
    assert result.attempts == 2
    assert changes(table, version) == updated(1, 6, 11, 16, 26, 31, 36)
    assert any("2 files remembered, 2 to look at" in line for line in log.lines), log.lines
    assert files_on_disk(table) == ever_live(table)


def test_a_merge_that_inserted_alone_tells_its_inserts_once_a_winner_made_it_update(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = fed(tmp_path / "t")
    source = "SELECT id, 'm' AS name FROM VALUES (100L), (101L), (102L) AS s(id)"
    log = winning("staged", lambda: append(table, rows(1, start=101)))
    result = merge(spark, table, source, update({"name": "s.name"}), insert({"id": "s.id"}), log=log)
    version = version_of(result)
    assert result.attempts == 2
    # The whole file went, but it came back changed.
    assert changes(table, version) == [("insert", 100), ("insert", 102), *updated(101)]


def test_rows_that_are_replaced_are_told_with_those_that_replace_them_whichever_round_found_them(
    tmp_path: Path, spark: SparkSession
) -> None:
    """In the first attempt no row leaves; the winner brings one."""
    table = fed(tmp_path / "t")
    arguments: dict[str, Any] = {
        "source": {"sql": "SELECT id + 100 AS id, 'new' AS name FROM range(3)"},
        "mode": "overwrite",
        "replace_where": "id >= 100",
    }
    log = winning("staged", lambda: append(table, rows(2, start=99)))
    result = run(spark, "write", table, log=log, **arguments)
    version = version_of(result)
    assert result.attempts == 2
    assert changes(table, version) == [("delete", 100), *(("insert", each) for each in (100, 101, 102))]
    assert result.metrics["numAddedChangeFiles"] == change_files(table, version) > 0
    assert files_on_disk(table) == ever_live(table)
