"""What of a version goes into its checkpoint, and that replay goes on from it as if nothing had been there."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_txlog.clock import SYSTEM_CLOCK, SystemClock
from airflow_txlog.engine import Table, checkpointing
from airflow_txlog.engine.log.actions import (
    Action,
    Add,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
    encode_commit,
)
from airflow_txlog.engine.log.checkpoints.reading import read_checkpoint
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, load_snapshot
from airflow_txlog.storage import MemoryStore, Store
from tests.helpers.checkpoints import list_checkpoints
from tests.helpers.depth import depth

SCHEMA = '{"type":"struct","fields":[{"name":"x","type":"long","nullable":true,"metadata":{}}]}'
FEATURES = ["deletionVectors", "domainMetadata", "rowTracking", "v2Checkpoint"]
READER = ["deletionVectors", "v2Checkpoint"]
PROTOCOL = Protocol(min_reader_version=3, min_writer_version=7, reader_features=READER, writer_features=FEATURES)
FOREVER = {"delta.deletedFileRetentionDuration": "interval 36500 days"}
POLICIES: list[dict[str, str]] = [
    {},
    {"delta.checkpointPolicy": "v2"},
    {"delta.checkpointPolicy": "v2", "delta.checkpoint.writeStatsAsStruct": "true"},
]
DAY_MS = 24 * 3_600_000


def store_of(commits: Iterable[list[Action]], configuration: dict[str, str]) -> Store:
    store = MemoryStore(f"memory://checkpointing-{uuid.uuid4().hex}")
    metadata = Metadata(id="m", schema_string=SCHEMA, partition_columns=[], configuration=configuration)
    for version, actions in enumerate(commits):
        first: list[Action] = [PROTOCOL, metadata] if version == 0 else []
        store.put(commit_name(version), encode_commit({"timestamp": version}, [*first, *actions]))
    return store


def facts(snapshot: Snapshot) -> tuple[Any, ...]:
    """Everything of a version, but what a checkpoint has no place for: whether a removal changed data."""
    state = snapshot.state
    live = sorted(map(repr, state.live.to_pylist()))
    gone = sorted(repr(row | {"data_change": None}) for row in state.tombstones.to_pylist())
    return snapshot.version, live, gone, state.protocol, state.metadata, dict(state.transactions), dict(state.domains)


VECTORS = st.none() | st.builds(
    DeletionVector,
    storage_type=st.just("u"),
    path_or_inline_dv=st.sampled_from("vw"),
    size_in_bytes=st.just(3),
    cardinality=st.integers(1, 5),
    offset=st.none() | st.just(1),
)
PATHS = st.sampled_from(["a", "b%20c", "d/e", "%25"])
ADDS = st.builds(
    Add,
    path=PATHS,
    partition_values=st.just({}),
    size=st.integers(0, 9),
    modification_time=st.integers(0, 9),
    data_change=st.booleans(),
    stats=st.sampled_from([None, '{"numRecords":1}', '{"numRecords":2,"minValues":{"x":1},"maxValues":{"x":2}}']),
    tags=st.none() | st.dictionaries(st.sampled_from("kl"), st.none() | st.just("v")),
    deletion_vector=VECTORS,
    base_row_id=st.none() | st.integers(0, 99),
    default_row_commit_version=st.none() | st.integers(0, 9),
    clustering_provider=st.none() | st.just("liquid"),
)
REMOVES = st.builds(
    Remove,
    path=PATHS,
    data_change=st.booleans(),
    deletion_timestamp=st.just(SYSTEM_CLOCK.now_ms()),
    extended_file_metadata=st.none() | st.booleans(),
    partition_values=st.none() | st.just({}),
    size=st.none() | st.just(3),
    deletion_vector=VECTORS,
    base_row_id=st.none() | st.integers(0, 99),
    default_row_commit_version=st.none() | st.integers(0, 9),
)
OTHERS = st.builds(SetTransaction, app_id=st.sampled_from("xy"), version=st.integers(0, 9)) | st.builds(
    DomainMetadata, domain=st.sampled_from("de"), configuration=st.sampled_from("12"), removed=st.booleans()
)


def legal(actions: list[Action]) -> list[Action]:
    """Of every subject the first word alone, as in any commit, and of a path one add."""
    seen: dict[Any, Action] = {}
    for action in actions:
        match action:
            case Add():
                key: Any = action.path
            case Remove():
                key = (action.path, action.deletion_vector)
            case SetTransaction():
                key = ("txn", action.app_id)
            case _:
                key = ("domain", getattr(action, "domain", None))
        seen.setdefault(key, action)
    # A path that is added again with another vector is removed with the one before: left to the histories to come.
    added = {action.path for action in seen.values() if isinstance(action, Add)}
    return [each for each in seen.values() if not (isinstance(each, Remove) and each.path in added)]


@pytest.mark.seeded
@settings(deadline=None, max_examples=depth(12, 60))
@given(
    commits=st.lists(st.lists(st.one_of(ADDS, REMOVES, OTHERS), max_size=4).map(legal), min_size=2, max_size=6),
    policy=st.sampled_from(POLICIES),
    data=st.data(),
)
def test_a_checkpoint_and_replay_equal_replay(
    commits: list[list[Action]], policy: dict[str, str], data: st.DataObject
) -> None:
    """Whatever the kind of checkpoint, wherever it stands, and with the commits before it gone."""
    store = store_of(commits, policy | FOREVER)
    versions = range(len(commits))
    at = data.draw(st.sampled_from(versions))
    wanted = [facts(load_snapshot(store, version)) for version in versions]
    checkpointing.checkpoint(store, load_snapshot(store, at), SYSTEM_CLOCK)
    for number in range(at + 1):
        store.delete(commit_name(number))
    assert [facts(load_snapshot(store, version)) for version in versions[at:]] == wanted[at:]


class At(SystemClock):
    """A clock that stands."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


