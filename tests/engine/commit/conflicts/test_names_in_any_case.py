"""Delta's names mean the same in any case, also where a property or a domain names clustering columns."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.clustering import check_clustering
from airflow_txlog.engine.log.actions import Protocol
from airflow_txlog.storage import MemoryStore

SCHEMA = pa.schema([("id", pa.int64()), ("place", pa.struct([("City", pa.string())]))])
PROTOCOL = Protocol(
    min_reader_version=1, min_writer_version=7, writer_features=["appendOnly", "clustering", "domainMetadata"]
)
STATS = '{"numRecords":3,"nullCount":{"id":0,"place":{"City":0}}}'


def clustered(uri: str, clock: Any, stats_columns: str, path: list[str]) -> Table:
    made = Table.create(MemoryStore(uri), SCHEMA, clock=clock)
    tx = made.begin()
    tx.set_protocol(PROTOCOL)
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
    check_clustering(table.snapshot())
    tx = table.begin()
    tx.add(path="a", size=1, stats=STATS)
    assert tx.commit("WRITE") == 2


def test_a_clustering_column_without_statistics_is_refused_in_any_case(memory_uri: str, clock: Any) -> None:
    table = clustered(memory_uri, clock, "ID", ["place", "City"])
    with pytest.raises(errors.UnsupportedFeature, match=r"clustered by \['place.City'\]"):
        check_clustering(table.snapshot())


def test_a_file_without_a_clustering_column_s_statistics_is_refused_in_any_case(memory_uri: str, clock: Any) -> None:
    tx = clustered(memory_uri, clock, "place", ["PLACE", "city"]).begin()
    tx.add(path="a", size=1, stats='{"numRecords":3,"nullCount":{"place":{}}}')
    with pytest.raises(errors.InvalidCommit, match=r"clustered by PLACE\.city"):
        tx.commit("WRITE")
