"""Buckets of Google Cloud Storage, over gcsfs.

gcsfs gives the connection: its credentials, session and event loop. The requests are those of the JSON API, one a call,
made on that session below gcsfs's own repeating. Put-if-absent is one upload with `ifGenerationMatch=0`.
Source: docs/decisions/put-if-absent.md; Cloud Storage JSON API reference, "Objects" and "Resumable uploads".
"""

from __future__ import annotations

import email
import errno
import functools
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit

# With it, gcsfs asks by gRPC what kind of bucket it has, before the first request: 60 seconds where there is no gRPC.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

import aiohttp
from gcsfs.core import GCSFileSystem
from google.auth.exceptions import GoogleAuthError, TransportError
from google.oauth2.credentials import Credentials as AccessToken

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.locations import Access, split
from airflow_txlog.storage.access import credentials_of, read_options
from airflow_txlog.storage.base import Store
from airflow_txlog.storage.bucket import (
    CONNECT_S,
    READ_S,
    Check,
    Connection,
    Content,
    EmptyRange,
    FoundObject,
    Listed,
    UnfinishedUpload,
    answer_error,
    caller_of,
    needed,
    no_bucket,
    no_credentials,
    raise_as,
    whole_seconds_ms,
)
from airflow_txlog.storage.credentials import GOOGLE, KeptCredentials, google_token
from airflow_txlog.storage.objects import ObjectStore

SCHEME = "gs"
OPTIONS: dict[str, type] = {
    "endpoint_url": str,
    "project": str,
    "anon": bool,
    "requester_pays": bool,
    "token": str,
}
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
# What gcsfs takes as a way to credentials.
_WAYS = frozenset({"anon", "google_default", "cache", "cloud"})
_GOOGLE = ".googleapis.com"
_RESUME, _CANCELLED = 308, 499


def open_gcs(uri: str, access: Access) -> Store:
    """The store at `gs://bucket/folder`, or `gcs:`. Raises UnsupportedStore, InvalidInput."""
    options = read_options("Google Cloud Storage", access.storage_options, OPTIONS)
    connection = _connection(tuple(sorted(options.items())), credentials_of(access, GOOGLE))

    def bucket_of(text: str) -> tuple[GcsBucket, str]:
        _, name, path = split(text)
        if not name:
            raise UnsupportedStore(f"UnsupportedStore: {text!r} names no bucket; write gs://bucket/folder.", uri=text)
        return GcsBucket(name, connection, options), path.strip("/")

    bucket, folder = bucket_of(uri)
    return ObjectStore(bucket, folder, access, bucket_of=bucket_of)


@functools.lru_cache(maxsize=16)
def _connection(options: tuple[tuple[str, Any], ...], credentials: KeptCredentials | None) -> Connection:
    given = dict(options)
    return Connection(lambda: _open(given, credentials), caller_of(given, credentials), given.get("endpoint_url", ""))


def _open(given: dict[str, Any], credentials: KeptCredentials | None) -> GCSFileSystem:
    # Without "google_default", gcsfs would go on without credentials where it finds none.
    token = "anon" if given.get("anon") else given.get("token", "google_default")
    if credentials is not None:
        token = google_token(credentials)
    elif token not in _WAYS and not os.path.exists(token):
        # As a text, gcsfs would send it to Google's tokeninfo first, as part of a URL, which errors quote.
        token = AccessToken(token)  # type: ignore[no-untyped-call]
    try:
        return GCSFileSystem(
            token=token,
            access="read_write",
            endpoint_url=given.get("endpoint_url"),
            skip_instance_cache=True,
            use_listings_cache=False,
        )
    except ValueError:
        # Its text may hold what was given.
        raise PermissionError(errno.EACCES, "the token of storage_options names a file that holds no key") from None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.body)
        return answer


@dataclass(slots=True)
class _Session:
    """A resumable upload. `tried` is the number of the last part that was sent, in full or not."""

    url: str
    key: str
    tried: int = 0


