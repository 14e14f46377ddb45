"""A publication with `on_change: reaudit`: what a conflict forbids is made and audited again, or not published."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.operations import Audit
from airflow_txlog.engine import Table
from airflow_txlog.engine.staged_changes import Document, staged_in
from airflow_txlog.errors import AuditFailed
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.operations import publish as publication
from airflow_txlog.jobs.resume.unpublished import record_audit
from tests.helpers.jobs import (
    DAY,
    KEY,
    by_id,
    committed,
    error_of,
    files_on_disk,
    ids,
    live_files,
    rows,
    run,
)
from tests.helpers.racing import killed
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec
from tests.helpers.staged import Handle, audit, discard, publish, refused, stage, work_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SET_NAME = {"set": {"name": "'x'"}, "predicate": "id < 5 OR id = 50"}
VECTORS = {"delta.enableDeletionVectors": "true"}
FEATURES = {
    "delta.enableChangeDataFeed": "true",
    "delta.enableRowTracking": "true",
    "delta.columnMapping.mode": "name",
    "delta.enableInCommitTimestamps": "true",
}
CHECKS = {"checks": {"not_empty": "COUNT(*) > 0"}}


def two_files(folder: Path, properties: dict[str, str] | None = None) -> Table:
    return make_table(folder, rows(10), rows(10, start=50), properties=properties)


def raced(table: Table, by: float = 1000) -> Callable[[], object]:
    """An update of a row that the staged change updates too."""
    return lambda: committed(run(None, "update", table, set={"amount": f"amount + {by}"}, predicate="id = 3"))


class Audits:
    """Audits in Python, in place of those that Spark evaluates: of the rows that a publication would leave."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[dict[Any, Any]] = []
        """The amounts by id that each audit has seen."""
        self.most = float("inf")
        self.inside: Callable[[], object] = lambda: None
        self._really = publication._audit
        patch.setattr(publication, "_audit", self._audit)

    def record(self, table: Table, handle: Handle, **more: Any) -> None:
        """Record an audit, as the job of an audit does."""
        named = {name: handle[name] for name in ("id", "digest", "base_version")}
        spec = job_spec(operation="audit", table_uri=table.uri, arguments=named | CHECKS, saved_work_key=KEY, **more)
        record_audit(LogContext(spec=spec, table=table, log=print), handle["id"], work_of(handle))

    def _audit(self, context: LogContext, spec: JobSpec, id: str, found: Document) -> None:
        self._really(dataclasses.replace(context, run=self._run), spec, id, found)

    def _run(self, spec: JobSpec) -> JobResult:
        audit = spec.operation
        assert isinstance(audit, Audit)
        self.seen.append(by_id(Table.open(spec.table_uri).with_staged(audit.id, audit.digest), "amount"))
        inside, self.inside = self.inside, lambda: None
        inside()
        if max(self.seen[-1].values()) > self.most:
            raise AuditFailed("1 of 1 audit fails.", table=spec.table_uri, id=audit.id, failed={"most": 1})
        return JobResult(status="nothing_to_do", operation="audit", table_uri=spec.table_uri)


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> Audits:
    return Audits(monkeypatch)


def staged(table: Table, audits: Audits) -> Handle:
    handle = stage("update", table, **SET_NAME)
    audits.record(table, handle)
    return handle


def check_published(table: Table, races: int = 1) -> None:
    """All of the change is in the table once, and of the racing updates too; nothing else lies there."""
    names = by_id(table)
    assert sorted(names) == [*range(10), *range(50, 60)]
    assert [id for id, name in names.items() if name == "x"] == [*range(5), 50]
    assert by_id(table, "amount")[3] == 1.5 + 1000 * races
    assert table.snapshot().version == 3 + races
    assert list(staged_in(table.store)) == []
    assert not [path for path in files_on_disk(table) if "txlog-inputs" in path]


