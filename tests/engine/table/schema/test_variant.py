"""Variant columns are read and written as their two binaries, also those that a file shreds."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog import errors
from airflow_txlog.datafiles.parquet.conversion import conforming
from airflow_txlog.datafiles.parquet.physical import VARIANT
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append
from tests.helpers.variants import column_of, decoded, metadata_of
from tests.helpers.variants import shredded as parts_of

# The object {"a": 1} as Spark encodes it, and null.
OBJECT = {"metadata": b"\x01\x01\x00\x01a", "value": b"\x02\x01\x00\x00\x02\x0c\x01"}
NULL = {"metadata": b"\x01\x00\x00", "value": b"\x00"}


def make(folder: Path, rows: pa.Table, types: dict[str, Any], feature: str = "variantType") -> Table:
    """A table of one data file, as another engine would make it."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    (folder / "_delta_log").mkdir(parents=True)
    pq.write_table(rows, folder / "f.parquet", store_schema=False)
    actions = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7,
                      "readerFeatures": [feature], "writerFeatures": [feature]}},
        {"metaData": {"id": "t", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [],
                      "schemaString": json.dumps({"type": "struct", "fields": fields}), "configuration": {}}},
        {"add": {"path": "f.parquet", "partitionValues": {}, "size": (folder / "f.parquet").stat().st_size,
                 "modificationTime": 0, "dataChange": True, "stats": json.dumps({"numRecords": rows.num_rows})}},
    ]  # fmt: skip
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return Table.open(str(folder))


def column(*values: Any, kind: pa.DataType = VARIANT) -> pa.Array:
    return pa.array(values, kind)


@pytest.mark.parametrize("feature", ["variantType", "variantType-preview"])
def test_a_variant_is_read_as_the_struct_of_its_two_binaries(tmp_path: Path, feature: str) -> None:
    # Spark writes the value first, and a field of a later version of the encoding may be there.
    stored = pa.struct([("value", pa.binary()), ("metadata", pa.binary()), ("_extra", pa.int32())])
    values = [{**OBJECT, "_extra": 1}, None, {**NULL, "_extra": None}]
    rows = pa.table({"id": [1, 2, 3], "v": column(*values, kind=stored)})
    table = make(tmp_path / "t", rows, {"id": "long", "v": "variant"}, feature)
    found = table.to_arrow()
    assert found.schema.field("v").type == VARIANT
    assert found.to_pylist() == [{"id": 1, "v": OBJECT}, {"id": 2, "v": None}, {"id": 3, "v": NULL}]
    assert table.to_arrow(columns=["id"]).column("id").to_pylist() == [1, 2, 3]
    assert table.to_arrow(predicate="id > 1").num_rows == 2


def test_a_variant_inside_other_types_is_read(tmp_path: Path) -> None:
    array = {"type": "array", "elementType": "variant", "containsNull": True}
    entries = {"type": "map", "keyType": "string", "valueType": "variant", "valueContainsNull": True}
    member = {"name": "v", "type": "variant", "nullable": True, "metadata": {}}
    rows = pa.table(
        {
            "l": pa.array([[OBJECT, None], None], pa.list_(VARIANT)),
            "m": pa.array([[("k", NULL)], None], pa.map_(pa.string(), VARIANT)),
            "s": pa.array([None, {"v": OBJECT}], pa.struct([("v", VARIANT)])),
        }
    )
    types = {"l": array, "m": entries, "s": {"type": "struct", "fields": [member]}}
    table = make(tmp_path / "t", rows, types)
    assert table.to_arrow().to_pylist() == rows.to_pylist()
    schema = table.snapshot().delta_schema
    assert parse_schema(schema_to_json(schema)) == schema
    assert str(schema) == "struct<l:array<variant>,m:map<string,variant>,s:struct<v:variant>>"


def shredded(*values: Any) -> pa.Array:
    """Whole numbers in a column of their own, and other values beside it."""
    kind = column_of(pa.int64())
    rows = [{"metadata": metadata_of(), **parts_of(value, pa.int64(), [])} for value in values]
    return pa.array(rows, kind)


@pytest.mark.parametrize("feature", ["variantShredding", "variantShredding-preview"])
def test_a_shredded_variant_is_read(tmp_path: Path, feature: str) -> None:
    rows = pa.table({"id": [1, 2], "v": shredded(5, "text")})
    table = make(tmp_path / "t", rows, {"id": "long", "v": "variant"}, feature)
    found = table.to_arrow()
    assert found.schema.field("v").type == VARIANT
    assert list(map(decoded, found.column("v").to_pylist())) == [5, "text"]
    assert table.to_arrow(columns=["id"]).to_pylist() == [{"id": 1}, {"id": 2}]
    assert table.to_arrow(predicate="id = 2", columns=["v"]).num_rows == 1


def test_parts_that_make_no_variant_are_a_corrupt_file_without_a_value(tmp_path: Path) -> None:
    parts = shredded(5).flatten()
    both = pa.StructArray.from_arrays([parts[0], pa.array([b"\x05s"]), parts[2]], fields=list(shredded(5).type))
    table = make(tmp_path / "t", pa.table({"v": both}), {"v": "variant"})
    with pytest.raises(errors.CorruptDataFile, match="'v'") as caught:
        table.to_arrow()
    assert "twice" in str(caught.value)


