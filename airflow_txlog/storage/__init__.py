"""Bytes: every file of a table is opened, read, written, listed and deleted here.

`open_store` is the only way to a store: it chooses one by the scheme of the URI, from `STORES`. It refuses file systems
whose put-if-absent is not proven, unless there is a single writer: some answer "created" to two writers at once, and a
commit is lost silently. A new kind of store is one module and one line in `STORES`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.locations import (
    LOCAL,
    PLAIN,
    Access,
    can_name_a_file,
    canonical_place,
    local_path,
    scheme_of,
    shown,
    split,
)
from airflow_txlog.storage.base import FileInfo, Store
from airflow_txlog.storage.limits import USUAL, Limits
from airflow_txlog.storage.local import LocalStore

if TYPE_CHECKING:
    from airflow_txlog.storage.memory import MemoryStore
else:

    def __getattr__(name: str) -> object:
        # Imported on first use: fsspec takes longer to import than all modules of this package.
        if name != "MemoryStore":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("airflow_txlog.storage.memory").MemoryStore


__all__ = [
    "PLAIN",
    "Access",
    "FileInfo",
    "LocalStore",
    "MemoryStore",
    "Store",
    "StoreReference",
    "open_folder",
    "open_named_file",
    "open_store",
]

_SUPPORTED = (
    "a local path, file:///path, memory://name, s3://bucket/folder, gs://bucket/folder and "
    "abfss://container@account.dfs.core.windows.net/folder"
)


def _open_local(uri: str, access: Access) -> Store:
    path = local_path(uri)
    if path is None:
        raise _refused(uri, LOCAL, "names another host")
    return LocalStore(path, access)


def _open_memory(uri: str, access: Access) -> Store:
    from airflow_txlog.storage.memory import MemoryStore

    return MemoryStore(uri, access)


def _open_remote(kind: str, uri: str, access: Access) -> Store:
    try:
        module = import_module(f"airflow_txlog.storage.{kind}")
    except ModuleNotFoundError as error:
        raise UnsupportedStore(
            f"UnsupportedStore: {uri} needs the package {error.name}, which is not installed on {os.uname().nodename}. "
            f"Install airflow-provider-txlog[{kind}] where tasks and executors run. Nothing was read or written.",
            uri=uri,
            filesystem=kind,
        ) from error
    store: Store = module.open_at(uri, access)
    return store


STORES: dict[str, Callable[[str, Access], Store]] = {
    LOCAL: _open_local,
    "memory": _open_memory,
    **dict.fromkeys(("s3", "s3a", "s3n"), partial(_open_remote, "s3")),
    **dict.fromkeys(("gs", "gcs"), partial(_open_remote, "gcs")),
    **dict.fromkeys(("abfss", "abfs", "wasbs", "wasb", "az"), partial(_open_remote, "azure")),
}
"""How a URI of each scheme is opened; the scheme of a path is LOCAL."""


def open_store(uri: str | os.PathLike[str] | Store, access: Access, limits: Limits = USUAL) -> Store:
    """Return the store rooted at a table's URI, or a `Store` as it is. Nothing is read or written yet.

    A relative local path counts from the working directory. Raises UnsupportedStore for a file system without a proven
    put-if-absent, unless `access.single_writer`. A table of `access.catalog_tables` is opened with its own credentials,
    and with its catalog if that manages it.
    """
    if not isinstance(uri, (str, os.PathLike)):
        return uri
    place = canonical_place(os.fspath(uri)) if access.catalog_tables else ""
    table = access.catalog_table(place)
    if table is not None and table.storage_conn_id is not None:
        access = dataclasses.replace(access, storage_conn_id=table.storage_conn_id)
    store = _opened(uri, access)
    store.limits = limits
    if table is not None and table.is_managed and table.uri == place:
        from airflow_txlog.storage.unity_commits import managed

        return managed(store, table)
    return store


def open_folder(uri: str, access: Access, limits: Limits = USUAL) -> Store:
    """Return the store of a folder in which tables are looked for; it may be a whole bucket.

    Raises as `open_store`.
    """
    parts = split(uri)
    if scheme_of(uri) == LOCAL or not parts.authority or parts.path.strip("/"):
        return open_store(uri, access, limits)
    return open_store(f"{uri.rstrip('/')}/-", access, limits).whole_bucket() or open_store(uri, access, limits)


def _opened(uri: str | os.PathLike[str], access: Access) -> Store:
    text = os.fspath(uri)
    if not text:
        raise UnsupportedStore(f"UnsupportedStore: an empty URI names no table. Supported: {_SUPPORTED}.", uri=text)
    if not can_name_a_file(text):
        raise UnsupportedStore(
            f"UnsupportedStore: {text!r} names no table: a place has neither NUL nor half of a character in it. "
            f"Supported: {_SUPPORTED}. Nothing was read or written.",
            uri=ascii(text),
        )
    user, at, _ = split(text).authority.rpartition("@")
    if at and ":" in user:
        raise UnsupportedStore(
            f"UnsupportedStore: {shown(text)} has a user and a password, which logs would show. Remove them "
            "from the URI, and name a connection that has them: storage_conn_id. Nothing was read or written.",
            uri=shown(text),
        )
    if "::" in text:
        raise _refused(text, text.split("::", 1)[0], "is a wrapper around another file system")
    scheme = scheme_of(text)
    if scheme in STORES:
        return STORES[scheme](text, access)
    if access.single_writer:
        from airflow_txlog.storage.unproven import UnprovenStore, may_hold_a_table

        if may_hold_a_table(scheme):
            return UnprovenStore(text, access)
    why = "has no proven put-if-absent (a file system that fsspec knows can hold tables of one writer: single_writer)"
    raise _refused(text, scheme, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReference:
    """A store as it travels to another process, which opens it once for all the files of a task."""

    root: str
    access: Access
    limits: Limits = USUAL
    here: Store | None = dataclasses.field(default=None, compare=False, repr=False)
    """The store, open in this process: tasks here share it, and the files that it keeps (`open_whole`)."""

    @classmethod
    def of(cls, store: Store) -> StoreReference:
        """Return the reference to an open store."""
        return cls(root=store.root, access=store.access, limits=store.limits, here=store)

    def open(self) -> Store:
        """Return the store. Raises UnsupportedStore."""
        return self.here or open_store(self.root, self.access, self.limits)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(StoreReference, root=self.root, access=self.access, limits=self.limits), ()


def open_named_file(uri: str, access: Access) -> Any:
    """Open a file that a person names by its own path or URI, as `Store.open_input` does; links are followed.

    Raises FileNotFoundError, UnsupportedStore, OSError.
    """
    folder, slash, name = (local_path(uri) or uri).rpartition("/")
    linked = dataclasses.replace(access, allow_absolute_paths=True)
    return open_store((folder or slash) or ".", linked).open_input(name)


def _refused(uri: str, filesystem: str, why: str) -> UnsupportedStore:
    return UnsupportedStore(
        f'UnsupportedStore: the file system "{filesystem}" of {shown(uri)} {why}. Supported: {_SUPPORTED}. '
        "Nothing was read or written.",
        uri=shown(uri),
        filesystem=filesystem,
    )
