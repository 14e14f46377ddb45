"""Alone in showing jobs on tables whose columns were renamed and widened: each value is where its name of today is.

The table is partitioned by a renamed column, holds a renamed struct and member, an exchanged pair of names, and a
column that was dropped and added again. What is written must be read alike by `deltalake`.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from tests.helpers.jobs import (
    committed,
    delete,
    error_of,
    files_on_disk,
    insert,
    live_files,
    merge,
    read_alike,
    run,
    update,
)
from tests.helpers.paths import ROOT
from tests.helpers.rows import append, bag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ONE, TWO = dt.date(2024, 1, 1), dt.date(2024, 1, 2)
FIRST = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("a", pa.string()),
        ("b", pa.string()),
        ("point", pa.struct([("x", pa.int64()), ("y", pa.int64())])),
        ("gone", pa.int64()),
    ]
)
MASKED = ROOT / "tests" / "interop" / "reference" / "mapping_with_vectors" / "table"
WIDENED = ROOT / "tests" / "interop" / "mapped" / "widened"


def mapped(folder: Path, mode: str) -> Table:
    """Two days, two rows each, under their first names; then the names change."""
    table = Table.create(folder, FIRST, ["day"], {"delta.columnMapping.mode": mode})
    for day in (ONE, TWO):
        start = day.day * 10
        rows = [
            {"id": k, "day": day, "a": f"a{k}", "b": f"b{k}", "point": {"x": k, "y": -k}, "gone": k}
            for k in (start, start + 1)
        ]
        append(table, pa.Table.from_pylist(rows, schema=FIRST))
    rename(table)
    return table


def rename(table: Table) -> None:
    """day -> the day, a <-> b, point.x <-> point.y, `gone` dropped and added again."""
    metadata = table.snapshot().metadata
    schema = json.loads(metadata.schema_string or "")
    names = {"day": "the day", "a": "b", "b": "a"}
    for field in schema["fields"]:
        field["name"] = names.get(field["name"], field["name"])
    members = schema["fields"][4]["type"]["fields"]
    members[0]["name"], members[1]["name"] = "y", "x"
    last = int(metadata.configuration["delta.columnMapping.maxColumnId"]) + 1
    schema["fields"][5]["metadata"] = {
        "delta.columnMapping.id": last,
        "delta.columnMapping.physicalName": f"col-again-{last}",
    }
    changed = msgspec.structs.replace(
        metadata,
        schema_string=json.dumps(schema),
        partition_columns=["the day"],
        configuration={**metadata.configuration, "delta.columnMapping.maxColumnId": str(last)},
    )
    tx = table.begin()
    tx.set_metadata(changed)
    tx.commit("RENAME COLUMN")


def row(k: int, day: dt.date, **changed: Any) -> dict[str, Any]:
    """A row as it reads after the names changed."""
    return {"id": k, "the day": day, "b": f"a{k}", "a": f"b{k}", "point": {"y": k, "x": -k}, "gone": None} | changed


ROWS = [row(10, ONE), row(11, ONE), row(20, TWO), row(21, TWO)]


def check(table: Table, *expected: dict[str, Any]) -> None:
    """The rows, as we and as deltalake read them; no directory shows a name, and no file lies outside of the log."""
    schema = table.snapshot().schema
    wanted = bag(pa.Table.from_pylist(list(expected), schema=schema))
    assert bag(table) == wanted
    read_alike(table)
    assert not [path for path in live_files(table) if "=" in path]


def test_delete_finds_rows_by_the_names_of_today(tmp_path: Path, spark: SparkSession) -> None:
    table = mapped(tmp_path / "t", "id")
    result = committed(run(spark, "delete", table, predicate="a = 'b11' AND point.x = -11 AND gone IS NULL"))
    assert result.metrics["numDeletedRows"] == 1
    assert (result.files["pruned"], result.files["rewritten"]) == (1, 1)
    check(table, ROWS[0], ROWS[2], ROWS[3])
    # By partition alone: a file goes unread.
    result = committed(run(spark, "delete", table, predicate="`the day` = date'2024-01-02'"))
    assert (result.files["removed"], result.files["added"]) == (1, 0)
    check(table, ROWS[0])


@pytest.mark.parametrize(
    "mode", ["name", pytest.param("id", marks=pytest.mark.long("the files of both modes hold the same names and ids"))]
)
def test_merge_updates_deletes_and_inserts(tmp_path: Path, spark: SparkSession, mode: str) -> None:
    table = mapped(tmp_path / "t", mode)
    source = """SELECT * FROM VALUES (10L, date'2024-01-01', 'new'), (11L, date'2024-01-01', 'bye'),
                (99L, date'2024-01-01', 'ins') AS v(id, d, text)"""
    values = {"id": "s.id", "the day": "s.d", "b": "s.text", "point": "named_struct('y', 1L, 'x', 2L)"}
    clauses = [delete("s.text = 'bye'"), update({"a": "s.text", "gone": "1"}), insert(values)]
    on, scope = "t.id = s.id AND t.`the day` = s.d", "`the day` = date'2024-01-01'"
    result = committed(merge(spark, table, source, *clauses, on=on, partition_predicate=scope))
    assert result.metrics["numTargetRowsUpdated"] == result.metrics["numTargetRowsDeleted"] == 1
    inserted = row(99, ONE, a=None, b="ins", point={"y": 1, "x": 2})
    check(table, row(10, ONE, a="new", gone=1), inserted, ROWS[2], ROWS[3])


def test_overwrite_replaces_the_partitions_that_it_names(tmp_path: Path, spark: SparkSession) -> None:
    table = mapped(tmp_path / "t", "name")
    source = {"sql": "SELECT 7L AS id, date'2024-01-01' AS `the day`, 'x' AS a, 5L AS gone"}
    scope = "`the day` = date'2024-01-01'"
    committed(run(spark, "write", table, source=source, mode="overwrite", partition_predicate=scope))
    new = {"id": 7, "the day": ONE, "b": None, "a": "x", "point": None, "gone": 5}
    check(table, new, ROWS[2], ROWS[3])
    before = files_on_disk(table)
    elsewhere = "`the day` = date'2024-01-03'"
    failed = error_of(run(spark, "write", table, source=source, mode="overwrite", partition_predicate=elsewhere))
    assert failed["type"] == "PartitionMismatch"
    assert files_on_disk(table) == before
    committed(run(spark, "write", table, source=source))
    check(table, new, new, ROWS[2], ROWS[3])


def test_a_copy_keeps_the_file_s_own_names_and_ids(tmp_path: Path, spark: SparkSession) -> None:
    table = mapped(tmp_path / "t", "id")
    before = {path: pq.read_schema(tmp_path / "t" / path) for path in live_files(table)}
    committed(run(spark, "delete", table, predicate="id IN (10, 20)"))
    after = [pq.read_schema(tmp_path / "t" / path) for path in live_files(table)]
    assert len(after) == 2
    for schema in after:
        assert schema.equals(next(iter(before.values())), check_metadata=True)
    stats = json.loads(table.snapshot().state.live.column("stats")[0].as_py())
    # The dropped column stays in the copy and out of its statistics; the one added again is in neither.
    assert len(stats["nullCount"]) == 4


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_write_that_creates_a_mapped_table_takes_any_name(tmp_path: Path, spark: SparkSession, mode: str) -> None:
    source = {"sql": "SELECT id, id % 2 AS `p, q`, named_struct('x y', id) AS `s;` FROM range(4)"}
    properties = {"delta.columnMapping.mode": mode}
    committed(
        run(spark, "write", tmp_path / "t", source=source, create=True, partition_by=["p, q"], properties=properties)
    )
    table = Table.open(tmp_path / "t")
    check(table, *[{"id": k, "p, q": k % 2, "s;": {"x y": k}} for k in range(4)])
    committed(run(spark, "delete", table, predicate="`s;`.`x y` = 2 OR `p, q` = 1"))
    check(table, {"id": 0, "p, q": 0, "s;": {"x y": 0}})


def test_a_mapped_table_with_masked_rows_keeps_them_masked(tmp_path: Path, spark: SparkSession) -> None:
    table = Table.open(shutil.copytree(MASKED, tmp_path / "t"))
    before = table.to_arrow().to_pylist()
    assert len(before) == 6
    committed(run(spark, "delete", table, predicate=f"label = '{before[0]['label']}'"))
    expected = pa.Table.from_pylist(before[1:], schema=table.snapshot().schema)
    assert bag(table) == bag(expected)
    read_alike(table)


def test_a_widened_table_is_changed_in_its_current_types(tmp_path: Path, spark: SparkSession) -> None:
    table = Table.open(shutil.copytree(WIDENED, tmp_path / "t"))
    before = {entry["id"]: entry for entry in table.to_arrow().to_pylist()}
    # 0.1 as a 32-bit float is more than the double 0.1: only Spark over the current type knows.
    on = "t.id = s.id AND t.f > 0.1D AND t.dt = timestamp_ntz'2024-02-29 00:00:00' AND t.pd = 7"
    result = committed(merge(spark, table, "SELECT 1 AS id, 2147483648L AS b", update({"b": "s.b"}), on=on))
    assert result.metrics["numTargetRowsUpdated"] == 1
    expected = [before[1] | {"b": 2147483648}, before[2], before[3]]
    assert bag(table) == bag(pa.Table.from_pylist(expected, schema=table.snapshot().schema))
    committed(run(spark, "delete", table, predicate="i_double = 2147483647D"))
    assert bag(table) == bag(pa.Table.from_pylist([expected[0], expected[2]], schema=table.snapshot().schema))


def test_the_copy_of_an_older_file_has_its_types_and_statistics_that_hold_in_the_current_ones(
    tmp_path: Path, spark: SparkSession
) -> None:
    schema = pa.schema([("id", pa.int32()), ("f", pa.float32()), ("d", pa.date32())])
    table = Table.create(tmp_path / "t", schema, properties={"delta.enableTypeWidening": "true"})
    append(table, pa.table({"id": [1, 2], "f": [0.1, 0.3], "d": [ONE, TWO]}, schema=schema))
    metadata = table.snapshot().metadata
    changed = json.loads(metadata.schema_string or "")
    for field, kind in zip(changed["fields"], ("long", "double", "timestamp_ntz"), strict=True):
        field["metadata"]["delta.typeChanges"] = [{"fromType": field["type"], "toType": kind}]
        field["type"] = kind
    tx = table.begin()
    tx.set_metadata(msgspec.structs.replace(metadata, schema_string=json.dumps(changed)))
    tx.commit("CHANGE COLUMN")
    committed(run(spark, "delete", table, predicate="f > 0.3D"))
    [path] = live_files(table)
    assert pq.read_schema(tmp_path / "t" / path).types == schema.types
    stats = json.loads(table.snapshot().state.live.column("stats")[0].as_py())
    assert stats["maxValues"] == {"id": 1, "f": 0.10000000149011612, "d": "2024-01-01T00:00:00.000"}
    assert table.to_arrow("f > 0.1D").num_rows == 1
