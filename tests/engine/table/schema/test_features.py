"""Features: what is refused by name, what is accepted because nothing uses it, and what a new table asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Metadata, Protocol, encode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.schema.features import (
    check_readable,
    check_rows_have_place,
    check_writable,
    protocol_for,
    with_features,
    writer_features,
)
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import ArrayType, DataType, MapType, Primitive, StructField, StructType
from airflow_txlog.errors import UnsupportedFeature

FIELD = {"name": "id", "type": "long", "nullable": True, "metadata": {}}


def metadata(configuration: dict[str, str] | None = None, **field_metadata: Any) -> Metadata:
    field = {**FIELD, "metadata": field_metadata}
    return Metadata(
        id="t",
        schema_string=json.dumps({"type": "struct", "fields": [field]}),
        partition_columns=[],
        configuration=configuration or {},
    )


def features(*names: str, reader: bool = False) -> Protocol:
    return Protocol(
        min_reader_version=3 if reader else 1,
        min_writer_version=7,
        reader_features=list(names) if reader else None,
        writer_features=list(names),
    )


def readable(protocol: Protocol, what: Metadata) -> None:
    check_readable(protocol, what, parse_schema(what.schema_string), "memory://t")


def writable(protocol: Protocol, what: Metadata) -> None:
    check_writable(protocol, what, parse_schema(what.schema_string), "memory://t")


LEGACY = Protocol(min_reader_version=2, min_writer_version=6)


@pytest.mark.parametrize(
    "name",
    [
        "adaptiveMetadata-preview",
        "anythingNew",
        "catalogOwned-preview",
        "coordinatedCommits",
        "geospatial",
    ],
)
def test_a_reader_feature_that_we_do_not_know_is_refused_by_name(name: str) -> None:
    with pytest.raises(errors.UnsupportedFeature, match=name) as caught:
        readable(features(name, reader=True), metadata())
    assert caught.value.feature == name
    assert caught.value.needed_to == "read"
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "name", ["anythingNew", "collations", "collations-preview", "coordinatedCommits-preview", "icebergCompatV3"]
)
def test_a_writer_feature_that_we_do_not_know_is_readable_and_not_writable(name: str) -> None:
    readable(features(name), metadata())
    with pytest.raises(errors.UnsupportedFeature, match=name) as caught:
        writable(features(name), metadata())
    assert caught.value.needed_to == "write"


def test_a_dry_vacuum_needs_no_writable_table_and_spares_the_metadata_of_iceberg(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    changed = {**table.snapshot().properties, "delta.enableIcebergCompatV2": "true"}
    theirs = msgspec.structs.replace(table.snapshot().metadata, configuration=changed)
    assert table.store.put_if_absent(commit_name(1), encode_commit({"operation": "x"}, [theirs]))
    for name in ("metadata/v1.metadata.json", "orphan.parquet"):
        table.store.put(name, b"x")
        os.utime(tmp_path / "t" / name, (1, 1))
    with pytest.raises(errors.UnsupportedFeature, match="icebergCompatV2"):
        table.vacuum()
    found = table.vacuum(dry_run=True)
    assert [path.rpartition("/")[2] for path in found.files] == ["orphan.parquet"]


@pytest.mark.parametrize(
    ("feature", "what"),
    [
        ("rowTracking", metadata({"delta.enableRowTracking": "true"})),
        ("icebergCompatV2", metadata({"delta.enableIcebergCompatV2": "true"})),
    ],
)
def test_a_rule_of_the_table_that_we_do_not_enforce_makes_it_read_only(feature: str, what: Metadata) -> None:
    readable(LEGACY, what)
    with pytest.raises(errors.UnsupportedFeature, match=feature):
        writable(LEGACY, what)


@pytest.mark.parametrize(
    ("feature", "what"),
    [
        ("checkConstraints", metadata({"delta.constraints.positive": "id > 0"})),
        ("invariants", metadata(**{"delta.invariants": '{"expression":{"expression":"id > 0"}}'})),
        ("generatedColumns", metadata(**{"delta.generationExpression": "1"})),
        ("identityColumns", metadata(**{"delta.identity.start": 1})),
        ("allowColumnDefaults", metadata(CURRENT_DEFAULT="1")),
    ],
)
def test_a_table_with_rules_for_rows_is_writable(feature: str, what: Metadata) -> None:
    """What writes rows keeps the rules (tests/jobs/sql/test_table_rules.py); a table without rows is no danger."""
    writable(LEGACY, what)
    writable(features(feature), what)


MAPPED = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping_is_honoured_where_the_protocol_lists_it(mode: str) -> None:
    writable(LEGACY, metadata())
    writable(LEGACY, metadata({"delta.columnMapping.mode": mode}, **MAPPED))
    writable(features("columnMapping", reader=True), metadata({"delta.columnMapping.mode": mode}, **MAPPED))
    # Where the protocol forgot to say so, some readers go by the one names and some by the others.
    with pytest.raises(errors.CorruptTable, match="columnMapping"):
        readable(Protocol(min_reader_version=1, min_writer_version=2), metadata({"delta.columnMapping.mode": mode}))


@pytest.mark.parametrize("name", ["typeWidening", "typeWidening-preview"])
def test_type_widening_is_honoured(name: str) -> None:
    changes = [{"fromType": "integer", "toType": "long", "tableVersion": 3}]
    writable(features(name, reader=True), metadata(**{"delta.typeChanges": changes}))


@pytest.mark.parametrize(
    ("before", "after"), [("long", "integer"), ("long", "double"), ("integer", "float"), ("string", "binary")]
)
def test_a_change_of_type_that_the_protocol_does_not_list_is_refused(before: str, after: str) -> None:
    changes = [{"fromType": before, "toType": after}]
    with pytest.raises(errors.UnsupportedFeature, match=f"from {before} to {after}") as caught:
        readable(features("typeWidening", reader=True), metadata(**{"delta.typeChanges": changes}))
    assert caught.value.feature == "typeWidening"


@pytest.mark.parametrize("changes", ["?", [{"fromType": "integer"}], [3]])
def test_a_change_of_type_that_says_nothing_is_a_corrupt_table(changes: Any) -> None:
    with pytest.raises(errors.CorruptTable, match=r"typeChanges"):
        readable(features("typeWidening", reader=True), metadata(**{"delta.typeChanges": changes}))


@pytest.mark.parametrize(("reader", "writer"), [(4, 7), (99, 7), (1, 8)])
def test_a_version_of_the_future_is_refused(reader: int, writer: int) -> None:
    with pytest.raises(errors.UnsupportedFeature, match=r"(reader|writer) version"):
        writable(Protocol(min_reader_version=reader, min_writer_version=writer), metadata())


def test_a_new_table_asks_for_the_lowest_protocol_that_it_needs() -> None:
    plain = protocol_for(parse_schema(metadata().schema_string), {})
    assert (plain.min_reader_version, plain.min_writer_version) == (1, 2)
    nested = {"type": "array", "elementType": "timestamp_ntz", "containsNull": True}
    schema = parse_schema(json.dumps({"type": "struct", "fields": [{**FIELD, "type": nested}]}))
    ntz = protocol_for(schema, {})
    assert (ntz.min_reader_version, ntz.min_writer_version) == (3, 7)
    assert ntz.reader_features == ["timestampNtz"]
    timed = protocol_for(parse_schema(metadata().schema_string), {"delta.enableInCommitTimestamps": "true"})
    assert (timed.min_reader_version, timed.min_writer_version) == (1, 7)
    assert timed.reader_features is None


@pytest.mark.parametrize(
    ("properties", "reader", "writer", "both", "writer_only"),
    [
        ({"delta.columnMapping.mode": "name"}, 2, 5, None, None),
        ({"delta.enableDeletionVectors": "true"}, 3, 7, ["deletionVectors"], []),
        ({"delta.enableDeletionVectors": "false"}, 1, 2, None, None),
        ({"delta.checkpointPolicy": "v2"}, 3, 7, ["v2Checkpoint"], []),
        ({"delta.checkpointPolicy": "classic"}, 1, 2, None, None),
        ({"delta.enableTypeWidening": "true"}, 3, 7, ["typeWidening"], []),
        ({"delta.enableRowTracking": "true"}, 1, 7, None, ["domainMetadata", "rowTracking"]),
        ({"delta.feature.domainMetadata": "supported"}, 1, 7, None, ["domainMetadata"]),
        ({"delta.feature.timestampNtz": "supported"}, 3, 7, ["timestampNtz"], []),
        ({"delta.constraints.positive": "id > 0"}, 1, 7, None, ["checkConstraints"]),
        (
            {"delta.columnMapping.mode": "id", "delta.enableInCommitTimestamps": "true"},
            3,
            7,
            ["columnMapping"],
            ["inCommitTimestamp"],
        ),
    ],
)
def test_a_property_that_asks_for_a_feature_asks_for_its_protocol(
    properties: dict[str, str], reader: int, writer: int, both: list[str] | None, writer_only: list[str] | None
) -> None:
    found = protocol_for(parse_schema(metadata().schema_string or ""), properties)
    assert (found.min_reader_version, found.min_writer_version) == (reader, writer)
    assert found.reader_features == both
    if writer_only is None:
        assert found.writer_features is None
    else:
        assert found.writer_features == sorted({"appendOnly", "invariants", *(both or []), *writer_only})


@pytest.mark.parametrize(
    ("feature", "marks"),
    [
        ("generatedColumns", {"delta.generationExpression": "1"}),
        ("identityColumns", {"delta.identity.start": 1}),
        ("allowColumnDefaults", {"CURRENT_DEFAULT": "1"}),
    ],
)
def test_a_column_with_a_rule_asks_for_its_feature(feature: str, marks: dict[str, Any]) -> None:
    found = protocol_for(parse_schema(metadata(**marks).schema_string or ""), {})
    assert found.writer_features == sorted({"appendOnly", "invariants", feature})


def test_a_refused_table_stages_nothing(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    changed = {**table.snapshot().properties, "delta.enableIcebergCompatV2": "true"}
    theirs = msgspec.structs.replace(table.snapshot().metadata, configuration=changed)
    assert table.store.put_if_absent(commit_name(1), encode_commit({"operation": "x"}, [theirs]))
    before = sorted(path for path in (tmp_path / "t").rglob("*"))
    with pytest.raises(errors.UnsupportedFeature, match="icebergCompatV2"):
        table.begin()
    assert sorted(path for path in (tmp_path / "t").rglob("*")) == before
    assert table.to_arrow().num_rows == 0


VOID, LONG = Primitive.VOID, Primitive.LONG


def struct(**members: DataType) -> StructType:
    return StructType(tuple(StructField(name, kind) for name, kind in members.items()))


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        (struct(id=LONG, c=ArrayType(VOID)), "c"),
        (struct(id=LONG, c=MapType(LONG, VOID)), "c"),
        (struct(id=LONG, c=MapType(VOID, LONG)), "c"),
        (struct(id=LONG, c=struct(a=VOID, b=VOID)), "c"),
        (struct(id=LONG, c=ArrayType(struct(a=LONG, b=struct(x=VOID)))), "c.element.b"),
        (struct(id=LONG, c=MapType(LONG, ArrayType(ArrayType(VOID)))), "c.value.element"),
        (struct(p=LONG, c=VOID), "c"),
    ],
)
def test_what_holds_nothing_but_void_is_refused_by_name(schema: StructType, column: str) -> None:
    """Protocol RFC "Void Type": writers must reject operations that would write new data files in those cases."""
    with pytest.raises(UnsupportedFeature, match=f"column '{column}' holds nothing but void") as caught:
        check_rows_have_place(schema, ["P"], "t")
    assert caught.value.needed_to == "write"


@pytest.mark.parametrize(
    "schema",
    [
        struct(id=LONG, c=VOID),
        struct(id=LONG, c=struct(a=VOID, b=LONG)),
        struct(id=LONG, c=ArrayType(struct(a=VOID, b=LONG))),
        struct(id=LONG, p=VOID),
    ],
)
def test_void_beside_something_else_is_written(schema: StructType) -> None:
    check_rows_have_place(schema, ["p"], "t")


def test_numbers_of_a_table_with_identity_columns_imply_no_column_mapping() -> None:
    before = Protocol(min_reader_version=1, min_writer_version=6)
    assert "columnMapping" not in writer_features(before)
    assert "identityColumns" in writer_features(before)
    after = with_features(before, ["rowTracking"])
    assert (after.min_reader_version, after.reader_features) == (1, None)
    assert with_features(before, []) == before
    assert "columnMapping" in writer_features(Protocol(min_reader_version=2, min_writer_version=6))
