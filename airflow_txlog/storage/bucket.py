"""What a store of objects asks of a cloud: requests to one bucket, and what came of each.

A module for each cloud has a `Bucket`. It decides what an answer means, by its HTTP status, and never lets an exception
of its client out: those differ between versions, and many are no OSError. Here is also what those modules share: one
client a process, the meaning of a status, and the question whether a server keeps the condition of a put.
"""

from __future__ import annotations

import errno
import logging
import os
import ssl
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import CredentialsUnavailable, UnsupportedStore
from airflow_txlog.storage.base import temporary_path
from airflow_txlog.storage.credentials import KeptCredentials

CONNECT_S, READ_S, LONGEST_S = 5, 15, 300
"""For how long a connection to each address, the next bytes of an answer, and the whole answer may take. The last is
looked at after each MiB, and not on Azure."""
CONNECTIONS = 64
"""How many connections a client keeps open: one for each thread that may ask."""

_BUSY = frozenset({408, 409, 425, 429})
# What a server will not learn by being asked again.
_NOT_KNOWN = frozenset({501, 505})


# All three clients send through urllib3, which logs each URL: that of a SAS, and of an upload to Google, is a secret.
logging.getLogger("urllib3.connectionpool").addFilter(
    lambda record: not any(name in record.getMessage() for name in ("sig=", "upload_id="))
)
_AT_ONCE = 8
_PIECE_BYTES = 1024 * 1024
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class NameTaken(Exception):
    """The condition of a put is not met: something bears the name, which may be what an earlier try has put."""


class NotAnswered(OSError):
    """The store was not reached, did not answer, or was busy: the same request may be answered later."""


class EmptyRange(OSError):
    """An object has no bytes in the range that was asked for; an empty one has none in any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject:
    """What a store says of an object. `etag` changes with the content; times have whole seconds."""

    key: str
    size_bytes: int
    modified_ms: int
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A part of an object, and of the whole object its size and its etag."""

    data: bytes
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One page of a listing: objects, and the prefixes below which there are more, each ending in "/"."""

    objects: Sequence[FoundObject]
    prefixes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """A file that was begun in parts and not finished. `upload` is what `Bucket.abort` takes."""

    upload: Any
    started_ms: int


Check = Callable[[int], None]
"""Takes the size of an object in bytes, and raises where that is too many."""


class Bucket(ABC):
    """Requests to one bucket, one a call, from any thread, also after a fork.

    Every method raises PermissionError, UnsupportedStore where there is no such bucket, NotAnswered, and OSError with
    an errno for any other answer; never an exception of the client's own.
    """

    part_bytes = 8 * 1024 * 1024
    """How large the parts of a large file are."""
    deletes_at_once = 1
    """How many objects one request can delete."""
    page_keys = 1000
    """How many objects a page of a listing has at most."""
    causes_quote_urls = False
    """Whether a client's error may quote a URL that is a secret. Then no error of ours has it as its cause."""

    def __init__(self, uri: str, name: str, connection: Connection) -> None:
        self.uri = uri
        """`s3://bucket`."""
        self._name = name
        self._connection = connection

    # --- what a cloud has its own way of ----------------------------------------------------------------------------

    @abstractmethod
    def get(self, key: str, start: int = 0, end: int | None = None, check: Check | None = None) -> Content:
        """Return bytes `start` to `end`. Call `check` before they are read. Raises FileNotFoundError."""

    @abstractmethod
    def get_tail(self, key: str, length: int) -> Content:
        """The last bytes, all where the object has fewer. Raises FileNotFoundError."""

    @abstractmethod
    def head(self, key: str) -> FoundObject | None:
        """None where there is no such object."""

    @abstractmethod
    def list_page(self, prefix: str, *, start_from: str | None, token: Any, is_deep: bool) -> tuple[Listed, Any]:
        """One page of the objects whose key begins with `prefix`, by key, and the next page's token, None at the end.

        `start_from`: a key; those before it may be left out. Not `is_deep`: what has another "/" after the prefix is
        one of the page's prefixes.
        """

    @abstractmethod
    def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        """One request. Raises NameTaken where `if_absent` and the name is taken."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        """Delete up to `deletes_at_once` objects; those that are gone count as deleted. The failures by key."""

    @abstractmethod
    def start_upload(self, key: str, *, if_absent: bool) -> Any:
        """Begin a file of several parts, which no reader sees before it is completed.

        Raises NameTaken where `if_absent`, the name is taken and the store says so already now.
        """

    @abstractmethod
    def put_part(self, upload: Any, number: int, data: bytes) -> Any:
        """Part `number`, from 1 on: of `part_bytes`, or the last. What comes back is handed to `complete`."""

    @abstractmethod
    def complete(self, upload: Any, parts: Sequence[Any]) -> None:
        """Make the object of its parts. Raises NameTaken as far as the store knows the condition here."""

    @abstractmethod
    def abort(self, upload: Any) -> None:
        """Drop the parts. One that is completed or dropped already is no error."""

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Yield the uploads under a prefix that have not ended; none where the store ends them by itself."""
        return iter(())

    @abstractmethod
    def now_ms(self, prefix: str) -> int:
        """The server's clock, in whole seconds, as the times of its objects."""

    @abstractmethod
    def unproved_server(self) -> str | None:
        """The server's address, where it may take the condition of a put and not heed it; None for the cloud itself."""

    @abstractmethod
    def _meant(self, error: Exception, method: str, where: str) -> Exception:
        """Return what an error of the client means."""

    @abstractmethod
    def _right(self, method: str, key: str) -> str:
        """Return the right that a request needs, for people."""

    # --- what all share ---------------------------------------------------------------------------------------------

    def _asked(self, method: str, key: str, request: Callable[[], _Answer]) -> _Answer:
        """Return what a request returns. Raises what its error means."""
        try:
            return request()
        except Exception as error:
            known = isinstance(error, NameTaken | NotAnswered | CredentialsUnavailable)
            meant = error if known else self._meant(error, method, f"{self.uri}/{key}")
            meant = self._connection.error(meant, error, self._right(method, key))
            if meant is error:
                raise
            cause = None if self.causes_quote_urls else error
        # Outside of the except clause: else the error of the client would still be the context of ours.
        raise meant from cause


