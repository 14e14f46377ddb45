"""Commits that a writer hands on to the next writers of its machine, who then request nothing between turn and put.

Each test is about one writer that waits for the last place while another one, who holds it, does something once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.clock import SystemClock
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.commit import handed
from airflow_txlog.engine.commit.handed import HandedOn, handed_on
from airflow_txlog.engine.commit.writers import CommitTurn, commit_turn
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.tail import digest_of
from airflow_txlog.errors import ConcurrentDeleteRead, TableReplaced
from airflow_txlog.storage import FileInfo, MemoryStore
from tests.helpers.counting import CountingStore

pytestmark = pytest.mark.usefixtures("folder")

SCHEMA = pa.schema([("id", pa.int64())])
NEVER_AUTOMATIC = {"delta.checkpointInterval": "1000"}


class FarStore(CountingStore):
    """As S3: an etag is the MD5 of the content, and a lost race costs requests."""

    is_remote = True
    access_mark = "a server, a caller"
    encrypted: frozenset[str] | None = frozenset()
    """Paths, None for all, whose etags nobody can foresee, as where KMS encrypts."""

    def _info(self, key: str, path: str | None = None) -> FileInfo | None:
        found = super()._info(key, path)
        if found is None:
            return None
        digest = digest_of(self._files[key].getvalue())
        is_encrypted = self.encrypted is None or found.path in self.encrypted
        return replace(found, etag=digest[::-1] if is_encrypted else digest)


class Waiting(SystemClock):
    """While a writer waits, something happens once."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.happens: Callable[[], object] | None = happens
        self.passed_s = 0.0

    def monotonic_s(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()


@pytest.fixture
def store() -> FarStore:
    return FarStore(f"memory://handed-{uuid.uuid4().hex}")


@pytest.fixture
def other(store: FarStore) -> Table:
    """The table for writers that take no turn, as those on another machine."""
    return Table.create(MemoryStore(store.root), SCHEMA, properties=NEVER_AUTOMATIC)


def append(table: Table, path: str) -> int:
    tx = table.begin()
    tx.add(path=path, partition_values={}, size=1)
    return tx.commit("WRITE", {"mode": "Append"})


def word_of(store: MemoryStore, version: int, after: bytes | None = None) -> HandedOn:
    """What the writer of a version hands on."""
    before = MemoryStore.read(store, commit_name(version - 1)) if after is None else after
    found = handed_on(version, digest_of(before), MemoryStore.read(store, commit_name(version)))
    assert found is not None
    return found


def hand_on(turn: CommitTurn, store: MemoryStore, version: int) -> None:
    turn.land(version, word_of(store, version))


def holder(store: FarStore, stack: ExitStack) -> CommitTurn:
    """The turn of a writer that holds the last place."""
    turn = stack.enter_context(commit_turn(store, SystemClock()))
    assert not any([turn.advance(), turn.advance()])
    return turn


def waiting(store: FarStore, happens: Callable[[CommitTurn], object]) -> Transaction:
    """An append of a writer that will wait for the last place; meanwhile its holder does something and leaves."""
    held = ExitStack()
    turn = holder(store, held)
    store.take()

    def once() -> None:
        store.requests.append(("the holder", "leaves"))
        happens(turn)
        held.close()

    tx = Table(store, clock=Waiting(once)).begin()
    tx.add(path="mine", partition_values={}, size=1)
    store.take()
    return tx


def outcome(tx: Transaction) -> tuple[int, int, list[int]]:
    """The version, the attempts, and the versions that it was moved behind."""
    version = tx.commit("WRITE", {"mode": "Append"})
    assert tx.outcome is not None
    return version, tx.outcome.attempts, tx.outcome.rebased_over


def after_the_holder(store: FarStore) -> list[str]:
    requests = store.take()
    return requests[requests.index("the holder leaves") + 1 :]


def put(version: int) -> str:
    return f"put_if_absent {commit_name(version)}"


def paths(store: FarStore) -> list[str]:
    return sorted(Table(store).snapshot().files().column("path").to_pylist())


def lands(other: Table, store: FarStore, *names: str) -> Callable[[CommitTurn], object]:
    """The holder commits these files, one after the other, and hands each commit on."""
    return lambda turn: [hand_on(turn, store, append(other, name)) for name in names]


def test_between_turn_and_put_nothing_is_requested(store: FarStore, other: Table) -> None:
    tx = waiting(store, lands(other, store, "a", "b"))
    assert outcome(tx) == (3, 1, [1, 2])
    assert after_the_holder(store) == [put(3)]
    assert paths(store) == ["a", "b", "mine"]


def test_the_next_refresh_reads_no_commit_again(store: FarStore, other: Table) -> None:
    table = Table(store)
    tx = waiting(store, lands(other, store, "a", "b"))
    tx._on_committed = table._after_commit
    table.snapshot()
    tx.commit("WRITE", {"mode": "Append"})
    store.take()
    assert table.snapshot().version == 3
    assert store.take() == [f"list {commit_name(0).removesuffix('.json')}"]


def test_a_refresh_reads_no_commit_that_was_handed_on_and_that_its_etag_proves(store: FarStore, other: Table) -> None:
    table = Table(store)
    table.snapshot()
    with ExitStack() as stack:
        turn = holder(store, stack)
        hand_on(turn, store, append(other, "a"))
        store.encrypted = frozenset([commit_name(append(other, "b"))])
        hand_on(turn, store, 2)
        store.take()
        assert table.snapshot().version == 2
    assert store.take() == [f"list {commit_name(0).removesuffix('.json')}", f"read {commit_name(2)}"]
    assert paths(store) == ["a", "b"]


def test_a_conflict_is_found_in_what_was_handed_on(store: FarStore, other: Table) -> None:
    append(other, "a")

    def remove(turn: CommitTurn) -> None:
        tx = other.begin()
        tx.remove(tx.read_whole_table())
        hand_on(turn, store, tx.commit("DELETE", {}))

    tx = waiting(store, remove)
    tx.read_whole_table()
    with pytest.raises(ConcurrentDeleteRead):
        tx.commit("WRITE", {"mode": "Append"})
    assert after_the_holder(store) == []


def test_a_writer_of_another_machine_in_between_is_found_by_the_put(store: FarStore, other: Table) -> None:
    def act(turn: CommitTurn) -> None:
        hand_on(turn, store, append(other, "a"))
        append(other, "foreign")

    tx = waiting(store, act)
    assert outcome(tx) == (3, 2, [1, 2])
    assert after_the_holder(store)[:2] == [put(2), f"read {commit_name(2)}"]
    assert paths(store) == ["a", "foreign", "mine"]


def test_a_holder_that_is_killed_before_it_hands_on_is_found_by_the_put(store: FarStore, other: Table) -> None:
    tx = waiting(store, lambda turn: [hand_on(turn, store, append(other, "a")), append(other, "killed")])
    assert outcome(tx) == (3, 2, [1, 2])
    assert paths(store) == ["a", "killed", "mine"]


def test_who_has_waited_and_finds_nothing_handed_on_lists_the_log(store: FarStore, other: Table) -> None:
    tx = waiting(store, lambda turn: append(other, "a"))
    assert outcome(tx) == (2, 1, [1])


def test_what_was_there_before_the_listing_and_is_not_in_it_is_not_followed(store: FarStore, other: Table) -> None:
    """A dead writer has left it; meanwhile the commit was taken out of the log, for example by a restored backup."""
    append(other, "a")
    taken_out = commit_name(append(other, "gone"))
    with ExitStack() as stack:
        left = word_of(store, 2)
        turn = holder(store, stack)
        turn.land(2, left)
        # It was killed: no end of a turn deletes what it has handed on.
        turn._first = None
    MemoryStore.delete(store, taken_out)
    tx = waiting(store, lambda turn: turn.land(-1))
    with commit_turn(store, SystemClock()) as turn:
        assert turn.handed() == [left]
    assert outcome(tx) == (2, 1, [])
    assert paths(store) == ["a", "mine"]


def test_a_table_that_was_made_again_is_not_taken_for_the_one_before(store: FarStore, other: Table) -> None:
    """The commits of the table before are handed on, and the new table has fewer."""
    append(other, "a")
    of_before = [word_of(store, append(other, "b"))]
    for version in range(3):
        MemoryStore.delete(store, commit_name(version))
    again = Table.create(MemoryStore(store.root), SCHEMA, properties=NEVER_AUTOMATIC)
    append(again, "new")
    tx = waiting(store, lambda turn: [turn.land(each.version, each) for each in of_before])
    tx_version, _, moved_behind = outcome(tx)
    assert (tx_version, moved_behind) == (2, [])
    assert paths(store) == ["mine", "new"]


def test_a_table_that_is_made_again_while_a_writer_waits_is_found(store: FarStore, other: Table) -> None:
    def act(turn: CommitTurn) -> None:
        hand_on(turn, store, append(other, "a"))
        MemoryStore.delete(store, commit_name(0))
        MemoryStore.delete(store, commit_name(1))
        Table.create(MemoryStore(store.root), SCHEMA)
        clock.passed_s += 1

    tx = waiting(store, act)
    clock = tx._clock
    assert isinstance(clock, Waiting)
    with pytest.raises(TableReplaced):
        tx.commit("WRITE", {"mode": "Append"})
    assert paths(store) == []


def test_a_commit_that_was_followed_and_is_another_now_is_found_after_a_lost_race(
    store: FarStore, other: Table
) -> None:
    def act(turn: CommitTurn) -> None:
        hand_on(turn, store, append(other, "a"))
        MemoryStore.put(store, commit_name(1), MemoryStore.read(store, commit_name(1)).replace(b'"a"', b'"z"'))
        append(Table(MemoryStore(store.root)), "foreign")

    tx = waiting(store, act)
    with pytest.raises(TableReplaced, match="another file"):
        tx.commit("WRITE", {"mode": "Append"})


def test_where_an_etag_is_no_digest_nothing_is_followed_and_nothing_is_refused(store: FarStore, other: Table) -> None:
    store.encrypted = None
    append(other, "a")

    def act(turn: CommitTurn) -> None:
        hand_on(turn, store, append(other, "b"))

    assert outcome(waiting(store, act)) == (3, 1, [2])
    listed = f"list {commit_name(1).removesuffix('.json')}"
    assert listed in after_the_holder(store)


def test_a_followed_commit_whose_etag_is_no_digest_is_compared_by_its_bytes(store: FarStore, other: Table) -> None:
    store.encrypted = frozenset([commit_name(1)])

    def act(turn: CommitTurn) -> None:
        hand_on(turn, store, append(other, "a"))
        append(other, "foreign")

    assert outcome(waiting(store, act)) == (3, 2, [1, 2])
    assert f"read {commit_name(1)}" in after_the_holder(store)


@pytest.mark.parametrize("mark", [None, "another server, a caller"])
def test_what_the_writers_of_another_server_or_caller_hand_on_is_not_read(
    store: FarStore, other: Table, mark: str | None
) -> None:
    tx = waiting(store, lands(other, store, "a"))
    tx._store = FarStore(store.root)
    tx._store.access_mark = mark
    assert outcome(tx) == (2, 1, [1])
    assert f"read {commit_name(1)}" in tx._store.take()


@pytest.mark.parametrize("harm", ["cut off", "another byte", "empty"])
def test_damaged_bytes_are_not_followed(store: FarStore, other: Table, folder: Path, harm: str) -> None:
    def act(turn: CommitTurn) -> None:
        hand_on(turn, store, append(other, "a"))
        path = next(folder.glob("*/*.first"))
        held = path.read_bytes()
        if harm == "another byte":
            held = held.replace(b'"a"', b'"z"')
        with path.open("r+b") as file:
            file.truncate(0 if harm == "empty" else len(held) - 5 * (harm == "cut off"))
            file.write(held if harm == "another byte" else b"")

    assert outcome(waiting(store, act)) == (2, 1, [1])
    assert f"read {commit_name(1)}" in after_the_holder(store)
    assert paths(store) == ["a", "mine"]


def test_a_put_that_had_to_be_read_back_is_not_handed_on(
    store: FarStore, other: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_lost(path: str, data: bytes) -> bool:
        MemoryStore.put_if_absent(store, path, data)
        return False

    seen: list[HandedOn | None] = []
    land = CommitTurn.land
    monkeypatch.setattr(CommitTurn, "land", lambda turn, *given: (seen.append(given[1]), land(turn, *given)))
    assert append(Table(store), "a") == 1
    monkeypatch.setattr(store, "put_if_absent", is_lost)
    assert append(Table(store), "b") == 2
    assert [each and each.version for each in seen] == [1, None]


def test_only_this_user_can_read_what_is_handed_on_and_the_last_writer_deletes_it(
    store: FarStore, other: Table, folder: Path
) -> None:
    held: list[bytes] = []

    def act(turn: CommitTurn) -> None:
        hand_on(turn, store, append(other, "a"))
        (path,) = folder.glob("*/*.first")
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        held.append(path.read_bytes())

    outcome(waiting(store, act))
    assert b'"path":"a"' in held[0]
    for path in folder.glob("*/*"):
        assert b"path" not in path.read_bytes()


def test_a_writer_that_leaves_while_another_waits_leaves_its_commits(store: FarStore, other: Table) -> None:
    with ExitStack() as first, ExitStack() as second:
        turn, after = holder(store, first), second.enter_context(commit_turn(store, SystemClock()))
        assert not after.advance()
        hand_on(turn, store, append(other, "a"))
        first.close()
        assert [each.version for each in after.handed()] == [1]
        after.advance()
        second.close()
        assert after._held is not None
    with commit_turn(store, SystemClock()) as turn:
        assert turn.handed() == []


def test_the_commits_that_are_handed_on_are_few_and_small(
    store: FarStore, other: Table, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed, "_MOST_COMMITS", 3)
    versions: list[list[int]] = []
    with ExitStack() as stack:
        turn = holder(store, stack)
        for number in range(5):
            hand_on(turn, store, append(other, str(number)))
            versions.append([each.version for each in turn.handed()])
        assert versions == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
        monkeypatch.setattr(handed, "_MOST_BYTES", 2 * len(turn.handed()[0].data))
        assert handed_on(6, "0" * 32, turn.handed()[0].data) is None
        # A gap: what was handed on before leads nowhere.
        append(other, "not handed on")
        monkeypatch.undo()
        hand_on(turn, store, append(other, "after it"))
        assert [each.version for each in turn.handed()] == [7]


def test_commits_of_a_listing_are_taken_from_what_was_handed_on_if_their_etag_proves_them(
    store: FarStore, other: Table
) -> None:
    """A writer reads none of the commits that have landed since it began, while it waits."""
    tx = waiting(store, lambda turn: None)
    for path in "abc":
        append(other, path)
    with ExitStack() as stack:
        # In the place of the holder, whose word the writer finds when it begins to wait.
        turn = stack.enter_context(commit_turn(store, SystemClock()))
        turn._held = turn._last
        for version in (1, 2, 3):
            turn.land(version, word_of(store, version))
        turn._held = None
    assert outcome(tx) == (4, 1, [1, 2, 3])
    assert not any(each.startswith("read") for each in store.take())
