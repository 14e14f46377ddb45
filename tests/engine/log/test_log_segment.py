"""Which files make up a version."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import version_prefix
from airflow_txlog.engine.log.segment import LastCheckpoint, LogSegment, list_segment, read_hint, write_hint
from airflow_txlog.engine.log.tail import list_tail
from airflow_txlog.engine.table.snapshot.snapshot import load_snapshot
from airflow_txlog.errors import LogGap, TableError, TableNotFound, VersionNotFound
from airflow_txlog.storage import FileInfo, MemoryStore
from tests.helpers.checkpoints import list_checkpoints

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"


class CountingStore(MemoryStore):
    """Counts what a remote store would be asked, and lets a test act just before a listing is answered."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.requests = 0
        self.before_list: Callable[[], None] | None = None
        self.hidden_once: set[str] = set()

    def read(self, path: str) -> bytes:
        self.requests += 1
        return super().read(path)

    def list(self, directory: str, *, start_from: str | None = None) -> list[FileInfo]:
        self.requests += 1
        found = super().list(directory, start_from=start_from)
        hidden, self.hidden_once = self.hidden_once, set()
        return [info for info in found if info.path.removeprefix("_delta_log/") not in hidden]


def commit(version: int) -> str:
    return f"{version:020d}.json"


def classic(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def part(version: int, number: int, count: int) -> str:
    return f"{version:020d}.checkpoint.{number:010d}.{count:010d}.parquet"


def v2(version: int, suffix: str = "parquet") -> str:
    return f"{version:020d}.checkpoint.{UUID}.{suffix}"


def compacted(start: int, end: int) -> str:
    return f"{start:020d}.{end:020d}.compacted.json"


def log_of(*names: str, hint: bytes | None = None, empty: Iterable[str] = ()) -> CountingStore:
    """A store whose log holds these files."""
    store = CountingStore(f"memory://segment-{uuid.uuid4().hex}")
    for name in names:
        store.put(f"_delta_log/{name}", b"" if name in empty else b"x")
    if hint is not None:
        store.put("_delta_log/_last_checkpoint", hint)
    return store


def commits(*versions: int) -> list[str]:
    return [commit(version) for version in versions]


def found(segment: LogSegment) -> tuple[int, list[str], list[str]]:
    checkpoint = [] if segment.checkpoint is None else [info.path for info in segment.checkpoint.files]
    return segment.version, *(
        [path.removeprefix("_delta_log/") for path in paths]
        for paths in (checkpoint, [info.path for info in segment.commits])
    )


CASES = {
    "commits alone": (log_of(*commits(0, 1, 2)), None, (2, [], commits(0, 1, 2))),
    "an earlier version": (log_of(*commits(0, 1, 2)), 1, (1, [], commits(0, 1))),
    "checkpoint and commits": (log_of(*commits(*range(13)), classic(10)), None, (12, [classic(10)], commits(11, 12))),
    "checkpoint of the version itself": (log_of(*commits(*range(11)), classic(10)), None, (10, [classic(10)], [])),
    "checkpoint later than wanted": (log_of(*commits(*range(13)), classic(10)), 9, (9, [], commits(*range(10)))),
    "greatest checkpoint": (log_of(*commits(*range(21)), classic(10), classic(20)), None, (20, [classic(20)], [])),
    "cleaned log": (log_of(*commits(11, 12), classic(10)), None, (12, [classic(10)], commits(11, 12))),
    "checkpoint without any commit": (log_of(classic(10)), None, (10, [classic(10)], [])),
    "multi-part": (
        log_of(*commits(0, 1, 2), part(1, 2, 2), part(1, 1, 2)),
        None,
        (2, [part(1, 1, 2), part(1, 2, 2)], commits(2)),
    ),
    "incomplete multi-part is ignored": (
        log_of(*commits(0, 1, 2), part(1, 2, 3), part(1, 1, 3)),
        None,
        (2, [], commits(0, 1, 2)),
    ),
    "parts of two checkpoints do not make one": (
        log_of(*commits(0, 1, 2), part(1, 2, 3), part(1, 1, 2)),
        None,
        (2, [], commits(0, 1, 2)),
    ),
    "checkpoint of no bytes is ignored": (
        log_of(*commits(0, 1, 2), classic(1), empty=[classic(1)]),
        None,
        (2, [], commits(0, 1, 2)),
    ),
    "v2 checkpoint": (log_of(*commits(11, 12), v2(10)), None, (12, [v2(10)], commits(11, 12))),
    "v2 checkpoint in JSON": (log_of(*commits(2), v2(1, "json")), None, (2, [v2(1, "json")], commits(2))),
    "v2 checkpoint that is the greatest": (
        log_of(*commits(2, 3, 4), classic(1), v2(3)),
        None,
        (4, [v2(3)], commits(4)),
    ),
    "of one version the classic checkpoint goes first, the one in parts last": (
        log_of(*commits(2), classic(1), v2(1), part(1, 1, 2), part(1, 2, 2)),
        None,
        (2, [classic(1)], commits(2)),
    ),
    "unknown names are ignored": (
        log_of(
            *commits(0, 1), "x", ".00000000000000000002.json.uuid.tmp", "00000000000000000002.crc", "_commits",
            "00000000000000000000.00000000000000000001.compacted.json", "00000000000000000009.json.bak",
        ),
        None,
        (1, [], commits(0, 1)),
    ),
    "an older version below a gap": (log_of(*commits(0, 1, 2, 4)), 2, (2, [], commits(0, 1, 2))),
    "a gap that a checkpoint spans": (log_of(*commits(0, 1, 4, 5), classic(3)), None, (5, [classic(3)], commits(4, 5))),
}  # fmt: skip


@pytest.mark.parametrize("hint", [None, b'{"version":0}', b'{"version":10}', b'{"version":1}', b"{", b"\xff", b"[]"])
@pytest.mark.parametrize("name", CASES)
def test_segment_is_found_whatever_the_hint_says(name: str, hint: bytes | None) -> None:
    """The hint is a hint: missing, stale, ahead of its time or garbage, it changes no answer."""
    store, wanted, expected = CASES[name]
    store.delete("_delta_log/_last_checkpoint")
    if hint is not None:
        store.put("_delta_log/_last_checkpoint", hint)
    assert found(list_segment(store, wanted)) == expected


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        b"null",
        b"{}",
        b'{"version":"10"}',
        b'{"version":-1}',
        b'{"version":1e400}',
        b'{"version":9999999999999999999}',
    ],
)
def test_a_hint_that_makes_no_sense_is_no_hint(hint: bytes) -> None:
    assert read_hint(log_of(hint=hint)) is None


