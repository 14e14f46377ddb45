"""A null struct with a NOT NULL member is a row like any other: every operation writes it, and copies keep it.

Only a null member in a struct that has a value breaks NOT NULL, and is refused by the member's name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_txlog.engine import Table
from tests.helpers.depth import in_long
from tests.helpers.jobs import committed, error_of, files_on_disk, insert, merge, run, update
from tests.helpers.rows import append, sorted_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STRICT = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.string())])
DEEP = pa.struct([pa.field("n", STRICT, nullable=False), pa.field("u", pa.list_(STRICT), nullable=False)])
SCHEMA = pa.schema(
    [("id", pa.int64()), ("c", STRICT), ("l", pa.list_(STRICT)), ("m", pa.map_(pa.string(), STRICT)), ("d", DEEP)]
)
LOOSE_STRUCT = pa.struct([("x", pa.int64()), ("y", pa.string())])
LOOSE = pa.schema(
    [
        ("id", pa.int64()),
        ("c", LOOSE_STRUCT),
        ("l", pa.list_(LOOSE_STRUCT)),
        ("m", pa.map_(pa.string(), LOOSE_STRUCT)),
        ("d", pa.struct([("n", LOOSE_STRUCT), ("u", pa.list_(LOOSE_STRUCT))])),
    ]
)
VALUE = {"x": 1, "y": None}
FULL = {"c": VALUE, "l": [VALUE, None], "m": [("k", VALUE), ("z", None)], "d": {"n": VALUE, "u": [VALUE, None]}}
NULL: dict[str, Any] = {"c": None, "l": None, "m": None, "d": None}
WITHIN = {"c": None, "l": [None], "m": [("k", None)], "d": None}

LAYOUTS: list[Any] = [
    {},
    *in_long("ten jobs", {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}),
    {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"},
]


def make(folder: Path, properties: dict[str, str], by_id: dict[int, dict[str, Any]]) -> Table:
    """A table with these rows, in one file: by delta-rs where it has no properties."""
    found = pa.Table.from_pylist([{"id": number} | row for number, row in by_id.items()], SCHEMA)
    if not properties:
        write_deltalake(folder, found)
        return Table.open(str(folder))
    table = Table.create(str(folder), SCHEMA, properties=properties)
    append(table, found)
    return table


def files(folder: Path, by_id: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The rows as a Parquet source, in which nothing is NOT NULL."""
    folder.mkdir()
    pq.write_table(
        pa.Table.from_pylist([{"id": number} | row for number, row in by_id.items()], LOOSE), folder / "rows.parquet"
    )
    return {"format": "parquet", "path": str(folder)}


def by_id(table: Table) -> dict[int, dict[str, Any]]:
    return {row.pop("id"): row for row in sorted_rows(table.to_arrow())}


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("properties", LAYOUTS, ids=str)
def test_every_operation_writes_and_copies_null_structs(
    tmp_path: Path, spark: SparkSession, properties: dict[str, str]
) -> None:
    expected = {1: FULL, 2: NULL, 3: WITHIN}
    table = make(tmp_path / "t", properties, expected)
    given = {3: FULL, 4: NULL, 5: WITHIN, 6: FULL}
    committed(run(spark, "write", table, source=files(tmp_path / "more", {4: FULL, 7: NULL})))
    expected |= {4: FULL, 7: NULL}
    assert by_id(table) == expected
    clauses = [update(), insert()]
    source = files(tmp_path / "given", given)
    committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses))
    expected |= given
    assert by_id(table) == expected
    committed(run(spark, "upsert", table, source=files(tmp_path / "upserted", {6: NULL, 8: WITHIN}), keys=["id"]))
    expected |= {6: NULL, 8: WITHIN}
    assert by_id(table) == expected
    committed(run(spark, "update", table, predicate="id = 2", set={"id": "20"}))
    expected[20] = expected.pop(2)
    assert by_id(table) == expected
    committed(run(spark, "delete", table, predicate="id = 7"))
    del expected[7]
    append(table, pa.Table.from_pylist([{"id": 9} | WITHIN], SCHEMA))
    expected[9] = WITHIN
    committed(run(spark, "optimize", table))
    committed(run(spark, "optimize", table, zorder_by=["id"]))
    assert by_id(table) == expected
    if "delta.columnMapping.mode" not in properties:
        assert sorted_rows(DeltaTable(table.uri).to_pyarrow_table()) == sorted_rows(table.to_arrow())
    if "delta.enableChangeDataFeed" in properties:
        merged = table.changes(3, 3)
        kinds = sorted(merged.column("_change_type").to_pylist())
        assert kinds == [*["insert"] * 2, *["update_postimage"] * 2, *["update_preimage"] * 2]
        assert merged.column("c").null_count == 3


def test_spark_computes_null_structs_of_types_that_are_cast(tmp_path: Path, spark: SparkSession) -> None:
    table = make(tmp_path / "t", {}, {1: FULL, 2: FULL})
    committed(run(spark, "update", table, set={"c": "IF(id = 1, NULL, named_struct('x', 7, 'y', 'new'))"}))
    assert [row["c"] for row in by_id(table).values()] == [None, {"x": 7, "y": "new"}]
    joined = (
        "SELECT ids.id, found.c FROM VALUES (3L), (4L) AS ids(id) LEFT JOIN "
        "(SELECT 3L AS id, named_struct('x', 1) AS c) found ON ids.id = found.id"
    )
    committed(run(spark, "write", table, source={"sql": joined}))
    assert [row["c"] for row in by_id(table).values()] == [None, {"x": 7, "y": "new"}, {"x": 1, "y": None}, None]
    # What no clause assigns may be NOT NULL: the row has a value.
    members = "SELECT 2L AS id, named_struct('y', 'kept') AS c UNION ALL SELECT 3L, NULL"
    committed(merge(spark, table, members, update(), schema_evolution=True))
    assert [row["c"] for row in by_id(table).values()] == [None, {"x": 7, "y": "kept"}, {"x": 1, "y": None}, None]


NULL_MEMBERS = [
    ("c", "named_struct('x', CAST(NULL AS BIGINT), 'y', 'a')", "c.x"),
    ("l", "array(NULL, named_struct('x', CAST(NULL AS BIGINT), 'y', 'a'))", "l.element.x"),
    ("m", "map('k', named_struct('x', CAST(NULL AS INT), 'y', 'a'))", "m.value.x"),
    ("d", "named_struct('n', CAST(NULL AS STRUCT<x: BIGINT, y: STRING>), 'u', array())", "d.n"),
    ("d", "named_struct('n', named_struct('x', CAST(NULL AS BIGINT), 'y', 'a'), 'u', array())", "d.n.x"),
    ("d", "named_struct('n', named_struct('x', 1L, 'y', 'a'), 'u', NULL)", "d.u"),
]


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.parametrize(("column", "value", "name"), NULL_MEMBERS)
def test_a_null_member_of_a_struct_that_is_not_null_is_refused_by_name(
    tmp_path: Path, spark: SparkSession, column: str, value: str, name: str
) -> None:
    table = make(tmp_path / "t", {}, {1: FULL, 2: NULL})
    before = files_on_disk(table)
    given = f"SELECT id, {value} AS {column} FROM VALUES (1L), (9L) AS ids(id)"
    for refused in (
        run(spark, "write", table, source={"sql": given}),
        run(spark, "update", table, set={column: value}),
        merge(spark, table, given, update({column: f"s.{column}"})),
    ):
        error = error_of(refused)
        assert (error["type"], error["facts"].get("column")) == ("ConstraintViolation", name), error
        assert "in a struct that is not null" in error["message"]
    assert files_on_disk(table) == before
