"""What a consumer gets of a table: each version once, whatever becomes of its events and its runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.hooks.followed_table import UnprocessedVersions
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.sensors.table_version import TableVersionSensor
from tests.helpers import s3
from tests.helpers.rows import append, bag

pytestmark = pytest.mark.airflow

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int32())])


class State(dict[str, Any]):
    """How far a consumer has come, as JSON keeps it."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


@pytest.fixture
def table(memory_uri: str) -> Table:
    return Table.create(memory_uri, SCHEMA, ["day"])


def add(table: Table, *days: int) -> int:
    return append(table, [{"id": 1, "day": day} for day in days])


def parts(table: Table, state: State) -> list[UnprocessedVersions]:
    return list(TxlogHook().unprocessed_versions(table.uri, consumer="c", state=state))


def test_each_run_takes_what_came_since_the_last(table: Table) -> None:
    state = State()
    assert parts(table, state) == [], "an empty table has no version with rows"
    add(table, 1)
    add(table, 2, 1)
    (new,) = parts(table, state)
    assert (new.from_version, new.version, new.versions, new.is_complete) == (0, 2, [1, 2], True)
    assert new.partitions == [{"day": "1"}, {"day": "2"}]
    table.vacuum()
    assert parts(table, state) == []
    add(table, 3)
    assert [new.versions for new in parts(table, state)] == [[5]]
    assert [new.versions for new in TxlogHook().unprocessed_versions(table.uri, consumer="d", state=state)] == [
        [1, 2, 5]
    ]


def test_a_run_that_died_is_repeated_with_the_same_part_and_key_and_then_gets_the_rest(table: Table) -> None:
    state = State()
    add(table, 1)
    dying = iter(TxlogHook().unprocessed_versions(table.uri, consumer="c", state=state))
    first = next(dying)
    del dying
    add(table, 2)
    again, rest = parts(table, state)
    assert (again, again.key) == (first, first.key)
    assert rest.versions == [2]
    assert rest.key != again.key
    assert parts(table, state) == []


def test_a_part_whose_partitions_are_not_all_known_is_not_complete(table: Table) -> None:
    add(table, 1)
    # As the protocol allows another engine to write it.
    table.store.put_if_absent(commit_name(2), b'{"remove": {"path": "x", "dataChange": true}}')
    (new,) = parts(table, State())
    assert (new.versions, new.is_complete, new.partitions) == ([1, 2], False, [])


def test_a_run_that_was_taken_for_dead_does_not_take_back_what_its_retry_has_done(table: Table) -> None:
    state = State()
    add(table, 1)
    taken_for_dead = iter(TxlogHook().unprocessed_versions(table.uri, consumer="c", state=state))
    first = next(taken_for_dead)
    (again,) = parts(table, state)
    assert again.key == first.key
    add(table, 2)
    going_on = iter(TxlogHook().unprocessed_versions(table.uri, consumer="c", state=state))
    rest = next(going_on)
    assert list(taken_for_dead) == []
    add(table, 3)
    repeated, last = parts(table, state)
    assert (repeated.key, repeated.versions, last.versions) == (rest.key, [2], [3])


def test_a_consumer_that_writes_to_its_own_table_comes_to_an_end(table: Table) -> None:
    state = State()
    add(table, 1)
    for _ in TxlogHook().unprocessed_versions(table.uri, consumer="c", state=state):
        add(table, 1)
    assert [new.versions for new in parts(table, state)] == [[2]]


def test_a_table_that_was_created_again_is_read_as_a_whole(table: Table) -> None:
    state = State()
    for _ in range(3):
        add(table, 1)
    parts(table, state)
    for info in list(table.store.walk()):
        table.store.delete(info.path)
    add(Table.create(table.uri, SCHEMA, ["day"]), 7)
    (new,) = parts(table, state)
    assert (new.is_complete, new.from_version, new.version, new.partitions) == (False, 3, 1, [{"day": "7"}])
    assert parts(table, state) == []


@pytest.mark.parametrize("seed", range(5))
def test_with_events_dropped_and_runs_killed_at_random_each_version_is_processed_once(table: Table, seed: int) -> None:
    choose, state = random.Random(seed), State()
    written: list[int] = []
    processed: dict[str, list[int]] = {}

    def run() -> None:
        for new in TxlogHook().unprocessed_versions(table.uri, consumer="c", state=state):
            if choose.random() < 0.3:
                return  # killed before its work is committed
            # What a commit under the idempotency key does: a second time it finds the work done.
            assert processed.setdefault(new.key, new.versions) == new.versions
            if choose.random() < 0.3:
                return  # killed after that

    for _ in range(30):
        if choose.random() < 0.7:
            written.append(add(table, 1))
        else:
            table.vacuum()
        if choose.random() < 0.4:
            run()
    for _ in range(20):
        run()
    assert sorted(version for versions in processed.values() for version in versions) == written


# --- a table in a bucket ----------------------------------------------------------------------------------------------


def test_the_hook_and_the_sensor_read_a_table_in_a_bucket(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = s3.new_folder()
    table = Table.create(uri, SCHEMA, ["day"], {"delta.enableChangeDataFeed": "true"}, storage_options=s3.options())
    append(table, [{"id": 1, "day": 1}])
    append(table, [{"id": 2, "day": 2}])
    lake = s3.connection(monkeypatch, uri.removesuffix("/t"))
    hook = TxlogHook(lake)
    assert hook.test_connection()[0]
    assert hook.latest_version("t") == 2
    (new,) = hook.unprocessed_versions("t", consumer="c", state=State())
    assert (new.versions, new.partitions) == ([1, 2], [{"day": "1"}, {"day": "2"}])
    changes = hook.table("t").changes(2)
    assert bag(changes, "id", "_change_type") == bag(pa.table({"id": [2], "_change_type": ["insert"]}))

    def is_there(**wanted: Any) -> bool:
        sensor = TableVersionSensor(task_id="wait", table_uri="t", txlog_conn_id=lake, **wanted)
        return sensor.poke({}).is_done  # type: ignore[arg-type]

    assert [is_there(version=2), is_there(version=3)] == [True, False]
    assert [is_there(partition={"day": 2}), is_there(partition={"day": 3})] == [True, False]
