"""Files below one folder of a local disk, reached by descriptor: no component below the folder is followed as a link.

The folder itself may be reached through links. Below it, any process that may write to the table could replace any
folder or file by a link at any moment. So a path is walked from descriptor to descriptor (openat, O_NOFOLLOW).
The invariant: no system call gets a path of more than one component below the folder.
Source: openat(2); docs/decisions/links.md.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa

from airflow_txlog.errors import OutsideTable
from airflow_txlog.locations import local_path
from airflow_txlog.storage.base import inner_parts

# Passing through a folder takes less permission than reading it, if the system can distinguish the two.
_PASS = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_LIST = os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY
# A pipe instead of a file must not block its reader.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Systems' errors for a link that must not be followed, or that is not the expected folder.
_MAY_BE_LINK = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR)
_DIRECTORY_RETRIES = 20
_HAS_DESCRIPTOR_PATHS = os.path.isdir("/dev/fd")


def open_folder(root: str, parts: Sequence[str], *, makes: bool = False, lists: bool = True, mode: int = 0o777) -> int:
    """Return an open descriptor of the folder `parts` below `root`.

    `makes` creates missing folders with this mode, and `root` as any folder. `lists` allows listing and syncing, which
    takes the permission to read the folder; created folders then survive a power loss. Raises OutsideTable for a link,
    FileNotFoundError, NotADirectoryError.
    """
    last = _LIST if lists else _PASS
    try:
        current = os.open(root, _PASS if parts else last)
    except FileNotFoundError:
        if not makes:
            raise
        _make_root(root)
        current = os.open(root, _PASS if parts else last)
    for number, part in enumerate(parts, start=1):
        flags = last if number == len(parts) else _PASS
        try:
            below = _step(part, current, flags, makes=makes, syncs=lists, mode=mode)
        except OSError as error:
            raise _of_path(error, root, parts, number, current) from error
        finally:
            os.close(current)
        current = below
    return current


def _step(name: str, directory: int, flags: int, *, makes: bool, syncs: bool, mode: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=directory)
    except FileNotFoundError:
        if not makes:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=directory)
        if syncs:
            _sync_folder(directory)
    return os.open(name, flags | os.O_NOFOLLOW, dir_fd=directory)


@contextmanager
def folder(root: str, parts: Sequence[str], *, lists: bool = True) -> Iterator[int]:
    """Yield the descriptor of `open_folder`, and close it."""
    descriptor = open_folder(root, parts, lists=lists)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def parent(root: str, path: str) -> Iterator[tuple[int, str]]:
    """Yield an open descriptor of the folder that holds `path` below `root`, and the name of `path` in it."""
    *directories, name = inner_parts(path)
    with folder(root, directories, lists=False) as descriptor:
        yield descriptor, name


def open_to_read(root: str, path: str) -> int:
    """Return an open descriptor of a regular file below `root`.

    Raises OutsideTable for a link or a path through one, IsADirectoryError, and FileNotFoundError also for a special
    file (a pipe, a device) or a path below a file.
    """
    *directories, name = parts = inner_parts(path)
    try:
        # Not `parent`: of many small files, the time to open them counts.
        directory = open_folder(root, directories, lists=False)
        try:
            descriptor = os.open(name, _READ, dir_fd=directory)
        except OSError as error:
            raise _of_path(error, root, parts, len(parts), directory) from error
        finally:
            os.close(directory)
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{root}/{path}") from error
    return _regular(descriptor, f"{root}/{path}")


def open_linked(location: str) -> int:
    """Return an open descriptor of a regular file at an absolute path; links are followed."""
    return _regular(os.open(location, _READ & ~os.O_NOFOLLOW), location)


def create(
    root: str, directories: Sequence[str], name: str, *, lists: bool, is_private: bool = False
) -> tuple[int, int]:
    """Return descriptors of the folder `directories` below `root`, made if it is missing, and of a new file in it.

    `lists` as in `open_folder`. With `is_private`, only this user can read the file. Raises OutsideTable for a
    directory that is a link, FileExistsError if the name is taken, even by a link.
    """
    # A vacuum may delete the new, empty folder before the file is made: make it again.
    for _ in range(_DIRECTORY_RETRIES):
        with suppress(FileNotFoundError):
            return _create(root, directories, name, lists=lists, is_private=is_private)
    return _create(root, directories, name, lists=lists, is_private=is_private)


def _create(root: str, directories: Sequence[str], name: str, *, lists: bool, is_private: bool) -> tuple[int, int]:
    directory = open_folder(root, directories, makes=True, lists=lists, mode=0o700 if is_private else 0o777)
    try:
        with naming("/".join([root, *directories, name])):
            return directory, os.open(name, _CREATE, 0o600 if is_private else 0o666, dir_fd=directory)
    except BaseException:
        os.close(directory)
        raise


class naming:
    """Let an error of the system name this path: an error on a descriptor has no usable path.

    A generator would take a microsecond longer, for each of many files.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename, error.filename2 = self._path, None


