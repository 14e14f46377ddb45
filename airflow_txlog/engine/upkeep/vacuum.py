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
from airflow_txlog.engine.log.columns import removes_to_table
from airflow_txlog.engine.log.paths import Visibility
from airflow_txlog.engine.many_files import PROGRESS_MS, Deletion, Progress, delete_files, look_up, progress_log
from airflow_txlog.engine.table.schema.properties import DAY_MS, ORPHAN_RETENTION_FLOOR_MS
from airflow_txlog.engine.table.snapshot.commit_times import list_commits
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
from airflow_txlog.storage.base import FileInfo, Store
from airflow_txlog.storage.local import NO_SPACE

log = logging.getLogger(__name__)

# The tolerated difference between the clocks of writers and of the store.
_CLOCK_SLACK_MS = DAY_MS

_SHOWN_FOLDERS = 10

# Called with the parameters and the metrics of a commit.
Callback = Callable[[Mapping[str, Any], Mapping[str, Any]], object]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """The moments before which files are deleted, in milliseconds since the epoch."""

    now_ms: int
    delete_before_ms: int
    orphan_before_ms: int


def vacuum(
    store: Store,
    state: VacuumState,
    request: VacuumRequest,
    *,
    clock: Clock,
    on_start: Callback | None = None,
    on_end: Callback | None = None,
    on_progress: OnProgress | None = None,
) -> VacuumResult:
    """Delete the files of the table that nothing needs, and the directories that held no file.

    `on_start` and `on_end` record VACUUM START and VACUUM END; a dry run calls neither. `on_progress` is called now and
    then while files are deleted. Nothing outside the table is deleted, and nothing through a symlink. Up to 20 deletes
    may fail without stopping the others; then END is recorded as FAILED, with the files that are gone. On a full disk
    files are deleted although START cannot be recorded. A dry run writes nothing, and uses this machine's clock.

    Raises the errors of `check_request`; CannotVacuumLite; the first error of a delete.
    """
    check_request(store.root, request, state)
    times = _times(store, state, request, clock)
    if request.mode == "lite":
        plan, through = _lite_plan(store, state, request, times)
    else:
        plan = _full_plan(store, state, request, times, clock)
        through = -1
        if not request.dry_run and request.inventory is None:
            # A remove that a writer with a fast clock stamped later than its commit waits for the next full vacuum.
            through = last_version_before(list_commits(store), state.version, times.delete_before_ms - _CLOCK_SLACK_MS)
    log.info(
        "vacuum of %s (%s): %d files to delete, %.1f MiB",
        store.root, request.mode, len(plan.files), plan.size_bytes / 2**20,
    )  # fmt: skip
    deletion, directories = Deletion(), 0
    if not request.dry_run:
        if on_start is not None:
            asked = {} if request.retention_ms is None else {"specifiedRetentionMillis": request.retention_ms}
            parameters = {
                "retentionCheckEnabled": request.check_retention,
                "defaultRetentionMillis": state.retention_ms,
                **asked,
            }
            metrics = {"numFilesToDelete": len(plan.files), "sizeOfDataToDelete": plan.size_bytes}
            with _going_on_without_room(store.root, "VACUUM START"):
                on_start(parameters, metrics)
        directories = _delete(store, plan, request, deletion, clock, on_end, on_progress)
        if request.mode == "full" and request.inventory is None:
            _abort_unfinished(store, times)
        with _going_on_without_room(store.root, "how far this vacuum went"):
            write_last_vacuum(store, through)
    return VacuumResult(
        files=[f"{store.root}/{info.path}" for info in plan.files],
        size_bytes=plan.size_bytes,
        deleted_files=deletion.deleted_files,
        deleted_directories=directories,
        dry_run=request.dry_run,
        mode=request.mode,
    )


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
    # A dry run only reads, so the table need not be writable here.
    snapshot = table.snapshot() if request.dry_run else table.begin().snapshot
    assert snapshot is not None
    return vacuum(
        table.store,
        VacuumState.of(snapshot),
        request,
        clock=table.clock,
        on_progress=on_progress,
        # Commits without a file: they only record in the history what was done.
        on_start=lambda parameters, metrics: table.begin().commit("VACUUM START", parameters, metrics, tags=tags),
        on_end=lambda parameters, metrics: table.begin().commit("VACUUM END", parameters, metrics, tags=tags),
    )


def _abort_unfinished(store: Store, times: _Times) -> None:
    """Drop the unfinished uploads of killed writers. A refused delete is no failure: no reader sees these files."""
    try:
        aborted = store.abort_unfinished(times.orphan_before_ms)
    except OSError as error:
        log.warning("vacuum of %s: unfinished uploads were left alone: %s", store.root, error)
    else:
        if aborted:
            log.info("vacuum of %s: %d unfinished uploads were dropped", store.root, aborted)


