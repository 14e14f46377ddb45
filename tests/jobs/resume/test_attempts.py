"""Alone in showing what a job answers for its work: done once, lost, unknown or nothing to do; and the upkeep jobs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import read_result
from airflow_txlog.contract.operations import Delete
from airflow_txlog.engine import DeltaTable, Table, Transaction
from airflow_txlog.errors import CommitContention, CommitStateUnknown, ConcurrentAppend
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.resume.attempts import Change, run_attempts
from airflow_txlog.jobs.run import run_job
from tests.conftest import ManualClock
from tests.helpers.jobs import application, committed, error_of, files_on_disk, ids, live_files, rows, run
from tests.helpers.racing import winning
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NUMBERS = {"sql": "SELECT id + 1000 AS id, date'2024-01-01' AS day, 'x' AS name, 0D AS amount FROM range(3)"}


# --- conflicts ------------------------------------------------------------------------------------------------------


def test_a_job_without_time_for_another_attempt_says_which_commit_won_and_leaves_nothing(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    log = winning("staged", lambda: append(table, rows(1, start=4)))
    error = error_of(run(spark, "delete", table, predicate="id = 4", log=log, conflict_deadline_s=0))
    assert (error["type"], error["retryable"]) == ("ConcurrentAppend", True)
    assert (error["facts"]["winning_version"], error["facts"]["read_version"]) == (2, 1)
    assert files_on_disk(table) == live_files(table), "what the lost commit had staged is proved uncommitted, and gone"


def test_attempts_pause_longer_and_longer_until_their_time_is_over(tmp_path: Path, clock: ManualClock) -> None:
    table = make_table(tmp_path / "t", rows(1))
    spec = job_spec(operation="truncate", table_uri=table.uri, conflict_deadline_s=60)
    seen: list[int] = []

    def lose(tx: Transaction) -> Change:
        seen.append(append(table, rows(1)))
        raise ConcurrentAppend("lost", read_version=seen[-1] - 1, winning_version=seen[-1])

    with pytest.raises(ConcurrentAppend) as caught:
        run_attempts(LogContext(spec=spec, table=table, log=lambda line: None), lose, clock=clock)
    assert caught.value.facts["winning_version"] == seen[-1], "the last conflict is the one that is raised"
    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * 10]
    assert 55 < sum(clock.slept) <= 60


# --- once -----------------------------------------------------------------------------------------------------------


def test_a_second_try_finds_the_first_ones_commit(tmp_path: Path, spark: SparkSession) -> None:
    table, identity = make_table(tmp_path / "t", rows(10)), application()
    work: dict[str, Any] = {"predicate": "pmod(id, 10) < 3", "application": identity}
    first = committed(run(spark, "delete", table, **work))
    append(table, rows(10, start=50))
    before = files_on_disk(table)
    again = run(spark, "delete", table, **work)
    assert (again.status, again.version, again.read_version) == ("already_done", first.version, first.read_version)
    assert {name: again.metrics[name] for name in first.metrics} == first.metrics
    assert (table.snapshot().version, files_on_disk(table)) == (3, before)
    # Another number of the same identity is other work: a cleared task.
    cleared = committed(run(spark, "delete", table, **work | {"application": dataclasses.replace(identity, version=2)}))
    assert cleared.metrics["numDeletedRows"] == 3


def test_a_second_copy_that_commits_meanwhile_is_found_in_the_next_round(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    identity = application()
    log = winning("new file", lambda: committed(run(spark, "write", table, application=identity, source=NUMBERS)))
    result = run(spark, "write", table, application=identity, source=NUMBERS, log=log)
    assert (result.status, result.version) == ("already_done", 2)
    assert ids(table) == [*range(10), 1000, 1001, 1002]
    # What the loser had staged may have been resumed by the winner, for all that it knows: it is left to a vacuum.
    assert files_on_disk(table) > live_files(table)


def test_an_authors_key_names_one_piece_of_work(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    identity = application(check_digest=True)
    committed(run(spark, "delete", table, application=identity, predicate="id = 1"))
    assert run(spark, "delete", table, application=identity, predicate="id = 1").status == "already_done"
    other = error_of(run(spark, "delete", table, application=identity, predicate="id = 2"))
    assert (other["type"], other["retryable"]) == ("IdempotencyKeyReused", False)
    assert ids(table) == [0, *range(2, 10)]


def test_nothing_to_do_records_nothing_unless_the_table_wants_it(tmp_path: Path, spark: SparkSession) -> None:
    identity = application()
    strict = make_table(tmp_path / "strict", rows(3))
    assert run(spark, "delete", strict, application=identity, predicate="id = 99").status == "nothing_to_do"
    assert strict.snapshot().application_version(identity.app_id) is None
    loose = make_table(tmp_path / "loose", rows(3), properties={"delta.isolationLevel": "WriteSerializable"})
    committed(run(spark, "delete", loose, application=identity, predicate="id = 99"))
    assert loose.snapshot().application_version(identity.app_id) == 1


# --- A17 ------------------------------------------------------------------------------------------------------------


def test_a17_staged_files_are_kept_when_nobody_knows_whether_they_are_committed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    before = files_on_disk(table)

    def unanswered(tx: Transaction, *args: Any, **kwargs: Any) -> int:
        raise CommitStateUnknown("the put was not answered", has_application_transaction=True)

    monkeypatch.setattr(Transaction, "commit", unanswered)
    error = error_of(run(spark, "write", table, source=NUMBERS, application=application()))
    assert (error["type"], error["retryable"]) == ("CommitStateUnknown", True)
    kept = files_on_disk(table) - before
    assert [path for path in kept if path.startswith("part-")]
    # And what a retry goes on from, if it finds that nothing was committed.
    assert len([path for path in kept if "txlog-inputs" in path and "/memory-" in path]) == 1


def test_a17_only_the_files_of_this_attempt_are_deleted(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    stranger = tmp_path / "t" / "part-of-another-writer.parquet"
    stranger.write_bytes(b"staged by someone else")
    before = files_on_disk(table)

    def crowded(tx: Transaction, *args: Any, **kwargs: Any) -> int:
        raise CommitContention("lost every race", attempts=3)

    monkeypatch.setattr(Transaction, "commit", crowded)
    error = error_of(run(spark, "write", table, source=NUMBERS, conflict_deadline_s=0))
    assert error["type"] == "CommitContention"
    assert files_on_disk(table) == before


# --- the result -----------------------------------------------------------------------------------------------------


def test_the_result_is_put_where_the_operator_looks_for_it(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    spec = job_spec(
        operation="delete",
        table_uri=table.uri,
        arguments={"predicate": "id = 4"},
        result_uri=str(tmp_path / "out" / "result.json"),
        annotations={"dag_id": "gdpr", "try_number": 2},
    )
    lines: list[str] = []
    result = run_job(spec, spark, log=lines.append)
    assert read_result(str(tmp_path / "out" / "result.json")) == result
    assert [step["name"] for step in result.steps] == ["check", "prepare", "open", "plan", "find", "rewrite", "commit"]
    assert table.history(1)[0]["tags"]["airflow.dag_id"] == "gdpr"
    assert lines[0] == f"delete {table.uri}"
    failed = run_job(spec.replace(operation=Delete(predicate="nope = 1")), spark)
    assert read_result(str(tmp_path / "out" / "result.json")) == failed
    assert failed.status == "failed"


def test_an_error_that_nobody_foresaw_is_a_result_too(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(10))

    def broken(self: DeltaTable, version: int | None = None) -> Transaction:
        raise ZeroDivisionError("not foreseen")

    monkeypatch.setattr(DeltaTable, "begin", broken)
    lines: list[str] = []
    error = error_of(run(spark, "delete", table, predicate="id = 4", log=lines.append))
    assert (error["type"], error["facts"]["cause_type"]) == ("JobError", "ZeroDivisionError")
    assert any("Traceback" in line for line in lines)


# --- upkeep ---------------------------------------------------------------------------------------------------------


def test_a_checkpoint_needs_no_spark(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3), rows(3, start=10))
    result = run_job(job_spec(operation="checkpoint", table_uri=table.uri), None)
    assert (result.status, result.version) == ("committed", 2)
    assert (tmp_path / "t" / "_delta_log" / f"{2:020d}.checkpoint.parquet").exists()
    assert Table.open(table.uri).snapshot().num_files == 2


def test_a_vacuum_tells_what_it_would_delete_and_refuses_a_short_retention(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    dry = run_job(job_spec(operation="vacuum", table_uri=table.uri, arguments={"dry_run": True}), None)
    assert (dry.status, dry.metrics["numFilesToDelete"]) == ("nothing_to_do", 0)
    done = run_job(job_spec(operation="vacuum", table_uri=table.uri), None)
    assert done.status == "committed", done.error
    assert table.history(1)[0]["operation"] == "VACUUM END"
    lite = run_job(job_spec(operation="vacuum", table_uri=table.uri, arguments={"mode": "lite"}), None)
    assert (lite.status, lite.details.mode) == ("committed", "lite")
    short = run_job(job_spec(operation="vacuum", table_uri=table.uri, arguments={"retention_hours": 1}), None)
    assert error_of(short)["type"] == "RetentionTooShort"


def test_a_row_job_without_a_session_is_an_error(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    result = run_job(job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "sqrt(id) = 1"}), None)
    assert error_of(result)["facts"]["needs_spark"]