def removed(path: str, days_ago: int | None, now_ms: int) -> Remove:
    timestamp = None if days_ago is None else now_ms - days_ago * DAY_MS
    return Remove(path=path, data_change=True, deletion_timestamp=timestamp)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_what_has_expired_is_left_out_and_nothing_else(policy: dict[str, str]) -> None:
    now_ms = 1_700_000_000_000
    vector = DeletionVector(storage_type="u", path_or_inline_dv="v", size_in_bytes=3, cardinality=1)
    actions: list[Action] = [
        Add(path="live", partition_values={}, size=1, modification_time=1, data_change=True),
        removed("young", 2, now_ms),
        removed("old", 4, now_ms),
        removed("undated", None, now_ms),
        Remove(path="live", data_change=True, deletion_timestamp=now_ms, deletion_vector=vector),
        SetTransaction(app_id="young", version=1, last_updated=now_ms - DAY_MS),
        SetTransaction(app_id="old", version=2, last_updated=now_ms - 9 * DAY_MS),
        SetTransaction(app_id="undated", version=3),
        DomainMetadata(domain="kept", configuration="c", removed=False),
        DomainMetadata(domain="gone", configuration="c", removed=True),
    ]
    properties = {
        "delta.deletedFileRetentionDuration": "interval 3 days",
        "delta.setTransactionRetentionDuration": "interval 3 days",
    }
    store = store_of([actions], policy | properties)
    checkpointing.checkpoint(store, load_snapshot(store), At(now_ms))
    (checkpoint,) = list_checkpoints(store)
    content = read_checkpoint(store, checkpoint)
    assert content.adds.column("path").to_pylist() == ["live"]
    assert sorted(content.removes.column("path").to_pylist()) == ["live", "young"]
    assert content.removes.filter(content.removes.column("deletion_vector").is_valid()).num_rows == 1
    assert set(content.transactions) == {"young"}
    assert set(content.domains) == {"kept"}


@pytest.mark.parametrize(
    ("configuration", "features", "is_v2"),
    [
        ({"delta.checkpointPolicy": "v2"}, READER, True),
        ({"delta.checkpointPolicy": "classic"}, READER, False),
        ({}, READER, False),
        ({"delta.checkpointPolicy": "v2"}, ["deletionVectors"], False),
    ],
    ids=str,
)
def test_a_checkpoint_is_v2_where_the_table_asks_for_it_and_the_protocol_allows_it(
    configuration: dict[str, str], features: list[str], is_v2: bool
) -> None:
    store = store_of([], {})
    protocol = Protocol(min_reader_version=3, min_writer_version=7, reader_features=features, writer_features=features)
    metadata = Metadata(id="m", schema_string=SCHEMA, partition_columns=[], configuration=configuration)
    store.put(commit_name(0), encode_commit(None, [protocol, metadata]))
    checkpointing.checkpoint(store, load_snapshot(store), SYSTEM_CLOCK)
    (checkpoint,) = list_checkpoints(store)
    assert (checkpoint.path.count(".") > 2) == is_v2


def test_vacuum_never_sees_a_sidecar() -> None:
    """The log is no part of what VACUUM may delete, sidecars that nothing names yet included."""
    actions: list[Action] = [Add(path="live", partition_values={}, size=1, modification_time=1, data_change=True)]
    protocol = Protocol(min_reader_version=3, min_writer_version=7, reader_features=["v2Checkpoint"],
                        writer_features=["v2Checkpoint"])  # fmt: skip
    metadata = Metadata(
        id="m", schema_string=SCHEMA, partition_columns=[], configuration={"delta.checkpointPolicy": "v2"}
    )
    store = store_of([], {})
    store.put(commit_name(0), encode_commit(None, [protocol, metadata, *actions]))
    store.put("live", b"x")
    old = SYSTEM_CLOCK.now_ms() + 400 * DAY_MS
    table = Table.open(store, clock=At(old))
    table.checkpoint()
    store.put("_delta_log/_sidecars/orphan.parquet", b"x")
    before = {info.path for info in store.walk()}
    result = table.vacuum(0, check_retention=False)
    assert result.deleted_files == 0
    assert before <= {info.path for info in store.walk()}
