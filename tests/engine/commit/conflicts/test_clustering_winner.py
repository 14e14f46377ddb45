"""A commit that lands first and changes the clustering columns: our files must serve the new ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Protocol
from airflow_txlog.storage import MemoryStore
from tests.helpers.vectors import inline

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
PROTOCOL = Protocol(
    min_reader_version=3,
    min_writer_version=7,
    reader_features=["deletionVectors"],
    writer_features=["appendOnly", "clustering", "deletionVectors", "domainMetadata", "invariants"],
)
KNOWS_ID = '{"numRecords":3,"nullCount":{"id":0}}'
KNOWS_BOTH = '{"numRecords":3,"nullCount":{"id":0,"name":0}}'


@pytest.fixture
def table(memory_uri: str, clock: Any) -> Table:
    made = Table.create(MemoryStore(memory_uri), SCHEMA, clock=clock)
    tx = made.begin()
    tx.set_protocol(PROTOCOL)
    tx.set_metadata(
        msgspec.structs.replace(made.snapshot().metadata, configuration={"delta.enableDeletionVectors": "true"})
    )
    tx.add(path="old", size=1, stats=KNOWS_ID)
    tx.commit("SET TBLPROPERTIES")
    cluster(made, "id")
    return made


def cluster(table: Table, *columns: str) -> None:
    text = msgspec.json.encode({"clusteringColumns": [[name] for name in columns]}).decode()
    tx = table.begin()
    tx.set_domain("delta.clustering", text, removed=not columns)
    tx.commit("CLUSTER BY")


def test_a_winner_that_clusters_by_a_column_without_our_statistics_is_a_conflict(table: Table) -> None:
    tx = table.begin()
    tx.add(path="a", size=1, stats=KNOWS_ID)
    cluster(table, "id", "name")
    with pytest.raises(errors.MetadataChanged, match="clustered the table by name") as caught:
        tx.commit("WRITE")
    assert (caught.value.retryable, caught.value.winning_version) == (True, 3)
    assert table.snapshot().version == 3


@pytest.mark.parametrize("columns", [("id", "name"), ("name",), ()])
def test_a_winner_that_clusters_by_columns_that_our_statistics_hold_is_none(
    table: Table, columns: tuple[str, ...]
) -> None:
    tx = table.begin()
    tx.add(path="a", size=1, stats=KNOWS_BOTH)
    cluster(table, *columns)
    assert tx.commit("WRITE") == 4


def test_a_file_that_comes_again_with_rows_deleted_keeps_the_statistics_that_it_has(table: Table) -> None:
    cluster(table, "id", "name")
    tx = table.begin()
    tx.remove("old")
    tx.add(path="old", size=1, stats=KNOWS_ID, deletion_vector=inline([1]))
    assert tx.commit("DELETE") == 4
