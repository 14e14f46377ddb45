"""Features: what is refused by name, what is accepted because nothing uses it, and what a new table asks for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.table.features import check_readable, check_writable, protocol_for
from airflow_txlog.engine.table.schema import parse_schema

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
    "name", ["variantType", "variantShredding", "catalogManaged", "geospatial", "anythingNew", "coordinatedCommits"]
)
def test_a_reader_feature_that_we_do_not_know_is_refused_by_name(name: str) -> None:
    with pytest.raises(errors.UnsupportedFeature, match=name) as caught:
        readable(features(name, reader=True), metadata())
    assert caught.value.feature == name
    assert caught.value.needed_to == "read"
    assert not caught.value.retryable


@pytest.mark.parametrize("name", ["rowTracking", "clustering", "icebergCompatV3", "collations", "anythingNew"])
def test_a_writer_feature_that_we_do_not_know_is_readable_and_not_writable(name: str) -> None:
    readable(features(name), metadata())
    with pytest.raises(errors.UnsupportedFeature, match=name) as caught:
        writable(features(name), metadata())
    assert caught.value.needed_to == "write"


@pytest.mark.parametrize(
    ("feature", "what"),
    [
        ("checkConstraints", metadata({"delta.constraints.positive": "id > 0"})),
        ("changeDataFeed", metadata({"delta.enableChangeDataFeed": "true"})),
        ("rowTracking", metadata({"delta.enableRowTracking": "true"})),
        ("icebergCompatV2", metadata({"delta.enableIcebergCompatV2": "true"})),
        ("invariants", metadata(**{"delta.invariants": '{"expression":{"expression":"id > 0"}}'})),
        ("generatedColumns", metadata(**{"delta.generationExpression": "1"})),
        ("identityColumns", metadata(**{"delta.identity.start": 1})),
        ("allowColumnDefaults", metadata(CURRENT_DEFAULT="1")),
    ],
)
def test_a_rule_of_the_table_that_we_do_not_enforce_makes_it_read_only(feature: str, what: Metadata) -> None:
    readable(LEGACY, what)
    with pytest.raises(errors.UnsupportedFeature, match=feature):
        writable(LEGACY, what)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping_is_refused_where_it_is_used_and_accepted_where_it_is_not(mode: str) -> None:
    writable(LEGACY, metadata())
    with pytest.raises(errors.UnsupportedFeature, match="columnMapping"):
        readable(LEGACY, metadata({"delta.columnMapping.mode": mode}))
    # Even where the protocol forgot to say so: reading by the wrong names would give null columns.
    with pytest.raises(errors.UnsupportedFeature, match="columnMapping"):
        readable(Protocol(min_reader_version=1, min_writer_version=2), metadata({"delta.columnMapping.mode": mode}))


def test_type_widening_is_refused_where_a_column_was_widened() -> None:
    protocol = features("typeWidening", reader=True)
    writable(protocol, metadata())
    with pytest.raises(errors.UnsupportedFeature, match="typeWidening"):
        readable(protocol, metadata(**{"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}))


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


def test_a_live_deletion_vector_is_refused_before_a_row_is_read(golden_folder: Path, tmp_path: Path) -> None:
    source = golden_folder / "dv-partitioned-with-checkpoint"
    if not source.is_dir():
        pytest.skip("this golden table is not here")
    with pytest.raises(errors.UnsupportedFeature, match="deletionVectors"):
        Table.open(shutil.copytree(source, tmp_path / "t"))


def test_a_refused_table_stages_nothing(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    tx = table.begin()
    changed = {**table.snapshot().properties, "delta.constraints.positive": "id > 0"}
    from msgspec.structs import replace

    tx.set_metadata(replace(table.snapshot().metadata, configuration=changed))
    tx.commit("ADD CONSTRAINT")
    before = sorted(path for path in (tmp_path / "t").rglob("*"))
    with pytest.raises(errors.UnsupportedFeature, match="checkConstraints"):
        table.begin()
    assert sorted(path for path in (tmp_path / "t").rglob("*")) == before
    assert table.to_arrow().num_rows == 0
