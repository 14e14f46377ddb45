"""Schema evolution as a pure function, and as metadata that a transaction commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.datafiles.parquet.physical import VARIANT
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.evolution import evolved
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import StructType


def struct(**columns: Any) -> dict[str, Any]:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} if not isinstance(kind, tuple) else kind[0]
        for name, kind in columns.items()
    ]
    return {"type": "struct", "fields": fields}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def schema(**columns: Any) -> StructType:
    return parse_schema(json.dumps(struct(**columns)))


def test_columns_are_added_behind_the_tables_own_at_every_depth() -> None:
    table = schema(id="long", s=struct(a="long"), l=array(struct(x="string")), m=mapping("string", struct(y="date")))
    rows = schema(
        new="string",
        S=struct(b=array("long"), A="long"),
        l=array(struct(z="double", x="string")),
        m=mapping("string", struct(q="boolean")),
        nothing="void",
    )
    found = evolved(table, rows)
    assert found.added == ("s.b", "l.element.z", "m.value.q", "new")
    assert found.widened == ()
    assert found.schema == schema(
        id="long",
        s=struct(a="long", b=array("long")),
        l=array(struct(x="string", z="double")),
        m=mapping("string", struct(y="date", q="boolean")),
        new="string",
    )


def test_a_new_column_may_be_null_at_every_level() -> None:
    inner = {"name": "a", "type": "long", "nullable": False, "metadata": {"comment": "of its source"}}
    rows = StructType(tuple(schema(s={"type": "struct", "fields": [inner]})))
    found = evolved(schema(id="long"), rows)
    assert found.schema == schema(id="long", s=struct(a="long"))


def test_rows_that_fit_change_nothing() -> None:
    table = schema(id="long", s=struct(a="long", b="string"))
    for rows in (schema(), schema(ID="long"), schema(id="integer", s=struct(b="string")), schema(id="string")):
        found = evolved(table, rows, may_widen=True)
        assert found.changes_nothing
        assert found.schema == table


WIDENED = [
    ("byte", "short", True),
    ("integer", "long", True),
    ("long", "integer", False),
    ("float", "double", True),
    ("double", "float", False),
    ("decimal(5,2)", "decimal(7,3)", True),
    ("decimal(5,2)", "decimal(7,5)", False),
    ("date", "timestamp_ntz", True),
    ("date", "timestamp", False),
    # Allowed by the protocol, and never done by itself.
    ("integer", "double", False),
    ("integer", "decimal(20,0)", False),
    ("long", "string", False),
]


@pytest.mark.parametrize(("before", "after", "is_widened"), WIDENED)
def test_a_type_is_widened_where_nothing_is_lost(before: str, after: str, is_widened: bool) -> None:
    table, rows = schema(c=before), schema(c=after)
    assert evolved(table, rows).changes_nothing
    assert evolved(table, rows, may_widen=True, fixed=["C"]).changes_nothing
    found = evolved(table, rows, may_widen=True)
    assert found.changes_nothing is not is_widened
    if is_widened:
        assert found.widened == (f"c: {before} to {after}",)
        (column,) = found.schema
        assert str(column.type) == after
        assert column.metadata["delta.typeChanges"] == [{"fromType": before, "toType": after}]


def test_a_change_inside_a_container_says_the_way_to_it() -> None:
    table = schema(a=array(array("integer")), m=mapping("short", "float"), s=struct(x="integer"))
    rows = schema(a=array(array("long")), m=mapping("integer", "double"), s=struct(x="long"))
    found = evolved(table, rows, may_widen=True)
    a, m, s = found.schema
    assert a.metadata["delta.typeChanges"] == [
        {"fromType": "integer", "toType": "long", "fieldPath": "element.element"}
    ]
    assert m.metadata["delta.typeChanges"] == [
        {"fromType": "short", "toType": "integer", "fieldPath": "key"},
        {"fromType": "float", "toType": "double", "fieldPath": "value"},
    ]
    assert "delta.typeChanges" not in s.metadata
    assert isinstance(s.type, StructType)
    assert s.type.fields[0].metadata["delta.typeChanges"] == [{"fromType": "integer", "toType": "long"}]


def test_an_earlier_change_is_kept_in_front() -> None:
    marked = {"name": "c", "type": "short", "nullable": True}
    marked["metadata"] = {"delta.typeChanges": [{"fromType": "byte", "toType": "short"}]}
    found = evolved(schema(c=(marked,)), schema(c="long"), may_widen=True)
    assert [change["toType"] for change in found.schema.fields[0].metadata["delta.typeChanges"]] == ["short", "long"]


def test_a_void_column_takes_the_type_of_the_rows_at_every_depth() -> None:
    table = schema(v="void", s=struct(x="void", y="long"), l=array("void"), kept="void", still="void")
    rows = schema(
        V=struct(a="long"), s=struct(x="string"), l=array(mapping("string", "date")), kept="long", still="void"
    )
    found = evolved(table, rows, fixed=["kept"])
    assert found.added == ("v", "s.x", "l.element")
    assert found.widened == ()
    assert found.schema == schema(
        v=struct(a="long"),
        s=struct(x="string", y="long"),
        l=array(mapping("string", "date")),
        kept="void",
        still="void",
    )


# --- as metadata ----------------------------------------------------------------------------------------------------

IDS = pa.schema([("id", pa.int32()), ("day", pa.date32())])
WIDER = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.string())]))])


def make(folder: Path, **properties: str) -> Table:
    return Table.create(
        str(folder), IDS, properties={name.replace("__", "."): text for name, text in properties.items()}
    )


def test_a_transaction_commits_the_wider_schema(tmp_path: Path) -> None:
    table = make(tmp_path / "t", delta__enableTypeWidening="true")
    tx = table.begin()
    evolution = tx.evolve_schema(WIDER)
    assert (evolution.added, evolution.widened) == (("s",), ("id: integer to long",))
    assert tx.metadata is not None
    tx.commit("WRITE")
    assert [str(field.type) for field in table.snapshot().delta_schema] == ["long", "date", "struct<a:string>"]
    again = table.begin()
    before = again.metadata
    assert again.evolve_schema(WIDER).changes_nothing
    assert again.metadata is before


def test_a_table_that_does_not_allow_it_is_not_widened(tmp_path: Path) -> None:
    tx = make(tmp_path / "t").begin()
    assert tx.evolve_schema(WIDER).widened == ()


@pytest.mark.parametrize("mode", ["name", "id"])
def test_new_columns_of_a_mapped_table_get_ids_above_the_highest(tmp_path: Path, mode: str) -> None:
    table = make(tmp_path / "t", **{"delta.columnMapping.mode": mode})
    # A dropped column had the highest id: it is never given again.
    tx, old = table.begin(), table.snapshot().metadata
    tx.set_metadata(
        msgspec.structs.replace(old, configuration={**old.configuration, "delta.columnMapping.maxColumnId": "9"})
    )
    tx.commit("DROP COLUMNS")
    tx = table.begin()
    tx.evolve_schema(WIDER, new_name=lambda number: f"col-{number}")
    tx.commit("WRITE")
    snapshot = table.snapshot()
    s = snapshot.delta_schema.find("s")
    assert s is not None
    assert isinstance(s.type, StructType)
    marks = [(m.metadata["delta.columnMapping.id"], m.physical_name) for m in (s, s.type.fields[0])]
    assert marks == [(10, "col-10"), (11, "col-11")]
    assert snapshot.properties["delta.columnMapping.maxColumnId"] == "11"
    assert [m.metadata["delta.columnMapping.id"] for m in snapshot.delta_schema.fields[:2]] == [1, 2]


def test_a_name_or_a_type_that_the_table_may_not_have_is_refused(tmp_path: Path) -> None:
    tx = make(tmp_path / "t").begin()
    with pytest.raises(errors.SchemaMismatch, match="a space"):
        tx.evolve_schema(pa.schema([("a b", pa.int64())]))
    with pytest.raises(errors.UnsupportedFeature, match="timestampNtz"):
        tx.evolve_schema(pa.schema([("at", pa.timestamp("us"))]))
    with pytest.raises(errors.UnsupportedFeature, match="variantType"):
        tx.evolve_schema(pa.schema([("v", VARIANT)]))
    assert make(tmp_path / "u", **{"delta.columnMapping.mode": "name"}).begin().evolve_schema(
        pa.schema([("a b", pa.int64())])
    ).added == ("a b",)
    feed = make(tmp_path / "v", delta__enableChangeDataFeed="true").begin()
    with pytest.raises(errors.SchemaMismatch, match="_Change_Type"):
        feed.evolve_schema(pa.schema([("_Change_Type", pa.string())]))


def test_two_that_change_the_schema_conflict_and_an_append_does_too(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    first, second, append = table.begin(), table.begin(), table.begin()
    first.evolve_schema(WIDER)
    second.evolve_schema(WIDER)
    first.commit("WRITE")
    append.add(path="part-0.parquet", size=1, partition_values={})
    for late in (second, append):
        with pytest.raises(errors.MetadataChanged):
            late.commit("WRITE")
