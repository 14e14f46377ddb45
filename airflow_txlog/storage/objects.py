"""A store of objects under one prefix of a bucket, the same on S3, Google Cloud Storage and Azure.

This module handles paths, listings and retries; a `Bucket` of the cloud makes the requests. The invariants: no listing
is cached. Requests that may be sent twice are retried while the store is busy or unreachable, within one deadline for
all tries. A conditional put is sent once, and an unknown outcome is raised: the caller reads the object back. Nothing
here creates a bucket. Source: docs/decisions/put-if-absent.md.
"""

from __future__ import annotations

import builtins
import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.locations import Access, is_inside, split
from airflow_txlog.storage.base import (
    LOG,
    FileInfo,
    NothingSent,
    Output,
    Store,
    check_may_read,
    inner_parts,
    side_by_side,
)
from airflow_txlog.storage.bucket import Bucket, Listed, check_conditions
from airflow_txlog.storage.clouds import EmptyRange, NameTaken, NotAnswered
from airflow_txlog.storage.kept_files import KeptFiles
from airflow_txlog.storage.limits import LOG_FILE
from airflow_txlog.storage.object_files import RangeFile, Upload

log = logging.getLogger(__name__)

DEADLINE_S = 60.0
"""How long a request is retried, including the time of its tries except the last one."""
_FIRST_WAIT_S, _LONGEST_WAIT_S, _REPORTED_S = 0.1, 5.0, 5.0
# How long the answer to a put shows the store's clock.
_CLOCK_S = 10.0
# How much of a file is gathered before it is passed on.
_BUFFERED_BYTES = 1024 * 1024

_Answer = TypeVar("_Answer")