class GcsBucket:
    """One bucket. Implements `Bucket`."""

    # Parts are multiples of 256 KiB, but for the last one.
    part_bytes = 8 * 1024 * 1024
    deletes_at_once = 100
    page_keys = 1000

    def __init__(self, name: str, connection: Connection, options: Mapping[str, Any]) -> None:
        self.uri = f"{SCHEME}://{name}"
        self._name = name
        self._connection = connection
        self._options = options

    def get(self, key: str, start: int = 0, end: int | None = None) -> Content:
        byte_range = f"bytes={start}-{'' if end is None else end - 1}"
        return self._get(key, {} if (start, end) == (0, None) else {"Range": byte_range})

    def get_all(self, keys: Sequence[str], check: Check) -> Sequence[Content | BaseException]:
        try:
            requests = [functools.partial(self._read, *self._asked(key, {}), check) for key in keys]
        except Exception as error:
            return [error] * len(keys)
        return self._connection.run_all(requests)

    def get_tail(self, key: str, length: int) -> Content:
        try:
            return self._get(key, {"Range": f"bytes=-{length}"})
        except EmptyRange:
            return self._get(key, {})

    def head(self, key: str) -> FoundObject | None:
        try:
            answer = self._request("GET", self._object(key), {"fields": _FIELDS}, key=key)
        except FileNotFoundError:
            return None
        return _found(answer.json())

    def list_page(self, prefix: str, *, start_from: str | None, token: Any, is_deep: bool) -> tuple[Listed, Any]:
        given = {"prefix": prefix, "maxResults": self.page_keys, "fields": f"items({_FIELDS}),prefixes,nextPageToken"}
        given |= {} if is_deep else {"delimiter": "/"}
        given |= {} if start_from is None else {"startOffset": start_from}
        given |= {} if token is None else {"pageToken": token}
        page = self._request("GET", self._objects, given).json()
        objects = [_found(each) for each in page.get("items", ())]
        return Listed(objects=objects, prefixes=page.get("prefixes", ())), page.get("nextPageToken")

    def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        given = {"uploadType": "media", "name": key, **_condition(if_absent)}
        self._request("POST", f"/upload{self._objects}", given, key=key, headers=_BYTES, data=data, needs_bucket=True)

    def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        if len(keys) == 1:
            self._request("DELETE", self._object(keys[0]), {}, key=keys[0], accepted=(404,))
            return {}
        boundary = f"txlog-{SYSTEM_CLOCK.unique_id()}"
        query = self._query({})
        calls = [
            f"--{boundary}\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"
            f"Content-ID: <{number}>\r\n\r\nDELETE {self._object(key)}{query} HTTP/1.1\r\n\r\n\r\n"
            for number, key in enumerate(keys)
        ]
        body = f"{''.join(calls)}--{boundary}--\r\n".encode()
        headers = {"Content-Type": f"multipart/mixed; boundary={boundary}"}
        answer = self._request("POST", "/batch/storage/v1", {}, headers=headers, data=body, needs_bucket=True)
        failures: dict[str, Exception] = {}
        statuses = _statuses(answer)
        for number, key in enumerate(keys):
            status = statuses.get(number)
            if status is None or (status >= 300 and status != 404):
                failures[key] = answer_error(status, "", "DELETE", f"{self.uri}/{key}")
        return failures

    def start_upload(self, key: str, *, if_absent: bool) -> Any:
        given = {"uploadType": "resumable", "name": key, **_condition(if_absent)}
        answer = self._request(
            "POST", f"/upload{self._objects}", given, key=key, headers=_JSON, data=b"{}", needs_bucket=True
        )
        return _Session(needed(answer.headers, "Location", f"{self.uri}/{key}"), key)

    def put_part(self, upload: Any, number: int, data: bytes) -> Any:
        if len(data) != self.part_bytes:
            # The last one: the object is made when it has come, which is for `complete`.
            return data
        start = (number - 1) * self.part_bytes
        end = start + len(data)
        # An earlier try may have brought all of it, or the beginning: the rest is sent.
        stored = self._stored(upload) if upload.tried == number else start
        upload.tried = number
        while stored < end:
            content_range = f"bytes {stored}-{end - 1}/*"
            now_stored = _end_of(self._upload(upload, content_range, data[stored - start :], accepted=(_RESUME,)))
            if now_stored <= stored:
                raise answer_error(None, "nothing was stored", "PUT", f"{self.uri}/{upload.key}")
            stored = now_stored
        return b""

    def complete(self, upload: Any, parts: Sequence[Any]) -> None:
        last = parts[-1]
        start = (len(parts) - bool(last)) * self.part_bytes
        total = start + len(last)
        self._upload(upload, f"bytes {start}-{total - 1}/{total}" if last else f"bytes */{total}", last)

    def abort(self, upload: Any) -> None:
        accepted = (404, 410, _CANCELLED)
        self._request("DELETE", upload.url, None, key=upload.key, accepted=accepted)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """None: the service drops an upload that is a week old, and lists none."""
        return iter(())

    def now_ms(self, prefix: str) -> int:
        answer = self._request("GET", self._objects, {"prefix": prefix, "maxResults": 1, "fields": "nextPageToken"})
        return whole_seconds_ms(parsedate_to_datetime(needed(answer.headers, "Date", f"{self.uri}/{prefix}")))

    def unproved_server(self) -> str | None:
        server = self._server()
        return None if (urlsplit(server).hostname or "").endswith(_GOOGLE) else server

    # --- requests ---------------------------------------------------------------------------------------------------

    @property
    def _objects(self) -> str:
        return f"/storage/v1/b/{quote(self._name, safe='')}/o"

    def _object(self, key: str) -> str:
        return f"{self._objects}/{quote(key, safe='')}"

    def _query(self, given: Mapping[str, Any]) -> str:
        given = dict(given)
        if self._options.get("requester_pays"):
            given["userProject"] = self._options.get("project") or self._connection.filesystem().project
        return f"?{urlencode(given, quote_via=quote)}" if given else ""

    def _server(self) -> str:
        try:
            return str(self._connection.filesystem()._location).rstrip("/")
        except Exception as error:
            self._raise(error, "connect", self.uri)

    def _get(self, key: str, headers: dict[str, str]) -> Content:
        content: Content = self._connection.run(self._read, *self._asked(key, headers))
        return content

    def _asked(self, key: str, headers: dict[str, str]) -> tuple[str, str, dict[str, str]]:
        url = self._server() + self._object(key) + self._query({"alt": "media"})
        return key, url, self._headers("GET", key, headers)

    async def _read(self, key: str, url: str, sent: dict[str, str], check: Check | None = None) -> Content:
        where = f"{self.uri}/{key}"

        def check_size(found: Mapping[str, str]) -> None:
            if check is not None:
                check(key, _whole_size(found, where))

        answer = await self._answer("GET", url, sent, None, key, check=check_size)
        etag = needed(answer.headers, "x-goog-generation", where)
        return Content(data=answer.body, size_bytes=_whole_size(answer.headers, where), etag=etag)

    def _upload(self, upload: _Session, content_range: str, data: bytes, accepted: Collection[int] = ()) -> _Answer:
        headers = {"Content-Range": content_range}
        return self._request("PUT", upload.url, None, key=upload.key, headers=headers, data=data, accepted=accepted)

    def _stored(self, upload: _Session) -> int:
        """How many bytes of an upload have come."""
        return _end_of(self._upload(upload, "bytes */*", b"", accepted=(_RESUME,)))

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        *,
        key: str = "",
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        accepted: Collection[int] = (),
        needs_bucket: bool = False,
    ) -> _Answer:
        """One request, by a path of the server and a query, or by a whole URL without one."""
        url = path if query is None else self._server() + path + self._query(query)
        sent = self._headers(method, key, headers or {})
        answer: _Answer = self._connection.run(self._answer, method, url, sent, data, key, accepted, needs_bucket)
        return answer

    def _headers(self, method: str, key: str, given: Mapping[str, str]) -> dict[str, str]:
        try:
            # Credentials that are to be renewed are renewed in this thread: the loop is for the requests of all.
            sent: dict[str, str] = self._connection.filesystem()._get_headers(given)
        except Exception as error:
            self._raise(error, method, f"{self.uri}/{key}")
        return sent

    async def _answer(
        self,
        method: str,
        url: str,
        sent: Mapping[str, str],
        data: bytes | None,
        key: str,
        accepted: Collection[int] = (),
        needs_bucket: bool = False,
        check: Callable[[Mapping[str, str]], None] | None = None,
    ) -> _Answer:
        """`accepted` are statuses beside those of success. Not found is no bucket where `needs_bucket`, or without a
        key."""
        where = f"{self.uri}/{key}"
        try:
            answer = await self._send(method, url, sent, data, check)
        except Exception as error:
            self._raise(error, method, where)
        if answer.status < 300 or answer.status in accepted:
            return answer
        if answer.status == 404 and (needs_bucket or not key or b"bucket does not exist" in answer.body):
            raise no_bucket(where, SCHEME)
        meant = answer_error(answer.status, _reason(answer.body), method, where)
        raise self._connection.error(meant, meant, _right(method, key))

    def _raise(self, error: Exception, method: str, where: str) -> NoReturn:
        raise_as(self._connection.error(_as_os_error(error, method, where), error), error)

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        data: bytes | None,
        check: Callable[[Mapping[str, str]], None] | None,
    ) -> _Answer:
        session = await self._connection.filesystem()._set_session()
        async with session.request(
            method, url, headers=headers, data=data, timeout=_TIMEOUT, allow_redirects=False
        ) as answer:
            if check is not None and answer.status < 300:
                check(answer.headers)
            return _Answer(answer.status, answer.headers.copy(), await answer.read())


