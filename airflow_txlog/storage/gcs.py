"""Buckets of Google Cloud Storage, over urllib3 with Google's own authentication.

The requests are those of the JSON API, one a call. Put-if-absent is one upload with `ifGenerationMatch=0`.
Source: docs/decisions/put-if-absent.md; Cloud Storage JSON API reference, "Objects" and "Resumable uploads".
"""

from __future__ import annotations

import email
import errno
import ipaddress
import json
import os
import ssl
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import google.auth
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.urllib3 import AuthorizedHttp
from google.oauth2.credentials import Credentials as AccessToken
from urllib3 import PoolManager, ProxyManager, Timeout
from urllib3.exceptions import HTTPError
from urllib3.util import make_headers, parse_url

from airflow_txlog import __version__
from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import InvalidInput
from airflow_txlog.locations import Access
from airflow_txlog.storage.base import FileInfo, Store
from airflow_txlog.storage.bucket import Bucket, Check, Content, Listed, RangedBucket, found_object, made_ms
from airflow_txlog.storage.clouds import (
    CONNECT_S,
    CONNECTIONS,
    READ_S,
    Body,
    Connection,
    NotAnswered,
    answer_error,
    body_of,
    connection,
    needed,
    no_bucket,
    no_credentials,
    read_options,
)
from airflow_txlog.storage.credentials import GOOGLE, KeptCredentials, credentials_of, google_token
from airflow_txlog.storage.objects import open_objects

SCHEME = "gs"
OPTIONS: dict[str, type] = {
    "endpoint_url": str,
    "project": str,
    "anon": bool,
    "requester_pays": bool,
    "token": str,
}
# One try per call: our retries count against one deadline.
_CALL: dict[str, Any] = {
    "timeout": Timeout(connect=CONNECT_S, read=READ_S),
    **dict.fromkeys(("retries", "redirect", "preload_content"), False),
    "decode_content": True,
}
_HEADERS = {"User-Agent": f"airflow-txlog/{__version__}", "Accept-Encoding": "gzip, deflate"}
_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_GOOGLE = ".googleapis.com"
_METADATA = "metadata.google.internal"
_PORTS = {"http": 80, "https": 443}
_RESUME, _CANCELLED = 308, 499
_WAYS_OF_GCSFS = frozenset({"anon", "browser", "cache", "cloud", "google_default"})


def open_at(uri: str, access: Access) -> Store:
    """Return the store at `gs://bucket/folder`, or `gcs:`. Raises UnsupportedStore, InvalidInput."""
    options = read_options("Google Cloud Storage", access.storage_options, OPTIONS)
    if options.get("token") in _WAYS_OF_GCSFS:
        raise InvalidInput(
            "storage_options: token is an access token or the path of a key file, and a word of gcsfs was found. Write "
            "anon=true for a public bucket, or leave token out for the process's own identity. Nothing was read or "
            "written."
        )
    client = connection(_open, options, credentials_of(access, GOOGLE))
    return open_objects(uri, access, lambda name: GcsBucket(name, client, options))


@dataclass(frozen=True, slots=True)
class _Client:
    http: Any
    """Has `urlopen` of urllib3, which adds the credentials."""
    server: str
    project: str | None
    """That of the process's own identity."""


def _open(given: dict[str, Any], credentials: KeptCredentials | None) -> _Client:
    token, project = given.get("token"), None
    if credentials is not None:
        found = google_token(credentials)
    elif given.get("anon"):
        found = AnonymousCredentials()  # type: ignore[no-untyped-call]
    elif token is None:
        found, project = google.auth.default(scopes=_SCOPES)
    elif os.path.exists(token):
        try:
            found, _ = google.auth.load_credentials_from_file(token, scopes=_SCOPES)  # type: ignore[no-untyped-call]
        except (GoogleAuthError, ValueError, AttributeError):
            # Its text may quote the credentials.
            why = "the token of storage_options names a file that holds no key"
            raise PermissionError(errno.EACCES, why) from None
    else:
        found = AccessToken(token)  # type: ignore[no-untyped-call]
    # A refused request is not sent again here: our retries are counted.
    http = AuthorizedHttp(found, _Pools(), max_refresh_attempts=0)  # type: ignore[no-untyped-call]
    server = given.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST")
    if not server:
        server = f"https://storage.{os.environ.get('GOOGLE_CLOUD_UNIVERSE_DOMAIN') or 'googleapis.com'}"
    elif "://" not in server:
        server = f"http://{server}"
    return _Client(http, server.rstrip("/"), project)


