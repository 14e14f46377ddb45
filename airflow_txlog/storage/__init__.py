"""Bytes: list, read, put-if-absent, delete. One module a kind of store, and nothing else in the engine touches a file.

`open_store` chooses by exact scheme. A file system whose put-if-absent is not proven is refused by name: several
answer "created" to two writers at once, and then a commit is lost without a word.
"""

from __future__ import annotations

import os
import re
from typing import Any

from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.storage.base import FileInfo, Store
from airflow_txlog.storage.local import LocalStore
from airflow_txlog.storage.memory import MemoryStore

__all__ = ["FileInfo", "LocalStore", "MemoryStore", "Store", "open_store"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_FILE_URI = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.IGNORECASE | re.DOTALL)
_SUPPORTED = "a local path, file:///path and memory://name"


def open_store(
    uri: str | os.PathLike[str] | Store,
    storage_options: dict[str, Any] | None = None,
    *,
    allow_absolute_paths: bool = False,
) -> Store:
    """The store rooted at a table's URI; nothing is read or written yet.

    A local path may be relative and counts from the working directory. A `Store` is returned as it is.
    `storage_options` are credentials and endpoints for object stores; the stores of today need none.
    `allow_absolute_paths`: data files and deletion vectors that the log names outside of the table, in the same kind of
    store, can be read; also those behind a symlink inside it.

    Raises UnsupportedStore for every file system without a proved put-if-absent.
    """
    if not isinstance(uri, (str, os.PathLike)):
        return uri
    text = os.fspath(uri)
    if not text:
        raise UnsupportedStore(f"UnsupportedStore: an empty URI names no table. Supported: {_SUPPORTED}.", uri=text)
    if "::" in text:
        raise _refused(text, text.split("::", 1)[0], "is a wrapper around another file system")
    match = _SCHEME.match(text)
    # A path is a URI only where the scheme is followed by a slash; `a:b` is a file name like any other.
    if match is None or not text[match.end() :].startswith("/"):
        return LocalStore(text, allow_absolute_paths=allow_absolute_paths)
    scheme = match[1].lower()
    if scheme == "file":
        found = _FILE_URI.fullmatch(text)
        if found is None:
            raise _refused(text, scheme, "names another host")
        return LocalStore(found[1], allow_absolute_paths=allow_absolute_paths)
    if scheme == "memory":
        return MemoryStore(text, allow_absolute_paths=allow_absolute_paths)
    raise _refused(text, scheme, "has no put-if-absent that this engine supports today")


def _refused(uri: str, filesystem: str, why: str) -> UnsupportedStore:
    return UnsupportedStore(
        f'UnsupportedStore: the file system "{filesystem}" of {uri} {why}. Supported: {_SUPPORTED}. '
        "Nothing was read or written.",
        uri=uri,
        filesystem=filesystem,
    )
