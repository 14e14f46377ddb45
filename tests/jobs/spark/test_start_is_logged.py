"""The start of Spark in the log and among a job's steps; no Spark is started."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.wording import summary_lines
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.spark.launch import starts_for_little
from airflow_txlog.jobs.spark.progress import STARTING, logged_while_starting
from airflow_txlog.storage.limits import MIB
from tests.helpers.jobs import rows
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec


def test_a_start_that_takes_long_is_logged_while_it_lasts() -> None:
    lines: list[str] = []
    with logged_while_starting(lines.append, every_s=0.05):
        end_s = time.monotonic() + 30
        while len(lines) < 2 and time.monotonic() < end_s:
            time.sleep(0.01)
    assert lines[0] == "Spark is starting, 0 s"
    logged = len(lines)
    time.sleep(0.2)
    assert len(lines) == logged


def test_the_start_of_spark_is_a_step_of_the_job(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))

    def start() -> Any:
        time.sleep(0.2)
        raise OSError("no Spark here")

    spec = job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "octet_length(name) = 1"})
    result = run_job(spec, None, start=start)
    taken = {step["name"]: step["seconds"] for step in result.steps}
    assert taken[STARTING] >= 0.2
    # What was tried without counts, too.
    assert list(taken) == ["open", "plan", "check", STARTING]


@pytest.mark.parametrize(
    ("operation", "arguments", "size_bytes", "num_records", "is_little"),
    [
        ("delete", {"predicate": "octet_length(name) = 1"}, 1000, 10, True),
        ("update", {"set": {"name": "reverse(name)"}}, 1000, 10, True),
        ("delete", {"predicate": "octet_length(name) = 1"}, 64 * MIB, 10, False),
        ("delete", {"predicate": "octet_length(name) = 1"}, 1000, 2_000_000, False),
        ("delete", {"predicate": "octet_length(name) = 1"}, 1000, None, False),
        ("write", {"source": {"sql": "SELECT 1 AS id"}}, 1000, 10, False),
        ("delete", {"predicate": None, "keys": {"column": "id", "source": {"sql": "SELECT 1 AS id"}}}, 1000, 10, False),
    ],
)
def test_a_spark_starts_for_little_where_all_that_the_job_can_read_is_small(
    tmp_path: Path,
    operation: str,
    arguments: dict[str, Any],
    size_bytes: int,
    num_records: int | None,
    is_little: bool,
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    transaction = table.begin()
    stats = None if num_records is None else json.dumps({"numRecords": num_records})
    transaction.add(path="f.parquet", size=size_bytes, modification_time=0, stats=stats)
    transaction.commit("WRITE", {})
    asked: list[bool] = []

    def start() -> Any:
        asked.append(starts_for_little.get())
        raise OSError("no Spark here")

    spec = job_spec(operation=operation, table_uri=table.uri, arguments=arguments, unrestricted=("query",))
    assert run_job(spec, None, start=start).status == "failed"
    assert asked == [is_little]


def test_each_step_is_shown_once_and_the_rest_is_named() -> None:
    steps = [{"name": name, "seconds": 1.0} for name in ("open", "plan", "plan", "commit")]
    result = JobResult(status="committed", operation="write", table_uri="/t", version=1, read_version=0, steps=steps)
    assert summary_lines(result, 4.3)[1] == "steps: open 1.0 s, plan 2.0 s, commit 1.0 s"
    assert summary_lines(result, 64.0)[1] == "steps: open 1.0 s, plan 2.0 s, commit 1.0 s, other 60.0 s"
