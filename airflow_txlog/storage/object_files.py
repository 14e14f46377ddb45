"""Files of an object store: one that is read by ranges, and one that is being written.

A file that is written becomes visible as a whole, by its last request, or not at all.
"""

from __future__ import annotations

import errno
import io
import os
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import Thread
from typing import Any

from airflow_txlog.storage.bucket import Bucket, Content
from airflow_txlog.storage.clouds import NameTaken

TAIL_BYTES = 64 * 1024
"""A Parquet file's footer is nearly always in its last 64 KiB: one request for the size, the footer and small files."""

Repeat = Callable[[Callable[[], Any]], Any]
"""Sends a request again while the store does not answer."""


class RangeFile(io.RawIOBase):
    """A file to read by ranges. One request, made immediately, gets its size and its end.

    Raises FileNotFoundError when it is made, and OSError (ESTALE) if the object is replaced while it is read.
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
        # The tail is already in memory.
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
    """A file being written: one put if it is small, else parts that no reader sees before the last one.

    A thread for each part sends it while the next one is written. At most `Bucket.parts_at_once` parts are being sent,
    and two more are in memory. A file that waits for more rows holds less than two parts, and soon no thread. pyarrow
    writes to it; only `publish` and `discard` end it.
    """

    closed = False
    is_answered = True
    """Whether the time that `publish` returns comes from the answer to the request that made the object."""

    def __init__(self, bucket: Bucket, key: str, repeat: Repeat, *, if_absent: bool) -> None:
        self._bucket, self._key, self._repeat, self._if_absent = bucket, key, repeat, if_absent
        self._whole: list[bytes] = []
        """Complete parts that are not being sent yet: at most one after each write."""
        self._rest: list[bytes] = []
        """The beginning of the next part."""
        self._rest_bytes = self._size = 0
        self._upload: Any = None
        self._parts: list[Future[Any]] = []
        self._under_way: deque[Future[Any]] = deque()
        self._is_discarded = False
        self._process = os.getpid()

    def write(self, data: Any) -> int:
        """Append bytes. Raises the error of an earlier part, and FileExistsError as `Store.open_new` does.

        A buffer of Arrow passes on what it holds when it is collected. These bytes are ignored if the file is
        discarded, and in a process that was forked from the writer's.
        """
        view = memoryview(data).cast("B")
        if self._is_discarded or os.getpid() != self._process:
            return len(view)
        self._size += len(view)
        start = 0
        while start < len(view):
            end = min(len(view), start + self._bucket.part_bytes - self._rest_bytes)
            # Arrow passes bytes. Another buffer may change after the call.
            self._rest.append(data if type(data) is bytes and end - start == len(view) else bytes(view[start:end]))
            self._rest_bytes += end - start
            start = end
            if self._rest_bytes == self._bucket.part_bytes:
                self._whole.append(self._taken())
                # The second one shows that the file is large.
                while len(self._whole) > 1 or (self._whole and self._upload is not None and self._may_send()):
                    self._send(self._whole.pop(0))
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: nothing is seen before it is published."""

    def close(self) -> None:
        """Do nothing: only `publish` and `discard` end the file."""

    def publish(self) -> int | None:
        """Make the object. Returns as `Bucket.put` does. Raises NameTaken if it must be new and the name is taken."""
        made_ms: int | None
        data = None if self._upload is not None else b"".join([*self._whole, self._taken()])
        try:
            if data is None:
                made_ms = self._complete()
            else:
                made_ms = self._repeat(lambda: self._bucket.put(self._key, data, if_absent=self._if_absent))
        except (NameTaken, FileNotFoundError):
            # A try whose answer was lost has created it: no other file has this name, so its size proves that.
            found = self._repeat(lambda: self._bucket.head(self._key))
            if found is None or found.size_bytes != self._size:
                raise
            if data is not None and self._repeat(lambda: self._bucket.get(self._key)).data != data:
                raise
            made_ms, self.is_answered = found.modified_ms, False
        self._upload = None
        return made_ms

    def discard(self) -> None:
        """Drop what was sent, which no reader has seen.

        Tries once and never raises: the caller must see the error that led here, and VACUUM drops the rest.
        """
        self._is_discarded = True
        # The service would keep a part that arrives after the others were dropped.
        wait(self._parts)
        upload, self._upload = self._upload, None
        if upload is not None:
            with suppress(OSError):
                self._bucket.abort(upload)

    def drop(self) -> None:
        """Discard on another thread: the collector may run on one that holds a lock of the client."""
        self._is_discarded = True
        if self._upload is not None:
            start_new_thread(self.discard, ())

    def _send(self, data: bytes) -> None:
        """Send a part on a thread; wait while too many are being sent."""
        number = len(self._parts) + 1
        where = f"{self._bucket.uri}/{self._key}"
        if number > self._bucket.most_parts:
            most_mib = self._bucket.most_parts * self._bucket.part_bytes >> 20
            raise OSError(errno.EFBIG, f"a file of more than {most_mib} MiB cannot be written here", where)
        if self._upload is None:
            start = self._bucket.start_upload
            try:
                self._upload = self._repeat(lambda: start(self._key, if_absent=self._if_absent))
            except NameTaken as error:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), where) from error
        while not self._may_send():
            self._under_way.popleft().result()
        upload, sent = self._upload, Future[Any]()

        def put() -> Any:
            if self._is_discarded:
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED), where)
            return self._bucket.put_part(upload, number, data)

        def send() -> None:
            try:
                sent.set_result(self._repeat(put))
            except BaseException as error:
                sent.set_exception(error)

        Thread(target=send, name=f"txlog-upload-{number}").start()
        self._parts.append(sent)
        self._under_way.append(sent)

    def _taken(self) -> bytes:
        """Return the beginning of the next part, which is no longer kept."""
        taken = b"".join(self._rest)
        self._rest, self._rest_bytes = [], 0
        return taken

    def _may_send(self) -> bool:
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft().result()
        return len(self._under_way) < self._bucket.parts_at_once

    def _complete(self) -> int | None:
        for data in filter(None, [*self._whole, self._taken()]):
            self._send(data)
        parts = [each.result() for each in self._parts]
        made_ms: int | None = self._repeat(lambda: self._bucket.complete(self._upload, parts))
        return made_ms
