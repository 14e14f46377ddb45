"""The default runner with real jobs: a child process with a Spark of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract import JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidPredicate, MissingResult
from airflow_txlog.runners.child_process import ChildProcessRunner
from tests.airflow.racing import PLANNED

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A hundred users in one file, made without Spark, at version 1."""
    rows = pa.table({"user_id": pa.array(range(100), pa.int64())})
    table = Table.create(str(tmp_path / "users"), rows.schema)
    path = tmp_path / "users" / "part-0.parquet"
    pq.write_table(rows, path)
    tx = table.begin()
    tx.add(path=path.name, partition_values={}, size=path.stat().st_size, modification_time=1, stats=None)
    tx.commit("WRITE", {}, {})
    monkeypatch.setenv("TXLOG_TEST_TABLE", table.uri)
    return table


def runs(process: psutil.Process) -> bool:
    """Whether it runs; a zombie that nobody has reaped does not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_task_runs_its_job_in_a_child_by_default(users: Table, dag_of: Callable[[str, str], Any]) -> None:
    dag_run = dag_of("outcomes", "in_a_child").test()
    (ti,) = dag_run.get_task_instances()
    assert (ti.state, ti.try_number) == ("success", 1)
    assert users.to_arrow().num_rows == 99
    assert users.snapshot().version == 2


def test_a_child_tells_its_typed_error_and_quiet_lines(users: Table) -> None:
    lines: list[str] = []
    spec = JobSpec(operation="delete", table_uri=users.uri, arguments={"predicate": "user_id = 1)"})
    with pytest.raises(InvalidPredicate):
        ChildProcessRunner().run(spec, log=lines.append)
    assert not [line for line in lines if "WARN" in line or "log4j" in line or "incubator" in line]


def test_a_child_that_is_killed_leaves_no_commit_and_no_process(users: Table) -> None:
    runner = ChildProcessRunner()
    spec = JobSpec(operation="delete", table_uri=users.uri, arguments={"predicate": "user_id = 42"})
    others = set(psutil.Process().children(recursive=True))
    started: dict[psutil.Process, str] = {}

    def kill_when_it_has_planned(line: str) -> None:
        if PLANNED in line:
            started.update({p: p.name() for p in psutil.Process().children(recursive=True) if p not in others})
            threading.Thread(target=runner.kill).start()

    with pytest.raises(MissingResult, match="was stopped"):
        runner.run(spec, log=kill_when_it_has_planned)
    assert "java" in started.values()
    deadline = time.monotonic() + 15
    while left := [name for process, name in started.items() if runs(process)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert users.snapshot().version == 1
    assert users.to_arrow().num_rows == 100
