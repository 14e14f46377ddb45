"""TableVersionTrigger under Airflow's own trigger runner: shared looks, answers, and how far a watching one came."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk import Asset
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import AssetStateStoreResult
from airflow.sdk.execution_time.context import AssetStateStoreAccessors

from airflow_txlog import storage
from airflow_txlog.engine import Table
from airflow_txlog.errors import CorruptTable, InvalidInput
from airflow_txlog.sensors.table_version import TableVersionSensor
from airflow_txlog.storage import Access
from airflow_txlog.triggers import table_version
from airflow_txlog.triggers.table_version import TableVersionTrigger
from tests.helpers.counting import CountingStore
from tests.helpers.submitting import eventually

pytestmark = pytest.mark.airflow

LOOKS: list[None] = []
PATIENCE_S = 120
SCHEMA = pa.schema([("id", pa.int64())])
STEP_S = 0.02  # how often a trigger looks here


def grow(table: Table, operation: str = "WRITE") -> int:
    tx = table.begin()
    assert tx.snapshot is not None
    tx.add(path=f"{tx.snapshot.version}", partition_values={}, size=1, data_change=operation != "OPTIMIZE")
    return tx.commit(operation)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[CountingStore]:
    """The stores in memory that are opened from here on, with their requests."""
    stores: list[CountingStore] = []

    def open_counting(uri: str, access: Access) -> CountingStore:
        stores.append(CountingStore(uri, access))
        return stores[-1]

    monkeypatch.setitem(storage.STORES, "memory", open_counting)
    return stores


@pytest.fixture
def table(memory_uri: str) -> Table:
    table = Table.create(memory_uri, SCHEMA)
    grow(table)
    return table


class StateStores:
    """The asset state stores of Airflow's database: what a trigger asks its supervisor for."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Any] = {}

    async def asend(self, message: Any) -> Any:
        if message.type == "SetAssetStateStoreByName":
            self.kept[message.name, message.key] = message.value
            return None
        value = self.kept.get((message.name, message.key))
        return None if value is None else AssetStateStoreResult(value=value)

    def versions(self) -> dict[str, int]:
        return {name: value["version"] for (name, _), value in self.kept.items()}


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> StateStores:
    states = StateStores()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", states, raising=False)
    return states


class Triggerer:
    """Airflow's trigger runner, without the process around it; `store_events` stands for its database."""

    def __init__(self) -> None:
        self.runner = TriggerRunner()
        self.stored: list[dict[str, Any]] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, trigger: TableVersionTrigger, *assets: str) -> asyncio.Task[Any]:
        classpath, kwargs = trigger.serialize()
        started = self.runner.get_trigger_by_classpath(classpath)(**kwargs)
        if assets:
            started.asset_state_store = AssetStateStoreAccessors([Asset(name) for name in assets])
        number = started.trigger_id = len(self._tasks) + 1
        self.runner.triggers[number] = {"name": f"trigger {number}", "events": 0}
        task = asyncio.get_running_loop().create_task(self.runner.run_trigger(number, started))
        self._tasks.append(task)
        return task

    def store_events(self) -> list[dict[str, Any]]:
        """Store the events that were fired since, and confirm them; returns them."""
        entries = [*self.runner.events]
        self.runner.events.clear()
        found = [entry.event.payload for entry in entries]
        self.stored += found
        self.runner._shared_streams.confirm_persisted([e.persist_seq for e in entries if e.persist_seq is not None])
        return found

    async def events(self, count: int = 1) -> list[dict[str, Any]]:
        """The next events, stored."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                await asyncio.sleep(0.01)
                found += self.store_events()
        return found

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def triggerer() -> AsyncIterator[Triggerer]:
    one = Triggerer()
    try:
        yield one
    finally:
        await one.stop()


@pytest.fixture(autouse=True)
def looked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Counts the looks at tables, which may follow each other at once."""
    LOOKS.clear()
    monkeypatch.setattr(table_version, "_SHORTEST_WAIT_S", 0.001)
    ask = table_version._Looker.ask

    def counted(self: Any, questions: Any) -> Any:
        LOOKS.append(None)
        return ask(self, questions)

    monkeypatch.setattr(table_version._Looker, "ask", counted)
    yield
    LOOKS.clear()


