"""What a store of objects asks of a cloud: requests to one bucket, and what came of each.

A module for each cloud has a `Bucket`. It decides what an answer means, by its HTTP status, and never lets an exception
of its client out: those differ between versions, and many are no OSError. Here is also what those modules share: one
client a process, the meaning of a status, and the question whether a server keeps the condition of a put.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, Protocol

from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.storage.credentials import KeptCredentials
from airflow_txlog.storage.local_files import temporary_path

CONNECT_S, READ_S, LONGEST_S = 5, 15, 300
"""For how long a connection, the next bytes of an answer, and its last are waited for."""

_BUSY = frozenset({408, 409, 425, 429})
# What a server will not learn by being asked again.
_NOT_KNOWN = frozenset({501, 505})


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


Check = Callable[[str, int], None]
"""Is called with an object's key and its size in bytes. It raises where that is too many."""


class Bucket(Protocol):
    """Requests to one bucket, one a call, from any thread, also after a fork.

    Every method raises PermissionError, UnsupportedStore where there is no such bucket, NotAnswered, and OSError with
    an errno for any other answer; never an exception of the client's own.
    """

    uri: str
    """`s3://bucket`."""
    part_bytes: int
    """How large the parts of a large file are."""
    deletes_at_once: int
    """How many objects one request can delete."""
    page_keys: int
    """How many objects a page of a listing has at most."""

    def get(self, key: str, start: int = 0, end: int | None = None) -> Content:
        """Bytes `start` to `end`. Raises FileNotFoundError."""

    def get_all(self, keys: Sequence[str], check: Check) -> Sequence[Content | BaseException]:
        """Whole objects, asked for at once, or what `get` raises and `check`, which is called before bytes are read."""

    def get_tail(self, key: str, length: int) -> Content:
        """The last bytes, all where the object has fewer. Raises FileNotFoundError."""

    def head(self, key: str) -> FoundObject | None:
        """None where there is no such object."""

    def list_page(self, prefix: str, *, start_from: str | None, token: Any, is_deep: bool) -> tuple[Listed, Any]:
        """One page of the objects whose key begins with `prefix`, by key, and the next page's token, None at the end.

        `start_from`: a key; those before it may be left out. Not `is_deep`: what has another "/" after the prefix is
        one of the page's prefixes.
        """

    def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        """One request. Raises NameTaken where `if_absent` and the name is taken."""

    def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        """Delete up to `deletes_at_once` objects; those that are gone count as deleted. The failures by key."""

    def start_upload(self, key: str, *, if_absent: bool) -> Any:
        """Begin a file of several parts, which no reader sees before it is completed.

        Raises NameTaken where `if_absent`, the name is taken and the store says so already now.
        """

    def put_part(self, upload: Any, number: int, data: bytes) -> Any:
        """Part `number`, from 1 on: of `part_bytes`, or the last. What comes back is handed to `complete`."""

    def complete(self, upload: Any, parts: Sequence[Any]) -> None:
        """Make the object of its parts. Raises NameTaken as far as the store knows the condition here."""

    def abort(self, upload: Any) -> None:
        """Drop the parts. One that is completed or dropped already is no error."""

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """The uploads under a prefix that have not ended; none where the store ends them by itself."""

    def now_ms(self, prefix: str) -> int:
        """The server's clock, in whole seconds, as the times of its objects."""

    def unproved_server(self) -> str | None:
        """The server's address, where it may take the condition of a put and not heed it; None for the cloud itself."""


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
    """A file system of fsspec for this process: one is of no use in a process that was forked from its own."""

    def __init__(self, make: Callable[[], Any], caller: str = "", server: str = "") -> None:
        """`caller` and `server`: whose credentials are sent where, as errors name them."""
        self._make = make
        self._caller, self._server = caller, server
        # By process: a lock that another thread held when this process was forked would never be released here.
        self._made: dict[int, Any] = {}
        self._locks: dict[int, threading.Lock] = {}

    def filesystem(self) -> Any:
        """The file system, made when it is first asked for. Raises what its client raises."""
        process = os.getpid()
        if process not in self._made:
            with self._locks.setdefault(process, threading.Lock()):
                if process not in self._made:
                    self._made[process] = self._make()
        return self._made[process]

    def run(self, request: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        """What a request returns that is made on the client's event loop.

        Raises RuntimeError on that loop's own thread, where the collector may run a destructor: it would wait for
        itself for ever, and every other request of this process with it.
        """
        return self._on_loop(_within_limit(request, *arguments))

    def run_all(self, requests: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> Sequence[Any]:
        """What each request returns or raises. They are under way at the same time, and handed over together: a
        thread for each takes more CPU time."""

        async def together() -> list[Any]:
            return await asyncio.gather(*map(_within_limit, requests), return_exceptions=True)

        try:
            answers: list[Any] = self._on_loop(together())
        except Exception as error:
            return [error] * len(requests)
        return answers

    def _on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            loop = self.filesystem().loop
        except BaseException:
            coroutine.close()
            raise
        # None on a thread that runs no loop.
        if asyncio._get_running_loop() is loop:
            coroutine.close()
            raise RuntimeError("A store was asked for something on the thread that carries its requests.")
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def error(self, meant: Exception, cause: Exception, needs: str = "") -> Exception:
        """An error of a request, with what mends it: whose credentials they were, the right it needs, the server."""
        if isinstance(meant, NotAnswered):
            # By its name, as a file system of fsspec need not have aiohttp: raised before a request is sent.
            if any(of.__name__ == "ClientSSLError" for each in _causes(cause) for of in type(each).__mro__):
                return OSError(errno.EREMOTEIO, _NO_TLS.format(self._server or "the server"), meant.filename)
            if self._server and self._server not in str(meant.strerror):
                meant.strerror = f"{meant.strerror} by {self._server}"
        elif isinstance(meant, PermissionError) and meant.strerror and self._caller not in meant.strerror:
            right = f", which needs {needs}" if needs and "refused" in meant.strerror else ""
            meant.strerror = f"{meant.strerror}. It was asked with {self._caller}{right}"
        return meant


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


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


_NO_TLS = (
    "no TLS connection to {}: where the server has none, write http:// in its endpoint (on Azure, in a connection "
    "string); where an authority of your own has signed its certificate, name that in AWS_CA_BUNDLE (S3) or "
    "SSL_CERT_FILE. Nothing was sent"
)


async def _within_limit(request: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
    try:
        async with asyncio.timeout(LONGEST_S) as limit:
            return await request(*arguments)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise NotAnswered(errno.EAGAIN, f"a request took more than {LONGEST_S} seconds") from error


def raise_as(meant: Exception, error: Exception) -> NoReturn:
    """Raise what an error of a client means, which may be the error itself."""
    if meant is error:
        raise error
    raise meant from error


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