def test_a_wrong_type_elsewhere_does_not_cost_the_hint() -> None:
    assert read_hint(log_of(hint=b'{"version":7,"size":"many","checkpointSchema":[],"parts":null}')) == 7


def test_the_hint_never_goes_back() -> None:
    store = log_of()
    write_hint(store, LastCheckpoint(version=20, size=3, size_in_bytes=100, num_of_add_files=1))
    write_hint(store, LastCheckpoint(version=10, size=3))
    assert read_hint(store) == 20
    assert store.read("_delta_log/_last_checkpoint") == b'{"version":20,"size":3,"sizeInBytes":100,"numOfAddFiles":1}'
    write_hint(store, LastCheckpoint(version=30, size=3))
    assert read_hint(store) == 30


@pytest.mark.parametrize("names", [[], ["_last_checkpoint"], ["00000000000000000000.crc", "x.json"]])
def test_a_directory_without_a_log_is_no_table(names: list[str]) -> None:
    with pytest.raises(TableNotFound) as caught:
        list_segment(log_of(*names))
    assert caught.value.table is not None


@pytest.mark.parametrize(
    ("names", "wanted", "earliest", "latest"),
    [
        (commits(0, 1, 2), 3, 0, 2),
        (commits(0, 1, 2), -1, 0, 2),
        ([*commits(11, 12), classic(10)], 9, 10, 12),
        ([*commits(5, 6, 11, 12), classic(10)], 5, 10, 12),
        ([*commits(11, 12), classic(10)], 13, 10, 12),
    ],
)
@pytest.mark.parametrize("hint", [None, b'{"version":10}'])
def test_a_version_that_cannot_be_read_says_which_can(
    names: list[str], wanted: int, earliest: int, latest: int, hint: bytes | None
) -> None:
    with pytest.raises(VersionNotFound) as caught:
        list_segment(log_of(*names, hint=hint), wanted)
    assert (caught.value.version, caught.value.earliest, caught.value.latest) == (wanted, earliest, latest)


@pytest.mark.parametrize(
    ("names", "wanted", "missing"),
    [
        (commits(0, 2), None, 1),
        (commits(0, 2), 2, 1),
        (commits(1, 2), None, 0),
        ([*commits(11, 13), classic(10)], None, 12),
        ([*commits(12, 13), classic(10)], None, 11),
        ([*commits(0, 1, 2, 3), part(4, 1, 2), *commits(5)], None, 4),
    ],
)
@pytest.mark.parametrize("hint", [None, b'{"version":10}'])
def test_a_gap_is_an_error_and_never_a_shorter_table(
    names: list[str], wanted: int | None, missing: int, hint: bytes | None
) -> None:
    with pytest.raises(LogGap) as caught:
        list_segment(log_of(*names, hint=hint), wanted)
    assert caught.value.version == missing
    assert caught.value.path == f"_delta_log/{commit(missing)}"


