"""Opening, sizing and deleting a data file by its location, wherever the code runs.

A location is what a driver tells an executor: an absolute local path, or a URL that fsspec knows. It is decoded, so a
`%` in it is a percent sign. Credentials are never part of it: each process uses its own. The invariant: a local file
never goes through a Python file object, because every read and write would then cross the interpreter.
"""

from __future__ import annotations

import os
import time
from typing import Any

import fsspec
import pyarrow as pa

_LOCAL = "file://"


def location_of(root: str, path: str) -> str:
    """The location of a store's object: `root` is the table's URI, `path` is relative to it or an absolute URI."""
    absolute = path if "://" in path or path.startswith("/") else f"{root}/{path}"
    return absolute.removeprefix(_LOCAL) if absolute.startswith(_LOCAL + "/") else absolute


def is_local(location: str) -> bool:
    """Whether the location is a path of this machine's file system."""
    return location.startswith("/")


def open_input(location: str) -> tuple[Any, int]:
    """A seekable binary file for pyarrow, and its size in bytes. Raises FileNotFoundError, or another OSError."""
    if is_local(location):
        source = pa.OSFile(location)
        return source, source.size()
    filesystem, path = fsspec.core.url_to_fs(location)
    # The size is asked of the store itself: a cached listing may be older than the file.
    filesystem.invalidate_cache()
    size_bytes = int(filesystem.size(path))
    return filesystem.open(path, "rb"), size_bytes


def open_output(location: str) -> Any:
    """A binary file to write; missing directories are made. The name must be one that nobody else uses."""
    if is_local(location):
        os.makedirs(os.path.dirname(location), exist_ok=True)
        return pa.OSFile(location, "wb")
    filesystem, path = fsspec.core.url_to_fs(location)
    filesystem.makedirs(filesystem._parent(path), exist_ok=True)
    return filesystem.open(path, "wb")


def size_and_time(location: str) -> tuple[int, int]:
    """Bytes and modification time (milliseconds since the epoch) of a file that was just closed."""
    if is_local(location):
        found = os.stat(location)
        return found.st_size, found.st_mtime_ns // 1_000_000
    filesystem, path = fsspec.core.url_to_fs(location)
    filesystem.invalidate_cache()
    return int(filesystem.size(path)), time.time_ns() // 1_000_000


def exists(location: str) -> bool:
    """Whether a file is there now, whatever a listing of earlier said."""
    if is_local(location):
        return os.path.exists(location)
    filesystem, path = fsspec.core.url_to_fs(location)
    filesystem.invalidate_cache()
    return bool(filesystem.exists(path))


def read_bytes(location: str) -> bytes:
    """The whole content. Raises FileNotFoundError."""
    source, size_bytes = open_input(location)
    with source:
        return bytes(source.read(size_bytes))


def delete(location: str) -> None:
    """Delete one file; one that is gone already is no error."""
    try:
        if is_local(location):
            os.unlink(location)
        else:
            filesystem, path = fsspec.core.url_to_fs(location)
            filesystem.rm_file(path)
    except FileNotFoundError:
        pass
