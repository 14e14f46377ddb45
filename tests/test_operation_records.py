"""An operation is one record: what is said about its result cannot fail for want of an entry elsewhere."""

from __future__ import annotations

import pytest

from airflow_txlog.arguments import OPERATIONS, row_counts
from airflow_txlog.contract import JobResult
from airflow_txlog.jobs.run import _LOG_JOBS, _MAINTENANCE, _ROW_JOBS
from airflow_txlog.operators.base import TxlogOperator
from airflow_txlog.wording import job_lines, rows_changed, task_lines


def test_every_operation_has_one_job_and_one_operator() -> None:
    import airflow_txlog.operators.checkpoint
    import airflow_txlog.operators.delete
    import airflow_txlog.operators.merge
    import airflow_txlog.operators.optimize
    import airflow_txlog.operators.restore
    import airflow_txlog.operators.truncate
    import airflow_txlog.operators.update
    import airflow_txlog.operators.vacuum
    import airflow_txlog.operators.write  # noqa: F401

    jobs = [*_ROW_JOBS, *_LOG_JOBS, *_MAINTENANCE]
    assert sorted(jobs) == sorted(OPERATIONS)
    pending: list[type] = [TxlogOperator]
    found = set()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        found |= {cls.operation} if "operation" in vars(cls) else set()
    assert found == set(OPERATIONS)


@pytest.mark.parametrize("operation", [*sorted(OPERATIONS), "of a newer release"])
def test_what_is_said_after_a_commit_knows_every_operation(operation: str) -> None:
    metrics = {"numDeletedRows": 2, "numOutputRows": 3, "anything": 4}
    result = JobResult(status="committed", operation=operation, table_uri="/t", version=1, metrics=metrics)
    assert job_lines(result)[0].startswith(f"{operation}: ")
    assert task_lines(result)
    rows_changed(result)


def test_an_overwrite_counts_the_rows_that_it_wrote() -> None:
    metrics = {"numDeletedRows": 2, "numOutputRows": 3}
    assert row_counts("write", metrics) == {"written": 3, "replaced": 2}
    result = JobResult(status="committed", operation="write", table_uri="/t", version=1, metrics=metrics)
    assert rows_changed(result) == 3
