"""A store on a local (POSIX) disk.

Every object appears whole: it is written under a temporary name in its directory, synced, and then named by one system
call. link(2) fails if the name is taken; rename(2) replaces the file. A killed writer leaves a temporary file that
blocks nothing. With `open(path, "xb")` readers would see the file grow, and a killed writer would block the version for
ever.

The path of the root may contain a symlink. Below it nothing is read, written, listed or deleted through one, even if a
symlink replaces a folder during the call (`storage/local_files`).
Source: docs/decisions/put-if-absent.md; link(2), rename(2).
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat as stat_bits
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from airflow_txlog.errors import OutsideTable, UnsupportedStore
from airflow_txlog.locations import LOCAL as SCHEME
from airflow_txlog.locations import PLAIN, PRIVATE_PREFIX, Access
from airflow_txlog.storage import local_files
from airflow_txlog.storage.base import LOG, FileInfo, Output, Store, check_may_read, inner_parts, temporary_path
from airflow_txlog.storage.kept_files import KeptFiles
from airflow_txlog.storage.limits import LOG_FILE

# Errors of link(2) on a file system without hard links (FAT, some FUSE and SMB mounts).
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_ABSOLUTE = f"{SCHEME}://"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class LocalStore(Store):
    """Files under one directory. The directory need not exist before the first put."""

    # To hand a single file to a thread takes as long as its deletion.
    deletes_at_once = 16

    def __init__(self, directory: str, access: Access = PLAIN) -> None:
        """`directory` is a literal path of the file system; a relative one counts from the working directory."""
        # POSIX leaves two slashes at the beginning alone.
        self._directory = "/" + os.path.abspath(directory).lstrip("/")
        super().__init__(f"{SCHEME}://{self._directory}", access)
        self._kept = KeptFiles()

    def read(self, path: str) -> bytes:
        with open(local_files.open_to_read(self._directory, path), "rb", buffering=0) as file:
            LOG_FILE.check(os.fstat(file.fileno()).st_size, path, self.root, path)
            return file.read()

    def list(self, directory: str, *, start_from: str | None = None) -> list[FileInfo]:
        prefix = f"{directory}/" if directory else ""
        try:
            with local_files.folder(self._directory, inner_parts(directory) if directory else []) as base:
                names = os.listdir(base)
                # A log may hold a hundred thousand names of which only the last three are needed: stat those alone.
                chosen = sorted(names if start_from is None else [name for name in names if name >= start_from])
                infos = (_info_in(base, prefix, name) for name in chosen)
                return [info for info in infos if info is not None]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(
        self, on_unreadable: Callable[[str], object] | None = None, *, prefix: str = "", lazily: bool = False
    ) -> Iterator[FileInfo]:
        for _, files in self._directories(with_files=True, on_unreadable=on_unreadable, beginning=prefix):
            yield from (info for info in files if info.path.startswith(prefix))

    def links(self) -> Iterator[str]:
        for prefix, _ in self._directories(with_files=False, on_unreadable=None):
            with suppress(FileNotFoundError, NotADirectoryError, OutsideTable):
                with local_files.folder(self._directory, prefix.split("/")[:-1]) as base, os.scandir(base) as entries:
                    found = [f"{prefix}{entry.name}" for entry in entries if not _is_file_or_folder(entry)]
                yield from found

    def stat(self, path: str) -> FileInfo | None:
        linked = self._linked(path)
        found = local_files.stat_of(self._directory, path) if linked is None else local_files.stat_linked(linked)
        return None if found is None else _info_of(path, found)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with _Temporary(self._directory, path) as temporary:
            temporary.write(data)
            try:
                made = temporary.link()
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise UnsupportedStore(
                    f"UnsupportedStore: {self.root} is on a file system without hard links ({error}), so two "
                    "writers could both create the same version. Nothing was written. "
                    "Keep the table on a POSIX file system.",
                    uri=self.root,
                    filesystem="local",
                ) from error
        return made

    def put(self, path: str, data: bytes) -> None:
        with _Temporary(self._directory, path) as temporary:
            temporary.write(data)
            temporary.rename()

    def open_output(self, path: str) -> Output:
        temporary = _Temporary(self._directory, path)

        def publish() -> None:
            temporary.sync()
            temporary.rename()
            temporary.close()

        location = f"{self._directory}/{path}"
        return Output(temporary.file, publish=publish, discard=temporary.close, location=location)

    def open_new(self, path: str) -> Output:
        # No temporary name: no commit names an unfinished file. No sync: a commit's sync does not wait for data.
        is_private = path.startswith(PRIVATE_PREFIX)
        sink = local_files.arrow_file(local_files.open_to_write(self._directory, path, is_private=is_private), "w")

        def discard() -> None:
            # Closing flushes, and a full disk raises again. Only the deletion matters here.
            with suppress(OSError):
                sink.close()
            self.delete(path)

        def publish() -> int | None:
            # A look-up of the file by its name would open all folders above it again. Before pyarrow 25, a file that
            # is written does not know its descriptor.
            modified_ms = None
            with suppress(AttributeError, io.UnsupportedOperation):
                modified_ms = os.fstat(sink.fileno()).st_mtime_ns // 1_000_000
            with local_files.naming(f"{self._directory}/{path}"):
                sink.close()
            return modified_ms

        return Output(sink, publish=publish, discard=discard, location=f"{self._directory}/{path}")

    def put_new(self, path: str, data: pa.Buffer) -> int | None:
        # A stream of Arrow's would open the file once more, and write a Parquet file in ten pieces.
        is_private = path.startswith(PRIVATE_PREFIX)
        descriptor = local_files.open_to_write(self._directory, path, is_private=is_private)
        try:
            with local_files.naming(f"{self._directory}/{path}"):
                return local_files.write_whole(descriptor, data)
        except BaseException:
            # The first error is the one to report.
            with suppress(OSError):
                self.delete(path)
            raise

    def open_input(self, path: str) -> pa.NativeFile:
        return local_files.arrow_file(self._opened(path))

    def open_whole(self, path: str, size_bytes: int, *, is_read_again: bool = False) -> pa.NativeFile:
        data = self._kept.take(path) if self.keeps_files else None
        if data is None:
            descriptor = self._opened(path)
            try:
                # One byte more shows a file that is longer than it should be.
                data = os.read(descriptor, size_bytes + 1)
            finally:
                os.close(descriptor)
        if len(data) != size_bytes:
            return self.open_input(path)
        if is_read_again and self.keeps_files:
            self._kept.add(path, data)
        return pa.BufferReader(data)

    def let_go(self) -> int:
        return self._kept.clear()

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            local_files.delete(self._directory, path)

    def delete_many(self, paths: Sequence[str]) -> dict[str, Exception]:
        failures: dict[str, Exception] = {}
        for path in paths:
            try:
                self.delete(path)
            except Exception as error:
                failures[path] = error
        return failures

    def delete_empty_directory(self, path: str) -> bool:
        try:
            with local_files.parent(self._directory, path) as (parent, name):
                os.rmdir(name, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def list_directories(self) -> builtins.list[str]:
        directories = self._directories(with_files=False, on_unreadable=lambda path: None)
        found = [prefix.removesuffix("/") for prefix, _ in directories if prefix]
        return sorted(found, key=lambda path: (-path.count("/"), path))

    def now_ms(self) -> int:
        """Return the modification time of a file written now: on a network mount that is the server's clock."""
        folder = [LOG] if local_files.stat_of(self._directory, LOG) is not None else []
        try:
            with _Temporary(self._directory, "/".join([*folder, "clock"])) as temporary:
                return os.fstat(temporary.file.fileno()).st_mtime_ns // 1_000_000
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
        # A full disk has no room for a name, and can still set the time of a directory to its own.
        with local_files.folder(self._directory, folder) as directory:
            os.utime(directory)
            return os.fstat(directory).st_mtime_ns // 1_000_000

    # --- paths ------------------------------------------------------------------------------------------------------

    def _opened(self, path: str) -> int:
        """Return the descriptor of a file that is open to be read."""
        linked = self._linked(path)
        return local_files.open_to_read(self._directory, path) if linked is None else local_files.open_linked(linked)

    def _linked(self, path: str) -> str | None:
        """Return where to read a data file whose links are followed, or None to read below the root, without links.

        Files of the log and of a job are always read without links. Raises OutsideTable.
        """
        if path.startswith((f"{LOG}/", PRIVATE_PREFIX)):
            return None
        if self.access.allow_absolute_paths and path.startswith(_ABSOLUTE):
            # No more is to check, and a source may be many files.
            return path.removeprefix(_ABSOLUTE)
        check_may_read(self.root, path, self.access)
        return f"{self._directory}/{path}" if self.access.allow_absolute_paths else None

    def _directories(
        self, *, with_files: bool, on_unreadable: Callable[[str], object] | None, beginning: str = ""
    ) -> Iterator[tuple[str, builtins.list[FileInfo]]]:
        """Yield the prefix (empty, or ending in "/") of every directory under the root and, on request, its files.

        Only what may have or lead to a path that begins so. Symlinks are left out. `on_unreadable` as in `Store.walk`.
        """
        pending = [""]
        while pending:
            prefix = pending.pop()
            files = []
            try:
                with local_files.folder(self._directory, prefix.split("/")[:-1]) as base, os.scandir(base) as entries:
                    for entry in entries:
                        path = f"{prefix}{entry.name}/"
                        if not (path.startswith(beginning) or beginning.startswith(path)):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(path)
                        elif with_files and entry.is_file(follow_symlinks=False):
                            files.append(_info_in(base, prefix, entry.name))
            except (FileNotFoundError, NotADirectoryError, OutsideTable):
                continue  # deleted or replaced while we walk, or the root does not exist
            except PermissionError:
                if on_unreadable is None or not prefix:
                    raise
                on_unreadable(prefix.removesuffix("/"))
                continue
            yield prefix, [info for info in files if info is not None]