_FIELDS = "name,size,timeCreated,generation"
_BYTES = {"Content-Type": "application/octet-stream"}
_JSON = {"Content-Type": "application/json", "X-Upload-Content-Type": "application/octet-stream"}


def _right(method: str, key: str) -> str:
    rights = {"POST": "storage.objects.create", "PUT": "storage.objects.create", "DELETE": "storage.objects.delete"}
    return rights.get(method, "storage.objects.get" if key else "storage.objects.list")


def _condition(if_absent: bool) -> dict[str, str]:
    return {"ifGenerationMatch": "0"} if if_absent else {}


def _found(item: Mapping[str, Any]) -> FoundObject:
    # The time at which this content was made: `updated` also moves when only the metadata is changed.
    return FoundObject(
        key=item["name"],
        size_bytes=int(item["size"]),
        modified_ms=whole_seconds_ms(datetime.fromisoformat(item["timeCreated"])),
        etag=str(item["generation"]),
    )


def _whole_size(headers: Mapping[str, str], where: str) -> int:
    return int(headers.get("Content-Range", "").rpartition("/")[2] or needed(headers, "Content-Length", where))


def _end_of(answer: _Answer) -> int:
    """Behind the last byte that has come: "bytes=0-41" means 42, no range none."""
    return int(answer.headers["Range"].rpartition("-")[2]) + 1 if "Range" in answer.headers else 0


