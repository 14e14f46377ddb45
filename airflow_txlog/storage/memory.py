"""A store in the memory of this process, over fsspec's "memory" file system, so that pyarrow and others see its files.

fsspec's own exclusive create checks first and writes afterwards, and loses commits between the two. Here the atomic
step is `dict.setdefault`, which the interpreter does not interrupt. Source: docs/decisions/put-if-absent.md.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.locations import PLAIN, Access, is_inside, split
from airflow_txlog.storage.base import FileInfo, Output, Store, check_may_read
from airflow_txlog.storage.limits import LOG_FILE

SCHEME = "memory"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryStore(Store):
    """The objects under one name. Every store of this process sees the same objects."""

    def __init__(self, uri: str, access: Access = PLAIN, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """`uri` is `memory://name/table`; `clock` gives the files their times."""
        _, authority, path = split(uri)
        name = f"{authority}{path}".strip("/")
        if not name:
            raise UnsupportedStore(f"UnsupportedStore: {uri!r} names no table; write memory://name.", uri=uri)
        super().__init__(f"{SCHEME}://{name}", access)
        self._fs = MemoryFileSystem()
        # Looked up once: a test may replace the dict, and one store must keep one.
        self._files: dict[str, MemoryFile] = self._fs.store
        self._prefix = f"/{name}/"
        self._clock = clock

    def read(self, path: str) -> bytes:
        file = self._files.get(self._key(path))
        if file is None:
            raise self.os_error(errno.ENOENT, path)
        LOG_FILE.check(file.size, path, self.root, path)
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

    def walk(
        self, on_unreadable: Callable[[str], object] | None = None, *, prefix: str = "", lazily: bool = False
    ) -> Iterator[FileInfo]:
        for key in tuple(self._files):
            if key.startswith(self._prefix + prefix):
                info = self._info(key)
                if info is not None:
                    yield info

    def stat(self, path: str) -> FileInfo | None:
        return self._info(self._key_to_read(path), path)

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

    def open_new(self, path: str) -> Output:
        if self._key(path) in self._files:
            raise self.os_error(errno.EEXIST, path)
        buffer = io.BytesIO()

        def publish() -> None:
            if not self.put_if_absent(path, buffer.getvalue()):
                raise self.os_error(errno.EEXIST, path)

        return Output(buffer, publish=publish, discard=buffer.close)

    def open_input(self, path: str) -> pa.NativeFile:
        file = self._files.get(self._key_to_read(path))
        if file is None:
            raise self.os_error(errno.ENOENT, path)
        # A MemoryFile has one position for all its readers; every reader here gets its own.
        return pa.BufferReader(file.getvalue())

    def delete(self, path: str) -> None:
        self._files.pop(self._key(path), None)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def _key(self, path: str) -> str:
        return self._prefix + self.inner(path)

    def _key_to_read(self, path: str) -> str:
        """Return the key of a data file, which the log may name elsewhere in this memory. Raises OutsideTable."""
        path = path.removeprefix(f"{self.root}/")
        check_may_read(self.root, path, self.access)
        return self._key(path) if is_inside(path) else path.removeprefix(f"{SCHEME}:/")

    def _file(self, key: str, data: bytes) -> MemoryFile:
        file = MemoryFile(self._fs, key, bytes(data))
        file.created = file.modified = _EPOCH + timedelta(milliseconds=self._clock.now_ms())
        return file

    def _info(self, key: str, path: str | None = None) -> FileInfo | None:
        file = self._files.get(key)
        if file is None:  # deleted since it was listed
            return None
        modified_ms = (file.modified - _EPOCH) // timedelta(milliseconds=1)
        return FileInfo(path=path or key[len(self._prefix) :], size_bytes=file.size, modified_ms=modified_ms)
