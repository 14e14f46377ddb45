"""What is done again and what is not: clears, edits, backfills, runs that are made again, copies of one task."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.airflow.scheduled.deployment import Deployment
from tests.airflow.scheduled.jobs import Held, Lake, is_alive, none_left, parent_of
from tests.airflow.scheduled.test_many_at_once import DAILY_SCHEMA, backfill, day
from tests.helpers.depth import WHOLE, by_hand

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600), pytest.mark.long("a whole Airflow over PostgreSQL")]

WORK = "warm_works"


class Run:
    """One run of the work that appends three rows, on a table of its own."""

    def __init__(self, airflow: Deployment, name: str) -> None:
        self.name, self.lake, self._airflow = name, Lake(airflow, name), airflow

    def start(self, *points: str) -> None:
        for point in points:
            self.lake.hold(point)
        self._airflow.trigger(WORK, self.name, table=self.lake.uri)

    def held(self, point: str) -> Held:
        return self.lake.held(point, WORK, self.name)

    def ends(self, state: str = "success") -> None:
        assert self._airflow.wait(WORK, [self.name]) == {self.name: state}

    def clear(self) -> None:
        self._airflow.clear(WORK, self.name, "append")

    def set_state(self, state: str) -> None:
        path = f"dags/{WORK}/dagRuns/{self.name}/taskInstances/append"
        self._airflow.api("PATCH", path, {"new_state": state})

    @property
    def task(self) -> dict[str, Any]:
        return self._airflow.task(WORK, self.name)

    @property
    def tries(self) -> list[int]:
        """The tries that committed, in the order of the versions; each added its three rows."""
        found = self.lake.commits()
        assert sorted(self.lake.table.to_arrow(columns=["id"])["id"].to_pylist()) == sorted([0, 1, 2] * len(found))
        assert {run for run, _ in found} <= {self.name}
        return [number for _, number in found]

    @property
    def status(self) -> str:
        return self._airflow.status(WORK, self.name, "append")


@pytest.fixture
def run(airflow: Deployment, request: pytest.FixtureRequest) -> Run:
    return Run(airflow, request.node.name.removeprefix("test_").replace("_", "-"))


def test_cleared(run: Run) -> None:
    """A clear does the work again; and so does one after that."""
    run.start()
    run.ends()
    for number in (2, 3) if WHOLE else (2,):
        run.clear()
        run.ends()
        assert (run.status, run.tries) == ("committed", list(range(1, number + 1)))


@by_hand("a minute; test_identity has its rule")
def test_cleared_while_it_runs(run: Run) -> None:
    """The job of the first try is ended before it commits, and the cleared task does the work."""
    run.start("staging")
    held = run.held("staging")
    run.clear()
    none_left(held)
    run.lake.release("staging")
    run.ends()
    assert run.tries == [2]


@by_hand("a minute; test_identity has its rule")
def test_cleared_after_its_commit_and_before_its_end(run: Run) -> None:
    """Airflow ends a task that is cleared while it runs, and retries it: the retry finds the work done. Cleared once
    more, it is done again.
    """
    run.start("after")
    held = run.held("after")
    run.clear()
    none_left(held)
    run.ends()
    assert (run.task["try_number"], run.status, run.tries) == (2, "already_done", [1])
    run.clear()
    run.ends()
    assert (run.status, run.tries) == ("committed", [1, 3])


@by_hand("a minute; test_identity has its rule")
def test_marked_success_while_it_runs(run: Run) -> None:
    """The job is ended, and nothing is committed; a clear then does the work."""
    run.start("staging")
    held = run.held("staging")
    run.set_state("success")
    none_left(held)
    run.lake.release("staging")
    run.ends()
    assert run.tries == []
    run.clear()
    run.ends()
    assert run.tries == [int(run.task["try_number"])]


@by_hand("a minute; test_identity has its rule")
def test_marked_success_after_its_commit(run: Run) -> None:
    """What was committed stays; a clear does the work again."""
    run.start("after")
    held = run.held("after")
    run.set_state("success")
    none_left(held)
    run.ends()
    assert run.tries == [1]
    run.clear()
    run.ends()
    assert len(run.tries) == 2


@by_hand("a minute; test_identity has its rule")
def test_marked_failed_while_it_runs(run: Run) -> None:
    run.start("staging")
    held = run.held("staging")
    run.set_state("failed")
    none_left(held)
    run.lake.release("staging")
    run.ends("failed")
    assert run.tries == []
    run.clear()
    run.ends()
    assert run.tries == [int(run.task["try_number"])]


@by_hand("a minute; test_retry_or_clear has its rule")
def test_retries_edited_mid_run(airflow: Deployment, run: Run) -> None:
    """The DAG gets other retries between the commit and the retry, which still finds the work done."""
    run.start("after")
    held = run.held("after")
    airflow.edit_dags(retries=5)
    try:
        held.kill("task")
        run.ends()
        assert (run.task["try_number"], run.status, run.tries) == (2, "already_done", [1])
        # Two tries and no retries: `max_tries` of the cleared task is what it was.
        airflow.edit_dags(retries=0)
        run.clear()
        run.ends()
        assert (run.task["max_tries"], run.status, run.tries) == (2, "committed", [1, 3])
    finally:
        airflow.edit_dags(retries=2)


@by_hand("a minute; test_identity has its rule")
def test_deleted_and_made_again(airflow: Deployment, run: Run) -> None:
    """A run of the same name is other work."""
    run.start()
    run.ends()
    airflow.api("DELETE", f"dags/{WORK}/dagRuns/{run.name}")
    run.start()
    run.ends()
    assert (run.status, run.tries) == ("committed", [1, 1])


def test_mapped_and_one_killed_after_its_commit(airflow: Deployment) -> None:
    """Each mapped task is work of its own. One dies after its commit, when another has been cleared, which Airflow
    counts for the run as a whole: the retry finds its work done, and only the cleared one does it again.
    """
    dag_id, run_id = "mapped_works", "mapped"
    lake = Lake(airflow, "mapped")
    lake.hold("after")
    airflow.trigger(dag_id, run_id, table=lake.uri)
    paused = lake.wait_for("after")
    held = Held.of(parent_of(paused), paused)

    def others() -> dict[int, str]:
        tasks = airflow.tasks(dag_id, run_id)
        return {task["map_index"]: task["state"] for task in tasks if task["pid"] != held.task}

    airflow.until(lambda: list(others().values()) == ["success"] * 2, "the other mapped tasks have ended")
    (killed,) = {0, 1, 2} - set(others())
    cleared, other = others()
    airflow.clear(dag_id, run_id, "append", cleared)
    held.kill("task")
    none_left(held)
    assert airflow.wait(dag_id, [run_id]) == {run_id: "success"}

    assert lake.tries_by_map_index() == {killed: [1], cleared: [1, 2], other: [1]}
    assert {task["map_index"]: task["try_number"] for task in airflow.tasks(dag_id, run_id)} == {
        killed: 2,
        cleared: 2,
        other: 1,
    }
    assert airflow.status(dag_id, run_id, "append", killed) == "already_done"
    rows = lake.table.to_arrow(columns=["id"])["id"].to_pylist()
    assert sorted(rows) == sorted([*range(9), *range(3 * cleared, 3 * cleared + 3)])


@by_hand("two minutes; test_identity has its rule")
def test_dags_test_twice(airflow: Deployment) -> None:
    """`airflow dags test` makes a run of another name each time, also for the same date: its work is new. The scheduler
    beside it may take a task of such a run too, and of two copies one commits.
    """
    lake = Lake(airflow, "tested-twice")
    for _ in range(2):
        airflow.test_dag(WORK, "2024-01-31", table=lake.uri)
    (first, _), (second, _) = lake.commits()
    assert first != second
    # The run of the same date was deleted for the second one.
    assert [run in airflow.runs(WORK) for run in (first, second)] == [False, True]
    assert sorted(lake.table.to_arrow(columns=["id"])["id"].to_pylist()) == [0, 0, 1, 1, 2, 2]


@by_hand("two backfills")
def test_backfill_that_reprocesses(airflow: Deployment) -> None:
    """A backfill over runs that have succeeded does their work again: here a merge, which leaves the same rows."""
    lake = Lake(airflow, "reprocessed", DAILY_SCHEMA, ["day"])
    lake.append([{"id": 1000 + i, "name": "old", "day": day(1)} for i in range(100)])
    conf = {"table": lake.uri}
    first = backfill(airflow, "daily_again", 2, dag_run_conf=conf)
    rows = sorted(map(str, lake.table.to_arrow().to_pylist()))
    assert backfill(airflow, "daily_again", 2, dag_run_conf=conf, reprocess_behavior="completed") == first
    assert sorted(run for run, _ in lake.commits()) == sorted([*first, *first])
    assert sorted(map(str, lake.table.to_arrow().to_pylist())) == rows


@by_hand("Airflow gives up a worker after two minutes")
@pytest.mark.parametrize("point", ["staging", "after"])
def test_two_copies_at_once(airflow: Deployment, point: str) -> None:
    """A worker stands still for so long that Airflow gives its task up and tries again; then it goes on."""
    run = Run(airflow, f"two-copies-{point}")
    run.start(point)
    held = run.held(point)
    supervisor = supervisor_of(held)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        airflow.until(lambda: int(run.task["try_number"]) == 2, "the task is tried again")
        if point == "staging":
            airflow.until(lambda: run.tries == [2], "the second try has committed")
        else:
            run.ends()
        assert held.left(), "the first copy is still there"
        run.lake.release(point)
        airflow.until(lambda: not is_alive(held.child), "the first copy has ended by itself")
    finally:
        os.kill(supervisor, signal.SIGCONT)
    run.ends()
    assert (run.task["try_number"], run.tries) == (2, [2] if point == "staging" else [1])
    none_left(held)


def supervisor_of(held: Held) -> int:
    """The process that sends the task's heartbeats."""
    return parent_of(held.task)
