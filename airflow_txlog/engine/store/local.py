"""A store on a local (POSIX) disk.

Every object appears whole: it is written under a temporary name in the directory where it will live, synced, and then
given its name by one system call: link(2), which fails where the name is taken, or rename(2), which replaces. A writer
that is killed leaves a temporary file that blocks nothing. `open(path, "xb")` would do neither: readers see it grow,
and what a killed writer leaves blocks the version for ever.

The root itself may be reached through a symlink; below it, nothing is listed or deleted through one.
Source: docs/decisions/put-if-absent.md; link(2), rename(2).
"""

from __future__ import annotations

import builtins
import errno
import os
import stat as stat_bits
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from airflow_txlog.engine.clock import SYSTEM_CLOCK
from airflow_txlog.engine.store.base import FileInfo
from airflow_txlog.engine.store.confine import inner_parts
from airflow_txlog.engine.store.output import Output
from airflow_txlog.errors import UnsupportedStore

SCHEME = "file"
_LOG = "_delta_log"
# What link(2) says on a file system that has no hard links (FAT, some FUSE and SMB mounts).
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_DIRECTORY_RETRIES = 20


class LocalStore:
    """Files under one directory. The directory need not exist before something is put into it."""

    def __init__(self, directory: str) -> None:
        """`directory` is a path of the file system, taken as it is; a relative one counts from where we are now."""
        self._directory = os.path.abspath(directory)
        self._root = f"{SCHEME}://{self._directory}"

    @property
    def root(self) -> str:
        return self._root

    def read(self, path: str) -> bytes:
        with open(self._readable(path), "rb") as file:
            return file.read()

    def list(self, directory: str, *, start_from: str | None = None) -> list[FileInfo]:
        base = self._inner(directory) if directory else self._directory
        prefix = f"{directory}/" if directory else ""
        try:
            names = os.listdir(base)
        except (FileNotFoundError, NotADirectoryError):
            return []
        # A log may hold a hundred thousand names of which the last three are asked for: look at those alone.
        chosen = sorted(names if start_from is None else [name for name in names if name >= start_from])
        infos = (_info_of(f"{prefix}{name}", os.path.join(base, name)) for name in chosen)
        return [info for info in infos if info is not None]

    def walk(self) -> Iterator[FileInfo]:
        for prefix, entries in self._directories():
            for entry in entries:
                # A symlink is neither a file of the table nor a way to more of them.
                if entry.is_file(follow_symlinks=False):
                    info = _info_of(prefix + entry.name, entry.path)
                    if info is not None:
                        yield info

    def stat(self, path: str) -> FileInfo | None:
        return _info_of(path, self._readable(path))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        target = self._inner(path)
        temporary = _write_temporary(target, data)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise UnsupportedStore(
                f"UnsupportedStore: {self._root} lies on a file system without hard links ({error}), so that two "
                "writers could both believe to have made one version. Nothing was written. "
                "Keep the table on a POSIX file system.",
                uri=self._root,
                filesystem="local",
            ) from error
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        _sync_directory(os.path.dirname(target))
        return True

    def put(self, path: str, data: bytes) -> None:
        target = self._inner(path)
        temporary = _write_temporary(target, data)
        _rename(temporary, target)

    def open_output(self, path: str) -> Output:
        target = self._inner(path)
        temporary, file = _open_temporary(target)

        def publish() -> None:
            _sync_and_close(file)
            _rename(temporary, target)

        def discard() -> None:
            # Closing flushes, and a full disk says so again: what counts here is that nothing is left.
            with suppress(OSError):
                file.close()
            with suppress(FileNotFoundError):
                os.unlink(temporary)

        return Output(file, publish=publish, discard=discard)

    def open_input(self, path: str) -> Any:
        return open(self._readable(path), "rb")

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError), self._parent_of(path) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def delete_empty_directory(self, path: str) -> bool:
        try:
            with self._parent_of(path) as (parent, name):
                os.rmdir(name, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def list_directories(self) -> builtins.list[str]:
        found = [prefix.removesuffix("/") for prefix, _ in self._directories() if prefix]
        return sorted(found, key=lambda path: (-path.count("/"), path))

    def now_ms(self) -> int:
        """The modification time of a file written now: on a network mount the server's clock, not this machine's."""
        log = os.path.join(self._directory, _LOG)
        probe, file = _open_temporary(os.path.join(log if os.path.isdir(log) else self._directory, "clock"))
        with file:
            try:
                return os.fstat(file.fileno()).st_mtime_ns // 1_000_000
            finally:
                os.unlink(probe)

    # --- paths ------------------------------------------------------------------------------------------------------

    def _inner(self, path: str) -> str:
        return os.path.join(self._directory, *inner_parts(path))

    def _readable(self, path: str) -> str:
        """Where to read a path: inside the root, or what a log may name outside of it, `file:///…`."""
        return path.removeprefix(f"{SCHEME}://") if path.startswith(f"{SCHEME}:///") else self._inner(path)

    @contextmanager
    def _parent_of(self, path: str) -> Iterator[tuple[int, str]]:
        """An open descriptor of the directory that holds `path`, reached without following a symlink, and its name.

        The descriptor keeps what was checked: a directory that is replaced by a symlink meanwhile changes nothing.
        """
        *directories, name = inner_parts(path)
        current = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for directory in directories:
                try:
                    below = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENOTDIR):
                        raise ValueError(f"{path!r} leads through {directory!r}, which is no directory") from error
                    raise
                os.close(current)
                current = below
            yield current, name
        finally:
            os.close(current)

    def _directories(self) -> Iterator[tuple[str, builtins.list[os.DirEntry[str]]]]:
        """Every directory under the root as (prefix ending in "/" or empty, its entries), no symlink followed."""
        pending = [""]
        while pending:
            prefix = pending.pop()
            try:
                with os.scandir(os.path.join(self._directory, prefix)) as entries:
                    found = list(entries)
            except (FileNotFoundError, NotADirectoryError):
                continue  # deleted while we walk, or the root does not exist
            pending.extend(f"{prefix}{entry.name}/" for entry in found if entry.is_dir(follow_symlinks=False))
            yield prefix, found