class RangedBucket(Bucket):
    """A bucket of a service that takes a `Range` as HTTP has it."""

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
        """Return what a GET with these headers answers."""


_PROVED: set[tuple[str, str]] = set()


def check_conditions(bucket: Bucket, folder: str, repeated: Callable[[Callable[[], None]], None]) -> None:
    """Raises UnsupportedStore where the server is not known to keep the condition of a put, and does not.

    Such a server is asked once a process and bucket to replace an object that is there, in `folder`, a prefix that ends
    in "/". Only one that refuses it can hold a table. `repeated` sends a request again that is not answered.
    """
    server = bucket.unproved_server()
    if server is None or (server, bucket.uri) in _PROVED:
        return
    # Named as what killed writers leave, so that VACUUM sweeps it where this process is killed in between.
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
        "made one version. Nothing was committed. Use a server that knows conditional writes.",
        uri=bucket.uri,
    )


# --- what the modules of the clouds share ---------------------------------------------------------------------------


def bare_etag(text: str) -> str:
    """An etag without its quotes, and without the mark of a proxy that packs answers: it stands on some of them."""
    return text.removeprefix("W/").strip('"')


class Connection:
    """The client of a store for this process: one is of no use in a process that was forked from its own."""

    def __init__(self, make: Callable[[], Any], caller: str = "", server: str = "") -> None:
        """`caller` and `server`: whose credentials are sent where, as errors name them."""
        self._make = make
        self._caller, self._server = caller, server
        # By process: a lock that another thread held when this process was forked would never be released here.
        self._made: dict[int, Any] = {}
        self._locks: dict[int, threading.Lock] = {}

    def client(self) -> Any:
        """Return the client. The first call makes it, and raises what the client raises."""
        process = os.getpid()
        if process not in self._made:
            with self._locks.setdefault(process, threading.Lock()):
                if process not in self._made:
                    self._made[process] = self._make()
        return self._made[process]

    def error(self, meant: Exception, cause: Exception, needs: str = "") -> Exception:
        """An error of a request, with what mends it: whose credentials they were, the right it needs, the server."""
        if isinstance(meant, NotAnswered):
            if any(_is_of_handshake(each) for each in _causes(cause)):
                return OSError(errno.EREMOTEIO, _NO_TLS.format(self._server or "the server"), meant.filename)
            if self._server and self._server not in str(meant.strerror):
                meant.strerror = f"{meant.strerror} by {self._server}"
        elif isinstance(meant, PermissionError) and meant.strerror and self._caller not in meant.strerror:
            right = f", which needs {needs}" if needs and "refused" in meant.strerror else ""
            meant.strerror = f"{meant.strerror}. It was asked with {self._caller}{right}"
        return meant


def side_by_side(ask: Callable[[_Asked], _Answer], about: Sequence[_Asked]) -> Iterator[_Answer]:
    """Yield what `ask` returns or raises for each, in their order. Eight requests at most are under way at once."""
    if len(about) < 2:
        yield from map(ask, about)
        return
    # A page of a thousand names takes an object store some 50 ms.
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="txlog-storage")
    try:
        yield from pool.map(ask, about)
    finally:
        # A task that is interrupted does not wait for answers that it no longer wants.
        pool.shutdown(wait=False, cancel_futures=True)


