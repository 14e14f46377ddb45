"""A file that another commit has removed while a job reads it: a conflict, and no damage of the table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from airflow_txlog.engine import DeltaTable, Snapshot
from airflow_txlog.engine.table.snapshot.snapshot import is_missing_from
from airflow_txlog.errors import ConcurrentDeleteRead, CorruptTable


@contextlib.contextmanager
def missing_files_are_conflicts(read: list[tuple[DeltaTable, Snapshot]]) -> Iterator[None]:
    """Raise ConcurrentDeleteRead for a file that another commit has removed, inside the block.

    The block puts the tables that it reads into `read`, which is emptied first.
    """
    read.clear()
    try:
        yield
    except CorruptTable as error:
        conflict = _removed_meanwhile(error, read)
        if conflict is None:
            raise
        raise conflict from error


def _removed_meanwhile(error: CorruptTable, read: Iterable[tuple[DeltaTable, Snapshot]]) -> ConcurrentDeleteRead | None:
    """Return the conflict that explains a missing file, if a table in `read` no longer names it."""
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
