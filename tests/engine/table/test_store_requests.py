"""How often the store is asked: what a remote log costs is requests."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.clock import SYSTEM_CLOCK
from airflow_txlog.engine.delta_table import Table
from airflow_txlog.engine.log.checkpoints import writing
from airflow_txlog.engine.store import FileInfo, MemoryStore
from airflow_txlog.engine.table.snapshot import load_snapshot
from airflow_txlog.engine.upkeep import checkpointing


class CountingStore(MemoryStore):
    """Writes down every request."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.requests: builtins.list[str] = []

    def read(self, path: str) -> bytes:
        self.requests.append(f"read {path}")
        return super().read(path)

    def list(self, directory: str, *, start_from: str | None = None) -> builtins.list[FileInfo]:
        self.requests.append(f"list {directory}")
        return super().list(directory, start_from=start_from)

    def walk(self) -> Iterator[FileInfo]:
        self.requests.append("walk")
        return super().walk()

    def stat(self, path: str) -> FileInfo | None:
        self.requests.append(f"stat {path}")
        return super().stat(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.requests.append(f"put_if_absent {path}")
        return super().put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        self.requests.append(f"put {path}")
        super().put(path, data)

    def open_input(self, path: str) -> Any:
        self.requests.append(f"open {path}")
        # A MemoryStore's input is read through `read`, which is no second request.
        requests = self.requests
        self.requests = []
        try:
            return super().open_input(path)
        finally:
            self.requests = requests

    def delete(self, path: str) -> None:
        self.requests.append(f"delete {path}")
        super().delete(path)


def store_with(versions: int, properties: dict[str, str]) -> CountingStore:
    """A table at this version whose checkpoints are made by hand."""
    store = CountingStore(f"memory://requests-{uuid.uuid4().hex}")
    table = Table.create(
        store, pa.schema([("id", pa.int64())]), properties={"delta.checkpointInterval": "10000"} | properties
    )
    for number in range(1, versions + 1):
        tx = table.begin()
        tx.add(path=f"f{number}", partition_values={}, size=1, modification_time=1)
        tx.commit("WRITE", {})
    store.requests.clear()
    return store


def opened(store: CountingStore, version: int | None = None) -> list[str]:
    store.requests.clear()
    load_snapshot(store, version)
    return store.requests


@pytest.mark.parametrize("commits", [0, 1, 5])
def test_a_cold_open_asks_three_times_and_once_a_commit_since_the_checkpoint(commits: int) -> None:
    store = store_with(10 + commits, {})
    checkpointing.checkpoint(store, load_snapshot(store, 10), SYSTEM_CLOCK)
    requests = opened(store)
    assert len(requests) == 3 + commits
    assert [each.split()[0] for each in requests] == ["read", "list", "open"] + ["read"] * commits


def test_a_cold_open_without_a_checkpoint_asks_for_hint_listing_and_commits() -> None:
    assert len(opened(store_with(4, {}))) == 2 + 5


@pytest.mark.parametrize("commits", [0, 3])
def test_a_v2_checkpoint_costs_one_request_a_sidecar_more(commits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(writing, "_SIDECAR_ROWS", 4)
    store = store_with(10 + commits, {"delta.checkpointPolicy": "v2"})
    checkpointing.checkpoint(store, load_snapshot(store, 10), SYSTEM_CLOCK)
    requests = opened(store)
    assert len([each for each in requests if "_sidecars/" in each]) == 3
    assert len(requests) == 3 + 3 + commits


def test_nothing_is_asked_for_that_the_listing_told() -> None:
    """The commit file of a version that a checkpoint holds alone, and sizes: no stat at all."""
    store = store_with(6, {})
    checkpointing.checkpoint(store, load_snapshot(store), SYSTEM_CLOCK)
    assert not [each for each in opened(store) if each.startswith("stat")]
    snapshot = load_snapshot(store)
    assert snapshot.commit_file is not None
    assert snapshot.timestamp_ms == snapshot.commit_file.modified_ms


def test_the_time_of_a_version_costs_its_commit_where_the_log_keeps_time_itself() -> None:
    """In-commit timestamps stand in the commit alone: one request more where the checkpoint is of that version."""
    store = store_with(6, {"delta.enableInCommitTimestamps": "true"})
    checkpointing.checkpoint(store, load_snapshot(store), SYSTEM_CLOCK)
    assert len(opened(store)) == 4


def test_a_stale_hint_costs_nothing_and_a_lost_one_nothing() -> None:
    store = store_with(8, {})
    for version in (4, 8):
        checkpointing.checkpoint(store, load_snapshot(store, version), SYSTEM_CLOCK)
    store.put("_delta_log/_last_checkpoint", b'{"version":4}')
    assert len(opened(store)) == 3
    store.delete("_delta_log/_last_checkpoint")
    assert len(opened(store)) == 3