def caller_of(options: Mapping[str, Any], credentials: KeptCredentials | None) -> str:
    """Whose credentials open a store, for people."""
    if credentials is not None:
        return f"the connection {credentials.connection!r} (storage_conn_id)"
    if options.get("anon"):
        return "no credentials (anon in storage_options)"
    if "profile" in options:
        return f"the profile {options['profile']!r} (storage_options)"
    secrets = ("key", "token", "account_key", "sas_token", "client_secret", "connection_string")
    given = [name for name in secrets if name in options]
    return f"the {given[0]} of storage_options" if given else "this process's own identity (no storage_conn_id)"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those behind it, which some clients hold as an argument or an attribute alone."""
    yield error
    for each in (error.__cause__ or error.__context__, getattr(error, "inner_exception", None), *error.args):
        if isinstance(each, BaseException):
            yield from _causes(each)


# The connection was cut off: another time the same server may answer.
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


def _is_of_handshake(error: BaseException) -> bool:
    """Return whether there is no TLS with this server: raised before anything of a request is sent."""
    if not isinstance(error, ssl.SSLError) or isinstance(error, _CUT_OFF):
        return False
    return any(frame.f_code.co_name == "do_handshake" for frame, _ in traceback.walk_tb(error.__traceback__))


_NO_TLS = (
    "no TLS connection to {}: where the server has none, write http:// in its endpoint (on Azure, in a connection "
    "string); where an authority of your own has signed its certificate, name that in AWS_CA_BUNDLE (S3) or "
    "SSL_CERT_FILE. Nothing was sent"
)


def body_of(read: Callable[[int], bytes], size_bytes: int | None = None) -> bytes:
    """Return the whole body of an answer. `size_bytes`: how long it is, where that is known.

    Raises NotAnswered for a body that is cut short or takes more than LONGEST_S.
    """
    pieces, start_s = [], SYSTEM_CLOCK.monotonic_s()
    while piece := read(_PIECE_BYTES):
        pieces.append(piece)
        if SYSTEM_CLOCK.monotonic_s() - start_s > LONGEST_S:
            raise NotAnswered(errno.EAGAIN, f"an answer took more than {LONGEST_S} seconds")
    if size_bytes is not None and sum(map(len, pieces)) != size_bytes:
        raise NotAnswered(errno.EAGAIN, "an answer was cut short")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def answer_error(status: int | None, code: str, method: str, where: str) -> Exception:
    """The error of a request by the HTTP status of its answer, None where there was none: never by a client's class.

    Those differ between servers and versions. `code` is the server's word for it, or the class of the client's error.
    """
    if status == 412:
        return NameTaken(where)
    if status == 404:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
    if status == 416:
        return EmptyRange(errno.EINVAL, "the object has no such range", where)
    is_busy = status is None or status in _BUSY or code == "RequestTimeout"
    if is_busy or (status is not None and status >= 500 and status not in _NOT_KNOWN):
        return NotAnswered(errno.EAGAIN, f"{method} was not answered ({code or status})", where)
    return refusal(status, code, method, where)


def refusal(status: int | None, code: str, method: str, where: str) -> OSError:
    """The error of a request that was answered, and will be answered the same again."""
    if status in (401, 403):
        why = "the credentials are not valid there, or do not allow it"
        if code == "RequestTimeTooSkewed":
            why = "the clock of this machine is too far from the server's"
        return PermissionError(errno.EACCES, f"{method} was refused ({code or status}): {why}", where)
    return OSError(errno.EREMOTEIO, f"{method} failed ({code or status})", where)


def needed(answer: Mapping[str, Any], name: str, where: str) -> Any:
    """What an answer must have."""
    if name not in answer:
        raise answer_lacks(name, where)
    return answer[name]


def answer_lacks(what: str, where: str) -> OSError:
    """The error of a request whose answer cannot be used."""
    return OSError(errno.EREMOTEIO, f"the answer lacks {what}: a proxy on the way may take it out", where)


def no_credentials(cloud: str, method: str, where: str) -> PermissionError:
    """The error of a request that was not sent."""
    why = f"{method} was not sent: no credentials for {cloud}, or malformed ones"
    return PermissionError(errno.EACCES, f"{why}. Name a connection (storage_conn_id), or {_WAYS[cloud]}", where)


_WAYS = {
    "S3": "give the process AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role",
    "Google Cloud Storage": "give the process GOOGLE_APPLICATION_CREDENTIALS or a service account",
    "Azure": "give the process AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_ID and its siblings or a managed identity",
}


def no_bucket(where: str, filesystem: str) -> UnsupportedStore:
    """The error of a request to a bucket, or a container, that does not exist."""
    return UnsupportedStore(
        f"UnsupportedStore: there is no bucket for {where}. Nothing was read or written. Make the bucket first: a "
        "table's folder never makes one.",
        uri=where,
        filesystem=filesystem,
    )


def whole_seconds_ms(time: datetime) -> int:
    """A listing gives milliseconds on some servers where HEAD gives seconds: both are cut, so that they are equal."""
    return int(time.timestamp()) * 1000
