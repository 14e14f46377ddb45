"""Void columns in jobs: files leave them out, and a table that no file can hold is refused before staging."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.types import ArrayType, DataType, Primitive, StructField, StructType
from tests.helpers.jobs import committed, error_of, files_on_disk, run
from tests.helpers.rows import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

VOID, LONG = Primitive.VOID, Primitive.LONG


def struct(**members: DataType) -> StructType:
    return StructType(tuple(StructField(name, kind) for name, kind in members.items()))


def types_in_files(folder: Path) -> set[str]:
    """The logical types of all columns in all data files of a table."""
    schemas = [pq.ParquetFile(path).schema for path in folder.rglob("*.parquet")]
    return {str(schema.column(index).logical_type) for schema in schemas for index in range(len(schema))}


def test_void_members_are_left_out_of_every_file_and_read_as_null(tmp_path: Path, spark: SparkSession) -> None:
    pair = struct(a=VOID, b=LONG)
    table = Table.create(str(tmp_path / "t"), struct(id=LONG, v=VOID, s=pair, l=ArrayType(pair)))
    values: list[dict[str, Any]] = [
        {"id": 1, "v": None, "s": {"a": None, "b": 5}, "l": [{"a": None, "b": None}, None]},
        {"id": 2, "v": None, "s": None, "l": []},
        {"id": 3, "v": None, "s": {"a": None, "b": None}, "l": None},
    ]
    append(table, pa.Table.from_pylist(values, table.snapshot().schema))
    append(table, pa.Table.from_pylist([{"id": 4}], table.snapshot().schema))
    committed(run(spark, "update", table, set={"id": "id + 10"}, predicate="id = 3"))
    committed(run(spark, "delete", table, predicate="id = 4"))
    append(table, pa.Table.from_pylist([{"id": 5}], table.snapshot().schema))
    committed(run(spark, "optimize", table))
    assert types_in_files(tmp_path / "t") == {"None"}
    expected = [*values[:2], {"id": 5, "v": None, "s": None, "l": None}, {**values[2], "id": 13}]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == expected


def test_rows_for_an_array_of_void_are_refused_before_anything_is_staged(tmp_path: Path, spark: SparkSession) -> None:
    table = Table.create(str(tmp_path / "t"), struct(id=LONG, c=ArrayType(VOID)))
    for target in (table, tmp_path / "new"):
        source = {"sql": "SELECT 1L AS id, array() AS c"}
        error = error_of(run(spark, "write", target, source=source, mode="append"))
        assert (error["type"], error["facts"]["feature"]) == ("UnsupportedFeature", "materializedVoidType")
    assert not files_on_disk(table)
    assert not (tmp_path / "new" / "_delta_log").exists()
    assert table.to_arrow().num_rows == 0
