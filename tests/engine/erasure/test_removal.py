"""Alone in showing that a removal leaves no byte of a subject in a table's folder, and breaks no reader or writer."""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest

from airflow_txlog.contract.parameters import encode_parameter
from airflow_txlog.engine import Snapshot, Table
from airflow_txlog.engine.checkpointing import checkpoint, cut_log, replace_checkpoint
from airflow_txlog.engine.erasure import object_verdicts, removal
from airflow_txlog.engine.erasure.removal import Removal
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.checkpoints.reading import read_checkpoint, sidecars_of
from airflow_txlog.engine.log.columns import FILES
from airflow_txlog.engine.log.names import LAST_CHECKPOINT, commit_name
from airflow_txlog.engine.log.segment import look
from airflow_txlog.engine.table.snapshot.file_index import FileIndex
from airflow_txlog.engine.table.snapshot.snapshot import rebuilt_without
from airflow_txlog.errors import ConcurrentLogCleanup, CredentialsUnavailable, LimitExceeded, VersionNotFound
from airflow_txlog.storage import PLAIN, LocalStore
from airflow_txlog.storage.base import NoCredentials
from airflow_txlog.storage.clouds import NotAnswered
from tests.engine.erasure.test_find_traces import bloomed
from tests.helpers import staged
from tests.helpers.byte_search import holding
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append, make_table, stage

SUBJECT = "zoë.canary@example.org"
OTHERS = ["bob.other@example.org", "carol@example.org", None]
SCHEMA = pa.schema([("email", pa.string()), ("number", pa.int64()), ("day", pa.string())])
LOG = "_delta_log"
VECTORS = {"delta.enableDeletionVectors": "true"}
LONG = pytest.mark.long("another shape of the table")
FEED = {"delta.enableChangeDataFeed": "true"}


def rows(*emails: str | None) -> pa.Table:
    columns = [list(emails), list(range(len(emails))), ["monday"] * len(emails)]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


