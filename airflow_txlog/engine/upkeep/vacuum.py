"""VACUUM: delete what no version inside the retention needs.

Two clocks decide. A file that the log has removed goes once its tombstone is past the asked retention. A file that no
action names may be one that a writer is staging right now, and goes only once it is older than the orphan retention,
never under 24 hours, whatever is asked. Deciding is a pure function of a listing and of the names in the log; what is
in doubt stays: a name that cannot be read, a path that may lead here by another way, a commit that was just listed.
Source: delta-spark, VacuumCommand; soundness A16.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.partitioning import hive_directory
from airflow_txlog.engine.clock import Clock
from airflow_txlog.engine.log.actions import Remove
from airflow_txlog.engine.log.columns import removes_to_table
from airflow_txlog.engine.log.names import LOG_DIRECTORY, LogKind, parse_name
from airflow_txlog.engine.log.paths import canonical_paths, is_inside
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.engine.log.wire import decode_commit
from airflow_txlog.engine.store.base import FileInfo, Store
from airflow_txlog.errors import InvalidInput, RetentionTooShort

HOUR_MS = 3_600_000
ORPHAN_RETENTION_MS = 7 * 24 * HOUR_MS
"""How long a file that no action names is kept where nothing else is asked."""
ORPHAN_RETENTION_FLOOR_MS = 24 * HOUR_MS
"""How long it is kept whatever is asked: a write must have committed by then."""

# How far the clocks of writers and of the store may be apart before a commit's age is misjudged.
_CLOCK_SLACK_MS = 24 * HOUR_MS

# Called with the parameters and the metrics of the commit that the history will show.
Callback = Callable[[Mapping[str, Any], Mapping[str, Any]], object]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumPlan:
    """What to delete, by paths relative to the root."""

    files: list[FileInfo]
    directories: list[str]
    """Those that hold no file, deepest first."""

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self.files)


@dataclass(slots=True)
class NamedFiles:
    """The files that the log names, by canonical path."""

    needed: set[str] = field(default_factory=set)
    """Live, or removed inside the retention: data files and the files of their deletion vectors."""
    expired: set[str] = field(default_factory=set)
    """Removed before the retention. A path may also be needed, and then it is."""
    needed_elsewhere: set[str] = field(default_factory=set)
    """Base names of needed files that lie outside the table by the letters of their path."""


def vacuum(
    store: Store,
    *,
    live: pa.Table,
    tombstones: pa.Table,
    partition_columns: Sequence[str],
    retention_ms: int | None,
    table_retention_ms: int,
    check_retention: bool,
    orphan_retention_ms: int = ORPHAN_RETENTION_MS,
    dry_run: bool,
    clock: Clock,
    on_start: Callback | None = None,
    on_end: Callback | None = None,
) -> VacuumResult:
    """Delete the files of the table that nothing needs, and the directories that held no file.

    `live` (FILES) and `tombstones` (TOMBSTONES) are the state of a snapshot that was read before this call.
    `retention_ms` None is the table's own. `on_start` and `on_end` record VACUUM START and VACUUM END; a dry run calls
    neither. Nothing outside the table is deleted, and nothing through a symlink.

    Raises InvalidInput for a negative retention; RetentionTooShort where less than the table's is asked and
    `check_retention` is on; whatever the store raises at a delete, after END was recorded as FAILED.
    """
    _check(store.root, retention_ms, table_retention_ms, orphan_retention_ms, check_retention)
    retention = table_retention_ms if retention_ms is None else retention_ms
    now_ms = store.now_ms()
    # Tombstones were stamped by the clocks of writers, files by the store's: of ours and the store's the slower counts.
    delete_before_ms = min(now_ms, clock.now_ms()) - retention
    orphan_before_ms = now_ms - max(retention, orphan_retention_ms, ORPHAN_RETENTION_FLOOR_MS)

    # Directories first: what a writer makes from here on is not on the list.
    directories = [path for path in store.list_directories() if _is_visible(path, partition_columns)]
    listed = list(store.walk())
    visible = [info for info in listed if _is_visible(info.path, partition_columns) or _is_leftover(info.path)]
    named = files_named(live, tombstones, store.root, delete_before_ms)
    since_ms = _unclear_since(visible, named, orphan_before_ms, now_ms)
    if retention > table_retention_ms:
        since_ms = min(since_ms, delete_before_ms - _CLOCK_SLACK_MS)
    if since_ms < now_ms:
        forgotten = removes_to_table(_removes_since(store, since_ms))
        named = files_named(live, pa.concat_tables([tombstones, forgotten]), store.root, delete_before_ms)
    plan = plan_vacuum(visible, named, orphan_before_ms, directories, [info.path for info in listed])
    if dry_run:
        return _result(store, plan, deleted_files=0, deleted_directories=0, dry_run=True)
    parameters: dict[str, Any] = {
        "retentionCheckEnabled": check_retention,
        "defaultRetentionMillis": table_retention_ms,
    }
    if retention_ms is not None:
        parameters["specifiedRetentionMillis"] = retention_ms
    if on_start is not None:
        on_start(parameters, {"numFilesToDelete": len(plan.files), "sizeOfDataToDelete": plan.size_bytes})
    return _delete(store, plan, on_end)


def files_named(live: pa.Table, tombstones: pa.Table, root: str, delete_before_ms: int) -> NamedFiles:
    """The files that the state names, each needed or expired.

    A tombstone without a deletion timestamp counts as removed at the epoch. Raises CorruptTable for a deletion vector
    that lies nobody knows where.
    """
    named = NamedFiles()
    is_needed = pc.greater_equal(pc.fill_null(tombstones.column("deletion_timestamp"), 0), delete_before_ms)
    for files in (live, tombstones.filter(is_needed)):
        for path in _paths(files, root):
            if is_inside(path):
                named.needed.add(path)
            else:
                # By its letters the path leaves the table, as a shallow clone's do, and then nothing here is meant. It
                # may still lead back through a symlink or another name of the store, so its name is spared.
                named.needed_elsewhere.add(path.rsplit("/", 1)[-1])
    named.expired.update(_paths(tombstones.filter(pc.invert(is_needed)), root))
    return named


def plan_vacuum(
    files: Iterable[FileInfo],
    named: NamedFiles,
    orphan_before_ms: int,
    directories: Iterable[str] = (),
    occupied: Iterable[str] = (),
) -> VacuumPlan:
    """Which of the listed files and directories to delete; decides by its arguments alone.

    `files` are the visible files with their times by the store's clock. `directories` come deepest first; one that is
    above an `occupied` path or above a needed file, listed or not, stays. One that is emptied now goes next time: a
    writer that made it a moment ago has then long put its file into it.
    """
    doomed = [info for info in files if _may_go(info, named, orphan_before_ms)]
    parents: set[str] = set()
    for path in (*occupied, *named.needed):
        while (path := path.rpartition("/")[0]) and path not in parents:
            parents.add(path)
    return VacuumPlan(
        files=sorted(doomed, key=lambda info: info.path),
        directories=[path for path in directories if path not in parents],
    )


def _may_go(info: FileInfo, named: NamedFiles, orphan_before_ms: int) -> bool:
    if info.path in named.needed or info.path.rsplit("/", 1)[-1] in named.needed_elsewhere:
        return False
    # A name that is not UTF-8 has no spelling in the log that we could have compared.
    if not _is_utf8(info.path):
        return False
    return info.path in named.expired or info.modified_ms < orphan_before_ms


def _check(table: str, asked_ms: int | None, required_ms: int, orphan_ms: int, check_retention: bool) -> None:
    for name, value in (("retention", asked_ms), ("orphan retention", orphan_ms)):
        if value is not None and value < 0:
            raise InvalidInput(
                f"InvalidInput: vacuum of {table} was asked for a {name} of {value} ms; it cannot be negative. "
                "Nothing was deleted."
            )
    if check_retention and asked_ms is not None and asked_ms < required_ms:
        raise RetentionTooShort(
            f"RetentionTooShort: vacuum of {table} was asked to keep {asked_ms / HOUR_MS:g} hours of removed files, "
            f"and the table's delta.deletedFileRetentionDuration is {required_ms / HOUR_MS:g} hours: readers and time "
            "travel may still need them. Ask for more, change the property, or switch the check off. "
            "Nothing was deleted.",
            table=table,
            asked_ms=asked_ms,
            required_ms=required_ms,
        )


def _is_visible(path: str, partition_columns: Iterable[str]) -> bool:
    """Whether no part of the path is hidden: hidden is what other tools keep beside the data, the log first of all."""
    return not any(_is_hidden(part, partition_columns) for part in path.split("/"))


# What `LocalStore` calls a file of the log that it has not published yet.
_LEFTOVER = re.compile(rf"{LOG_DIRECTORY}/\.[^/]+\.[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}\.tmp")


def _is_leftover(path: str) -> bool:
    """Whether a killed writer of ours left the file in the log; like any orphan it goes once it is old."""
    return _LEFTOVER.fullmatch(path) is not None


def _is_hidden(name: str, partition_columns: Iterable[str]) -> bool:
    if not name.startswith(("_", ".")) or name.startswith(("_change_data", "_delta_index")):
        return False
    # A partition column may itself begin with "_"; its directory has the name as it is, or as Hive escapes it.
    prefixes = (f"{column}=" for column in partition_columns)
    escaped = (hive_directory([column], ["x"]).removesuffix("x") for column in partition_columns)
    return not name.startswith((*prefixes, *escaped))


def _is_utf8(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _paths(files: pa.Table, root: str) -> Iterator[str]:
    """Canonical paths of the data files, and of the files of their deletion vectors."""
    if not files.num_rows:
        return
    yield from canonical_paths(files.column("path"), root).to_pylist()
    vectors = files.column("deletion_vector")
    for vector in vectors.filter(pc.is_valid(vectors)).to_pylist():
        path = vector_file(vector["storage_type"], vector["path_or_inline_dv"], root)
        if path is not None:
            yield path


# --- what the state has forgotten -----------------------------------------------------------------------------------
# A checkpoint drops the tombstones that are past the table's retention. Two questions then need the commits themselves:
# a file removed after `delete_before` although the table's retention is shorter than the asked one, which must stay;
# and a young file that no action of the state names: either it is being staged, or it was committed and removed again
# (or holds change rows), and then the asked retention rules it, or "forget this person now" would wait for a week.


def _unclear_since(files: Iterable[FileInfo], named: NamedFiles, orphan_before_ms: int, now_ms: int) -> int:
    """The age of the oldest file that no action of the state names and that is no orphan yet; `now_ms` for none."""
    return min(
        (
            info.modified_ms
            for info in files
            if info.modified_ms >= orphan_before_ms and info.path not in named.needed and info.path not in named.expired
        ),
        default=now_ms,
    )


def _removes_since(store: Store, since_ms: int) -> list[Remove]:
    """The removes of every commit written since then that the log still has; files of change rows count as removed."""
    removes: list[Remove] = []
    for info in store.list(LOG_DIRECTORY):
        name = parse_name(info.path)
        if name is None or name.kind is not LogKind.COMMIT or info.modified_ms < since_ms:
            continue
        try:
            commit = decode_commit(name.version, store.read(info.path), info.path)
        except FileNotFoundError:
            continue  # log cleanup took it meanwhile
        removes += commit.removes
        removes += [Remove(path=cdc.path, data_change=False, deletion_timestamp=info.modified_ms) for cdc in commit.cdc]
    return removes


# --- deleting -------------------------------------------------------------------------------------------------------


def _delete(store: Store, plan: VacuumPlan, on_end: Callback | None) -> VacuumResult:
    deleted_files = deleted_directories = 0

    def record(status: str) -> None:
        if on_end is not None:
            metrics = {"numDeletedFiles": deleted_files, "numVacuumedDirectories": deleted_directories}
            on_end({"status": status}, metrics)

    try:
        for info in plan.files:
            store.delete(info.path)
            deleted_files += 1
        for directory in plan.directories:
            deleted_directories += store.delete_empty_directory(directory)
    except BaseException:
        # The reason why deleting failed is what the caller must hear, even where it cannot be recorded either.
        with suppress(Exception):
            record("FAILED")
        raise
    record("COMPLETED")
    return _result(store, plan, deleted_files=deleted_files, deleted_directories=deleted_directories, dry_run=False)


def _result(
    store: Store, plan: VacuumPlan, *, deleted_files: int, deleted_directories: int, dry_run: bool
) -> VacuumResult:
    return VacuumResult(
        files=[f"{store.root}/{info.path}" for info in plan.files],
        size_bytes=plan.size_bytes,
        deleted_files=deleted_files,
        deleted_directories=deleted_directories,
        dry_run=dry_run,
    )