@pytest.mark.parametrize("kind", [pa.struct([("value", pa.binary())]), pa.binary()])
def test_a_file_without_both_binaries_is_corrupt(tmp_path: Path, kind: pa.DataType) -> None:
    rows = pa.table({"v": pa.array([{"value": b"\x00"} if pa.types.is_struct(kind) else b"\x00"], kind)})
    with pytest.raises(errors.CorruptDataFile, match="'v'"):
        make(tmp_path / "t", rows, {"v": "variant"}).to_arrow()


def test_a_table_with_a_variant_column_is_created_and_written(tmp_path: Path) -> None:
    described = make(tmp_path / "t", pa.table({"id": [1], "v": column(OBJECT)}), {"id": "long", "v": "variant"})
    table = Table.create(str(tmp_path / "new"), described.snapshot().delta_schema)
    assert table.snapshot().protocol.reader_features == ["variantType"]
    append(table, [{"id": 1, "v": OBJECT}, {"id": 2, "v": None}, {"id": 3, "v": NULL}])
    assert table.to_arrow().to_pylist() == [{"id": 1, "v": OBJECT}, {"id": 2, "v": None}, {"id": 3, "v": NULL}]
    [stats] = map(json.loads, table.snapshot().files().column("stats").to_pylist())
    assert stats["nullCount"] == {"id": 0, "v": 1}, "a variant counts as one column"
    assert stats["minValues"] == {"id": 1}


def test_rows_whose_variant_is_not_whole_are_refused(tmp_path: Path) -> None:
    described = make(tmp_path / "t", pa.table({"v": column(OBJECT)}), {"v": "variant"})
    schema = described.snapshot().schema
    for kind in (column_of(pa.int64()), pa.struct([("value", pa.binary())])):
        batch = pa.RecordBatch.from_pydict({"v": pa.array([{"value": b"\x00"}], kind)})
        with pytest.raises(errors.SchemaMismatch, match="'v'"):
            conforming(batch, schema)


@pytest.mark.parametrize("feature", ["variantType", "variantType-preview"])
def test_what_writes_no_variant_is_done_in_a_table_with_one(tmp_path: Path, feature: str) -> None:
    rows = pa.table({"id": [1], "v": column(OBJECT)})
    table = make(tmp_path / "t", rows, {"id": "long", "v": "variant"}, feature)
    # The same file again, as a delete by vectors has it.
    tx = table.begin()
    tx.add(table_to_adds(table.snapshot().files(), data_change=False))
    assert tx.commit("COMPUTE STATS") == 1
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    assert tx.commit("TRUNCATE") == 2
    assert table.restore(version=0) == 3
    assert table.to_arrow().to_pylist() == rows.to_pylist()
    assert table.vacuum(timedelta(0), check_retention=False).deleted_files == 0
    assert table.checkpoint() == 5


@pytest.mark.parametrize("feature", ["variantShredding", "variantShredding-preview"])
def test_a_table_that_allows_shredding_is_read_where_no_file_is_shredded(tmp_path: Path, feature: str) -> None:
    rows = pa.table({"id": [1], "v": column(OBJECT)})
    table = make(tmp_path / "t", rows, {"id": "long", "v": "variant"}, feature)
    assert table.to_arrow().to_pylist() == rows.to_pylist()
    plain = make(tmp_path / "u", pa.table({"id": [1]}), {"id": "long"}, feature)
    append(plain, [{"id": 2}])
    assert plain.to_arrow().num_rows == 2


def test_a_table_that_lists_the_feature_and_has_no_variant_is_written(tmp_path: Path) -> None:
    table = make(tmp_path / "t", pa.table({"id": [1]}), {"id": "long"})
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    assert tx.commit("TRUNCATE") == 1


def test_a_struct_with_the_members_of_a_variant_is_read_under_its_physical_names(tmp_path: Path) -> None:
    """Arrow does not tell the two types apart, and the files of a mapped struct do not have those names."""
    schema = pa.schema([pa.field("s", pa.struct([field.remove_metadata() for field in VARIANT]))])
    table = Table.create(tmp_path / "t", schema, properties={"delta.columnMapping.mode": "name"})
    rows = [{"s": {"metadata": b"m", "value": b"v"}}]
    append(table, rows)
    assert table.to_arrow().to_pylist() == rows


def test_shredding_is_a_feature_of_tables_with_a_variant_column(tmp_path: Path) -> None:
    described = make(tmp_path / "t", pa.table({"v": column(OBJECT)}), {"v": "variant"}).snapshot().delta_schema
    shreds = {"delta.enableVariantShredding": "true"}
    table = Table.create(str(tmp_path / "new"), described, properties=shreds)
    assert table.snapshot().protocol.reader_features == ["variantShredding", "variantType"]
    plain = Table.create(str(tmp_path / "plain"), pa.schema([("id", pa.int64())]), properties=shreds)
    assert plain.snapshot().protocol.reader_features is None
    committed(run(None, "alter", plain, add_columns={"v": "VARIANT"}, allow_reader_upgrade=True))
    assert plain.snapshot().protocol.reader_features == ["variantShredding", "variantType"]