async def settle(streams: int = 1) -> None:
    """Until each table was looked at a few times more, and the triggers have had their answers."""
    wanted = len(LOOKS) + 4 * streams
    await until(lambda: len(LOOKS) >= wanted)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not reached():
            await asyncio.sleep(0.005)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def watching(table: Table, **given: Any) -> TableVersionTrigger:
    return TableVersionTrigger(table.uri, poke_interval=STEP_S, **given)


def once(table: Table, **given: Any) -> TableVersionTrigger:
    return watching(table, once=True, **given)


def short(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(event["from_version"], event["version"]) for event in events]


# --- what is serialized ---------------------------------------------------------------------------------------------


def test_a_trigger_is_made_again_from_what_is_stored_of_it_and_that_names_connections_alone() -> None:
    trigger = TableVersionTrigger(
        "orders",
        newer_than={"version": 3, "commit_mark": "m"},
        operation="MERGE",
        committed_by_dag="load",
        partition={"day": "2013-01-01"},
        data_changes_only=True,
        txlog_conn_id="lake",
        storage_conn_id="cloud",
        checked={"version": 4, "commit_mark": "n"},
        once=True,
    )
    path, kwargs = trigger.serialize()
    assert path == "airflow_txlog.triggers.table_version.TableVersionTrigger"
    assert TableVersionTrigger(**kwargs).serialize() == (path, kwargs)
    assert kwargs == {
        "table_uri": "orders",
        "newer_than": {"version": 3, "commit_mark": "m"},
        "operation": ["MERGE"],
        "committed_by_dag": "load",
        "partition": {"day": "2013-01-01"},
        "data_changes_only": True,
        "poke_interval": 60.0,
        "txlog_conn_id": "lake",
        "storage_conn_id": "cloud",
        "once": True,
        "checked": {"version": 4, "commit_mark": "n"},
    }
    assert (
        TableVersionTrigger("orders", since="2013-01-01", once=True).serialize()[1]["since"].startswith("2013-01-01T")
    )
    assert TableVersionTrigger("orders").serialize()[1] == {"table_uri": "orders", "poke_interval": 60.0}