def open_to_write(root: str, path: str, *, is_private: bool = False) -> int:
    """Return an open descriptor of a new file below `root`, in folders made as needed. Raises as `create` does."""
    *directories, name = inner_parts(path)
    directory, file = create(root, directories, name, lists=False, is_private=is_private)
    os.close(directory)
    return file


def write_whole(descriptor: int, data: pa.Buffer) -> int:
    """Write the content of an open file, close it, and return its time in milliseconds."""
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        return os.fstat(descriptor).st_mtime_ns // 1_000_000
    finally:
        os.close(descriptor)


def stat_of(root: str, path: str) -> os.stat_result | None:
    """Return the status of a path below `root`, or of the link itself; None if nothing is there.

    Raises OutsideTable if it lies behind a link.
    """
    try:
        with parent(root, path) as (directory, name):
            return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # No file can have such a name, but a log may hold it.
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


def real_path(path: str) -> str:
    """Return the path without links: two names of one place become equal."""
    return os.path.realpath(path)


def stat_linked(path: str) -> os.stat_result | None:
    """Return the status of an absolute path, links followed; None if nothing is there."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_local_file(location: str) -> bool:
    """Return whether this machine has a file at a location that should be a table's folder."""
    path = local_path(location)
    return path is not None and os.path.isfile(path)


def names_below(path: str) -> Iterator[tuple[str, bool]]:
    """Yield each name in and below a folder at an absolute path, and whether it is odd: no text, or no folder or file.

    Yields nothing if the path is no folder, and does not enter links. Raises OSError for an unreadable folder.
    """
    pending = [path] if os.path.isdir(path) else []
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder:
                    pending.append(entry.path)
                is_text = os.fsencode(entry.name).decode(errors="replace") == entry.name
                yield entry.name, not (is_text and (is_folder or entry.is_file(follow_symlinks=False)))


# Names of files that describe other files in their folder.
_COUNTED = frozenset(("_metadata", "_common_metadata", "_spark_metadata"))


def holds_nothing(path: str, *, may_be_empty: bool) -> bool:
    """Return whether nothing is at an absolute path, or, unless `may_be_empty`, only an empty folder.

    As in Spark, names that begin with "_" or "." do not count unless they contain "=". False if it is not certain.
    """
    try:
        os.stat(path)
        if may_be_empty or not os.path.isdir(path):
            return False
        with os.scandir(path) as entries:
            return all(
                entry.name[0] in "._" and "=" not in entry.name and entry.name not in _COUNTED for entry in entries
            )
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False


def delete(root: str, path: str) -> None:
    """Delete one file below `root`, or a link itself. Raises OutsideTable, FileNotFoundError."""
    # Not `parent`: of many files, the time counts.
    *directories, name = inner_parts(path)
    directory = open_folder(root, directories, lists=False)
    try:
        os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)


def arrow_file(descriptor: int, mode: str = "r") -> pa.NativeFile:
    """Return the open file as pyarrow's own, which needs no interpreter. Takes over the descriptor."""
    try:
        if _HAS_DESCRIPTOR_PATHS:
            return pa.OSFile(f"/dev/fd/{descriptor}", mode)
        return pa.PythonFile(os.fdopen(os.dup(descriptor), "rb" if mode == "r" else "wb"), mode)
    finally:
        os.close(descriptor)


def _regular(descriptor: int, location: str) -> int:
    """Return the descriptor of a regular file; close any other and raise."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), location)
    raise FileNotFoundError(errno.ENOENT, "It is no regular file", location)


def _of_path(error: OSError, root: str, parts: Sequence[str], number: int, directory: int) -> OSError | OutsideTable:
    """Return the error for a part of this number that could not be opened: OutsideTable if it is a link."""
    link, path = "/".join(parts[:number]), "/".join(parts)
    is_link = False
    if error.errno in _MAY_BE_LINK:
        with suppress(OSError):
            is_link = stat.S_ISLNK(os.stat(parts[number - 1], dir_fd=directory, follow_symlinks=False).st_mode)
    if not is_link:
        error.filename = f"{root}/{path}"
        return error
    return OutsideTable(
        f"OutsideTable: {link!r} in {root} is a symbolic link, and nothing inside a table is read, written or deleted "
        f"through a link, because it can lead out of the table. What was to be opened is {path!r}. Put the folder or "
        "file itself in the place of the link. Rows alone can be read through it: set allow_absolute_paths.",
        table=f"file://{root}",
        path=path,
        link=link,
    )


def _make_root(root: str) -> None:
    missing = []
    while not os.path.isdir(root):
        missing.append(root)
        root = os.path.dirname(root)
    for path in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(path)
            descriptor = os.open(os.path.dirname(path), _LIST)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _sync_folder(directory: int) -> None:
    """Make the names in a folder survive a power loss, if the folder is readable."""
    with suppress(PermissionError):
        descriptor = os.open(".", _LIST, dir_fd=directory)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
