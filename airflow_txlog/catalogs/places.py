"""The place of a table by the record of a catalog: the writers' conventions, and the URIs that we accept.

A catalog is another service, and anybody who may edit its entries names places to us. So a place is a plain URI of a
permitted store: without a user, a password or a query, without `..`, and never in this process's memory. Paths are not
percent-decoded, as Hive and Glue do not encode them. Invariant: every URI from a catalog comes from `table_place`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection

from airflow_txlog.errors import UnusablePlace
from airflow_txlog.locations import LOCAL, can_name_a_file, is_absolute, local_path, scheme_of, shown, split, store_kind

PLACEHOLDER = "-__PLACEHOLDER__"
"""The end of a location that Spark invents for an external table: it leads nowhere, and `path` has the place."""

MANIFESTS = "_symlink_format_manifest"
"""The folder, below a Delta table, of the manifests by which engines without Delta read the table."""

OBJECT_STORES = frozenset({"s3", "gs", "abfss"})
ALL_STORES = OBJECT_STORES | {LOCAL, "hdfs"}


def table_place(connection: str, name: str, location: str, stores: Collection[str] = ALL_STORES) -> str:
    """Return the URI of a table as our other texts have it: `/lake/t` for a local folder, `s3://` for `s3a:`, `s3n:`.

    A trailing slash is removed. Raises UnusablePlace for a place that is not a table's, or not in one of `stores`.
    """

    def refuse(why: str) -> UnusablePlace:
        return UnusablePlace(
            f"The catalog {connection!r} gives the table {name} the location {shown(location)!r}, {why}. Nothing was "
            "read or written. Correct the entry of the catalog, or name the table by its table_uri.",
            connection=connection,
            name=name,
            location=shown(location),
        )

    text = location.strip()
    if not text:
        raise refuse("which is empty")
    if not is_absolute(text) or not can_name_a_file(text):
        raise refuse("which is no absolute path and no URI")
    parts = split(text)
    if "@" in parts.authority and store_kind(text) != "abfss":
        raise refuse("which has a user or a password in it")
    if "?" in text or "#" in text:
        raise refuse("which has a query or a fragment in it")
    if ".." in parts.path.split("/"):
        raise refuse("which leads through ..")
    kind = store_kind(text)
    if kind not in stores:
        raise refuse(f"and a table of this catalog is in one of: {', '.join(sorted(stores))}")
    path = parts.path.rstrip("/")
    if path.endswith(PLACEHOLDER):
        raise refuse("which Spark invented: the entry lacks the path of the table")
    if kind == LOCAL:
        local = local_path(text)
        if local is None:
            raise refuse("which is on another machine")
        if not local.strip("/"):
            raise refuse("which is the root of the machine")
        return posixpath.normpath(local)
    if not parts.authority:
        raise refuse("which has no bucket or host")
    # One spelling for each store. Azure's schemes name the host, so theirs stays.
    scheme = kind if kind in ("s3", "gs") else scheme_of(text)
    return f"{scheme}://{parts.authority}{path}"


def without_manifests(location: str) -> str:
    """Return the folder of the table whose manifests are at the location."""
    folder = location.rstrip("/")
    return folder.removesuffix(f"/{MANIFESTS}")
