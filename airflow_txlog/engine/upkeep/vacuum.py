"""VACUUM: delete what no version inside the retention needs.

Two clocks decide. A file that the log has removed goes once its tombstone is past the asked retention. A file that no
action names may be one that a writer is staging right now, and goes only once it is older than the orphan retention,
never under 24 hours, whatever is asked. This module finds the candidates, by a listing, an inventory or (lite) the
removes of the log; which of them go is decided in `vacuum_plan`, by the same rules for all three. What an inventory
or the log proposes is looked up in the store before it is deleted.
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
from airflow_txlog.engine.log.actions import Remove
from airflow_txlog.engine.log.columns import removes_to_table
from airflow_txlog.engine.log.paths import Visibility
from airflow_txlog.engine.many_files import (
    PROGRESS_MS,
    Deletion,
    Progress,
    delete_files,
    look_up,
    progress_log,
)
from airflow_txlog.engine.table.snapshot.commit_times import list_commits
from airflow_txlog.engine.upkeep.inventory import read_inventory
from airflow_txlog.engine.upkeep.removed_files import (
    last_version_before,
    removes_before,
    removes_since,
    write_last_vacuum,
)
from airflow_txlog.engine.upkeep.vacuum_plan import (
    HOUR_MS,
    ORPHAN_RETENTION_FLOOR_MS,
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

# How far the clocks of writers and of the store may be apart before a commit's age is misjudged.
_CLOCK_SLACK_MS = 24 * HOUR_MS

_SHOWN_FOLDERS = 10

# Called with the parameters and the metrics of the commit that the history will show.
Callback = Callable[[Mapping[str, Any], Mapping[str, Any]], object]
OnProgress = Callable[[Progress], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult:
    """What a vacuum deleted, or would delete."""

    files: list[str]
    """URIs of the files, ordered."""
    size_bytes: int
    deleted_files: int
    """How many of them are gone; 0 for a dry run."""
    deleted_directories: int
    dry_run: bool
    mode: VacuumMode = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """The moments before which files go, in milliseconds since the epoch."""

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
    then while files are deleted. Nothing outside the table is deleted, and nothing through a symlink. A delete that
    fails does not stop the others (up to 20 of them): then END is recorded as FAILED, with what is gone. On a full disk
    files are deleted although START cannot be recorded. A dry run writes nothing, and goes by this machine's clock.

    Raises what `check_request` raises; CannotVacuumLite; whatever the store raised at the first delete that failed.
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
    if request.dry_run:
        return _result(store, plan, request, deleted_files=0, deleted_directories=0)
    if on_start is not None:
        metrics = {"numFilesToDelete": len(plan.files), "sizeOfDataToDelete": plan.size_bytes}
        with _going_on_without_room(store.root, "VACUUM START"):
            on_start(_parameters(state, request), metrics)
    deletion = Deletion()
    directories = _delete(store, plan, request, deletion, clock, on_end, on_progress)
    if request.mode == "full" and request.inventory is None:
        _abort_unfinished(store, times)
    with _going_on_without_room(store.root, "how far this vacuum went"):
        write_last_vacuum(store, through)
    return _result(store, plan, request, deleted_files=deletion.deleted_files, deleted_directories=directories)


def _abort_unfinished(store: Store, times: _Times) -> None:
    """Drop what killed writers began in parts. Not being allowed to is no failure: no reader sees it."""
    try:
        aborted = store.abort_unfinished(times.orphan_before_ms)
    except OSError as error:
        log.warning("vacuum of %s: unfinished uploads were left alone: %s", store.root, error)
    else:
        if aborted:
            log.info("vacuum of %s: %d unfinished uploads were dropped", store.root, aborted)


def _times(store: Store, state: VacuumState, request: VacuumRequest, clock: Clock) -> _Times:
    retention = state.retention_ms if request.retention_ms is None else request.retention_ms
    # A dry run may not write, as the question for a local store's time does.
    now_ms = clock.now_ms() if request.dry_run else store.now_ms()
    # Tombstones were stamped by writers' clocks, files by the store's: of ours and the store's the slower counts. Where
    # nothing is to be kept no clock decides: a file's time lags by a tick, and a writer's clock may be ahead.
    delete_before_ms = now_ms + _CLOCK_SLACK_MS if retention == 0 else min(now_ms, clock.now_ms()) - retention
    return _Times(
        now_ms=now_ms,
        delete_before_ms=delete_before_ms,
        orphan_before_ms=now_ms - max(retention, request.orphan_retention_ms, ORPHAN_RETENTION_FLOOR_MS),
    )


# --- where candidates come from -------------------------------------------------------------------------------------
# A checkpoint drops the tombstones that are past the table's retention. Two questions then need the commits themselves:
# a file removed after `delete_before` although the table's retention is shorter than the asked one, which must stay;
# and a young file that no action of the state names: either it is being staged, or it was committed and removed again
# (or holds change rows), and then the asked retention rules it, or "forget this person now" would wait for a week.


def _full_plan(store: Store, state: VacuumState, request: VacuumRequest, times: _Times, clock: Clock) -> VacuumPlan:
    visibility = Visibility(state.partition_columns, has_iceberg=state.has_iceberg)
    unreadable: list[str] = []
    if request.inventory is None:
        # Directories first: what a writer makes from here on is not on the list.
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
    """What the log removed since the last vacuum, and the version through which it was gone through."""
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
    # By its letters a path of the log may lead anywhere; only what a listing of the table would show is looked at.
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
    """The plan with what the store itself says of each file: gone already, younger than listed, or to be deleted.

    A file that the log has removed and that this user may not look at stays in the plan: deleting it fails by name.
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
    """Every file under the root; how far the listing is, is logged now and then.

    Directories that this user may not read are added to `unreadable`.
    """
    next_ms = clock.now_ms() + PROGRESS_MS
    number = 0
    for number, info in enumerate(store.walk(unreadable.append), start=1):
        yield info
        if number % 1000 == 0 and clock.now_ms() >= next_ms:
            next_ms = clock.now_ms() + PROGRESS_MS
            log.info("vacuum of %s: %d files listed so far", store.root, number)
    log.info("vacuum of %s: %d files listed", store.root, number)