def folder_of(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://"))


def erase(table: Table, values: tuple[Any, ...] = (SUBJECT,), column: str = "email", **given: Any) -> Removal:
    """Delete the rows, purge, and remove what is left, as if nothing else wrote to the table."""
    keys = {"column": column, "values": encode_parameter(list(values), "keys")}
    run(None, "delete", table, predicate=None, keys=keys)
    run(None, "optimize", table, purge=True)
    return table.remove_traces(column, values, **{"writer_hours": 0, **given})


def is_gone(table: Table, value: str | bytes = SUBJECT, column: str = "email") -> bool:
    left = [verdict for verdict in table.find_traces(column, [value]) if not verdict.passes]
    assert bool(left) == bool(holding(folder_of(table), value)), left
    return not left


@pytest.mark.parametrize(
    "properties",
    [
        {},
        VECTORS,
        pytest.param(VECTORS | FEED, marks=LONG),
        {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"} | VECTORS,
        pytest.param(
            {"delta.checkpointInterval": "1", "delta.checkpoint.writeStatsAsStruct": "true"} | FEED, marks=LONG
        ),
    ],
    ids=["plain", "vectors", "feed", "v2", "each version has a checkpoint"],
)
def test_nothing_of_a_subject_is_left_in_the_folder(tmp_path: Path, properties: dict[str, str]) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, ["day"], properties=properties)
    append(table, rows(SUBJECT, *OTHERS))
    append(table, rows(*OTHERS, SUBJECT))
    committed(run(None, "update", table, set={"number": "number + 10"}, predicate=f"email = '{SUBJECT}'"))
    table.checkpoint()
    append(table, rows(*OTHERS))
    before = sorted(map(repr, table.to_arrow(f"email <> '{SUBJECT}' OR email IS NULL").to_pylist()))
    assert not is_gone(table)

    done = erase(table)

    assert is_gone(table)
    assert not done.waits
    assert done.deleted_files
    assert done.cut is not None
    assert done.cut <= done.version
    fresh = Table.open(table.uri)
    assert sorted(map(repr, fresh.to_arrow().to_pylist())) == before
    with pytest.raises(VersionNotFound):
        fresh.snapshot(1)
    assert fresh.history()
    append(fresh, rows("dora@example.org"))
    # Doing it again finds nothing to do.
    again = erase(table)
    assert (again.deleted_files, again.deleted_log_files, again.cut) == (0, 0, None)


def test_a_table_that_is_partitioned_by_the_key_has_no_such_folder_and_no_tombstone(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, ["email"], properties=VECTORS | FEED)
    append(table, rows(SUBJECT, *OTHERS))
    append(table, rows(SUBJECT, *OTHERS))
    for folder in {path.parent for path in folder_of(table).rglob("*.parquet") if "zo" in path.parent.name}:
        # Hadoop leaves the sums of a local file behind, in the folder that the value names.
        (folder / ".part.parquet.crc").write_bytes(b"crc\0\0\0\2\0abcd")
    erase(table)
    assert is_gone(table)
    assert table.to_arrow().num_rows == 6


def test_empty_objects_that_stand_for_the_folders_of_a_subject_are_found_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    markers = [f"email={SUBJECT}", "email=bob", "_delta_log"]
    monkeypatch.setattr(LocalStore, "folder_markers", lambda _: list(markers))
    monkeypatch.setattr(LocalStore, "delete_folder_marker", lambda _, path: markers.remove(path))
    table = make_table(tmp_path / "t", rows(*OTHERS))
    left = [verdict for verdict in table.find_traces("email", [SUBJECT]) if not verdict.passes]
    assert [(verdict.path, verdict.verdict) for verdict in left] == [("(a subject)", "found")]
    erase(table)
    assert markers == ["email=bob", "_delta_log"]
    assert is_gone(table)


def test_what_a_writer_may_still_need_waits_and_is_named_without_the_value(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, ["email"])
    append(table, rows(SUBJECT, *OTHERS))
    # Files of a job that runs now: no commit names them.
    (young,) = stage(table, rows(SUBJECT))

    done = erase(table, writer_hours=24)

    assert done.deleted_files == 1
    assert done.cut is None
    assert len(done.waits) == 2
    assert "zo" not in repr(done.waits)
    day_ms = 24 * 3_600_000
    assert all(0 < wait.until_ms - table.store.now_ms() <= day_ms for wait in done.waits)
    assert done.until_ms == max(wait.until_ms for wait in done.waits)
    assert (folder_of(table) / unquote(young.path)).exists()
    version = table.snapshot().version
    # A day later the same call does the rest, with the checkpoint that is there.
    for path in folder_of(table).rglob("*"):
        os.utime(path, (time.time() - 90_000,) * 2)
    again = erase(table, writer_hours=24)
    assert not again.waits
    assert is_gone(table)
    assert again.deleted_files == 1
    assert again.cut is not None
    assert version <= again.cut


def test_a_file_of_a_staged_change_stays_until_the_change_expires(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    append(table, rows(*OTHERS))
    handle = staged.stage("update", table, set={"day": f"'{SUBJECT}'"})
    done = erase(table)
    assert done.deleted_files == 0
    assert {wait.why for wait in done.waits} == {"a staged change needs it until it expires"}
    assert staged.publish(handle).status == "committed"


def test_a_transaction_that_began_before_the_cut_is_refused_and_loses_no_row(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS))
    other = Table.open(table.uri)
    tx = other.begin()
    tx.add(stage(other, rows("dora@example.org"), tx=tx))
    assert erase(table).cut is not None
    with pytest.raises(ConcurrentLogCleanup):
        tx.commit("WRITE", {"mode": "Append"})
    append(other, rows("dora@example.org"))
    assert Table.open(table.uri).to_arrow().num_rows == 4


def test_a_subject_that_comes_back_meanwhile_stays_and_is_found(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS))
    run(None, "delete", table, predicate=None, keys={"column": "email", "values": [SUBJECT]})
    append(table, rows(SUBJECT))
    done = table.remove_traces("email", [SUBJECT], writer_hours=0)
    assert done.cut is None
    left = [verdict for verdict in table.find_traces("email", [SUBJECT]) if not verdict.passes]
    assert any(verdict.path.endswith(".parquet") for verdict in left)
    assert table.to_arrow().num_rows == 4
    assert erase(table).cut is not None
    assert is_gone(table)


