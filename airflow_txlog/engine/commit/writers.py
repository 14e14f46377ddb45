"""The other writers of a table: engines whose commits could replace ours, and turns among the writers of one machine.

Whether commits could replace ours (soundness A15) is a pure function of the kind of store and of the engine names in
the commits. It is decided once per table, before its first write, and only on a store that allows such commits.

A few writers of one machine at a time try to commit to a table on an object store: a lost race costs a writer four
requests and helps no other writer, so eight concurrent writers commit less than two would. A turn is a courtesy and no
lock: put-if-absent alone decides which writer commits, writers on other machines ignore turns, and a writer that gets
none in time continues without. Source: docs/writers.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from airflow_txlog.clock import Clock
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

# Concurrent attempts: one leaves the store idle between its requests, three lose more races than they gain.
_PLACES = 2
# Tables that share these files wait for each other, which is harmless and limits the number of files.
_TABLES = 256
_LONGEST_WAIT_S = 5.0
_LOOK_EVERY_S = 0.004


@contextmanager
def commit_turn(store: Store, clock: Clock) -> Iterator[bool]:
    """Wait for a place among those that try to commit to the store's table, and leave it at the end.

    Yields whether it waited, at most about five seconds. It does not wait where commits cost no request, or without a
    temporary folder that is this user's and has file locks.
    """
    with ExitStack() as stack:
        try:
            places = [_opened(path, stack) for path in (_files(store) if store.is_remote else [])]
            is_waiting = bool(places) and not _take_one(places, stack)
        except OSError:
            # Also a file system without such locks: do not wait for a lock that is always refused.
            is_waiting = False
        waited_s = 0.0
        while is_waiting and waited_s < _LONGEST_WAIT_S:
            pause_s = _LOOK_EVERY_S * (1 + clock.random()) / 2
            clock.sleep(pause_s)
            waited_s += pause_s
            with suppress(OSError):
                is_waiting = not _take_one(places, stack)
        yield waited_s > 0


def _files(store: Store) -> list[Path]:
    """Return the files of the table's places; none if their folder belongs to another user."""
    folder = Path(tempfile.gettempdir(), f"airflow-txlog-turns-{os.geteuid()}")
    if make_own_folder(folder) is not None:
        return []
    table = int.from_bytes(hashlib.sha256(store.root.encode(errors="surrogateescape")).digest()[:4], "big") % _TABLES
    return [folder / f"{table}.{place}" for place in range(_PLACES)]


def _opened(path: Path, stack: ExitStack) -> int:
    file = path.open("ab", buffering=0)
    stack.callback(_leave, file.close)
    return file.fileno()


def _take_one(places: Sequence[int], stack: ExitStack) -> bool:
    """Return whether a place was free; the stack releases it. Raises OSError if places cannot be locked."""
    for place in places:
        with suppress(BlockingIOError):
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Unlock explicitly: a child forked in between keeps the file open.
            stack.callback(_leave, partial(fcntl.flock, place, fcntl.LOCK_UN))
            return True
    return False


def _leave(release: Callable[[], object]) -> None:
    # The commit may have landed: an error while leaving must not report a failure.
    with suppress(OSError):
        release()