class ObjectStore(Store):
    """Objects under one prefix of a bucket. There are no directories."""

    is_remote = True

    def __init__(
        self,
        bucket: Bucket,
        folder: str,
        access: Access,
        *,
        bucket_of: Callable[[str], tuple[Bucket, str]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`folder` is a path in the bucket; `bucket_of` splits the URI of any object into its bucket and key.

        Raises UnsupportedStore for a folder without a name, or whose name engines read differently.
        """
        folder = folder.strip("/")
        super().__init__(f"{bucket.uri}/{folder}", access)
        if not folder:
            raise UnsupportedStore(
                f"UnsupportedStore: {bucket.uri} is a whole bucket, and a table is a folder in one: "
                f"{bucket.uri}/folder. Nothing was read or written.",
                uri=bucket.uri,
            )
        try:
            inner_parts(folder)
        except ValueError as error:
            raise UnsupportedStore(
                f"UnsupportedStore: {self.root!r} holds an empty part, `.` or `..`, which is a folder of its own to "
                "an object store and not to Spark: two engines would take it for two places. Write it without. "
                "Nothing was read or written.",
                uri=bucket.uri,
            ) from error
        self.deletes_at_once = bucket.deletes_at_once
        self._prefix = f"{folder}/"
        self._bucket = bucket
        self._bucket_of = bucket_of
        self._clock = clock
        self._kept = KeptFiles()
        self._is_proved = False
        self._made: tuple[int, float, int] | None = None
        """The time of the last file that was written, by the store's clock, and when its answer came, by ours."""
        self._deadline_s = DEADLINE_S

    @property
    def access_mark(self) -> str | None:  # type: ignore[override]
        return self._bucket.access_mark

    def whole_bucket(self) -> ObjectStore:
        """Return the store of the whole bucket, to list it: no table is one."""
        store = copy(self)
        store.root, store._prefix = self._bucket.uri, ""
        return store

    def at_once(self) -> ObjectStore:
        store = copy(self)
        store._deadline_s = 0.0
        return store

    def read(self, path: str) -> bytes:
        key = self._key(path)

        def check(size_bytes: int) -> None:
            LOG_FILE.check(size_bytes, path, self.root, path)

        return self._repeated(lambda: self._bucket.get(key, check=check)).data

    def list(self, directory: str, *, start_from: str | None = None) -> builtins.list[FileInfo]:
        prefix = self._prefix + ("/".join(inner_parts(directory)) + "/" if directory else "")
        first = prefix + (start_from or "")
        pages = self._pages(prefix, start_from=first if start_from else None, is_deep=False)
        found = [each for page in pages for each in page.objects if each.path >= first and each.path != prefix]
        return builtins.list(self._infos(sorted(found, key=lambda each: each.path)))

    def walk(
        self, on_unreadable: Callable[[str], object] | None = None, *, prefix: str = "", lazily: bool = False
    ) -> Iterator[FileInfo]:
        folders: builtins.list[str] = []
        for page in self._pages(self._prefix + prefix, start_from=None, is_deep=lazily):
            folders += page.prefixes
            yield from self._infos(page.objects)

        def below(folder: str) -> builtins.list[FileInfo]:
            pages = self._pages(folder, start_from=None, is_deep=True)
            return [info for page in pages for info in self._infos(page.objects)]

        for infos in side_by_side(below, folders):
            yield from infos

    def odd_keys(self) -> Iterator[str]:
        pages = self._pages(self._prefix, start_from=None, is_deep=True)
        found = (each for page in pages for each in page.objects if each.size_bytes)
        return (each.path[len(self._prefix) :] for each in found if not any(self._infos([each])))

    def folder_markers(self) -> builtins.list[str]:
        pages = self._pages(self._prefix, start_from=None, is_deep=True)
        empty = (each for page in pages for each in page.objects if not each.size_bytes and each.path.endswith("/"))
        return [info.path for info in self._infos(replace(each, path=each.path[:-1]) for each in empty)]

    def delete_folder_marker(self, path: str) -> None:
        for error in self._repeated(lambda: self._bucket.delete([f"{self._key(path)}/"])).values():
            raise error

    def stat(self, path: str) -> FileInfo | None:
        bucket, key = self._to_read(path)
        found = self._repeated(lambda: bucket.head(key))
        return None if found is None else replace(found, path=path)

    def prepare_commit(self) -> None:
        self._prove(f"{self._prefix}{LOG}/", self.root)

    def _prove(self, folder: str, where: str) -> None:
        """Raise NothingSent, or UnsupportedStore, unless the server respects the condition of a put."""
        if not self._is_proved:
            try:
                check_conditions(self._bucket, folder, self._repeated)
            except NotAnswered as error:
                raise NothingSent(error.errno, f"nothing was put: {error.strerror}", where) from error
            self._is_proved = True

    def put_if_absent(self, path: str, data: bytes) -> bool:
        key = self._key(path)
        self._prove(key[: key.rfind("/") + 1], f"{self.root}/{path}")
        try:
            self._bucket.put(key, data, if_absent=True)
        except NameTaken:
            return False
        return True

    def put(self, path: str, data: bytes) -> None:
        key = self._key(path)
        self._repeated(lambda: self._bucket.put(key, data, if_absent=False))

    def open_output(self, path: str) -> Output:
        return self._output(path, if_absent=False)

    def open_new(self, path: str) -> Output:
        return self._output(path, if_absent=True)

    def _output(self, path: str, *, if_absent: bool) -> Output:
        upload = Upload(self._bucket, self._key(path), self._repeated, if_absent=if_absent)
        # Arrow writes a file in hundreds of pieces, and would wait for the interpreter to pass each on.
        sink = pa.BufferedOutputStream(pa.PythonFile(upload, mode="w"), _BUFFERED_BYTES)

        def publish() -> int | None:
            try:
                sink.flush()
                made_ms = upload.publish()
            except NameTaken as error:
                raise self.os_error(errno.EEXIST, path) from error
            # The time that a later request finds may be that at which an upload began.
            self._made = None
            if made_ms is not None and upload.is_answered:
                self._made = (made_ms, self._clock.monotonic_s(), self._clock.now_ms())
            return made_ms

        return Output(sink, publish=publish, discard=upload.discard, drop=upload.drop)

    def open_input(self, path: str) -> pa.NativeFile:
        bucket, key = self._to_read(path)
        return pa.PythonFile(RangeFile(bucket, key, self._repeated), mode="r")

    def open_whole(self, path: str, size_bytes: int, *, is_read_again: bool = False) -> pa.NativeFile:
        bucket, key = self._to_read(path)
        place = f"{bucket.uri}/{key}"
        data = self._kept.take(place)
        if data is None:
            with suppress(EmptyRange):
                content = self._repeated(lambda: bucket.get(key, 0, size_bytes))
                if content.size_bytes == len(content.data):
                    data = content.data
        if data is None or len(data) != size_bytes:
            # The size differs from the add action's; the caller reports that.
            return self.open_input(path)
        if is_read_again and self.keeps_files:
            self._kept.add(place, data)
        return pa.BufferReader(data)

    def copy_in(self, source: Store, from_path: str, path: str) -> None:
        # One identity must be able to read there and write here.
        if isinstance(source, ObjectStore) and source.access == self.access:
            bucket, key = source._to_read(from_path)
            if self._repeated(lambda: self._bucket.copy(bucket, key, self._key(path))):
                return
        super().copy_in(source, from_path, path)

    def let_go(self) -> int:
        return self._kept.clear()

    def delete(self, path: str) -> None:
        key = self._key(path)
        for error in self._repeated(lambda: self._bucket.delete([key])).values():
            raise error

    def delete_many(self, paths: Sequence[str]) -> dict[str, Exception]:
        failures: dict[str, Exception] = {}
        keys: dict[str, str] = {}
        for path in paths:
            try:
                keys[self._key(path)] = path
            except ValueError as error:
                failures[path] = error
        if keys:
            failures.update({keys[key]: error for key, error in self._delete(builtins.list(keys)).items()})
        return failures

    def _delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        try:
            return self._repeated(lambda: self._bucket.delete(keys))
        except OSError as error:
            if error.errno != errno.EREMOTEIO or len(keys) == 1:
                raise
        # Not as a batch: the server supports none, or a name cannot be written in one.
        failures: dict[str, Exception] = {}
        for number, key in enumerate(keys):
            try:
                self._repeated(lambda alone=[key]: self._bucket.delete(alone))  # type: ignore[misc]
            except NotAnswered as error:
                return {**failures, **dict.fromkeys(keys[number:], error)}
            except OSError as error:
                failures[key] = error
        return failures

    def abort_unfinished(self, before_ms: int, others: tuple[str, ...] = ()) -> int:
        count, kept = 0, tuple(self._prefix + each for each in others)
        for each in self._repeated(lambda: builtins.list(self._bucket.unfinished(self._prefix))):
            if each.started_ms < before_ms and not each.key.startswith(kept):
                self._repeated(lambda upload=each.upload: self._bucket.abort(upload))  # type: ignore[misc]
                count += 1
        return count

    def now_ms(self) -> int:
        if self._made is not None:
            made_ms, answered_s, answered_ms = self._made
            passed_s = self._clock.monotonic_s() - answered_s
            # The first of these stands still while a machine is suspended, and the second may be set.
            if passed_s < _CLOCK_S and 0 <= self._clock.now_ms() - answered_ms < 1000 * _CLOCK_S:
                return made_ms + int(passed_s) * 1000
        return self._repeated(lambda: self._bucket.now_ms(self._prefix))

    # --- keys -------------------------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        return self._prefix + self.inner(path)

    def _to_read(self, path: str) -> tuple[Bucket, str]:
        """Return the bucket and key of an object, which a log may name in another bucket. Raises OutsideTable."""
        path = path.removeprefix(f"{self.root}/")
        check_may_read(self.root, path, self.access)
        return (self._bucket, self._key(path)) if is_inside(path) else self._bucket_of(path)

    def _infos(self, found: Iterable[FileInfo]) -> Iterator[FileInfo]:
        """Yield objects by their path in the table, without folder markers and keys that are no valid path."""
        for each in found:
            path = each.path[len(self._prefix) :]
            with suppress(ValueError):
                inner_parts(path)
                yield replace(each, path=path)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _pages(self, prefix: str, *, start_from: str | None, is_deep: bool) -> Iterator[Listed]:
        token: Any = None
        while True:
            page = self._repeated(
                lambda at=token: self._bucket.list_page(prefix, start_from=start_from, token=at, is_deep=is_deep)  # type: ignore[misc]
            )
            yield page
            token = page.following
            if token is None:
                return

    def _repeated(self, request: Callable[[], _Answer]) -> _Answer:
        """Return the answer of a request, which is sent again while the store does not answer it."""
        start_s, tries, reported = self._clock.monotonic_s(), 0, 0
        while True:
            try:
                return request()
            except NotAnswered as error:
                wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0**tries) * (1 + self._clock.random()) / 2
                waited_s = self._clock.monotonic_s() - start_s
                if waited_s + wait_s > self._deadline_s:
                    raise
                if waited_s > _REPORTED_S * (1 + reported):
                    reported += 1
                    log.warning("%s: %s; asked again for up to %d s", self.root, error.strerror, DEADLINE_S)
                tries += 1
                self._clock.sleep(wait_s)


def open_objects(uri: str, access: Access, bucket: Callable[[str], Bucket]) -> ObjectStore:
    """Return the store at `scheme://bucket/folder`. `bucket`: by its name. Raises UnsupportedStore."""

    def bucket_of(text: str) -> tuple[Bucket, str]:
        scheme, name, path = split(text)
        if not name:
            raise UnsupportedStore(
                f"UnsupportedStore: {text!r} names no bucket; write {scheme}://bucket/folder.", uri=text
            )
        return bucket(name), path.strip("/")

    return ObjectStore(*bucket_of(uri), access, bucket_of=bucket_of)
