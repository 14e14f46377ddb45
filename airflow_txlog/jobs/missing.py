"""Files that were not there when a job came to read them: removed by another commit meanwhile, or lost.

DELETE and a VACUUM that keeps nothing (a person is forgotten now) take files that a job has planned to read. The
invariant: a file that the newest version of its table still names is corruption, and stays an error; one that it names
no longer is a conflict, and the job plans again.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_txlog.datafiles.locations import location_of
from airflow_txlog.engine import Snapshot, Table
from airflow_txlog.engine.log.paths import store_path
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.engine.table.files import vectors_of
from airflow_txlog.errors import ConcurrentDeleteRead, CorruptDeletionVector, CorruptTable


def removed_meanwhile(error: CorruptTable, read: Iterable[tuple[Table, Snapshot]]) -> ConcurrentDeleteRead | None:
    """The conflict that a missing file amounts to, where its table names it no longer; else None.

    `read` are the tables that the job reads, each with the version that it planned on.
    """
    if not error.is_missing or error.path is None:
        return None
    for table, snapshot in read:
        if not _is_named(snapshot, error):
            continue
        newest = table.snapshot()
        if not _is_named(newest, error):
            return ConcurrentDeleteRead(
                f"CommitConflict (ConcurrentDeleteRead): {error.path} of {table.uri} was planned to be read at version "
                f"{snapshot.version} and is not there; version {newest.version} names it no longer, so it was removed "
                "and a VACUUM has deleted it. Nothing was committed: read the table again and repeat the operation.",
                table=table.uri,
                read_version=snapshot.version,
                path=error.path,
            )
    return None


def _is_named(snapshot: Snapshot, error: CorruptTable) -> bool:
    """Whether a live file of the version is the one that the error is about, or has the vector that it is about."""
    root = snapshot.uri
    if isinstance(error, CorruptDeletionVector):
        vectors = vectors_of(snapshot.files(columns=["deletion_vector"])).values()
        return error.path in {vector_file(each.storage_type, each.path_or_inline_dv, root) for each in vectors}
    paths = snapshot.files(columns=["path"]).column("path").to_pylist()
    return any(location_of(root, store_path(path, root)) == error.path for path in paths)