def _times(store: Store, state: VacuumState, request: VacuumRequest, clock: Clock) -> _Times:
    retention = state.retention_ms if request.retention_ms is None else request.retention_ms
    # A dry run must not write, and a local store writes a file to read its clock.
    now_ms = clock.now_ms() if request.dry_run else store.now_ms()
    # Writers' clocks stamp tombstones, and the store's clock stamps files: use the slower of our clock and the store's.
    # A retention of 0 allows for slack: a file's time lags by a tick, and a writer's clock may be ahead.
    delete_before_ms = now_ms + _CLOCK_SLACK_MS if retention == 0 else min(now_ms, clock.now_ms()) - retention
    return _Times(
        now_ms=now_ms,
        delete_before_ms=delete_before_ms,
        orphan_before_ms=now_ms - max(retention, request.orphan_retention_ms, ORPHAN_RETENTION_FLOOR_MS),
    )


# --- the candidates -------------------------------------------------------------------------------------------------
# A checkpoint drops the tombstones that are past the table's retention, so two cases need the commits themselves. A
# file that was removed after `delete_before` must stay, if the requested retention is longer than the table's. And a
# young file that no action of the state names need not be one being staged: it may have been committed and removed
# again, or hold change rows. Then the requested retention applies, or "forget this person now" would wait for a week.


def _full_plan(store: Store, state: VacuumState, request: VacuumRequest, times: _Times, clock: Clock) -> VacuumPlan:
    visibility = Visibility(state.partition_columns, has_iceberg=state.has_iceberg)
    unreadable: list[str] = []
    if request.inventory is None:
        # Directories first: those that a writer makes from here on are not on the list.
        directories = store.list_directories()
        listed = list(_walked(store, clock, unreadable))
    else:
        inventory = read_inventory(request.inventory, store.root, store.access)
        directories, listed = inventory.directories, inventory.files
        log.info(
            "vacuum of %s: the inventory names %d files, and %d rows outside of the table, which are left alone",
            store.root, len(listed), inventory.outside,
        )  # fmt: skip
    directories = [path for path in directories if visibility.is_visible(path)]
    unreadable = [path for path in unreadable if visibility.is_visible(path)]
    visible = [info for info in listed if visibility.is_visible(info.path) or is_leftover(info.path)]
    named = files_named(state.live, state.tombstones, store.root, times.delete_before_ms)
    since_ms = min(_unclear_since(visible, named, times), _forgotten_since(state, request, times))
    if since_ms < times.now_ms:
        named = _named(store, state, times, removes_since(store, since_ms))
    if unreadable:
        visible += _removed_in_unreadable(store.root, unreadable, named, times)
    plan = plan_vacuum(visible, named, times.orphan_before_ms, directories, [info.path for info in listed])
    return plan if request.inventory is None else _looked_up(store, plan, named, times, request.parallelism)


def _lite_plan(store: Store, state: VacuumState, request: VacuumRequest, times: _Times) -> tuple[VacuumPlan, int]:
    """Return the plan for the files removed in the log since the last vacuum, and the last version that it covers."""
    found = removes_before(store, state.version, times.delete_before_ms)
    forgotten: list[Remove] = []
    since_ms = _forgotten_since(state, request, times)
    if since_ms < times.now_ms:
        forgotten = removes_since(store, since_ms)
    named = _named(store, state, times, [*found.removes, *forgotten])
    candidates = files_named(
        state.live.slice(0, 0), removes_to_table(found.removes), store.root, times.delete_before_ms
    ).expired
    visibility = Visibility(state.partition_columns, has_iceberg=state.has_iceberg)
    # A path of the log may lead anywhere; only those that a listing of the table would show are looked up.
    proposed = [
        FileInfo(path=path, size_bytes=0, modified_ms=times.now_ms)
        for path in sorted(candidates)
        if is_inside(path) and visibility.is_visible(path)
    ]
    plan = plan_vacuum(proposed, named, times.orphan_before_ms)
    return _looked_up(store, plan, named, times, request.parallelism), found.through


def _named(store: Store, state: VacuumState, times: _Times, removes: Sequence[Remove]) -> NamedFiles:
    tombstones = pa.concat_tables([state.tombstones, removes_to_table(removes)])
    return files_named(state.live, tombstones, store.root, times.delete_before_ms)


