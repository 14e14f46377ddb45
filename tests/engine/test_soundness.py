"""Findings of docs/soundness.md that no single module answers for; every other one is tested where its rule lives."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.storage import MemoryStore
from tests.helpers.rows import append

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"memory://soundness-{uuid.uuid4().hex}")


@pytest.fixture
def table(store: MemoryStore, clock: Any) -> Table:
    return Table.create(store, SCHEMA, clock=clock)


def actions_of(table: Table, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in table.store.read(commit_name(version)).splitlines()]


def change(table: Table, edit: Callable[[Metadata], Metadata]) -> int:
    """Another writer's commit that changes the metadata."""
    tx = table.begin()
    tx.set_metadata(edit(table.snapshot().metadata))
    return tx.commit("ALTER TABLE")


def with_property(name: str, value: str) -> Callable[[Metadata], Metadata]:
    return lambda metadata: msgspec.structs.replace(metadata, configuration={**metadata.configuration, name: value})


def with_field(edit: Callable[[list[dict[str, Any]]], None]) -> Callable[[Metadata], Metadata]:
    def edited(metadata: Metadata) -> Metadata:
        schema = json.loads(metadata.schema_string or "")
        edit(schema["fields"])
        return msgspec.structs.replace(metadata, schema_string=json.dumps(schema))

    return edited


# --- A18 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        with_property("delta.appendOnly", "true"),
        with_field(lambda fields: fields[1].update(nullable=False)),
        with_field(lambda fields: fields.pop()),
        with_field(lambda fields: fields[1].update(type="long")),
        with_field(lambda fields: fields.append({"name": "x", "type": "string", "nullable": True, "metadata": {}})),
    ],
    ids=["a property", "NOT NULL", "a dropped column", "another type", "a new column"],
)
def test_a18_rows_staged_under_other_rules_are_not_committed(
    table: Table, edit: Callable[[Metadata], Metadata]
) -> None:
    """Staged before, committed after: those rows were never checked against the rule."""
    tx = table.begin()
    tx.add(path="staged", size=1)
    change(table, edit)
    with pytest.raises(errors.MetadataChanged) as conflict:
        tx.commit("WRITE")
    assert conflict.value.retryable
    assert table.snapshot().num_files == 0


def test_a18_a_change_that_touches_no_staged_row_lets_the_commit_through(table: Table) -> None:
    tx = table.begin()
    tx.add(path="staged", size=1)
    change(table, with_property("delta.checkpointPolicy", "classic"))
    assert tx.commit("WRITE") == 2


def test_a18_a_feature_that_a_staged_file_may_not_satisfy_is_a_conflict(table: Table) -> None:
    tx = table.begin()
    tx.add(path="staged", size=1)
    other = table.begin()
    protocol = table.snapshot().protocol
    other.set_protocol(
        msgspec.structs.replace(
            protocol, min_writer_version=7, writer_features=["appendOnly", "invariants", "checkConstraints"]
        )
    )
    other.commit("UPGRADE PROTOCOL")
    with pytest.raises(errors.ProtocolChanged):
        tx.commit("WRITE")


# --- B4, B8 ----------------------------------------------------------------------------------------------------------


def test_b4_only_tables_that_we_create_forget_application_transactions(tmp_path: Path, clock: Any) -> None:
    ours = Table.create(tmp_path / "ours", SCHEMA, clock=clock)
    assert ours.snapshot().metadata.configuration["delta.setTransactionRetentionDuration"] == "interval 30 days"
    theirs = str(tmp_path / "theirs")
    write_deltalake(theirs, pa.table({"id": [1], "name": ["a"]}, schema=SCHEMA))
    for path in (ours.uri, theirs):
        table = Table.open(path, clock=clock)
        tx = table.begin()
        tx.set_application("stream", 1)
        tx.commit("STREAMING UPDATE")
    assert "delta.setTransactionRetentionDuration" not in DeltaTable(theirs).metadata().configuration

    clock.time_ms += 31 * 86_400_000
    for path, remembered in ((ours.uri, None), (theirs, 1)):
        table = Table.open(path, clock=clock)
        append(table, [{"id": 2, "name": "b"}])
        version = table.checkpoint()
        for earlier in range(version + 1):
            table.store.delete(commit_name(earlier))
        assert Table.open(path, clock=clock).snapshot().application_version("stream") == remembered


