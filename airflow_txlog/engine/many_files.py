"""Many files at once: look them up, or delete them, in parallel and bounded.

Callers decide which files to delete. A file that cannot be deleted does not stop the others, up to a number of failures
that shows that the store refuses altogether. However a deletion ends, it counts exactly the files that are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from airflow_txlog.clock import Clock
from airflow_txlog.errors import OutsideTable
from airflow_txlog.storage.base import FileInfo, Store

log = logging.getLogger(__name__)

PARALLELISM = 8
"""The usual number of deletes at once: an object store answers each in some 50 ms."""
MAX_FAILURES = 20
PROGRESS_MS = 30_000
# Files that one thread looks up in a row: otherwise the pool's own work for each would take most of the time.
_MOST_AT_ONCE = 64


def look_up(
    store: Store,
    paths: Sequence[str],
    parallelism: int,
    *,
    skip_outside: bool = False,
    on_unreadable: Callable[[str], object] | None = None,
) -> list[FileInfo | None]:
    """Return the file at each path, in their order; None if there is none, or the path cannot be one.

    `skip_outside`: None also for OutsideTable. `on_unreadable` gets paths in folders that this user may not enter.
    """
    refused = (ValueError, OutsideTable) if skip_outside else ValueError

    def look(path: str) -> FileInfo | None:
        try:
            return store.stat(path)
        except refused:
            return None
        except PermissionError:
            if on_unreadable is None:
                raise
            on_unreadable(path)
            return None

    size = max(1, min(_MOST_AT_ONCE, len(paths) // (4 * parallelism)))
    slices = [paths[start : start + size] for start in range(0, len(paths), size)]
    with ThreadPoolExecutor(parallelism, thread_name_prefix="txlog-stat") as pool:
        return [info for some in pool.map(lambda some: list(map(look, some)), slices) for info in some]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a deletion."""

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
    """The files that a deletion has deleted, and those that it could not delete. Only one thread changes it."""

    deleted_files: int = 0
    deleted_bytes: int = 0
    failures: list[tuple[str, Exception]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Paths that the store does not accept for a file of the table, such as one that leads through a symlink."""

    def check(self) -> None:
        """Raise the first failure as the store raised it, with a note of their number."""
        if self.failures:
            path, error = self.failures[0]
            error.add_note(
                f"{path} could not be deleted ({len(self.failures)} files could not); {self.deleted_files} were."
            )
            raise error

    def settle(self, batch: Sequence[FileInfo], failures: Mapping[str, Exception]) -> None:
        """Count a batch, of which the files without a failure are gone."""
        for info in batch:
            failure = failures.get(info.path)
            if failure is None:
                self.deleted_files += 1
                self.deleted_bytes += info.size_bytes
            elif isinstance(failure, ValueError | OutsideTable):
                log.warning("%s was left alone: %s", info.path, failure)
                self.refused.append(info.path)
            else:
                self.failures.append((info.path, failure))


def delete_files(
    store: Store,
    files: Sequence[FileInfo],
    deletion: Deletion,
    *,
    parallelism: int = PARALLELISM,
    on_batch: Callable[[], object] | None = None,
) -> None:
    """Delete the files, started in their order, `parallelism` at a time, and count into `deletion`.

    Failures are gathered; after MAX_FAILURES no further delete begins. `on_batch` is called in this thread after every
    batch (`Store.deletes_at_once` files). If this thread is interrupted, the deletes under way are awaited and counted
    before it ends.
    """
    size = store.deletes_at_once
    queue = iter([files[start : start + size] for start in range(0, len(files), size)])

    def settle(batch: Sequence[FileInfo], failures: Mapping[str, Exception]) -> None:
        deletion.settle(batch, failures)
        if on_batch is not None:
            on_batch()

    if parallelism == 1 or len(files) <= size:
        for batch in queue:
            settle(batch, _delete(store, batch))
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
                    settle(pending.pop(future), future.result())
        finally:
            # Only deletes that have not begun are cancelled; the others' outcome belongs in the count.
            for future in pending:
                future.cancel()
            wait(pending)
            for future, batch in pending.items():
                if not future.cancelled():
                    deletion.settle(batch, future.result())


def _delete(store: Store, batch: Sequence[FileInfo]) -> dict[str, Exception]:
    try:
        return store.delete_many([info.path for info in batch])
    except Exception as error:
        return {info.path: error for info in batch}


def progress_log(
    store: Store,
    what: str,
    files: Sequence[FileInfo],
    deletion: Deletion,
    clock: Clock,
    on_progress: Callable[[Progress], object] | None = None,
) -> Callable[[], None]:
    """Return a function that logs and reports the progress at intervals of files and seconds."""
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
