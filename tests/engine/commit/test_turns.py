"""Writers of one machine that take turns at a table on an object store: a courtesy, on which nothing depends."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.clock import SystemClock
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.writers import commit_turn
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import ConcurrentDeleteRead, TableReplaced
from airflow_txlog.storage import MemoryStore

SCHEMA = pa.schema([("id", pa.int64())])
PLACES = 2


class FarStore(MemoryStore):
    is_remote = True


class Waiting(SystemClock):
    """While a writer waits, something happens."""

    def __init__(self, happens: Callable[[], object] = lambda: None) -> None:
        self.waited_s = 0.0
        self.happens = happens

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds
        self.happens()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def store() -> FarStore:
    return FarStore(f"memory://turns-{uuid.uuid4().hex}")


def test_two_try_at_a_time_and_the_next_waits_until_one_has_left(store: FarStore) -> None:
    with ExitStack() as first, ExitStack() as others:
        clock = Waiting(first.close)
        assert not first.enter_context(commit_turn(store, clock))
        for _ in range(PLACES - 1):
            assert not others.enter_context(commit_turn(store, clock))
        assert clock.waited_s == 0
        assert others.enter_context(commit_turn(store, clock))
        assert 0 < clock.waited_s < 1


def test_who_gets_no_turn_in_time_goes_on_without(store: FarStore) -> None:
    clock = Waiting()
    with ExitStack() as stack:
        assert [stack.enter_context(commit_turn(store, clock)) for _ in range(PLACES + 1)] == [False] * PLACES + [True]
    assert 5 <= clock.waited_s < 5.1


def test_no_commit_waits_where_files_cannot_be_locked(store: FarStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems."""

    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    clock = Waiting()
    with commit_turn(store, clock) as waited:
        assert (waited, clock.waited_s) == (False, 0)


def test_a_process_that_is_killed_leaves_its_turn(store: FarStore, folder: Path) -> None:
    script = (
        "import sys, tempfile, time\n"
        "from contextlib import ExitStack\n"
        "from airflow_txlog.clock import SYSTEM_CLOCK\n"
        "from airflow_txlog.engine.commit.writers import commit_turn\n"
        "from airflow_txlog.storage import MemoryStore\n"
        "MemoryStore.is_remote = True\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "stack = ExitStack()\n"
        f"for _ in range({PLACES}): stack.enter_context(commit_turn(MemoryStore(sys.argv[2]), SYSTEM_CLOCK))\n"
        "print('all taken', flush=True)\n"
        "time.sleep(600)\n"
    )
    arguments = [sys.executable, "-c", script, str(folder), store.root]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "all taken\n"

            def kill() -> None:
                holder.send_signal(signal.SIGKILL)
                holder.wait(60)

            clock = Waiting(kill)
            with commit_turn(store, clock) as waited:
                assert waited
                assert clock.waited_s < 1
        finally:
            holder.kill()


def test_a_commit_on_this_machine_takes_no_turn(folder: Path) -> None:
    table = Table.create(f"memory://turns-{uuid.uuid4().hex}", SCHEMA)
    append(table, "a")
    assert not list(folder.iterdir())


@pytest.mark.parametrize("harm", ["readable by others", "a link", "not a folder"])
def test_a_folder_that_is_not_this_users_alone_is_not_used(store: FarStore, folder: Path, harm: str) -> None:
    with commit_turn(store, Waiting()):
        pass
    (own,) = folder.iterdir()
    if harm == "readable by others":
        own.chmod(0o750)
    else:
        moved = own.rename(folder / "elsewhere")
        own.symlink_to(moved) if harm == "a link" else own.touch()
    clock = Waiting()
    with ExitStack() as stack:
        assert not any(stack.enter_context(commit_turn(store, clock)) for _ in range(PLACES + 1))


def test_a_turn_that_cannot_be_left_is_no_error_of_the_commit(store: FarStore, folder: Path) -> None:
    """By then the commit may be in the log, and any error but CommitStateUnknown would deny it."""
    with commit_turn(store, Waiting()):
        for held in Path("/proc/self/fd").iterdir():
            if held.is_symlink() and str(held.readlink()).startswith(str(folder)):
                os.close(int(held.name))


# --- a commit that has waited ----------------------------------------------------------------------------------------


def append(table: Table, path: str) -> None:
    tx = table.begin()
    tx.add(path=path, partition_values={}, size=1)
    tx.commit("WRITE", {"mode": "Append"})


def meanwhile(store: FarStore, happens: Callable[[], object]) -> Table:
    """The table as a writer has it that will wait for its turn, while something happens once."""
    held = ExitStack()
    for _ in range(PLACES):
        held.enter_context(commit_turn(store, SystemClock()))

    def once() -> None:
        held.close()
        happens()

    return Table(store, clock=Waiting(once))


def test_who_has_waited_looks_before_it_puts(store: FarStore) -> None:
    other = Table.create(store, SCHEMA)
    table = meanwhile(store, lambda: [append(other, path) for path in "ab"])
    tx = table.begin()
    tx.add(path="c", partition_values={}, size=1)
    assert tx.commit("WRITE", {"mode": "Append"}) == 3
    assert tx.outcome is not None
    assert (tx.outcome.attempts, tx.outcome.rebased_over) == (1, [1, 2])


def test_who_has_waited_finds_the_conflict(store: FarStore) -> None:
    other = Table.create(store, SCHEMA)
    append(other, "a")

    def remove() -> None:
        tx = other.begin()
        tx.remove(tx.read_whole_table())
        tx.commit("DELETE", {})

    tx = meanwhile(store, remove).begin()
    tx.read_whole_table()
    tx.add(path="b", partition_values={}, size=1)
    with pytest.raises(ConcurrentDeleteRead):
        tx.commit("WRITE", {"mode": "Append"})
    assert other.snapshot().version == 2


def test_who_has_waited_finds_that_the_table_was_made_again(store: FarStore) -> None:
    Table.create(store, SCHEMA)

    def replace() -> None:
        store.delete(commit_name(0))
        # Of another size: two tables may be made in one millisecond.
        Table.create(store, SCHEMA, properties={"delta.checkpointInterval": "1000"})

    tx = meanwhile(store, replace).begin()
    tx.add(path="b", partition_values={}, size=1)
    with pytest.raises(TableReplaced):
        tx.commit("WRITE", {"mode": "Append"})
    assert Table(store).snapshot().num_files == 0
