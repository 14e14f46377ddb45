"""Shared code of the clouds' modules: options, one client per process, and the meaning of answers.

The meaning follows from the HTTP status, never from a client's class: classes differ between servers and versions.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import InvalidInput, UnsupportedStore
from airflow_txlog.storage.base import NoCredentials
from airflow_txlog.storage.credentials import KeptCredentials

CONNECT_S, READ_S, LONGEST_S = 5, 15, 300
"""How long a connection to each address, the next bytes of an answer, and a whole answer may take. The last is checked
after each 8 MiB, and not on Azure."""
CONNECTIONS = 64
"""How many connections a client keeps for its next requests. More threads may send at the same time: each connection
beyond this number is closed after its answer."""

_BUSY = frozenset({408, 409, 425, 429})
# A retry does not help if the server does not implement the request.
_NOT_KNOWN = frozenset({501, 505})
_OF_PROXY = (
    "the proxy of HTTPS_PROXY or HTTP_PROXY asks for a user and a password, or does not accept those in its URL; the "
    "store was not asked"
)
ENDED = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"})
"""The codes of credentials that are no longer valid. Those of temporary ones have status 400."""
# A body of several pieces is joined, and that takes as much time as to read it.
_PIECE_BYTES = 8 * 1024 * 1024
# A piece of the body of a request. The connection must take each within CONNECT_S: 13 KiB/s are enough. Pieces of 256
# KiB would time out below 51 KiB/s.
_SENT_BYTES = 64 * 1024

# All three clients send through urllib3, which logs each URL: that of a SAS, and of an upload to Google, is a secret.
logging.getLogger("urllib3.connectionpool").addFilter(
    lambda record: not any(name in record.getMessage() for name in ("sig=", "upload_id="))
)


class NameTaken(Exception):
    """The condition of a put is not met: the name is taken, perhaps by an earlier try of the same put."""


class NotAnswered(OSError):
    """The store was not reached, did not answer, or was busy: the same request may be answered later."""


class EmptyRange(OSError):
    """An object has no bytes in the requested range; an empty object has none in any."""


def read_options(kind: str, given: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """Return the options as they are given. Raises InvalidInput for an unknown one, or one of another type."""
    for name, value in given.items():
        if name not in types:
            raise InvalidInput(
                f"storage_options: {kind} has no option {name!r}. It has {', '.join(types)}. Nothing was read."
            )
        # True is an int to Python.
        if not isinstance(value, types[name]) or (isinstance(value, bool) and types[name] is not bool):
            raise InvalidInput(
                f"storage_options: {name} must be of type {types[name].__name__}, not {type(value).__name__}. Nothing "
                "was read."
            )
    if "endpoint_url" in given and not given["endpoint_url"].startswith(("http://", "https://")):
        raise InvalidInput("storage_options: endpoint_url must start with http:// or https://. Nothing was read.")
    return dict(given)


class Connection:
    """The client of a store for this process: a client is of no use in a process that was forked from its own."""

    def __init__(self, make: Callable[[], Any], caller: str = "", server: str = "") -> None:
        """`caller` and `server` name in errors whose credentials are sent where."""
        self._make = make
        self._caller, self._server = caller, server
        # By process: a lock held by another thread during a fork would never be released in the child.
        self._made: dict[int, Any] = {}
        self._locks: dict[int, threading.Lock] = {}

    def client(self) -> Any:
        """Return the client. The first call makes it, and raises the client's errors."""
        process = os.getpid()
        made = self._made.get(process)
        if made is None:
            with self._locks.setdefault(process, threading.Lock()):
                made = self._made.get(process)
                if made is None:
                    made = self._made[process] = self._make()
        return made

    def drop(self) -> None:
        """Let the next request make a new client."""
        self._made.pop(os.getpid(), None)

    def error(self, meant: Exception, cause: Exception, needs: str = "") -> Exception:
        """Return an error of a request with its remedy: the credentials used, the right it needs, the server."""
        if isinstance(meant, NotAnswered):
            if any(_is_of_handshake(each) for each in causes(cause)):
                return OSError(errno.EREMOTEIO, _NO_TLS.format(self._server or "the server"), meant.filename)
            if self._server and self._server not in str(meant.strerror):
                meant.strerror = f"{meant.strerror} by {self._server}"
        elif isinstance(meant, PermissionError) and meant.strerror and _OF_PROXY in meant.strerror:
            return meant  # the request did not reach the store
        elif isinstance(meant, PermissionError) and meant.strerror and self._caller not in meant.strerror:
            right = f", which needs {needs}" if needs and "refused" in meant.strerror else ""
            meant.strerror = f"{meant.strerror}. It was asked with {self._caller}{right}"
        return meant


Open = Callable[[dict[str, Any], "KeptCredentials | None"], Any]
# The variables that clients read begin with these.
_OF_CLIENTS = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST", "HOME")


def connection(
    open_client: Open, options: Mapping[str, Any], credentials: KeptCredentials | None, server: str = ""
) -> Connection:
    """Return the connection of all stores with these options and credentials: a client takes half a second to make.

    If the environment has changed, it is another connection: the process may have another identity.
    """
    environment = tuple(sorted(each for each in os.environ.items() if each[0].startswith(_OF_CLIENTS)))
    return _connection(open_client, tuple(sorted(options.items())), credentials, server, environment)


