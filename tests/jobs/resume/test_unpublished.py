"""Alone in showing staged changes: nobody sees one before it is published, and then all of it exactly once."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.clock import SystemClock
from airflow_txlog.engine import DeltaTable, Table
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.staged_changes import (
    DISCARD,
    PUBLISH,
    decide,
    digest_of,
    put_document,
    read_document,
    signed_part,
    staged_in,
)
from airflow_txlog.engine.table.snapshot.commit_times import parse_moment
from airflow_txlog.errors import InvalidInput, InvalidJobSpec, StagedChangeGone, VersionNotFound
from airflow_txlog.jobs.operations import publish as publication
from airflow_txlog.storage import Access
from airflow_txlog.storage.local import LocalStore
from tests.helpers.jobs import (
    application,
    by_id,
    committed,
    error_of,
    files_on_disk,
    ids,
    live_files,
    read_alike,
    rows,
    run,
    set_property,
)
from tests.helpers.rows import append, make_table
from tests.helpers.rows import stage as stage_files
from tests.helpers.staged import discard, publish, refused, stage

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
TRACKED = {"delta.enableRowTracking": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}
WRITE_SERIALIZABLE = {"delta.isolationLevel": "WriteSerializable"}
SET_NAME = {"set": {"name": "'x'"}, "predicate": "id < 5"}


def new_rows(folder: Path, count: int = 3, start: int = 100) -> dict[str, Any]:
    """A source of rows, as a Parquet file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{start}.parquet"
    pq.write_table(rows(count, start=start), path)
    return {"source": {"format": "parquet", "path": str(path)}}


def two_files(folder: Path, **more: Any) -> Table:
    """Version 1 holds ids 0 to 9, version 2 also 50 to 59."""
    return make_table(folder, rows(10), rows(10, start=50), **more)


def compact(table: Table, *, start: int) -> int:
    """Join the files with the ten rows from id `start` on, as an OPTIMIZE does."""
    tx = table.begin()
    tx.remove(tx.read(f"id >= {start} AND id < {start + 10}"), data_change=False)
    tx.add(msgspec.structs.replace(add, data_change=False) for add in stage_files(table, rows(10, start=start), tx=tx))
    return tx.commit("OPTIMIZE", {})


def waiting(table: Table) -> list[str]:
    return [id for id, _ in staged_in(table.store)]


# --- one change -----------------------------------------------------------------------------------------------------


