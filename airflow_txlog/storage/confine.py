"""The rule that what a store opens lies under its root, and what of other places may be read all the same."""

from __future__ import annotations

from airflow_txlog.errors import OutsideTable
from airflow_txlog.storage.locations import location_of, outer_location, scheme_of


def location_within(root: str, path: str, allow_absolute_paths: bool) -> str:
    """Where a data file is opened that a log names: `path` is canonical, relative to the root or an absolute URI.

    With `allow_absolute_paths` it may lie outside the root, in the same kind of store, or behind a link. Raises
    OutsideTable for every other place.
    """
    is_inside = "://" not in path and not path.startswith("/")
    ours = scheme_of(root)
    # fsspec opens what follows two colons in another file system.
    if (not is_inside and scheme_of(path) != ours) or (ours != "file" and "::" in path):
        raise OutsideTable(
            f"OutsideTable: the log of {root} names a file in another kind of store than its own ({ours}), and no such "
            "file is ever opened. Nothing of it was read. Have the engine that wrote it remove it from the table.",
            table=root,
        )
    if is_inside:
        return outer_location(f"{root}/{path}") if allow_absolute_paths else location_of(root, path)
    if allow_absolute_paths:
        return outer_location(path)
    raise OutsideTable(
        f"OutsideTable: the log of {root} names the file {path}, which lies outside of the table, and rows are read "
        "from the table's own folder alone. Nothing of it was read. If every writer of the table may have what this "
        "process can read, as that of a shallow clone, set allow_absolute_paths: in the connection's extra, or in "
        "Table.open.",
        table=root,
        path=path,
    )