# --- a conflict -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({}, id="copies"),
        pytest.param(VECTORS, id="vectors"),
        pytest.param(FEATURES, id="features", marks=pytest.mark.long("as the others, with other features")),
    ],
)
def test_a_change_that_lost_its_rows_is_made_again_and_audited_before_it_is_published(
    properties: dict[str, str], audits: Audits, tmp_path: Path
) -> None:
    table = two_files(tmp_path / "t", properties)
    handle = staged(table, audits)
    raced(table)()
    lines: list[str] = []
    result = committed(publish(handle, on_change="reaudit", log=lines.append))
    assert (result.version, result.operation, result.metrics["numUpdatedRows"]) == (4, "publish", 6)
    check_published(table)
    assert [seen[3] for seen in audits.seen] == [1001.5]
    assert "version 3 has changed what was audited: the change is made and audited again" in lines


def test_only_the_files_that_another_commit_has_changed_are_made_again(audits: Audits, tmp_path: Path) -> None:
    days = [rows(10), rows(10, start=50, day=DAY + dt.timedelta(1))]
    table = make_table(tmp_path / "t", *days, partition_by=["day"])
    handle = stage("delete", table, predicate="id < 2 OR id = 50")
    audits.record(table, handle)
    before = files_on_disk(table)
    raced(table)()
    lines: list[str] = []
    committed(publish(handle, on_change="reaudit", log=lines.append))
    assert ids(table) == [*range(2, 10), *range(51, 60)]
    (kept,) = {path for path in live_files(table) & before if path.startswith("day=2024-01-02")}
    assert "1 file remembered, 1 to look at" in lines
    assert any(line.startswith("reused what was staged before: 1 file") for line in lines)
    # What was staged first of the other file is gone.
    assert len({path for path in files_on_disk(table) if "_delta_log" not in path}) == len(days) + 1 + 2
    assert kept in files_on_disk(table)


def test_the_source_is_not_read_again(audits: Audits, tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": [3, 100], "name": ["x", "new"]}), path)
    handle = stage(
        "merge",
        table,
        source={"format": "parquet", "path": str(path)},
        on="t.id = s.id",
        clauses=[
            {"when": "matched", "then": "update", "set": {"name": "s.name"}},
            {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "name": "s.name", "amount": "0.5"}},
        ],
    )
    audits.record(table, handle)
    path.unlink()
    raced(table)()
    # Nor does a VACUUM take the rows that wait.
    run(None, "vacuum", table, retention_hours=0, check_retention=False)
    committed(publish(handle, on_change="reaudit"))
    assert [by_id(table)[id] for id in (3, 100)] == ["x", "new"]
    assert by_id(table, "amount")[3] == 1001.5
    assert not [path for path in files_on_disk(table) if "txlog-inputs" in path]


def test_without_a_conflict_no_audit_runs_again_and_no_row_is_read(audits: Audits, tmp_path: Path) -> None:
    table = two_files(tmp_path / "t", {"delta.isolationLevel": "WriteSerializable"})
    handle = staged(table, audits)
    append(table, rows(1, start=200))
    assert committed(publish(handle, on_change="reaudit")).version == 4
    assert audits.seen == []