def _looked_up(store: Store, plan: VacuumPlan, named: NamedFiles, times: _Times, parallelism: int) -> VacuumPlan:
    """Return the plan without files that the store shows to be gone already, or younger than listed.

    A removed file that this user may not stat stays in the plan: deleting it fails by name.
    """
    unreadable: list[str] = []
    paths = [info.path for info in plan.files]
    looked = look_up(store, paths, parallelism, skip_outside=True, on_unreadable=unreadable.append)
    found = [info for info in looked if info is not None]
    if unreadable:
        _warn_of_unreadable(store.root, {path.rpartition("/")[0] for path in unreadable})
        found += [FileInfo(path=path, size_bytes=0, modified_ms=times.now_ms) for path in sorted(unreadable)]
    return replace(plan, files=[info for info in found if may_go(info, named, times.orphan_before_ms)])


def _walked(store: Store, clock: Clock, unreadable: list[str]) -> Iterator[FileInfo]:
    """Yield every file under the root, and log the progress; directories that cannot be read go to `unreadable`."""
    next_ms = clock.now_ms() + PROGRESS_MS
    number = 0
    for number, info in enumerate(store.walk(unreadable.append), start=1):
        yield info
        if number % 1000 == 0 and clock.now_ms() >= next_ms:
            next_ms = clock.now_ms() + PROGRESS_MS
            log.info("vacuum of %s: %d files listed so far", store.root, number)
    log.info("vacuum of %s: %d files listed", store.root, number)


def _removed_in_unreadable(table: str, unreadable: Sequence[str], named: NamedFiles, times: _Times) -> list[FileInfo]:
    """Return the files that the log has removed from folders that could not be listed, and log those folders.

    Deleting such a file succeeds, or fails by name. Everything else in the folder stays: it may be the private folder
    in which another user's job keeps its work.
    """
    _warn_of_unreadable(table, unreadable)
    folders = tuple(f"{path}/" for path in unreadable)
    return [
        FileInfo(path=path, size_bytes=0, modified_ms=times.now_ms)
        for path in named.expired
        if path.startswith(folders)
    ]


def _warn_of_unreadable(table: str, folders: Collection[str]) -> None:
    log.warning(
        "vacuum of %s: this user cannot list %d folders; what no commit has removed from them is left alone: %s",
        table, len(folders), ", ".join(sorted(folders)[:_SHOWN_FOLDERS]),
    )  # fmt: skip


def _unclear_since(files: Iterable[FileInfo], named: NamedFiles, times: _Times) -> int:
    """Return the time of the oldest file that no action of the state names and that is no orphan; else `now_ms`."""
    return min(
        (
            info.modified_ms
            for info in files
            if info.modified_ms >= times.orphan_before_ms
            and info.path not in named.needed
            and info.path not in named.expired
        ),
        default=times.now_ms,
    )


def _forgotten_since(state: VacuumState, request: VacuumRequest, times: _Times) -> int:
    """Return the moment from which dropped tombstones count; `now_ms` if none does."""
    if request.retention_ms is None or request.retention_ms <= state.retention_ms:
        return times.now_ms
    return times.delete_before_ms - _CLOCK_SLACK_MS


# --- deleting -------------------------------------------------------------------------------------------------------


def _delete(
    store: Store,
    plan: VacuumPlan,
    request: VacuumRequest,
    deletion: Deletion,
    clock: Clock,
    on_end: Callback | None,
    on_progress: OnProgress | None,
) -> int:
    """Delete the files of the plan, counted into `deletion`, and record the end. Return the number of directories."""
    directories = 0

    def record(status: str) -> None:
        if on_end is not None:
            metrics = {"numDeletedFiles": deletion.deleted_files, "numVacuumedDirectories": directories}
            on_end({"status": status}, metrics)

    report = progress_log(store, "vacuum", plan.files, deletion, clock, on_progress)
    try:
        delete_files(store, plan.files, deletion, parallelism=request.parallelism, on_batch=report)
        deletion.check()
        for directory in plan.directories:
            directories += _delete_directory(store, directory)
    except BaseException:
        # The caller must see why deleting failed, even if that cannot be recorded either.
        with suppress(Exception):
            record("FAILED")
        raise
    with _going_on_without_room(store.root, "VACUUM END"):
        record("COMPLETED")
    return directories


@contextmanager
def _going_on_without_room(table: str, what: str) -> Iterator[None]:
    """Log an error of a full disk: a vacuum makes room, so it must delete even if it cannot record."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        log.warning("vacuum of %s: %s was not recorded, the disk is full: %s", table, what, error)


def _delete_directory(store: Store, path: str) -> bool:
    try:
        return store.delete_empty_directory(path)
    except (ValueError, OutsideTable, NotADirectoryError):
        # A directory of an inventory may be a file, or lie behind a symlink.
        return False
