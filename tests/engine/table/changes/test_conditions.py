"""What a reader may wait for, asked of a log that grows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.changes.following import (
    Condition,
    ConditionAnswer,
    LogFollower,
    Position,
    ask,
    new_versions,
)
from airflow_txlog.errors import InvalidInput, LogGap
from tests.helpers.counting import CountingStore

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int32())])
START = Position(version=-1)


@pytest.fixture
def store(memory_uri: str, clock: Any) -> CountingStore:
    return CountingStore(memory_uri, clock=clock)


class Reader:
    """One that waits: each question is asked of a fresh look."""

    def __init__(self, store: CountingStore) -> None:
        self.store = store
        self.follower = LogFollower(store)

    def ask(self, checked: Position | None = None, **condition: Any) -> ConditionAnswer:
        self.follower.look()
        return ask(Condition(**condition), self.follower, Table(self.store).snapshot, checked)


@pytest.fixture
def reader(store: CountingStore) -> Reader:
    return Reader(store)


def create(store: CountingStore, clock: Any, **properties: str) -> Table:
    return Table.create(store, SCHEMA, ["day"], {"delta.checkpointInterval": "1000", **properties}, clock=clock)


def write(table: Table, path: str, day: str | None = "1", **commit: Any) -> int:
    tx = table.begin()
    tx.add(path=path, size=1, partition_values={"day": day})
    return tx.commit("WRITE", {"mode": "Append"}, **commit)


def compact(table: Table, path: str) -> int:
    tx = table.begin()
    tx.remove(path, data_change=False)
    tx.add(path=f"{path}-compacted", size=1, partition_values={"day": "1"}, data_change=False)
    return tx.commit("OPTIMIZE")


def recreate(store: CountingStore, clock: Any) -> Table:
    for info in store.list("_delta_log"):
        store.delete(info.path)
    clock.time_ms += 1000
    return create(store, clock)


def test_a_version_is_a_number_whatever_its_commit_did(store: CountingStore, clock: Any, reader: Reader) -> None:
    assert not reader.ask(version=0).reached
    table = create(store, clock)
    write(table, "a")
    compact(table, "a")
    assert [reader.ask(version=v).reached for v in (0, 2, 3)] == [True, True, False]
    # With anything else a commit of the range has to satisfy it.
    assert [reader.ask(version=v, data_changes_only=True).reached for v in (1, 2)] == [True, False]


def test_only_versions_that_change_rows_wake_unless_others_are_asked_for(
    store: CountingStore, clock: Any, reader: Reader
) -> None:
    table = create(store, clock)
    at = Position(version=write(table, "a"))
    compact(table, "a")
    table.vacuum(dry_run=False)
    metadata = table.snapshot().metadata
    tx = table.begin()
    tx.set_metadata(msgspec.structs.replace(metadata, configuration={**metadata.configuration, "k": "v"}))
    tx.commit("SET TBLPROPERTIES")
    assert not reader.ask(newer_than=at).reached
    assert reader.ask(newer_than=at, data_changes_only=False).reached
    optimized = reader.ask(newer_than=at, operations=frozenset({"optimize"}))
    assert optimized.match is not None
    assert optimized.match.version == 2
    tx = table.begin()
    tx.remove("a-compacted")
    last = tx.commit("DELETE")
    found = reader.ask(newer_than=at)
    assert found.match is not None
    assert (found.match.version, found.match.operation, found.after) == (last, "DELETE", 1)
    assert found.position.version == last


def test_an_operation_and_the_tags_of_a_committer_have_to_be_in_one_commit(
    store: CountingStore, clock: Any, reader: Reader
) -> None:
    table = create(store, clock)
    write(table, "a", tags={"airflow.dag_id": "load", "airflow.task_id": "merge"})
    write(table, "b", tags={"airflow.dag_id": "other"})
    ours: Mapping[str, str] = {"airflow.dag_id": "load", "airflow.task_id": "merge"}
    found = reader.ask(tags=ours)
    assert found.match is not None
    assert found.match.version == 1
    assert not reader.ask(tags=ours, operations=frozenset({"MERGE"})).reached
    assert not reader.ask(tags=ours, newer_than=Position(version=1)).reached
    assert not reader.ask(tags={"airflow.dag_id": "load", "airflow.task_id": "x"}).reached


def test_a_time_is_compared_with_the_times_of_commits(store: CountingStore, clock: Any, reader: Reader) -> None:
    table = create(store, clock)
    clock.time_ms += 10_000
    write(table, "a")
    written_ms = table.snapshot().timestamp_ms
    clock.time_ms += 10_000
    compact(table, "a")
    assert [reader.ask(since_ms=written_ms + late).reached for late in (0, 1)] == [True, False]
    assert reader.ask(since_ms=written_ms + 1, data_changes_only=False).reached


def test_in_commit_timestamps_are_the_times_where_they_count(store: CountingStore, clock: Any, reader: Reader) -> None:
    table = create(store, clock, **{"delta.enableInCommitTimestamps": "true"})
    write(table, "a")
    written_ms = table.snapshot().timestamp_ms
    found = reader.ask(since_ms=written_ms)
    assert found.match is not None
    assert found.match.timestamp_ms == written_ms
    assert not reader.ask(since_ms=written_ms + 1).reached


@pytest.mark.parametrize("mapping", ["none", "name"])
def test_a_partition_appears_with_its_first_row_and_its_values_are_typed(
    store: CountingStore, clock: Any, reader: Reader, mapping: str
) -> None:
    table = create(store, clock, **{"delta.columnMapping.mode": mapping})
    (key,) = {"none": ["day"], "name": [table.snapshot().delta_schema.find("day").physical_name]}[mapping]  # type: ignore[union-attr]

    def fill(path: str, value: str | None) -> int:
        tx = table.begin()
        tx.add(path=path, size=1, partition_values={key: value})
        return tx.commit("WRITE")

    first = fill("a", "1")
    asked = reader.ask(partition={"DAY": "02"})
    assert not asked.reached
    assert reader.ask(partition={"day": "01"}).reached
    fill("b", None)
    assert not reader.ask(asked.position, partition={"day": "02"}).reached
    assert reader.ask(partition={"day": None}).reached
    fill("c", "2")
    assert reader.ask(asked.position, partition={"day": "02"}).reached
    assert reader.ask(partition={"day": "02"}).reached
    # With a beginning it is a commit that has to add rows to it.
    assert not reader.ask(newer_than=Position(version=first), partition={"day": "1"}).reached
    reader.follower.look()
    commits = new_versions(reader.follower, START).commits
    assert reader.follower.partitions(commits) == [{"day": "1"}, {"day": "2"}, {"day": None}]


def test_partitions_are_not_known_where_a_remove_does_not_name_its_own(
    store: CountingStore, clock: Any, reader: Reader
) -> None:
    # Optional in the protocol, where extendedFileMetadata is not set.
    removed = {"remove": {"path": "a", "dataChange": True, "deletionTimestamp": 1}}
    table = create(store, clock)
    write(table, "a", "1")
    write(table, "b", "2")
    store.put_if_absent(commit_name(3), json.dumps(removed).encode())
    reader.follower.look()
    commits = new_versions(reader.follower, START).commits
    assert [commit.version for commit in commits] == [1, 2, 3]
    assert reader.follower.partitions(commits[:2]) == [{"day": "1"}, {"day": "2"}]
    assert reader.follower.partitions(commits) is None
    assert reader.follower.partitions(commits[2:]) is None


def test_a_table_without_partitions_has_none_whatever_a_remove_names(
    store: CountingStore, clock: Any, reader: Reader
) -> None:
    table = Table.create(store, SCHEMA, clock=clock)
    tx = table.begin()
    tx.add(path="a", size=1, partition_values={})
    tx.commit("WRITE")
    store.put_if_absent(commit_name(2), b'{"remove": {"path": "a", "dataChange": true}}')
    reader.follower.look()
    assert reader.follower.partitions(new_versions(reader.follower, START).commits) == []


def test_partitions_of_other_columns_are_not_taken_for_those_of_now(
    store: CountingStore, clock: Any, reader: Reader
) -> None:
    table = create(store, clock)
    write(table, "a", "1")
    tx = table.begin()
    tx.remove("a")
    tx.set_metadata(msgspec.structs.replace(table.snapshot().metadata, partition_columns=["id"]))
    tx.add(path="b", size=1, partition_values={"id": "7"})
    tx.commit("CREATE OR REPLACE TABLE AS SELECT")
    reader.follower.look()
    assert reader.follower.partitions(new_versions(reader.follower, START).commits) is None


@pytest.mark.parametrize("partition", [{"id": "1"}, {"nowhere": "1"}, {"day": "monday"}])
def test_a_partition_that_cannot_be_is_refused(
    store: CountingStore, clock: Any, reader: Reader, partition: dict[str, str]
) -> None:
    table = create(store, clock)
    at = Position(version=write(table, "a"))
    with pytest.raises(InvalidInput):
        reader.ask(partition=partition)
    write(table, "b")
    with pytest.raises(InvalidInput):
        reader.ask(at, partition=partition)


@pytest.mark.parametrize("condition", [{}, {"version": 1, "newer_than": START}, {"newer_than": START, "since_ms": 0}])
def test_a_condition_without_meaning_is_refused(condition: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Condition(**condition)


def test_what_was_checked_is_not_asked_again(store: CountingStore, clock: Any, reader: Reader) -> None:
    table = create(store, clock)
    write(table, "a")
    at = reader.ask(newer_than=Position(version=1)).position
    compact(table, "a")
    store.take()
    later = reader.ask(at, newer_than=Position(version=1))
    assert not later.reached
    assert store.take() == ["list _delta_log/00000000000000000001", f"read {commit_name(2)}"]
    for _ in range(3):
        assert not reader.ask(later.position, newer_than=Position(version=1)).reached
        assert store.take() == ["list _delta_log/00000000000000000002"]


def test_many_that_wait_read_a_commit_once(store: CountingStore, clock: Any, reader: Reader) -> None:
    table = create(store, clock)
    at = reader.ask(newer_than=Position(version=0)).position
    write(table, "a")
    store.take()
    reader.follower.look()
    for _ in range(50):
        assert ask(Condition(newer_than=at), reader.follower, table.snapshot).reached
    assert store.take() == ["list _delta_log/00000000000000000000", f"read {commit_name(1)}"]


@pytest.mark.parametrize("grown", [False, True])
def test_a_table_that_was_created_again_is_newer_than_any_version_of_the_old_one(
    store: CountingStore, clock: Any, grown: bool
) -> None:
    table = create(store, clock)
    for path in "abc":
        write(table, path)
    known = Reader(store)
    at = known.ask(newer_than=Position(version=3)).position
    again = recreate(store, clock)
    for reader in (known, Reader(store)):
        # Empty as yet: there is no row to read.
        assert not reader.ask(at, newer_than=at).reached
    for path in "xyz" if grown else "x":
        write(again, path)
    for reader in (known, Reader(store)):
        found = reader.ask(at, newer_than=at)
        assert (found.reached, found.is_another_log, found.after) == (True, True, -1)
    # A number alone shows it only by being too high.
    assert Reader(store).ask(newer_than=Position(version=3)).reached is (not grown)


def test_a_table_that_is_gone_is_waited_for(store: CountingStore, clock: Any, reader: Reader) -> None:
    table = create(store, clock)
    write(table, "a")
    at = reader.ask(newer_than=Position(version=1)).position
    for info in store.list("_delta_log"):
        store.delete(info.path)
    gone = reader.ask(at, newer_than=at)
    assert (gone.reached, gone.position.version) == (False, -1)
    write(recreate(store, clock), "b")
    assert reader.ask(gone.position, newer_than=at).reached


def test_commits_that_were_cleaned_away_count_as_reached(store: CountingStore, clock: Any) -> None:
    table = create(store, clock)
    at = Position(version=write(table, "a"))
    write(table, "b")
    compact(table, "a")
    table.checkpoint()
    for version in range(3):
        store.delete(commit_name(version))
    found = Reader(store).ask(newer_than=at)
    assert (found.reached, found.match) == (True, None)
    # Without a beginning only what the log holds is asked.
    assert not Reader(store).ask(operations=frozenset({"WRITE"})).reached


def test_a_lost_commit_is_an_error_and_not_waited_for(store: CountingStore, clock: Any, reader: Reader) -> None:
    table = create(store, clock)
    for path in "abc":
        write(table, path)
    store.delete(commit_name(2))
    with pytest.raises(LogGap):
        reader.ask(version=9)


def test_a_reader_gets_each_version_that_changed_rows_since_its_last(
    store: CountingStore, clock: Any, reader: Reader
) -> None:
    table = create(store, clock)
    write(table, "a")
    reader.follower.look()
    first = new_versions(reader.follower, START)
    assert ([each.version for each in first.commits], first.is_complete) == ([1], True)
    compact(table, "a")
    write(table, "b")
    reader.follower.look()
    second = new_versions(reader.follower, first.position)
    assert ([each.version for each in second.commits], second.position.version) == ([3], 3)
    # The same part of the log, whatever came after it.
    write(table, "c")
    reader.follower.look()
    again = new_versions(reader.follower, first.position, second.position)
    assert (again.commits, again.position) == (second.commits, second.position)


def test_a_reader_whose_versions_are_gone_learns_that_it_has_to_read_the_table(
    store: CountingStore, clock: Any, reader: Reader
) -> None:
    table = create(store, clock)
    write(table, "a")
    reader.follower.look()
    at = reader.follower.position
    write(table, "b")
    write(table, "c")
    table.checkpoint()
    store.delete(commit_name(2))
    late = Reader(store)
    late.follower.look()
    found = new_versions(late.follower, at)
    assert ([each.version for each in found.commits], found.is_complete) == ([3], False)
    write(recreate(store, clock), "x")
    late.follower.look()
    found = new_versions(late.follower, at)
    assert ([each.version for each in found.commits], found.is_complete) == ([1], False)
