"""Listings that lag behind the store: what was read by its name counts, and nothing permanent follows from a gap."""

from __future__ import annotations

import builtins
import uuid
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import LOG_DIRECTORY, commit_name
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.storage import FileInfo, MemoryStore

SCHEMA = pa.schema([("id", pa.int64())])


class LaggingStore(MemoryStore):
    """Lists the log as it was some time ago: without the commits from version `hidden_from` on."""

    hidden_from: int | None = None

    def list(self, directory: str, *, start_from: str | None = None) -> builtins.list[FileInfo]:
        found = super().list(directory, start_from=start_from)
        if self.hidden_from is None or directory != LOG_DIRECTORY:
            return found
        return [info for info in found if info.path < commit_name(self.hidden_from)]


@pytest.fixture
def store() -> LaggingStore:
    return LaggingStore(f"memory://lagging-{uuid.uuid4().hex}")


@pytest.fixture
def table(store: LaggingStore, clock: Any) -> Table:
    return Table.create(store, SCHEMA, properties={"delta.checkpointInterval": "1000"}, clock=clock)


def append(table: Table, path: str) -> int:
    tx = table.begin()
    tx.add(path=path, size=1)
    return tx.commit("WRITE")


@pytest.mark.parametrize("winners", [1, 3])
@pytest.mark.parametrize("hidden_from", [0, 1, 2])
def test_a_lost_race_is_believed_although_the_listing_lags(
    table: Table, store: LaggingStore, clock: Any, winners: int, hidden_from: int
) -> None:
    tx = table.begin()
    tx.add(path="mine", size=1)
    other = Table(MemoryStore(store.root), clock=clock)
    for number in range(winners):
        append(other, f"other-{number}")
    store.hidden_from = hidden_from
    assert tx.commit("WRITE") == winners + 1
    assert tx.outcome is not None
    assert tx.outcome.rebased_over == list(range(1, winners + 1))


def test_a_conflict_is_found_although_the_listing_lags(table: Table, store: LaggingStore, clock: Any) -> None:
    append(table, "a")
    tx = table.begin()
    tx.read_whole_table()
    tx.add(path="mine", size=1)
    append(Table(MemoryStore(store.root), clock=clock), "b")
    store.hidden_from = 1
    with pytest.raises(errors.ConcurrentAppend) as caught:
        tx.commit("WRITE")
    assert caught.value.winning_version == 2


def test_a_commit_of_ours_that_no_listing_shows_yet_is_not_taken_for_overwritten(
    table: Table, store: LaggingStore
) -> None:
    append(table, "a")
    append(table, "b")
    store.hidden_from = 1
    assert table.snapshot().version <= 2
    assert append(table, "c") == 3
    store.hidden_from = None
    assert sorted(table.snapshot().files().column("path").to_pylist()) == ["a", "b", "c"]


def test_a_table_does_not_grow_older_while_the_listing_lags(table: Table, store: LaggingStore) -> None:
    append(table, "a")
    known = table.snapshot()
    assert (known.version, table.latest_version()) == (1, 1)
    store.hidden_from = 1
    assert (table.snapshot().version, table.latest_version()) == (1, 1)
    assert [change.version for change in changes_since(known, 0)] == [1]


def test_what_was_acknowledged_is_seen_although_the_listing_lags(table: Table, store: LaggingStore, clock: Any) -> None:
    append(table, "a")
    table.snapshot()
    append(Table(store, clock=clock), "b")
    store.hidden_from = 2
    assert append(table, "c") == 3
    assert (table.latest_version(), table.snapshot().version) == (3, 3)
    assert sorted(table.snapshot().files().column("path").to_pylist()) == ["a", "b", "c"]
