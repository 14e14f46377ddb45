"""Alone in showing what becomes of columns, members and types that the source has more of: refused, or taken in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_txlog.engine import Table
from tests.helpers.jobs import committed, error_of, files_on_disk, insert, merge, run, update
from tests.helpers.racing import winning
from tests.helpers.rows import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NARROW = pa.schema([("id", pa.int32()), ("s", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.int32()))])
OLD = pa.table({"id": [1, 2], "s": [{"a": 10}, None], "l": [[1], None]}, schema=NARROW)
WIDER = """SELECT 3L AS id, named_struct('b', 'x', 'a', 30L) AS s, array(5, 6) AS l, map('k', 1.5D) AS `new col`"""


def make(folder: Path, **properties: str) -> Table:
    table = Table.create(str(folder), NARROW, properties=properties)
    append(table, OLD)
    return table


def rows_of(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def test_rows_of_another_schema_are_refused_with_both_side_by_side(tmp_path: Path, spark: SparkSession) -> None:
    table = make(tmp_path / "t")
    before = files_on_disk(table)
    error = error_of(run(spark, "write", table, source={"sql": WIDER}))
    assert error["type"] == "SchemaMismatch"
    assert error["facts"]["columns"] == ["new col", "s"]
    told = error["message"]
    assert "new col: the table has no such column" in told
    first = told.splitlines()[0]
    assert first.endswith(
        'schema_evolution=True (in an increment: on_schema_change="append_new_columns") adds new columns'
    )
    assert 'leave out columns in SQL, such as source=query("SELECT … FROM raw", raw=files(…)).' in told
    assert "s: struct<b:string,a:bigint> is not struct<a:bigint>" in told
    for line in (
        "column   table             source",
        "id       int               bigint",
        "new col  -                 map<string,double>",
    ):
        assert line in told
    assert (files_on_disk(table), table.snapshot().version) == (before, 1)
    # Members of structs are matched by name, and those that are missing are null.
    source = {"sql": "SELECT 7 AS id, CAST(NULL AS STRUCT<a:INT>) AS s UNION ALL SELECT 8, named_struct('a', 80)"}
    committed(run(spark, "write", table, source=source))
    assert [row["s"] for row in rows_of(table)] == [{"a": 10}, None, None, {"a": 80}]


def test_an_append_gives_the_table_new_columns_members_and_wider_types(tmp_path: Path, spark: SparkSession) -> None:
    properties = {"delta.enableTypeWidening": "true", "delta.columnMapping.mode": "name"}
    table = make(tmp_path / "t", **properties)
    lines: list[str] = []
    result = run(spark, "write", table, source={"sql": WIDER}, schema_evolution=True, log=lines.append)
    assert committed(result).version == 2
    assert "the table gets the columns s.b, new col" in lines
    assert "the table's types are widened: id: integer to long" in lines
    assert rows_of(table) == [
        {"id": 1, "s": {"a": 10, "b": None}, "l": [1], "new col": None},
        {"id": 2, "s": None, "l": None, "new col": None},
        {"id": 3, "s": {"a": 30, "b": "x"}, "l": [5, 6], "new col": [("k", 1.5)]},
    ]
    snapshot = table.snapshot()
    assert snapshot.properties["delta.columnMapping.maxColumnId"] == "6"
    # The same once more changes nothing but rows.
    committed(run(spark, "write", table, source={"sql": WIDER}, schema_evolution=True))
    assert table.snapshot().metadata == snapshot.metadata
    # What the source lacks stays.
    committed(run(spark, "write", table, source={"sql": "SELECT 9 AS id"}, schema_evolution=True))
    assert rows_of(table)[-1] == {"id": 9, "s": None, "l": None, "new col": None}
    committed(run(spark, "delete", table, predicate="`new col` IS NULL AND s.b IS NULL AND id < 9"))
    assert [row["id"] for row in rows_of(table)] == [3, 3, 9]


def test_a_table_without_type_widening_keeps_its_types(tmp_path: Path, spark: SparkSession) -> None:
    table = make(tmp_path / "t")
    source = {"sql": "SELECT 3L AS id, 'x' AS more"}
    committed(run(spark, "write", table, source=source, schema_evolution=True))
    assert [str(field.type) for field in table.snapshot().delta_schema] == [
        "integer",
        "struct<a:long>",
        "array<integer>",
        "string",
    ]
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == 3
    error = error_of(run(spark, "write", table, source={"sql": "SELECT 1 AS id, NULL AS void"}, schema_evolution=True))
    assert (error["type"], error["facts"]["columns"]) == ("SchemaMismatch", ["void"])
    ntz = {"sql": "SELECT timestamp_ntz'2024-01-01 00:00:00' AS at"}
    error = error_of(run(spark, "write", table, source=ntz, schema_evolution=True))
    assert (error["type"], error["facts"]["feature"]) == ("UnsupportedFeature", "timestampNtz")


def test_a_column_that_a_constraint_reads_is_not_widened(tmp_path: Path, spark: SparkSession) -> None:
    rule = {"delta.constraints.low": "id < 100", "delta.enableTypeWidening": "true"}
    table = make(tmp_path / "t", **rule)
    committed(run(spark, "write", table, source={"sql": "SELECT 3L AS id, 1 AS n"}, schema_evolution=True))
    assert str(table.snapshot().delta_schema.fields[0].type) == "integer"
    error = error_of(run(spark, "write", table, source={"sql": "SELECT 300L AS id, 2L AS n"}, schema_evolution=True))
    assert error["facts"]["constraint"] == "low"
    assert table.snapshot().version == 2


def test_two_that_add_the_same_column_both_land_and_there_is_one(tmp_path: Path, spark: SparkSession) -> None:
    table = make(tmp_path / "t", **{"delta.columnMapping.mode": "name"})

    def add_column() -> None:
        tx = table.begin()
        tx.evolve_schema(pa.schema([("more", pa.string())]))
        tx.commit("ADD COLUMNS")

    log = winning("new file", add_column)
    source = {"sql": "SELECT 3 AS id, 'x' AS more"}
    result = committed(run(spark, "write", table, source=source, schema_evolution=True, log=log))
    assert (result.attempts, result.version) == (2, 3)
    assert [row.get("more") for row in rows_of(table)] == [None, None, "x"]
    assert len(table.snapshot().delta_schema) == 4


def test_rows_staged_under_a_wider_schema_are_kept_over_a_conflict(tmp_path: Path, spark: SparkSession) -> None:
    table = make(tmp_path / "t", **{"delta.columnMapping.mode": "name"})
    log = winning("new file", lambda: append(table, OLD))
    source = {"sql": "SELECT 3 AS id, uuid() AS more"}
    result = run(spark, "write", table, source=source, mode="overwrite", schema_evolution=True, log=log)
    assert committed(result).attempts == 2
    # Under other physical names the values would be gone; staged twice, there would be two files.
    (row,) = rows_of(table)
    assert (row["id"], len(row["more"])) == (3, 36)
    assert len([path for path in files_on_disk(table) if path.startswith("part") or "/part" in path]) == 3


def test_a_merge_gives_the_table_the_columns_that_its_clauses_assign(tmp_path: Path, spark: SparkSession) -> None:
    table = make(tmp_path / "t", **{"delta.enableTypeWidening": "true"})
    source = "SELECT * FROM VALUES (2L, 'two', 1), (3L, 'three', 2) AS (id, more, unused)"
    assert error_of(merge(spark, table, source, update({"more": "s.more"})))["type"] == "UnknownColumn"
    assert error_of(merge(spark, table, source, update()))["type"] == "SchemaMismatch"
    # An assignment adds its own column, and no other of the source.
    committed(merge(spark, table, source, update({"t.more": "upper(s.more)"}), schema_evolution=True))
    plain = {"s": None, "l": None}
    assert rows_of(table) == [
        {"id": 1, "s": {"a": 10}, "l": [1], "more": None},
        {"id": 2, **plain, "more": "TWO"},
    ]
    assert str(table.snapshot().delta_schema.fields[0].type) == "integer"
    # A star adds all of them, and leaves alone what the source lacks; the copied row keeps its file's type.
    committed(merge(spark, table, source, update(), insert(), schema_evolution=True))
    assert rows_of(table) == [
        {"id": 1, "s": {"a": 10}, "l": [1], "more": None, "unused": None},
        {"id": 2, **plain, "more": "two", "unused": 1},
        {"id": 3, **plain, "more": "three", "unused": 2},
    ]
    assert str(table.snapshot().delta_schema.fields[0].type) == "long"


def test_a_merge_that_widens_keeps_its_work_over_a_conflict(tmp_path: Path, spark: SparkSession) -> None:
    table = make(tmp_path / "t", **{"delta.columnMapping.mode": "name"})
    append(table, pa.table({"id": [5], "s": [None], "l": [None]}, schema=NARROW))
    landed = pa.table({"id": [3], "s": [None], "l": [[3]]}, schema=NARROW)
    log = winning("staged", lambda: append(table, landed))
    source = "SELECT * FROM VALUES (2, 'two'), (3, 'three'), (5, 'five') AS (id, more)"
    result = merge(spark, table, source, update(), insert(), schema_evolution=True, log=log)
    assert committed(result).attempts == 2
    assert [(row["id"], row["l"], row["more"]) for row in rows_of(table)] == [
        (1, [1], None),
        (2, None, "two"),
        (3, [3], "three"),
        (5, None, "five"),
    ]


MEMBERS = pa.schema(
    [
        ("id", pa.int64()),
        (
            "s",
            pa.struct(
                [
                    pa.field("a", pa.int32()),
                    pa.field("only", pa.string()),
                    pa.field("n", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
                ]
            ),
        ),
    ]
)
FULL = {"a": 1, "only": "mine", "n": {"x": 1, "y": 2}}
GIVEN = """SELECT id, CAST(named_struct('z', 8, 'A', 9, 'n', named_struct('x', 9)) AS STRUCT<z INT, A INT, n STRUCT<x
INT>>) AS s FROM VALUES (1L), (2L) AS ids(id) UNION ALL SELECT id, NULL FROM VALUES (3L), (4L), (5L) AS ids(id)"""


def members(folder: Path) -> Table:
    table = Table.create(str(folder), MEMBERS)
    values = [FULL, None, FULL, None]
    append(table, pa.table({"id": [1, 2, 3, 4], "s": values}, schema=MEMBERS))
    return table


def structs_of(table: Table) -> list[Any]:
    return [row["s"] for row in rows_of(table)]


MERGED = [
    {"a": 9, "only": "mine", "n": {"x": 9, "y": 2}, "z": 8},
    {"a": 9, "only": None, "n": {"x": 9, "y": None}, "z": 8},
    {"a": None, "only": "mine", "n": {"x": None, "y": 2}, "z": None},
    None,
]


def test_an_update_star_keeps_the_members_that_only_the_table_has(tmp_path: Path, spark: SparkSession) -> None:
    table = members(tmp_path / "t")
    committed(merge(spark, table, GIVEN, update(), insert(), schema_evolution=True))
    assert structs_of(table) == [*MERGED, None]


@pytest.mark.parametrize("columns", [None, ["s"]])
def test_an_upsert_keeps_the_members_that_only_the_table_has(
    tmp_path: Path, spark: SparkSession, columns: list[str] | None
) -> None:
    table = members(tmp_path / "t")
    source = {"sql": GIVEN}
    committed(run(spark, "upsert", table, source=source, keys=["id"], columns=columns, schema_evolution=True))
    assert structs_of(table) == [*MERGED, None]


def test_an_assignment_of_a_whole_struct_replaces_it(tmp_path: Path, spark: SparkSession) -> None:
    table = members(tmp_path / "t")
    committed(merge(spark, table, GIVEN, update({"s": "s.s"}), schema_evolution=True))
    whole = {"a": 9, "only": None, "n": {"x": 9, "y": None}, "z": 8}
    assert structs_of(table) == [whole, whole, None, None]


def test_an_update_that_would_lose_members_is_refused_without_schema_evolution(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = members(tmp_path / "t")
    given = "SELECT 1L AS id, named_struct('a', 9, 'only', 'x', 'n', named_struct('x', 9)) AS s"
    refusals = [
        merge(spark, table, given, update()),
        merge(spark, table, given, update({"s": "s.s"})),
        run(spark, "upsert", table, source={"sql": given}, keys=["id"]),
        run(spark, "update", table, set={"s": "named_struct('a', 9, 'only', 'x', 'n', named_struct('x', 9))"}),
    ]
    for refusal in refusals:
        error = error_of(refusal)
        assert (error["type"], error["facts"]["columns"]) == ("SchemaMismatch", ["s"])
        assert "it lacks the member s.n.y, whose values an update would lose" in error["message"]
    assert structs_of(table) == [FULL, None, FULL, None]
    # A new row has no value to lose.
    committed(merge(spark, table, given.replace("1L", "9L"), insert()))
    assert structs_of(table)[-1] == {"a": 9, "only": "x", "n": {"x": 9, "y": None}}
