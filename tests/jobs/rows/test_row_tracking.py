"""Alone in showing jobs on tables that track rows: new rows are numbered, and moved rows keep their ids."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.commit.content.row_tracking import MATERIALIZED_COLUMNS
from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.changes.versions import changes_since
from tests.helpers.jobs import committed, insert, read_alike, run, update
from tests.helpers.racing import before_commit
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROW_ID, ROW_VERSION = "_row-id-col-1", "_row-commit-version-col-1"


@pytest.fixture(params=["copies", "vectors", "change feed"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """Rows 0 to 3 with default ids; rows 10 to 12 in a file of another engine, two of them with ids of their own."""
    properties = {
        "delta.enableRowTracking": "true",
        "delta.enableDeletionVectors": str(request.param == "vectors").lower(),
        "delta.enableChangeDataFeed": str(request.param == "change feed").lower(),
        "delta.rowTracking.materializedRowIdColumnName": ROW_ID,
        "delta.rowTracking.materializedRowCommitVersionColumnName": ROW_VERSION,
    }
    rows = pa.table({"id": [0, 1, 2, 3], "name": ["a"] * 4}, schema=SCHEMA)
    table = make_table(tmp_path / "t", rows, properties=properties)
    moved = pa.table({"id": [10, 11, 12], "name": ["b"] * 3}, schema=SCHEMA)
    moved = moved.append_column(ROW_ID, pa.array([100, 101, None], pa.int64()))
    moved = moved.append_column(ROW_VERSION, pa.array([1, None, None], pa.int64()))
    pq.write_table(moved, tmp_path / "t" / "moved.parquet")
    tx = table.begin()
    size = (tmp_path / "t" / "moved.parquet").stat().st_size
    tx.add(path="moved.parquet", size=size, stats=json.dumps({"numRecords": 3}))
    tx.commit("WRITE")
    return table


def row_ids(table: Table) -> dict[int, tuple[int, int]]:
    """The id and the commit version of each row: those in the file, else the file's own."""
    found: dict[int, tuple[int, int]] = {}
    snapshot = table.snapshot()
    files = snapshot.files()
    vectors = snapshot.deleted_rows(files)
    facts = files.select(["path", "base_row_id", "default_row_commit_version"]).to_pylist()
    for file, vector in zip(facts, vectors, strict=True):
        rows = pq.ParquetFile(Path(table.uri.removeprefix("file://"), file["path"])).read()
        kept = [True] * rows.num_rows if vector is None else (vector.keep(0, rows.num_rows) or []).to_pylist()
        for ordinal, row in enumerate(rows.to_pylist()):
            if kept[ordinal]:
                row_id, version = row.get(ROW_ID), row.get(ROW_VERSION)
                found[row["id"]] = (
                    file["base_row_id"] + ordinal if row_id is None else row_id,
                    file["default_row_commit_version"] if version is None else version,
                )
    return found


def preserved(table: Table) -> str:
    version = table.snapshot().version
    info: dict[str, Any] = decode_commit(version, table.store.read(commit_name(version)), "x").info or {}
    return str(info["tags"]["delta.rowTracking.preserved"])


BEFORE = {0: (0, 1), 1: (1, 1), 2: (2, 1), 3: (3, 1), 10: (100, 1), 11: (101, 2), 12: (6, 2)}


def test_a_delete_keeps_the_ids_of_the_rows_that_stay(table: Table) -> None:
    assert row_ids(table) == BEFORE
    committed(run(None, "delete", table, predicate="id IN (1, 10)"))
    assert row_ids(table) == {row: ids for row, ids in BEFORE.items() if row not in (1, 10)}
    assert preserved(table) == "true"


def test_an_update_keeps_ids_and_changed_rows_get_its_version(table: Table) -> None:
    version = committed(run(None, "update", table, predicate="id IN (2, 10, 12)", set={"name": "'x'"})).version
    assert row_ids(table) == BEFORE | {row: (BEFORE[row][0], version) for row in (2, 10, 12)}
    assert preserved(table) == "true"
    committed(run(None, "delete", table, predicate="id = 2"))
    after = {row: (BEFORE[row][0], version if row in (10, 12) else BEFORE[row][1]) for row in BEFORE if row != 2}
    assert row_ids(table) == after, "the ids are in the files now"


