"""Log compaction files: with and without them, the table is the same."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_txlog.engine.log.actions import (
    Action,
    Add,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
    decode_commit,
    encode_commit,
)
from airflow_txlog.engine.log.names import commit_name, version_prefix
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, load_snapshot
from airflow_txlog.storage import MemoryStore, Store
from tests.helpers.depth import depth

EMPTY = '{"type":"struct","fields":[]}'
PROTOCOL = Protocol(min_reader_version=1, min_writer_version=2)
METADATA = Metadata(id="m", schema_string=EMPTY, partition_columns=[])


class ReadingStore(MemoryStore):
    """Remembers what of the log was read."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.reads: list[str] = []

    def read(self, path: str) -> bytes:
        self.reads.append(path.removeprefix("_delta_log/"))
        return super().read(path)


def store_of(commits: Iterable[list[Action]]) -> ReadingStore:
    store = ReadingStore(f"memory://compacted-{uuid.uuid4().hex}")
    for version, actions in enumerate(commits):
        if version == 0:
            actions = [PROTOCOL, METADATA, *(each for each in actions if not isinstance(each, Metadata))]
        store.put(commit_name(version), encode_commit({"timestamp": version}, actions))
    return store


def vector_of(number: int | None) -> DeletionVector | None:
    if number is None:
        return None
    return DeletionVector(storage_type="u", path_or_inline_dv=f"v{number}", offset=1, size_in_bytes=2, cardinality=1)


def add(path: str, vector: int | None = None, **given: Any) -> Add:
    return Add(
        path=path, partition_values={}, size=1, modification_time=1, data_change=True,
        deletion_vector=vector_of(vector), **given,
    )  # fmt: skip


def remove(path: str, vector: int | None = None) -> Remove:
    return Remove(path=path, data_change=True, deletion_timestamp=5, deletion_vector=vector_of(vector))


def compact(store: Store, start: int, end: int) -> str:
    """Write the compaction of these commits as the protocol has it: the last action of everything, no commitInfo."""
    last: dict[Any, Action] = {}
    for version in range(start, end + 1):
        commit = decode_commit(version, store.read(commit_name(version)), "")
        # Of one commit an add comes after a remove of the same file.
        for file in [*commit.removes, *commit.adds]:
            last["file", file.path, file.deletion_vector] = file
        for transaction in commit.transactions:
            last["txn", transaction.app_id] = transaction
        for domain in commit.domains:
            last["domain", domain.domain] = domain
        for each in (commit.protocol, commit.metadata):
            if each is not None:
                last[type(each)] = each
    path = f"{version_prefix(start)}.{end:020d}.compacted.json"
    if last:
        store.put(path, encode_commit(None, last.values()))
    return path


def facts(snapshot: Snapshot) -> tuple[Any, ...]:
    state = snapshot.state
    files = [sorted(map(repr, table.to_pylist())) for table in (state.live, state.tombstones)]
    small = (state.protocol, state.metadata, dict(state.transactions), dict(state.domains))
    return snapshot.version, *files, *small, snapshot.timestamp_ms


CHANGES = st.lists(
    st.one_of(
        st.builds(
            lambda path, vector, size: add(path, vector, stats=str(size)),
            st.sampled_from("abc"), st.sampled_from([None, 1, 2]), st.integers(0, 9),
        ),
        st.builds(remove, st.sampled_from("abc"), st.sampled_from([None, 1, 2])),
        st.builds(SetTransaction, app_id=st.sampled_from("xy"), version=st.integers(0, 9)),
        st.builds(
            DomainMetadata, domain=st.sampled_from("de"), configuration=st.sampled_from("12"), removed=st.booleans()
        ),
        st.builds(
            Metadata, id=st.just("m"), schema_string=st.just(EMPTY), partition_columns=st.just([]),
            configuration=st.dictionaries(st.just("k"), st.sampled_from("12")),
        ),
    ),
    max_size=5,
)  # fmt: skip
RANGES = st.tuples(st.integers(0, 7), st.integers(1, 4)).map(lambda pair: (pair[0], min(7, pair[0] + pair[1])))


def one_word_each(actions: list[Action]) -> list[Action]:
    """Without a second word on the same subject, which no commit may hold."""
    seen: dict[Any, Action] = {}
    for action in actions:
        match action:
            case Add() | Remove():
                key: Any = (action.path, action.deletion_vector)
            case SetTransaction():
                key = ("txn", action.app_id)
            case DomainMetadata():
                key = ("domain", action.domain)
            case _:
                key = type(action)
        seen.setdefault(key, action)
    return list(seen.values())