def test_a_value_in_another_column_of_a_live_row_stays_and_is_found_and_makes_few_versions(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS))
    append(table, rows(*OTHERS).set_column(2, "day", pa.array([SUBJECT] * 3)))
    before = table.snapshot().version
    assert erase(table).cut is None
    # The delete, both records of the vacuum, and one more for the checkpoint.
    assert table.snapshot().version <= before + 4
    assert not is_gone(table)
    assert table.to_arrow().num_rows == 6


@LONG
def test_a_live_file_of_another_writer_with_a_bloom_filter_is_written_anew(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(*OTHERS))
    path = folder_of(table) / "foreign.parquet"
    bloomed(path, [SUBJECT, "dora@example.org"])
    tx = table.begin()
    size, at = path.stat().st_size, int(path.stat().st_mtime * 1000)
    add = Add(path=path.name, partition_values={}, size=size, modification_time=at, data_change=True, stats=None)
    tx.add([add])
    tx.commit("WRITE", {"mode": "Append"})
    erase(table)
    assert is_gone(table)
    assert not path.exists()
    assert table.to_arrow().num_rows == 4


def test_files_of_others_in_a_shared_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "notes.txt").write_text(SUBJECT)
    table = Table.create(tmp_path / "t", SCHEMA, allow_non_empty=True)
    append(table, rows(SUBJECT, *OTHERS))
    done = erase(table)
    assert done.deleted_files == 1
    assert not done.waits
    assert holding(folder_of(table), SUBJECT) == ["notes.txt"]


def test_no_removal_waits_for_files_of_others_which_it_never_deletes(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "notes.txt").write_text(SUBJECT)
    shared = Table.create(tmp_path / "t", SCHEMA, allow_non_empty=True)
    assert not erase(shared, writer_hours=24).waits
    table = make_table(tmp_path / "u", rows(*OTHERS))
    inner = make_table(tmp_path / "u" / "inner", rows(SUBJECT))
    assert not erase(table, writer_hours=24).waits
    assert inner.to_arrow().num_rows == 1


def test_unfinished_uploads_of_tables_below_and_in_a_shared_folder_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def abort(store: LocalStore, before_ms: int, others: tuple[str, ...] = ()) -> int:
        asked.append(others)
        raise PermissionError

    monkeypatch.setattr(LocalStore, "abort_unfinished", abort)
    table = make_table(tmp_path / "t", rows(*OTHERS))
    make_table(tmp_path / "t" / "inner", rows(SUBJECT))
    keys = {"column": "email", "values": [SUBJECT]}
    lines: list[str] = []
    assert run(None, "erase", table, subjects=keys, writer_hours=0, log=lines.append).error is None
    assert asked == [("inner/",)]
    assert any("some unfinished uploads" in line and "PermissionError" in line for line in lines)
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "notes.txt").write_text("x")
    shared = Table.create(tmp_path / "u", SCHEMA, allow_non_empty=True)
    append(shared, rows(*OTHERS))
    assert run(None, "erase", shared, subjects=keys, writer_hours=0, log=lines.append).error is None
    assert len(asked) == 1
    assert any("the folder is shared: unfinished uploads" in line for line in lines)


