"""Alone in showing which changes of a table's rules saved work survives; what it keeps of it is in `test_histories`."""

from __future__ import annotations

import json

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Format, Metadata, Protocol
from airflow_txlog.jobs.resume.memory import Memory, TableRules, rules_at, rules_of, still_holds
from airflow_txlog.storage import MemoryStore

SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})


def rules(
    *, schema: str = SCHEMA, protocol: Protocol | None = None, configuration: dict[str, str] | None = None
) -> TableRules:
    metadata = Metadata(
        id="one", format=Format(), schema_string=schema, partition_columns=[], configuration=configuration or {}
    )
    return rules_of(protocol or Protocol(min_reader_version=1, min_writer_version=2), metadata)


LISTED = ["deletionVectors", "columnMapping", "v2Checkpoint", "inCommitTimestamp", "appendOnly", "domainMetadata"]
UNLISTED = ["rowTracking", "materializePartitionColumns", "checkConstraints", "typeWidening", "somethingNew"]


def with_feature(name: str) -> TableRules:
    protocol = Protocol(min_reader_version=1, min_writer_version=7, writer_features=["appendOnly", "invariants", name])
    return rules(protocol=protocol)


@pytest.mark.parametrize("name", LISTED)
def test_a18_a_listed_feature_may_be_added(name: str) -> None:
    assert still_holds(rules(), with_feature(name))


@pytest.mark.parametrize("name", UNLISTED)
def test_a18_any_other_feature_may_not(name: str) -> None:
    assert not still_holds(rules(), with_feature(name))


def test_a18_a_feature_that_went_away_empties_the_memory() -> None:
    assert not still_holds(with_feature("deletionVectors"), rules())


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("delta.checkpointPolicy", "v2", True),
        ("delta.enableDeletionVectors", "true", True),
        ("delta.enableInCommitTimestamps", "true", True),
        ("delta.inCommitTimestampEnablementVersion", "3", True),
        ("delta.enableChangeDataFeed", "true", False),
        ("delta.isolationLevel", "WriteSerializable", False),
        ("delta.columnMapping.mode", "name", False),
        ("delta.enableRowTracking", "true", False),
    ],
)
def test_a18_of_the_properties_only_the_named_ones_may_change(name: str, value: str, holds: bool) -> None:
    assert still_holds(rules(), rules(configuration={name: value})) is holds


def test_a18_only_the_high_water_mark_of_an_identity_column_may_change_in_the_schema() -> None:
    def identity(mark: int) -> str:
        metadata = {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.highWaterMark": mark}
        return json.dumps(
            {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": metadata}]}
        )

    assert still_holds(rules(schema=identity(1)), rules(schema=identity(9)))
    assert not still_holds(rules(schema=identity(1)), rules())


def test_rules_survive_their_own_plain_form() -> None:
    found = rules(configuration={"delta.appendOnly": "true"})
    assert msgspec.json.decode(msgspec.json.encode(found), type=TableRules) == found


# --- clustering -----------------------------------------------------------------------------------------------------


PROTOCOL = Protocol(
    min_reader_version=1,
    min_writer_version=7,
    writer_features=["appendOnly", "clustering", "domainMetadata", "invariants"],
)


@pytest.fixture
def table(memory_uri: str) -> Table:
    made = Table.create(MemoryStore(memory_uri), pa.schema([("id", pa.int64()), ("name", pa.string())]))
    tx = made.begin()
    tx.set_protocol(PROTOCOL)
    tx.commit("ADD FEATURE")
    return made


def set_domain(table: Table, name: str, text: str) -> TableRules:
    tx = table.begin()
    tx.set_domain(name, text)
    tx.commit("SET DOMAIN")
    return rules_at(table.snapshot())


def test_nothing_that_was_staged_is_kept_when_the_clustering_columns_have_changed(table: Table) -> None:
    memory = Memory()
    memory.begin(rules_at(table.snapshot()))
    by_id = set_domain(table, "delta.clustering", '{"clusteringColumns":[["id"]]}')
    assert not memory.begin(by_id)
    # The same columns in another spelling, and a domain of another engine, change nothing.
    assert memory.begin(set_domain(table, "delta.clustering", '{ "clusteringColumns": [["id"]], "more": 1 }'))
    assert memory.begin(set_domain(table, "mine", "x"))
    assert not memory.begin(set_domain(table, "delta.clustering", '{"clusteringColumns":[["id"],["name"]]}'))


def test_saved_work_tells_its_clustering_columns(table: Table) -> None:
    rules = set_domain(table, "delta.clustering", '{"clusteringColumns":[["id"],["a","b"]]}')
    assert msgspec.json.decode(msgspec.json.encode(rules), type=TableRules) == rules
