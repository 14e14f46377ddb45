"""Places of tables and sources: one name for each, and whether other processes than this one reach it."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.locations import local_path, scheme_of, split, store_kind
from airflow_txlog.storage.local_files import real_path


def check_reachable(root: str) -> None:
    """Raises UnsupportedStore for what lives in this process's memory: executors could not see it."""
    if scheme_of(root) == "memory":
        raise UnsupportedStore(
            f"{root} is in this process's memory, where Spark's workers cannot read or write it. Use a path.",
            uri=root,
            filesystem="memory",
        )


def canonical(uri: str) -> str:
    """A URI such that two names of one folder are equal, symbolic links of this machine included (soundness C7)."""
    return place_of(resolved(uri))


def place_of(uri: str) -> str:
    """The canonical form of what `resolved` gave, without another look at the file system."""
    scheme, authority, path = split(uri)
    return path if scheme is None else f"{store_kind(uri)}://{authority}{path}"


def resolved(uri: str) -> str:
    """The same, under a scheme that Spark knows."""
    path = local_path(uri)
    return uri.rstrip("/") if path is None else real_path(path)


def with_folders_above(place: str) -> Iterator[str]:
    """A path or a URI, and every folder above it, up to the root of its store."""
    scheme, separator, rest = place.rpartition("://")
    parts = rest.split("/")
    for end in range(len(parts), 0, -1):
        yield scheme + separator + "/".join(parts[:end])
