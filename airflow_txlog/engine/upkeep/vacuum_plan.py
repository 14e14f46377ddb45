"""Which files a vacuum deletes: a pure function of what is there and of the names in the log.

The invariant: what is in doubt stays. A file goes if the log removed it before the retention, or if no action names it
and it is older than the orphan retention; never if a needed file could be meant by its name, by whatever path.
Source: delta-spark, VacuumCommand; soundness A16.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.locations import is_inside
from airflow_txlog.storage.base import FileInfo


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


def files_named(live: pa.Table, tombstones: pa.Table, root: str, delete_before_ms: int) -> NamedFiles:
    """The files that the state names, each needed or expired.

    A tombstone without a deletion timestamp counts as removed at the epoch. Raises CorruptTable for a deletion vector
    whose place is not known.
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
    """Whether one file inside the table may be deleted; `modified_ms` is its time by the store's clock."""
    if info.path in named.needed or info.path.rsplit("/", 1)[-1] in named.needed_elsewhere:
        return False
    # A name that is not UTF-8 has no spelling in the log that we could have compared.
    if not _is_utf8(info.path):
        return False
    return info.path in named.expired or info.modified_ms < orphan_before_ms


# What stores call a file of the log that they have not published yet, or put there to try them (`temporary_path`).
_LEFTOVER = re.compile(rf"{LOG_DIRECTORY}/\.[^/]+\.[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}\.tmp")


def is_leftover(path: str) -> bool:
    """Whether a killed writer of ours left the file in the log; like any orphan it goes once it is old."""
    return _LEFTOVER.fullmatch(path) is not None


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
