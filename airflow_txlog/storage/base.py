"""A store of bytes: its interface, the spelling of paths, the check of paths to read, and a file being written.

A store is rooted at one table. Paths are relative to that root, use "/" and are already decoded: they are the names in
the file system. A data file or deletion vector that a log names elsewhere is an absolute URI, and can only be read.
"""

from __future__ import annotations

import builtins
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import OutsideTable
from airflow_txlog.locations import LOCAL, Access, CatalogTable, is_inside, store_kind
from airflow_txlog.storage.limits import USUAL, Limits

LOG = "_delta_log"
_COPIED_BYTES = 8 * 1024 * 1024
_AT_ONCE = 16
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One object of the store."""

    path: str
    size_bytes: int
    modified_ms: int
    etag: str | None = None
    """An object store's identifier of the content: equal means unchanged. None on a local disk and in memory."""


class NoCredentials(PermissionError):
    """A request was not sent, because there are no credentials. Its text is this package's own."""


class NothingSent(OSError):
    """A put was not sent, because the store did not answer the question that precedes its first put."""


class Store(ABC):
    """Bytes under one root. Any number of threads may call any method at the same time."""

    is_remote = False
    """Whether a read is a request over a network, so that few large reads are better than many small ones."""
    keeps_files = False
    """Whether `open_whole` may keep a file that is read again: true where the same process does that."""
    access_mark: str | None = None
    """Equal for two stores of one root only if both ask the same server with the same credentials; None: unknown."""
    deletes_at_once = 1
    """How many files `delete_many` deletes in one request; 1 if each delete is a separate call."""
    limits: Limits = USUAL
    """The thresholds of the work on the table."""
    catalog_table: CatalogTable | None = None
    """The table of the catalog that ratifies the commits of this log; None: they count once their file exists."""
    required_properties: Mapping[str, str] = {}
    """The properties that a table must have to be created here."""

    def __init__(self, root: str, access: Access) -> None:
        """`open_store(root, access)` opens the same store in any process.

        `root` is the canonical URI of the table without a trailing slash: `file:///lake/t`, `memory://t`.
        """
        self.root = root
        self.access = access

    def at_once(self) -> Store:
        """Return the same store without retries of requests, for a caller that retries within its own deadline."""
        return self

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the whole content of a file of the log.

        Raises FileNotFoundError; LimitExceeded (`limits.LOG_FILE`); OutsideTable for a link, or a path through one.
        """

    def read_all(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Yield the content of files of the log, in order; remote stores send several requests at a time.

        Raises the errors of `read` for a file when its turn comes.
        """
        return side_by_side(self.read, paths) if self.is_remote else map(self.read, paths)

    @abstractmethod
    def list(self, directory: str, *, start_from: str | None = None) -> list[FileInfo]:
        """Return the files directly inside `directory`, by name, from the name `start_from` on (inclusive).

        A missing directory lists as empty. The answer is never cached. A link among the files is listed, and reading it
        raises OutsideTable; so does listing a directory that is a link.
        """

    @abstractmethod
    def walk(
        self, on_unreadable: Callable[[str], object] | None = None, *, prefix: str = "", lazily: bool = False
    ) -> Iterator[FileInfo]:
        """Yield every file under the root whose path begins with `prefix`, at any depth, in no order.

        A directory below the root that this user may not read goes to `on_unreadable` and is left out; without that,
        PermissionError is raised. With `lazily`, one page is requested at a time, for a caller that may stop early.
        """

    def links(self) -> Iterator[str]:
        """Yield the path of every link, pipe, socket and device under the root, in no order. `walk` leaves them out.

        Empty for a store that has only objects.
        """
        return iter(())

    def odd_keys(self) -> Iterator[str]:
        """Yield every key below the root that is no valid path and has content, in no order. `walk` leaves it out.

        Empty for a store of files.
        """
        return iter(())

    @abstractmethod
    def stat(self, path: str) -> FileInfo | None:
        """Return the size and time of one object, or None. Raises OutsideTable as `open_input` does."""

    def mark_of(self, file: FileInfo) -> str:
        """Return a short text that distinguishes a commit's file from another of its name, the same in any process."""
        return file.etag.strip('"') if file.etag else f"{file.modified_ms:x}-{file.size_bytes:x}"

    def prepare_commit(self) -> None:  # noqa: B027
        """Send what precedes the first put of a commit, so that no other writer waits for it. Raises as that does."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create the object, whole or not at all, unless the name is taken.

        True: this call created it. False: the name was taken, perhaps by an earlier attempt of this call whose answer
        was lost; the caller reads it back. NothingSent: nothing was created. Any other exception: unknown, the caller
        reads it back.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object; a reader sees the old or the new content, never a part.

        Raises ValueError for a path that leaves the root, OutsideTable for one through a link.
        """

    @abstractmethod
    def open_output(self, path: str) -> Output:
        """Return a file of the log, or a copy, to write. It appears whole, and replaces an older one, once closed.

        Nothing appears if the block raises or the file is dropped. A closed file survives a power loss.
        """

    @abstractmethod
    def open_new(self, path: str) -> Output:
        """Return a new data file to write, whose name no other writer uses.

        It may be visible before it is closed, and a local disk does not sync it. pyarrow writes to `Output.sink`.
        Nothing is left if the block raises or the file is dropped. Below a folder named PRIVATE_PREFIX… only this user
        can read it. Raises FileExistsError, at the latest when it is closed, if the name is taken; ValueError and
        OutsideTable as `put` does.
        """

    def put_new(self, path: str, data: pa.Buffer) -> int | None:
        """Write a data file as `open_new` does, at once. Return its time as `Output.modified_ms`."""
        with self.open_new(path) as output:
            output.write(data)
        return output.modified_ms

    @abstractmethod
    def open_input(self, path: str) -> pa.NativeFile:
        """Return a seekable file for pyarrow, whose `size()` is that of the object now.

        Raises FileNotFoundError, and OutsideTable outside the root unless the store has allow_absolute_paths.
        """

    def open_whole(self, path: str, size_bytes: int, *, is_read_again: bool = False) -> pa.NativeFile:
        """Return the same for a small data file of which all is read. A remote store fetches it by one request.

        `is_read_again`: a store that `keeps_files` may keep it until the next call for it, or until `let_go`.
        """
        return self.open_input(path)

    def copy_in(self, source: Store, from_path: str, path: str) -> None:
        """Copy a data file of any store to `path`. It appears whole and replaces an older one.

        Only a part of it is in memory at a time; within a bucket's service no byte passes through this process.
        Raises FileNotFoundError if `source` has no such file, and the errors of `open_input` and `open_output`.
        """
        with source.open_input(from_path) as file, self.open_output(path) as output:
            while data := file.read(_COPIED_BYTES):
                output.write(data)

    def let_go(self) -> int:
        """Free the files that `open_whole` has kept. Return their bytes."""
        return 0

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete one object, which may be gone already. Raises ValueError and OutsideTable as `put` does."""

    def delete_many(self, paths: Sequence[str]) -> dict[str, Exception]:
        """Delete up to `deletes_at_once` objects. Return the failures by path.

        Raises the error that kept it from deleting any.
        """
        for path in paths:
            self.delete(path)
        return {}

    def whole_bucket(self) -> Store | None:
        """Return the store of the whole bucket, to list it; None for a store without buckets."""
        return None

    def delete_empty_directory(self, path: str) -> bool:
        """Delete a directory if it is empty. Return False if it is not, or if the store has no directories."""
        inner_parts(path)
        return False

    def list_directories(self) -> builtins.list[str]:
        """Return every directory under the root that this user may read, deepest first; [] if the store has none."""
        return []

    def folder_markers(self) -> builtins.list[str]:
        """Return the folders that empty objects of their names stand for, as consoles leave them; else none."""
        return []

    def delete_folder_marker(self, path: str) -> None:
        """Delete the empty object that stands for a folder. What is in the folder stays."""
        inner_parts(path)

    def abort_unfinished(self, before_ms: int, others: tuple[str, ...] = ()) -> int:
        """Drop unfinished multipart uploads that began before this time. Return their number.

        No listing shows such files, and they cost money. Most stores have none, or drop them automatically. Those of
        paths that begin with one of `others` stay: the folders of other tables, each with its slash.
        """
        return 0

    @abstractmethod
    def now_ms(self) -> int:
        """Return the store's own clock: the `modified_ms` of an object written now."""

    # --- paths ------------------------------------------------------------------------------------------------------

    def inner(self, path: str) -> str:
        """Return a path, relative or an absolute URI, as one relative to the root. Raises ValueError outside it."""
        return "/".join(inner_parts(path.removeprefix(f"{self.root}/")))

    def os_error(self, number: int, path: str) -> OSError:
        """Return the error of this number (FileNotFoundError, FileExistsError, …) for a file of the table."""
        return OSError(number, os.strerror(number), f"{self.root}/{path}")


