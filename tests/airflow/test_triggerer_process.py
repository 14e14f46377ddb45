"""A triggerer of its own process and a database: two hundred tasks that wait, an asset that is watched, a SIGKILL."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.triggers.table_version import TableVersionTrigger
from tests.helpers.depth import by_hand

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.long("two starts of a triggerer, and a minute of waiting"),
    by_hand("goes by the clock; test_table_version_trigger has its parts"),
]

TASKS = 200
MOST_CPU_OF_A_CORE = 0.15


def grow(table: Table) -> int:
    tx = table.begin()
    assert tx.snapshot is not None
    tx.add(path=f"{tx.snapshot.version}", partition_values={}, size=1)
    return tx.commit("WRITE")


class TriggererProcess:
    def __init__(self, log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs", "--capacity", str(2 * TASKS)]
        with log.open("a") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

    def cpu_s(self) -> float:
        """Seconds of CPU that all its processes have used."""
        used = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid:
                used += int(fields[11]) + int(fields[12])
        return used / os.sysconf("SC_CLK_TCK")

    def end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
            self.process.wait(60)


def until(reached: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.3)


def events() -> dict[str, list[tuple[int, int]]]:
    """The jumps that Airflow has stored, by asset."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    found: dict[str, list[tuple[int, int]]] = {"watched": [], "watched_too": []}
    with create_session() as session:
        for event in session.query(AssetEvent).order_by(AssetEvent.id):
            if event.asset.name in found:
                payload = event.extra["payload"]
                found[event.asset.name].append((payload["from_version"], payload["version"]))
    return found


def states() -> Counter[str]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        return Counter(str(ti.state) for ti in session.query(TaskInstance).filter_by(dag_id="waits_for_the_watched"))


def assigned() -> int:
    """How many triggers a triggerer has taken."""
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session

    with create_session() as session:
        return session.query(Trigger).filter(Trigger.triggerer_id.is_not(None)).count()


def defer(trigger: Callable[[], TableVersionTrigger]) -> None:
    """As many deferred tasks as two hundred workers would have left."""
    from airflow.models.dagbag import DBDagBag
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunType

    with create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag("waits_for_the_watched", session=session)
        assert dag is not None
        for number in range(TASKS):
            run: Any = dag.create_dagrun(
                run_id=f"run_{number}",
                run_type=DagRunType.MANUAL,
                run_after=dt.datetime.now(dt.UTC),
                logical_date=None,
                state=DagRunState.RUNNING,
                triggered_by=None,  # type: ignore[arg-type]
                session=session,
            )
            (ti,) = run.task_instances
            row = Trigger.from_object(trigger())
            session.add(row)
            session.flush()
            ti.state, ti.trigger_id = TaskInstanceState.DEFERRED, row.id
            ti.next_method, ti.next_kwargs = "execute_complete", {}


def test_two_hundred_tasks_wait_in_a_triggerer_that_loses_and_repeats_nothing(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, log = tmp_path / "orders", tmp_path / "triggerer.log"
    monkeypatch.setenv("TXLOG_TEST_TABLE", str(lake))
    table = Table.create(str(lake), pa.schema([("id", pa.int64())]))
    grow(table)
    subprocess.run([sys.executable, "-m", "airflow", "dags", "reserialize"], check=True, capture_output=True)
    defer(lambda: TableVersionTrigger(str(lake), newer_than=1, checked={"version": 1}, once=True, poke_interval=1))

    triggerer = TriggererProcess(log)
    try:
        until(lambda: assigned() > TASKS)
        time.sleep(10)
        quiet_from, used_s, began_s = len(log.read_text()), triggerer.cpu_s(), time.monotonic()
        time.sleep(20)
        share = (triggerer.cpu_s() - used_s) / (time.monotonic() - began_s)
        # When all fire in one moment Airflow's own bookkeeping of two hundred events may hold up the loop.
        assert "was blocked" not in log.read_text()[quiet_from:]
        grow(table)
        until(lambda: states()["deferred"] == 0, 30)
        until(lambda: events() == {"watched": [(1, 2)], "watched_too": [(1, 2)]})
        # How far events went is kept a moment after Airflow stored them.
        time.sleep(3)
        triggerer.end(signal.SIGKILL)
        grow(table)
        grow(table)
        triggerer = TriggererProcess(log)
        until(lambda: len(events()["watched"]) == 2)
        grow(table)
        until(lambda: len(events()["watched"]) == 3)
        time.sleep(3)
        assert events() == {name: [(1, 2), (2, 4), (4, 5)] for name in ("watched", "watched_too")}
        assert states() == {"scheduled": TASKS}
        with capsys.disabled():
            print(f"{TASKS} tasks that wait, looked for each second: {share:.1%} of a core")
        assert share < MOST_CPU_OF_A_CORE
    finally:
        triggerer.end(signal.SIGTERM)
