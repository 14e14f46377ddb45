"""A table on a file system without a proven put-if-absent, for one writer at a time, over fsspec's public methods.

`put_if_absent` looks and then writes: two writers can both be answered that they made a version, and one commit is
lost. So such a store is opened only with `Access.single_writer`, and says so in the log at every commit. Inside one
process it is safe. Files appear by a move of a temporary one; how whole they appear is the file system's business.
"""

from __future__ import annotations

import builtins
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import pyarrow as pa
from fsspec import get_filesystem_class
from fsspec.core import url_to_fs

from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.locations import Access, is_inside, split
from airflow_txlog.storage.base import FileInfo, Output, check_may_read
from airflow_txlog.storage.bucket import Connection, side_by_side
from airflow_txlog.storage.limits import LOG_FILE, USUAL, Limits
from airflow_txlog.storage.local_files import inner_parts, temporary_path

log = logging.getLogger(__name__)

# What stands before another file system, or is this machine's disk under another name.
_WRAPPERS = frozenset(
    (
        *("simplecache", "filecache", "blockcache", "cached", "dir", "async_wrapper", "generic", "reference"),
        *("zip", "tar", "libarchive", "data", "local"),
    )
)
_MODIFIED = ("mtime", "last_modified", "LastModified", "modified", "modificationTime", "updated", "created")
_COMMITS = threading.Lock()


def may_hold_a_table(scheme: str) -> bool:
    """Whether fsspec has a file system for this scheme, its client is installed, and it is no wrapper."""
    if scheme in _WRAPPERS:
        return False
    try:
        get_filesystem_class(scheme)
    except (ValueError, ImportError):
        return False
    return True


class UnprovenStore:
    """The files under one folder of a file system that fsspec knows. Directories are neither listed nor deleted."""

    is_remote = True
    deletes_at_once = 1
    limits: Limits = USUAL

    def __init__(self, uri: str, access: Access) -> None:
        """Raises UnsupportedStore for a URI that names no folder."""
        scheme, authority, path = split(uri)
        folder = path.rstrip("/")
        if not folder.strip("/") and not authority:
            raise UnsupportedStore(f"UnsupportedStore: {uri!r} names no folder.", uri=uri, filesystem=scheme)
        self._root = f"{scheme}://{authority}{folder}"
        self._access = access
        self._connection = Connection(self._open)

    @property
    def root(self) -> str:
        return self._root

    @property
    def access(self) -> Access:
        return self._access

    def at_once(self) -> UnprovenStore:
        return self

    def read(self, path: str) -> bytes:
        fs, name = self._at(path)
        LOG_FILE.check(int(fs.info(name)["size"]), path, self._root, path)
        data: bytes = fs.cat_file(name)
        return data

    def read_all(self, paths: Sequence[str]) -> Iterator[bytes]:
        return side_by_side(self.read, paths)

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
        self._inner(path)
        log.warning(
            "%s is on a file system without put-if-absent, and single_writer is set: a second writer at this moment "
            "would replace the commit %s, or be replaced by it, without an error",
            self._root,
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
        fs, name = self._at(self._inner(path))
        folder = name.rpartition("/")[0]
        _, temporary = self._at(temporary_path(path))
        fs.makedirs(folder, exist_ok=True)
        sink = fs.open(temporary, "wb")

        def publish() -> None:
            sink.close()
            if is_new and fs.exists(name):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{self._root}/{path}")
            fs.mv(temporary, name)

        def discard() -> None:
            # Closing is what fsspec's files have to end them: the temporary name appears, and is deleted.
            with suppress(FileNotFoundError):
                sink.close()
                fs.rm_file(temporary)

        return Output(sink, publish=publish, discard=discard)

    def open_input(self, path: str) -> pa.NativeFile:
        fs, name = self._at(self._to_read(path))
        return pa.PythonFile(fs.open(name, "rb"), mode="r")

    def delete(self, path: str) -> None:
        fs, name = self._at(self._inner(path))
        with suppress(FileNotFoundError):
            fs.rm_file(name)

    def delete_many(self, paths: Sequence[str]) -> dict[str, Exception]:
        failures: dict[str, Exception] = {}
        for path in paths:
            try:
                self.delete(path)
            except (OSError, ValueError) as error:
                failures[path] = error
        return failures

    def delete_empty_directory(self, path: str) -> bool:
        inner_parts(path)
        return False

    def list_directories(self) -> builtins.list[str]:
        return []

    def abort_unfinished(self, before_ms: int) -> int:
        return 0

    def now_ms(self) -> int:
        """The modification time of a file written now."""
        path = temporary_path("clock")
        self.put(path, b"")
        try:
            found = self.stat(path)
        finally:
            self.delete(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self._root}/{path}")
        return found.modified_ms

    # --- names ------------------------------------------------------------------------------------------------------

    def _open(self) -> tuple[Any, str]:
        fs, folder = url_to_fs(self._root, skip_instance_cache=True, **self._access.storage_options)
        return fs, folder.rstrip("/")

    def _at(self, path: str) -> tuple[Any, str]:
        """The file system, which has forgotten what it listed, and its name of a file or a folder of the table."""
        fs, folder = self._connection.client()
        fs.invalidate_cache()
        inner = "/".join(inner_parts(path)) if path else ""
        return fs, f"{folder}/{inner}" if inner else folder

    def _inner(self, path: str) -> str:
        return "/".join(inner_parts(path.removeprefix(f"{self._root}/")))

    def _to_read(self, path: str) -> str:
        path = path.removeprefix(f"{self._root}/")
        check_may_read(self._root, path, self._access)
        if not is_inside(path):
            raise UnsupportedStore(
                f"UnsupportedStore: the log of {self._root} names the file {path} outside of the table, which is not "
                "read on this kind of file system. Nothing of it was read.",
                uri=path,
            )
        return path

    def _info(self, found: Mapping[str, Any]) -> FileInfo:
        fs, folder = self._connection.client()
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
