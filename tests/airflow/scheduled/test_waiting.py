"""Tasks that wait in a triggerer, and DAGs that a table's versions schedule: no SIGKILL and no lost event does harm."""

from __future__ import annotations

import random
import signal
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.airflow.scheduled.deployment import Deployment
from tests.airflow.scheduled.jobs import Lake, none_left
from tests.conftest import REPORTED
from tests.helpers.depth import by_hand, depth

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600), pytest.mark.long("a whole Airflow over PostgreSQL")]

TASKS = depth(20, 20, 200)
TABLES = 4
FOLLOWING = ("followed", "followed_too")
WAIT_S, LEAST_WAITS, MOST_WAITS = 5, 4, 100
MOST_CPU_OF_A_CORE = 0.2
SEED, COMMITS = 7, depth(12, 12, 40)
VERSION_SCHEMA = pa.schema([("version", pa.int64())])


@pytest.fixture
def triggerer(airflow: Deployment) -> Iterator[None]:
    """Runs, or was killed, until the test is over."""
    airflow.start_triggerer()
    yield
    airflow.end_triggerer(signal.SIGTERM)


def grow(lake: Lake) -> None:
    lake.append([{"id": 1, "name": "a"}])


def events(airflow: Deployment, asset: str) -> list[tuple[int, int]]:
    """The jumps that Airflow has stored, in order."""

    def asked() -> list[dict[str, Any]] | None:
        try:
            path = f"assets/events?asset_id={asset_id(airflow, asset)}&order_by=timestamp&limit=1000"
            return [event["extra"]["payload"] for event in airflow.api("GET", path)["asset_events"]]
        except urllib.error.HTTPError as error:
            # So Airflow 3.3 answers while a run that came of an event has no start yet.
            if error.code != 500:
                raise
            return None

    return [(found["from_version"], found["version"]) for found in airflow.until(asked, f"the events of {asset}")]


def asset_id(airflow: Deployment, name: str) -> int:
    (found,) = (asset for asset in airflow.api("GET", "assets?limit=1000")["assets"] if asset["name"] == name)
    return int(found["id"])


def kept(airflow: Deployment, asset: str) -> list[int]:
    """How far the asset's events went, as its state store has it."""
    found = airflow.api("GET", f"assets/{asset_id(airflow, asset)}/state-store")["asset_state_store"]
    return [entry["value"]["version"] for entry in found if entry["key"].startswith("txlog_version_")]


def quiet_share_of_a_core(airflow: Deployment, lakes: list[Lake]) -> float:
    """Wait while nothing happens; returns the share of a core that the triggerer uses. Each table is looked at for all
    that wait for it, and nothing blocks the loop: a busy machine may hold it up too, but not in all of the waits.
    """
    used_s, began_s = airflow.cpu_of_triggerer_s(), time.monotonic()
    warnings: list[int] = []
    while len(warnings) < LEAST_WAITS or 0 not in warnings:
        assert len(warnings) < MOST_WAITS, f"warnings of a blocked loop in each of the waits: {warnings}"
        from_character, wait_began_s = len(airflow.log_of("triggerer")), time.monotonic()
        for lake in lakes:
            lake.count_looks()
        time.sleep(WAIT_S)
        airflow.until(lambda: all(lake.looks for lake in lakes), "every table is looked at")
        looks = [lake.looks for lake in lakes]
        assert all(number <= time.monotonic() - wait_began_s + 1 for number in looks), looks
        warnings.append(airflow.log_of("triggerer")[from_character:].count("async thread was blocked"))
    return (airflow.cpu_of_triggerer_s() - used_s) / (time.monotonic() - began_s)


