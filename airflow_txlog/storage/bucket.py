"""Requests to one bucket of a cloud. Each cloud has a module with a `Bucket`.

A bucket lets no exception of its client out: those differ between versions, and many are no OSError.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from airflow_txlog.errors import CredentialsUnavailable, UnsupportedStore
from airflow_txlog.storage.base import FileInfo, temporary_path
from airflow_txlog.storage.clouds import (
    Connection,
    EmptyRange,
    NameTaken,
    NotAnswered,
    answer_error,
    is_refused_by_proxy,
)

_Answer = TypeVar("_Answer")


def found_object(key: str, size_bytes: Any, modified: datetime, etag: str) -> FileInfo:
    """Return an object, whose path is its key, as a client describes it. Times have whole seconds."""
    # Some servers list milliseconds and answer HEAD with seconds.
    modified_ms = int(modified.timestamp()) * 1000
    return FileInfo(path=key, size_bytes=int(size_bytes), modified_ms=modified_ms, etag=bare_etag(etag))


def date_ms(header: str) -> int:
    """Return the time of a Date header."""
    return int(parsedate_to_datetime(header).timestamp()) * 1000


def made_ms(headers: Mapping[str, str]) -> int | None:
    """Return the date of the answer to a put, None for a missing or malformed one."""
    with suppress(ValueError):
        return date_ms(headers.get("Date") or headers.get("date") or "")
    return None


def bare_etag(text: str) -> str:
    """Return an etag without quotes, and without the mark that a compressing proxy adds to some of them."""
    return text.removeprefix("W/").strip('"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A part of an object, and the size and etag of the whole object."""

    data: bytes
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One page of a listing: objects, the prefixes below which there are more, each ending in "/", and the token of the
    next page, None at the end."""

    objects: Sequence[FileInfo]
    prefixes: Sequence[str] = ()
    following: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """A file that was begun in parts and not finished. `Bucket.abort` takes `upload`."""

    upload: Any
    key: str
    started_ms: int


Check = Callable[[int], None]
"""Takes the size of an object in bytes, and raises if it is too large."""


class Bucket(ABC):
    """Requests to one bucket, one for each call, from any thread, also after a fork.

    Every method raises PermissionError, UnsupportedStore if there is no such bucket, NotAnswered, and OSError with an
    errno for any other answer; never an exception of the client.
    """

    part_bytes = 8 * 1024 * 1024
    """The size of the parts of a large file."""
    parts_at_once = 2
    """How many parts of one file may be sent at the same time; 1: in their order."""
    most_parts = 10_000
    """How many parts a file may have."""
    deletes_at_once = 1
    """How many objects one request can delete."""
    page_keys = 1000
    """How many objects a page of a listing has at most."""
    causes_quote_urls = False
    """Whether an error of the client may quote a secret URL. Then our errors do not have it as their cause."""

    def __init__(self, uri: str, name: str, connection: Connection) -> None:
        self.uri = uri
        """`s3://bucket`."""
        self._name = name
        self._connection = connection

    # --- the requests of a cloud ------------------------------------------------------------------------------------

    @abstractmethod
    def get(self, key: str, start: int = 0, end: int | None = None, check: Check | None = None) -> Content:
        """Return bytes `start` to `end`. Call `check` before they are read. Raises FileNotFoundError."""

    @abstractmethod
    def get_tail(self, key: str, length: int) -> Content:
        """Return the last bytes, or all if the object has fewer. Raises FileNotFoundError."""

    def head(self, key: str) -> FileInfo | None:
        """Return the object, or None if there is none."""
        try:
            return self._head(key)
        except FileNotFoundError:
            return None

    @abstractmethod
    def _head(self, key: str) -> FileInfo | None:
        """Return the object. Raises FileNotFoundError."""

    @abstractmethod
    def list_page(self, prefix: str, *, start_from: str | None, token: Any, is_deep: bool) -> Listed:
        """Return one page of the objects whose key begins with `prefix`, by key.

        The page may leave out keys before `start_from`. Unless `is_deep`, keys with another "/" after the prefix are
        collected into the page's prefixes.
        """

    @abstractmethod
    def put(self, key: str, data: bytes, *, if_absent: bool) -> int | None:
        """Put an object in one request. Return when it was made (see `now_ms`), None if the answer lacks it.

        Raises NameTaken if it must be absent and is not.
        """

    def copy(self, source: Bucket, source_key: str, key: str) -> bool:
        """Copy an object of a bucket inside the service, and return True; False if it must be read and written.

        It may be sent twice. Raises FileNotFoundError.
        """
        return False

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        """Delete up to `deletes_at_once` objects; missing ones count as deleted. Return the failures by key."""

    @abstractmethod
    def start_upload(self, key: str, *, if_absent: bool) -> Any:
        """Begin a file of several parts, which no reader sees before it is completed.

        Raises NameTaken if it must be absent and the store already knows that it is not.
        """

    @abstractmethod
    def put_part(self, upload: Any, number: int, data: bytes) -> Any:
        """Put part `number`, from 1 on, of `part_bytes` or the last. `complete` takes what this returns."""

    @abstractmethod
    def complete(self, upload: Any, parts: Sequence[Any]) -> int | None:
        """Make the object of its parts. Returns as `put`. Raises NameTaken if the store checks the condition here."""

    @abstractmethod
    def abort(self, upload: Any) -> None:
        """Drop the parts of an upload, which may be completed or dropped already."""

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Yield the unfinished uploads under a prefix; none if the store ends them automatically."""
        return iter(())

    def now_ms(self, prefix: str) -> int:
        """Return the server's clock in whole seconds, like the times of its objects."""
        return date_ms(self._date(prefix))

    @abstractmethod
    def _date(self, prefix: str) -> str:
        """Return the Date header of an answer to a listing."""

    @abstractmethod
    def unproved_server(self) -> str | None:
        """Return the address of a server that may ignore the condition of a put, or None for the cloud itself."""

    @abstractmethod
    def _meant(self, error: Exception, method: str, where: str) -> Exception:
        """Return the meaning of an error of the client."""

    @abstractmethod
    def _right(self, method: str, key: str) -> str:
        """Return the right that a request needs, for people."""

    # --- what all share ---------------------------------------------------------------------------------------------

    @property
    def access_mark(self) -> str | None:
        """See `Store.access_mark`."""
        return None

    def _where(self, key: str) -> str:
        return f"{self.uri}/{key}"

    def _asked(self, method: str, key: str, request: Callable[[], _Answer]) -> _Answer:
        """Return the answer of a request. Raises the meaning of its error."""
        try:
            return request()
        except Exception as error:
            meant: Exception
            if is_refused_by_proxy(error):
                meant = answer_error(407, "", method, self._where(key))
            elif isinstance(error, NameTaken | NotAnswered | CredentialsUnavailable):
                meant = error
            else:
                meant = self._meant(error, method, self._where(key))
            meant = self._connection.error(meant, error, self._right(method, key))
            if meant is error:
                raise
            cause = None if self.causes_quote_urls else error
        # Outside of the except clause, or the client's error would be the context of this one.
        raise meant from cause


