"""A file in an object store: read by ranges, and written in parts that no reader sees before the last one is there."""

from __future__ import annotations

import errno
import io
import os
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from airflow_txlog.storage.bucket import Bucket, Content, NameTaken

TAIL_BYTES = 64 * 1024
"""A Parquet file's footer is nearly always in its last 64 KiB: one request for the size, the footer and small files."""

Repeat = Callable[[Callable[[], Any]], Any]
"""Sends a request again while the store does not answer."""


class RangeFile(io.RawIOBase):
    """A file to read. Its size and its end are one request, which is made at once.

    Raises FileNotFoundError when it is made, and OSError (ESTALE) where the object is replaced while it is read.
    """

    def __init__(self, bucket: Bucket, key: str, repeat: Repeat) -> None:
        super().__init__()
        self._bucket, self._key, self._repeat, self._position = bucket, key, repeat, 0
        end: Content = repeat(lambda: bucket.get_tail(key, TAIL_BYTES))
        self._tail, self._size, self._etag = end.data, end.size_bytes, end.etag

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._position + size)
        start, self._position = self._position, max(end, self._position)
        if start >= end:
            return b""
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            return self._tail[start - tail_start : end - tail_start]
        # What is in the tail already is not asked for again.
        asked = min(end, tail_start)
        found: Content = self._repeat(lambda: self._bucket.get(self._key, start, asked))
        if found.etag != self._etag or len(found.data) != asked - start:
            raise OSError(errno.ESTALE, "the object was replaced while it was read", f"{self._bucket.uri}/{self._key}")
        return found.data + self._tail[: end - asked]

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    readall = read


class Upload:
    """A file being written: one put where it is small, else parts, of which two at most are in memory.

    What pyarrow asks of a file is here; only `publish` and `discard` end it.
    """

    closed = False

    def __init__(self, bucket: Bucket, key: str, repeat: Repeat, *, if_absent: bool) -> None:
        self._bucket, self._key, self._repeat, self._if_absent = bucket, key, repeat, if_absent
        self._buffer, self._size = bytearray(), 0
        self._upload: Any = None
        self._parts: list[Any] = []

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._buffer += view
        self._size += len(view)
        while len(self._buffer) >= 2 * self._bucket.part_bytes:
            self._send(self._bucket.part_bytes)
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing to do: nothing is seen before it is published."""

    def publish(self) -> None:
        """Make the object. Raises NameTaken where it must be new and another bears its name."""
        try:
            if self._upload is None:
                data = bytes(self._buffer)
                self._repeat(lambda: self._bucket.put(self._key, data, if_absent=self._if_absent))
            else:
                self._send(len(self._buffer))
                self._repeat(lambda: self._bucket.complete(self._upload, self._parts))
        except (NameTaken, FileNotFoundError):
            # A try whose answer was lost has made it already: no other file has this name, so its size is proof enough.
            found = self._repeat(lambda: self._bucket.head(self._key))
            if found is None or found.size_bytes != self._size or not self._is_ours():
                raise
        self._upload = None

    def discard(self) -> None:
        """Drop what was sent: no reader has seen it.

        Asked for once, and never raises: what led here is what the caller must hear of, and VACUUM drops the rest.
        """
        upload, self._upload = self._upload, None
        if upload is not None:
            with suppress(OSError):
                self._bucket.abort(upload)

    def drop(self) -> None:
        """Discard on another thread: the collector may run on one that holds a lock of the client, and waits for it."""
        if self._upload is not None:
            start_new_thread(self.discard, ())

    def _send(self, size: int) -> None:
        if self._upload is None:
            start = self._bucket.start_upload
            try:
                self._upload = self._repeat(lambda: start(self._key, if_absent=self._if_absent))
            except NameTaken as error:
                where = f"{self._bucket.uri}/{self._key}"
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), where) from error
        number, data = len(self._parts) + 1, bytes(self._buffer[:size])
        self._parts.append(self._repeat(lambda: self._bucket.put_part(self._upload, number, data)))
        del self._buffer[:size]

    def _is_ours(self) -> bool:
        if self._upload is not None:
            return True
        content = self._repeat(lambda: self._bucket.get(self._key))
        return bool(content.data == self._buffer)