@functools.lru_cache(maxsize=48)
def _connection(
    open_client: Open,
    options: tuple[tuple[str, Any], ...],
    credentials: KeptCredentials | None,
    server: str,
    environment: tuple[tuple[str, str], ...],
) -> Connection:
    given = dict(options)
    server = server or given.get("endpoint_url", "")
    return Connection(lambda: open_client(given, credentials), caller_of(given, credentials), server)


def caller_of(options: Mapping[str, Any], credentials: KeptCredentials | None) -> str:
    """Return whose credentials open a store, for people."""
    if credentials is not None:
        return f"the connection {credentials.connection!r} (storage_conn_id)"
    if options.get("anon"):
        return "no credentials (anon in storage_options)"
    if "profile" in options:
        return f"the profile {options['profile']!r} (storage_options)"
    secrets = ("key", "token", "account_key", "sas_token", "client_secret", "connection_string")
    given = [name for name in secrets if name in options]
    return f"the {given[0]} of storage_options" if given else "this process's own identity (no storage_conn_id)"


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those behind it; some clients hold one only as an argument or an attribute."""
    yield error
    for each in (error.__cause__ or error.__context__, getattr(error, "inner_exception", None), *error.args):
        if isinstance(each, BaseException):
            yield from causes(each)


# The connection was cut off: another time the same server may answer.
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


def _is_of_handshake(error: BaseException) -> bool:
    """Return whether the TLS handshake failed, so that nothing of a request was sent."""
    if not isinstance(error, ssl.SSLError) or isinstance(error, _CUT_OFF):
        return False
    return any(frame.f_code.co_name == "do_handshake" for frame, _ in traceback.walk_tb(error.__traceback__))


_NO_TLS = (
    "no TLS connection to {}: where the server has none, write http:// in its endpoint (on Azure, in a connection "
    "string); where an authority of your own has signed its certificate, name that in AWS_CA_BUNDLE (S3) or "
    "SSL_CERT_FILE. Nothing was sent"
)


class Body:
    """The body of a request, which the client sends in pieces: it would send bytes at once, all within CONNECT_S.

    A file for the clients, whose `read` copies nothing.
    """

    def __init__(self, data: bytes) -> None:
        self._view, self._position = memoryview(data), 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = -1) -> Any:
        """Return the next bytes, possibly more than `size`: urllib3 reads 16 KiB per call."""
        start = self._position
        is_rest = size is None or size < 0
        self._position = len(self) if is_rest else min(len(self), start + max(size or 0, _SENT_BYTES))
        return self._view[start : self._position]

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self)}[whence]
        self._position = max(0, base + offset)
        return self._position


def body_of(read: Callable[[int], bytes], size_bytes: int | None = None) -> bytes:
    """Return the whole body of an answer, whose size may be known.

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
    """Return the error of a request by the HTTP status of its answer, None if there was none.

    `code` is the server's error code, or the class of the client's error.
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


def is_refused_by_proxy(error: BaseException) -> bool:
    """Return whether a proxy refused to open a connection for want of a user and a password (407)."""
    # Of a tunnel the clients keep no status, only this text of http.client.
    return any(str(each).startswith("Tunnel connection failed: 407") for each in causes(error))


def refusal(status: int | None, code: str, method: str, where: str) -> OSError:
    """Return the error of a request that would be answered the same again."""
    if status == 407:
        return PermissionError(errno.EACCES, f"{method} was refused ({status}): {_OF_PROXY}", where)
    if status in (401, 403) or code in ENDED:
        why = "the credentials are not valid there, or do not allow it"
        if code == "RequestTimeTooSkewed":
            why = "the clock of this machine is too far from the server's"
        return PermissionError(errno.EACCES, f"{method} was refused ({code or status}): {why}", where)
    return OSError(errno.EREMOTEIO, f"{method} failed ({code or status})", where)


def needed(answer: Mapping[str, Any], name: str, where: str) -> Any:
    """Return what an answer must have. Raises OSError if it lacks it."""
    if name not in answer:
        raise answer_lacks(name, where)
    return answer[name]


def answer_lacks(what: str, where: str) -> OSError:
    """Return the error of an answer that cannot be used."""
    return OSError(errno.EREMOTEIO, f"the answer lacks {what}: a proxy on the way may take it out", where)


def no_credentials(cloud: str, method: str, where: str) -> NoCredentials:
    """Return the error of a request that was not sent."""
    why = f"{method} was not sent: no credentials for {cloud}, or malformed ones"
    connection = "a connection (storage_conn_id; --conn-id of a command)"
    return NoCredentials(errno.EACCES, f"{why}. Name {connection}, or {_WAYS[cloud]}", where)


_WAYS = {
    "S3": "give the process AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role",
    "Google Cloud Storage": "give the process GOOGLE_APPLICATION_CREDENTIALS or a service account",
    "Azure": "give the process AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_ID and its siblings or a managed identity",
}


def no_bucket(where: str, filesystem: str) -> UnsupportedStore:
    """Return the error of a request to a missing bucket or container."""
    return UnsupportedStore(
        f"UnsupportedStore: there is no bucket for {where}. Nothing was read or written. Create the bucket "
        "first. It is never created automatically.",
        uri=where,
        filesystem=filesystem,
    )
