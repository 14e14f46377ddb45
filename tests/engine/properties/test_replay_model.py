"""Any legal history, replayed, equals the naive model of the simulation, wherever checkpoints stand."""

from __future__ import annotations

import io
import itertools
import json
import math
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.checkpoints.writing import CheckpointState, write_v2_checkpoint
from airflow_txlog.engine.log.names import checkpoint_name, commit_name
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, load_snapshot
from airflow_txlog.storage import MemoryStore
from tests.engine.properties.histories import HISTORIES, REPEATABLE, write
from tests.engine.simulation import model
from tests.engine.simulation.model import State

_numbers = itertools.count()


def table_of(history: list[list[Any]]) -> tuple[MemoryStore, list[bytes], list[State]]:
    """A table with this history, its commits, and what the naive model makes of each version."""
    store = MemoryStore(f"memory://properties-{next(_numbers)}")
    commits = write(history, store.root)
    for version, data in enumerate(commits):
        store.put(commit_name(version), data)
    return store, commits, model.history(dict(enumerate(commits)), store.root)


def drop(store: MemoryStore) -> None:
    for info in list(store.walk()):
        store.delete(info.path)


def check(snapshot: Snapshot, state: State) -> None:
    """The snapshot holds what the naive model holds, field by field."""
    live = {key_of(row, snapshot): row for row in snapshot.files().to_pylist()}
    assert live.keys() == state.files.keys()
    assert snapshot.num_files == len(live)
    for key, add in state.files.items():
        row = live[key]
        assert (row["path"], row["size"], row["modification_time"]) == (
            add["path"],
            add["size"],
            add["modificationTime"],
        )
        assert dict(row["partition_values"]) == add["partitionValues"]
        assert (row["base_row_id"], row["clustering_provider"]) == (add.get("baseRowId"), add.get("clusteringProvider"))
        assert (row["tags"] and dict(row["tags"])) == add.get("tags")
        assert _values(row["stats"]) == _values(add.get("stats"))
    assert {key_of(row, snapshot) for row in snapshot.state.tombstones.to_pylist()} == state.tombstones
    assert {name: each.version for name, each in snapshot.state.transactions.items()} == state.transactions
    assert {name: each.configuration for name, each in snapshot.state.domains.items()} == state.domains
    assert dict(snapshot.metadata.configuration) == state.properties


def key_of(row: dict[str, Any], snapshot: Snapshot) -> model.Key:
    vector = row["deletion_vector"]
    return canonical_path(row["path"], snapshot.uri), (
        None if vector is None else f"{vector['storage_type']}{vector['path_or_inline_dv']}@{vector['offset']}"
    )


def _values(stats: str | None) -> Any:
    return None if stats is None else json.loads(stats)


@pytest.mark.seeded
@REPEATABLE
@given(HISTORIES)
def test_replay_of_any_legal_history_equals_a_dict(history: list[list[Any]]) -> None:
    """Protocol, "Action Reconciliation": the newest action of a file, known by path and vector id, wins."""
    store, _, states = table_of(history)
    for version, state in enumerate(states):
        check(load_snapshot(store, version), state)
    drop(store)


@pytest.mark.seeded
@REPEATABLE
@given(HISTORIES, st.lists(st.integers(1, 4), min_size=8, max_size=8))
def test_refresh_equals_open_however_the_history_is_split(history: list[list[Any]], steps: list[int]) -> None:
    arriving = MemoryStore(f"memory://properties-{next(_numbers)}")
    commits = write(history, arriving.root)
    states = model.history(dict(enumerate(commits)), arriving.root)
    arriving.put(commit_name(0), commits[0])
    snapshot = load_snapshot(arriving)
    arrived = 1
    for step in steps:
        for version in range(arrived, min(arrived + step, len(commits))):
            arriving.put(commit_name(version), commits[version])
        arrived = min(arrived + step, len(commits))
        before = snapshot
        snapshot = snapshot.refresh()
        assert snapshot.version == arrived - 1
        check(snapshot, states[arrived - 1])
        check(before, states[before.version])
    assert snapshot.refresh() is snapshot
    drop(arriving)


