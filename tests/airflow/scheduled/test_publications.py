"""Staged changes in a whole Airflow: published, rejected by a person, or not answered in time; pictures of each."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.airflow.scheduled.browser import CHROMEDRIVER, Browser
from tests.airflow.scheduled.deployment import Deployment
from tests.airflow.scheduled.jobs import Lake
from tests.helpers.depth import by_hand
from tests.helpers.jobs import files_on_disk
from tests.helpers.paths import ROOT

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(3600),
    pytest.mark.long("a whole Airflow over PostgreSQL"),
    by_hand("people who approve staged changes"),
]

PICTURES = ROOT / "build" / "pages"
ENDS = {
    "granted": ("success", {"publish": "success", "discard": "success"}),
    "rejected": ("success", {"publish": "skipped", "discard": "success"}),
    "timed_out": ("failed", {"publish": "upstream_failed", "discard": "success"}),
}


@pytest.fixture
def triggerer(airflow: Deployment) -> Iterator[None]:
    airflow.start_triggerer()
    yield
    airflow.end_triggerer(signal.SIGTERM)


def answer(airflow: Deployment, run_id: str, option: str) -> None:
    """Choose the option, once the task waits for it and the scheduler knows that its process has ended.

    Airflow 3.3 marks a task as failed if its scheduler reads that the process which began to wait has ended only after
    the task goes on (apache/airflow issues 71580 and 72716). A person takes longer than that.
    """
    path = f"dags/publishes/dagRuns/{run_id}/taskInstances/approve"
    airflow.until(lambda: airflow.api("GET", path)["state"] in ("deferred", "awaiting_input"), "it waits for a person")
    ended = f"TaskInstance Finished: dag_id=publishes, task_id=approve, run_id={run_id},"
    airflow.until(lambda: ended in airflow.log_of("scheduler"), "the scheduler knows that the process has ended")
    airflow.api("PATCH", f"{path}/-1/hitlDetails", {"chosen_options": [option]})


def test_a_staged_change_is_published_rejected_or_not_answered_in_time(airflow: Deployment, triggerer: None) -> None:
    lakes, before = {}, {}
    for run_id in ENDS:
        lake = lakes[run_id] = Lake(airflow, run_id)
        lake.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
        before[run_id] = files_on_disk(lake.table)
        airflow.trigger("publishes_in_time" if run_id == "timed_out" else "publishes", run_id, table=lake.uri)
    answer(airflow, "granted", "Approve")
    answer(airflow, "rejected", "Reject")
    found: dict[str, Any] = {**airflow.wait("publishes", ["granted", "rejected"])}
    found |= airflow.wait("publishes_in_time", ["timed_out"])
    for run_id, (state, tasks) in ENDS.items():
        dag_id = "publishes_in_time" if run_id == "timed_out" else "publishes"
        states = {each["task_id"].rpartition(".")[2]: each["state"] for each in airflow.tasks(dag_id, run_id)}
        assert (found[run_id], {name: states[name] for name in tasks}) == (state, tasks), told(airflow, run_id)
        table = lakes[run_id].table
        names = set(table.to_arrow().column("name").to_pylist())
        if run_id == "granted":
            assert (names, table.latest_version()) == ({"audited"}, 2)
            assert not [path for path in files_on_disk(table) if "txlog-inputs" in path]
        else:
            assert (names, files_on_disk(table)) == ({"a", "b"}, before[run_id]), run_id
    if CHROMEDRIVER.exists():
        take_pictures(airflow)


def told(airflow: Deployment, run_id: str) -> str:
    """The lines of the scheduler about a run."""
    return "\n".join(line for line in airflow.log_of("scheduler").splitlines() if run_id in line)


def take_pictures(airflow: Deployment) -> None:
    browser = Browser(airflow.folder / "browser-of-publications")
    try:
        browser.start()
        for run_id in ENDS:
            dag_id = "publishes_in_time" if run_id == "timed_out" else "publishes"
            browser.open(f"{airflow.address}/dags/{dag_id}/runs/{run_id}", "publish")
            browser.shows("discard")
            browser.picture(PICTURES / f"staged_{run_id}.png")
    finally:
        browser.stop()
