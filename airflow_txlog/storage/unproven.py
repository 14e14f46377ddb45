"""A table on a file system without a proven put-if-absent, for one writer at a time, over fsspec's public methods.

`put_if_absent` checks and then writes, so two writers can both get the answer that they made a version.
So such a store needs `Access.single_writer`, and warns at every commit. Inside one process it is safe. Files appear by
a move of a temporary file; whether they appear whole depends on the file system.
"""

from __future__ import annotations

import builtins
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import pyarrow as pa
from fsspec import get_filesystem_class
from fsspec.core import url_to_fs

from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.locations import Access, is_inside, split
from airflow_txlog.storage.base import (
    FileInfo,
    Output,
    Store,
    check_may_read,
    inner_parts,
    temporary_path,
)
from airflow_txlog.storage.limits import LOG_FILE

log = logging.getLogger(__name__)

# Wrappers around another file system, and other names of this machine's disk.
_WRAPPERS = frozenset(
    (
        *("simplecache", "filecache", "blockcache", "cached", "dir", "async_wrapper", "generic", "reference"),
        *("zip", "tar", "libarchive", "data", "local"),
    )
)
_MODIFIED = ("mtime", "last_modified", "LastModified", "modified", "modificationTime", "updated", "created")
_COMMITS = threading.Lock()


def may_hold_a_table(scheme: str) -> bool:
    """Return whether fsspec has a file system for this scheme that is no wrapper and whose client is installed."""
    if scheme in _WRAPPERS:
        return False
    try:
        get_filesystem_class(scheme)
    except (ValueError, ImportError):
        return False
    return True


class UnprovenStore(Store):
    """The files under one folder of a file system that fsspec knows. Directories are neither listed nor deleted."""

    is_remote = True

    def __init__(self, uri: str, access: Access) -> None:
        """Raise UnsupportedStore for a URI that names no folder."""
        scheme, authority, path = split(uri)
        folder = path.rstrip("/")
        if not folder.strip("/") and not authority:
            raise UnsupportedStore(f"UnsupportedStore: {uri!r} names no folder.", uri=uri, filesystem=scheme)
        super().__init__(f"{scheme}://{authority}{folder}", access)
        # By process: a client is unusable in a forked child.
        self._clients: dict[int, tuple[Any, str]] = {}

    def read(self, path: str) -> bytes:
        fs, name = self._at(path)
        LOG_FILE.check(int(fs.info(name)["size"]), path, self.root, path)
        data: bytes = fs.cat_file(name)
        return data

    def list(self, directory: str, *, start_from: str | None = None) -> builtins.list[FileInfo]:
        fs, folder = self._at(directory)
        try:
            found = fs.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        first = f"{directory}/{start_from or ''}".removeprefix("/")
        infos = [self._info(each) for each in found if each["type"] == "file"]
        return sorted((info for info in infos if info.path >= first), key=lambda info: info.path)

    def walk(
        self, on_unreadable: Callable[[str], object] | None = None, *, prefix: str = "", lazily: bool = False
    ) -> Iterator[FileInfo]:
        fs, folder = self._at("")
        infos = (self._info(each) for each in fs.find(folder, detail=True).values())
        return (info for info in infos if info.path.startswith(prefix))

    def stat(self, path: str) -> FileInfo | None:
        fs, name = self._at(self._to_read(path))
        try:
            found = fs.info(name)
        except FileNotFoundError:
            return None
        return self._info(found) if found["type"] == "file" else None

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.inner(path)
        log.warning(
            "%s is on a file system without put-if-absent, and single_writer is set: a second writer at this moment "
            "would replace the commit %s, or be replaced by it, without an error",
            self.root,
            path,
        )
        fs, name = self._at(path)
        with _COMMITS:
            if fs.exists(name):
                return False
            self.put(path, data)
        return True

    def put(self, path: str, data: bytes) -> None:
        with self.open_output(path) as file:
            file.write(data)

    def open_output(self, path: str) -> Output:
        return self._output(path, is_new=False)

    def open_new(self, path: str) -> Output:
        return self._output(path, is_new=True)

    def _output(self, path: str, *, is_new: bool) -> Output:
        fs, name = self._at(self.inner(path))
        folder = name.rpartition("/")[0]
        _, temporary = self._at(temporary_path(path))
        fs.makedirs(folder, exist_ok=True)
        sink = fs.open(temporary, "wb")

        def publish() -> None:
            sink.close()
            if is_new and fs.exists(name):
                raise self.os_error(errno.EEXIST, path)
            fs.mv(temporary, name)

        def discard() -> None:
            # fsspec's files can only be closed: the temporary file appears, and is then deleted.
            with suppress(FileNotFoundError):
                sink.close()
                fs.rm_file(temporary)

        return Output(sink, publish=publish, discard=discard)

    def open_input(self, path: str) -> pa.NativeFile:
        fs, name = self._at(self._to_read(path))
        return pa.PythonFile(fs.open(name, "rb"), mode="r")

    def open_whole(self, path: str, size_bytes: int, *, is_read_again: bool = False) -> pa.NativeFile:
        fs, name = self._at(self._to_read(path))
        with fs.open(name, "rb") as file:
            # One byte more shows a file that is longer than it should be.
            data: bytes = file.read(size_bytes + 1)
        return pa.BufferReader(data) if len(data) == size_bytes else self.open_input(path)

    def delete(self, path: str) -> None:
        fs, name = self._at(self.inner(path))
        with suppress(FileNotFoundError):
            fs.rm_file(name)

    def now_ms(self) -> int:
        """Return the modification time of a file written now."""
        path = temporary_path("clock")
        self.put(path, b"")
        try:
            found = self.stat(path)
        finally:
            self.delete(path)
        if found is None:
            raise self.os_error(errno.ENOENT, path)
        return found.modified_ms

    # --- names ------------------------------------------------------------------------------------------------------

    def _client(self) -> tuple[Any, str]:
        """Return the file system, and its name of the table's folder."""
        process = os.getpid()
        if process not in self._clients:
            fs, folder = url_to_fs(self.root, skip_instance_cache=True, **self.access.storage_options)
            self._clients.setdefault(process, (fs, folder.rstrip("/")))
        return self._clients[process]

    def _at(self, path: str) -> tuple[Any, str]:
        """Return the file system, with its cache cleared, and its name of a file or folder of the table."""
        fs, folder = self._client()
        fs.invalidate_cache()
        return fs, f"{folder}/{'/'.join(inner_parts(path))}" if path else folder

    def _to_read(self, path: str) -> str:
        path = path.removeprefix(f"{self.root}/")
        check_may_read(self.root, path, self.access)
        if not is_inside(path):
            raise UnsupportedStore(
                f"UnsupportedStore: the log of {self.root} names the file {path} outside of the table, which is not "
                "read on this kind of file system. Nothing of it was read.",
                uri=path,
            )
        return path

    def _info(self, found: Mapping[str, Any]) -> FileInfo:
        fs, folder = self._client()
        path = str(found["name"]).lstrip("/").removeprefix(f"{folder.lstrip('/')}/")
        return FileInfo(path=path, size_bytes=int(found["size"]), modified_ms=_modified_ms(fs, found))


def _modified_ms(fs: Any, found: Mapping[str, Any]) -> int:
    time = next((found[name] for name in _MODIFIED if found.get(name) is not None), None)
    if not isinstance(time, datetime | int | float):
        time = fs.modified(found["name"])
    if isinstance(time, datetime):
        return int(time.timestamp() * 1000)
    # A number is one of seconds, and WebHDFS's one of milliseconds.
    return int(time if time > 1e11 else time * 1000)