_NO_NAMES = frozenset(("", ".", ".."))


def inner_parts(path: str) -> list[str]:
    """Return the segments of a path relative to a folder.

    Raises ValueError for a path that is empty, absolute, or has a segment that a file system would not read as a plain
    name: such a path may leave the folder, or name another file than it seems to.
    """
    parts = path.split("/")
    if not _NO_NAMES.isdisjoint(parts) or "\0" in path:
        raise ValueError(f"{path!r} is no path inside the table: it is refused, nothing was touched")
    return parts


def temporary_path(path: str) -> str:
    """Return the temporary name of a file, which readers of a Delta log ignore.

    A leading dot hides it in the log. Among data files it is not hidden, because no vacuum deletes hidden files.
    """
    *folders, name = inner_parts(path)
    dot = "." if folders[-1:] == [LOG] else ""
    return "/".join([*folders, f"{dot}{name}.{SYSTEM_CLOCK.unique_id()}.tmp"])


def check_may_read(root: str, path: str, access: Access) -> None:
    """Raise OutsideTable for a data file that a log names and that may not be read, judging by its path.

    `path` is canonical: relative to the root, or an absolute URI. With `allow_absolute_paths` it may lie outside the
    root, in the same kind of store.
    """
    inside = is_inside(path)
    if inside and "::" not in path:
        return
    ours = store_kind(root)
    # fsspec reads two colons in a URL as a chain of file systems, and may open the rest in another one.
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