def _removed_in_unreadable(table: str, unreadable: Sequence[str], named: NamedFiles, times: _Times) -> list[FileInfo]:
    """The files that the log has removed from folders which could not be listed; those folders are logged, once.

    Such a file is not passed over: deleting it succeeds, or fails by name. All else in such a folder stays, as in the
    private one in which another user's job keeps its work.
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
    """The age of the oldest file that no action of the state names and that is no orphan yet; `now_ms` for none."""
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
    """Since when tombstones count that a checkpoint may have dropped; `now_ms` where none does."""
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
    """Delete what the plan names, counting files into `deletion`, and record the end; how many directories went."""
    directories = 0

    def record(status: str) -> None:
        if on_end is not None:
            metrics = {"numDeletedFiles": deletion.deleted_files, "numVacuumedDirectories": directories}
            on_end({"status": status}, metrics)

    report = progress_log(store, "vacuum", plan.files, deletion, clock, on_progress)
    try:
        delete_files(store, plan.files, deletion, parallelism=request.parallelism, on_file=report)
        deletion.check()
        for directory in plan.directories:
            directories += _delete_directory(store, directory)
    except BaseException:
        # The reason why deleting failed is what the caller must hear, even where it cannot be recorded either.
        with suppress(Exception):
            record("FAILED")
        raise
    with _going_on_without_room(store.root, "VACUUM END"):
        record("COMPLETED")
    return directories


@contextmanager
def _going_on_without_room(table: str, what: str) -> Iterator[None]:
    """A vacuum makes room, so a full disk must not keep it from deleting: what it could not record is logged."""
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
        # What an inventory calls a directory may be a file or lie behind a symlink: then it is none of ours.
        return False


def _parameters(state: VacuumState, request: VacuumRequest) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "retentionCheckEnabled": request.check_retention,
        "defaultRetentionMillis": state.retention_ms,
    }
    if request.retention_ms is not None:
        parameters["specifiedRetentionMillis"] = request.retention_ms
    return parameters


def _result(
    store: Store, plan: VacuumPlan, request: VacuumRequest, *, deleted_files: int, deleted_directories: int
) -> VacuumResult:
    return VacuumResult(
        files=[f"{store.root}/{info.path}" for info in plan.files],
        size_bytes=plan.size_bytes,
        deleted_files=deleted_files,
        deleted_directories=deleted_directories,
        dry_run=request.dry_run,
        mode=request.mode,
    )
