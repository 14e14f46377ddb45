"""The history of a table costs its commits and little more, and a damaged checkpoint does not hide it."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.checkpoints import rows
from airflow_txlog.engine.log.names import commit_name
from tests.helpers.counting import CountingStore

SCHEMA = pa.schema([("id", pa.int64())])
TIMED = {"delta.enableInCommitTimestamps": "true", "delta.checkpointInterval": "1000"}
V2 = {"delta.checkpointPolicy": "v2"}


def table_of(uri: str, clock: Any, properties: dict[str, str]) -> tuple[CountingStore, Table, str]:
    """Version 6 with a checkpoint at 4, whose path comes with it."""
    store = CountingStore(uri, clock=clock)
    table = Table.create(store, SCHEMA, properties=TIMED | properties, clock=clock)
    for number in range(1, 7):
        clock.time_ms += 1000
        tx = table.begin()
        tx.add(path=f"f{number}", partition_values={}, size=1)
        tx.commit("WRITE")
    before = {info.path for info in store.list("_delta_log")}
    table.checkpoint(4)
    [path] = {info.path for info in store.list("_delta_log")} - before - {"_delta_log/_last_checkpoint"}
    store.take()
    return store, table, path


def times(table: Table) -> list[int]:
    return [entry["timestamp"] for entry in table.history()]


@pytest.mark.parametrize("properties", [{}, V2], ids=["classic", "v2"])
def test_a_history_with_in_commit_timestamps_reads_no_files_of_the_table(
    memory_uri: str, clock: Any, properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, table, checkpoint = table_of(memory_uri, clock, properties)
    known = [table.snapshot(version).timestamp_ms for version in range(6, -1, -1)]
    store.take()

    def refuse(*args: object) -> None:
        raise AssertionError("a file action was read")

    monkeypatch.setattr(rows, "_gather_files", refuse)
    assert times(table) == known
    opened = [request for request in store.take() if request.startswith("open_input")]
    assert opened == [f"open_input {checkpoint}"]


def test_a_history_after_a_change_of_the_metadata_opens_no_checkpoint(memory_uri: str, clock: Any) -> None:
    store, table, _ = table_of(memory_uri, clock, {})
    tx = table.begin()
    metadata = table.snapshot().metadata
    tx.set_metadata(msgspec.structs.replace(metadata, configuration={**metadata.configuration, "a": "b"}))
    tx.commit("SET TBLPROPERTIES")
    store.take()
    assert len(table.history(1)) == 1
    reads = [request for request in store.take() if not request.startswith("list")]
    assert reads == [f"read {commit_name(7)}", "read _delta_log/_last_checkpoint", f"read {commit_name(7)}"]


@pytest.mark.parametrize("cleaned", [False, True], ids=["whole log", "cleaned log"])
def test_a_damaged_checkpoint_does_not_hide_the_history(
    memory_uri: str, clock: Any, cleaned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store, table, checkpoint = table_of(memory_uri, clock, {})
    known = [table.snapshot(version).timestamp_ms for version in (6, 5)]
    store.put(checkpoint, store.read(checkpoint)[:100])
    for version in range(5) if cleaned else ():
        store.delete(commit_name(version))
    with caplog.at_level(logging.WARNING):
        found = Table(store, clock=clock).history(2)
    assert [entry["version"] for entry in found] == [6, 5]
    assert [entry["operation"] for entry in found] == ["WRITE", "WRITE"]
    file_times = [store.stat(commit_name(version)).modified_ms for version in (6, 5)]  # type: ignore[union-attr]
    assert [entry["timestamp"] for entry in found] == (file_times if cleaned else known)
    assert ("times are those of the commit files" in caplog.text) == cleaned
