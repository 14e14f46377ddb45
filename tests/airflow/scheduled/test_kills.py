"""A SIGKILL of any process of a task, at any point: the run ends in success, and the table was changed once."""

from __future__ import annotations

import itertools

import pytest

from tests.airflow.scheduled.deployment import Deployment
from tests.airflow.scheduled.jobs import Lake, none_left
from tests.helpers.depth import WHOLE

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(3600),
    pytest.mark.long("a whole Airflow over PostgreSQL, and a start of Spark a job"),
]

POINTS = ("before", "staging", "after")
VICTIMS = ("task", "child", "jvm", "worker")
CASES = list(itertools.product(VICTIMS, POINTS)) if WHOLE else [("task", "after")]


@pytest.mark.parametrize(("victim", "point"), CASES)
def test_a_job_of_which_a_process_is_killed_ends_in_one_commit(airflow: Deployment, victim: str, point: str) -> None:
    run = f"{victim}-{point}"
    lake = Lake(airflow, run)
    lake.hold(point)
    airflow.trigger("works", run, table=lake.uri)
    held = lake.held(point, "works", run)
    held.kill(victim)
    if point == "after" and victim in ("jvm", "worker"):
        # The job itself waits, and has done its part.
        lake.release(point)
    # Also where a worker hangs, as it does here, what is left of the job ends by itself.
    none_left(held)

    assert airflow.wait("works", [run]) == {run: "success"}
    tries = int(airflow.task("works", run)["try_number"])
    assert [of for of, _ in lake.commits()] == [run]
    assert sorted(lake.table.to_arrow(columns=["id"])["id"].to_pylist()) == [0, 1, 2]
    if point == "after":
        # Only the end of the task itself costs a try; what else died had done its part.
        assert tries == (2 if victim == "task" else 1)
        assert airflow.status("works", run, "append") == (
            "committed" if victim in ("jvm", "worker") else "already_done"
        )
    else:
        assert tries == 2
    # A retry of what has landed answers before Spark starts.
    starts_spark = "starting Spark" in airflow.task_log("works", run, tries)
    assert starts_spark == (point != "after" or victim != "task")