class RangedBucket(Bucket):
    """A bucket of a service that takes the `Range` of HTTP."""

    def get(self, key: str, start: int = 0, end: int | None = None, check: Check | None = None) -> Content:
        byte_range = f"bytes={start}-{'' if end is None else end - 1}"
        return self._get(key, {} if (start, end) == (0, None) else {"Range": byte_range}, check)

    def get_tail(self, key: str, length: int) -> Content:
        try:
            return self._get(key, {"Range": f"bytes=-{length}"})
        except EmptyRange:
            return self._get(key, {})

    @abstractmethod
    def _get(self, key: str, asked: dict[str, str], check: Check | None = None) -> Content:
        """Return the content that a GET with these headers answers."""


_PROVED: set[tuple[str, str]] = set()


def check_conditions(bucket: Bucket, folder: str, repeated: Callable[[Callable[[], Any]], Any]) -> None:
    """Raise UnsupportedStore if a server that is not known to respect conditional puts ignores them.

    Tries once per process and bucket to replace an existing object in `folder`, a prefix that ends in "/". Only a
    server that refuses can hold a table. `repeated` retries an unanswered request.
    """
    server = bucket.unproved_server()
    if server is None or (server, bucket.uri) in _PROVED:
        return
    # Named as what killed writers leave, so that VACUUM sweeps it if this process is killed in between.
    key = temporary_path(f"{folder}txlog-probe")
    repeated(lambda: bucket.put(key, b"probe", if_absent=False))
    met = "replaces an object although it was asked not to"
    try:
        # The key is this probe's alone: an honest server refuses it each time.
        repeated(lambda: bucket.put(key, b"probe", if_absent=True))
    except NameTaken:
        _PROVED.add((server, bucket.uri))
        return
    except OSError as error:
        if error.errno != errno.EREMOTEIO:
            raise
        met = f"takes a put, and none that must not replace an object: {error.strerror}"
    finally:
        with suppress(OSError):
            bucket.delete([key])
    raise UnsupportedStore(
        f"UnsupportedStore: the server at {server} {met}. So two writers of {bucket.uri} could both believe to have "
        "made one version. Nothing was committed. Use a server that supports conditional writes.",
        uri=bucket.uri,
    )