@by_hand("a minute and a half; the tests of the trigger have its rules")
@pytest.mark.usefixtures("triggerer")
def test_tasks_wait_in_a_triggerer_that_is_killed_and_each_goes_on_once(
    airflow: Deployment, record_property: Callable[[str, object], None]
) -> None:
    lakes = [Lake(airflow, f"waited-{n}") for n in range(TABLES)]
    followed = Lake(airflow, "followed")
    for lake in lakes:
        grow(lake)
    airflow.trigger("waits", "many", tables=[lakes[n % TABLES].uri for n in range(TASKS)])

    def waiting() -> list[dict[str, Any]]:
        return [task for task in airflow.tasks("waits", "many") if task["task_id"] == "wait"]

    def states() -> Counter[str]:
        return Counter(task["state"] for task in waiting())

    airflow.until(lambda: states() == {"deferred": TASKS}, "every task is deferred")
    for lake in lakes:
        lake.count_looks()
    airflow.until(lambda: all(lake.looks for lake in lakes), "every table is looked at")
    share = quiet_share_of_a_core(airflow, lakes)
    record_property(REPORTED, f"{TASKS} tasks wait for {TABLES} tables, looked at each second: {share:.1%} of a core")
    assert share < MOST_CPU_OF_A_CORE
    grow(followed)

    def until_kept(version: int) -> None:
        airflow.until(lambda: all(kept(airflow, asset) == [version] for asset in FOLLOWING), f"{version} is kept")

    until_kept(1)

    # Killed while the tasks of a table go on; the next has its version while there is no triggerer.
    grow(lakes[0])
    airflow.until(lambda: states()["deferred"] < TASKS, "the first is on its way")
    airflow.end_triggerer(signal.SIGKILL)
    for lake in (lakes[1], followed, followed):
        grow(lake)
    airflow.start_triggerer()
    until_kept(3)
    for lake in (*lakes[2:], followed):
        grow(lake)
    assert airflow.wait("waits", ["many"]) == {"many": "success"}
    until_kept(4)

    assert {(task["state"], task["try_number"]) for task in waiting()} == {("success", 1)}
    logs = airflow.folder / "logs" / "dag_id=waits" / "run_id=many" / "task_id=wait"
    reached = [path.read_text().count("is at version 2: reached") for path in logs.rglob("attempt=1.log")]
    assert reached == [1] * TASKS
    assert [events(airflow, asset) for asset in FOLLOWING] == [[(0, 1), (1, 3), (3, 4)]] * 2


@pytest.mark.usefixtures("triggerer")
def test_each_version_is_processed_once_though_events_are_dropped_and_a_run_is_killed(airflow: Deployment) -> None:
    """Airflow drops what comes for a DAG that is paused."""
    choose = random.Random(SEED)
    orders, processed = Lake(airflow, "orders"), Lake(airflow, "processed", VERSION_SCHEMA)

    def paused(is_paused: bool) -> None:
        airflow.api("PATCH", "dags/processes?update_mask=is_paused", {"is_paused": is_paused})

    def queued() -> int:
        return int(airflow.api("GET", "dags/processes/assets/queuedEvents")["total_entries"])

    def done() -> list[int]:
        found: list[int] = processed.table.to_arrow()["version"].to_pylist()
        return sorted(found)

    def commit() -> None:
        grow(orders)
        airflow.until(lambda: kept(airflow, "orders") == [orders.table.snapshot().version], "its event is stored")

    dropped = 0
    for number in range(1, COMMITS + 1):
        if number < COMMITS and choose.random() < 0.6:
            airflow.until(lambda: queued() == 0, "what was queued before is a run")
            paused(True)
            commit()
            assert queued() == 0
            paused(False)
            dropped += 1
        else:
            commit()
        if number == COMMITS // 2:
            processed.hold("after")
            commit()
            processed.wait_for("after")
            (run,) = (run for run, state in airflow.runs("processes").items() if state == "running")
            held = processed.held("after", "processes", run)
            held.kill("task")
            none_left(held)
    versions = list(range(1, orders.table.snapshot().version + 1))
    airflow.until(lambda: done()[-1:] == versions[-1:] and queued() == 0, "the last version is processed")
    assert set(airflow.wait("processes", airflow.runs("processes")).values()) == {"success"}
    assert done() == versions
    assert dropped > COMMITS // 4
    assert len(airflow.runs("processes")) <= len(versions) - dropped
