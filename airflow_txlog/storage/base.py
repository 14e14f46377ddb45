"""What the engine asks of a store of bytes.

A store is rooted at one table. Paths are relative to that root, use "/" and are already decoded: what the file system
calls the object. A data file or a deletion vector that a log names elsewhere is an absolute URI, and can only be read.
"""

from __future__ import annotations

import builtins
import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa

from airflow_txlog.errors import OutsideTable
from airflow_txlog.locations import LOCAL, Access, is_inside, store_kind
from airflow_txlog.storage.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One object of the store."""

    path: str
    size_bytes: int
    modified_ms: int
    etag: str | None = None
    """What an object store calls the content: equal means unchanged. None on a local disk and in memory."""


class NothingSent(OSError):
    """What a store is asked before its first put was not answered, so that the put was not sent."""


class Store(Protocol):
    """Bytes under one root. Any number of threads may call any method at the same time."""

    limits: Limits
    """The thresholds of the work on the table."""

    @property
    def root(self) -> str:
        """The canonical URI of the table, without a trailing slash: `file:///lake/t`, `memory://t`."""

    @property
    def access(self) -> Access:
        """How the store was opened: `open_store(root, access)` opens the same in any process."""

    @property
    def is_remote(self) -> bool:
        """Whether a read is a request over a network, so that few large ones are better than many small ones."""

    @property
    def deletes_at_once(self) -> int:
        """How many files `delete_many` deletes in one request; 1 where each is a call of its own."""

    def at_once(self) -> Store:
        """The same store, whose requests are made once: for a caller that repeats them within a deadline of its own."""

    def read(self, path: str) -> bytes:
        """The whole content of a file of the log.

        Raises FileNotFoundError, LimitExceeded (`limits.LOG_FILE`), OutsideTable where a link is in its place or on
        the way.
        """

    def read_all(self, paths: Sequence[str]) -> Iterator[bytes]:
        """What files of the log hold, in their order, asked for at once where each is a request.

        Raises as `read`, in the place of the file that it is raised for.
        """

    def list(self, directory: str, *, start_from: str | None = None) -> list[FileInfo]:
        """The files directly inside `directory`, by name ascending, from the name `start_from` on (inclusive).

        A directory that does not exist lists as empty. Never served from a cache. A link among the files is listed,
        and reading it raises OutsideTable; so does listing a directory that is one.
        """

    def walk(
        self, on_unreadable: Callable[[str], object] | None = None, *, prefix: str = "", lazily: bool = False
    ) -> Iterator[FileInfo]:
        """Every file under the root whose path begins with `prefix`, at any depth, in no order. No directories.

        A directory below the root that this user may not read is passed to `on_unreadable` and left out; without it,
        PermissionError is raised. `lazily`: one page after the other as the caller asks for more, for a caller that
        may stop early; else several at once.
        """

    def stat(self, path: str) -> FileInfo | None:
        """Size and time of one object, or None where there is none. Raises OutsideTable as `open_input`."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Make the object if nothing bears the name; whole or not at all.

        True: this call made it. False: something already bore the name, which may be an earlier attempt of the same
        call whose answer was lost: the caller reads it back. NothingSent: nothing was made. Any other exception:
        unknown, the caller reads it back.
        """

    def put(self, path: str, data: bytes) -> None:
        """Make or replace the object; a reader sees the old or the new content, never a part.

        Raises ValueError for a path that leaves the root, OutsideTable for one that leads through a link.
        """

    def open_output(self, path: str) -> Output:
        """A writable binary file (context manager) whose object appears whole when it is closed without error.

        Closing it replaces what bears the name. Where the block raises, or the file is dropped, nothing appears. What
        appeared survives a power loss. For files of the log.
        """

    def open_new(self, path: str) -> Output:
        """The same for a data file, whose name no other writer uses, with two promises less.

        It may be seen before it is closed, and on a local disk it is not synced.

        `Output.sink` is what pyarrow writes to. Where the block raises, or the file is dropped, nothing is left. In a
        folder named PRIVATE_PREFIX… a file can be read by this user alone. Raises FileExistsError, at the latest when
        it is closed, where the name is taken; ValueError, OutsideTable as for `put`.
        """

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file for pyarrow, whose `size()` is that of the object now: a data file or a file of the log.

        Raises FileNotFoundError, and OutsideTable for what lies outside the root, unless the store was opened with
        allow_absolute_paths.
        """

    def delete(self, path: str) -> None:
        """Delete one object. One that is already gone is no error. Raises ValueError, OutsideTable as for `put`."""

    def delete_many(self, paths: Sequence[str]) -> dict[str, Exception]:
        """Delete up to `deletes_at_once` objects, and say by path which could not be deleted, and why.

        Raises what kept it from deleting any.
        """

    def delete_empty_directory(self, path: str) -> bool:
        """Delete a directory if it is empty; False where the store has no directories or it is not empty."""

    def list_directories(self) -> builtins.list[str]:
        """Every directory under the root that this user may read, deepest first.

        Empty where the store has no directories.
        """

    def abort_unfinished(self, before_ms: int) -> int:
        """Drop the files that were begun in parts before this time and never finished; how many.

        No listing shows them, and they are paid for. Other stores end them by themselves, or have none.
        """

    def now_ms(self) -> int:
        """The store's own clock: what `modified_ms` of an object written now would be."""


