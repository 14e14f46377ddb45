"""A store in the memory of this process, over fsspec's "memory" filesystem, so that pyarrow and others see its files.

fsspec's own exclusive create looks first and writes afterwards, and loses commits when threads switch between the
two. Here the one atomic step is `dict.setdefault`, which the interpreter does not interrupt.
Source: docs/decisions/put-if-absent.md.
"""

from __future__ import annotations

import builtins
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.limits import LOG_FILE
from airflow_txlog.storage.base import FileInfo
from airflow_txlog.storage.confine import location_within
from airflow_txlog.storage.local_files import inner_parts
from airflow_txlog.storage.output import Output

SCHEME = "memory"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryStore:
    """Files under one prefix of the process-wide memory filesystem. It has no directories."""

    def __init__(self, uri: str, *, clock: Clock = SYSTEM_CLOCK, allow_absolute_paths: bool = False) -> None:
        """`uri` is `memory://name/table`; `clock` gives the files their times.

        `allow_absolute_paths`: data files that lie elsewhere in this memory can be read.
        """
        name = uri.removeprefix(f"{SCHEME}:").strip("/")
        if not name:
            raise UnsupportedStore(f"UnsupportedStore: {uri!r} names no table; write memory://name.", uri=uri)
        self._fs = MemoryFileSystem()
        # Looked up on every call would be another dict where a test replaces it; one store keeps one.
        self._files: dict[str, MemoryFile] = self._fs.store
        self._prefix = f"/{name}/"
        self._root = f"{SCHEME}://{name}"
        self._clock = clock
        self._allow_absolute_paths = allow_absolute_paths

    @property
    def root(self) -> str:
        return self._root

    def location(self, path: str) -> str:
        return location_within(self._root, path, self._allow_absolute_paths)

    def read(self, path: str) -> bytes:
        file = self._files.get(self._key(path))
        if file is None:
            raise FileNotFoundError(f"{self._root}/{path}")
        LOG_FILE.check(file.size, path, self._root, path)
        data: bytes = file.getvalue()
        return data

    def list(self, directory: str, *, start_from: str | None = None) -> list[FileInfo]:
        prefix = f"{self._key(directory)}/" if directory else self._prefix
        found = []
        # tuple() of a dict is one step of the interpreter; iterating it is not.
        for key in tuple(self._files):
            if not key.startswith(prefix):
                continue
            name = key[len(prefix) :]
            if "/" not in name and (start_from is None or name >= start_from):
                found.append(key)
        return [info for info in map(self._info, sorted(found)) if info is not None]

    def walk(self, on_unreadable: Callable[[str], object] | None = None) -> Iterator[FileInfo]:
        for key in tuple(self._files):
            if key.startswith(self._prefix):
                info = self._info(key)
                if info is not None:
                    yield info

    def stat(self, path: str) -> FileInfo | None:
        return self._info(self._key(path))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        key = self._key(path)
        file = self._file(key, data)
        return self._files.setdefault(key, file) is file

    def put(self, path: str, data: bytes) -> None:
        key = self._key(path)
        self._files[key] = self._file(key, data)

    def open_output(self, path: str) -> Output:
        self._key(path)
        buffer = io.BytesIO()
        return Output(buffer, publish=lambda: self.put(path, buffer.getvalue()), discard=buffer.close)

    def open_input(self, path: str) -> Any:
        # A MemoryFile has one position for all its readers; every reader here gets its own.
        return io.BytesIO(self.read(path))

    def delete(self, path: str) -> None:
        self._files.pop(self._key(path), None)

    def delete_empty_directory(self, path: str) -> bool:
        inner_parts(path)
        return False

    def list_directories(self) -> builtins.list[str]:
        return []

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def _key(self, path: str) -> str:
        return self._prefix + "/".join(inner_parts(path.removeprefix(f"{self._root}/")))

    def _file(self, key: str, data: bytes) -> MemoryFile:
        file = MemoryFile(self._fs, key, bytes(data))
        file.created = file.modified = _EPOCH + timedelta(milliseconds=self._clock.now_ms())
        return file

    def _info(self, key: str) -> FileInfo | None:
        file = self._files.get(key)
        if file is None:  # deleted since it was listed
            return None
        modified_ms = (file.modified - _EPOCH) // timedelta(milliseconds=1)
        return FileInfo(path=key[len(self._prefix) :], size_bytes=file.size, modified_ms=modified_ms)