def side_by_side(ask: Callable[[_Asked], _Answer], about: Sequence[_Asked]) -> Iterator[_Answer]:
    """Yield what `ask` returns or raises for each, in order, with at most sixteen requests under way."""
    if len(about) < 2:
        yield from map(ask, about)
        return
    # A page of a thousand names takes an object store some 50 ms.
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="txlog-storage")
    try:
        yield from pool.map(ask, about)
    finally:
        # An interrupted task does not wait for answers that it no longer needs.
        pool.shutdown(wait=False, cancel_futures=True)


# --- errors ---------------------------------------------------------------------------------------------------------
# Arrow reports damaged bytes as a plain OSError without a number. Errors of a system or a store have a number or a
# subclass. A fault of the store must never count as damaged data, whose message advises people to replace the file.

# A system's errors for a name that no file can have, or that a folder has.
_NO_FILE = frozenset({errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR})


def is_about_bytes(error: Exception) -> bool:
    """Return whether an error raised while a file was decoded means damaged bytes, rather than a failing store."""
    return not isinstance(error, OSError) or (type(error) is OSError and error.errno is None)


def is_about_name(error: Exception) -> bool:
    """Return whether an error raised while a file was opened means that no file can have this name."""
    return not isinstance(error, OSError) or error.errno in _NO_FILE


# --- writing --------------------------------------------------------------------------------------------------------


def name_file(error: BaseException | None, path: str | None) -> None:
    """Let an error of the system, such as a full disk, name this file if it names none."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = path


class Output:
    """A binary file that is being written, enough of one for pyarrow; use it as a context manager.

    Only an explicit, successful `close` publishes it. An exception, or dropping the object, discards it. So this is no
    `io.IOBase`: those close themselves when they are collected, and would publish a checkpoint cut in the middle.
    """

    def __init__(
        self,
        sink: Any,
        publish: Callable[[], int | None],
        discard: Callable[[], None],
        drop: Callable[[], None] | None = None,
        *,
        location: str | None = None,
    ) -> None:
        """`publish` makes the content of `sink` appear and closes it, and returns its time if the store gives it.

        `discard` closes it and leaves nothing behind.

        `drop` takes the place of `discard` when the collector calls, if `discard` must not run there. `location`: the
        file, for an error of the system that names none, such as a full disk.
        """
        self.sink = sink
        """The stream that pyarrow writes to. Close or discard this object instead of the stream."""
        self._publish = publish
        self._discard = discard
        self._drop = drop or discard
        self._location = location
        self._process = os.getpid()
        self.closed = False
        self.modified_ms: int | None = None
        """The published file's, as in `FileInfo`; None if it must be looked up."""

    def write(self, data: bytes | pa.Buffer) -> int:
        """Append bytes. After a failure, such as a full disk, only `discard` is left to do."""
        self.sink.write(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: the file is seen when it is closed, not before."""

    def tell(self) -> int:
        return int(self.sink.tell())

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Publish. A second call does nothing; after an error nothing is published and nothing is left behind."""
        if self.closed:
            return
        self.closed = True
        try:
            self.modified_ms = self._publish()
        except BaseException:
            self._discard()
            raise

    def discard(self) -> None:
        """Drop what was written. Does nothing after `close`, and in a process that was forked from the writer's."""
        self._end(self._discard)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        name_file(error, self._location)
        self.discard()

    def __del__(self) -> None:
        # An object that failed in its constructor has no state to drop.
        if not getattr(self, "closed", True):
            with suppress(Exception):
                self._end(self._drop)

    def _end(self, how: Callable[[], None]) -> None:
        is_ours = not self.closed and os.getpid() == self._process
        self.closed = True
        if is_ours:
            how()
