"""What one listing from a known version on shows, and files of the log that are read together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from airflow_txlog.engine.log.tail import list_tail, read_files
from airflow_txlog.errors import LogGap
from airflow_txlog.storage import Store
from airflow_txlog.storage.base import FileInfo
from airflow_txlog.storage.memory import MemoryStore
from tests.engine.log.test_log_segment import classic, commit, commits, log_of, part, v2
from tests.helpers.limits import limited


def test_the_commits_after_a_version_are_contiguous() -> None:
    store = log_of(*commits(*range(8)), classic(5), "x")
    tail = list_tail(store, 5)
    assert [info.path for info in tail.after(5)] == [f"_delta_log/{commit(v)}" for v in (6, 7)]
    assert tail.commits[5].path == f"_delta_log/{commit(5)}"
    assert list_tail(store, 7).after(7) == []
    assert store.requests == 2


@pytest.mark.parametrize("versions", [(0, 1, 3), (0, 1, 2, 4), (3,)])
def test_a_commit_cleaned_away_after_our_version_is_a_gap(versions: tuple[int, ...]) -> None:
    with pytest.raises(LogGap) as caught:
        list_tail(log_of(*commits(*versions)), 1).after(1)
    assert caught.value.version == min(set(range(2, 5)) - set(versions))


@pytest.mark.parametrize("name", [classic(6), part(6, 1, 2), v2(6)])
def test_a_checkpoint_beyond_the_last_commit_is_a_gap(name: str) -> None:
    tail = list_tail(log_of(*commits(0, 1, 2, 3), name), 3)
    assert tail.latest == 6
    with pytest.raises(LogGap):
        tail.after(3)


def test_an_empty_checkpoint_and_names_of_others_say_nothing() -> None:
    store = log_of(*commits(0, 1), classic(7), f"{9:020d}.crc", "_last_checkpoint", empty=[classic(7)])
    assert list_tail(store, 1).latest == 1
    assert list_tail(store, 2).latest == 1
    assert list_tail(store, 2).after(1) == []


def test_a_gap_is_believed_when_it_is_seen_twice() -> None:
    store = log_of(*commits(*range(8)))
    store.hidden_once = {commit(5)}
    assert len(list_tail(store, 3).after(3)) == 4
    assert store.requests == 2


# --- files that are read together -----------------------------------------------------------------------------------


class AskedStore(MemoryStore):
    """How many files are asked for at once."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.asked: list[int] = []

    def read_all(self, paths: Sequence[str]) -> Iterator[bytes]:
        self.asked.append(len(paths))
        return super().read_all(paths)


def files_of(store: Store, count: int) -> list[FileInfo]:
    for number in range(count):
        store.put(f"{number:02d}", b"x" * number)
    return [info for number in range(count) if (info := store.stat(f"{number:02d}")) is not None]


def test_files_are_asked_for_a_few_at_a_time_and_come_in_their_order() -> None:
    store = AskedStore("memory://far")
    files = files_of(store, 20)
    assert list(read_files(store, files[::-1])) == [b"x" * number for number in range(19, -1, -1)]
    assert store.asked == [16, 4]
    store.asked.clear()
    assert list(read_files(store, [])) == []
    assert sum(store.asked) == 0


def test_large_files_are_read_one_at_a_time() -> None:
    store = limited(AskedStore("memory://far"), read_log_bytes=1)
    files = files_of(store, 6)
    held = read_files(store, files)
    assert next(held) == b""
    # Not yet asked for: the second file holds one byte, and the two together are as much as may be.
    store.delete("02")
    assert next(held) == b"x"
    with pytest.raises(FileNotFoundError):
        next(held)


def test_a_file_that_is_gone_is_an_error_in_its_place() -> None:
    store = AskedStore("memory://far")
    files = files_of(store, 10)
    store.delete("04")
    held = read_files(store, files)
    assert [next(held) for _ in range(4)] == [b"x" * number for number in range(4)]
    with pytest.raises(FileNotFoundError):
        next(held)
