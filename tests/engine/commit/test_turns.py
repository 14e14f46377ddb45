"""Writers of one machine that take turns at a table on an object store: a courtesy, on which nothing depends."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
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

pytestmark = pytest.mark.usefixtures("folder")

SCHEMA = pa.schema([("id", pa.int64())])
PLACES = 2


class FarStore(MemoryStore):
    is_remote = True


def elsewhere(store: FarStore) -> MemoryStore:
    """The same table for a writer on another machine, who takes no turn here."""
    return MemoryStore(store.root)


class Waiting(SystemClock):
    """While a writer waits, something happens."""

    def __init__(self, happens: Callable[[], object] = lambda: None) -> None:
        self.waited_s = 0.0
        self.happens = happens

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds
        self.happens()


@pytest.fixture
def store() -> FarStore:
    return FarStore(f"memory://turns-{uuid.uuid4().hex}")


def entered(store: FarStore, clock: SystemClock, stack: ExitStack, *, places: int = PLACES) -> bool:
    """Whether a writer waited that took so many places one after the other, and holds the last one."""
    turn = stack.enter_context(commit_turn(store, clock))
    waits = [turn.advance() for _ in range(places)]
    return any(waits)


def test_one_puts_and_one_is_next_and_each_place_is_waited_for(store: FarStore) -> None:
    with ExitStack() as first, ExitStack() as others:
        clock = Waiting(first.close)
        assert not entered(store, clock, first)
        after = others.enter_context(commit_turn(store, clock))
        assert not after.advance()
        assert clock.waited_s == 0
        assert after.advance()
        assert 0 < clock.waited_s < 1
        assert not entered(store, clock, others, places=1)
        assert not after.advance(), "there is no place ahead"


def test_who_gets_no_turn_in_time_goes_on_without(store: FarStore) -> None:
    clock = Waiting()
    with ExitStack() as stack:
        assert not entered(store, clock, stack)
        assert not entered(store, clock, stack, places=1)
        assert entered(store, clock, stack)
        assert 5 <= clock.waited_s < 5.1
        assert entered(store, clock, stack, places=1)
        assert 10 <= clock.waited_s < 10.2


def test_the_version_that_landed_last_is_a_hint_for_the_next_writer_of_the_same_table(
    store: FarStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_txlog.engine.commit.writers._TABLES", 1)
    with commit_turn(store, Waiting()) as turn:
        turn.land(3)
        assert turn.landed() == -1, "it held no place"
        assert [turn.advance(), turn.advance(), turn.landed()] == [False, False, -1]
        turn.land(7)
    with commit_turn(store, Waiting()) as turn, commit_turn(FarStore("memory://other"), Waiting()) as other:
        assert (turn.landed(), other.landed()) == (7, -1)
        for path in next(folder.iterdir()).iterdir():
            path.write_bytes(b"\xff damaged")
        assert turn.landed() == -1


def test_no_commit_waits_where_files_cannot_be_locked(store: FarStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems."""

    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    clock = Waiting()
    with ExitStack() as stack:
        assert (entered(store, clock, stack), clock.waited_s) == (False, 0)


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
        "turn = stack.enter_context(commit_turn(MemoryStore(sys.argv[2]), SYSTEM_CLOCK))\n"
        f"for _ in range({PLACES}): turn.advance()\n"
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
            with ExitStack() as stack:
                assert entered(store, clock, stack)
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
        assert not any(entered(store, clock, stack) for _ in range(PLACES + 1))


def test_a_turn_that_cannot_be_left_is_no_error_of_the_commit(store: FarStore, folder: Path) -> None:
    """By then the commit may be in the log, and any error but CommitStateUnknown would deny it."""
    with commit_turn(store, Waiting()) as turn:
        turn.advance()
        for held in Path("/proc/self/fd").iterdir():
            if held.is_symlink() and str(held.readlink()).startswith(str(folder)):
                os.close(int(held.name))


