"""Alone in showing that a file goes whose partition is the only sign of its subject, and that those of others stay."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure import hidden_partitions
from airflow_txlog.engine.erasure.removal import remove_traces
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.storage.clouds import NotAnswered
from tests.helpers import staged as staged_changes
from tests.helpers.byte_search import holding
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append, stage

EMAIL, OTHER = "ann.canary@example.org", "bob.other@example.org"
SUBJECT = 731_955_201
SCHEMA = pa.schema([("user_id", pa.int64()), ("email", pa.string()), ("n", pa.int64())])
MAPPED = {"delta.columnMapping.mode": "name"}


def table_of(folder: Path, **properties: str) -> Table:
    table = Table.create(folder, SCHEMA, partition_by=["user_id"], properties={**MAPPED, **properties})
    append(table, [{"user_id": SUBJECT, "email": EMAIL, "n": 1}])
    append(table, [{"user_id": 1, "email": OTHER, "n": 1}])
    return table


def erase(table: Table) -> None:
    subjects = {"column": "user_id", "values": [SUBJECT]}
    committed(run(None, "erase", table, subjects=subjects, writer_hours=0))


def test_a_change_file_of_the_subject_goes_and_that_of_another_person_stays(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t", **{"delta.enableChangeDataFeed": "true"})
    committed(run(None, "update", table, predicate="n = 1", set={"n": "2"}))
    before = holding(tmp_path / "t" / "_change_data", OTHER)
    erase(table)
    assert holding(tmp_path / "t", EMAIL) == []
    assert before
    assert holding(tmp_path / "t" / "_change_data", OTHER) == before


def test_a_folder_whose_name_ends_with_that_of_the_key_shows_no_key(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t")
    (file,) = holding(tmp_path / "t", EMAIL)[:1]
    other = tmp_path / "t" / "other_user_id=5"
    other.mkdir()
    (other / "a.parquet").write_bytes((tmp_path / "t" / file).read_bytes())
    erase(table)
    assert holding(tmp_path / "t", EMAIL) == []


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_file_that_no_tombstone_names_any_more_goes(tmp_path: Path, *, is_damaged: bool) -> None:
    table = table_of(tmp_path / "t", **{"delta.deletedFileRetentionDuration": "interval 0 hours"})
    committed(run(None, "delete", table, predicate=f"email = '{EMAIL}'"))
    append(table, [{"user_id": 2, "email": OTHER, "n": 1}])
    table.checkpoint()
    for commit in (tmp_path / "t" / "_delta_log").glob("*.json"):
        if int(commit.stem) < table.latest_version():
            commit.write_text("{") if is_damaged else commit.unlink()
    assert len(holding(tmp_path / "t", EMAIL)) == 1
    table = Table.open(table.uri)
    erase(table)
    assert holding(tmp_path / "t", EMAIL) == []
    assert sorted(table.to_arrow().column("user_id").to_pylist()) == [1, 2]


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_files_of_former_partitions_go_and_those_of_a_table_that_never_had_any_stay(
    tmp_path: Path, *, is_cleaned: bool
) -> None:
    properties = {"delta.enableChangeDataFeed": "true", "delta.deletedFileRetentionDuration": "interval 0 hours"}
    table = table_of(tmp_path / "t", **properties)
    committed(run(None, "update", table, predicate="n = 1", set={"n": "2"}))
    before = holding(tmp_path / "t" / "_change_data", OTHER)
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    assert tx.metadata is not None
    tx.set_metadata(msgspec.structs.replace(tx.metadata, partition_columns=[]), is_checked=True)
    tx.commit("WRITE", {"mode": "Overwrite"})
    append(table, [{"user_id": 1, "email": OTHER, "n": 1}])
    # A file with the key in a column is searched, whatever names it.
    orphan = stage(table, pa.Table.from_pylist([{"user_id": 2, "email": OTHER, "n": 7}], SCHEMA))[0].path
    table.checkpoint()
    if is_cleaned:
        for commit in (tmp_path / "t" / "_delta_log").glob("*.json"):
            if int(commit.stem) < table.latest_version():
                commit.unlink()
    table = Table.open(table.uri)
    assert holding(tmp_path / "t" / "_change_data", EMAIL)
    erase(table)
    assert holding(tmp_path / "t", EMAIL) == []
    assert (tmp_path / "t" / orphan).exists()
    # Only what the log still names is known to be of another person.
    assert holding(tmp_path / "t" / "_change_data", OTHER) == ([] if is_cleaned else before)


def test_a_tombstone_without_partition_values_leaves_the_partition_of_the_commit_known(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t")
    committed(run(None, "delete", table, predicate="n = 1"))
    commit = tmp_path / "t" / "_delta_log" / f"{table.latest_version():020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "remove" in line:
            del line["remove"]["partitionValues"]
    commit.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    erase(Table.open(table.uri))
    assert holding(tmp_path / "t", EMAIL) == []
    assert len(holding(tmp_path / "t", OTHER)) == 1


def test_a_file_that_is_committed_meanwhile_neither_waits_nor_keeps_the_log(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t")
    committed(run(None, "delete", table, predicate=f"email = '{EMAIL}'"))
    forms = Forms.of(table.snapshot(), "user_id", [SUBJECT])
    staged = stage(table, pa.Table.from_pylist([{"user_id": 2, "email": OTHER, "n": 1}], SCHEMA))
    said: list[str] = []

    def commit_now(_: object) -> None:
        if staged:
            tx = table.begin()
            tx.add([staged.pop()])
            tx.commit("WRITE")

    done = remove_traces(table, forms, writer_ms=3_600_000, say=said.append, note=commit_now)
    assert not staged
    # The log is cut when its commits are an hour old.
    assert [wait.why for wait in done.waits] == [f"the log is cut at version {done.checkpoint} then"]
    assert not any("was not cut" in line for line in said)
    assert list((tmp_path / "t").glob("**/*.parquet"))
    assert [path for path in holding(tmp_path / "t", EMAIL) if not path.startswith("_delta_log")] == []


def test_a_file_of_a_staged_change_waits_for_no_subject_that_it_does_not_hold(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t")
    staged_changes.stage("update", table, predicate=f"email = '{OTHER}'", set={"n": "2"})
    forms = Forms.of(table.snapshot(), "user_id", [SUBJECT])
    waits = remove_traces(table, forms, writer_ms=0).waits
    assert [wait.path for wait in waits if wait.path.endswith(".parquet")] == []


def test_a_table_without_partitions_whose_tombstones_name_each_file_needs_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    append(table, [{"user_id": SUBJECT, "email": EMAIL, "n": 1}])
    with monkeypatch.context() as patched:
        patched.setattr(hidden_partitions, "look", None)
        erase(table)
    assert holding(tmp_path / "t", EMAIL) == []


def test_a_store_that_is_busy_makes_no_file_one_of_an_unknown_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_busy(*_: object) -> bool:
        raise NotAnswered(errno.EAGAIN, "busy")

    table = table_of(tmp_path / "t")
    orphan = stage(table, pa.Table.from_pylist([{"user_id": 2, "email": OTHER, "n": 7}], SCHEMA))[0].path
    forms = Forms.of(table.snapshot(), "user_id", [SUBJECT])
    monkeypatch.setattr(hidden_partitions, "has_key", is_busy)
    with pytest.raises(NotAnswered):
        remove_traces(table, forms, writer_ms=0)
    assert (tmp_path / "t" / orphan).exists()
