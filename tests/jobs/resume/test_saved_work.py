"""Saved work stays as long as a retry may come, and goes with what no retry can win."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.errors import from_dict
from airflow_txlog.storage import LocalStore
from tests.helpers.jobs import application, committed, error_of, files_on_disk, ids, rows, run
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MERGE: dict[str, Any] = {
    "source": {"sql": "SELECT id, 'new' AS name FROM range(3)"},
    "on": "t.id = s.id",
    "clauses": [{"when": "matched", "then": "update", "set": {"name": "s.name"}}],
}


@pytest.mark.parametrize("identity", [application(), None], ids=["task", "no task"])
def test_a_disk_that_is_full_at_the_commit_fails_at_once_and_keeps_the_work_of_a_task(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, identity: ApplicationTransaction | None
) -> None:
    from airflow_txlog.policies.retry import TxlogRetryPolicy

    table = make_table(tmp_path / "t", rows(10))
    before = files_on_disk(table)

    def is_full(store: LocalStore, path: str, data: bytes) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_if_absent", is_full)
        error = error_of(run(spark, "merge", table, application=identity, **MERGE))
    assert (error["type"], error["retryable"], error["facts"]["cause_type"]) == ("JobError", False, "OSError")
    assert error["message"].startswith("Cannot run the merge job: OSError: [Errno 28] No space left on device")
    if identity is None:
        assert files_on_disk(table) == before, "nothing landed, and nobody goes on with what was staged"
        return
    decision = TxlogRetryPolicy(otherwise="default").evaluate(from_dict(error), 1, 3)
    assert decision.action.value == "default"
    lines: list[str] = []
    committed(run(spark, "merge", table, application=identity, log=lines.append, **MERGE))
    assert any(line.startswith("resuming an earlier try: 1 file looked at") for line in lines)
    assert "1 file remembered, 0 to look at" in lines
    assert ids(table) == list(range(10))
    assert list((tmp_path / "t").glob("txlog-inputs-*")) == []


def test_what_no_retry_can_win_leaves_no_saved_work(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    twice = {**MERGE, "source": {"sql": "SELECT id % 2 AS id, 'new' AS name FROM range(4)"}}
    error = error_of(run(spark, "merge", table, application=application(), **twice))
    assert error["type"] == "AmbiguousMerge"
    assert list((tmp_path / "t").glob("txlog-inputs-*")) == []
