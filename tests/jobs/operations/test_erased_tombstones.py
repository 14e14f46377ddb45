"""Alone in showing that an erasure leaves no subject in the tombstones of applied changes, and those of others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.commit.content.remembered_deletions import FOLDER
from tests.helpers.byte_search import holding
from tests.helpers.depth import depth
from tests.helpers.jobs import committed, error_of, run
from tests.helpers.racing import before_commit
from tests.helpers.rows import make_table
from tests.jobs.operations.test_erase import _killed_at, erase

SUBJECT, OTHER = "zoë.canary@example.org", "bob.other@example.org"
NUMBER = 731_955_201_993
ROWS = pa.schema([("email", pa.string()), ("account", pa.int64()), ("at", pa.int64()), ("city", pa.string())])
EVENTS = ROWS.append(pa.field("op", pa.string()))

Event = tuple[str, int, int, str | None, str]


def folder_of(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://"))


def apply(table: Table, *events: Event, **more: Any) -> JobResult:
    path = folder_of(table).parent / "events.parquet"
    rows = [dict(zip(EVENTS.names, event, strict=True)) for event in events]
    pq.write_table(pa.Table.from_pylist(rows, EVENTS), path)
    arguments: dict[str, Any] = {
        "keys": ["email"],
        "sequence_by": "at",
        "apply_as_deletes": "op = 'd'",
        "except_column_list": ["op"],
        "source": {"format": "parquet", "path": str(path)},
    }
    return run(None, "apply_changes", table, **{**arguments, **more})


def remembering(path: Path, **more: Any) -> Table:
    """Return a table that remembers the deletions of the subject and of another person."""
    table = make_table(path, ROWS.empty_table())
    committed(apply(table, (SUBJECT, NUMBER, 1, "Oslo", "u"), (OTHER, 5, 1, "Rome", "u"), **more))
    committed(apply(table, (SUBJECT, NUMBER, 10, None, "d"), **more))
    committed(apply(table, (OTHER, 5, 10, None, "d"), (SUBJECT, NUMBER, 11, None, "d"), **more))
    return table


def is_gone(table: Table, column: str = "email", value: Any = SUBJECT) -> bool:
    return all(each.passes for each in table.find_traces(column, [value]))


def test_no_tombstone_of_a_subject_is_left_and_those_of_others_still_count(tmp_path: Path) -> None:
    table = remembering(tmp_path / "t")
    assert holding(folder_of(table) / FOLDER, SUBJECT)
    lines: list[str] = []
    result = committed(erase(table, log=lines.append))
    assert is_gone(table)
    assert not holding(folder_of(table), SUBJECT)
    done = result.details.erasure
    assert done is not None
    assert done["num_tombstones"] == 2
    assert any("older event" in line for line in lines)
    # An older event of the other person is still older than the deletion.
    apply(table, (OTHER, 5, 3, "Rome", "u"))
    assert table.to_arrow().num_rows == 0
    assert erase(table).status == "nothing_to_do"


def test_a_table_without_a_tombstone_of_the_subject_keeps_its_tombstones(tmp_path: Path) -> None:
    table = remembering(tmp_path / "t")
    before = sorted(path.name for path in (folder_of(table) / FOLDER).rglob("*"))
    assert erase(table, "dora@example.org").error is None
    assert sorted(path.name for path in (folder_of(table) / FOLDER).rglob("*")) == before


@pytest.mark.parametrize("keys", [["account"], ["email", "account"]])
def test_a_number_is_found_among_the_tombstones_and_leaves_them(tmp_path: Path, keys: list[str]) -> None:
    table = remembering(tmp_path / "t", keys=keys)
    found = [each.path for each in table.find_traces("account", [NUMBER]) if each.path.startswith(FOLDER)]
    bad = [each for each in table.find_traces("account", [NUMBER]) if each.path.startswith(FOLDER) and not each.passes]
    assert found
    assert len(bad) == 2
    committed(erase(table, NUMBER, column="account"))
    assert is_gone(table, "account", NUMBER)
    apply(table, (OTHER, 5, 3, "Rome", "u"), keys=keys)
    assert table.to_arrow().num_rows == 0


def test_a_number_that_is_the_sequence_or_another_key_of_somebody_else_keeps_that_tombstone(tmp_path: Path) -> None:
    schema = pa.schema([("person", pa.int64()), ("shop", pa.int64()), ("at", pa.int64())])
    table = make_table(tmp_path / "t", schema.empty_table())

    def change(*events: tuple[int, int, int, str]) -> JobResult:
        rows = [dict(zip((*schema.names, "op"), event, strict=True)) for event in events]
        pq.write_table(pa.Table.from_pylist(rows, schema.append(pa.field("op", pa.string()))), tmp_path / "e.parquet")
        source = {"format": "parquet", "path": str(tmp_path / "e.parquet")}
        return run(
            None,
            "apply_changes",
            table,
            keys=["person", "shop"],
            sequence_by="at",
            apply_as_deletes="op = 'd'",
            except_column_list=["op"],
            source=source,
        )

    committed(change((7, 1, 1, "u"), (8, 7, 1, "u"), (9, 1, 1, "u")))
    committed(change((7, 1, 5, "d"), (8, 7, 5, "d"), (9, 1, 7, "d")))
    committed(erase(table, 7, column="person"))
    assert all(each.passes for each in table.find_traces("person", [7]) if each.path.startswith(FOLDER))
    change((8, 7, 2, "u"), (9, 1, 2, "u"), (7, 1, 2, "u"))
    assert table.to_arrow().column("person").to_pylist() == [7]


@pytest.mark.parametrize("more", [{"stored_as_scd_type": 2}, {"ignore_null_updates": True}], ids=["type 2", "partial"])
def test_remembered_events_with_all_their_values_lose_the_subject(tmp_path: Path, more: dict[str, Any]) -> None:
    columns = [("__START_AT", pa.int64()), ("__END_AT", pa.int64())] if "stored_as_scd_type" in more else []
    schema = pa.schema([field for field in ROWS if not columns or field.name != "at"] + [pa.field(*c) for c in columns])
    excepted = ["op", *(["at"] if columns else [])]
    table = make_table(tmp_path / "t", schema.empty_table())
    more = {**more, "keys": ["account"], "except_column_list": excepted}
    committed(apply(table, (SUBJECT, NUMBER, 1, "Oslo", "u"), (OTHER, 5, 1, "Rome", "u"), **more))
    committed(apply(table, (SUBJECT, NUMBER, 2, "Oslo", "u"), (OTHER, 5, 2, None, "u"), **more))
    committed(apply(table, (SUBJECT, NUMBER, 3, None, "u"), (OTHER, 5, 3, "Rome", "d"), **more))
    assert holding(folder_of(table) / FOLDER, SUBJECT)
    committed(erase(table))
    assert is_gone(table)
    assert not holding(folder_of(table), SUBJECT)


def test_a_restore_to_a_version_from_before_the_erasure_finds_its_tombstones_without_the_subject(
    tmp_path: Path,
) -> None:
    table = remembering(tmp_path / "t")
    before = table.snapshot().version
    committed(erase(table, cut_log=False))
    table.restore(version=before)
    apply(table, (OTHER, 5, 3, "Rome", "u"))
    assert table.to_arrow().num_rows == 0
    assert not holding(folder_of(table) / FOLDER, SUBJECT)


def test_a_job_that_records_deletions_at_the_same_time_keeps_them_and_brings_no_tombstone_back(tmp_path: Path) -> None:
    table = remembering(tmp_path / "t")
    committed(apply(table, ("carol@example.org", 6, 1, "Bari", "u")))
    # The erasure lands before the commit of the job, which has read the tombstones of the subject.
    with before_commit(lambda tx: committed(erase(Table.open(table.uri)))):
        committed(apply(table, ("carol@example.org", 6, 5, None, "d")))
    assert is_gone(table)
    apply(table, (OTHER, 5, 3, "Rome", "u"), ("carol@example.org", 6, 3, "Bari", "u"))
    assert table.to_arrow().num_rows == 0


def test_a_job_that_records_deletions_before_the_commit_of_the_erasure_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = remembering(tmp_path / "t")
    committed(apply(table, ("carol@example.org", 6, 1, "Bari", "u")))
    commit, others = Transaction.commit, [lambda: apply(Table.open(table.uri), ("carol@example.org", 6, 5, None, "d"))]

    def late(tx: Transaction, operation: str, *given: Any, **more: Any) -> Any:
        if operation == "ERASE" and others:
            committed(others.pop()())
        return commit(tx, operation, *given, **more)

    monkeypatch.setattr(Transaction, "commit", late)
    committed(erase(table))
    assert not others
    assert is_gone(table)
    apply(table, (OTHER, 5, 3, "Rome", "u"), ("carol@example.org", 6, 3, "Bari", "u"))
    assert table.to_arrow().num_rows == 0


def test_a_tombstone_file_that_cannot_be_read_is_no_pass_and_ends_no_erasure(tmp_path: Path) -> None:
    table = remembering(tmp_path / "t")
    damaged = sorted((folder_of(table) / FOLDER).rglob("*.parquet"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-20] + b"\0" * 20)
    assert erase(table).error is None
    left = [each for each in table.find_traces("email", [SUBJECT]) if not each.passes]
    assert [each.verdict for each in left] == ["not readable"]
    assert left[0].path.startswith(FOLDER)
    assert error_of(apply(table, (OTHER, 5, 3, "Rome", "u")))


def test_files_that_a_list_of_an_unknown_form_may_name_stay_and_are_found(tmp_path: Path) -> None:
    table = remembering(tmp_path / "t")
    for manifest in (folder_of(table) / FOLDER).rglob("*.json"):
        manifest.write_text(manifest.read_text().replace('"format":1', '"format":2'))
    before = sorted(path.name for path in (folder_of(table) / FOLDER).rglob("*"))
    assert erase(table).error is None
    assert sorted(path.name for path in (folder_of(table) / FOLDER).rglob("*")) == before
    assert not is_gone(table)


@pytest.mark.long("forks and kills a process a dozen times")
def test_tombstones_agree_with_the_table_after_a_kill_at_any_change_of_a_file(tmp_path: Path) -> None:
    whole = remembering(tmp_path / "whole")
    number, step = 1, depth(3, 2, 1)
    while True:
        shutil.copytree(folder_of(whole), tmp_path / str(number))
        table = Table.open(tmp_path / str(number))
        if not _killed_at(number, lambda table=table: erase(table, log=lambda line: None)):
            break
        fresh = Table.open(table.uri)
        # Older events of the other person meet its tombstone, whatever the erasure has done so far.
        assert apply(fresh, (OTHER, 5, 3, "Rome", "u")).error is None
        assert fresh.to_arrow().num_rows == 0
        assert erase(fresh).error is None
        assert is_gone(fresh), number
        assert apply(fresh, (OTHER, 5, 4, "Rome", "u")).error is None
        assert fresh.to_arrow().num_rows == 0
        number += step
    assert number > 5
