"""Alone in showing what a retry may go on with: the saved work of the same spec and number, where it could be saved."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Protocol
from airflow_txlog.errors import from_dict
from airflow_txlog.jobs.operations.merge import by_spark
from airflow_txlog.jobs.operations.merge import job as merge_job
from airflow_txlog.storage import LocalStore
from airflow_txlog.storage.base import Output
from tests.helpers.jobs import (
    application,
    by_id,
    committed,
    error_of,
    files_on_disk,
    ids,
    insert,
    live_files,
    merge,
    rows,
    run,
    update,
)
from tests.helpers.racing import killed_before_commit, winning
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SOURCE = "SELECT id * 5 AS id, date'2024-01-01' AS day, uuid() AS name, 0D AS amount FROM range(8)"


def test_b1_a_retry_after_a_lost_race_stages_nothing_that_was_staged(tmp_path: Path, spark: SparkSession) -> None:
    """The first try may not go on after a conflict, and leaves its memory to the second."""
    table = make_table(tmp_path / "t", rows(10), rows(10, start=10), rows(10, start=100))
    before = files_on_disk(table)
    who = application()
    clauses = [update({"name": "s.name"}), insert()]
    log = winning("staged", lambda: append(table, rows(1, start=35)))
    first = merge(spark, table, SOURCE, *clauses, application=who, conflict_deadline_s=0, log=log)
    assert first.error is not None
    assert first.error["type"] == "ConcurrentAppend"
    told: list[str] = []
    second = committed(merge(spark, table, SOURCE, *clauses, application=who, log=told.append))
    # The source has no key in the third one.
    assert "2 files remembered, 1 to look at" in told
    # What the first try staged is kept, but for the inserts: the row 35 has come meanwhile.
    assert "staged 2 files with 4 rows" in told
    assert [line for line in told if line.startswith("reused what was staged before: 4 files (")]
    assert ids(table) == sorted({*range(20), *range(100, 110), 20, 25, 30, 35})
    assert second.metrics["numTargetRowsInserted"] == 3
    assert second.metrics["numTargetRowsUpdated"] == 5
    assert files_on_disk(table) - before >= live_files(table) - before
    assert not [path for path in files_on_disk(table) if path.startswith("txlog-inputs")]


def test_b1_another_spec_or_another_number_does_not_resume(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    who = application()
    log = winning("staged", lambda: append(table, rows(1, start=5)))
    first = run(spark, "delete", table, application=who, conflict_deadline_s=0, log=log, predicate="id = 5")
    assert first.error is not None
    told: list[str] = []
    committed(run(spark, "delete", table, application=who, log=told.append, predicate="id = 4"))
    assert not [line for line in told if "remembered" in line or "resuming" in line]
    assert ids(table) == [0, 1, 2, 3, 5, 5, 6, 7, 8, 9]


def test_b1_a_memory_that_cannot_be_written_down_does_not_fail_the_job(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_new = LocalStore.open_new

    def full(store: LocalStore, path: str) -> Output:
        if "/memory-" in path:
            raise OSError(28, "No space left on device", path)
        return open_new(store, path)

    monkeypatch.setattr(LocalStore, "open_new", full)
    table = make_table(tmp_path / "t", rows(10))
    told: list[str] = []
    committed(run(spark, "delete", table, application=application(), log=told.append, predicate="id = 5"))
    assert ids(table) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [line for line in told if "could not be written down" in line]


# --- full disks and hopeless work -----------------------------------------------------------------------------------


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


# --- materialized rows ----------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def inserting(source: Path, name: str, value: str = "s.name") -> dict[str, Any]:
    """The arguments of a merge that inserts one row, of this name (or what SQL makes of it), from a Parquet file."""
    pq.write_table(pa.table({"id": pa.array([100], pa.int64()), "name": [name]}), source)
    clause = {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "name": value}}
    return {"source": {"format": "parquet", "path": str(source)}, "on": "t.id = s.id", "clauses": [clause]}


@pytest.fixture
def lenient(spark: SparkSession) -> Iterator[None]:
    """A session that passes over files that are gone, as an author may set it for a source of theirs."""
    name = "spark.sql.files.ignoreMissingFiles"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


@pytest.mark.parametrize(("way", "value"), [("plain_inserts", "s.name"), ("inserts", "reverse(s.name)")])
def test_materialized_rows_that_are_gone_are_an_error_whatever_the_session_ignores(
    tmp_path: Path, spark: SparkSession, lenient: None, monkeypatch: pytest.MonkeyPatch, way: str, value: str
) -> None:
    table, given = make_table(tmp_path / "t", rows(3)), inserting(tmp_path / "s.parquet", "new", value)
    owner = merge_job if way == "plain_inserts" else by_spark.JudgedMerge
    real = getattr(owner, way)

    def swept(*arguments: Any, **more: Any) -> Any:
        frame = real(*arguments, **more)
        for folder in (tmp_path / "t").glob("txlog-inputs-*"):
            shutil.rmtree(folder)
        return frame

    monkeypatch.setattr(owner, way, swept)
    error = error_of(run(spark, "merge", table, application=application(), **given))
    assert "keeps its source's rows, is gone" in error["message"]
    assert table.snapshot().version == 1


def test_a_cleared_task_reads_its_source_anew_where_nothing_was_committed(tmp_path: Path, spark: SparkSession) -> None:
    """It has the number of the tries before the clear, because none was recorded, and began later."""
    table, source = make_table(tmp_path / "t", rows(3)), tmp_path / "s.parquet"
    now_ms = time.time_ns() // 1_000_000
    first = application(first_tried_ms=now_ms - 60_000)
    with killed_before_commit():
        run(spark, "merge", table, application=first, **inserting(source, "old"))
    log: list[str] = []
    mended = inserting(source, "mended")
    retried = dataclasses.replace(first, first_tried_ms=now_ms)
    committed(run(spark, "merge", table, application=retried, log=log.append, **mended))
    assert by_id(table)[100] == "mended"
    assert not any("resuming" in line for line in log)


# --- rules that landed meanwhile ------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEATURES = ["appendOnly", "changeDataFeed", "checkConstraints", "invariants"]


def set_rule(table: Table, name: str, value: str) -> None:
    """ALTER TABLE … SET TBLPROPERTIES, by another writer, with the protocol that it needs."""
    tx = table.begin()
    metadata = tx.metadata
    assert metadata is not None
    changed = msgspec.structs.replace(metadata, configuration={**metadata.configuration, name: value})
    tx.set_metadata(changed, is_checked=True)
    tx.set_protocol(Protocol(min_reader_version=1, min_writer_version=7, writer_features=FEATURES))
    tx.commit("SET TBLPROPERTIES")


def test_a18_a_constraint_that_landed_meanwhile_is_kept_by_rows_that_were_staged_before(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    log = winning("staged", lambda: set_rule(table, "delta.constraints.small", "amount < 100"))
    error = error_of(run(spark, "update", table, set={"amount": "amount + 99"}, predicate="id > 3", log=log))
    assert error["type"] == "ConstraintViolation"
    assert ids(table) == list(range(10))
    assert files_on_disk(table) == live_files(table), "what both attempts had staged is proved uncommitted, and gone"


def test_a18_a_change_feed_that_was_switched_on_meanwhile_is_told_all_changes(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    log = winning("staged", lambda: set_rule(table, "delta.enableChangeDataFeed", "true"))
    result = committed(run(spark, "delete", table, predicate="id = 4", log=log))
    assert result.attempts == 2
    assert [line for line in log.lines if "rules have changed" in line]
    changes = table.changes(result.version or 0, result.version).to_pylist()
    assert [(row["id"], row["_change_type"]) for row in changes] == [(4, "delete")]
