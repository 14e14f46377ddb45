"""ROLLBACK as a job: planned again when another commit lands first, and done work that was undone is done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from airflow_txlog.engine import Table
from airflow_txlog.exactly_once.transactions import recorded_work
from airflow_txlog.jobs.run import run_job
from tests.helpers.jobs import application, committed, error_of, ids, rows
from tests.helpers.rows import append, make_table, overwrite
from tests.helpers.specs import job_spec

RUN = {"airflow.dag_id": "orders", "airflow.run_id": "r1", "airflow.task_id": "load"}


def rollback(table: Table, *, log: Any = None, **more: Any) -> JobResult:
    arguments = {"of_dag_id": "orders", "run_id": "r1"}
    return run_job(job_spec(operation="rollback", table_uri=table.uri, arguments=arguments, **more), None, log=log)


def landing(table: Table, *commits: Any) -> Any:
    """A log that lets others commit once the job has planned, once for each of these."""
    left = list(commits)

    def log(line: str) -> None:
        if ", which undoes " in line and left:
            left.pop(0)()

    return log


def test_a_commit_that_lands_first_is_not_undone_with_the_run(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    append(table, rows(3, start=10), tags=RUN)
    other = Table.open(table.uri)
    log = landing(table, lambda: append(other, rows(1, start=50)), lambda: append(other, rows(1, start=60)))
    result = committed(rollback(table, log=log))
    assert (result.attempts, result.metrics["numRemovedFiles"], result.files["removed"]) == (3, 1, 1)
    assert ids(table) == [0, 1, 2, 50, 60]
    assert rollback(table).status == "nothing_to_do"


def test_a_commit_that_lands_first_and_is_in_the_way_is_named(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    append(table, rows(3, start=10), tags=RUN)
    other = Table.open(table.uri)
    error = error_of(rollback(table, log=landing(table, lambda: overwrite(other, rows(1)))))
    assert (error["type"], error["facts"]["in_the_way"]) == ("CannotRollBack", {table.uri: [3]})
    assert "version 3 (WRITE by airflow_txlog/" in error["message"]
    assert table.latest_version() == 3


def test_others_that_keep_landing_end_the_job_at_its_deadline(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    append(table, rows(3, start=10), tags=RUN)
    other = Table.open(table.uri)
    log = landing(table, *[lambda: append(other, rows(1, start=50))] * 3)
    assert error_of(rollback(table, log=log, conflict_deadline_s=0))["type"] == "ConcurrentWrite"


def truncate(table: Table, work: ApplicationTransaction, lines: list[str]) -> JobResult:
    annotations = {name.partition(".")[2]: text for name, text in RUN.items()}
    spec = job_spec(operation="truncate", table_uri=table.uri, application=work, annotations=annotations)
    return run_job(spec, None, log=lines.append)


def test_work_that_was_undone_is_done_again_by_a_retry_and_under_a_key(tmp_path: Path) -> None:
    table, lines = make_table(tmp_path / "t", rows(3)), list[str]()
    for work in (application(), application(check_digest=True)):
        committed(truncate(table, work, lines))
        assert truncate(table, work, lines).status == "already_done"
        committed(rollback(table))
        assert (ids(table), recorded_work(table, work.app_id)) == ([0, 1, 2], [])
        committed(truncate(table, work, lines))
        assert ids(table) == []
        assert any("a rollback has undone what this task has committed before" in line for line in lines)
        assert truncate(table, work, lines).status == "already_done"
        committed(rollback(table))