def test_checkpoints_that_cannot_be_read_are_led_past_one_by_one() -> None:
    names = [classic(1), v2(3), v2(3, "json"), part(3, 1, 2), part(3, 2, 2)]
    store = log_of(*commits(*range(6)), *names, hint=b'{"version":3}')
    tried: list[str] = []
    while (segment := list_segment(store, without=tried)).checkpoint is not None:
        assert segment.version == 5
        tried.append(segment.checkpoint.path)
    assert [path.removeprefix("_delta_log/") for path in tried] == [v2(3, "json"), v2(3), part(3, 1, 2), classic(1)]
    assert found(segment) == (5, [], commits(*range(6)))


def test_a_table_never_shrinks_because_its_checkpoint_cannot_be_read() -> None:
    store = log_of(*commits(0, 1, 2), classic(5))
    with pytest.raises(LogGap) as caught:
        list_segment(store, without=[f"_delta_log/{classic(5)}"])
    assert caught.value.version == 3


def test_every_complete_checkpoint_is_listed() -> None:
    store = log_of(*commits(*range(6)), classic(1), v2(3), part(3, 1, 2), part(4, 1, 1), classic(5), empty=[classic(5)])
    assert [each.path for each in list_checkpoints(store)] == [
        f"_delta_log/{name}" for name in (classic(1), v2(3), part(4, 1, 1))
    ]
    assert [each.version for each in list_checkpoints(store, 2)] == [3, 4]


def test_compactions_inside_the_segment_and_no_others_belong_to_it() -> None:
    names = [compacted(0, 2), compacted(2, 4), compacted(3, 4), compacted(3, 9), compacted(5, 7), compacted(6, 8)]
    store = log_of(*commits(*range(10)), classic(2), *names)
    segment = list_segment(store, 7)
    assert [(each.start, each.end) for each in segment.compactions] == [(3, 4), (5, 7)]
    assert segment.commits[-1] == segment.commit_file
    assert list_segment(store, 2).commit_file is not None


def test_a_cold_open_takes_two_requests() -> None:
    store = log_of(*commits(*range(101)), *[classic(v) for v in range(10, 101, 10)], hint=b'{"version":100}')
    list_segment(store)
    assert store.requests == 2
    store = log_of(*commits(*range(5)))
    list_segment(store)
    assert store.requests == 2


def test_a_listing_that_missed_a_commit_is_looked_at_again() -> None:
    store = log_of(*commits(*range(8)))
    store.hidden_once = {commit(5)}
    assert list_segment(store).version == 7
    store.hidden_once = {commit(5)}
    assert len(list_tail(store, 3).after(3)) == 4


def test_a_listing_that_missed_the_newest_commit_is_an_older_version_of_the_table() -> None:
    store = log_of(*commits(*range(8)))
    store.hidden_once = {commit(7)}
    assert list_segment(store).version == 6


@given(
    st.sets(st.integers(0, 8)),
    st.sets(st.integers(0, 8)),
    st.sets(st.tuples(st.integers(0, 8), st.integers(1, 2))),
    st.one_of(st.none(), st.integers(0, 9)),
    st.one_of(st.none(), st.integers(-1, 9)),
)
def test_a_segment_is_complete_or_an_error(
    present: set[int], whole: set[int], parts: set[tuple[int, int]], hint: int | None, wanted: int | None
) -> None:
    """Notes, section 5: the greatest complete checkpoint <= wanted, and the contiguous commits after it."""
    names = [*commits(*present), *map(classic, whole), *(part(version, number, 2) for version, number in parts)]
    store = log_of(*names, hint=None if hint is None else b'{"version":%d}' % hint)
    complete = whole | {version for version, number in parts if (version, 3 - number) in parts}
    latest = max(present | complete, default=-1)
    goal = latest if wanted is None else wanted
    base = max((version for version in complete if version <= goal), default=-1)
    possible = 0 <= goal <= latest and all(version in present for version in range(base + 1, goal + 1))
    try:
        segment = list_segment(store, wanted)
    except TableError:
        assert not possible
        return
    assert possible
    assert segment.version == goal
    assert (segment.checkpoint.version if segment.checkpoint else -1) == base
    assert found(segment)[2] == commits(*range(base + 1, goal + 1))
    assert list(itertools.chain(found(segment)[1])) == sorted(found(segment)[1])


def test_a_version_before_a_later_checkpoint_is_gone_and_not_a_gap() -> None:
    """Log cleanup took commit 2 and not yet the checkpoint before it: the table is sound, version 2 is not found."""
    store = MemoryStore(f"memory://cleaned-{uuid.uuid4().hex}")
    for name in ("1.json", "1.checkpoint.parquet", "3.json", "3.checkpoint.parquet", "4.json"):
        number, _, ending = name.partition(".")
        store.put(f"_delta_log/{int(number):020d}.{ending}", b"x")
    with pytest.raises(VersionNotFound):
        list_segment(store, 2)
    assert list_segment(store).version == 4
    assert list_segment(store, 1).version == 1


# --- warnings -------------------------------------------------------------------------------------------------------


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