# --- a commit that has waited ----------------------------------------------------------------------------------------


def append(table: Table, path: str) -> None:
    tx = table.begin()
    tx.add(path=path, partition_values={}, size=1)
    tx.commit("WRITE", {"mode": "Append"})


def meanwhile(store: FarStore, happens: Callable[[], object], *, places: int = PLACES, landed: int = -1) -> Table:
    """The table as a writer has it that will wait for its turn, while something happens once.

    Another writer holds its first or second place, and leaves the hint that a version has landed.
    """
    with ExitStack() as before:
        turn = before.enter_context(commit_turn(store, SystemClock()))
        assert not any([turn.advance(), turn.advance()])
        turn.land(landed)
    held = ExitStack()
    assert not entered(store, SystemClock(), held, places=places)

    def once() -> None:
        held.close()
        happens()

    return Table(store, clock=Waiting(once))


@pytest.mark.parametrize("landed", [-1, 0, 1, 2, 5, 10**19], ids="landed {}".format)
@pytest.mark.parametrize("places", [1, PLACES], ids="waits for place {}".format)
def test_who_has_waited_looks_before_it_puts(store: FarStore, places: int, landed: int) -> None:
    """Whatever hint the last writer has left."""
    other = Table.create(elsewhere(store), SCHEMA)
    table = meanwhile(store, lambda: [append(other, path) for path in "ab"], places=places, landed=landed)
    tx = table.begin()
    tx.add(path="c", partition_values={}, size=1)
    assert tx.commit("WRITE", {"mode": "Append"}) == 3
    assert tx.outcome is not None
    assert (tx.outcome.attempts, tx.outcome.rebased_over) == (1, [1, 2])


def test_commits_that_a_hint_names_are_read_once_and_before_the_log_is_listed(
    store: FarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Table.create(elsewhere(store), SCHEMA)
    table = meanwhile(store, lambda: [append(other, path) for path in "ab"], places=1, landed=2)
    tx = table.begin()
    tx.add(path="c", partition_values={}, size=1)
    asked: list[str] = []
    for name in ("read", "list"):
        ask = getattr(store, name)
        monkeypatch.setattr(store, name, lambda path, ask=ask, **more: asked.append(path) or ask(path, **more))
    assert tx.commit("WRITE", {"mode": "Append"}) == 3
    assert [*sorted(asked[:-1]), asked[-1]] == [commit_name(1), commit_name(2), "_delta_log"]


@pytest.mark.parametrize("landed", [-1, 2], ids="landed {}".format)
def test_who_has_waited_finds_the_conflict(store: FarStore, landed: int) -> None:
    other = Table.create(elsewhere(store), SCHEMA)
    append(other, "a")

    def remove() -> None:
        tx = other.begin()
        tx.remove(tx.read_whole_table())
        tx.commit("DELETE", {})

    tx = meanwhile(store, remove, landed=landed).begin()
    tx.read_whole_table()
    tx.add(path="b", partition_values={}, size=1)
    with pytest.raises(ConcurrentDeleteRead):
        tx.commit("WRITE", {"mode": "Append"})
    assert other.snapshot().version == 2


@pytest.mark.parametrize("landed", [-1, 2], ids="landed {}".format)
def test_who_has_waited_finds_that_the_table_was_made_again(store: FarStore, landed: int) -> None:
    Table.create(store, SCHEMA)

    def replace() -> None:
        store.delete(commit_name(0))
        # Of another size: two tables may be made in one millisecond.
        Table.create(elsewhere(store), SCHEMA, properties={"delta.checkpointInterval": "1000"})

    tx = meanwhile(store, replace, landed=landed).begin()
    tx.add(path="b", partition_values={}, size=1)
    with pytest.raises(TableReplaced):
        tx.commit("WRITE", {"mode": "Append"})
    assert Table(store).snapshot().num_files == 0
