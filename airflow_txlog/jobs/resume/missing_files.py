"""A file that was removed by another commit before a job came to read it is a conflict, and the job plans again."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_txlog.engine import Snapshot, Table
from airflow_txlog.engine.table.snapshot.missing_files import is_missing_from
from airflow_txlog.errors import ConcurrentDeleteRead, CorruptTable


def removed_meanwhile(error: CorruptTable, read: Iterable[tuple[Table, Snapshot]]) -> ConcurrentDeleteRead | None:
    """The conflict that a missing file amounts to, where its table names it no longer; else None.

    `read` are the tables that the job reads, each with the version that it planned on.
    """
    for table, snapshot in read:
        if not is_missing_from(snapshot, error):
            continue
        newest = table.snapshot()
        if not is_missing_from(newest, error):
            return ConcurrentDeleteRead(
                f"{error.path} of {table.uri} was planned to be read at version "
                f"{snapshot.version} and is not there; version {newest.version} names it no longer, so it was removed "
                "and a VACUUM has deleted it. Nothing was committed: read the table again and repeat the operation.",
                table=table.uri,
                read_version=snapshot.version,
                path=error.path,
            )
    return None
