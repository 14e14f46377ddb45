"""TRUNCATE and RESTORE in a real DAG run: templated, told in XCom, exactly once, and without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.jobs import ids, rows
from tests.helpers.rows import make_table

pytestmark = pytest.mark.airflow


@pytest.mark.long("a DAG of three tasks, whose operators are shown elsewhere")
def test_a_table_is_emptied_and_what_it_held_is_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dag_of: Callable[[str, str], Any]
) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(5, start=50))
    before = ids(table)
    monkeypatch.setenv("TXLOG_TEST_TABLE", str(tmp_path / "t"))
    sessions: list[Any] = []
    monkeypatch.setattr("airflow_txlog.jobs.spark.session.local_session", sessions.append)
    run = dag_of("log_jobs", "empty_and_undo").test()
    assert run.state == "success"
    assert sessions == []
    told = {ti.task_id: ti.xcom_pull(task_ids=ti.task_id) for ti in run.get_task_instances()}
    assert (told["empty"]["version"], told["empty"]["metrics"]["numDeletedRows"]) == (3, 15)
    assert (told["undo"]["version"], told["undo"]["files"]["added"]) == (4, 2)
    assert [entry["operation"] for entry in table.history(2)] == ["RESTORE", "TRUNCATE"]
    assert ids(table) == before
    # Each commit carries its task's transaction.
    assert len(table.snapshot().state.transactions) == 2
