"""Clustering columns are among the rules under which work is staged, and kept."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Protocol
from airflow_txlog.jobs.resume.memory import Memory, TableRules, rules_at
from airflow_txlog.storage import MemoryStore

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