class _Restores(LocalStore):
    """A store in which an earlier version is restored while a vacuum lists the table."""

    to: int | None = None

    def list_directories(self) -> list[str]:
        found = super().list_directories()
        to, self.to = self.to, None
        if to is not None:
            Table.open(self.root).restore(to)
        return found


def test_a_file_that_a_restore_brings_back_while_the_table_is_listed_stays(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS))
    run(None, "delete", table, predicate=None, keys={"column": "email", "values": [SUBJECT]})
    store = _Restores(str(folder_of(table)))
    store.to = 1
    removed = Table.at(store, PLAIN).remove_traces("email", [SUBJECT], writer_hours=0)
    assert store.to is None
    assert removed.cut is None
    assert Table.open(table.uri).to_arrow().num_rows == 4


class _RestoresOnAFullDisk(LocalStore):
    """A store in which an earlier version is restored, and whose disk is full when VACUUM START is recorded."""

    to: int | None = None

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if b"VACUUM START" not in data:
            return super().put_if_absent(path, data)
        to, self.to = self.to, None
        if to is not None:
            Table.open(self.root).restore(to)
        raise OSError(errno.ENOSPC, "the disk is full")


def test_a_file_that_a_restore_brings_back_before_a_start_that_is_not_recorded_stays(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS))
    run(None, "delete", table, predicate=None, keys={"column": "email", "values": [SUBJECT]})
    store = _RestoresOnAFullDisk(str(folder_of(table)))
    store.to = 1
    Table.at(store, PLAIN).vacuum(0, check_retention=False)
    assert store.to is None
    assert Table.open(table.uri).to_arrow().num_rows == 4


class _Overtakes(LocalStore):
    """A store in which another erasure cuts the log after this one has listed it, before it reads a file of it."""

    before = LAST_CHECKPOINT
    is_listed = False

    def walk(self, *given: Any, prefix: str = "", lazily: bool = False) -> Any:
        self.is_listed |= prefix == f"{LOG}/"
        return super().walk(*given, prefix=prefix, lazily=lazily)

    def read(self, path: str) -> bytes:
        if self.is_listed and path == self.before:
            self.before = ""
            other = Table.open(self.root)
            append(other, rows(SUBJECT))
            assert erase(other).cut is not None
        return super().read(path)


@pytest.mark.parametrize("before", [LAST_CHECKPOINT, commit_name(0)], ids=["to find the place", "to compare"])
def test_two_removals_at_once_lose_nothing_and_the_slower_ends_well(tmp_path: Path, before: str) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS))
    erase(table, cut_log=False)
    table.begin().commit("ERASE", record_empty=True)
    table.checkpoint()
    store = _Overtakes(str(folder_of(table)))
    store.before = before
    assert Table.at(store, PLAIN).remove_traces("email", [SUBJECT], writer_hours=0).cut is None
    assert store.before == ""
    assert is_gone(table)
    assert table.to_arrow().num_rows == 3


def test_a_remove_of_another_writer_without_the_partition_is_no_obstacle(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS), partition_by=["email"])
    keys = {"column": "email", "values": encode_parameter([SUBJECT], "keys")}
    run(None, "delete", table, predicate=None, keys=keys)
    commit = folder_of(table) / commit_name(2)
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for remove in (each["remove"] for each in actions if "remove" in each):
        for name in remove.keys() - {"path", "deletionTimestamp", "dataChange"}:
            del remove[name]
    commit.write_text("".join(f"{json.dumps(each)}\n" for each in actions))
    assert Table.open(table.uri).remove_traces("email", [SUBJECT], writer_hours=0).deleted_files == 1
    assert is_gone(table)


def test_the_log_stays_with_cut_log_false(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS))
    assert erase(table, cut_log=False).cut is None
    assert {path.partition("/")[0] for path in holding(folder_of(table), SUBJECT)} == {LOG}
    assert table.snapshot(0).version == 0