# --- writing --------------------------------------------------------------------------------------------------------


class _Temporary:
    """A new file next to `path`, in a folder that stays open until `close`, which deletes an unnamed file."""

    def __init__(self, root: str, path: str) -> None:
        self._path = f"{root}/{path}"
        *directories, self._target = inner_parts(path)
        self._name = temporary_path(path).rpartition("/")[2]
        is_private = path.startswith(PRIVATE_PREFIX)
        self._parent, descriptor = local_files.create(root, directories, self._name, lists=True, is_private=is_private)
        self.file = os.fdopen(descriptor, "wb")
        self._is_there = True

    def write(self, data: bytes) -> None:
        """Write the whole content and sync it."""
        with local_files.naming(self._path):
            self.file.write(data)
        self.sync()

    def sync(self) -> None:
        with local_files.naming(self._path):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def link(self) -> bool:
        """Give the file its name unless it is taken. Return whether it has it now."""
        try:
            # Never follow a link that has replaced the temporary file.
            with local_files.naming(self._path):
                here = self._parent
                os.link(self._name, self._target, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
        except FileExistsError:
            return False
        finally:
            self._unlink()
        os.fsync(self._parent)
        return True

    def rename(self) -> None:
        """Give the file its name, replacing an existing file of that name."""
        with local_files.naming(self._path):
            os.replace(self._name, self._target, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self._is_there = False
        os.fsync(self._parent)

    def close(self) -> None:
        """Close, and delete the file if it has no name. Call it once."""
        # Closing flushes, and a full disk raises again. Only the deletion matters here.
        with suppress(OSError):
            self.file.close()
        try:
            self._unlink()
        finally:
            os.close(self._parent)

    def _unlink(self) -> None:
        if self._is_there:
            self._is_there = False
            with suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._parent)

    def __enter__(self) -> _Temporary:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _info_in(directory: int, prefix: str, name: str) -> FileInfo | None:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return _info_of(f"{prefix}{name}", found)


def _is_file_or_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)


def _info_of(path: str, found: os.stat_result) -> FileInfo | None:
    """Return a file, or a symlink, which cannot be opened but must not look absent; None for anything else."""
    if not (stat_bits.S_ISREG(found.st_mode) or stat_bits.S_ISLNK(found.st_mode)):
        return None
    return FileInfo(path=path, size_bytes=found.st_size, modified_ms=found.st_mtime_ns // 1_000_000)