@pytest.mark.parametrize("given", [{"version": 1}, {"since": "2013-01-01"}, {"checked": {"version": 1}}])
def test_what_is_reached_once_cannot_be_watched(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        TableVersionTrigger("orders", **given)


# --- one event for a task -------------------------------------------------------------------------------------------


def test_a_task_that_waits_is_resumed_once_by_the_version_it_waits_for(table: Table) -> None:
    async def test() -> None:
        async with triggerer() as one:
            waiting = one.start(once(table, newer_than=1))
            await settle()
            grow(table, "OPTIMIZE")
            await settle()
            assert one.store_events() == []
            grow(table)
            (event,) = await one.events()
            assert (event["from_version"], event["version"], event["matched_version"]) == (2, 3, 3)
            await asyncio.wait_for(waiting, PATIENCE_S)

    run(test)


def test_the_looks_at_a_table_are_shared_by_all_that_wait_for_it(table: Table, opened: list[CountingStore]) -> None:
    async def test() -> None:
        async with triggerer() as one:
            for _ in range(50):
                one.start(once(table, newer_than=1))
                one.start(once(table, version=3))
            one.start(watching(table))
            await settle()
            (store,) = opened
            assert store.take()[: len(LOOKS)] == ["list _delta_log/00000000000000000000"] + [
                "list _delta_log/00000000000000000001"
            ] * (len(LOOKS) - 1), "a look is one request, for a hundred as for one"
            grow(table)
            assert short(await one.events(51)) == [(1, 2)] * 51
            grow(table)
            assert len(await one.events(51)) == 51
            # The last that is there is the watching one; when it is gone too, nothing looks.
            await one.stop()
            # A look that is under way comes to its end.
            table_version._threads().shutdown()
            table_version._threads.cache_clear()
            store.take()
            await asyncio.sleep(5 * STEP_S)
            assert (store.take(), table_version._WAITS) == ([], {})

    run(test)


def test_a_table_whose_look_takes_long_holds_up_neither_the_loop_nor_another_table(
    table: Table, memory_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    class SlowStore(CountingStore):
        def list(self, directory: str, *, start_from: str | None = None) -> Any:
            if self.root.endswith("slow"):
                assert answered.wait(PATIENCE_S)
            return super().list(directory, start_from=start_from)

    slow = Table.create(f"{memory_uri}-slow", SCHEMA)
    monkeypatch.setitem(storage.STORES, "memory", SlowStore)

    async def test() -> None:
        async with triggerer() as one:
            one.start(once(slow, version=0))
            await until(lambda: bool(LOOKS))
            one.start(once(table, version=2))
            grow(table)
            assert [event["version"] for event in await one.events()] == [2]
            answered.set()
            assert [event["version"] for event in await one.events()] == [0]

    run(test)


def test_a_table_that_cannot_be_read_fails_the_task_that_waits_with_its_own_error(table: Table) -> None:
    grow(table)
    table.store.delete("_delta_log/00000000000000000001.json")
    sensor = TableVersionSensor(task_id="wait", table_uri=table.uri, version=9)

    async def test() -> None:
        async with triggerer() as one:
            one.start(once(table, version=9))
            one.start(watching(table))
            (event,) = await one.events()
            with pytest.raises(CorruptTable, match="cannot be rebuilt"):
                sensor.execute_complete({}, event)  # type: ignore[arg-type]

    run(test)


def test_a_wrong_question_fails_its_task_alone(table: Table) -> None:
    async def test() -> None:
        async with triggerer() as one:
            one.start(once(table, newer_than=1, partition={"day": "1"}))
            one.start(once(table, version=2))
            grow(table)
            events = await one.events(2)
            assert sorted(event.get("error", {}).get("type", "") for event in events) == ["", "InvalidInput"]

    run(test)


def test_a_store_that_does_not_answer_for_a_while_is_asked_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([OSError("down"), PermissionError("denied"), ConnectionError("reset")])

    class FailingStore(CountingStore):
        def list(self, directory: str, *, start_from: str | None = None) -> Any:
            if (failure := next(failures, None)) is not None:
                raise failure
            return super().list(directory, start_from=start_from)

    monkeypatch.setitem(storage.STORES, "memory", FailingStore)

    async def test() -> None:
        async with triggerer() as one:
            one.start(once(table, version=1))
            assert [event["version"] for event in await one.events()] == [1]

    run(test)


# --- watching for an asset ------------------------------------------------------------------------------------------


def test_watching_begins_where_the_table_stands_and_jumps_are_reported_once_each(
    table: Table, states: StateStores
) -> None:
    async def test() -> None:
        async with triggerer() as one:
            one.start(watching(table), "orders")
            await until(lambda: states.versions() == {"orders": 1})
            assert one.store_events() == []
            grow(table, "OPTIMIZE")
            await settle()
            grow(table)
            assert short(await one.events()) == [(1, 3)]
            for _ in range(3):
                grow(table)
            events = await one.events()
            while events[-1]["version"] < 6:
                events += await one.events()
            assert short(events)[0][0] == 3
            assert all(left["version"] == right["from_version"] for left, right in itertools.pairwise(events))
            await until(lambda: states.versions() == {"orders": 6})
            await settle()
            assert one.store_events() == []

    run(test)


def test_a_table_that_is_made_after_watching_began_is_reported(memory_uri: str, states: StateStores) -> None:
    async def test() -> None:
        async with triggerer() as one:
            one.start(TableVersionTrigger(memory_uri, poke_interval=STEP_S), "orders")
            await until(lambda: bool(states.kept))
            grow(Table.create(memory_uri, SCHEMA))
            assert short(await one.events()) == [(-1, 1)]

    run(test)


def test_a_triggerer_that_is_started_again_neither_loses_nor_repeats_an_event(
    table: Table, states: StateStores
) -> None:
    reported: list[dict[str, Any]] = []

    async def test() -> None:
        async with triggerer() as one:
            one.start(watching(table), "orders")
            await until(lambda: bool(states.kept))
            grow(table)
            reported.extend(await one.events())
            await until(lambda: states.versions() == {"orders": 2})
        grow(table)
        grow(table)
        async with triggerer() as two:
            two.start(watching(table), "orders")
            reported.extend(await two.events())
            await settle()
            assert two.store_events() == []

    run(test)
    assert short(reported) == [(1, 2), (2, 4)]


def test_an_event_that_airflow_did_not_store_is_fired_again_after_a_restart(table: Table, states: StateStores) -> None:
    async def test() -> None:
        async with triggerer() as one:
            one.start(watching(table), "orders")
            await until(lambda: bool(states.kept))
            grow(table)
            await until(lambda: len(one.runner.events) == 1)
            await settle()
        # Fired, and lost with the process.
        assert states.versions() == {"orders": 1}
        async with triggerer() as two:
            two.start(watching(table), "orders")
            assert short(await two.events()) == [(1, 2)]

    run(test)


def test_two_assets_of_one_trigger_and_two_triggers_of_one_asset_keep_their_places(
    table: Table, states: StateStores
) -> None:
    async def test() -> None:
        async with triggerer() as one:
            one.start(watching(table), "orders", "orders_too")
            one.start(watching(table, operation="MERGE"), "orders")
            await until(lambda: len(states.kept) == 3)
            grow(table)
            assert short(await one.events()) == [(1, 2)]
            grow(table, "MERGE")
            assert sorted(short(await one.events(2))) == [(1, 3), (2, 3)]
            await until(lambda: {value["version"] for value in states.kept.values()} == {3})
        grow(table)
        async with triggerer() as two:
            two.start(watching(table), "orders_too")
            two.start(watching(table, operation="MERGE"), "orders")
            assert short(await two.events()) == [(3, 4)]
            await settle()
            assert two.store_events() == []

    run(test)


def test_a_table_that_was_created_again_is_reported_as_that(table: Table, states: StateStores) -> None:
    async def test() -> None:
        async with triggerer() as one:
            grow(table)
            one.start(watching(table), "orders")
            await until(lambda: bool(states.kept))
            for info in table.store.list("_delta_log"):
                table.store.delete(info.path)
            grow(Table.create(table.uri, SCHEMA))
            (event,) = await one.events()
            assert (event["from_version"], event["version"], event["recreated"]) == (2, 1, True)

    run(test)


def test_without_shared_streams_each_trigger_looks_by_itself(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before Airflow 3.3."""
    monkeypatch.setattr(TableVersionTrigger, "shared_stream_key", lambda self: None)

    async def test() -> None:
        async with triggerer() as one:
            one.start(once(table, version=2))
            one.start(watching(table))
            await settle(streams=2)
            grow(table)
            assert short(await one.events(2)) == [(1, 2)] * 2

    run(test)


# --- whole tasks ----------------------------------------------------------------------------------------------------


def test_a_deferred_sensor_returns_what_the_trigger_found(
    dag_of: Callable[[str, str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXLOG_TEST_TABLE", str(tmp_path / "t"))
    grow(Table.create(str(tmp_path / "made"), SCHEMA))

    def appear() -> None:
        eventually(lambda: bool(LOOKS), "the trigger has looked for the table")
        (tmp_path / "made").rename(tmp_path / "t")

    growing = threading.Thread(target=appear)
    growing.start()
    try:
        dag_run = dag_of("waiting", "waiting").test()
    finally:
        growing.join()
    (wait,) = [ti for ti in dag_run.get_task_instances() if ti.task_id == "wait"]
    assert wait.state == "success"
    found = wait.xcom_pull(task_ids="wait")
    assert (found["from_version"], found["version"], found["operation"]) == (-1, 1, "WRITE")
