"""Change files in a commit: where they may be, where they must be, and what they are called."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.log.actions import Cdc
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.engine.table.schema.features import writer_features
from tests.helpers.vectors import inline

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def table(memory_uri: str, clock: Any) -> Table:
    """Version 1 holds the file a."""
    table = Table.create(memory_uri, SCHEMA, ["day"], FEED | {"delta.enableDeletionVectors": "true"}, clock=clock)
    tx = table.begin()
    add(tx, "a")
    tx.commit("WRITE")
    return table


def add(tx: Transaction, path: str, **more: Any) -> None:
    tx.add(path=path, partition_values={"day": "1"}, size=1, stats='{"numRecords":10}', **more)


def change(path: str = "_change_data/day=1/c", **more: Any) -> Cdc:
    fields: dict[str, Any] = {"path": path, "partition_values": {"day": "1"}, "size": 1, "data_change": False}
    return Cdc(**fields | more)


def refused(tx: Transaction, kind: type[errors.TxlogError], match: str | None, operation: str = "DELETE") -> None:
    with pytest.raises(kind, match=match) as caught:
        tx.commit(operation)
    assert not caught.value.retryable


def test_a_new_table_with_the_feed_lists_its_feature(table: Table) -> None:
    assert "changeDataFeed" in writer_features(table.snapshot().protocol)


def test_change_files_stand_in_the_commit_and_are_no_files_of_the_table(table: Table) -> None:
    tx = table.begin()
    tx.read("day = '1'")
    tx.remove("a")
    add(tx, "b")
    tx.add_changes([change("_change_data/x%20y")])
    assert tx.commit("DELETE") == 2
    (last,) = changes_since(table.snapshot(), 1)
    assert [each.path for each in last.cdc] == ["_change_data/x%20y"]
    assert last.cdc[0].data_change is False
    assert [row["path"] for row in table.snapshot().files(columns=["path"]).to_pylist()] == ["b"]
    assert last.info["isBlindAppend"] is False


def test_a_commit_with_change_files_is_no_blind_append(table: Table) -> None:
    tx = table.begin()
    add(tx, "b")
    tx.add_changes([change()])
    tx.commit("MERGE")
    (last,) = changes_since(table.snapshot(), 1)
    assert last.info["isBlindAppend"] is False


def test_a_table_without_the_feed_takes_no_change_files(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, ["day"], clock=clock)
    tx = table.begin()
    add(tx, "a")
    tx.add_changes([change()])
    refused(tx, errors.InvalidCommit, "no change data feed", "WRITE")


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (change("day=1/c"), errors.InvalidCommit),
        (change("_change_data/../c"), errors.InvalidCommit),
        (change("_change_data"), errors.InvalidCommit),
        (change(data_change=True), errors.InvalidCommit),
        (change(partition_values={}), errors.PartitionMismatch),
    ],
    ids=["outside of its folder", "climbing out", "the folder", "data change", "no partition"],
)
def test_a_change_file_that_a_reader_would_take_wrongly_is_refused(
    table: Table, bad: Cdc, kind: type[errors.TxlogError]
) -> None:
    tx = table.begin()
    tx.remove("a")
    add(tx, "b")
    tx.add_changes([bad])
    refused(tx, kind, None)


def test_a_change_file_named_twice_is_refused(table: Table) -> None:
    tx = table.begin()
    tx.remove("a")
    tx.add_changes([change("_change_data/a%20b"), change(f"{table.uri}/_change_data/a b")])
    refused(tx, errors.DuplicateActions, "twice")


@pytest.mark.parametrize("operation", ["DELETE", "UPDATE", "MERGE"])
def test_a_commit_that_copies_rows_and_tells_no_changes_is_refused(table: Table, operation: str) -> None:
    tx = table.begin()
    tx.remove("a")
    add(tx, "b")
    refused(tx, errors.InvalidCommit, "which rows changed", operation)


def test_whole_files_new_vectors_and_compactions_tell_their_changes_themselves(table: Table) -> None:
    tx = table.begin()
    tx.remove("a")
    add(tx, "a", deletion_vector=inline([1, 2]))
    tx.commit("DELETE")
    tx = table.begin()
    tx.remove("a", data_change=False)
    add(tx, "c", data_change=False)
    tx.commit("OPTIMIZE")
    tx = table.begin()
    tx.remove("c")
    assert tx.commit("DELETE") == 4


def test_a_column_that_the_feed_would_hide_keeps_the_feed_off(memory_uri: str, clock: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("_Commit_Version", pa.int64())])
    with pytest.raises(errors.SchemaMismatch, match="_Commit_Version"):
        Table.create(memory_uri, schema, properties=FEED, clock=clock)
    table = Table.create(memory_uri, schema, clock=clock)
    metadata = table.snapshot().metadata
    tx = table.begin()
    tx.set_metadata(msgspec.structs.replace(metadata, configuration={**metadata.configuration, **FEED}))
    refused(tx, errors.SchemaMismatch, "_Commit_Version", "SET TBLPROPERTIES")


def test_a_column_that_the_feed_would_hide_is_not_added(table: Table) -> None:
    tx = table.begin()
    with pytest.raises(errors.SchemaMismatch, match="_change_type"):
        tx.evolve_schema(SCHEMA.append(pa.field("_change_type", pa.string())))
    assert tx.metadata == table.snapshot().metadata