@pytest.mark.seeded
@settings(deadline=None, max_examples=depth(12, 60))
@given(st.lists(CHANGES.map(one_word_each), min_size=8, max_size=8), st.lists(RANGES, max_size=4))
def test_replay_through_compactions_equals_replay_without_them(
    commits: list[list[Action]], ranges: list[tuple[int, int]]
) -> None:
    """Protocol, Log Compaction Files: reading them gives the same as reading the commits that they aggregate."""
    store = store_of(commits)
    plain = [facts(load_snapshot(store, version)) for version in range(8)]
    for start, end in ranges:
        if start < end:
            compact(store, start, end)
    assert [facts(load_snapshot(store, version)) for version in range(8)] == plain


def fourteen() -> ReadingStore:
    return store_of([[add(f"f{n}"), *([remove(f"f{n - 3}")] if n > 2 else [])] for n in range(14)])


def short(name: str) -> str:
    """`3` for a commit, `3-7` for a compaction."""
    return "-".join(str(int(part)) for part in name.split(".") if part.isdigit())


def commit_reads(store: ReadingStore) -> list[str]:
    return [name for name in store.reads if name != "_last_checkpoint"]


@pytest.mark.parametrize(
    ("ranges", "version", "expected"),
    [
        ([(0, 9)], 13, ["0-9", "10", "11", "12", "13"]),
        ([(0, 9), (10, 12)], None, ["0-9", "10-12", "13"]),
        ([(0, 9), (0, 4), (5, 12)], None, ["0-4", "5-12", "13"]),
        ([(0, 5), (5, 9), (6, 7)], None, ["0-5", "6-7", "8", "9", "10", "11", "12", "13"]),
        ([(0, 13)], None, ["0-13", "13"]),
        ([(0, 13)], 12, [str(n) for n in range(13)]),
        ([(3, 4)], 4, ["0", "1", "2", "3", "4"]),
        ([(2, 20)], None, [str(n) for n in range(14)]),
    ],
    ids=str,
)
def test_the_fewest_files_are_read_and_none_that_reaches_beyond_the_version(
    ranges: list[tuple[int, int]], version: int | None, expected: list[str]
) -> None:
    store = fourteen()
    plain = facts(load_snapshot(store, version))
    for start, end in ranges:
        compact(store, start, min(end, 13))
        if end > 13:
            store.put(f"{version_prefix(start)}.{end:020d}.compacted.json", b"{}")
            store.delete(f"{version_prefix(start)}.{13:020d}.compacted.json")
    store.reads.clear()
    assert facts(load_snapshot(store, version)) == plain
    assert sorted(map(short, commit_reads(store))) == sorted(expected)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\n",
        b'{"add":{"path":"x"}}\n',
        encode_commit(None, [add("a"), remove("a")]),
        encode_commit({"a": 1}, [add("a")]) * 2,
    ],
    ids=["empty", "torn", "not UTF-8", "bad action", "not reconciled", "two commitInfo"],
)
def test_a_corrupt_compaction_is_passed_over_for_its_commits(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = fourteen()
    plain = facts(load_snapshot(store))
    compact(store, 3, 4)
    path = compact(store, 5, 9)
    store.put(path, data)
    with caplog.at_level(logging.WARNING):
        assert facts(load_snapshot(store)) == plain
    assert [path in record.getMessage() for record in caplog.records] == ([True] if data else [])


def test_a_compaction_that_was_cleaned_since_it_was_listed_is_passed_over() -> None:
    class Vanishing(ReadingStore):
        def read(self, path: str) -> bytes:
            if "compacted" in path:
                self.delete(path)
            return super().read(path)

    store = fourteen()
    plain = facts(load_snapshot(store))
    compact(store, 1, 9)
    assert facts(load_snapshot(Vanishing(store.root))) == plain


def test_the_time_of_a_version_is_that_of_its_own_commit() -> None:
    """A compaction has no commitInfo, and an in-commit timestamp is nowhere else."""
    switched = Metadata(
        id="m", schema_string=EMPTY, partition_columns=[], configuration={"delta.enableInCommitTimestamps": "true"}
    )
    protocol = Protocol(min_reader_version=1, min_writer_version=7, writer_features=["inCommitTimestamp"])
    store = store_of([])
    for version in range(5):
        first: list[Action] = [protocol, switched] if version == 0 else []
        info = {"inCommitTimestamp": 1000 + version}
        store.put(commit_name(version), encode_commit(info, [*first, add(f"f{version}")]))
    compact(store, 0, 4)
    assert load_snapshot(store).timestamp_ms == 1004
    assert load_snapshot(store, 3).timestamp_ms == 1003