def _statuses(answer: _Answer) -> dict[int, int]:
    """The status of each call of a batch, by the number in its Content-ID: the order of the answers is not given."""
    head = f"Content-Type: {answer.headers['Content-Type']}\r\n\r\n".encode()
    found = {}
    for part in email.message_from_bytes(head + answer.body).walk():
        name = part.get("Content-ID", "").strip("<>").removeprefix("response-")
        words = str(part.get_payload()).split(None, 2)
        if name.isdigit() and len(words) > 1 and words[1].isdigit():
            found[int(name)] = int(words[1])
    return found


def _reason(body: bytes) -> str:
    """The server's word for what is wrong, which holds no name and no value."""
    try:
        return str(json.loads(body)["error"]["errors"][0]["reason"])
    except (ValueError, KeyError, TypeError, IndexError):
        return ""


def _as_os_error(error: Exception, method: str, where: str) -> Exception:
    if isinstance(error, PermissionError):  # CredentialsUnavailable among them
        return error
    # What gcsfs says of credentials has its own class, with Google's as the cause.
    cause = error.__cause__ if type(error).__module__.startswith("gcsfs.") else error
    if isinstance(cause, GoogleAuthError):
        if isinstance(cause, TransportError) or getattr(cause, "retryable", False):
            return answer_error(None, type(cause).__name__, method, where)
        return no_credentials("Google Cloud Storage", method, where)
    if isinstance(error, aiohttp.ClientError | OSError | TimeoutError):
        return answer_error(None, type(error).__name__, method, where)
    return error