def test_a_checkpoint_that_differs_from_the_log_is_no_place_to_cut(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS), rows(*OTHERS))
    erase(table, cut_log=False)
    table.begin().commit("ERASE", record_empty=True)
    snapshot = table.snapshot()
    lost = replace(snapshot.state, files=FileIndex(FILES))
    checkpoint(table.store, Snapshot(table.store, lost, snapshot.commit_file, snapshot.anchor), table.clock)
    done = table.remove_traces("email", [SUBJECT], writer_hours=0)
    assert done.cut is None
    assert done.deleted_log_files == 0
    assert (folder_of(table) / commit_name(0)).exists()


def test_a_checkpoint_that_has_forgotten_a_transaction_is_no_place_to_cut(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS))
    tx = table.begin()
    tx.set_application("a stream", 7)
    tx.commit("STREAMING UPDATE", record_empty=True)
    erase(table, cut_log=False)
    table.begin().commit("ERASE", record_empty=True)
    snapshot = table.snapshot()
    lost = replace(snapshot.state, transactions={})
    checkpoint(table.store, Snapshot(table.store, lost, snapshot.commit_file, snapshot.anchor), table.clock)
    assert table.remove_traces("email", [SUBJECT], writer_hours=0).cut is None
    assert (folder_of(table) / commit_name(0)).exists()


V2 = {"delta.checkpointPolicy": "v2"}


def test_the_log_is_cut_after_a_version_with_a_broken_checkpoint_next_to_the_whole_one(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS), properties=V2 | VECTORS)
    erase(table, cut_log=False)
    table.begin().commit("ERASE", record_empty=True)
    snapshot = table.snapshot()
    checkpoint(table.store, snapshot, table.clock)
    checkpoint(table.store, snapshot, table.clock)
    # Another reader may choose this one, and without the log there is nothing else to read.
    _, second = look(table.store, 0).checkpoints[snapshot.version]
    for path in sidecars_of(table.store, second):
        (folder_of(table) / path).unlink()
    assert table.remove_traces("email", [SUBJECT], writer_hours=0).cut == snapshot.version + 1
    assert is_gone(table)


@pytest.mark.parametrize("after", [0, 1])
def test_a_kill_while_a_checkpoint_is_replaced_leaves_no_broken_one(tmp_path: Path, after: int) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS), properties=V2 | VECTORS)
    table.checkpoint()
    snapshot = table.snapshot()
    with pytest.raises(KeyboardInterrupt):
        replace_checkpoint(_Ends(folder_of(table), LOG, after), snapshot, table.clock, [])
    left = look(table.store, snapshot.version).checkpoints[snapshot.version]
    assert [read_checkpoint(table.store, each).adds.num_rows for each in left] == [1] * (2 - after)


@pytest.mark.parametrize("names", ["name", pytest.param("id", marks=LONG), pytest.param("none", marks=LONG)])
def test_keys_of_other_types_and_of_mapped_columns_are_gone(tmp_path: Path, names: str) -> None:
    key = uuid.uuid4().bytes
    schema = pa.schema([("key", pa.binary()), ("number", pa.int64())])
    properties = VECTORS | {"delta.columnMapping.mode": names}
    data = pa.table({"key": [key, uuid.uuid4().bytes], "number": [731_955_201, 2]}, schema=schema)
    table = make_table(tmp_path / "t", data, data, properties=properties)
    erase(table, (key,), "key")
    assert is_gone(table, key, "key")
    append(table, data)
    erase(table, (731_955_201,), "number")
    assert not [verdict for verdict in table.find_traces("number", [731_955_201]) if not verdict.passes]
    assert table.to_arrow().num_rows == 3


