"""The rule that what a store opens lies under its root, and what of other places may be read all the same."""

from __future__ import annotations

from airflow_txlog.errors import OutsideTable
from airflow_txlog.locations import LOCAL, Access, is_inside, store_kind


def check_may_read(root: str, path: str, access: Access) -> None:
    """Raises OutsideTable where a data file that a log names may not be read by what its path says.

    `path` is canonical: relative to the root, or an absolute URI. With `allow_absolute_paths` it may lie outside the
    root, in the same kind of store.
    """
    inside, ours = is_inside(path), store_kind(root)
    # What opens a URL may take two colons in it for a chain of file systems, and open what follows in another one.
    if (not inside and ("://" not in path or store_kind(path) != ours)) or (ours != LOCAL and "::" in path):
        raise OutsideTable(
            f"OutsideTable: the log of {root} names a file in another kind of store than its own ({ours}), and no such "
            "file is ever opened. Nothing of it was read. Have the engine that wrote it remove it from the table.",
            table=root,
        )
    if not inside and not access.allow_absolute_paths:
        raise OutsideTable(
            f"OutsideTable: the log of {root} names the file {path}, which lies outside of the table, and rows are "
            "read from the table's own folder alone. Nothing of it was read. If every writer of the table may have "
            "what this process can read, as that of a shallow clone, set allow_absolute_paths: in the connection's "
            "extra, or in Table.open.",
            table=root,
            path=path,
        )
