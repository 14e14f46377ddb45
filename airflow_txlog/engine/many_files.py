"""Deleting many files: in parallel, bounded, counted exactly, and reported on the way.

Which files may go is decided elsewhere. One that cannot be deleted does not keep the ones behind it alive: deleting
goes on, up to a number of failures that says the store refuses altogether. Whatever ends it, the count is of files
that are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from airflow_txlog.clock import Clock
from airflow_txlog.errors import OutsideTable
from airflow_txlog.storage.base import FileInfo, Store

# Files that one thread looks up before it takes the next: a thread pool's own work for each would be most of the time.
_MOST_AT_ONCE = 64


def look_up(
    store: Store,
    paths: Sequence[str],
    parallelism: int,
    *,
    skip_outside: bool = False,
    on_unreadable: Callable[[str], object] | None = None,
) -> list[FileInfo | None]:
    """What the store says of each path, in their order; None where there is no such file, or the path can be none.

    Raises whatever the store raises at a look that fails. `skip_outside`: None where that is OutsideTable. A path in a
    folder that this user may not enter is passed to `on_unreadable`, where it is given, and is None.
    """
    refused = (ValueError, OutsideTable) if skip_outside else ValueError

    def look(path: str) -> FileInfo | None:
        try:
            return store.stat(path)
        except refused:
            return None  # a place that the store cannot even name
        except PermissionError:
            if on_unreadable is None:
                raise
            on_unreadable(path)
            return None

    size = max(1, min(_MOST_AT_ONCE, len(paths) // (4 * parallelism)))
    slices = [paths[start : start + size] for start in range(0, len(paths), size)]
    with ThreadPoolExecutor(parallelism, thread_name_prefix="txlog-stat") as pool:
        found = pool.map(lambda some: list(map(look, some)), slices)
        return [info for some in found for info in some]


log = logging.getLogger(__name__)

PARALLELISM = 8
"""Deletes under way at once where nothing else is asked: an object store answers each in some 50 ms."""
MAX_FAILURES = 20
PROGRESS_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a deletion has come."""

    deleted_files: int
    deleted_bytes: int
    total_files: int
    total_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.deleted_files:,} of {self.total_files:,} files deleted, "
            f"{self.deleted_bytes / 2**20:,.1f} of {self.total_bytes / 2**20:,.1f} MiB"
        )


@dataclass(slots=True)
class Deletion:
    """The state of a deletion: what is gone, and what could not be deleted. Changed by one thread alone."""

    deleted_files: int = 0
    deleted_bytes: int = 0
    failures: list[tuple[str, Exception]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What the store does not take for a file of the table, such as a path that leads through a symlink."""

    def check(self) -> None:
        """Raise the first failure as the store raised it, with a note that says how many there were."""
        if self.failures:
            path, error = self.failures[0]
            error.add_note(
                f"{path} could not be deleted ({len(self.failures)} files could not); {self.deleted_files} were."
            )
            raise error


def delete_files(
    store: Store,
    files: Sequence[FileInfo],
    deletion: Deletion,
    *,
    parallelism: int = PARALLELISM,
    on_file: Callable[[], object] | None = None,
) -> None:
    """Delete the files, in their order as far as `parallelism` leaves one, and count into `deletion`.

    Failures are gathered; after MAX_FAILURES no further delete begins. `on_file` is called in this thread after every
    file. Where this thread is interrupted, the deletes under way are awaited and counted before it ends.
    """
    size = store.deletes_at_once
    queue = iter([files[start : start + size] for start in range(0, len(files), size)])
    if parallelism == 1:
        for batch in queue:
            outcome: Future[dict[str, Exception]] = Future()
            try:
                outcome.set_result(_delete(store, batch))
            except Exception as error:
                outcome.set_exception(error)
            _settle(deletion, batch, outcome, on_file)
            if len(deletion.failures) >= MAX_FAILURES:
                return
        return
    pending: dict[Future[dict[str, Exception]], Sequence[FileInfo]] = {}
    with ThreadPoolExecutor(parallelism, thread_name_prefix="txlog-delete") as pool:
        try:
            while True:
                # Two for each thread: none waits for this one, and little is under way when something ends it.
                while len(pending) < 2 * parallelism and len(deletion.failures) < MAX_FAILURES:
                    following = next(queue, None)
                    if following is None:
                        break
                    pending[pool.submit(_delete, store, following)] = following
                if not pending:
                    return
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    _settle(deletion, pending.pop(future), future, on_file)
        finally:
            # Cancelled is what has not begun; the rest has, and its outcome belongs in the count.
            for future in pending:
                future.cancel()
            wait(pending)
            for future, batch in pending.items():
                if not future.cancelled():
                    _settle(deletion, batch, future, None)


def _delete(store: Store, batch: Sequence[FileInfo]) -> dict[str, Exception]:
    return store.delete_many([info.path for info in batch])


def progress_log(
    store: Store,
    what: str,
    files: Sequence[FileInfo],
    deletion: Deletion,
    clock: Clock,
    on_progress: Callable[[Progress], object] | None = None,
) -> Callable[[], None]:
    """A function to call after every file: every so many files or seconds it logs and reports how far it is."""
    total_bytes = sum(info.size_bytes for info in files)
    every = store.limits.progress_files
    next_file, next_ms = every, clock.now_ms() + PROGRESS_MS

    def report() -> None:
        nonlocal next_file, next_ms
        now_ms = clock.now_ms()
        if deletion.deleted_files < next_file and now_ms < next_ms:
            return
        next_file, next_ms = deletion.deleted_files + every, now_ms + PROGRESS_MS
        progress = Progress(
            deleted_files=deletion.deleted_files,
            deleted_bytes=deletion.deleted_bytes,
            total_files=len(files),
            total_bytes=total_bytes,
        )
        log.info("%s of %s: %s", what, store.root, progress)
        if on_progress is not None:
            on_progress(progress)

    return report


def _settle(
    deletion: Deletion,
    batch: Sequence[FileInfo],
    outcome: Future[dict[str, Exception]],
    on_file: Callable[[], object] | None,
) -> None:
    """Count a batch: every file of it for which there is no error is gone."""
    error = outcome.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    failures = outcome.result() if error is None else {info.path: error for info in batch}
    for info in batch:
        if info.path in failures:
            _fail(deletion, info, failures[info.path])
        else:
            _count(deletion, info)
        if on_file is not None:
            on_file()


def _fail(deletion: Deletion, info: FileInfo, error: Exception) -> None:
    if isinstance(error, (ValueError, OutsideTable)):
        log.warning("%s was left alone: %s", info.path, error)
        deletion.refused.append(info.path)
    else:
        deletion.failures.append((info.path, error))


def _count(deletion: Deletion, info: FileInfo) -> None:
    deletion.deleted_files += 1
    deletion.deleted_bytes += info.size_bytes