@pytest.mark.parametrize(
    "step", [pytest.param("vacuum", marks=LONG), "checkpoint", pytest.param("sidecars", marks=LONG), "log"]
)
def test_a_removal_that_ends_at_any_delete_is_completed_by_the_next(tmp_path: Path, step: str) -> None:
    properties = {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "3"} | VECTORS
    table = Table.create(tmp_path / "t", SCHEMA, ["email"], properties=properties)
    for _ in range(5):
        append(table, rows(SUBJECT, *OTHERS))
    starts = {"vacuum": "email=", "checkpoint": "", "sidecars": f"{LOG}/_sidecars", "log": f"{LOG}/0"}
    store = _Ends(folder_of(table), starts[step], after=2 if step in ("vacuum", "log") else 0)
    with pytest.raises(KeyboardInterrupt):
        erase(Table.at(store, PLAIN))
    fresh = Table.open(table.uri)
    assert fresh.to_arrow().num_rows == 15
    assert not erase(fresh).waits
    assert is_gone(fresh)


class _Ends(LocalStore):
    """A store whose process ends at a delete of a file whose path begins so, or as the hint is written."""

    def __init__(self, folder: Path, start: str, after: int) -> None:
        super().__init__(str(folder))
        self._start, self._left = start, after

    def delete(self, path: str) -> None:
        if self._start and path.startswith(self._start):
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        super().delete(path)

    def put(self, path: str, data: bytes) -> None:
        if not self._start and path.endswith("_last_checkpoint") and b"sidecarFiles" in data:
            raise KeyboardInterrupt
        super().put(path, data)


# --- damaged checkpoints ----------------------------------------------------------------------------------------------


def _with_checkpoints(path: Path, *, last: bool, properties: dict[str, str] = V2) -> tuple[Table, list[Path], Path]:
    """A table with two checkpoints that hold a subject. Return their paths, and that of the last one's sidecar."""
    table = make_table(path, rows(SUBJECT, *OTHERS), properties=properties)
    table.checkpoint()
    append(table, rows(SUBJECT, *OTHERS))
    table.checkpoint()
    append(table, rows(*OTHERS))
    log = folder_of(table) / LOG
    found = sorted(log.glob("*.checkpoint*"))
    assert len(found) == 2
    sidecars = sorted((log / "_sidecars").glob("*"), key=lambda each: each.stat().st_mtime_ns)
    return table, found, sidecars[-1 if last else 0] if sidecars else found[0]


def _damage(path: Path) -> None:
    path.write_bytes(b"PAR1" + os.urandom(200) if path.suffix == ".parquet" else path.read_bytes()[:-40])


@pytest.mark.parametrize("last", [True, False], ids=["the last one", "an earlier one"])
@pytest.mark.parametrize(
    ("part", "properties"),
    [("top level", V2), ("sidecar", V2), ("top level", {})],
    ids=["top level", "sidecar", "classic"],
)
def test_a_damaged_checkpoint_does_not_stop_the_cut_and_goes(
    tmp_path: Path, part: str, last: bool, properties: dict[str, str]
) -> None:
    table, checkpoints, sidecar = _with_checkpoints(tmp_path / "t", last=last, properties=properties)
    damaged = checkpoints[-1 if last else 0] if part == "top level" else sidecar
    _damage(damaged)
    table = Table.open(table.uri)
    done = erase(table)
    assert done.cut is not None
    assert not damaged.exists()
    assert not done.waits
    assert is_gone(table)
    assert Table.open(table.uri).to_arrow().num_rows == 9


def test_sidecars_of_a_damaged_checkpoint_wait_for_writers_and_are_named(tmp_path: Path) -> None:
    table, checkpoints, _ = _with_checkpoints(tmp_path / "t", last=True)
    erase_rows = {"column": "email", "values": encode_parameter([SUBJECT], "keys")}
    _damage(checkpoints[-1])
    run(None, "delete", table, predicate=None, keys=erase_rows)
    done = table.remove_traces("email", [SUBJECT], writer_hours=24)
    assert done.waits
    for path in folder_of(table).rglob("*"):
        os.utime(path, (time.time() - 90_000,) * 2)
    done = erase(table, writer_hours=24)
    assert not done.waits
    assert is_gone(table)