# --- writing --------------------------------------------------------------------------------------------------------


def _open_temporary(target: str) -> tuple[str, BinaryIO]:
    """A new file beside `target`, whose directory is made where it is missing."""
    temporary = _temporary_name(target)
    # A vacuum may delete the empty directory between our making it and our writing into it: then make it again.
    for _ in range(_DIRECTORY_RETRIES):
        try:
            return temporary, open(temporary, "xb")
        except FileNotFoundError:
            _make_directory(os.path.dirname(target))
    return temporary, open(temporary, "xb")


def _write_temporary(target: str, data: bytes) -> str:
    temporary, file = _open_temporary(target)
    try:
        file.write(data)
        _sync_and_close(file)
    except BaseException:
        with suppress(OSError):
            file.close()
        os.unlink(temporary)
        raise
    return temporary


def _temporary_name(target: str) -> str:
    """A fresh name beside `target` that no reader of a Delta log takes for anything.

    In the log it is hidden by a leading dot. Beside data files it is not: what is hidden, no vacuum ever sweeps.
    """
    directory, name = os.path.split(target)
    dot = "." if os.path.basename(directory) == _LOG else ""
    return os.path.join(directory, f"{dot}{name}.{SYSTEM_CLOCK.unique_id()}.tmp")


def _rename(temporary: str, target: str) -> None:
    try:
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_directory(os.path.dirname(target))


def _sync_and_close(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _sync_directory(directory: str) -> None:
    """Make the names in a directory survive a power loss; the content was synced before it got its name."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(directory: str) -> None:
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for path in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(path)
            _sync_directory(os.path.dirname(path))


def _info_of(path: str, location: str) -> FileInfo | None:
    """What is known of the file at `location`; None where there is none (any more), or it is no regular file."""
    try:
        found = os.stat(location)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat_bits.S_ISREG(found.st_mode):
        return None
    return FileInfo(path=path, size_bytes=found.st_size, modified_ms=found.st_mtime_ns // 1_000_000)
