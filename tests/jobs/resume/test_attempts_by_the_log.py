"""What the attempts of a job do around a commit, shown without Spark: by jobs of the log, and by a plan of our own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.errors import CommitContention, CommitStateUnknown, TxlogError
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.resume.attempts import Change, run_attempts
from airflow_txlog.jobs.resume.memory import ROWS, Memory, Segment
from airflow_txlog.jobs.run import run_job
from tests.helpers.jobs import application, committed, live_files, rows
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec


def test_a11_an_attempt_after_a_conflict_looks_for_the_application_transaction_again(tmp_path: Path) -> None:
    table, identity = make_table(tmp_path / "t", rows(3)), application()

    def truncate(log: Any = None) -> JobResult:
        spec = job_spec(operation="truncate", table_uri=table.uri, arguments={}, application=identity)
        return run_job(spec, None, log=log)

    copies: list[JobResult] = []

    def second_copy(line: str) -> None:
        if "to remove" in line and not copies:
            copies.append(committed(truncate()))

    found = truncate(second_copy)
    assert (found.status, found.version) == ("already_done", copies[0].version)


def plan_of(staged: Path, memory: Memory) -> Callable[[Transaction], Change]:
    """A plan that stages this one file, and appends it."""

    def plan(tx: Transaction) -> Change:
        staged.write_bytes(b"PAR1")
        file = StagedFile(
            path=staged.name,
            partition_values={},
            size_bytes=4,
            modification_time_ms=int(time.time() * 1000),
            num_records=1,
            stats="{}",
        )
        memory.add([Segment(kind=ROWS, inputs=frozenset(), files=(file,))])
        return Change(operation="WRITE", parameters={}, staged=[file])

    return plan


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (CommitStateUnknown("the put was not answered", has_application_transaction=False), True),
        (CommitContention("lost every race", attempts=3), False),
    ],
    ids=["outcome unknown", "proved uncommitted"],
)
def test_a17_staged_files_go_only_where_it_is_certain_that_no_commit_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: TxlogError, is_kept: bool
) -> None:
    table: Table = make_table(tmp_path / "t", rows(3))
    staged = tmp_path / "t" / "staged.parquet"
    memory = Memory()

    def ends_so(tx: Transaction, *args: Any, **kwargs: Any) -> int:
        raise error

    monkeypatch.setattr(Transaction, "commit", ends_so)
    arguments = {"source": {"sql": "SELECT 1"}}
    spec = job_spec(operation="write", table_uri=table.uri, arguments=arguments, conflict_deadline_s=0)
    with pytest.raises(type(error)):
        run_attempts(LogContext(spec=spec, table=table, log=lambda line: None), plan_of(staged, memory), memory=memory)
    assert staged.exists() is is_kept


def test_a17_files_of_a_commit_that_landed_stay_whatever_fails_after_it(tmp_path: Path) -> None:
    table: Table = make_table(tmp_path / "t", rows(3))
    staged, memory = tmp_path / "t" / "staged.parquet", Memory()
    plan = plan_of(staged, memory)

    def overtaken(tx: Transaction) -> Change:
        append(table, rows(1, start=10))
        return plan(tx)

    def broken_pipe(line: str) -> None:
        if "rebased" in line:
            raise BrokenPipeError

    spec = job_spec(operation="write", table_uri=table.uri, arguments={"source": {"sql": "SELECT 1"}})
    with pytest.raises(BrokenPipeError):
        run_attempts(LogContext(spec=spec, table=table, log=broken_pipe), overtaken, memory=memory)
    assert staged.name in live_files(table)
    assert staged.exists()
