"""A poller that follows a table lists what is new to it, where times need nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table, changes_since
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import TableReplaced, VersionNotFound
from tests.helpers.counting import CountingStore

SCHEMA = pa.schema([("id", pa.int64())])
TIMED = {"delta.enableInCommitTimestamps": "true"}


def table_of(uri: str, clock: Any, properties: dict[str, str]) -> tuple[CountingStore, Table]:
    """Version 6."""
    store = CountingStore(uri, clock=clock)
    table = Table.create(store, SCHEMA, properties=properties, clock=clock)
    for number in range(1, 7):
        clock.time_ms += 1000
        tx = table.begin()
        tx.add(path=f"f{number}", partition_values={}, size=1)
        tx.commit("WRITE")
    store.take()
    return store, table


def log(version: int) -> str:
    return commit_name(version).removesuffix(".json")


def test_changes_with_in_commit_timestamps_list_from_the_first_version_that_is_wanted(
    memory_uri: str, clock: Any
) -> None:
    store, table = table_of(memory_uri, clock, TIMED)
    snapshot = table.snapshot()
    store.take()
    found = list(changes_since(snapshot, 4))
    assert store.take() == [f"list {log(5)}", f"read {commit_name(5)}", f"read {commit_name(6)}"]
    assert [each.timestamp_ms for each in found] == [table.snapshot(each).timestamp_ms for each in (5, 6)]


def test_changes_before_the_first_in_commit_timestamp_have_the_times_of_the_whole_log(
    memory_uri: str, clock: Any
) -> None:
    store, table = table_of(memory_uri, clock, {})
    tx = table.begin()
    tx.set_metadata(msgspec.structs.replace(table.snapshot().metadata, configuration=TIMED))
    tx.commit("SET TBLPROPERTIES")
    # As after a copy of the table: the first file is the youngest.
    clock.time_ms += 100_000
    store.put(commit_name(0), store.read(commit_name(0)))
    table = Table.open(store, clock=clock)
    snapshot = table.snapshot()
    store.take()
    for start in range(-1, 7):
        moments = [each.timestamp_ms for each in changes_since(snapshot, start)]
        lists = [request for request in store.take() if request.startswith("list")]
        assert lists == [f"list {log(start + 1 if start == 6 else 0)}"][: 7 - start]
        assert moments == [table.snapshot(version).timestamp_ms for version in range(start + 1, 8)]
        store.take()


def test_a_commit_that_owes_its_in_commit_timestamp_has_the_time_of_its_file(memory_uri: str, clock: Any) -> None:
    store, _ = table_of(memory_uri, clock, TIMED)
    lines = [json.loads(line) for line in store.read(commit_name(6)).splitlines()]
    for line in lines:
        line.get("commitInfo", {}).pop("inCommitTimestamp", None)
    clock.time_ms -= 50_000
    store.put(commit_name(6), "\n".join(map(json.dumps, lines)).encode())
    snapshot = Table.open(store, clock=clock).snapshot()
    [last] = changes_since(snapshot, 5)
    assert last.timestamp_ms == snapshot.timestamp_ms


def test_changes_of_a_log_that_was_cleaned_or_replaced_are_errors_all_the_same(memory_uri: str, clock: Any) -> None:
    store, table = table_of(memory_uri, clock, TIMED)
    snapshot = table.snapshot()
    store.delete(commit_name(4))
    with pytest.raises(VersionNotFound) as caught:
        changes_since(snapshot, 3)
    assert caught.value.earliest == 5
    clock.time_ms += 1
    store.put(commit_name(6), store.read(commit_name(5)))
    with pytest.raises(TableReplaced):
        changes_since(snapshot, 4)
