"""A task that runs shows its progress to the API server, and none of it is left when it has ended."""

from __future__ import annotations

import urllib.parse
from typing import Any

import pytest

from airflow_txlog.hooks.running_progress import STATE_KEY
from airflow_txlog.process.progress import JobProgress
from tests.airflow.scheduled.deployment import ENDED, Deployment
from tests.airflow.scheduled.jobs import Lake

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600), pytest.mark.long("a whole Airflow over PostgreSQL")]


def state(airflow: Deployment, run: str) -> dict[str, Any]:
    """What the task keeps in its state store, by key."""
    path = f"dags/race/dagRuns/{urllib.parse.quote(run)}/taskInstances/forget/state-store"
    return {entry["key"]: entry["value"] for entry in airflow.api("GET", path)["task_state_store"]}


def task_state(airflow: Deployment, run: str) -> str:
    (found,) = (task["state"] for task in airflow.tasks("race", run) if task["task_id"] == "forget")
    return str(found)


def test_the_api_server_has_the_step_and_the_files_of_a_running_task_and_nothing_after_it(airflow: Deployment) -> None:
    run, lake = "progress", Lake(airflow, "progress")
    for number in range(4):
        lake.append([{"id": number * 10 + each, "name": "a"} for each in range(10)])
    lake.hold("staging")
    airflow.trigger("race", run, table=lake.uri, ids=[3, 13, 23])
    lake.wait_for("staging")
    kept = airflow.until(lambda: state(airflow, run).get(STATE_KEY), "the progress is in the state store")
    found = JobProgress.from_dict(kept["progress"])
    assert found is not None
    assert (kept["try_number"], found.step, found.total, found.attempt) == (1, "rewrite", 3, 1)
    assert 0 <= found.done < 3
    assert found.bytes_total > 0
    lake.release("staging")
    # Whatever the other task of the DAG does.
    airflow.until(lambda: task_state(airflow, run) in ENDED, "the task has ended")
    assert airflow.status("race", run, "forget") == "committed"
    assert STATE_KEY not in state(airflow, run)
    log = airflow.task_log("race", run, 1, "forget")
    assert "staged 3 files" in log
    assert "txlog-progress" not in log