@pytest.mark.spark
def test_values_that_spark_computes_come_with_the_ids_of_their_rows(spark: SparkSession, table: Table) -> None:
    changes = {"name": "reverse(concat(name, cast(id AS STRING)))"}
    version = committed(run(spark, "update", table, predicate="id IN (2, 10)", set=changes)).version
    assert row_ids(table) == BEFORE | {row: (BEFORE[row][0], version) for row in (2, 10)}


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.spark
def test_a_merge_by_spark_keeps_the_ids_of_the_rows_that_it_updates(
    spark: SparkSession, tmp_path: Path, table: Table
) -> None:
    (tmp_path / "in").mkdir()
    new = pa.table({"id": [3, 30, 11, 31], "name": ["merged"] * 4}, schema=SCHEMA)
    pq.write_table(new, tmp_path / "in" / "1.parquet")
    source = {"format": "parquet", "path": str(tmp_path / "in")}
    clauses = [
        update({"name": "reverse(s.name)"}),
        insert({"id": "s.id", "name": "reverse(s.name)"}),
        {"when": "not_matched_by_source", "then": "update", "set": {"name": "reverse('x')"}, "condition": "t.id = 12"},
    ]
    result = committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses))
    after, mark = row_ids(table), mark_of(table)
    assert {row: after.pop(row)[1] for row in (30, 31)} == {30: result.version, 31: result.version}
    assert after == BEFORE | {row: (BEFORE[row][0], result.version) for row in (3, 11, 12)}
    assert all(6 < row_ids(table)[row][0] <= mark for row in (30, 31))
    assert preserved(table) == "true"


def test_a_merge_keeps_ids_and_numbers_the_rows_that_it_inserts(tmp_path: Path, table: Table) -> None:
    (tmp_path / "in").mkdir()
    new = pa.table({"id": [3, 30, 11, 31], "name": ["merged"] * 4}, schema=SCHEMA)
    pq.write_table(new, tmp_path / "in" / "1.parquet")
    source = {"format": "parquet", "path": str(tmp_path / "in")}
    clauses = [update("*"), insert("*")]
    result = committed(run(None, "merge", table, source=source, on="t.id = s.id", clauses=clauses))
    after, mark = row_ids(table), mark_of(table)
    assert {row: after.pop(row)[1] for row in (30, 31)} == {30: result.version, 31: result.version}
    assert after == BEFORE | {row: (BEFORE[row][0], result.version) for row in (3, 11)}
    inserted = {row_ids(table)[row][0] for row in (30, 31)}
    assert len(inserted) == 2
    assert all(6 < row_id <= mark for row_id in inserted)
    assert preserved(table) == "true"


@pytest.mark.parametrize("arguments", [{}, {"zorder_by": ["id"]}], ids=["compacted", "sorted"])
def test_an_optimize_keeps_the_ids_and_versions_of_all_rows(table: Table, arguments: dict[str, Any]) -> None:
    for row in range(20, 50):  # enough for files to be read together
        append(table, pa.table({"id": [row], "name": ["c"]}, schema=SCHEMA))
    committed(run(None, "delete", table, predicate="id IN (1, 10)"))
    before = row_ids(table)
    assert committed(run(None, "optimize", table, **arguments)).metrics["numAddedFiles"] == 1
    assert row_ids(table) == before
    assert preserved(table) == "true"


@pytest.mark.parametrize("work", ["delete", "update", "optimize"])
def test_the_rows_of_a_file_are_numbered_through_its_row_groups(table: Table, work: str) -> None:
    rows = pa.table({"id": range(20, 27), "name": ["c"] * 7}, schema=SCHEMA)
    path = Path(table.uri.removeprefix("file://"), "groups.parquet")
    pq.write_table(rows, path, row_group_size=2)
    tx = table.begin()
    tx.add(path=path.name, size=path.stat().st_size, stats=json.dumps({"numRecords": 7}))
    tx.commit("WRITE")
    before = row_ids(table)
    assert [before[row][0] - before[20][0] for row in range(20, 27)] == list(range(7))
    more: dict[str, Any] = {} if work == "optimize" else {"predicate": "id IN (22, 26)"}
    version = committed(
        run(None, work, table, **more, **({"set": {"name": "'x'"}} if work == "update" else {}))
    ).version
    changed = {} if work == "optimize" else {row: (before[row][0], version) for row in (22, 26)}
    after = before | changed if work != "delete" else {row: ids for row, ids in before.items() if row not in changed}
    assert row_ids(table) == after