def test_what_fails_its_audits_on_the_newest_version_is_never_published(audits: Audits, tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = staged(table, audits)
    raced(table)()
    audits.most = 1000
    for _ in range(2):
        refused(publish(handle, on_change="reaudit"), "AuditFailed")
    assert refused(publish(handle), "StagedChangeGone")
    assert (table.snapshot().version, set(by_id(table).values()) & {"x"}) == (3, set())
    discard(handle)
    assert list(staged_in(table.store)) == []
    assert not [path for path in files_on_disk(table) if "txlog-inputs" in path]
    assert len(files_on_disk(table)) == len(files_on_disk(table) & live_files(table)) + 1  # the one before the race


def test_a_change_without_a_recorded_audit_is_not_made_again(audits: Audits, tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    raced(table)()
    assert "no audit of it is recorded" in refused(publish(handle, on_change="reaudit"), "StagedChangeGone")
    # Nor is one that another process has put there.
    audits.record(table, handle)
    (path,) = tmp_path.glob("t/txlog-inputs-*/staged-audit-*")
    assert b"COUNT" not in path.read_bytes()
    path.write_bytes(b"0" * 64 + path.read_bytes()[64:])
    assert "no audit of it is recorded" in refused(publish(handle, on_change="reaudit"), "StagedChangeGone")
    assert table.snapshot().version == 3


def test_a_change_that_lost_the_record_of_one_of_its_audits_is_not_made_again(audits: Audits, tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    for task_id in ("sums", "names"):
        before = {*tmp_path.glob("t/txlog-inputs-*/staged-audit-*")}
        audits.record(table, handle, annotations={"task_id": task_id})
    (path,) = {*tmp_path.glob("t/txlog-inputs-*/staged-audit-*")} - before
    kept = path.read_bytes()
    path.unlink()
    raced(table)()
    again = {"on_change": "reaudit", "audited_by": ["sums", "names"]}
    assert "the audits by names are not recorded" in refused(publish(handle, **again), "StagedChangeGone")
    assert (audits.seen, table.snapshot().version) == ([], 3)
    path.write_bytes(kept)
    committed(publish(handle, **again))
    assert len(audits.seen) == 2


def test_a_publication_under_another_dialect_is_refused(audits: Audits, tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = staged(table, audits)
    other = {"spark.sql.ansi.enabled": "false"}
    refused(publish(handle, on_change="reaudit", spark_conf=other), "InvalidJobSpec")
    committed(publish(handle, on_change="reaudit"))


def test_an_audit_under_another_dialect_is_not_run_again_in_that_of_the_publication(
    audits: Audits, tmp_path: Path
) -> None:
    table = two_files(tmp_path / "t")
    handle = staged(table, audits)
    audits.record(table, handle, spark_conf={"spark.sql.ansi.enabled": "true"}, annotations={"task_id": "another"})
    raced(table)()
    assert "spark.sql.ansi.enabled" in refused(publish(handle, on_change="reaudit"), "InvalidJobSpec")
    assert (audits.seen, table.snapshot().version) == ([], 3)


def test_nothing_is_published_if_nothing_is_left_to_change(audits: Audits, tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("delete", table, predicate="id < 5")
    audits.record(table, handle)
    committed(run(None, "delete", table, predicate="id < 5"))
    assert publish(handle, on_change="reaudit").status == "nothing_to_do"
    assert (table.snapshot().version, audits.seen) == (3, [])
    discard(handle)
    assert list(staged_in(table.store)) == []


def test_expectations_hold_for_what_is_made_again(audits: Audits, tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME, expect_or_fail={"few": "amount < 1000"})
    audits.record(table, handle)
    raced(table)()
    refused(publish(handle, on_change="reaudit"), "ExpectationFailed")
    assert table.snapshot().version == 3
    discard(handle)
    assert list(staged_in(table.store)) == []


# --- races ----------------------------------------------------------------------------------------------------------

STEPS = ("opened", "fate_of", "recorded_audits", "read_document", "decide", "_begun", "_check_files", "_done")


def at_call(patch: pytest.MonkeyPatch, name: str, number: int, act: Callable[[], object]) -> list[int]:
    """Act before the call of this number to a step of the publication. Returns the number of calls so far."""
    really, calls = getattr(publication, name), [0]

    def step(*args: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            act()
        return really(*args, **more)

    patch.setattr(publication, name, step)
    return calls


def acted_at_each_step(
    act: Callable[[Table, Handle], object], do: Callable[[Table, Handle, str], object], tmp: Path
) -> int:
    """Do it with tables whose first race is lost, and act at each call of each step; the number of times."""
    count = 0
    for name in STEPS:
        for number in range(1, 20):
            with pytest.MonkeyPatch.context() as patch:
                audits, table = Audits(patch), two_files(tmp / f"{name}{number}")
                handle = staged(table, audits)
                raced(table)()
                calls = at_call(patch, name, number, lambda: act(table, handle))  # noqa: B023
                do(table, handle, f"{name} {number}")
            if calls[0] < number:
                break
            count += 1
    return count


@pytest.mark.long("a race at each step; the one below has one at the worst")
def test_a_race_at_each_step_is_audited_again(tmp_path: Path) -> None:
    def publish_it(table: Table, handle: Handle, step: str) -> None:
        committed(publish(handle, on_change="reaudit"))
        check_published(table, races=table.snapshot().version - 3)

    assert acted_at_each_step(lambda table, handle: raced(table)(), publish_it, tmp_path) > 10


def test_a_race_while_the_change_is_audited_again_is_audited_too(audits: Audits, tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = staged(table, audits)
    raced(table)()
    audits.inside = raced(table)
    committed(publish(handle, on_change="reaudit"))
    check_published(table, races=2)
    assert [seen[3] for seen in audits.seen] == [1001.5, 2001.5]


@pytest.mark.long("as the publication of one task")
def test_another_publisher_at_each_step_makes_no_second_commit(tmp_path: Path) -> None:
    def publish_it(table: Table, handle: Handle, step: str) -> None:
        assert publish(handle, on_change="reaudit").status in ("committed", "already_done"), step
        check_published(table)

    acts = acted_at_each_step(lambda table, handle: publish(handle, on_change="reaudit"), publish_it, tmp_path)
    assert acts > 10


@pytest.mark.long("as a discard after the publication")
def test_a_discard_at_each_step_and_the_publication_never_both_win(tmp_path: Path) -> None:
    published: list[bool] = []

    def publish_it(table: Table, handle: Handle, step: str) -> None:
        result = publish(handle, on_change="reaudit")
        published.append(result.status == "committed")
        assert published[-1] or error_of(result)["type"] in ("StagedChangeGone", "JobError", "ConcurrentDeleteRead"), (
            step
        )
        discard(handle)
        assert live_files(table) <= files_on_disk(table), step
        names = by_id(table)
        assert [id for id, name in names.items() if name == "x"] == ([*range(5), 50] if published[-1] else [])
        assert len(names) == 20

    assert acted_at_each_step(lambda table, handle: discard(handle), publish_it, tmp_path) > 10
    assert {True, False} == set(published)


# --- kills ----------------------------------------------------------------------------------------------------------


@pytest.mark.long("kills at each change of the store")
def test_a_discard_that_is_killed_after_a_failed_audit_is_ended_by_the_next(audits: Audits, tmp_path: Path) -> None:
    audits.most = 1000
    for at in range(1, 60):
        table = two_files(tmp_path / f"t{at}")
        handle = staged(table, audits)
        raced(table)()
        refused(publish(handle, on_change="reaudit"), "AuditFailed")
        was_killed = killed(lambda: discard(handle), at, after=True)  # noqa: B023
        assert publish(handle, on_change="reaudit").status == "failed"
        discard(handle)
        assert (table.snapshot().version, "x" in by_id(table).values()) == (3, False)
        assert live_files(table) <= files_on_disk(table)
        if not was_killed:
            break
    assert list(staged_in(table.store)) == []
    assert 5 < at < 59


# --- audits by Spark ------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_the_audits_of_each_task_run_again_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    for most in (2000, 1000):
        table = two_files(tmp_path / f"t{most}")
        handle = stage("update", table, **SET_NAME)
        more = {"parameters": {"most": most}, "no_rows": {"new": "SELECT id FROM staged EXCEPT SELECT id FROM before"}}
        done = audit(spark, handle, checks={"most": "amount < :most"}, **more)
        assert done.status == "nothing_to_do", done.error
        raced(table)()
        lines: list[str] = []
        result = publish(handle, on_change="reaudit", spark=spark, log=lines.append)
        if most == 2000:
            assert committed(result).version == 4
            check_published(table)
            assert "2 audits passed" in lines
        else:
            assert error_of(result)["facts"]["failed"] == {"most": 1}
            assert table.snapshot().version == 3
    without = publish(handle, on_change="reaudit")
    assert error_of(without)["facts"]["needs_spark"]
