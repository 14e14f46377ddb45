"""Clustering: our files must serve the columns of a commit that lands first, whatever the case of their names."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.clustering import check_statistics, clustering_columns, indexed_columns
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


# --- names in any case ----------------------------------------------------------------------------------------------


NESTED = pa.schema([("id", pa.int64()), ("place", pa.struct([("City", pa.string())]))])
WITHOUT_VECTORS = Protocol(
    min_reader_version=1, min_writer_version=7, writer_features=["appendOnly", "clustering", "domainMetadata"]
)
STATS = '{"numRecords":3,"nullCount":{"id":0,"place":{"City":0}}}'


def clustered(uri: str, clock: Any, stats_columns: str, path: list[str]) -> Table:
    made = Table.create(MemoryStore(uri), NESTED, clock=clock)
    tx = made.begin()
    tx.set_protocol(WITHOUT_VECTORS)
    properties = {"delta.dataSkippingStatsColumns": stats_columns}
    tx.set_metadata(msgspec.structs.replace(made.snapshot().metadata, configuration=properties))
    tx.set_domain("delta.clustering", msgspec.json.encode({"clusteringColumns": [path]}).decode())
    tx.commit("CLUSTER BY")
    return made


@pytest.mark.parametrize(
    ("stats_columns", "path"), [("ID", ["id"]), ("Place.CITY", ["place", "City"]), ("PLACE", ["place", "city"])]
)
def test_a_clustering_column_that_is_named_in_another_case_has_statistics(
    memory_uri: str, clock: Any, stats_columns: str, path: list[str]
) -> None:
    table = clustered(memory_uri, clock, stats_columns, path)
    check_statistics([tuple(path)], table.snapshot().delta_schema, table.snapshot().table_properties)
    tx = table.begin()
    tx.add(path="a", size=1, stats=STATS)
    assert tx.commit("WRITE") == 2


def test_no_column_is_chosen_of_which_others_would_write_no_statistics(memory_uri: str, clock: Any) -> None:
    snapshot = clustered(memory_uri, clock, "ID", ["place", "City"]).snapshot()
    with pytest.raises(errors.UnsupportedFeature, match=r"clustered by \['place.City'\]"):
        check_statistics([("place", "City")], snapshot.delta_schema, snapshot.table_properties)


@pytest.mark.parametrize(
    ("properties", "path", "expected"),
    [
        ({"delta.dataSkippingStatsColumns": "ID"}, ["PLACE", "city"], [("ID",), ("place", "City")]),
        ({"delta.dataSkippingStatsColumns": "place"}, ["place", "City"], [("place",)]),
        ({"delta.dataSkippingNumIndexedCols": "1"}, ["place", "City"], [("id",), ("place", "City")]),
        ({"delta.dataSkippingNumIndexedCols": "0"}, ["id"], [("id",)]),
        ({"delta.dataSkippingNumIndexedCols": "0"}, None, None),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, ["id"], None),
        ({}, ["id"], None),
    ],
)
def test_our_files_have_statistics_of_clustering_columns_whatever_the_properties_leave_out(
    memory_uri: str, clock: Any, properties: dict[str, str], path: list[str] | None, expected: list[Any] | None
) -> None:
    made = Table.create(MemoryStore(memory_uri), NESTED, clock=clock)
    tx = made.begin()
    tx.set_protocol(WITHOUT_VECTORS)
    tx.set_metadata(msgspec.structs.replace(made.snapshot().metadata, configuration=properties))
    if path is not None:
        tx.set_domain("delta.clustering", msgspec.json.encode({"clusteringColumns": [path]}).decode())
    tx.commit("CLUSTER BY")
    snapshot = made.snapshot()
    columns = clustering_columns(snapshot.state.domains.values(), made.uri)
    with pytest.raises(errors.CorruptTable, match="gone"):
        indexed_columns(snapshot.delta_schema, snapshot.table_properties, [*columns, ("gone",)])
    found = indexed_columns(snapshot.delta_schema, snapshot.table_properties, columns)
    assert found == (None if expected is None else tuple(expected))


def test_a_file_without_a_clustering_column_s_statistics_is_refused_in_any_case(memory_uri: str, clock: Any) -> None:
    tx = clustered(memory_uri, clock, "place", ["PLACE", "city"]).begin()
    tx.add(path="a", size=1, stats='{"numRecords":3,"nullCount":{"place":{}}}')
    with pytest.raises(errors.InvalidCommit, match=r"clustered by PLACE\.city"):
        tx.commit("WRITE")
