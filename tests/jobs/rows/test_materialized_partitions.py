"""Alone in showing that every new data file contains the partition columns where the protocol demands it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.partitioning import decode_add_path
from airflow_txlog.engine import Table
from airflow_txlog.storage.limits import USUAL, Limits
from tests.helpers.jobs import by_id, committed, error_of, insert, live_files, read_alike, run, update

FEATURE = "materializePartitionColumns"
SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("shop", pa.string()), ("name", pa.string())])
IN_PLACE = dataclasses.replace(USUAL, changed_in_place_bytes=0)
LAYOUTS: dict[str, dict[str, str]] = {
    "plain": {},
    "mapped": {"delta.columnMapping.mode": "name"},
    "mapped by id": {"delta.columnMapping.mode": "id"},
    "row ids": {"delta.enableRowTracking": "true"},
    "vectors and feed": {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"},
}


def source(folder: Path, rows: list[dict[str, Any]]) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    return {"format": "parquet", "path": str(path)}


def rows(*numbers: int, name: str = "x") -> list[dict[str, Any]]:
    return [
        {"day": number % 2, "id": number, "shop": ("a", "", None, "ü/=")[number % 4], "name": name}
        for number in numbers
    ]


def of_files(table: Table) -> dict[str, tuple[list[str], list[dict[str, Any]]]]:
    """The columns and the partition columns' distinct values in each live file, read without the log."""
    snapshot, root = table.snapshot(), table.uri.removeprefix("file://")
    keys = [field.physical_name for field in snapshot.delta_schema if field.name in snapshot.partition_columns]
    found = {}
    for path in live_files(table):
        data = pq.ParquetFile(Path(root, decode_add_path(path))).read()
        held = [key for key in keys if key in data.column_names]
        values = data.select(held).group_by(held).aggregate([]).to_pylist() if held else []
        found[path] = (data.column_names, values)
    return found


def assert_materialized(table: Table) -> None:
    """Each file has both partition columns after the others, with the one value that the log has for it."""
    snapshot = table.snapshot()
    keys = [field.physical_name for field in snapshot.delta_schema if field.name in snapshot.partition_columns]
    values = {
        entry["path"]: dict(entry["partition_values"])
        for entry in snapshot.files().select(["path", "partition_values"]).to_pylist()
    }
    found = of_files(table)
    assert found
    for path, (columns, of_file) in found.items():
        others = [name for name in columns if name not in keys and not name.startswith("_row-")]
        assert max(map(columns.index, others)) < min(map(columns.index, keys)), columns
        [one] = of_file
        assert {key: None if value is None else str(value) for key, value in one.items()} == values[path]
    for stats in snapshot.files().column("stats").to_pylist():
        assert not set(keys) & json.loads(stats)["minValues"].keys()


@pytest.mark.parametrize("properties", LAYOUTS.values(), ids=LAYOUTS)
def test_every_operation_writes_partition_columns_into_its_files(tmp_path: Path, properties: dict[str, str]) -> None:
    asked = {f"delta.feature.{FEATURE}": "supported", **properties}
    table, sources = Table.create(str(tmp_path / "t"), SCHEMA, ["day", "shop"], asked), tmp_path / "sources"
    committed(run(None, "write", table, source=source(sources, rows(*range(12)))))
    assert_materialized(table)
    committed(run(None, "delete", table, predicate="id = 3"))
    committed(run(None, "update", table, predicate="id = 4", set={"name": "'new'"}))
    changed = source(sources, rows(5, 6, 20, 21, name="merged"))
    clauses = [update({"name": "s.name"}), insert()]
    committed(run(None, "merge", table, source=changed, on="t.id = s.id", clauses=clauses))
    assert_materialized(table)
    committed(run(None, "optimize", table))
    assert_materialized(table)
    names = {number: "x" for number in range(12) if number != 3} | {4: "new"} | dict.fromkeys((5, 6, 20, 21), "merged")
    assert by_id(table) == names
    shops = {number: ("a", None, None, "ü/=")[number % 4] for number in names}
    assert by_id(table, "shop") == shops
    if "delta.enableDeletionVectors" not in properties:
        read_alike(table)


@pytest.mark.parametrize(
    "limits", [USUAL, dataclasses.replace(USUAL, changed_in_place_bytes=0)], ids=["anew", "in place"]
)
@pytest.mark.parametrize("properties", [{}, {"delta.enableRowTracking": "true"}], ids=["plain", "row ids"])
def test_a_table_gets_the_feature_and_its_old_files_get_the_columns_when_they_are_rewritten(
    tmp_path: Path, properties: dict[str, str], limits: Limits
) -> None:
    table, sources = Table.create(str(tmp_path / "t"), SCHEMA, ["day", "shop"], properties), tmp_path / "sources"
    committed(run(None, "write", table, source=source(sources, rows(*range(8)))))
    committed(run(None, "alter", table, add_features=[FEATURE]))
    assert all(columns == ["id", "name"] for columns, _ in of_files(table).values())
    for name in ("once", "new"):
        committed(run(None, "update", table, predicate="id < 4", set={"name": f"'{name}'"}, limits=limits))
        assert_materialized(table)
        assert by_id(table) == {number: name if number < 4 else "x" for number in range(8)}
    committed(run(None, "update", table, predicate="id = 1", set={"shop": "'b'"}, limits=limits))
    assert_materialized(table)
    assert by_id(table, "shop")[1] == "b"
    committed(run(None, "alter", table, drop_features=[FEATURE]))
    assert FEATURE not in (table.snapshot().protocol.writer_features or ())
    committed(run(None, "write", table, source=source(sources, rows(30)), mode="overwrite"))
    assert [columns for columns, _ in of_files(table).values()] == [["id", "name"]]


def test_a_conversion_which_moves_no_file_does_not_promise_the_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    error = error_of(run(None, "convert", tmp_path, properties={f"delta.feature.{FEATURE}": "supported"}))
    assert (error["type"], error["facts"]["name"]) == ("InvalidProperty", f"delta.feature.{FEATURE}")
