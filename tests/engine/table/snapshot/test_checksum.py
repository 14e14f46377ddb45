"""Checksum files: a check for whoever asks, and no request for anyone else."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.log.names import checksum_name
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, load_snapshot
from airflow_txlog.engine.table_api import Table
from airflow_txlog.errors import CorruptTable
from airflow_txlog.storage import MemoryStore


@pytest.fixture
def snapshot() -> Snapshot:
    store = MemoryStore(f"memory://checksums-{uuid.uuid4().hex}")
    table = Table.create(store, pa.schema([("id", pa.int64())]), properties={"delta.enableInCommitTimestamps": "true"})
    tx = table.begin()
    tx.add(path="a", partition_values={}, size=10, modification_time=1)
    tx.add(path="b", partition_values={}, size=5, modification_time=1)
    tx.set_application("app", 7)
    tx.set_domain("d", "c")
    tx.commit("WRITE", {})
    return load_snapshot(store)


def checksum_of(snapshot: Snapshot) -> dict[str, Any]:
    """What the reference writer would write, with fields that nobody here knows."""
    protocol, metadata = snapshot.protocol, snapshot.metadata
    return {
        "txnId": "x", "tableSizeBytes": 15, "numFiles": 2, "numMetadata": 1, "numProtocol": 1,
        "inCommitTimestampOpt": snapshot.timestamp_ms,
        "setTransactions": [{"appId": "app", "version": 7}, {"appId": "expired elsewhere", "version": 1}],
        "domainMetadata": [{"domain": "d", "configuration": "c", "removed": False}],
        "metadata": {
            "id": metadata.id, "format": {"provider": "parquet", "options": {}},
            "schemaString": metadata.schema_string, "partitionColumns": [], "configuration": snapshot.properties,
        },
        "protocol": {
            "minReaderVersion": protocol.min_reader_version, "minWriterVersion": protocol.min_writer_version,
            "writerFeatures": list(reversed(protocol.writer_features or [])),
        },
        "fileSizeHistogram": {"sortedBinBoundaries": [0]}, "allFiles": [], "numDeletedRecordsOpt": 0,
    }  # fmt: skip


def put(snapshot: Snapshot, content: bytes) -> None:
    snapshot.store.put(checksum_name(snapshot.version), content)


def test_a_version_without_a_checksum_says_so(snapshot: Snapshot) -> None:
    assert snapshot.verify_checksum() is False


def test_a_checksum_that_agrees_is_an_answer(snapshot: Snapshot) -> None:
    put(snapshot, json.dumps(checksum_of(snapshot)).encode())
    assert snapshot.verify_checksum() is True
    put(snapshot, b"{}")
    assert snapshot.verify_checksum() is True


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("numFiles", 3, "numFiles is 2, and the checksum says 3"),
        ("tableSizeBytes", 16, "tableSizeBytes"),
        ("numDeletedRecordsOpt", 1, "numDeletedRecordsOpt"),
        ("numDeletionVectorsOpt", 1, "numDeletionVectorsOpt"),
        ("inCommitTimestampOpt", 1, "inCommitTimestampOpt"),
        ("setTransactions", [{"appId": "app", "version": 8}], r"setTransactions\[app\]"),
        ("domainMetadata", [], "domainMetadata"),
        ("protocol", {"minReaderVersion": 1, "minWriterVersion": 2}, "protocol.minWriterVersion.*writerFeatures"),
        ("metadata", {"id": "other", "schemaString": "{}", "partitionColumns": []}, "metadata.id.*metadata.schema"),
    ],
)
def test_every_field_that_differs_is_named(snapshot: Snapshot, field: str, value: Any, named: str) -> None:
    put(snapshot, json.dumps(checksum_of(snapshot) | {field: value}).encode())
    with pytest.raises(CorruptTable, match=named) as caught:
        snapshot.verify_checksum()
    assert caught.value.path == checksum_name(snapshot.version)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"numFiles":"many"}', b"[" * 100_000])
def test_garbage_is_an_error_for_whoever_asks_and_for_nobody_else(snapshot: Snapshot, content: bytes) -> None:
    put(snapshot, content)
    with pytest.raises(CorruptTable) as caught:
        snapshot.verify_checksum()
    assert caught.value.path == checksum_name(snapshot.version)
    assert load_snapshot(snapshot.store).num_files == 2
