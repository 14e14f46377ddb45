"""A task that has failed for good deletes what it had saved for its retries: rows of sources, and keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.exactly_once.transactions import work_folder
from airflow_txlog.operators.base import _forget_saved_work
from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.storage import PLAIN, open_store

KEY = "0" * 64


def operator(root: Path) -> DeltaDeleteOperator:
    return DeltaDeleteOperator(task_id="forget", table_uri=str(root), keys=[1], key_column="id")


def test_the_last_failure_of_a_task_deletes_what_it_has_saved_and_a_retry_does_not(tmp_path: Path) -> None:
    task, who = operator(tmp_path), ApplicationTransaction(app_id="a", version=1)
    assert _forget_saved_work in task.on_failure_callback
    assert _forget_saved_work not in task.on_retry_callback
    root, another = open_store(str(tmp_path), PLAIN).root, ApplicationTransaction(app_id="b", version=1)
    folders = [work_folder(root, owner, KEY) for owner in (who, another)]
    for folder in folders:
        assert folder is not None
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "keys.parquet").write_text("keys")
    task._spec_of_work = task._spec(str(tmp_path)).replace(application=who, saved_work_key=KEY)
    _forget_saved_work({"task": task})
    assert [path.name for path in tmp_path.iterdir()] == folders[1:]


def test_an_authors_callback_stays(tmp_path: Path) -> None:
    def theirs(context: object) -> None: ...

    task = DeltaDeleteOperator(
        task_id="forget", table_uri=str(tmp_path), predicate="id = 1", on_failure_callback=theirs
    )
    assert theirs in task.on_failure_callback


def test_a_failure_before_any_work_and_a_store_that_does_not_answer_raise_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = operator(tmp_path)
    _forget_saved_work({"task": task})
    task._spec_of_work = task._spec("nowhere://t").replace(
        application=ApplicationTransaction(app_id="a", version=1), saved_work_key=KEY
    )
    _forget_saved_work({"task": task})