class _Pools(PoolManager):
    """Connections that go through the proxy which the environment names for a host, if it names one."""

    def __init__(self) -> None:
        # Calls for tokens pass no time limit.
        limit = Timeout(connect=CONNECT_S, read=READ_S)
        self._given: dict[str, Any] = {"maxsize": CONNECTIONS, "ssl_context": ssl.create_default_context()}
        super().__init__(**self._given, timeout=limit)
        self._proxies = {
            scheme: _proxy(scheme, url, {**self._given, "timeout": limit})
            for scheme, url in getproxies().items()
            if scheme in ("http", "https")
        }

    def urlopen(self, method: str, url: str, *given: Any, **named: Any) -> Any:
        place = parse_url(url)
        proxy = self._proxies.get(place.scheme or "")
        if proxy is None or _is_direct((place.host or "").strip("[]"), place.port or _PORTS.get(place.scheme or "")):
            return super().urlopen(method, url, *given, **named)
        return proxy.urlopen(method, url, *given, **named)


def _proxy(scheme: str, url: str, given: Mapping[str, Any]) -> ProxyManager:
    """Return the connections through a proxy. Raises InvalidInput, which shows nothing of a URL with a password."""
    place = None
    with suppress(HTTPError):
        place = parse_url(url if "://" in url else f"http://{url}")
    if place is None or place.scheme not in _PORTS or not place.host:
        name = f"{scheme.upper()}_PROXY"
        raise InvalidInput(
            f"{name} in the environment must be http://host:port or https://host:port, with user:password@ before the "
            "host if the proxy asks for it (special characters percent-encoded). Google Cloud Storage is reached "
            f"through no other kind of proxy. Correct {name}, or name the store's host in NO_PROXY and unset {name}. "
            "Nothing was read or written."
        )
    headers = {}
    if place.auth:
        # As latin-1, which `make_headers` undoes: the proxy gets the bytes that the URL has.
        user, _, password = unquote(place.auth, encoding="latin-1").partition(":")
        headers = make_headers(proxy_basic_auth=f"{user}:{password}")
    return ProxyManager(place._replace(auth=None).url, proxy_headers=headers, **given)


def _is_direct(host: str, port: int | None) -> bool:
    """Return whether to bypass proxies: for this machine and its metadata server, which sends tokens in clear text."""
    if host == "localhost" or host.endswith(".localhost") or host.rstrip(".") == _METADATA:
        return True
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_loopback or address.is_link_local:
            return True
    return bool(proxy_bypass(host) or proxy_bypass(f"{host}:{port}"))


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body. Raises NotAnswered for one that is no JSON, as a proxy's page."""
        try:
            answer: dict[str, Any] = json.loads(self.body)
        except ValueError:
            raise NotAnswered(errno.EAGAIN, "an answer is no JSON") from None
        return answer


@dataclass(slots=True)
class _Upload:
    """A resumable upload. `tried` is the number of the last part of which anything was sent."""

    url: str
    key: str
    tried: int = 0