def test_a_checkpoint_that_differs_from_the_log_before_a_damaged_one_is_no_cut(tmp_path: Path) -> None:
    table, checkpoints, _ = _with_checkpoints(tmp_path / "t", last=True, properties={})
    append(table, rows(*OTHERS))
    _damage(checkpoints[-1])
    table = Table.open(table.uri)
    version = table.latest_version()
    table.checkpoint()
    snapshot = table.snapshot()
    # A checkpoint of another writer, which lacks the live files.
    lost = replace(snapshot.state, files=FileIndex(FILES))
    short = Snapshot(table.store, lost, snapshot.commit_file, snapshot.anchor)
    checkpoint(table.store, short, table.clock)
    assert not cut_log(table.store, snapshot, version, table.clock).cut


@pytest.mark.parametrize(
    ("error", "is_raised"),
    [
        (pa.ArrowInvalid("bytes"), False),
        (OSError("Couldn't deserialize thrift"), False),
        (OSError(errno.EIO, "the disk fails"), True),
        (MemoryError(), True),
    ],
    ids=["arrow", "bytes", "store", "memory"],
)
def test_a_version_that_damaged_bytes_prevent_is_not_rebuilt_and_a_failing_store_is_an_error(
    tmp_path: Path, error: Exception, is_raised: bool
) -> None:
    table = make_table(tmp_path / "t", rows(*OTHERS), rows(*OTHERS))

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(table.store, name)

        def open_input(self, path: str) -> Any:
            raise error

        read = open_whole = open_input

    if is_raised:
        with pytest.raises(type(error)):
            rebuilt_without(Failing(), 1, ())  # type: ignore[arg-type]
    else:
        assert rebuilt_without(Failing(), 1, ()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "part"),
    [(removal, "described"), (object_verdicts, "traces_in_parquet"), (object_verdicts, "traces_in_text")],
    ids=["described", "parquet", "text"],
)
@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowMemoryError(),
        LimitExceeded("too large"),
        NotAnswered(errno.EAGAIN, "busy"),
        NoCredentials(errno.EACCES, "not sent"),
        CredentialsUnavailable("not sent", connection="lake"),
        OSError(errno.EMFILE, "too many open files"),
    ],
    ids=["memory", "limit", "busy", "no-credentials", "no-connection", "files"],
)
def test_a_machine_that_is_too_small_or_busy_cuts_no_log_and_deletes_no_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    module: ModuleType,
    part: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*given: Any) -> Any:
        raise error

    table = make_table(tmp_path / "t", rows(*OTHERS), rows(*OTHERS))
    orphan = stage(table, rows(*OTHERS))[0].path
    monkeypatch.setattr(module, part, fails)
    with caplog.at_level("INFO"), pytest.raises(type(error)):
        erase(table)
    is_named = isinstance(error, MemoryError) and module is object_verdicts
    assert ("was not searched: that needs more memory" in caplog.text) == is_named
    assert table.store.stat(orphan) is not None
    assert table.snapshot(0).version == 0


def test_a_deleted_file_whose_partition_another_writer_did_not_name_goes_too(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, ["email"], properties={"delta.columnMapping.mode": "name"})
    append(table, rows(SUBJECT, *OTHERS))
    added = set(folder_of(table).rglob("*.parquet"))
    version = table.snapshot().version + 1
    run(None, "delete", table, predicate=f"email = '{SUBJECT}'")
    commit = folder_of(table) / commit_name(version)
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "remove" in line:
            line["remove"].pop("partitionValues", None)
            line["remove"].pop("extendedFileMetadata", None)
    commit.write_text("\n".join(map(json.dumps, lines)) + "\n")
    table = Table.open(table.uri)
    table.remove_traces("email", [SUBJECT], writer_hours=0)
    assert len({path for path in added if path.exists()}) == len(added) - 1
    assert table.to_arrow().num_rows == 3