def changes(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The arguments of one change by each operation that can wait."""
    source = new_rows(tmp_path / "in")
    return {
        "write": source,
        "delete": {"predicate": "id < 5"},
        "update": SET_NAME,
        "upsert": {**source, "keys": ["id"]},
        "merge": {**source, "on": "t.id = s.id", "clauses": [{"when": "not_matched", "then": "insert", "values": "*"}]},
        "truncate": {},
    }


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({}, id="plain"),
        pytest.param({**VECTORS, **FEED, **TRACKED}, id="vectors, feed and row ids"),
        *(
            pytest.param(each, id=str(each), marks=pytest.mark.long("as the others, one feature at a time"))
            for each in (VECTORS, FEED, TRACKED, MAPPED)
        ),
    ],
)
@pytest.mark.parametrize("operation", ["write", "delete", "update", "upsert", "merge", "truncate"])
def test_nobody_sees_a_change_before_it_is_published_and_then_all_see_what_a_direct_one_makes(
    operation: str, properties: dict[str, str], tmp_path: Path
) -> None:
    table, direct = (two_files(tmp_path / name, properties=properties) for name in ("t", "direct"))
    arguments = changes(tmp_path)[operation]
    handle = stage(operation, table, **arguments)
    assert (table.snapshot().version, ids(table)) == (2, [*range(10), *range(50, 60)])
    read_alike(table) if properties != MAPPED else None
    assert (handle["operation"], handle["base_version"]) == (operation, 2)
    assert waiting(table) == [handle["id"]]
    as_staged = by_id(table.with_staged(handle["id"], handle["digest"]))
    result = committed(publish(handle))
    expected = committed(run(None, operation, direct, application=application(), **arguments))
    assert (result.version, by_id(table)) == (3, by_id(direct))
    assert as_staged == by_id(table)
    assert result.files == expected.files
    assert {**result.metrics, **_times(expected)} == expected.metrics
    ours, theirs = table.history(1)[0], direct.history(1)[0]
    assert (ours["operation"], ours["operationParameters"]) == (theirs["operation"], theirs["operationParameters"])
    assert waiting(table) == []
    assert not any("txlog-inputs" in path for path in files_on_disk(table))


def _times(result: Any) -> dict[str, int]:
    return {name: value for name, value in result.metrics.items() if name.endswith(("TimeMs", "Bytes"))}


def test_a_second_publication_finds_the_first(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    assert committed(publish(handle)).version == 3
    again = publish(handle)
    assert (again.status, again.version, table.snapshot().version) == ("already_done", 3, 3)
    assert not again.details.arguments_changed


def test_a_retry_of_the_work_returns_the_handle_of_the_first_try(tmp_path: Path) -> None:
    table, work = two_files(tmp_path / "t"), application()
    handle = stage("update", table, work=work, **SET_NAME)
    before = files_on_disk(table)
    assert stage("update", table, work=work, **SET_NAME) == handle
    assert files_on_disk(table) == before
    committed(publish(handle))
    assert run(None, "update", table, application=work, publish=False, **SET_NAME).status == "already_done"


def test_a_change_of_nothing_is_not_staged(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    result = run(None, "delete", table, application=application(), publish=False, predicate="id = 77")
    assert (result.status, result.details.staged, waiting(table)) == ("nothing_to_do", None, [])


def test_the_staged_state_is_a_source_of_other_jobs(tmp_path: Path) -> None:
    table, copy = two_files(tmp_path / "t"), make_table(tmp_path / "copy", schema=rows(1).schema)
    handle = stage("update", table, **SET_NAME)
    append(table, rows(1, start=500))
    source = {"table": table.uri, "staged": {"id": handle["id"], "digest": handle["digest"]}}
    committed(run(None, "upsert", copy, source=source, keys=["id"]))
    names = by_id(copy)
    assert sorted(names) == [*range(10), *range(50, 60)]
    assert [id for id, name in names.items() if name == "x"] == list(range(5))
    with pytest.raises(InvalidInput, match="reading only"):
        table.with_staged(handle["id"], handle["digest"]).begin()
    with pytest.raises(StagedChangeGone, match="another table"):
        copy.with_staged(handle["id"], handle["digest"])
    discard(handle)
    assert error_of(run(None, "upsert", copy, source=source, keys=["id"]))["type"] == "StagedChangeGone"
    with pytest.raises(StagedChangeGone):
        table.with_staged(handle["id"], handle["digest"])


# --- other commits --------------------------------------------------------------------------------------------------


def test_appends_and_compactions_are_rebased_without_reading_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(5, start=50), rows(5, start=55), properties=WRITE_SERIALIZABLE)
    handle = stage("update", table, **SET_NAME)
    append(table, rows(3, start=200))
    compact(table, start=50)
    opened: list[str] = []
    really = LocalStore.open_input
    monkeypatch.setattr(LocalStore, "open_input", lambda store, path: (opened.append(path), really(store, path))[1])
    result = committed(publish(handle))
    assert (result.version, result.read_version, opened) == (6, 3, [])
    names = by_id(table)
    assert sorted(names) == [*range(10), *range(50, 60), *range(200, 203)]
    assert {id for id, name in names.items() if name == "x"} == set(range(5))


@pytest.mark.parametrize(
    ("change", "conflict"),
    [
        ({"operation": "update", "set": {"name": "'other'"}, "predicate": "id = 3"}, "ConcurrentAppend"),
        ({"operation": "delete", "predicate": "id = 3"}, "ConcurrentAppend"),
        ({"operation": "truncate"}, "ConcurrentDeleteRead"),
    ],
)
def test_a_racing_change_of_the_same_rows_forbids_it_for_good_and_is_named(
    change: dict[str, Any], conflict: str, tmp_path: Path
) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    append(table, rows(1, start=500))
    committed(run(None, change["operation"], table, **{k: v for k, v in change.items() if k != "operation"}))
    before = by_id(table)
    assert "version 4" in refused(publish(handle), conflict)
    assert "version 4" in refused(publish(handle), "StagedChangeGone")
    assert (by_id(table), table.snapshot().version) == (before, 4)
    staged = files_on_disk(table) - live_files(table)
    discard(handle)
    assert waiting(table) == []
    assert len(files_on_disk(table)) < len(staged | live_files(table))


def test_two_staged_changes_of_other_rows_are_both_published(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    first = stage("update", table, **SET_NAME)
    second = stage("delete", table, predicate="id >= 50 AND id < 53")
    assert [committed(publish(handle)).version for handle in (second, first)] == [3, 4]
    names = by_id(table)
    assert sorted(names) == [*range(10), *range(53, 60)]
    assert [id for id, name in names.items() if name == "x"] == list(range(5))


def test_ids_and_times_are_assigned_when_the_change_is_published(tmp_path: Path) -> None:
    properties = {**TRACKED, "delta.enableInCommitTimestamps": "true"}
    table = two_files(tmp_path / "t", properties=properties)
    handle = stage("write", table, **new_rows(tmp_path / "in"))
    append(table, rows(4, start=200))
    committed(publish(handle))
    files = {row["path"]: row for row in table.snapshot().files().to_pylist()}
    spans = sorted((row["base_row_id"], row["default_row_commit_version"]) for row in files.values())
    assert spans == [(0, 1), (10, 2), (20, 3), (24, 4)]
    times = [commit["inCommitTimestamp"] for commit in table.history()]
    assert times == sorted(set(times), reverse=True)


@pytest.mark.parametrize("step", ["opened", "decide", "read_document", "look_up"])
def test_a_publisher_that_is_overtaken_by_another_finds_its_commit(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    really, others = getattr(publication, step), list[Any]()

    def overtaken(*args: Any) -> Any:
        if not others:
            others.append(None)
            others[0] = publish(handle).status
        return really(*args)

    monkeypatch.setattr(publication, step, overtaken)
    result = publish(handle)
    assert (result.status, result.version, others) == ("already_done", 3, ["committed"])
    assert not any("txlog-inputs" in path for path in files_on_disk(table))
    assert by_id(table)[0] == "x"
    assert waiting(table) == []


def test_a_fate_is_decided_although_another_task_deletes_the_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    decide(table.store, handle["id"], PUBLISH)
    really = LocalStore.read

    def read(store: LocalStore, path: str) -> bytes:
        store.delete(path)
        return really(store, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "read", read)
        assert decide(table.store, handle["id"], DISCARD) == (DISCARD, "")


# --- what cannot be published ---------------------------------------------------------------------------------------


def test_a_discarded_change_is_gone_with_its_files(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    before = files_on_disk(table)
    handle = stage("update", table, **SET_NAME)
    assert discard(handle).status == "nothing_to_do"
    assert files_on_disk(table) == before
    assert discard(handle).status == "nothing_to_do"
    assert "discarded" in refused(publish(handle), "StagedChangeGone")


def test_a_discard_after_the_publication_deletes_nothing(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    committed(publish(handle))
    names = by_id(table)
    discard(handle)
    assert by_id(table) == names


def test_a_discard_leaves_the_files_of_a_change_that_a_task_may_be_publishing(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    assert decide(table.store, handle["id"], PUBLISH) == (PUBLISH, "")
    discard(handle)
    assert waiting(table) == [handle["id"]]
    committed(publish(handle))


def test_a_change_that_is_being_discarded_is_not_published(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    decide(table.store, handle["id"], DISCARD)
    refused(publish(handle), "StagedChangeGone")
    discard(handle)
    assert waiting(table) == []


def test_a_change_is_published_only_as_it_was_written_and_with_its_key(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    refused(publish(handle, key="0" * 64), "StagedChangeGone")
    (document,) = (tmp_path / "t").glob("txlog-inputs-*/staged-change")
    document.write_bytes(document.read_bytes().replace(b'"base_version":2', b'"base_version":1'))
    refused(publish(handle), "StagedChangeGone")
    assert table.snapshot().version == 2


def test_the_document_shows_no_value_of_the_conditions(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    who = "a person of whom a text is"
    stage("delete", table, predicate="name IN (:who, 'n7')", parameters={"who": who})
    (document,) = (tmp_path / "t").glob("txlog-inputs-*/staged-change")
    lines = document.read_bytes().split(b"\n", 2)
    assert b":who" in lines[1]
    assert who.encode() not in b"".join(lines)
    document.unlink()
    stage("delete", table, predicate=None, keys={"column": "name", "values": ["n8", who]})
    (document,) = (tmp_path / "t").glob("txlog-inputs-*/staged-change")
    # A file's bounds are in the log too: those of the values that stay.
    head = json.loads(document.read_bytes().split(b"\n", 2)[1])
    assert who not in json.dumps(head)
    assert who.encode() not in document.read_bytes()


def test_a_change_waits_no_longer_than_half_the_retention_of_removed_files(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t", properties={"delta.deletedFileRetentionDuration": "interval 200 milliseconds"})
    handle = stage("update", table, **SET_NAME)
    assert parse_moment(handle["expires_at"]) - handle["staged_ms"] <= 100
    time.sleep(0.2)
    assert "too long" in refused(publish(handle), "StagedChangeGone")
    set_property(table, "delta.deletedFileRetentionDuration", "interval 0 hours")
    result = run(None, "update", table, application=application(), publish=False, **SET_NAME)
    assert error_of(result)["type"] == "InvalidProperty"


def test_a_change_waits_no_longer_than_the_table_remembers_its_publication(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t", properties={"delta.setTransactionRetentionDuration": "interval 2 hours"})
    handle = stage("update", table, **SET_NAME)
    assert 0 < parse_moment(handle["expires_at"]) - handle["staged_ms"] <= 2 * 3_600_000


def test_a_key_that_has_staged_other_work_is_refused(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    work = dataclasses.replace(application(), check_digest=True)
    handle = stage("update", table, work=work, **SET_NAME)
    assert stage("update", table, work=work, **SET_NAME) == handle
    other = run(None, "delete", table, application=work, publish=False, predicate="id = 1")
    assert error_of(other)["type"] == "IdempotencyKeyReused"
    # An earlier run of that name, which was deleted and made again.
    later = dataclasses.replace(work, check_digest=False, not_before_ms=handle["staged_ms"] + 1)
    assert error_of(run(None, "update", table, application=later, publish=False, **SET_NAME))["type"] == (
        "IdempotencyKeyReused"
    )


@pytest.mark.parametrize("ends", ["expired", "refused"])
@pytest.mark.parametrize(("has_key", "advice"), [(True, "another idempotency_key"), (False, "clear the task")])
def test_the_work_of_a_change_that_waits_no_more_can_be_made_anew_as_its_error_advises(
    tmp_path: Path, ends: str, has_key: bool, advice: str
) -> None:
    retention = {"delta.deletedFileRetentionDuration": "interval 200 milliseconds"} if ends == "expired" else {}
    table = two_files(tmp_path / "t", properties=retention)
    work = dataclasses.replace(application(), check_digest=has_key)
    handle = stage("update", table, work=work, **SET_NAME)
    if ends == "expired":
        time.sleep(0.2)
        assert "give it another one" in refused(publish(handle), "StagedChangeGone")
    else:
        committed(run(None, "delete", table, predicate="id = 1"))
        error_of(publish(handle))
    again = run(None, "update", table, application=work, publish=False, **SET_NAME)
    assert advice in refused(again, "StagedChangeGone")
    # A change that is discarded leaves its key to the next try.
    discard(handle)
    assert stage("update", table, work=work, **SET_NAME)["digest"] != handle["digest"]


def test_a_discard_deletes_no_file_of_the_table(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    found = read_document(table.store, handle["id"])
    assert found is not None
    files = table.snapshot().files()
    forged = msgspec.structs.replace(
        found.change, content=msgspec.structs.replace(found.change.content, adds=table_to_adds(files, True), removes=[])
    )
    signed = signed_part(forged, found.rest)
    assert put_document(table.store, "f" * 32, found.signature, signed)
    discard({**handle, "id": "f" * 32, "digest": digest_of(signed)})
    assert live_files(table) <= files_on_disk(table)
    assert waiting(table) == [handle["id"]]


def test_a_change_waits_no_longer_than_six_days(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t", properties={"delta.deletedFileRetentionDuration": "interval 90 days"})
    handle = stage("truncate", table)
    assert parse_moment(handle["expires_at"]) - handle["staged_ms"] == 6 * 86_400_000


def test_a_change_whose_files_are_gone_is_not_published(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    (staged,) = (path for path in files_on_disk(table) - live_files(table) if path.endswith(".parquet"))
    (tmp_path / "t" / staged).unlink()
    assert staged in refused(publish(handle), "StagedChangeGone")
    assert table.snapshot().version == 2


def test_a_change_whose_version_left_the_log_is_not_published(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    append(table, rows(1, start=500))
    table.checkpoint()
    for path in (tmp_path / "t" / "_delta_log").glob("*.json"):
        if path.stem.isdigit() and int(path.stem) < 3:
            path.unlink()
    for _ in range(2):
        assert "version 2" in refused(publish(handle), "StagedChangeGone")
    discard(handle)
    assert files_on_disk(table) == live_files(table)


def test_a_change_of_a_table_that_was_made_again_is_not_published(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("truncate", table)
    for path in [*(tmp_path / "t" / "_delta_log").iterdir(), *(tmp_path / "t").glob("*.parquet")]:
        path.unlink()
    two_files(tmp_path / "t")
    refused(publish(handle), "TableReplaced")
    discard(handle)
    assert waiting(table) == []


def test_a_change_whose_version_left_the_log_may_be_discarded_unless_another_task_publishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_files(tmp_path / "t")
    first, second = (stage("update", table, **SET_NAME) for _ in range(2))
    assert decide(table.store, first["id"], PUBLISH) == (PUBLISH, "")

    def left(*_: Any) -> Any:
        raise VersionNotFound("version 2 is gone", table=table.uri, version=2)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "begin", left)
        for handle in (first, second):
            assert "left the log" in refused(publish(handle), "StagedChangeGone")
            discard(handle)
    assert waiting(table) == [first["id"]]
    committed(publish(first))
    assert live_files(table) <= files_on_disk(table)


def test_work_that_cannot_wait_is_refused_before_anything_is_staged(tmp_path: Path) -> None:
    table, source = two_files(tmp_path / "t"), new_rows(tmp_path / "in")
    before = files_on_disk(table)
    without_identity = run(None, "update", table, publish=False, **SET_NAME)
    without_key = run(None, "update", table, application=application(), key=None, publish=False, **SET_NAME)
    for result in (without_identity, without_key):
        assert error_of(result)["type"] == "InvalidJobSpec"
    absent = run(None, "write", tmp_path / "none", application=application(), publish=False, **source)
    assert error_of(absent)["type"] == "TableNotFound"
    assert files_on_disk(table) == before
    with pytest.raises(InvalidJobSpec, match="restore cannot wait"):
        run(None, "restore", table, publish=False, version=1)


def test_a_change_that_its_commit_would_refuse_is_refused_when_it_is_staged(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t", properties={"delta.appendOnly": "true"})
    before = files_on_disk(table)
    result = run(None, "delete", table, application=application(), publish=False, predicate="id = 1")
    assert error_of(result)["type"] == "AppendOnlyViolation"
    assert files_on_disk(table) == before


class _InDays(SystemClock):
    """The clock of a later day."""

    def __init__(self, days: float) -> None:
        self._ms = int(days * 86_400_000)

    def now_ms(self) -> int:
        return super().now_ms() + self._ms


# --- vacuum ---------------------------------------------------------------------------------------------------------


def test_a_vacuum_keeps_what_may_belong_to_a_change_that_it_cannot_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_files(tmp_path / "t")
    stage("update", table, **SET_NAME)
    staged = files_on_disk(table) - live_files(table)

    def doomed(days: float, **more: Any) -> set[str]:
        later = Table.at(table.uri, Access(), clock=_InDays(days))
        found = later.vacuum(0, check_retention=False, orphan_retention=timedelta(hours=24), dry_run=True, **more)
        return {path.removeprefix(f"{table.uri}/") for path in found.files}

    # An inventory from before the change shows its files, and not yet its document.
    paths = [path for path in staged if not path.startswith("txlog-inputs")]
    inventory = pa.table({"path": paths, "modificationTime": [0] * len(paths)})
    assert doomed(2, inventory=inventory) == set()
    assert doomed(6.1, inventory=inventory) == set(paths)

    def refused_read(store: LocalStore, path: str) -> bytes:
        if path.endswith("/staged-change"):
            raise PermissionError(path)
        return really(store, path)

    really = LocalStore.read
    monkeypatch.setattr(LocalStore, "read", refused_read)
    assert doomed(5.9) == set()
    assert doomed(6.1) == staged


def test_a_vacuum_keeps_the_files_of_a_change_that_waits_and_takes_them_afterwards(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    before = files_on_disk(table)

    def vacuum(days: float) -> set[str]:
        clock = _InDays(days)
        later = Table.at(table.uri, Access(), clock=clock)
        found = later.vacuum(0, check_retention=False, orphan_retention=timedelta(hours=24), dry_run=True)
        return {path.removeprefix(f"{table.uri}/") for path in found.files}

    assert vacuum(2) == set()
    # Half of seven days, the retention of removed files, is over.
    assert vacuum(3.6) == before - live_files(table)
    table.vacuum(0, check_retention=False)
    committed(publish(handle))
    assert by_id(table)[3] == "x"


def make_older(folder: Path, days: float = 2) -> None:
    """Give all files of the table in this folder, but those of its log, the times of an earlier day."""
    for path in folder.rglob("*"):
        if path.is_file() and "_delta_log" not in path.parts:
            os.utime(path, (time.time() - days * 86_400,) * 2)


@pytest.mark.parametrize("step", ["snapshot", "list_directories", "walk"])
def test_a_vacuum_keeps_the_files_of_a_change_that_is_published_while_it_runs(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    make_older(tmp_path / "t")
    published: list[str] = []
    kind = DeltaTable if step == "snapshot" else LocalStore
    really = getattr(kind, step if step != "snapshot" else "begin")

    def overtaken(*args: Any, **more: Any) -> Any:
        found = really(*args, **more)
        found = list(found) if step == "walk" else found
        if not published:
            published.append("")
            published[0] = publish(handle).status
        return found

    monkeypatch.setattr(kind, "begin" if step == "snapshot" else step, overtaken)
    table.vacuum(0, check_retention=False, orphan_retention=timedelta(hours=24))
    assert published == ["committed"]
    assert live_files(table) <= files_on_disk(table)
    assert by_id(table)[3] == "x"


def test_a_vacuum_takes_removed_rows_although_the_publisher_of_them_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_files(tmp_path / "t")
    handle = stage("update", table, **SET_NAME)
    with monkeypatch.context() as patch:
        patch.setattr(publication, "forget", lambda *_: None)
        committed(publish(handle))
    committed(run(None, "truncate", table))
    assert waiting(table) == [handle["id"]]
    table.vacuum(0, check_retention=False)
    assert not any(path.endswith(".parquet") for path in files_on_disk(table))


@pytest.mark.parametrize("damage", ["another release", "another user"])
def test_a_vacuum_keeps_what_may_belong_to_a_change_that_it_cannot_read(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_files(tmp_path / "t")
    stage("update", table, **SET_NAME)
    (document,) = (tmp_path / "t").glob("txlog-inputs-*/staged-change")
    if damage == "another release":
        document.write_bytes(document.read_bytes().replace(b'"format":1', b'"format":2'))
    else:
        really = LocalStore.read

        def read(store: LocalStore, path: str) -> bytes:
            if path.endswith("staged-change"):
                raise PermissionError(path)
            return really(store, path)

        monkeypatch.setattr(LocalStore, "read", read)
    make_older(tmp_path / "t")
    before = files_on_disk(table)
    table.vacuum(0, check_retention=False, orphan_retention=timedelta(hours=24))
    assert files_on_disk(table) == before
    make_older(tmp_path / "t", 7)
    table.vacuum(0, check_retention=False, orphan_retention=timedelta(hours=24))
    assert files_on_disk(table) == live_files(table)