class GcsBucket(RangedBucket):
    """One bucket."""

    deletes_at_once = 100
    parts_at_once = 1

    def __init__(self, name: str, client: Connection, options: Mapping[str, Any]) -> None:
        super().__init__(f"{SCHEME}://{name}", name, client)
        self._options = options

    def _head(self, key: str) -> FileInfo:
        return _found(self._request("GET", self._object(key), {"fields": _FIELDS}, key=key).json())

    def list_page(self, prefix: str, *, start_from: str | None, token: Any, is_deep: bool) -> Listed:
        given = {"prefix": prefix, "maxResults": self.page_keys, "fields": f"items({_FIELDS}),prefixes,nextPageToken"}
        given |= {} if is_deep else {"delimiter": "/"}
        given |= {} if start_from is None else {"startOffset": start_from}
        given |= {} if token is None else {"pageToken": token}
        page = self._request("GET", self._objects, given).json()
        objects = [_found(each) for each in page.get("items", ())]
        return Listed(objects=objects, prefixes=page.get("prefixes", ()), following=page.get("nextPageToken"))

    def put(self, key: str, data: bytes, *, if_absent: bool) -> int | None:
        given = {"uploadType": "media", "name": key, **_condition(if_absent)}
        path = f"/upload{self._objects}"
        answer = self._request("POST", path, given, key=key, headers=_BYTES, data=data, needs_bucket=True)
        return made_ms(answer.headers)

    def copy(self, source: Bucket, source_key: str, key: str) -> bool:
        if not isinstance(source, GcsBucket):
            return False
        path = f"{source._object(source_key)}/rewriteTo{self._object(key).removeprefix('/storage/v1')}"
        given: dict[str, str] = {}
        while True:
            # A large object, or one of another place, takes several requests.
            answer = self._request("POST", path, given, key=key, headers=_JSON, data=b"{}").json()
            if answer.get("done") is not False:
                return True
            given = {"rewriteToken": needed(answer, "rewriteToken", self._where(key))}

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
                failures[key] = answer_error(status, "", "DELETE", self._where(key))
        return failures

    def start_upload(self, key: str, *, if_absent: bool) -> Any:
        given = {"uploadType": "resumable", "name": key, **_condition(if_absent)}
        answer = self._request(
            "POST", f"/upload{self._objects}", given, key=key, headers=_JSON, data=b"{}", needs_bucket=True
        )
        return _Upload(needed(answer.headers, "Location", self._where(key)), key)

    def put_part(self, upload: Any, number: int, data: bytes) -> Any:
        if len(data) != self.part_bytes:
            # The last part, which creates the object: `complete` sends it.
            return data
        start = (number - 1) * self.part_bytes
        end = start + len(data)
        # An earlier try may have sent all of it, or the beginning: send the rest.
        stored = self._stored(upload) if upload.tried == number else start
        upload.tried = number
        while stored < end:
            content_range = f"bytes {stored}-{end - 1}/*"
            now_stored = _end_of(self._upload(upload, content_range, data[stored - start :], accepted=(_RESUME,)))
            if now_stored <= stored:
                raise answer_error(None, "nothing was stored", "PUT", self._where(upload.key))
            stored = now_stored
        return b""

    def complete(self, upload: Any, parts: Sequence[Any]) -> int | None:
        last = parts[-1]
        start = (len(parts) - bool(last)) * self.part_bytes
        total = start + len(last)
        content_range = f"bytes {start}-{total - 1}/{total}" if last else f"bytes */{total}"
        return made_ms(self._upload(upload, content_range, last).headers)

    def abort(self, upload: Any) -> None:
        accepted = (404, 410, _CANCELLED)
        self._request("DELETE", upload.url, None, key=upload.key, accepted=accepted)

    def _date(self, prefix: str) -> str:
        answer = self._request("GET", self._objects, {"prefix": prefix, "maxResults": 1, "fields": "nextPageToken"})
        return str(needed(answer.headers, "Date", self._where(prefix)))

    def unproved_server(self) -> str | None:
        server = self._client().server
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
            given["userProject"] = self._options.get("project") or self._client().project or ""
        return f"?{urlencode(given, quote_via=quote)}" if given else ""

    def _client(self) -> _Client:
        client: _Client = self._asked("connect", "", self._connection.client)
        return client

    def _get(self, key: str, headers: dict[str, str], check: Check | None = None) -> Content:
        answer = self._request("GET", self._object(key), {"alt": "media"}, key=key, headers=headers, check=check)
        where = self._where(key)
        etag = needed(answer.headers, "x-goog-generation", where)
        return Content(data=answer.body, size_bytes=_whole_size(answer.headers, where), etag=etag)

    def _upload(self, upload: _Upload, content_range: str, data: bytes, accepted: Collection[int] = ()) -> _Answer:
        headers = {"Content-Range": content_range}
        return self._request("PUT", upload.url, None, key=upload.key, headers=headers, data=data, accepted=accepted)

    def _stored(self, upload: _Upload) -> int:
        """Return how many bytes of an upload the server has."""
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
        check: Check | None = None,
    ) -> _Answer:
        """Send a request by a path of the server and a query, or by a whole URL without one.

        `accepted` are statuses that count as success. With `needs_bucket`, or without a key, "not found" means that
        there is no bucket.
        """
        client, where = self._client(), self._where(key)
        url = path if query is None else client.server + path + self._query(query)
        sent = {**_HEADERS, **(headers or {})}

        if data is not None:
            sent["Content-Length"] = str(len(data))

        def send() -> _Answer:
            stream = None if data is None else Body(data)
            with closing(client.http.urlopen(method, url, body=stream, headers=sent, **_CALL)) as found:
                if check is not None and found.status < 300:
                    check(_whole_size(found.headers, where))
                is_known = "Content-Length" in found.headers and "Content-Encoding" not in found.headers
                body = body_of(found.read, int(found.headers["Content-Length"]) if is_known else None)
                return _Answer(found.status, found.headers, body)

        answer = self._asked(method, key, send)
        if answer.status < 300 or answer.status in accepted:
            return answer
        if answer.status == 404 and (needs_bucket or not key or b"bucket does not exist" in answer.body):
            raise no_bucket(where, SCHEME)
        meant = answer_error(answer.status, _reason(answer.body), method, where)
        raise self._connection.error(meant, meant, self._right(method, key))

    def _meant(self, error: Exception, method: str, where: str) -> Exception:
        if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno == errno.EREMOTEIO):
            return error  # ours already
        if isinstance(error, GoogleAuthError):
            if isinstance(error, TransportError) or error.retryable:
                return answer_error(None, type(error).__name__, method, where)
            return no_credentials("Google Cloud Storage", method, where)
        if isinstance(error, HTTPError | OSError):
            return answer_error(None, type(error).__name__, method, where)
        return error

    def _right(self, method: str, key: str) -> str:
        rights = {"POST": "storage.objects.create", "PUT": "storage.objects.create", "DELETE": "storage.objects.delete"}
        return rights.get(method, "storage.objects.get" if key else "storage.objects.list")


