"""New metadata of a table that exists switches on what it says, and leaves no row that breaks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Metadata, Protocol, encode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.schema.features import reader_features, writer_features
from airflow_txlog.errors import CommitConflict, InvalidCommit, InvalidProperty, UnsupportedFeature
from tests.helpers.rows import append

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.struct([("x", pa.int32())])),
        ("a", pa.list_(pa.int32())),
        ("m", pa.map_(pa.string(), pa.struct([("y", pa.float64())]))),
    ]
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SCHEMA)


def with_properties(table: Table, **properties: str) -> Metadata:
    metadata = table.snapshot().metadata
    return msgspec.structs.replace(metadata, configuration={**metadata.configuration, **properties})


def with_field(table: Table, place: tuple[Any, ...], **changes: Any) -> Metadata:
    metadata = table.snapshot().metadata
    schema = json.loads(metadata.schema_string or "")
    field = schema
    for part in place:
        field = field[part]
    field.update(changes)
    return msgspec.structs.replace(metadata, schema_string=json.dumps(schema))


def set_metadata(table: Table, metadata: Metadata, **arguments: bool) -> int:
    tx = table.begin()
    tx.set_metadata(metadata, **arguments)
    return tx.commit("SET TBLPROPERTIES")


@pytest.mark.parametrize(
    ("name", "value", "feature", "is_of_readers"),
    [
        ("delta.enableDeletionVectors", "true", "deletionVectors", True),
        ("delta.enableChangeDataFeed", "true", "changeDataFeed", False),
        ("delta.enableInCommitTimestamps", "true", "inCommitTimestamp", False),
        ("delta.enableTypeWidening", "true", "typeWidening", True),
        ("delta.checkpointPolicy", "v2", "v2Checkpoint", True),
        ("delta.constraints.positive", "id > 0", "checkConstraints", False),
        ("delta.feature.clustering", "supported", "clustering", False),
    ],
)
def test_a_property_brings_its_feature_in_the_same_commit(
    table: Table, name: str, value: str, feature: str, is_of_readers: bool
) -> None:
    assert set_metadata(table, with_properties(table, **{name: value})) == 1
    snapshot = Table.open(table.uri).snapshot()
    assert feature in writer_features(snapshot.protocol)
    assert (feature in reader_features(snapshot.protocol)) == is_of_readers
    assert writer_features(snapshot.protocol) >= {"appendOnly", "invariants"}, "those of its old number stay"
    assert snapshot.properties.get(name) == (None if name.startswith("delta.feature.") else value)
    if feature == "clustering":
        assert "domainMetadata" in writer_features(snapshot.protocol)
    append(Table.open(table.uri), [{"id": 1, "s": None}])


def test_a_feature_that_is_listed_already_changes_no_protocol(tmp_path: Path) -> None:
    properties = {"delta.feature.changeDataFeed": "supported", "delta.feature.typeWidening-preview": "supported"}
    table = Table.create(str(tmp_path / "t"), SCHEMA, properties=properties)
    before = table.snapshot().protocol
    enabled = {"delta.enableChangeDataFeed": "true", "delta.enableTypeWidening": "true"}
    set_metadata(table, with_properties(table, **enabled))
    assert Table.open(table.uri).snapshot().protocol == before


def test_legacy_numbers_become_the_names_that_they_stand_for(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, properties={"delta.columnMapping.mode": "name"})
    assert table.snapshot().protocol == Protocol(min_reader_version=2, min_writer_version=5)
    legacy = writer_features(table.snapshot().protocol)
    set_metadata(table, with_properties(table, **{"delta.enableInCommitTimestamps": "true"}))
    found = Table.open(table.uri).snapshot().protocol
    assert (found.min_reader_version, found.reader_features, found.min_writer_version) == (2, None, 7)
    assert set(found.writer_features or ()) == legacy | {"inCommitTimestamp"}
    set_metadata(table, with_properties(table, **{"delta.enableDeletionVectors": "true"}))
    found = Table.open(table.uri).snapshot().protocol
    assert (found.min_reader_version, found.reader_features) == (3, ["columnMapping", "deletionVectors"])


def test_deltalake_reads_and_writes_a_table_whose_protocol_was_completed(table: Table) -> None:
    deltalake = pytest.importorskip("deltalake")
    set_metadata(table, with_properties(table, **{"delta.constraints.positive": "id > 0"}))
    append(table, [{"id": 1, "s": None}])
    theirs = deltalake.DeltaTable(table.uri)
    assert theirs.to_pyarrow_table().num_rows == 1
    with pytest.raises(Exception, match="failed validation check"):
        deltalake.write_deltalake(theirs, pa.Table.from_pylist([{"id": -1}], SCHEMA), mode="append")


def test_a_property_that_another_writer_left_without_its_feature_stays_as_it_is(table: Table) -> None:
    dormant = with_properties(table, **{"delta.enableDeletionVectors": "true"})
    assert table.store.put_if_absent(commit_name(1), encode_commit({"operation": "x"}, [dormant]))
    before = table.snapshot().protocol
    set_metadata(table, with_properties(table, who="me"))
    assert Table.open(table.uri).snapshot().protocol == before
    # And an earlier version in which it did nothing can be restored.
    assert table.restore(version=1) == 3


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"delta.enableIcebergCompatV2": "true"}, UnsupportedFeature),
        ({"delta.feature.collations": "supported"}, UnsupportedFeature),
        ({"delta.appendOnly": "maybe"}, InvalidProperty),
    ],
)
def test_what_would_lock_this_engine_out_is_not_committed(
    table: Table, properties: dict[str, str], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        set_metadata(table, with_properties(table, **properties))
    assert table.snapshot().version == 0


RULES = {
    "the constraint 'positive'": lambda table: with_properties(table, **{"delta.constraints.positive": "id > 0"}),
    "NOT NULL of column 'id'": lambda table: with_field(table, ("fields", 0), nullable=False),
    "NOT NULL of column 's.x'": lambda table: with_field(table, ("fields", 1, "type", "fields", 0), nullable=False),
    "delta.invariants of column 'id'": lambda table: with_field(
        table, ("fields", 0), metadata={"delta.invariants": '{"expression":{"expression":"id > 3"}}'}
    ),
    "delta.generationExpression of column 'id'": lambda table: with_field(
        table, ("fields", 0), metadata={"delta.generationExpression": "s.x"}
    ),
    "NOT NULL of column 'a.element'": lambda table: with_field(table, ("fields", 2, "type"), containsNull=False),
    "NOT NULL of column 'm.value'": lambda table: with_field(table, ("fields", 3, "type"), valueContainsNull=False),
    "the type integer of column 'id'": lambda table: with_field(table, ("fields", 0), type="integer"),
    "the type string of column 's'": lambda table: with_field(table, ("fields", 1), type="string"),
    "the type short of column 'a.element'": lambda table: with_field(table, ("fields", 2, "type"), elementType="short"),
    "the type float of column 'm.value.y'": lambda table: with_field(
        table, ("fields", 3, "type", "valueType", "fields", 0), type="float"
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_live_rows_may_break_is_refused_by_name(table: Table, rule: str) -> None:
    append(table, [{"id": -1, "s": {"x": None}}])
    with pytest.raises(InvalidCommit, match="may break it") as error:
        set_metadata(table, RULES[rule](table))
    assert rule in str(error.value)
    assert table.snapshot().version == 1
    # Rows that the caller has verified, or that leave with the same commit, break nothing.
    assert set_metadata(table, RULES[rule](table), is_checked=True) == 2
    tx = table.begin()
    tx.remove(tx.read())
    tx.set_metadata(with_properties(table, **{"delta.constraints.other": "id > 9"}))
    assert tx.commit("OVERWRITE") == 3


def test_a_rule_that_was_there_before_is_not_new(table: Table) -> None:
    set_metadata(table, with_properties(table, **{"delta.constraints.positive": "id > 0"}))
    append(table, [{"id": 1, "s": None}])
    assert set_metadata(table, with_properties(table, who="me")) == 3


def test_a_row_that_lands_before_a_new_rule_conflicts_with_it(table: Table) -> None:
    tx = table.begin()
    tx.set_metadata(with_properties(table, **{"delta.constraints.positive": "id > 0"}))
    append(Table.open(table.uri), [{"id": -1, "s": None}])
    with pytest.raises(CommitConflict):
        tx.commit("SET TBLPROPERTIES")


def test_a_restore_brings_rules_back_with_the_rows_that_keep_them(table: Table) -> None:
    set_metadata(table, with_properties(table, **{"delta.constraints.positive": "id > 0"}))
    append(table, [{"id": 1, "s": None}])
    metadata = table.snapshot().metadata
    without = {name: value for name, value in metadata.configuration.items() if "constraints" not in name}
    set_metadata(table, msgspec.structs.replace(metadata, configuration=without))
    append(table, [{"id": -1, "s": None}])
    table.restore(version=2)
    assert "delta.constraints.positive" in Table.open(table.uri).snapshot().properties
    assert table.to_arrow().column("id").to_pylist() == [1]
