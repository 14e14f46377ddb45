"""The example of increments as a scheduler runs it: bronze, silver and gold, each started by the events of the last."""

from __future__ import annotations

import os
import signal

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.watermarks import watermarks_of
from tests.airflow.scheduled.deployment import Deployment
from tests.airflow.scheduled.jobs import Lake, is_alive
from tests.helpers.depth import by_hand

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(3600),
    pytest.mark.long("a whole Airflow over PostgreSQL, and a start of Spark a job"),
    by_hand("minutes of Spark starts; the chaos of increments and test_waiting have its rules"),
]
DAY = "2013-01-01"


def totals(airflow: Deployment) -> list[tuple[int, float]]:
    uri = str(airflow.folder / "lake" / "orders_gold")
    if not Table.exists(uri):
        return []
    return [(row["orders"], row["amount"]) for row in Table.open(uri).to_arrow().to_pylist()]


def land(airflow: Deployment, run: str) -> None:
    airflow.trigger("increments_bronze", run, day=DAY)
    assert airflow.wait("increments_bronze", [run]) == {run: "success"}


def killed_after_its_commit(airflow: Deployment, lake: Lake) -> None:
    """Kill the task that has committed to the table, which nobody knows yet."""
    paused = lake.wait_for("after")
    os.kill(paused, signal.SIGKILL)
    airflow.until(lambda: not is_alive(paused), "the task is gone")


def test_every_order_is_taken_once_though_tasks_are_killed_and_events_are_dropped(airflow: Deployment) -> None:
    """Each day has three valid orders, of 0, 1 and 2. Airflow drops what comes for a DAG that is paused."""
    land(airflow, "first")
    airflow.until(lambda: totals(airflow) == [(3, 3.0)], "gold has the first orders")
    silver, gold = (Lake(airflow, f"orders_{name}", schema=None) for name in ("silver", "gold"))

    def paused(name: str, is_paused: bool) -> None:
        airflow.api("PATCH", f"dags/increments_{name}?update_mask=is_paused", {"is_paused": is_paused})

    # The event of bronze is dropped, and later that of silver.
    paused("silver", True)
    land(airflow, "dropped")
    paused("silver", False)
    before = silver.table.latest_version()
    silver.hold("after")
    paused("gold", True)
    land(airflow, "killed")
    killed_after_its_commit(airflow, silver)
    airflow.until(lambda: set(airflow.runs("increments_silver").values()) == {"success"}, "silver is tried again")
    assert silver.table.latest_version() == before + 1
    assert max(task["try_number"] for task in airflow.tasks("increments_silver")) == 2
    assert silver.table.to_arrow().num_rows == 9
    paused("gold", False)

    gold.hold("after")
    land(airflow, "last")
    killed_after_its_commit(airflow, gold)
    airflow.until(lambda: totals(airflow) == [(12, 12.0)], "gold has all orders")
    for name in ("bronze", "silver", "gold"):
        runs = airflow.runs(f"increments_{name}")
        assert set(airflow.wait(f"increments_{name}", runs).values()) == {"success"}, name
    assert totals(airflow) == [(12, 12.0)]
    # Two events were dropped: fewer runs than orders landed.
    assert [len(airflow.runs(f"increments_{name}")) for name in ("bronze", "silver", "gold")] == [4, 3, 2]
    source = silver.table.latest_version()
    assert watermarks_of(gold.table.snapshot().state.domains)["gold"].version == source