_FIELDS = "name,size,timeCreated,generation"
_BYTES = {"Content-Type": "application/octet-stream"}
_JSON = {"Content-Type": "application/json", "X-Upload-Content-Type": "application/octet-stream"}


def _condition(if_absent: bool) -> dict[str, str]:
    return {"ifGenerationMatch": "0"} if if_absent else {}


def _found(item: Mapping[str, Any]) -> FileInfo:
    # The time at which this content was made: `updated` also moves when only the metadata is changed.
    made = datetime.fromisoformat(item["timeCreated"])
    return found_object(item["name"], item["size"], made, str(item["generation"]))


def _whole_size(headers: Mapping[str, str], where: str) -> int:
    return int(headers.get("Content-Range", "").rpartition("/")[2] or needed(headers, "Content-Length", where))


def _end_of(answer: _Answer) -> int:
    """Return the number of stored bytes: 42 for "bytes=0-41", 0 without a range."""
    return int(answer.headers["Range"].rpartition("-")[2]) + 1 if "Range" in answer.headers else 0


def _statuses(answer: _Answer) -> dict[int, int]:
    """Return the status of each call of a batch by the number in its Content-ID: answers have no order."""
    head = f"Content-Type: {answer.headers['Content-Type']}\r\n\r\n".encode()
    found = {}
    for part in email.message_from_bytes(head + answer.body).walk():
        name = part.get("Content-ID", "").strip("<>").removeprefix("response-")
        words = str(part.get_payload()).split(None, 2)
        if name.isdigit() and len(words) > 1 and words[1].isdigit():
            found[int(name)] = int(words[1])
    return found


def _reason(body: bytes) -> str:
    """Return the server's error code, which contains no name and no value."""
    try:
        return str(json.loads(body)["error"]["errors"][0]["reason"])
    except (ValueError, KeyError, TypeError, IndexError):
        return ""
