"""A file of the log that is passed over is warned about once, however often the table is read."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import version_prefix
from airflow_txlog.engine.table.snapshot.snapshot import load_snapshot
from airflow_txlog.storage import MemoryStore


@pytest.mark.parametrize("bad", ["compaction", "checkpoint"])
def test_a_bad_file_is_warned_about_once_and_not_at_each_read(
    memory_uri: str, clock: Any, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    store = MemoryStore(memory_uri)
    table = Table.create(store, pa.schema([("id", pa.int64())]), clock=clock)
    for number in range(4):
        tx = table.begin()
        tx.add(path=f"f{number}", size=1)
        tx.commit("WRITE")
    if bad == "compaction":
        path = f"{version_prefix(1)}.{version_prefix(3).rpartition('/')[2]}.compacted.json"
    else:
        path = f"{version_prefix(3)}.checkpoint.parquet"
    store.put(path, b"not what it should be")
    with caplog.at_level(logging.WARNING):
        assert [load_snapshot(store).num_files for _ in range(3)] == [4, 4, 4]
    assert [path in record.getMessage() for record in caplog.records] == [True]
