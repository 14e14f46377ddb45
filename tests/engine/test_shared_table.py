"""One `Table`, used by many threads at once: readers never go back in time, and no commit is lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table

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