@pytest.mark.seeded
@REPEATABLE
@given(HISTORIES, st.data())
def test_a_checkpoint_anywhere_changes_nothing(history: list[list[Any]], data: st.DataObject) -> None:
    """Also when it is cut in parts, keeps statistics as structs only, and the log before it was cleaned."""
    store, _, states = table_of(history)
    table = Table(store)
    places = data.draw(st.lists(st.integers(0, len(history) - 1), min_size=1, max_size=3, unique=True))
    reshape = data.draw(st.sampled_from([None, in_parts, with_structs_only, in_sidecars]))
    for version in places:
        table.checkpoint(version)
        if reshape is not None:
            reshape(store, version)
    for version, state in enumerate(states):
        check(load_snapshot(store, version), state)
    newest = max(places)
    for version in range(newest):
        store.delete(commit_name(version))
    if data.draw(st.booleans()):
        store.delete("_delta_log/_last_checkpoint")
    for version in range(newest, len(states)):
        check(load_snapshot(store, version), states[version])
    drop(store)


@pytest.mark.seeded
@REPEATABLE
@given(HISTORIES)
def test_time_travel_equals_a_log_that_ends_there(history: list[list[Any]]) -> None:
    store, commits, states = table_of(history)
    for version in reversed(range(len(commits))):
        travelled = load_snapshot(store, version)
        latest = load_snapshot(store)
        assert latest.version == version
        assert travelled.files().to_pylist() == latest.files().to_pylist()
        check(latest, states[version])
        store.delete(commit_name(version))


# --- checkpoints as others write them -------------------------------------------------------------------------------


def in_parts(store: MemoryStore, version: int) -> None:
    """The checkpoint in three parts, with the rows dealt out by turns."""
    table = _taken(store, version)
    for part in range(3):
        rows = table.take(pa.array(range(part, table.num_rows, 3), pa.int64()))
        store.put(f"_delta_log/{version:020d}.checkpoint.{part + 1:010d}.{3:010d}.parquet", _parquet(rows))


def with_structs_only(store: MemoryStore, version: int) -> None:
    """Statistics in `add.stats_parsed`, and none in `add.stats`: delta.checkpoint.writeStatsAsJson = false."""
    table = _taken(store, version)
    kind = pa.struct(
        [
            ("numRecords", pa.int64()),
            ("minValues", pa.struct([("id", pa.int64())])),
            ("maxValues", pa.struct([("id", pa.int64())])),
        ]
    )
    add = table.column("add").combine_chunks()
    texts = pc.struct_field(add, "stats").to_pylist()
    parsed = pa.array([None if text is None else json.loads(text) for text in texts], kind)
    names = [each.name for each in add.type if each.name != "stats"]
    children = [pc.struct_field(add, name) for name in names] + [parsed]
    fields = [pa.field(name, child.type) for name, child in zip([*names, "stats_parsed"], children, strict=True)]
    changed = pa.StructArray.from_arrays(children, fields=fields, mask=add.is_null())
    store.put(checkpoint_name(version), _parquet(table.set_column(table.schema.get_field_index("add"), "add", changed)))


def in_sidecars(store: MemoryStore, version: int) -> None:
    """A V2 checkpoint: the files in a sidecar, and the rest at the top."""
    snapshot = load_snapshot(store, version)
    store.delete(checkpoint_name(version))
    names = (str(uuid.UUID(int=version * 10 + number)) for number in range(10))
    state = CheckpointState(
        version=version,
        protocol=snapshot.protocol,
        metadata=snapshot.metadata,
        transactions=snapshot.state.transactions,
        domains=snapshot.state.domains,
        adds=snapshot.state.live,
        removes=snapshot.state.tombstones,
    )
    write_v2_checkpoint(store, state, lambda: next(names))


def _taken(store: MemoryStore, version: int) -> pa.Table:
    table = pq.read_table(io.BytesIO(store.read(checkpoint_name(version))))
    store.delete(checkpoint_name(version))
    return table


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=max(1, math.ceil(table.num_rows / 2)))
    return buffer.getvalue()
