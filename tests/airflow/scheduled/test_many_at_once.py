"""Runs at once on one table: each does its work once, and no conflict reaches Airflow."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tests.airflow.scheduled.deployment import Deployment
from tests.airflow.scheduled.jobs import Lake
from tests.helpers.depth import WHOLE, depth

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(3600),
    pytest.mark.long("a whole Airflow over PostgreSQL, and dozens of its tasks"),
]

DAYS = depth(4, 4, 30)
ROUNDS = depth(2, 2, 20)
PEOPLE = 400
DAILY_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])
PEOPLE_SCHEMA = pa.schema([("id", pa.int64()), ("score", pa.int64()), ("day", pa.int32())])


def day(number: int) -> dt.date:
    return dt.date(2024, 1, number)


def backfill(airflow: Deployment, dag_id: str, days: int, **more: Any) -> list[str]:
    """Run a DAG for its first days, eight at once; the runs' ids in order, each of which has ended in success."""
    dates = {"from_date": f"{day(1)}T00:00:00Z", "to_date": f"{day(days)}T00:00:00Z"}
    body = {"dag_id": dag_id, "max_active_runs": 8, "run_backwards": False, **dates, **more}
    backfill_id = airflow.api("POST", "backfills", body)["id"]
    airflow.until(
        lambda: airflow.api("GET", f"backfills/{backfill_id}")["completed_at"], f"the backfill of {dag_id} is over"
    )
    states = airflow.runs(dag_id)
    assert list(states.values()) == ["success"] * days
    return sorted(states)


@pytest.mark.parametrize("dag_id", ["daily", "daily_unscoped"] if WHOLE else ["daily_unscoped"])
def test_thirty_daily_runs_each_merge_their_day(airflow: Deployment, dag_id: str) -> None:
    """With a partition predicate and without, where each of them reads what the others change."""
    lake = Lake(airflow, dag_id, DAILY_SCHEMA, ["day"])
    lake.append([{"id": 1000 * n + i, "name": "old", "day": day(n)} for n in range(1, 31) for i in range(100)])
    runs = backfill(airflow, dag_id, DAYS, dag_run_conf={"table": lake.uri})

    assert sorted(run for run, _ in lake.commits()) == sorted(runs)
    assert {task["try_number"] for task in airflow.tasks(dag_id)} == {1}
    expected = {
        (1000 * n + i, "new" if n <= DAYS and i >= 50 else "old", day(n))
        for n in range(1, 31)
        for i in range(150 if n <= DAYS else 100)
    }
    rows = lake.table.to_arrow().to_pylist()
    assert {(row["id"], row["name"], row["day"]) for row in rows} == expected
    assert len(rows) == len(expected)


def test_forgotten_rows_are_in_no_version_after_their_delete(airflow: Deployment) -> None:
    """Each round forgets five people, by a job without Spark, while a merge rewrites everybody's score, and would
    insert whom it misses in the table that it read. Rounds overlap, so that merges meet merges too.
    """
    lake = Lake(airflow, "race", PEOPLE_SCHEMA, ["day"])
    lake.append([{"id": i, "score": 0, "day": i % 4} for i in range(PEOPLE)])
    forgotten = {f"round-{n}": list(range(5 * n, 5 * n + 5)) for n in range(ROUNDS)}
    for run, ids in forgotten.items():
        airflow.trigger("race", run, table=lake.uri, ids=ids)
    assert set(airflow.wait("race", forgotten).values()) == {"success"}

    assert {task["try_number"] for task in airflow.tasks("race")} == {1}
    assert Counter(run for run, _ in lake.commits()) == dict.fromkeys(forgotten, 2)
    gone: set[int] = set()
    merges = 0
    # Without the first, which made the table, and the second, which filled it.
    order = [(c["version"], c["operation"], c["readVersion"], c["tags"]) for c in lake.table.history() if c.get("tags")]
    for commit in reversed(lake.table.history()):
        rows = lake.table.to_arrow(version=commit["version"]).to_pylist()
        if commit["operation"] == "DELETE":
            gone.update(forgotten[commit["tags"]["airflow.run_id"]])
        merges += commit["operation"] == "MERGE"
        # Every version is what a serial order gives: none who is gone, none twice, every merge in every score.
        if rows:
            ids = [row["id"] for row in rows]
            scores = Counter(row["score"] for row in rows)
            back = [row for row in rows if row["id"] in gone]
            shown = f"version {commit['version']} after {merges} merges: scores {scores}, back {back}; commits {order}"
            assert sorted(ids) == sorted(set(range(PEOPLE)) - gone), shown
            assert set(scores) == {merges}, shown
    assert merges == ROUNDS