def check_may_read(root: str, path: str, access: Access) -> None:
    """Raises OutsideTable where a data file that a log names may not be read by what its path says.

    `path` is canonical: relative to the root, or an absolute URI. With `allow_absolute_paths` it may lie outside the
    root, in the same kind of store.
    """
    inside, ours = is_inside(path), store_kind(root)
    # What opens a URL may take two colons in it for a chain of file systems, and open what follows in another one.
    if (not inside and ("://" not in path or store_kind(path) != ours)) or (ours != LOCAL and "::" in path):
        raise OutsideTable(
            f"OutsideTable: the log of {root} names a file in another kind of store than its own ({ours}), and no such "
            "file is ever opened. Nothing of it was read. Have the engine that wrote it remove it from the table.",
            table=root,
        )
    if not inside and not access.allow_absolute_paths:
        raise OutsideTable(
            f"OutsideTable: the log of {root} names the file {path}, which lies outside of the table, and rows are "
            "read from the table's own folder alone. Nothing of it was read. If every writer of the table may have "
            "what this process can read, as that of a shallow clone, set allow_absolute_paths: in the connection's "
            "extra, or in Table.open.",
            table=root,
            path=path,
        )


# What a system answers for a name that no file can have, or that a folder has.
_NO_FILE = frozenset({errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR})


def is_about_bytes(error: Exception) -> bool:
    """Whether what was raised while a file was decoded says that its bytes are damaged; else the store failed."""
    return not isinstance(error, OSError) or (type(error) is OSError and error.errno is None)


def is_about_name(error: Exception) -> bool:
    """Whether what was raised as a file was opened says that no file can have this name; else the store failed."""
    return not isinstance(error, OSError) or error.errno in _NO_FILE


class Output:
    """A writable binary file object, enough of one for pyarrow; use it as a context manager."""

    def __init__(
        self,
        sink: Any,
        publish: Callable[[], None],
        discard: Callable[[], None],
        drop: Callable[[], None] | None = None,
    ) -> None:
        """`publish` makes what is in `sink` appear, and closes it; `discard` closes it and leaves nothing behind.

        `drop`: in place of `discard` where it must not be called by the collector.
        """
        self._sink = sink
        self._publish = publish
        self._discard = discard
        self._drop = drop or discard
        self._is_closed = False

    @property
    def sink(self) -> Any:
        """What is being written to: where the store has one, pyarrow's own file, which needs no interpreter.

        Only for writing; what ends the file is `close` or `discard` of this object.
        """
        return self._sink

    @property
    def closed(self) -> bool:
        return self._is_closed

    def write(self, data: bytes) -> int:
        """Append bytes; a failure (a full disk) is raised, and then only `discard` is left to do."""
        self._sink.write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing to do: what is written is seen when the file is closed, not before."""

    def tell(self) -> int:
        return int(self._sink.tell())

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Publish. A second call does nothing; after an error nothing is published and nothing is left behind."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._publish()
        except BaseException:
            self._discard()
            raise

    def discard(self) -> None:
        """Drop what was written. After `close`, does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._discard()

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # An object that failed in its constructor has no state to drop.
        if not getattr(self, "_is_closed", True):
            self._is_closed = True
            with suppress(Exception):
                self._drop()
