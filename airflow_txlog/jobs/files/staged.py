"""Staged files of a job: those that saved work names, those that VACUUM may have taken, and those to delete.

A path is relative to the table. The invariant: a path that is read back stays inside the folder, and has the spelling
and the form that our tasks give to new files. So no saved file elsewhere is opened, committed or deleted, whichever
process wrote the saved work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from airflow_txlog.datafiles.partitioning import encode_add_path
from airflow_txlog.datafiles.staged_files import CHANGE_DIRECTORY, DATA_FILE, VECTOR_FILE, StagedFile
from airflow_txlog.engine.many_files import Deletion, delete_files
from airflow_txlog.engine.table.schema.properties import ORPHAN_RETENTION_FLOOR_MS
from airflow_txlog.errors import JobError
from airflow_txlog.storage import Store
from airflow_txlog.storage.base import FileInfo, inner_parts

# The random directory of a file in a table with column mapping, or with delta.randomizeFilePrefixes.
_PREFIX = re.compile("[0-9A-Za-z]+")


def confined(file: StagedFile, folder: str = "") -> StagedFile:
    """Return a file of saved work, if jobs stage files with its path in this folder of the table.

    Raises ValueError for a path that leaves the folder or that our jobs would not use.
    """
    path = file.store_path
    if encode_add_path(path) != file.path:
        raise ValueError("a path is not spelled as ours are")
    if folder:
        start, path = path[: len(folder) + 1], path[len(folder) + 1 :]
        if start != f"{folder}/":
            raise ValueError("a path is in another folder")
    check_is_ours(path)
    return file


def check_is_ours(path: str) -> None:
    """Raise ValueError for a path in a table that our jobs would not give to a file that they stage."""
    *directories, name = inner_parts(path)
    is_change = bool(directories) and directories[0] == CHANGE_DIRECTORY
    if is_change:
        del directories[0]
    kind = DATA_FILE.fullmatch(name)
    is_ours = (kind is not None and (kind[1] == "cdc") == is_change) or (VECTOR_FILE.fullmatch(name) and not is_change)
    if not is_ours or not all("=" in part or _PREFIX.fullmatch(part) for part in directories):
        raise ValueError("a path is none of a file that a job stages")


# A VACUUM with the shortest retention takes files that no commit names once they are this old.


def may_be_swept(files: Sequence[StagedFile], now_ms: int) -> bool:
    """Return whether some file is so old that each must be looked up before use.

    `now_ms` is the store's clock, from which VACUUM computes the files' ages.
    """
    return any(now_ms - file.modification_time_ms >= ORPHAN_RETENTION_FLOOR_MS // 4 for file in files)


def check_not_swept(store: Store, files: Sequence[StagedFile]) -> None:
    """Raise JobError, retryable, if a VACUUM may have deleted files of the commit.

    Young files are not looked up. From a quarter of the least orphan retention on each file must still exist, and from
    half of it nothing is committed: a VACUUM may be under way, and a commit must not name files that are gone. Ages
    follow the store's clock. Source: soundness A16.
    """
    now_ms = store.now_ms()
    if not may_be_swept(files, now_ms):
        return
    age_ms = now_ms - min(file.modification_time_ms for file in files)
    gone = [file.path for file in files if store.stat(file.store_path) is None]
    if gone or age_ms >= ORPHAN_RETENTION_FLOOR_MS // 2:
        what = f"{len(gone)} of them are gone, the first {gone[0]}" if gone else "a vacuum may take them at any moment"
        raise JobError(
            f"The {len(files)} files that this job staged are up to {age_ms / 3_600_000:.0f} hours old, and {what}. "
            "Nothing was committed. Run the job again, in smaller pieces if it takes that long.",
            retryable=True,
        )


def unstage(store: Store, files: Iterable[StagedFile]) -> None:
    """Delete staged files, which the caller has proved to be in no commit (soundness A17).

    A file that cannot be deleted is an orphan for VACUUM: it must not hide the error that led here.
    """
    infos = [
        FileInfo(path=each.store_path, size_bytes=each.size_bytes, modified_ms=each.modification_time_ms)
        for each in files
    ]
    delete_files(store, infos, Deletion())
