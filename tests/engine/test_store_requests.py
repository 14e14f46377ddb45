"""How often the store is asked: a remote store bills every request, and answers each in tens of milliseconds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine import Table, checkpointing
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.snapshot.snapshot import load_snapshot
from tests.helpers.counting import CountingStore
from tests.helpers.limits import limited

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def store(memory_uri: str, clock: Any) -> CountingStore:
    return CountingStore(memory_uri, clock=clock)


@pytest.fixture
def table(store: CountingStore, clock: Any) -> Table:
    """Version 12, with a checkpoint at 10; opened, and nothing written through it."""
    table = Table.create(store, SCHEMA, ["day"], clock=clock)
    for number in range(12):
        append(table, str(number))
    table = Table.open(store, clock=clock)
    store.take()
    return table


def append(table: Table, name: str) -> int:
    clock: Any = table.clock
    clock.time_ms += 1
    tx = table.begin()
    tx.add(path=name, partition_values={"day": "1"}, size=1)
    return tx.commit("WRITE")


def log(version: int) -> str:
    return commit_name(version).removesuffix(".json")


# --- a table that is kept open --------------------------------------------------------------------------------------


def test_a_poll_with_nothing_new_is_one_listing(table: Table, store: CountingStore) -> None:
    first = table.snapshot()
    store.take()
    for _ in range(3):
        assert table.snapshot() is first
        assert store.take() == [f"list {log(12)}"]
        assert table.latest_version() == 12
        assert store.take() == [f"list {log(12)}"]


def test_a_poll_after_commits_reads_those_alone(table: Table, store: CountingStore, clock: Any) -> None:
    table.snapshot()
    other = Table(store, clock=clock)
    append(other, "x")
    append(other, "y")
    store.take()
    assert table.snapshot().version == 14
    assert sorted(store.take()) == [f"list {log(12)}", f"read {commit_name(13)}", f"read {commit_name(14)}"]


def test_a_poll_at_a_version_whose_commit_was_cleaned_is_one_listing_too(table: Table, store: CountingStore) -> None:
    table.checkpoint()
    for version in range(13):
        store.delete(commit_name(version))
    cold = Table.open(store)
    store.take()
    assert cold.snapshot().version == cold.latest_version() == 12
    assert store.take() == [f"list {log(12)}"] * 2


def test_the_number_of_the_latest_version_alone_replays_nothing(table: Table, store: CountingStore) -> None:
    cold = Table(store)
    assert cold.latest_version() == 12
    assert store.take() == ["read _delta_log/_last_checkpoint", f"list {log(10)}"]
    append(table, "x")
    store.take()
    assert cold.latest_version() == 13
    assert cold.latest_version() == 13
    assert store.take() == [f"list {log(12)}", f"list {log(13)}"]


def test_beginning_on_a_warm_table_is_one_listing(table: Table, store: CountingStore) -> None:
    table.snapshot()
    store.take()
    table.begin()
    assert store.take() == [f"list {log(12)}"]


def test_a_version_that_is_known_is_not_read_again(table: Table, store: CountingStore) -> None:
    table.snapshot()
    store.take()
    assert table.snapshot(12).version == 12
    assert store.take() == [f"list {log(12)}"]


# --- a commit -------------------------------------------------------------------------------------------------------


def test_a_commit_that_meets_nobody_is_two_requests(table: Table, store: CountingStore) -> None:
    tx = table.begin()
    tx.add(path="x", partition_values={"day": "1"}, size=1)
    store.take()
    assert tx.commit("WRITE") == 13
    assert store.take() == [f"stat {commit_name(12)}", f"put_if_absent {commit_name(13)}"]


def test_the_look_after_an_own_commit_verifies_that_it_is_still_there(table: Table, store: CountingStore) -> None:
    append(table, "x")
    store.take()
    assert table.snapshot().version == 13
    assert store.take() == [f"list {log(12)}", f"read {commit_name(13)}"]
    # From now on the listing alone shows that it is the file that was verified.
    for _ in range(2):
        table.snapshot()
        assert store.take() == [f"list {log(13)}"]


@pytest.mark.parametrize("winners", [1, 4])
def test_a_lost_race_costs_a_listing_and_a_read_for_each_winner(
    table: Table, store: CountingStore, clock: Any, winners: int
) -> None:
    tx = table.begin()
    tx.add(path="mine", partition_values={"day": "1"}, size=1)
    other = Table(store, clock=clock)
    for number in range(winners):
        append(other, f"other-{number}")
    store.take()
    assert tx.commit("WRITE") == 13 + winners
    requests = store.take()
    assert requests[:3] == [f"stat {commit_name(12)}", f"put_if_absent {commit_name(13)}", f"read {commit_name(13)}"]
    assert requests[3] == f"list {log(12)}"
    assert requests[4:-1] == [f"read {commit_name(version)}" for version in range(14, 13 + winners)]
    assert requests[-1] == f"put_if_absent {commit_name(13 + winners)}"


def test_the_checkpoint_after_a_commit_reads_that_commit_alone(table: Table, store: CountingStore) -> None:
    for version in range(13, 20):
        assert append(table, f"v{version}") == version
    tx = table.begin()
    tx.add(path="x", partition_values={"day": "1"}, size=1)
    store.take()
    assert tx.commit("WRITE") == 20
    reads = [request for request in store.take() if request.startswith(("read", "open_input")) and ".json" in request]
    assert reads == [f"read {commit_name(20)}"]


# --- a cold open ----------------------------------------------------------------------------------------------------


def store_with(versions: int, properties: dict[str, str], memory_uri: str) -> CountingStore:
    """A table at this version whose checkpoints are made by hand."""
    store = limited(CountingStore(memory_uri), checkpoint_group_rows=4, checkpoint_sidecar_rows=4)
    table = Table.create(store, SCHEMA, ["day"], properties={"delta.checkpointInterval": "10000"} | properties)
    for number in range(versions):
        tx = table.begin()
        tx.add(path=f"f{number}", partition_values={"day": "1"}, size=1, modification_time=1)
        tx.commit("WRITE", {})
    return store


def checkpoint(store: CountingStore, version: int) -> None:
    checkpointing.checkpoint(store, load_snapshot(store, version), SYSTEM_CLOCK)


def opened(store: CountingStore) -> list[str]:
    """The kinds of request that a cold open takes, in order; those of sidecars told apart."""
    store.take()
    load_snapshot(store)
    return ["sidecar" if "/_sidecars/" in each else each.split()[0] for each in store.take()]


COLD = ["read", "list", "open_input"]


@pytest.mark.parametrize("commits", [0, 1, 5])
def test_a_cold_open_asks_three_times_and_once_a_commit_since_the_checkpoint(commits: int, memory_uri: str) -> None:
    """And never for what the listing told: sizes, and the commit of a version that a checkpoint holds."""
    store = store_with(10 + commits, {}, memory_uri)
    checkpoint(store, 10)
    assert opened(store) == COLD + ["read"] * commits


def test_a_cold_open_without_a_checkpoint_asks_for_hint_listing_and_commits(memory_uri: str) -> None:
    assert opened(store_with(4, {}, memory_uri)) == ["read", "list"] + ["read"] * 5


@pytest.mark.parametrize("commits", [0, 3])
def test_a_v2_checkpoint_costs_one_request_a_sidecar_more(commits: int, memory_uri: str) -> None:
    store = store_with(10 + commits, {"delta.checkpointPolicy": "v2"}, memory_uri)
    checkpoint(store, 10)
    assert opened(store) == COLD + ["sidecar"] * 3 + ["read"] * commits


def test_the_time_of_a_version_costs_its_commit_where_the_log_keeps_time_itself(memory_uri: str) -> None:
    """In-commit timestamps stand in the commit alone: one request more where the checkpoint is of that version."""
    store = store_with(6, {"delta.enableInCommitTimestamps": "true"}, memory_uri)
    checkpoint(store, 6)
    assert opened(store) == [*COLD, "read"]


def test_a_stale_hint_and_a_lost_one_cost_nothing(memory_uri: str) -> None:
    store = store_with(8, {}, memory_uri)
    for version in (4, 8):
        checkpoint(store, version)
    store.put("_delta_log/_last_checkpoint", b'{"version":4}')
    assert opened(store) == COLD
    store.delete("_delta_log/_last_checkpoint")
    assert opened(store) == COLD
