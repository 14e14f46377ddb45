"""The other writers of a table: engines whose commits could replace ours, and turns among the writers of one machine.

Whether commits could replace ours (soundness A15) is a pure function of the kind of store and of the engine names in
the commits. It is decided once per table, before its first write, and only on a store that allows such commits.

One writer of a machine at a time tries to commit to a table on an object store, and the next one meanwhile reads what
has landed: a lost race costs a writer four requests and helps no other writer, so eight concurrent writers commit less
than two would. A turn is a courtesy and no lock: put-if-absent alone decides which writer commits, writers on other
machines ignore turns, and a writer that gets none in time continues without. Source: docs/writers.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.engine.commit.handed import HandedOn, kept_before, read_handed, write_handed
from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.snapshot.replay import ENGINES_KEPT
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import OverwritingWriter
from airflow_txlog.locations import store_kind
from airflow_txlog.process.private_folder import make_own_folder
from airflow_txlog.storage.base import Store

log = logging.getLogger(__name__)


def overwriting_engine(kind: str, engines: Iterable[str | None]) -> str | None:
    """Return the first of these engines whose commits replace others on this kind of store, or None.

    On S3 that is Delta Lake for Spark, with its default log store or the one over DynamoDB.
    """
    if kind != "s3":
        return None
    return next((each for each in engines if each and each.startswith("Apache-Spark/") and "Delta-Lake/" in each), None)


def check_writers(snapshot: Snapshot, *, strict: bool) -> None:
    """Warn if one of the last commits up to this version is of an engine that would replace ours on this store.

    Raises OverwritingWriter instead if `strict`; CorruptCommit.
    """
    store = snapshot.store
    kind = store_kind(store.root)
    # A catalog that ratifies commits keeps them from replacing one another.
    if kind != "s3" or store.catalog_table is not None:
        return
    engine = overwriting_engine(kind, last_engines(snapshot))
    if engine is None:
        return
    message = (
        f"{store.root} was lately written by {engine}, whose commits on this store replace those of others without "
        "notice: a commit of ours may vanish after it was acknowledged. See docs/writers.md. "
    )
    if strict:
        raise OverwritingWriter(
            f"{message}Nothing was written. Let one engine write this table, or leave strict_writers off to be warned.",
            table=store.root,
            engine_info=engine,
        )
    log.warning("%sLet one engine write this table; strict_writers=True refuses instead.", message)


def last_engines(snapshot: Snapshot) -> list[str | None]:
    """Return the engines of the last commits up to this version that the log still holds, newest first.

    Reads the commits that the snapshot was built without. Raises CorruptCommit.
    """
    known, version = snapshot.state.engines, snapshot.version
    numbers = range(version, max(-1, version - ENGINES_KEPT), -1)
    unread = snapshot.store.read_all([commit_name(number) for number in numbers if number not in known])
    engines: list[str | None] = []
    with suppress(FileNotFoundError):
        for number in numbers:
            if number in known:
                engines.append(known[number])
            else:
                engines.append(decode_commit(number, next(unread), commit_name(number)).engine)
    return engines


# --- turns ------------------------------------------------------------------------------------------------------------

# In the order in which a writer takes them. In the first it reads what has landed, in the second it puts.
_PLACES = ("next", "first")
# Tables that share these files wait for each other, which is harmless and limits the number of files.
_TABLES = 256
_LONGEST_WAIT_S = 5.0
# Many wait for the first of the places, and one for the second, which no other can take.
_LOOK_EVERY_S = 0.004
_LAST_LOOK_EVERY_S = 0.001
# In the last place's file: the version that landed last, then the commits that are handed on.
_HINT_BYTES, _HANDED_AT = 85, 128


class CommitTurn:
    """The way of a commit through the places of its table, of which it holds one at a time."""

    def __init__(self, table: bytes, places: Iterable[int], clock: Clock, mark: bytes | None = None) -> None:
        """`table` is the digest of its URI; `places` are open files, none if its writers take no turns.

        `mark`: the digest of `Store.access_mark`; None if its writers hand no commits on.
        """
        self._table, self._mark = table, mark
        self._ahead = list(places)
        self._first = self._ahead[0] if self._ahead else None
        self._last = self._ahead[-1] if self._ahead else None
        self._held: int | None = None
        self._clock = clock
        self._left_s = _LONGEST_WAIT_S

    def advance(self) -> bool:
        """Take the next place, if there is one ahead, and leave the one before. Return whether it waited.

        It waits at most about five seconds for all places together, and not where they cannot be locked.
        """
        if not self._ahead:
            return False
        place, has_waited = self._ahead.pop(0), False
        look_every_s = _LOOK_EVERY_S if self._ahead else _LAST_LOOK_EVERY_S
        try:
            while not _took(place):
                if self._left_s <= 0:
                    self._ahead, place = [], -1
                    break
                pause_s, has_waited = look_every_s * (1 + self._clock.random()) / 2, True
                self._clock.sleep(pause_s)
                self._left_s -= pause_s
        except OSError:
            # Also a file system without such locks: do not wait for a lock that is always refused.
            self._ahead, place = [], -1
        self.leave()
        self._held = None if place < 0 else place
        return has_waited

    def step(self) -> bool:
        """Take the next place if it is free, and leave the one before. Return False if it is not free."""
        if self._ahead:
            with suppress(OSError):
                if not _took(self._ahead[0]):
                    return False
                place = self._ahead.pop(0)
                self.leave()
                self._held = place
        return True

    def landed(self) -> int:
        """Return the version of the table that a writer of this machine committed last, or -1. It is only a hint."""
        if self._last is not None:
            with suppress(OSError, ValueError):
                table, _, version = os.pread(self._last, _HINT_BYTES, 0).partition(b" ")
                return int(version) if table == self._table else -1
        return -1

    @property
    def hands_on(self) -> bool:
        """Whether the writers of this table hand their commits on."""
        return self._mark is not None

    def handed(self) -> list[HandedOn]:
        """Return the commits that the last writers of this machine have handed on, to be judged by `Course`."""
        if self._last is not None and self._mark is not None:
            with suppress(OSError):
                return read_handed(self._last, _HANDED_AT, self._mark)
        return []

    def land(self, version: int, commit: HandedOn | None = None) -> None:
        """Write the version of our commit down for the next writers, and hand the commit on."""
        if self._held is None or self._held != self._last:
            return
        with suppress(OSError):
            if commit is not None and self._mark is not None:
                write_handed(self._last, _HANDED_AT, self._mark, kept_before(commit, self.handed()))
            os.pwrite(self._held, b"%s %020d" % (self._table, version), 0)

    def leave(self) -> None:
        """Leave the place that it holds. If no writer waits, nothing is handed on."""
        if self._held is None:
            return
        if self._held == self._last and self._first is not None:
            with suppress(OSError):
                if _took(self._first):
                    os.ftruncate(self._held, _HINT_BYTES)
                    fcntl.flock(self._first, fcntl.LOCK_UN)
        # Unlock explicitly: a child forked in between keeps the file open.
        _leave(partial(fcntl.flock, self._held, fcntl.LOCK_UN))


@contextmanager
def commit_turn(store: Store, clock: Clock) -> Iterator[CommitTurn]:
    """Yield the way through the places of those that try to commit to the store's table, and leave it at the end.

    There are no places where commits cost no request, or without a temporary folder that is this user's.
    """
    table = _digest(store.root).hex()
    with ExitStack() as stack:
        try:
            places = [_opened(path, stack) for path in (_files(table) if store.is_remote else [])]
        except OSError:
            places = []
        mark = store.access_mark if places else None
        turn = CommitTurn(table.encode(), places, clock, None if mark is None else _digest(f"{store.root} {mark}"))
        stack.callback(turn.leave)
        yield turn


def handed_contents(store: Store) -> dict[int, bytes]:
    """Return the bytes of the commits that the last writers of this machine have handed on, by version, unproven."""
    if store.access_mark is None:
        return {}
    with commit_turn(store, SYSTEM_CLOCK) as turn:
        return {each.version: each.data for each in turn.handed()}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()


def _files(table: str) -> list[Path]:
    """Return the files of the table's places; none if their folder belongs to another user."""
    folder = Path(tempfile.gettempdir(), f"airflow-txlog-turns-{os.geteuid()}")
    if make_own_folder(folder) is not None:
        return []
    return [folder / f"{int(table[:8], 16) % _TABLES}.{place}" for place in _PLACES]


def _opened(path: Path, stack: ExitStack) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    stack.callback(_leave, partial(os.close, file))
    return file


def _took(place: int) -> bool:
    """Return whether the place was free. Raises OSError if it cannot be locked."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _leave(release: Callable[[], object]) -> None:
    # The commit may have landed: an error while leaving must not report a failure.
    with suppress(OSError):
        release()
