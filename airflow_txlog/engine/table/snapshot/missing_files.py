"""Files that were not there when they came to be read: removed by another commit meanwhile, or lost.

DELETE and a VACUUM that keeps nothing (a person is forgotten now) take files that a reader of an older version needs.
The invariant: a file that the newest version of its table still names is corruption, and stays an error.
"""

from __future__ import annotations

from airflow_txlog.engine.log.paths import store_path
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.engine.table.snapshot.files import vectors_of
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import CorruptDeletionVector, CorruptTable
from airflow_txlog.locations import readable


def is_missing_from(snapshot: Snapshot, error: CorruptTable) -> bool:
    """Whether the error is about a file that is not there and that this version names: a live file, or its vector."""
    if not error.is_missing or error.path is None:
        return False
    root = snapshot.uri
    if isinstance(error, CorruptDeletionVector):
        vectors = vectors_of(snapshot.files(columns=["deletion_vector"])).values()
        return error.path in {vector_file(each.storage_type, each.path_or_inline_dv, root) for each in vectors}
    paths = snapshot.files(columns=["path"]).column("path").to_pylist()
    return any(readable(root, store_path(path, root)) == error.path for path in paths)
