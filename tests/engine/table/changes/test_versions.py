"""Following a table: what each commit after a version did."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.errors import TableReplaced, VersionNotFound
from tests.helpers.counting import CountingStore

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def store(memory_uri: str, clock: Any) -> CountingStore:
    return CountingStore(memory_uri, clock=clock)


@pytest.fixture
def table(store: CountingStore, clock: Any) -> Table:
    """Version 0 creates, 1 appends a and b, 2 deletes a, 3 compacts b, 4 sets a property, a transaction, a domain."""
    table = Table.create(store, SCHEMA, clock=clock)
    tx = table.begin()
    tx.add(path="a", size=1)
    tx.add(path="b", size=1)
    tx.commit("WRITE", {"mode": "Append"})
    clock.time_ms += 1000
    tx = table.begin()
    tx.remove("a")
    tx.commit("DELETE")
    tx = table.begin()
    tx.remove("b", data_change=False)
    tx.add(path="c", size=1, data_change=False)
    tx.commit("OPTIMIZE")
    tx = table.begin()
    metadata = table.snapshot().metadata
    tx.set_metadata(msgspec.structs.replace(metadata, configuration={**metadata.configuration, "k": "v"}))
    tx.set_application("app", 7)
    tx.set_domain("our.domain", "{}")
    tx.commit("SET TBLPROPERTIES")
    return table


def test_the_changes_come_ascending_one_for_each_commit(table: Table) -> None:
    changes = list(changes_since(table.snapshot(), 0))
    assert [each.version for each in changes] == [1, 2, 3, 4]
    assert [each.operation for each in changes] == ["WRITE", "DELETE", "OPTIMIZE", "SET TBLPROPERTIES"]
    assert [[add.path for add in each.adds] for each in changes] == [["a", "b"], [], ["c"], []]
    assert [[remove.path for remove in each.removes] for each in changes] == [[], ["a"], ["b"], []]
    assert [each.data_change for each in changes] == [True, True, False, False]
    assert changes[0].info["operationParameters"] == {"mode": "Append"}
    last = changes[-1]
    assert last.metadata is not None
    assert last.metadata.configuration["k"] == "v"
    assert [(txn.app_id, txn.version) for txn in last.transactions] == [("app", 7)]
    assert [domain.domain for domain in last.domains] == ["our.domain"]
    assert (last.protocol, last.cdc) == (None, [])


def test_from_before_the_first_version_the_creation_is_told_too(table: Table) -> None:
    first = next(changes_since(table.snapshot(), -1))
    assert first.version == 0
    assert first.protocol is not None
    assert first.metadata is not None


def test_the_times_grow_from_version_to_version(table: Table, clock: Any) -> None:
    """Versions 2 to 4 were written in one millisecond of the test's clock."""
    times = [each.timestamp_ms for each in changes_since(table.snapshot(), -1)]
    assert times == [1_700_000_000_000 + ms for ms in (0, 1, 1000, 1001, 1002)]


def test_in_commit_timestamps_are_told_where_the_table_has_them(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, properties={"delta.enableInCommitTimestamps": "true"}, clock=clock)
    table.begin().commit("WRITE", record_empty=True)
    assert [each.timestamp_ms for each in changes_since(table.snapshot(), 0)] == [table.snapshot().timestamp_ms]


def test_only_those_commits_are_read_and_only_when_they_are_asked_for(table: Table, store: CountingStore) -> None:
    snapshot = table.snapshot()
    store.take()
    changes = changes_since(snapshot, 2)
    assert store.take() == [f"list {commit_name(0).removesuffix('.json')}"]
    assert next(changes).version == 3
    assert store.take() == [f"read {commit_name(3)}"]
    assert [each.version for each in changes] == [4]
    assert list(changes_since(snapshot, 4)) == []
    assert store.take() == [f"read {commit_name(4)}"]


def test_a_snapshot_tells_nothing_of_later_commits(table: Table) -> None:
    assert [each.version for each in changes_since(table.snapshot(2), 0)] == [1, 2]


@pytest.mark.parametrize("version", [5, -2])
def test_a_version_that_does_not_exist_is_named(table: Table, version: int) -> None:
    with pytest.raises(errors.VersionNotFound) as caught:
        changes_since(table.snapshot(), version)
    assert (caught.value.version, caught.value.latest) == (version, 4)


def test_what_log_cleanup_took_is_told_before_anything_is_yielded(table: Table, store: CountingStore) -> None:
    snapshot = table.snapshot()
    for version in (0, 1, 2):
        store.delete(commit_name(version))
    assert [each.version for each in changes_since(snapshot, 2)] == [3, 4]
    with pytest.raises(errors.VersionNotFound) as caught:
        changes_since(snapshot, 1)
    assert (caught.value.version, caught.value.earliest, caught.value.latest) == (1, 3, 4)


def test_a_commit_that_is_missing_between_others_is_a_gap(table: Table, store: CountingStore) -> None:
    snapshot = table.snapshot()
    started = changes_since(snapshot, 0)
    store.delete(commit_name(2))
    with pytest.raises(errors.LogGap) as caught:
        changes_since(snapshot, 0)
    assert caught.value.version == 2
    # What was listed and is gone when it is read is a gap too.
    assert next(started).version == 1
    with pytest.raises(errors.LogGap):
        next(started)


def test_a20_a_log_that_was_made_again_is_not_told_as_changes(table: Table, store: CountingStore, clock: Any) -> None:
    snapshot = table.snapshot()
    clock.time_ms += 5000
    store.put(commit_name(4), store.read(commit_name(4)))
    with pytest.raises(errors.TableReplaced):
        changes_since(snapshot, 0)


# --- what is listed -------------------------------------------------------------------------------------------------


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
