"""A checkpoint that cannot be read costs a warning and some reading, and never rows or a version."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine import checkpointing
from airflow_txlog.engine.log.checkpoints.writing import write_checkpoint
from airflow_txlog.engine.log.names import checkpoint_name, commit_name, version_prefix
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, load_snapshot
from airflow_txlog.engine.table_api import Table
from airflow_txlog.errors import CorruptCheckpoint, CorruptCommit, VersionNotFound
from airflow_txlog.storage import LocalStore, MemoryStore, Store
from tests.helpers.checkpoints import list_checkpoints
from tests.helpers.counting import CountingStore
from tests.helpers.limits import limited
from tests.helpers.rows import append

SCHEMA = pa.schema([("id", pa.int64())])
V2 = {"delta.checkpointPolicy": "v2"}
QUIET = {"delta.checkpointInterval": "1000"}


def table_of(versions: int, properties: dict[str, str] | None = None) -> Store:
    """A table at this version, each version after the first with a file more and the file before the last removed."""
    store = MemoryStore(f"memory://fallback-{uuid.uuid4().hex}")
    table = Table.create(store, SCHEMA, properties=QUIET | (properties or {}))
    for number in range(1, versions + 1):
        tx = table.begin()
        tx.add(path=f"f{number}", partition_values={}, size=number, modification_time=1)
        if number > 2:
            tx.remove(f"f{number - 2}")
        tx.commit("WRITE", {})
    return store


def checkpoint(store: Store, version: int) -> str:
    """Write the checkpoint of the version; its path."""
    before = {each.path for each in list_checkpoints(store)}
    checkpointing.checkpoint(store, load_snapshot(store, version), SYSTEM_CLOCK)
    (path,) = {each.path for each in list_checkpoints(store)} - before
    return path


def facts(snapshot: Snapshot) -> tuple[int, list[str], list[str], str]:
    state = snapshot.state
    live, gone = (sorted(files.column("path").to_pylist()) for files in (state.live, state.tombstones))
    return snapshot.version, live, gone, snapshot.metadata.id


def damage(store: Store, path: str) -> None:
    data = store.read(path)
    store.put(path, data[: len(data) // 2])


@pytest.mark.parametrize("properties", [{}, V2], ids=["classic", "v2"])
def test_a_torn_checkpoint_is_passed_over_for_an_earlier_one(
    properties: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    store = table_of(7, properties)
    whole = facts(load_snapshot(store))
    older, newer = checkpoint(store, 3), checkpoint(store, 6)
    for number in range(3):
        store.delete(commit_name(number))
    damage(store, newer)
    with caplog.at_level(logging.WARNING):
        assert facts(load_snapshot(store)) == whole
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert newer in record.getMessage()
    assert older not in record.getMessage()


def test_a_torn_checkpoint_is_passed_over_for_the_commits() -> None:
    store = table_of(7)
    whole = facts(load_snapshot(store))
    damage(store, checkpoint(store, 7))
    assert facts(load_snapshot(store)) == whole


def test_a_checkpoint_whose_sidecar_is_gone_is_passed_over_for_another_of_its_version() -> None:
    store = table_of(5, V2)
    whole = facts(load_snapshot(store))
    checkpoint(store, 5)
    (sidecar,) = [info.path for info in store.walk() if "/_sidecars/" in info.path]
    checkpoint(store, 5)
    for number in range(6):
        store.delete(commit_name(number))
    store.delete(sidecar)
    assert facts(load_snapshot(store)) == whole


@pytest.mark.parametrize("properties", [{}, V2], ids=["classic", "v2"])
def test_where_nothing_else_leads_to_the_version_the_error_is_that_of_the_newest_checkpoint(
    properties: dict[str, str],
) -> None:
    store = table_of(7, properties)
    older, newer = checkpoint(store, 3), checkpoint(store, 6)
    for number in range(5):
        store.delete(commit_name(number))
    damage(store, older)
    damage(store, newer)
    with pytest.raises(CorruptCheckpoint) as caught:
        load_snapshot(store)
    assert caught.value.path == newer
    with pytest.raises(CorruptCheckpoint) as caught:
        load_snapshot(store, 7)
    assert caught.value.path == newer


def test_a_table_of_a_torn_checkpoint_alone_is_never_an_older_table() -> None:
    """Commits 0 to 3 are there, the checkpoint of 6 is torn, and 4 to 6 are gone: version 3 would be a wrong answer."""
    store = table_of(6)
    torn = checkpoint(store, 6)
    for number in (4, 5, 6):
        store.delete(commit_name(number))
    damage(store, torn)
    with pytest.raises(CorruptCheckpoint) as caught:
        load_snapshot(store)
    assert caught.value.path == torn
    assert load_snapshot(store, 3).version == 3
    with pytest.raises(CorruptCheckpoint):
        load_snapshot(store, 6)
    for version in (5, 7):
        with pytest.raises(VersionNotFound):
            load_snapshot(store, version)


def test_a_top_level_that_was_cut_between_two_lines_is_passed_over_too() -> None:
    store = table_of(5, V2)
    whole = facts(load_snapshot(store))
    about = b'{"checkpointMetadata":{"version":5}}\n'
    store.put(f"{version_prefix(5)}.checkpoint.{uuid.uuid4()}.json", about)
    assert facts(load_snapshot(store)) == whole


def test_an_earlier_version_is_read_past_a_torn_checkpoint_too() -> None:
    store = table_of(7)
    wanted = facts(load_snapshot(store, 5))
    damage(store, checkpoint(store, 4))
    assert facts(load_snapshot(store, 5)) == wanted


@pytest.mark.parametrize("hint", [b"{", b"\xff", b"[1]", b'{"version":6}', b'{"version":3}', b'{"version":9999}', None])
@pytest.mark.parametrize("properties", [{}, V2], ids=["classic", "v2"])
def test_the_hint_decides_nothing_even_where_it_names_a_torn_checkpoint(
    hint: bytes | None, properties: dict[str, str]
) -> None:
    store = table_of(7, properties)
    whole = facts(load_snapshot(store))
    checkpoint(store, 3)
    damage(store, checkpoint(store, 6))
    store.delete("_delta_log/_last_checkpoint")
    if hint is not None:
        store.put("_delta_log/_last_checkpoint", hint)
    assert facts(load_snapshot(store)) == whole


def test_a_corrupt_commit_is_no_reason_to_look_elsewhere() -> None:
    store = table_of(7)
    checkpoint(store, 3)
    store.put(commit_name(5), b"{")
    with pytest.raises(CorruptCommit):
        load_snapshot(store)


class Unreachable(MemoryStore):
    """A store that does not answer for checkpoints."""

    def open_input(self, path: str) -> object:
        if "checkpoint" in path:
            raise PermissionError(13, "denied", path)
        return super().open_input(path)


def test_a_store_that_does_not_answer_is_no_corrupt_checkpoint() -> None:
    store = table_of(3)
    checkpoint(store, 3)
    with pytest.raises(PermissionError):
        load_snapshot(Unreachable(store.root))


# --- a writer that dies ---------------------------------------------------------------------------------------------


class Killed(Exception):
    """The process is gone."""


class Dying(MemoryStore):
    """A store whose process dies at its n-th change of the store, before or after it took place."""

    def __init__(self, uri: str, at: int, before: bool) -> None:
        super().__init__(uri)
        self.left, self.before, self.changes = at, before, 0

    def put(self, path: str, data: bytes) -> None:
        self.changes += 1
        self.left -= 1
        if self.left == 0 and self.before:
            raise Killed
        super().put(path, data)
        if self.left <= 0:
            raise Killed


@pytest.mark.parametrize("properties", [{}, V2], ids=["classic", "v2"])
@pytest.mark.parametrize(
    "before", [True, pytest.param(False, marks=pytest.mark.long("leaves what dying before the next change leaves"))]
)
def test_a_writer_that_dies_anywhere_in_a_checkpoint_changes_nothing(properties: dict[str, str], before: bool) -> None:
    """Every step: each sidecar, the top level (or the file), the hint. Every reader sees the same table."""
    store = table_of(9, properties)
    checkpoint(store, 4)
    wanted = [facts(load_snapshot(store, version)) for version in range(10)]
    at = 0
    while True:
        at += 1
        dying = limited(Dying(store.root, at, before), checkpoint_group_rows=2, checkpoint_sidecar_rows=2)
        try:
            checkpointing.checkpoint(dying, load_snapshot(store, 9), SYSTEM_CLOCK)
        except Killed:
            assert [facts(load_snapshot(store, version)) for version in range(10)] == wanted
            assert facts(load_snapshot(store)) == wanted[9]
            continue
        break
    # A put for each sidecar, one for the checkpoint and one for the hint.
    assert at - 1 == dying.changes == (7 if properties else 2)
    assert facts(load_snapshot(store)) == wanted[9]


@pytest.mark.parametrize("order", [lambda one, two: (one, two), lambda one, two: (two, one)])
def test_two_checkpoints_of_one_version_are_the_same_table(order: Callable[[str, str], tuple[str, str]]) -> None:
    """A classic and a V2 checkpoint of version 5, as a writer that keeps old readers happy leaves them."""
    store = table_of(7, V2)
    whole = facts(load_snapshot(store))
    v2 = checkpoint(store, 5)
    plain = load_snapshot(store, 5)
    write_checkpoint(store, checkpointing.state_of(plain, 0))
    for number in range(5):
        store.delete(commit_name(number))
    for path in order(v2, checkpoint_name(5)):
        assert facts(load_snapshot(store)) == whole
        damage(store, path)
    with pytest.raises(CorruptCheckpoint):
        load_snapshot(store)


class FarStore(CountingStore):
    is_remote = True


def test_a_small_segment_of_a_remote_store_is_read_at_once() -> None:
    near = table_of(6)
    expected = facts(load_snapshot(near))
    checkpoint(near, 3)
    store = FarStore(near.root)
    assert facts(load_snapshot(store)) == expected
    hint, listing, *reads = store.take()
    assert (hint, listing) == ("read _delta_log/_last_checkpoint", f"list {version_prefix(3)}")
    assert sorted(reads) == sorted(f"read {path}" for path in (checkpoint_name(3), *map(commit_name, (4, 5, 6))))
    # More than is read at once: in turn.
    assert facts(load_snapshot(limited(store, read_log_bytes=1))) == expected
    assert f"open_input {checkpoint_name(3)}" in store.take()


class FarLocalStore(LocalStore):
    is_remote = True


def test_a_checkpoint_of_a_remote_store_may_be_larger_than_the_other_files_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(str(tmp_path), pa.schema({"id": pa.int64()}))
    append(table, pa.table({"id": [1]}))
    table.checkpoint()
    append(table, pa.table({"id": [2]}))
    size = (tmp_path / checkpoint_name(1)).stat().st_size
    monkeypatch.setenv("TXLOG_MAX_LOG_FILE_BYTES", str(size - 1))
    assert load_snapshot(FarLocalStore(str(tmp_path))).version == 2
