"""VACUUM: delete the files that no version inside the retention needs.

Two clocks decide. A file that the log has removed is deleted once its tombstone is past the requested retention. A file
that no action names may be one that a writer is staging right now: it is deleted once it is older than the orphan
retention, never under 24 hours. The candidates are a listing, an inventory or (lite) the removes of the log;
`vacuum_plan` applies the same rules to all. Candidates of an inventory or of the log are looked up in the store before
they are deleted.
Source: delta-spark, VacuumCommand; soundness A16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from airflow_txlog.clock import Clock
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.log.actions import Remove
from airflow_txlog.engine.log.columns import FILES, removes_to_table
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.log.paths import Visibility
from airflow_txlog.engine.many_files import PROGRESS_MS, Deletion, Progress, delete_files, look_up, progress_log
from airflow_txlog.engine.staged_changes import LONGEST_WAIT_MS, waiting_files
from airflow_txlog.engine.table.schema.features import check_maintained_here
from airflow_txlog.engine.table.schema.properties import DAY_MS, ORPHAN_RETENTION_FLOOR_MS
from airflow_txlog.engine.table.snapshot.commit_times import list_commits
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.engine.upkeep.inventory import read_inventory
from airflow_txlog.engine.upkeep.removed_files import (
    last_version_before,
    removes_before,
    removes_since,
    write_last_vacuum,
)
from airflow_txlog.engine.upkeep.vacuum_plan import (
    NamedFiles,
    VacuumMode,
    VacuumPlan,
    VacuumRequest,
    VacuumState,
    check_request,
    files_named,
    is_leftover,
    may_go,
    plan_vacuum,
)
from airflow_txlog.errors import OutsideTable
from airflow_txlog.locations import is_inside
from airflow_txlog.storage.base import FileInfo, Store, side_by_side
from airflow_txlog.storage.local import NO_SPACE

log = logging.getLogger(__name__)

# The tolerated difference between the clocks of writers and of the store.
_CLOCK_SLACK_MS = DAY_MS

_SHOWN_FOLDERS = 10
_INNER_LOG = f"/{LOG_DIRECTORY}/"

# Called with the operation, the parameters and the metrics of a commit.
Record = Callable[[str, Mapping[str, Any], Mapping[str, Any]], object]
OnProgress = Callable[[Progress], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult:
    """The files that a vacuum deleted, or would delete."""

    files: list[str]
    """URIs of the files, ordered."""
    size_bytes: int
    deleted_files: int
    """The number of deleted ones; 0 for a dry run."""
    deleted_directories: int
    dry_run: bool
    mode: VacuumMode = "full"
    through: int = -1
    """The last version whose removed files are all among `files` or gone; -1 if none is known."""


def vacuum_table(
    table: DeltaTable,
    request: VacuumRequest,
    *,
    on_progress: OnProgress | None = None,
    tags: Mapping[str, str] | None = None,
) -> VacuumResult:
    """Vacuum the latest version of the table; VACUUM START and VACUUM END become commits, which carry `tags`.

    Raises UnsupportedFeature if the table may not be written here, and the errors of `vacuum`.
    """
    check_maintained_here(table.store, "VACUUM")
    # Before the log is read: see there. A lite vacuum deletes only files that the log has named.
    waiting = [] if request.mode == "lite" else waiting_files(table.store)
    # A dry run only reads, so the table need not be writable here.
    snapshot = table.snapshot() if request.dry_run else table.begin().snapshot
    assert snapshot is not None

    def record(operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        # A commit without a file: it only records in the history what was done.
        table.begin().commit(operation, parameters, metrics, tags=tags)

    state = VacuumState.of(snapshot, waiting)
    return vacuum(
        table.store, state, request, clock=table.clock, record=record, on_progress=on_progress, latest=table.snapshot
    )


def vacuum(
    store: Store,
    state: VacuumState,
    request: VacuumRequest,
    *,
    clock: Clock,
    record: Record | None = None,
    on_progress: OnProgress | None = None,
    latest: Callable[[], Snapshot] | None = None,
) -> VacuumResult:
    """Delete the files of the table that nothing needs, and the directories that held no file.

    `record` records VACUUM START and VACUUM END; a dry run does not call it. `on_progress` is called now and then while
    files are deleted. `latest` returns the latest version; a file that it needs stays, though `state` did not need it.
    Nothing outside the table is deleted, and nothing through a symlink. Up to 20 deletes may fail without stopping the
    others; then END is recorded as FAILED, with the files that are gone. On a full disk files are deleted although
    START cannot be recorded. A dry run writes nothing, and uses this machine's clock.

    Raises the errors of `check_request`; CannotVacuumLite; the first error of a delete.
    """
    check_request(store.root, request, state)
    run = _Run(store, state, request, clock)
    plan, through = run.lite_plan() if request.mode == "lite" else run.full_plan()
    log.info(
        "vacuum of %s (%s): %d files to delete, %.1f MiB",
        store.root, request.mode, len(plan.files), plan.size_bytes / 2**20,
    )  # fmt: skip
    deletion, directories = Deletion(), 0
    if not request.dry_run:
        directories = run.delete(plan, deletion, record or (lambda *_: None), on_progress, latest)
        # An erasure drops them also where it has no file to delete.
        if request.mode == "full" and request.inventory is None and request.only is None:
            run.drop_uploads()
        with _going_on_without_room(store.root, "how far this vacuum went"):
            write_last_vacuum(store, through)
    return VacuumResult(
        files=[f"{store.root}/{info.path}" for info in plan.files],
        size_bytes=plan.size_bytes,
        deleted_files=deletion.deleted_files,
        deleted_directories=directories,
        dry_run=request.dry_run,
        mode=request.mode,
        through=through,
    )


class _Run:
    """One vacuum: the table, the request, and the moments before which files are deleted."""

    def __init__(self, store: Store, state: VacuumState, request: VacuumRequest, clock: Clock) -> None:
        self.store, self.state, self.request, self.clock = store, state, request, clock
        retention = state.retention_ms if request.retention_ms is None else request.retention_ms
        # A dry run must not write, and a local store writes a file to read its clock.
        self.now_ms = clock.now_ms() if request.dry_run else store.now_ms()
        # Writers' clocks stamp tombstones, and the store's clock stamps files: use the slower of our clock and the
        # store's. A retention of 0 allows for slack: a file's time lags by a tick, and a writer's clock may be ahead.
        slower_ms = min(self.now_ms, clock.now_ms())
        self.delete_before_ms = self.now_ms + _CLOCK_SLACK_MS if retention == 0 else slower_ms - retention
        self.orphan_before_ms = self.now_ms - max(retention, request.orphan_retention_ms, ORPHAN_RETENTION_FLOOR_MS)
        if request.only is not None:
            self.orphan_before_ms = self._orphans_erased_before(request.orphan_retention_ms)
        self.visibility = Visibility(state.partition_columns, has_iceberg=state.has_iceberg)
        # The folders of other tables below this one, each with its slash.
        self._inside: tuple[str, ...] = ()

    def _orphans_erased_before(self, orphan_retention_ms: int) -> int:
        """Return the moment before which orphans that an erasure names were written: none in a shared folder."""
        if self.state.shares_folder:
            return 0
        return self.now_ms - orphan_retention_ms if orphan_retention_ms else self.now_ms + _CLOCK_SLACK_MS

    def _is_candidate(self, path: str) -> bool:
        only = self.request.only
        return self.visibility.is_visible(path) or is_leftover(path) if only is None else path in only

    # --- the candidates ---------------------------------------------------------------------------------------------
    # A checkpoint drops the tombstones that are past the table's retention, so two cases need the commits themselves. A
    # file that was removed after `delete_before_ms` must stay, if the requested retention is longer than the table's.
    # And a young file that no action of the state names need not be one being staged: it may have been committed and
    # removed again, or hold change rows. Then the requested retention applies, or "forget this person now" would wait
    # for a week.

    def full_plan(self) -> tuple[VacuumPlan, int]:
        """Return the plan for the files of a listing or an inventory, and the last version that it covers (or -1)."""
        store, inventory = self.store, self.request.inventory
        unreadable: list[str] = []
        if inventory is None:
            # Directories first: those that a writer makes from here on are not on the list.
            directories = store.list_directories()
            listed = list(self._walked(unreadable))
        else:
            found = read_inventory(inventory, store.root, store.access)
            directories, listed = found.directories, found.files
            log.info(
                "vacuum of %s: the inventory names %d files, and %d rows outside of the table, which are left alone",
                store.root, len(listed), found.outside,
            )  # fmt: skip
        is_visible = self.visibility.is_visible
        files = [info for info in listed if self._is_candidate(info.path)]
        named = files_named(self.state.live, self.state.tombstones, store.root, self.delete_before_ms)
        since_ms = min(self._unclear_since(files, named), self._forgotten_since())
        if since_ms < self.now_ms:
            named = self._named(removes_since(store, since_ms))
        folders = [path for path in unreadable if is_visible(path)]
        if folders:
            self._warn_of_unreadable(folders)
            # Deleting a removed file in such a folder succeeds, or fails by name. Everything else stays: the folder may
            # be the private one in which another user's job keeps its work.
            beginnings = tuple(f"{path}/" for path in folders)
            removed = (path for path in named.expired if path.startswith(beginnings))
            files += [self._unlisted(path) for path in removed if self._is_candidate(path)]
        occupied = [info.path for info in listed]
        self._keep_staged(named)
        # A log that this user cannot list is a log too, and an inventory may have left out all that is no data file.
        logs = [f"{path}/" for path in unreadable] if inventory is None else self._logs_above(files, named)
        files = self._without_inner_tables(files, [*occupied, *logs], named)
        plan = plan_vacuum(files, named, self.orphan_before_ms, filter(is_visible, directories), occupied)
        if self.request.only is not None:
            # Other removed files stay.
            return replace(plan, directories=[]), -1
        if inventory is not None:
            return self._looked_up(plan, named), -1
        # A remove that a writer with a fast clock stamped later than its commit waits for the next full vacuum.
        before_ms = self.delete_before_ms - _CLOCK_SLACK_MS
        return plan, last_version_before(list_commits(store), self.state.version, before_ms)

    def _keep_staged(self, named: NamedFiles) -> None:
        """Keep the files of changes that wait for a later job; all that are young enough, if some are unknown."""
        kept: set[str] = set()
        for waiting in self.state.waiting:
            if self.now_ms >= waiting.until_ms:
                continue
            if waiting.paths is None:
                self.orphan_before_ms = min(self.orphan_before_ms, self.now_ms - LONGEST_WAIT_MS)
            elif named.needed.isdisjoint(waiting.paths) and named.expired.isdisjoint(waiting.paths):
                kept |= waiting.paths
            # Else it is published, and its publisher was killed before it deleted the document.
        named.needed |= kept

    def _without_inner_tables(self, files: list[FileInfo], listed: Iterable[str], named: NamedFiles) -> list[FileInfo]:
        """Return the files without those of other tables in folders of this one, which only their own logs name."""
        beginnings = {path.partition(_INNER_LOG)[0] + "/" for path in listed if _INNER_LOG in path}
        if not beginnings:
            return files
        tables = sorted(beginnings)
        log.warning(
            "vacuum of %s: the files of other tables below it are left alone: %s",
            self.store.root, ", ".join(tables[:_SHOWN_FOLDERS]),
        )  # fmt: skip
        self._inside = tuple(tables)
        return [info for info in files if info.path in named.expired or not info.path.startswith(self._inside)]

    def _logs_above(self, files: Iterable[FileInfo], named: NamedFiles) -> list[str]:
        """Return a file of each log in the folders, at any height inside the table, of files that count as orphans."""
        folders: set[str] = set()
        for info in files:
            path = info.path
            if path in named.expired or not may_go(info, named, self.orphan_before_ms):
                continue
            while (path := path.rpartition("/")[0]) and path not in folders:
                folders.add(path)

        def logged(folder: str) -> str | None:
            try:
                found = self.store.list(f"{folder}/{LOG_DIRECTORY}")
            except PermissionError:
                return f"{folder}{_INNER_LOG}"
            except (ValueError, OutsideTable):
                return None  # nothing behind a link is deleted
            return found[0].path if found else None

        return [path for path in side_by_side(logged, sorted(folders)) if path is not None]

    def lite_plan(self) -> tuple[VacuumPlan, int]:
        """Return the plan for the files removed in the log since the last vacuum, and the last version it covers."""
        root = self.store.root
        found = removes_before(self.store, self.state.version, self.delete_before_ms)
        since_ms = self._forgotten_since()
        forgotten = removes_since(self.store, since_ms) if since_ms < self.now_ms else []
        named = self._named([*found.removes, *forgotten])
        removed = files_named(FILES.empty_table(), removes_to_table(found.removes), root, self.delete_before_ms).expired
        # A path of the log may lead anywhere; only those that a listing of the table would show are looked up.
        proposed = [self._unlisted(path) for path in removed if is_inside(path) and self.visibility.is_visible(path)]
        return self._looked_up(plan_vacuum(proposed, named, self.orphan_before_ms), named), found.through

    def _named(self, removes: Sequence[Remove]) -> NamedFiles:
        tombstones = pa.concat_tables([self.state.tombstones, removes_to_table(removes)])
        return files_named(self.state.live, tombstones, self.store.root, self.delete_before_ms)

    def _looked_up(self, plan: VacuumPlan, named: NamedFiles) -> VacuumPlan:
        """Return the plan without files that the store shows to be gone already, or younger than listed.

        A removed file that this user may not stat stays in the plan: deleting it fails by name.
        """
        unreadable: list[str] = []
        paths = [info.path for info in plan.files]
        parallelism = self.request.parallelism
        looked = look_up(self.store, paths, parallelism, skip_outside=True, on_unreadable=unreadable.append)
        found = [info for info in looked if info is not None]
        if unreadable:
            self._warn_of_unreadable({path.rpartition("/")[0] for path in unreadable})
            found += map(self._unlisted, sorted(unreadable))
        return replace(plan, files=[info for info in found if may_go(info, named, self.orphan_before_ms)])

    def _unlisted(self, path: str) -> FileInfo:
        """Return a removed file that no listing has shown: its size is unknown, and it never counts as an orphan."""
        return FileInfo(path=path, size_bytes=0, modified_ms=self.now_ms)

    def _walked(self, unreadable: list[str]) -> Iterator[FileInfo]:
        """Yield every file under the root, and log the progress; folders that cannot be read go to `unreadable`."""
        table, next_ms = self.store.root, self.clock.now_ms() + PROGRESS_MS
        number = 0
        for number, info in enumerate(self.store.walk(unreadable.append), start=1):
            yield info
            if number % 1000 == 0 and self.clock.now_ms() >= next_ms:
                next_ms = self.clock.now_ms() + PROGRESS_MS
                log.info("vacuum of %s: %d files listed so far", table, number)
        log.info("vacuum of %s: %d files listed", table, number)

    def _warn_of_unreadable(self, folders: Collection[str]) -> None:
        log.warning(
            "vacuum of %s: this user cannot list %d folders; what no commit has removed from them is left alone: %s",
            self.store.root, len(folders), ", ".join(sorted(folders)[:_SHOWN_FOLDERS]),
        )  # fmt: skip

    def _unclear_since(self, files: Iterable[FileInfo], named: NamedFiles) -> int:
        """Return the time of the oldest file that no action of the state names and that is no orphan; else `now_ms`."""
        known = (named.needed, named.expired)
        young = (info for info in files if info.modified_ms >= self.orphan_before_ms)
        unclear = (info.modified_ms for info in young if not any(info.path in paths for paths in known))
        return min(unclear, default=self.now_ms)

    def _forgotten_since(self) -> int:
        """Return the moment from which dropped tombstones count; `now_ms` if none does."""
        asked_ms = self.request.retention_ms
        if asked_ms is None or asked_ms <= self.state.retention_ms:
            return self.now_ms
        return self.delete_before_ms - _CLOCK_SLACK_MS

    # --- deleting ---------------------------------------------------------------------------------------------------

    def delete(
        self,
        plan: VacuumPlan,
        deletion: Deletion,
        record: Record,
        on_progress: OnProgress | None,
        latest: Callable[[], Snapshot] | None,
    ) -> int:
        """Delete the files of the plan, counted into `deletion`, between two records; return how many folders went."""
        store, request, directories, known = self.store, self.request, 0, self.state.version
        parameters: dict[str, Any] = {
            "retentionCheckEnabled": request.check_retention,
            "defaultRetentionMillis": self.state.retention_ms,
        }
        if request.retention_ms is not None:
            parameters["specifiedRetentionMillis"] = request.retention_ms
        with _going_on_without_room(store.root, "VACUUM START"):
            metrics = {"numFilesToDelete": len(plan.files), "sizeOfDataToDelete": plan.size_bytes}
            record("VACUUM START", parameters, metrics)
            known += 1

        def end(status: str) -> None:
            metrics = {"numDeletedFiles": deletion.deleted_files, "numVacuumedDirectories": directories}
            record("VACUUM END", {"status": status}, metrics)

        # A restore that reads the log from here on finds START, and one that came before is in the log.
        files = plan.files if latest is None else self._still_unneeded(plan.files, known, latest())
        report = progress_log(store, "vacuum", files, deletion, self.clock, on_progress)
        try:
            delete_files(store, files, deletion, parallelism=request.parallelism, on_batch=report)
            deletion.check()
            for directory in plan.directories:
                # A directory of an inventory may be a file, or lie behind a symlink.
                with suppress(ValueError, OutsideTable, NotADirectoryError):
                    directories += store.delete_empty_directory(directory)
        except BaseException:
            # The caller must see why deleting failed, even if that cannot be recorded either.
            with suppress(Exception):
                end("FAILED")
            raise
        with _going_on_without_room(store.root, "VACUUM END"):
            end("COMPLETED")
        return directories

    def _still_unneeded(self, files: list[FileInfo], known: int, latest: Snapshot) -> list[FileInfo]:
        """Return the files without those that a commit after version `known` has brought back."""
        if latest.version <= known:
            return files
        named = files_named(latest.state.live, self.state.tombstones.slice(0, 0), self.store.root, 0)
        named.expired.update(info.path for info in files)
        return [info for info in files if may_go(info, named, self.orphan_before_ms)]

    def drop_uploads(self) -> None:
        def say(level: int, line: str) -> None:
            log.log(level, "vacuum of %s: %s", self.store.root, line)

        drop_uploads(self.store, self.orphan_before_ms, self._inside, say)


def drop_uploads(
    store: Store,
    before_ms: int,
    others: tuple[str, ...],
    say: Callable[[int, str], object],
    text_of: Callable[[OSError], str] = str,
) -> None:
    """Drop the unfinished uploads of killed writers. `say` logs a line at a level of `logging`.

    An error is logged and not raised, because no reader sees these files. `text_of` returns the text to log for it.
    """
    try:
        count = store.abort_unfinished(before_ms, others)
    except OSError as error:
        say(logging.WARNING, f"some unfinished uploads, which no listing shows, were left alone: {text_of(error)}")
    else:
        if count:
            say(logging.INFO, f"{count} unfinished uploads of killed writers were dropped")


@contextmanager
def _going_on_without_room(table: str, what: str) -> Iterator[None]:
    """Log an error of a full disk: a vacuum makes room, so it must delete even if it cannot record."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        log.warning("vacuum of %s: %s was not recorded, the disk is full: %s", table, what, error)
