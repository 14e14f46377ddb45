"""Opening, sizing and deleting a data file by its location, wherever the code runs.

A location is what a driver gives an executor: an absolute local path, or a URL that fsspec knows. It is decoded, so a
`%` in it is a percent sign. Credentials are never part of it: each process uses its own. In a local path two slashes
stand behind the table's folder: below them nothing is followed as a link (`local_files`).

    /lake/t//day=1/f.parquet   a file of the table in /lake/t
    /lake/t/day=1/f.parquet    a file anywhere, which can only be read; its links are followed

The invariants: a local file is written or deleted only below a folder that its location names; and it never goes
through a Python file object, because every read and write would then cross the interpreter.
"""

from __future__ import annotations

import errno
import os
import stat as stat_bits
from typing import Any

import fsspec

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.storage import local_files

_LOCAL = "file://"
_ROOT_END = "//"

PRIVATE_PREFIX = "txlog-inputs-"
"""Names the folders of what a job keeps beside a table's data: rows of sources, keys, saved work."""


def location_of(root: str, path: str) -> str:
    """The location of a file in a table: `root` is the table's URI, `path` is relative to it."""
    return inside(outer_location(root), path)


def outer_location(uri: str) -> str:
    """The location of an absolute URI: of a table's folder, or of a file that can only be read."""
    return uri.removeprefix(_LOCAL) if uri.startswith(_LOCAL + "/") else uri


def inside(folder: str, path: str) -> str:
    """The location of `path` below a folder that has a location: a table's, or one inside a table's."""
    return f"{folder}{'/' if _ROOT_END in folder or not is_local(folder) else _ROOT_END}{path}"


def below(folder: str, location: str) -> str:
    """The path that `inside` made a location of."""
    return location.removeprefix(folder).lstrip("/")


def readable(location: str) -> str:
    """The location as people know it."""
    return location.replace(_ROOT_END, "/", 1) if is_local(location) else location


def is_local(location: str) -> bool:
    """Whether the location is a path of this machine's file system."""
    return location.startswith("/")


def scheme_of(uri: str) -> str:
    """The scheme of an absolute URI, in small letters."""
    return uri.partition("://")[0].lower()


def open_local(location: str) -> int:
    """A descriptor of a local file, to read. Raises FileNotFoundError, OutsideTable, or another OSError."""
    root, end, path = location.partition(_ROOT_END)
    return local_files.open_to_read(root, path) if end else local_files.open_linked(location)


def open_input(location: str) -> tuple[Any, int]:
    """A seekable binary file for pyarrow, and its size in bytes. Raises FileNotFoundError, OutsideTable, OSError."""
    if is_local(location):
        source = local_files.arrow_file(open_local(location))
        return source, source.size()
    filesystem, path = fsspec.core.url_to_fs(location)
    # The size is asked of the store itself: a cached listing may be older than the file.
    filesystem.invalidate_cache()
    size_bytes = int(filesystem.size(path))
    return filesystem.open(path, "rb"), size_bytes


def open_output(location: str) -> Any:
    """A binary file to write; missing directories are made. Raises FileExistsError where the local name is taken.

    A local file in a folder named PRIVATE_PREFIX… can be read by this user alone.
    """
    if is_local(location):
        root, path = _in_table(location)
        is_private = path.startswith(PRIVATE_PREFIX)
        return local_files.arrow_file(local_files.open_to_write(root, path, is_private=is_private), "w")
    filesystem, path = fsspec.core.url_to_fs(location)
    filesystem.makedirs(filesystem._parent(path), exist_ok=True)
    return filesystem.open(path, "wb")


def stat(location: str) -> os.stat_result | None:
    """What the file system says of a local path; None where nothing is. Raises OutsideTable."""
    root, end, path = location.partition(_ROOT_END)
    if end:
        return local_files.stat_of(root, path)
    try:
        return os.stat(location)
    except (FileNotFoundError, NotADirectoryError):
        return None


def size_and_time(location: str) -> tuple[int, int]:
    """Bytes and modification time (milliseconds since the epoch) of a file that was just closed."""
    if is_local(location):
        found = stat(location)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), readable(location))
        return found.st_size, found.st_mtime_ns // 1_000_000
    filesystem, path = fsspec.core.url_to_fs(location)
    filesystem.invalidate_cache()
    return int(filesystem.size(path)), SYSTEM_CLOCK.now_ms()


def exists(location: str) -> bool:
    """Whether a file is there now, whatever a listing of earlier said."""
    if is_local(location):
        found = stat(location)
        return found is not None and stat_bits.S_ISREG(found.st_mode)
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
            local_files.delete(*_in_table(location))
        else:
            filesystem, path = fsspec.core.url_to_fs(location)
            filesystem.rm_file(path)
    except FileNotFoundError:
        pass


def _in_table(location: str) -> tuple[str, str]:
    """The table's folder and the path below it. Raises ValueError for a location that names none."""
    root, end, path = location.partition(_ROOT_END)
    if not end:
        raise ValueError(f"{location!r} is in no table's folder: it is refused, nothing was touched")
    return root, path
