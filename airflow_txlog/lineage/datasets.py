"""How OpenLineage names a table or a folder of files, and which of them an operation reads.

Reads nothing: a name follows from the letters of a location. The invariant: a name holds no credentials, and is the
same for all spellings of one store's scheme.
Source: OpenLineage, "Naming Conventions".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from airflow_txlog.locations import LOCAL, local_path, split, store_kind
from airflow_txlog.records import FileView, Operation, TableView

_GLOB = re.compile(r"[*?\[{]")
# Their names have no slash at the front.
_BUCKETS = ("s3", "gs", "abfss")


class DatasetName(NamedTuple):
    """What identifies a dataset in every tool that reads the events."""

    namespace: str
    name: str


def dataset_name(uri: str) -> DatasetName:
    """The name of the table, the file or the folder at an absolute path or URI."""
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
    """The datasets of the operation's sources, each with the version that is read, as far as there is one and only one.

    `versions`: of tables that are read at their latest version.
    """
    found: dict[DatasetName, set[str | None]] = {}
    for _, part in operation.parts():
        if isinstance(part, TableView):
            version = versions.get(part.table) if part.version is None else part.version
            found.setdefault(dataset_name(part.table), set()).add(None if version is None else str(version))
        elif isinstance(part, FileView):
            for path in part.paths:
                found.setdefault(dataset_name(folder_of_glob(path)), set()).add(None)
    return {name: next(iter(seen)) if len(seen) == 1 else None for name, seen in found.items()}


def folder_of_glob(path: str) -> str:
    """The path itself, or the folder before its first glob."""
    parts = path.split("/")
    first = next((number for number, part in enumerate(parts) if _GLOB.search(part)), len(parts))
    return "/".join(parts[:first]) or "/"
