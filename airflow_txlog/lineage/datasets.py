"""OpenLineage's names of tables and folders of files, and the datasets that an operation reads.

A name follows from the letters of a location. The invariant: it holds no credentials, and is the same for all spellings
of one store's scheme.
Source: OpenLineage, "Naming Conventions".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from airflow_txlog.contract.operations import (
    Delete,
    FileView,
    KeySource,
    Operation,
    QuerySource,
    RowsInProcess,
    SourceOperation,
    TableView,
    View,
)
from airflow_txlog.locations import LOCAL, before_glob, local_path, split, store_kind

# Their names have no slash at the front.
_BUCKETS = ("s3", "gs", "abfss")


class DatasetName(NamedTuple):
    """The identity of a dataset in every tool that reads the events."""

    namespace: str
    name: str


def dataset_name(uri: str) -> DatasetName:
    """Return the name of the table, the file or the folder at an absolute path or URI."""
    path = local_path(uri)
    if path is not None:
        return DatasetName(LOCAL, path.rstrip("/") or "/")
    _, authority, path = split(uri)
    kind = store_kind(uri)
    if kind == "abfss":
        # One container has two hosts, and its name comes before them.
        user, at, host = authority.rpartition("@")
        authority = f"{user.partition(':')[0]}{at}{host.replace('.blob.', '.dfs.', 1)}"
    else:
        authority = authority.rpartition("@")[2]
    name = path.strip("/") if kind in _BUCKETS else path.rstrip("/")
    return DatasetName(f"{kind}://{authority}", name or "/")


def datasets_read(operation: Operation, versions: Mapping[str, int | None]) -> dict[DatasetName, str | None]:
    """Return the datasets of the sources, with their version if it is one; `versions`: of those at their latest."""
    found: dict[DatasetName, set[str | None]] = {}
    for _, part in operation.parts():
        if isinstance(part, TableView):
            version = versions.get(part.table) if part.version is None else part.version
            found.setdefault(dataset_name(part.table), set()).add(None if version is None else str(version))
        elif isinstance(part, FileView):
            for path in part.paths:
                found.setdefault(dataset_name(before_glob(path)), set()).add(None)
    return {name: next(iter(seen)) if len(seen) == 1 else None for name, seen in found.items()}


def sizes_read(
    operation: Operation | None, sizes: Mapping[str, Mapping[str, int]]
) -> dict[DatasetName, Mapping[str, int]]:
    """Return the known `rows`, `bytes` and `files` of the datasets of the operation's source.

    `sizes`: the same by the name of the view. A dataset of two views, and a view of two places, is left out: these may
    be two versions of one table, or overlap.
    """
    match operation:
        case SourceOperation(source=source) | Delete(keys=KeySource(source=source)):
            pass
        case _:
            return {}
    views = source.views if isinstance(source, QuerySource) else {"": source}
    names = {view: [dataset_name(place) for place in _places(read)] for view, read in views.items()}
    all_names = [name for found in names.values() for name in found]
    return {
        found[0]: sizes[view]
        for view, found in names.items()
        if view in sizes and len(found) == 1 and all_names.count(found[0]) == 1
    }


def _places(view: View | RowsInProcess) -> list[str]:
    if isinstance(view, RowsInProcess):
        return []
    return [view.table] if isinstance(view, TableView) else [before_glob(path) for path in view.paths]