def test_b8_a_remove_and_a_checkpoint_repeat_the_wire_as_another_writer_wrote_it(table: Table) -> None:
    """Raw partition strings in a form that we never write, tags, row ids, the statistics' own text."""
    written = {
        "path": "p=2024-01-01%252000%253A00/part%20one.parquet",
        "partitionValues": {"p": "2024-01-01 00:00:00.000", "q": "", "r": None},
        "size": 12,
        "modificationTime": 1_600_000_000_123,
        "dataChange": True,
        "stats": '{ "numRecords" : 3, "minValues":{"id":1.0} }',
        "tags": {"ZCUBE_ID": "x", "EMPTY": ""},
        "baseRowId": 7,
        "defaultRowCommitVersion": 1,
        "clusteringProvider": "liquid",
    }
    metadata = table.snapshot().metadata
    schema = json.loads(metadata.schema_string or "")
    kinds = {"p": "timestamp", "q": "string", "r": "string"}
    schema["fields"] += [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    partitioned = msgspec.structs.replace(metadata, schema_string=json.dumps(schema), partition_columns=list(kinds))
    commit = [
        {"commitInfo": {"timestamp": 1, "operation": "WRITE"}},
        {"metaData": msgspec.to_builtins(partitioned)},
        {"add": written},
    ]
    table.store.put(commit_name(1), "\n".join(map(json.dumps, commit)).encode())

    table.checkpoint()
    for version in range(2):
        table.store.delete(commit_name(version))
    table = Table.open(table.store)
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.commit("DELETE")
    (remove,) = [line["remove"] for line in actions_of(table, 2) if "remove" in line]
    kept = {"path", "partitionValues", "size", "tags", "baseRowId", "defaultRowCommitVersion"}
    assert {name: remove[name] for name in kept} == {name: written[name] for name in kept}
    assert remove["extendedFileMetadata"] is True


# --- C4, C5, C7 ------------------------------------------------------------------------------------------------------


def test_c4_a_link_that_reports_our_own_as_another_s_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """link(2) on a network mount may carry out the request, lose the answer, and meet its own name on the retry."""
    table = Table.create(tmp_path / "t", SCHEMA)
    link = os.link

    def twice(source: str, target: str, **how: Any) -> None:
        link(source, target, **how)
        link(source, target, **how)

    monkeypatch.setattr(os, "link", twice)
    assert append(table, [{"id": 1, "name": "a"}]) == 1
    monkeypatch.undo()
    assert table.snapshot().version == 1
    assert table.to_arrow().num_rows == 1


class Unreadable(MemoryStore):
    """Its commits above `limit` cannot be read, and every put of one is lost to somebody."""

    limit = 10**9

    def read(self, path: str) -> bytes:
        if path.endswith(".json") and int(path[-25:-5]) > self.limit:
            raise TimeoutError("the store does not answer")
        return super().read(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.puts = [*getattr(self, "puts", []), path]
        return super().put_if_absent(path, data)


def test_c5_no_attempt_at_the_next_version_before_this_one_was_read_as_another_s(clock: Any) -> None:
    store = Unreadable(f"memory://c5-{uuid.uuid4().hex}")
    table = Table.create(store, SCHEMA, clock=clock)
    tx = table.begin()
    tx.add(path="ours", size=1)
    assert store.put_if_absent(commit_name(1), b'{"commitInfo":{"timestamp":1,"operation":"WRITE"}}')
    store.limit, store.puts = 0, []
    with pytest.raises(errors.CommitStateUnknown):
        tx.commit("WRITE")
    assert set(store.puts) == {commit_name(1)}
    assert store.stat(commit_name(2)) is None


def test_c7_one_file_in_several_spellings_is_removed_once_and_read_once(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "a b", SCHEMA)
    append(table, [{"id": 1, "name": "a"}])
    (path,) = table.snapshot().files()["path"].to_pylist()
    size = table.store.stat(path).size_bytes  # type: ignore[union-attr]
    tx = table.begin()
    # The same file by its whole address, as a clone or another engine may name it.
    tx.remove(path)
    tx.commit("DELETE")
    tx = table.begin()
    tx.add(path=f"file://{str(tmp_path).replace(' ', '%20')}/a%20b/{path}", size=size)
    tx.commit("WRITE")
    append(table, [{"id": 2, "name": "b"}])
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]
    tx = table.begin()
    tx.remove(path)
    tx.commit("DELETE")
    assert table.to_arrow()["id"].to_pylist() == [2]
