"""A table that is kept open: what it shows after others wrote, cleaned, dropped, made again, or overwrote."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import encode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.storage import FileInfo, MemoryStore

SCHEMA = pa.schema([("id", pa.int64())])
SPARK = {"operation": "WRITE", "engineInfo": "Apache-Spark/4.0.0 Delta-Lake/4.0.0"}


class InterruptedStore(MemoryStore):
    """Lets a test act once, after a listing was taken and before it is answered."""

    after_list: Callable[[], None] | None = None

    def list(self, directory: str, *, start_from: str | None = None) -> builtins.list[FileInfo]:
        found = super().list(directory, start_from=start_from)
        act, self.after_list = self.after_list, None
        if act is not None:
            act()
        return found


@pytest.fixture
def store(memory_uri: str, clock: Any) -> InterruptedStore:
    return InterruptedStore(memory_uri, clock=clock)


@pytest.fixture
def table(store: InterruptedStore, clock: Any) -> Table:
    """Version 3; opened, and nothing written through it."""
    made = Table.create(store, SCHEMA, clock=clock)
    for number in range(3):
        append(made, str(number))
    return Table.open(store, clock=clock)


def append(table: Table, name: str) -> int:
    clock: Any = table.clock
    clock.time_ms += 1000
    tx = table.begin()
    tx.add(path=name, size=1)
    return tx.commit("WRITE")


def paths(table: Table) -> list[str]:
    return sorted(table.snapshot().files().column("path").to_pylist())


def make_again(store: MemoryStore, clock: Any, commits: int = 0) -> Table:
    """Drop the table and create another one at its place."""
    for info in store.list("_delta_log"):
        store.delete(info.path)
    clock.time_ms += 5000
    made = Table.create(store, SCHEMA, clock=clock)
    for number in range(commits):
        append(made, f"again-{number}")
    return made


def test_a_kept_table_shows_what_others_committed(table: Table, store: InterruptedStore, clock: Any) -> None:
    append(Table(store, clock=clock), "other")
    assert table.snapshot().version == table.latest_version() == 4
    assert paths(table) == ["0", "1", "2", "other"]


def test_a_thread_that_looked_earlier_does_not_take_the_table_back(table: Table, store: InterruptedStore) -> None:
    def another_thread() -> None:
        append(Table(store, clock=table.clock), "x")
        assert table.snapshot().version == 4

    store.after_list = another_thread
    assert table.snapshot().version == 4
    assert table.snapshot().version == 4


@pytest.mark.parametrize("commits", [0, 3, 7])
def test_a20_a_reader_of_a_table_made_again_gets_the_new_one(
    table: Table, store: InterruptedStore, clock: Any, commits: int
) -> None:
    before = table.snapshot().metadata.id
    again = make_again(store, clock, commits)
    assert table.latest_version() == commits
    assert table.snapshot().metadata.id == again.snapshot().metadata.id != before
    assert paths(table) == sorted(f"again-{number}" for number in range(commits))


def test_a20_a_table_made_again_does_not_overwrite_what_it_held_before(table: Table, store: Any, clock: Any) -> None:
    """For a table object that had written to the old one, too: other bytes of another table are no lost commit."""
    append(table, "mine")
    make_again(store, clock, 6)
    assert table.snapshot().version == 6
    assert append(table, "next") == 7


def test_a_table_that_was_dropped_is_not_found(table: Table, store: InterruptedStore) -> None:
    for info in store.list("_delta_log"):
        store.delete(info.path)
    with pytest.raises(errors.TableNotFound):
        table.snapshot()
    with pytest.raises(errors.TableNotFound):
        table.latest_version()


def test_a_log_cleaned_past_us_is_read_afresh(table: Table, store: InterruptedStore, clock: Any) -> None:
    other = Table(store, clock=clock)
    for number in range(3, 9):
        append(other, str(number))
    other.checkpoint()
    for version in range(8):
        store.delete(commit_name(version))
    assert table.latest_version() == table.snapshot().version == 9
    assert len(paths(table)) == 9


def test_a_commit_cleaned_between_listing_and_reading_is_read_afresh(table: Table, store: Any, clock: Any) -> None:
    other = Table(store, clock=clock)
    append(other, "a")
    append(other, "b")
    other.checkpoint()

    def clean() -> None:
        for version in range(5):
            store.delete(commit_name(version))

    store.after_list = clean
    assert table.snapshot().version == 5


def test_an_older_version_is_read_from_the_log_and_a_newer_one_does_not_exist(table: Table) -> None:
    assert table.snapshot(1).version == 1
    assert table.snapshot().version == 3
    with pytest.raises(errors.VersionNotFound) as caught:
        table.snapshot(4)
    assert (caught.value.earliest, caught.value.latest) == (0, 3)


# --- commits that were acknowledged to us ---------------------------------------------------------------------------


def overwrite(store: MemoryStore, clock: Any, version: int, info: dict[str, Any] | None = None) -> None:
    clock.time_ms += 1000
    store.put(commit_name(version), encode_commit(info or SPARK, []))


@pytest.mark.parametrize("is_verified", [False, True])
@pytest.mark.parametrize("later", [0, 2])
def test_a15_an_acknowledged_commit_that_another_replaced_is_told(
    table: Table, store: Any, clock: Any, is_verified: bool, later: int
) -> None:
    assert append(table, "mine") == 4
    if is_verified:
        table.snapshot()
    for number in range(later):
        append(Table(store, clock=clock), f"later-{number}")
    overwrite(store, clock, 4)
    for _ in range(2):
        with pytest.raises(errors.CommitOverwritten, match=r"Delta-Lake/4.0.0.*docs/writers.md") as caught:
            table.begin()
    assert (caught.value.version, caught.value.engine_info) == (4, SPARK["engineInfo"])
    assert not caught.value.retryable
    # The table itself can be read: whoever opens it again has been told.
    assert Table.open(store).snapshot().version == 4 + later


def test_a15_the_first_look_after_a_creation_verifies_it(store: Any, clock: Any) -> None:
    table = Table.create(store, SCHEMA, clock=clock)
    made = Table.open(store).snapshot()
    store.put(commit_name(0), encode_commit({"operation": "CREATE TABLE"}, [made.protocol, made.metadata]))
    with pytest.raises(errors.CommitOverwritten, match="unnamed") as caught:
        table.snapshot()
    assert (caught.value.version, caught.value.engine_info) == (0, None)


def test_a15_an_acknowledged_commit_that_the_log_ends_before_is_told(table: Table, store: Any) -> None:
    append(table, "mine")
    store.delete(commit_name(4))
    with pytest.raises(errors.CommitOverwritten, match="the log ends before it"):
        table.snapshot()


def test_a15_a_commit_that_log_cleanup_took_is_not_overwritten(table: Table, store: Any, clock: Any) -> None:
    append(table, "mine")
    other = Table(store, clock=clock)
    append(other, "a")
    other.checkpoint()
    for version in range(5):
        store.delete(commit_name(version))
    assert table.snapshot().version == 5
    assert append(table, "next") == 6


def test_a15_a_commit_is_watched_for_a_while_and_not_for_ever(table: Table, store: Any, clock: Any) -> None:
    append(table, "mine")
    other = Table(store, clock=clock)
    for number in range(30):
        append(other, f"other-{number}")
    table.snapshot()
    overwrite(store, clock, 4)
    assert table.snapshot().version == 34


# --- threads that share a table -------------------------------------------------------------------------------------


WRITERS = 3
COMMITS = 20


@pytest.fixture
def _eager_switches() -> Iterator[None]:
    """Threads take turns as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_thread(work: Callable[[], None], failures: list[BaseException], stop: threading.Event) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            stop.set()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.usefixtures("_eager_switches")
def test_threads_that_share_a_table_see_versions_in_order_and_lose_none(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.int64())]), properties={"delta.checkpointInterval": "7"})
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        last = -1
        while not stop.is_set():
            snapshot = table.snapshot()
            paths = snapshot.files().column("path").to_pylist()
            # Version n holds the n files that were appended so far, each once.
            assert last <= snapshot.version == len(paths) == len(set(paths)) == snapshot.num_files
            last = snapshot.version

    def write(writer: int) -> None:
        for number in range(COMMITS):
            transaction = table.begin()
            transaction.add(path=f"part-{writer}-{number}.parquet", size=1, stats='{"numRecords":1}')
            transaction.commit("WRITE", {"mode": "Append"})

    readers = [in_thread(read, failures, stop) for _ in range(2)]
    writers = [in_thread(lambda n=n: write(n), failures, stop) for n in range(WRITERS)]
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert not failures
    assert table.snapshot().version == WRITERS * COMMITS
    assert Table.open(tmp_path / "t").snapshot().num_files == WRITERS * COMMITS
