"""The settings of a vacuum, and which files it deletes: pure functions of the files and of the names in the log.

The invariant: a doubtful file stays. A file is deleted if the log removed it before the retention, or if no action
names it and it is older than the orphan retention; never if any reading of its path could mean a needed file.
Source: delta-spark, VacuumCommand; soundness A16.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.engine.many_files import PARALLELISM
from airflow_txlog.engine.staged_changes import WaitingFiles
from airflow_txlog.engine.table.schema.column_mapping import partition_keys
from airflow_txlog.engine.table.schema.features import features_in_use
from airflow_txlog.engine.table.schema.properties import HOUR_MS, ORPHAN_RETENTION_MS, SHARED_FOLDER
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import FolderNotEmpty, InvalidInput, RetentionTooShort
from airflow_txlog.locations import is_inside
from airflow_txlog.storage.base import FileInfo

MAX_PARALLELISM = 256

VacuumMode = Literal["full", "lite"]
InventorySource: TypeAlias = pa.Table | str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumState:
    """The latest version of a table, as a vacuum needs it, read before the vacuum begins."""

    version: int
    live: pa.Table
    """Schema FILES."""
    tombstones: pa.Table
    """Schema TOMBSTONES."""
    partition_columns: Sequence[str]
    retention_ms: int
    """The table's own delta.deletedFileRetentionDuration."""
    shares_folder: bool = False
    """Whether files of others were in the folder before the table."""
    has_iceberg: bool = False
    """Whether other engines keep Iceberg's metadata in the folder."""
    waiting: Sequence[WaitingFiles] = ()
    """The files of staged changes, read before the version."""

    @staticmethod
    def of(snapshot: Snapshot, waiting: Sequence[WaitingFiles]) -> VacuumState:
        """Return the state of this snapshot, with every name that a directory of a partition column may have."""
        names = snapshot.partition_columns
        return VacuumState(
            version=snapshot.version,
            live=snapshot.state.live,
            tombstones=snapshot.state.tombstones,
            # Before a renaming it is the physical one.
            partition_columns=sorted({*names, *partition_keys(snapshot.delta_schema, names)}),
            retention_ms=snapshot.table_properties.deleted_file_retention_ms,
            shares_folder=snapshot.table_properties.shares_folder,
            has_iceberg=any(
                feature.startswith("icebergCompat")
                for feature in features_in_use(snapshot.delta_schema, snapshot.metadata.configuration)
            ),
            waiting=waiting,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumRequest:
    """The settings of a vacuum."""

    retention_ms: int | None = None
    """None: the table's."""
    check_retention: bool = True
    orphan_retention_ms: int = ORPHAN_RETENTION_MS
    dry_run: bool = False
    mode: VacuumMode = "full"
    inventory: InventorySource | None = None
    parallelism: int = PARALLELISM
    include_foreign: bool = False
    """Whether to delete also files of others, if the table shares its folder with them."""
    only: frozenset[str] | None = None
    """For an erasure: delete these files alone, if they may go. `orphan_retention_ms` has no lower limit then, and in a
    folder that is shared only files that the log removed may go."""


def milliseconds(duration: timedelta | float) -> int:
    """Return the duration in milliseconds; a number is hours, as in RETAIN 168 HOURS. Raises InvalidInput."""
    try:
        whole = duration if isinstance(duration, timedelta) else timedelta(hours=duration)
    except (OverflowError, ValueError) as error:
        raise InvalidInput(f"A retention of {duration} hours is not a valid duration. Nothing was deleted.") from error
    return whole // timedelta(milliseconds=1)


def check_request(table: str, request: VacuumRequest, state: VacuumState) -> None:
    """Raise InvalidInput for impossible settings, RetentionTooShort, or FolderNotEmpty."""
    asked_ms, required_ms = request.retention_ms, state.retention_ms
    for name, value in (("a retention", asked_ms), ("an orphan retention", request.orphan_retention_ms)):
        if value is not None and value < 0:
            raise InvalidInput(
                f"InvalidInput: vacuum of {table} was asked for {name} of {value} ms; it cannot be negative. "
                "Nothing was deleted."
            )
    if request.mode not in ("full", "lite"):
        raise InvalidInput(f"InvalidInput: a vacuum is full or lite, not {request.mode!r}. Nothing was deleted.")
    if request.mode == "lite" and request.inventory is not None:
        raise InvalidInput("InvalidInput: a lite vacuum goes by the log and takes no inventory. Nothing was deleted.")
    if not 1 <= request.parallelism <= MAX_PARALLELISM:
        raise InvalidInput(
            f"InvalidInput: a vacuum deletes 1 to {MAX_PARALLELISM} files at once, not {request.parallelism}. "
            "Nothing was deleted."
        )
    if request.check_retention and asked_ms is not None and asked_ms < required_ms:
        raise RetentionTooShort(
            f"RetentionTooShort: vacuum of {table} was asked to keep {asked_ms / HOUR_MS:g} hours of removed files, "
            f"and the table's delta.deletedFileRetentionDuration is {required_ms / HOUR_MS:g} hours: readers and time "
            "travel may still need them. Ask for more, change the property, or give check_retention=False "
            "(--no-check-retention on the command line). Nothing was deleted.",
            table=table,
            asked_ms=asked_ms,
            required_ms=required_ms,
        )
    is_free = request.dry_run or request.include_foreign or request.only is not None
    if state.shares_folder and request.mode == "full" and not is_free:
        raise FolderNotEmpty(
            f"FolderNotEmpty: vacuum of {table} would delete files of others: they were in the folder before the table "
            f"was created there ({SHARED_FOLDER} is true), and no commit names them. Nothing was deleted. Use mode "
            '"lite", which deletes only files that the log removed; look at a dry run; or pass include_foreign=True '
            "to delete every file that no commit names.",
            table=table,
            examples=[],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumPlan:
    """The files and directories to delete, by paths relative to the root."""

    files: list[FileInfo]
    directories: list[str]
    """Those without a file, deepest first."""

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
    """Base names of needed files whose paths' text lies outside the table."""


def files_named(live: pa.Table, tombstones: pa.Table, root: str, delete_before_ms: int) -> NamedFiles:
    """Return the files that the state names, each needed or expired. Raises CorruptTable for an unknown vector."""
    named = NamedFiles()
    is_needed = pc.greater_equal(pc.fill_null(tombstones.column("deletion_timestamp"), 0), delete_before_ms)
    for files in (live, tombstones.filter(is_needed)):
        for path in _paths(files, root):
            if is_inside(path):
                named.needed.add(path)
            else:
                # The path's text leaves the table, as in a shallow clone, and then it means no file here. It may still
                # lead back through a symlink or another name of the store, so keep files of its name.
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
    """Return which of the listed files and directories to delete; a pure function.

    `files` are the visible files with their times by the store's clock. `directories` come deepest first; one above an
    `occupied` path or a needed file, listed or not, stays. The next vacuum deletes a directory that this one empties: a
    writer that has just made it needs time to add a file.
    """
    doomed = [info for info in files if may_go(info, named, orphan_before_ms)]
    parents: set[str] = set()
    for path in (*occupied, *named.needed):
        while (path := path.rpartition("/")[0]) and path not in parents:
            parents.add(path)
    return VacuumPlan(
        files=sorted(doomed, key=lambda info: info.path),
        directories=[path for path in directories if path not in parents],
    )


def may_go(info: FileInfo, named: NamedFiles, orphan_before_ms: int) -> bool:
    """Return whether one file inside the table may be deleted; `modified_ms` is its time by the store's clock."""
    if info.path in named.needed or info.path.rsplit("/", 1)[-1] in named.needed_elsewhere:
        return False
    try:
        info.path.encode("utf-8")
    except UnicodeEncodeError:
        # Such a name has no spelling in the log that we could have compared.
        return False
    return info.path in named.expired or info.modified_ms < orphan_before_ms


# Names of unpublished files in the log, and of files that probe the store (`temporary_path`).
_LEFTOVER = re.compile(rf"{LOG_DIRECTORY}/\.[^/]+\.[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}\.tmp")


def is_leftover(path: str) -> bool:
    """Return whether a killed writer left this temporary file in the log; a vacuum deletes it like any orphan."""
    return _LEFTOVER.fullmatch(path) is not None


def _paths(files: pa.Table, root: str) -> Iterator[str]:
    """Yield the canonical paths of the data files, and of the files of their deletion vectors."""
    if not files.num_rows:
        return
    yield from canonical_paths(files.column("path"), root).to_pylist()
    vectors = files.column("deletion_vector")
    for vector in vectors.filter(pc.is_valid(vectors)).to_pylist():
        path = vector_file(vector["storage_type"], vector["path_or_inline_dv"], root)
        if path is not None:
            yield path