def test_files_that_were_staged_without_ids_are_staged_again(tmp_path: Path, table: Table) -> None:
    """While one file of the table has no ids, as no writer may leave it, no moved row keeps its own."""
    version = table.snapshot().version
    pq.write_table(pa.table({"id": [20], "name": ["c"]}, schema=SCHEMA), tmp_path / "t" / "without.parquet")
    size, stats = (tmp_path / "t" / "without.parquet").stat().st_size, json.dumps({"numRecords": 1})
    add = {"path": "without.parquet", "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    add["stats"] = stats
    (tmp_path / "t" / commit_name(version + 1)).write_text(json.dumps({"add": add}))

    def remove(_: Transaction) -> None:
        tx = table.begin()
        files = tx.read("id = 20")
        tx.remove(files.filter(pc.equal(files.column("path"), "without.parquet")))
        tx.commit("DELETE")

    with before_commit(remove):
        result = committed(run(None, "update", table, predicate="id IN (2, 10)", set={"name": "'x'"}))
    assert result.attempts == 2
    assert row_ids(table) == BEFORE | {row: (BEFORE[row][0], result.version) for row in (2, 10)}
    assert preserved(table) == "true"


def mark_of(table: Table) -> int:
    domain = table.snapshot().state.domains["delta.rowTracking"]
    return int(json.loads(domain.configuration)["rowIdHighWaterMark"])


def test_every_file_is_numbered_and_no_number_is_given_twice(table: Table) -> None:
    committed(run(None, "update", table, predicate="id < 11", set={"name": "'x'"}))
    committed(run(None, "delete", table, predicate="id = 12"))
    files = table.snapshot().files()
    assert files.column("base_row_id").null_count == files.column("default_row_commit_version").null_count == 0
    spans = sorted(
        (base, base + json.loads(stats)["numRecords"])
        for base, stats in zip(files.column("base_row_id").to_pylist(), files.column("stats").to_pylist(), strict=True)
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert mark_of(table) >= spans[-1][1] - 1


def test_readers_and_change_rows_have_no_columns_of_ids(table: Table) -> None:
    version = committed(run(None, "update", table, predicate="id = 10", set={"name": "'x'"})).version
    assert table.to_arrow().column_names == ["id", "name"]
    read_alike(table)
    commit, *_ = changes_since(table.snapshot(), version - 1)
    for file in commit.cdc:
        names = pq.read_schema(Path(table.uri.removeprefix("file://"), file.path)).names
        assert names == ["id", "name", "_change_type"]
    stats = [json.loads(text) for text in table.snapshot().files().column("stats").to_pylist()]
    assert all({ROW_ID, ROW_VERSION}.isdisjoint(each.get("nullCount", {})) for each in stats[-1:])


@pytest.mark.parametrize(
    ("row_id", "row_version"), [("x", "X"), ("ids", "p-name"), ("_change_type", "x"), ("_txlog_segment", "x")]
)
def test_names_of_other_columns_hold_no_ids(tmp_path: Path, row_id: str, row_version: str) -> None:
    """The names are properties of the table, which someone else may have set: no other column gets the ids."""
    properties = {
        "delta.enableRowTracking": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.columnMapping.mode": "name",
        "delta.rowTracking.materializedRowIdColumnName": row_id,
        "delta.rowTracking.materializedRowCommitVersionColumnName": row_version,
    }
    table = make_table(tmp_path / "t", pa.table({"id": [0, 1, 2], "name": ["a"] * 3}), properties=properties)
    log = tmp_path / "t" / commit_name(0)
    fields = json.loads(table.snapshot().metadata.schema_string or "")["fields"]
    [held] = [field["metadata"] for field in fields if field["name"] == "name"]
    log.write_text(log.read_text().replace("p-name", held["delta.columnMapping.physicalName"]))
    table = Table.open(table.uri)
    committed(run(None, "update", table, predicate="id = 0", set={"name": "'x'"}))
    assert table.to_arrow().sort_by("id").to_pydict() == {"id": [0, 1, 2], "name": ["x", "a", "a"]}
    assert preserved(table) == "false"


def test_a_column_with_a_name_of_a_task_keeps_its_values(tmp_path: Path) -> None:
    rows = pa.table({"_txlog_base_row_id": [7, 8]})
    table = make_table(tmp_path / "t", rows, properties={"delta.enableRowTracking": "true"})
    append(table, rows)
    committed(run(None, "optimize", table))
    assert sorted(table.to_arrow().column(0).to_pylist()) == [7, 7, 8, 8]
    assert preserved(table) == "false"


def test_a_table_that_finds_columns_by_id_keeps_the_ids_of_moved_rows_under_their_names(tmp_path: Path) -> None:
    """Both columns have no field id: a reader finds them by name, as delta-spark does."""
    properties = {"delta.enableRowTracking": "true", "delta.columnMapping.mode": "id"}
    table = make_table(tmp_path / "t", pa.table({"id": [0, 1, 2], "name": ["a"] * 3}), properties=properties)
    committed(run(None, "delete", table, predicate="id = 0"))
    committed(run(None, "update", table, predicate="id = 2", set={"name": "'b'"}))
    committed(run(None, "optimize", table, zorder_by=["id"]))
    snapshot = table.snapshot()
    row_id, version = (snapshot.properties[name] for name in MATERIALIZED_COLUMNS)
    (path,) = snapshot.files().column("path").to_pylist()
    schema = pq.read_schema(tmp_path / "t" / path)
    has_id = {field.name: b"PARQUET:field_id" in (field.metadata or {}) for field in schema}
    assert {name: has_id.pop(name) for name in (row_id, version)} == {row_id: False, version: False}
    assert set(has_id.values()) == {True}
    rows = pq.read_table(tmp_path / "t" / path)
    assert (rows[row_id].to_pylist(), rows[version].to_pylist()) == ([1, 2], [1, 3])
    assert preserved(table) == "true"
