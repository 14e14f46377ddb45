"""Buckets of Amazon S3, and of what speaks its protocol, over s3fs.

s3fs gives the connection: its options, credentials and event loop. The requests are made on its client, because its
own file methods ask twice (HEAD before GET), repeat what the client repeats already, and publish a file whose writer
has failed. Put-if-absent is one PutObject with `If-None-Match: *`.

A server that is not Amazon's may take that header and not heed it: before the first commit it is asked to refuse one.
Source: docs/decisions/put-if-absent.md; Amazon S3 API reference, "Conditional requests".
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import HTTPClientError, NoCredentialsError, PartialCredentialsError
from botocore.handlers import add_expect_header
from fsspec.asyn import sync
from s3fs import S3FileSystem

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.credentials import AWS, KeptCredentials
from airflow_txlog.errors import CredentialsUnavailable, UnsupportedStore
from airflow_txlog.locations import split
from airflow_txlog.storage.access import Access
from airflow_txlog.storage.base import Store
from airflow_txlog.storage.bucket import Content, FoundObject, Listed, NameTaken, NotAnswered, UnfinishedUpload
from airflow_txlog.storage.objects import ObjectStore
from airflow_txlog.storage.options import read_options

SCHEME = "s3"
OPTIONS: dict[str, type] = {
    "endpoint_url": str,
    "region": str,
    "addressing_style": str,
    "anon": bool,
    "profile": str,
    "requester_pays": bool,
    "timeout_s": int,
    "key": str,
    "secret": str,
    "token": str,
}
# How long a request waits for the next bytes, and for the last. One try a call: ours are counted against one deadline.
TIMEOUT_S, LONGEST_S = 15, 300
_CLIENT = {"retries": {"total_max_attempts": 1}, "connect_timeout": 5}
_BUSY = frozenset({408, 409, 425, 429})
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")


def open_s3(uri: str, access: Access) -> Store:
    """The store at `s3://bucket/folder`, or `s3a:` and `s3n:`. Raises UnsupportedStore, InvalidInput."""
    options = read_options("S3", access.storage_options, OPTIONS)
    connection = _connection(tuple(sorted(options.items())), access.credentials(AWS))

    def bucket_of(text: str) -> tuple[S3Bucket, str]:
        _, name, path = split(text)
        if not name:
            raise UnsupportedStore(f"UnsupportedStore: {text!r} names no bucket; write s3://bucket/folder.", uri=text)
        return S3Bucket(name, connection), path.strip("/")

    bucket, folder = bucket_of(uri)
    return ObjectStore(bucket, folder, access, bucket_of=bucket_of)


@functools.lru_cache(maxsize=16)
def _connection(options: tuple[tuple[str, Any], ...], credentials: KeptCredentials | None) -> _Connection:
    """One for all stores with the same options and credentials: a client takes half a second to make."""
    return _Connection(dict(options), credentials)


class _Connection:
    """The client of this process: a client is of no use in a process that was forked from its own."""

    def __init__(self, options: dict[str, Any], credentials: KeptCredentials | None) -> None:
        self._options = options
        self._credentials = credentials
        self._lock = threading.Lock()
        self._opened: tuple[int, Any] = (-1, None)
        self.request_arguments = {"RequestPayer": "requester"} if options.get("requester_pays") else {}
        self.proved: set[str] = set()

    def filesystem(self) -> S3FileSystem:
        process, filesystem = self._opened
        if process != os.getpid():
            with self._lock:
                filesystem = self._open()
                self._opened = (os.getpid(), filesystem)
        return filesystem

    def _open(self) -> S3FileSystem:
        given = self._options
        config: dict[str, Any] = {**_CLIENT, "read_timeout": given.get("timeout_s", TIMEOUT_S)}
        if "addressing_style" in given:
            config["s3"] = {"addressing_style": given["addressing_style"]}
        same = ("endpoint_url", "anon", "profile", "requester_pays", "key", "secret", "token")
        arguments = {name: given[name] for name in same if name in given}
        if "region" in given:
            arguments["client_kwargs"] = {"region_name": given["region"]}
        if self._credentials is not None:
            arguments["session"] = _Session(self._credentials)
        return S3FileSystem(**arguments, config_kwargs=config, skip_instance_cache=True, use_listings_cache=False)


class _Session(AioSession):  # type: ignore[misc]
    """A client's session that has the credentials of a connection, and no others. It cannot be pickled."""

    def __init__(self, credentials: KeptCredentials) -> None:
        super().__init__()
        self._kept = credentials

    async def get_credentials(self) -> AioCredentials:
        return _SigningCredentials(self._kept)


class _SigningCredentials(AioCredentials):  # type: ignore[misc]
    """Asked for at every request, when it is signed. Those of botocore fetch each time below ten minutes of life."""

    def __init__(self, credentials: KeptCredentials) -> None:
        super().__init__("", "", method="txlog")
        self._kept = credentials

    async def get_frozen_credentials(self) -> ReadOnlyCredentials:
        values = (await self._kept.current_async()).values
        return ReadOnlyCredentials(values["access_key"], values["secret_key"], values.get("token"))


class S3Bucket:
    """One bucket. Implements `Bucket`."""

    part_bytes = 8 * 1024 * 1024
    deletes_at_once = 1000

    def __init__(self, name: str, connection: _Connection) -> None:
        self.uri = f"{SCHEME}://{name}"
        self._name = name
        self._connection = connection

    def get(
        self, key: str, start: int = 0, end: int | None = None, *, check: Callable[[int], None] | None = None
    ) -> Content:
        byte_range = f"bytes={start}-{'' if end is None else end - 1}"
        return self._get(key, {} if (start, end) == (0, None) else {"Range": byte_range}, check)

    def get_tail(self, key: str, length: int) -> Content:
        try:
            return self._get(key, {"Range": f"bytes=-{length}"}, None)
        except _EmptyRange:
            return self._get(key, {}, None)

    def head(self, key: str) -> FoundObject | None:
        try:
            answer = self._request("head_object", Key=key)
        except FileNotFoundError:
            return None
        return FoundObject(
            key=key,
            size_bytes=int(answer["ContentLength"]),
            modified_ms=_whole_seconds_ms(answer["LastModified"]),
            etag=answer["ETag"].strip('"'),
        )

    def list_page(self, prefix: str, *, start_from: str | None, token: Any, is_deep: bool) -> tuple[Listed, Any]:
        arguments = {} if is_deep else {"Delimiter": "/"}
        if token is not None:
            arguments["ContinuationToken"] = token
        elif start_from is not None:
            arguments["StartAfter"] = _just_before(start_from)
        page = self._request("list_objects_v2", Prefix=prefix, **arguments)
        objects = [
            FoundObject(
                key=each["Key"],
                size_bytes=int(each["Size"]),
                modified_ms=_whole_seconds_ms(each["LastModified"]),
                etag=each["ETag"].strip('"'),
            )
            for each in page.get("Contents", ())
        ]
        prefixes = [each["Prefix"] for each in page.get("CommonPrefixes", ())]
        following = page["NextContinuationToken"] if page.get("IsTruncated") else None
        return Listed(objects=objects, prefixes=prefixes), following

    def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        self._request("put_object", Key=key, Body=data, **condition)

    def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        if len(keys) == 1:
            self._request("delete_object", Key=keys[0])
            return {}
        listed = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = self._request("delete_objects", Delete=listed)
        return {
            each["Key"]: _refusal(each.get("Code", ""), "delete_objects", f"{self.uri}/{each['Key']}")
            for each in answer.get("Errors", ())
        }

    def start_upload(self, key: str) -> Any:
        return key, self._request("create_multipart_upload", Key=key)["UploadId"]

    def put_part(self, upload: Any, number: int, data: bytes) -> Any:
        key, upload_id = upload
        answer = self._request("upload_part", Key=key, UploadId=upload_id, PartNumber=number, Body=data)
        return {"ETag": answer["ETag"], "PartNumber": number}

    def complete(self, upload: Any, parts: Sequence[Any], *, if_absent: bool) -> None:
        key, upload_id = upload
        # Some servers do not know the condition here: of use against a mistake, never what a commit rests on.
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        self._request(
            "complete_multipart_upload",
            Key=key,
            UploadId=upload_id,
            MultipartUpload={"Parts": list(parts)},
            **condition,
        )

    def abort(self, upload: Any) -> None:
        key, upload_id = upload
        with suppress(FileNotFoundError):
            self._request("abort_multipart_upload", Key=key, UploadId=upload_id)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        markers: dict[str, str] = {}
        while True:
            page = self._request("list_multipart_uploads", Prefix=prefix, **markers)
            for each in page.get("Uploads", ()):
                started_ms = _whole_seconds_ms(each["Initiated"])
                yield UnfinishedUpload(upload=(each["Key"], each["UploadId"]), started_ms=started_ms)
            if not page.get("IsTruncated"):
                return
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def now_ms(self, prefix: str) -> int:
        answer = self._request("list_objects_v2", Prefix=prefix, MaxKeys=1)
        return _whole_seconds_ms(parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]))

    def check_conditions(self, folder: str) -> None:
        if self._name in self._connection.proved:
            return
        endpoint = self._run(self._endpoint())
        if not (urlsplit(endpoint).hostname or "").endswith(_AMAZON):
            self._prove_conditions(f"{folder}.txlog-probe-{SYSTEM_CLOCK.unique_id()}", endpoint)
        self._connection.proved.add(self._name)

    def _prove_conditions(self, key: str, endpoint: str) -> None:
        """Puts an object that is there already, twice at most: only a server that refuses it can hold a table."""
        self._request("put_object", Key=key, Body=b"probe")
        try:
            self._request("put_object", Key=key, Body=b"probe", IfNoneMatch="*")
        except NameTaken:
            return
        finally:
            with suppress(OSError):
                self._request("delete_object", Key=key)
        raise UnsupportedStore(
            f"UnsupportedStore: the server at {endpoint} replaces an object although it was asked not to "
            f"(If-None-Match: *), so two writers of {self.uri} could both believe to have made one version. Nothing "
            "was committed. Use a server that knows conditional writes.",
            uri=self.uri,
            filesystem=SCHEME,
        )

    # --- requests ---------------------------------------------------------------------------------------------------

    def _get(self, key: str, arguments: dict[str, Any], check: Callable[[int], None] | None) -> Content:
        async def read() -> Content:
            answer = await self._answer("get_object", {"Key": key, **arguments})
            async with answer["Body"] as body:
                whole = answer.get("ContentRange", "").rpartition("/")[2] or answer["ContentLength"]
                if check is not None:
                    check(int(whole))
                try:
                    data = await body.read()
                except Exception as error:
                    raise _as_os_error(error, "get_object", f"{self.uri}/{key}") from error
            return Content(data=data, size_bytes=int(whole), etag=answer["ETag"].strip('"'))

        content: Content = self._run(read())
        return content

    def _request(self, method: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._run(self._answer(method, arguments))
        return answer

    async def _answer(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            client = await self._client()
            answer: dict[str, Any] = await getattr(client, method)(
                Bucket=self._name, **arguments, **self._connection.request_arguments
            )
        except Exception as error:
            where = f"{self.uri}/{arguments.get('Key') or arguments.get('Prefix', '')}"
            raise _as_os_error(error, method, where) from error
        return answer

    async def _client(self) -> Any:
        # The session's credentials and, where no region is given, the bucket's region are asked for here.
        filesystem = self._connection.filesystem()
        await filesystem.set_session()
        client = await filesystem.get_s3(self._name)
        # A put would first ask whether it may go on: one way more, and a server that is silent is waited for for ever.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        return client

    async def _endpoint(self) -> str:
        client = await self._client()
        return str(client.meta.endpoint_url)

    def _run(self, coroutine: Any) -> Any:
        return sync(self._connection.filesystem().loop, _within_limit, coroutine)


async def _within_limit(coroutine: Any) -> Any:
    try:
        return await asyncio.wait_for(coroutine, LONGEST_S)
    except TimeoutError as error:
        raise NotAnswered(errno.EAGAIN, f"a request took more than {LONGEST_S} seconds") from error


class _EmptyRange(OSError):
    """An empty object has no range of bytes."""


def _as_os_error(error: Exception, method: str, where: str) -> Exception:
    """What a request met, by its HTTP status: never by the class, which differs between servers and versions."""
    if isinstance(error, CredentialsUnavailable):
        return error
    answer = getattr(error, "response", None) or {}
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = str(answer.get("Error", {}).get("Code", ""))
    if status == 412:
        return NameTaken(where)
    if code == "NoSuchBucket":
        return UnsupportedStore(
            f"UnsupportedStore: there is no bucket for {where}. Nothing was read or written. Make the bucket first: a "
            "table's folder never makes one.",
            uri=where,
            filesystem=SCHEME,
        )
    if status == 404:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
    if status == 416:
        return _EmptyRange(errno.EINVAL, "the object has no such range", where)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return PermissionError(errno.EACCES, f"{method} was not sent: this process has no credentials for S3", where)
    if status is None and not isinstance(error, HTTPClientError | aiohttp.ClientError | OSError | TimeoutError):
        return error
    if status is None or status in _BUSY or status >= 500:
        return NotAnswered(errno.EAGAIN, f"{method} was not answered ({code or type(error).__name__})", where)
    return _refusal(code or str(status), method, where, status)


def _refusal(code: str, method: str, where: str, status: int = 0) -> OSError:
    if status in (401, 403) or code in ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return PermissionError(errno.EACCES, f"{method} was refused ({code})", where)
    return OSError(errno.EREMOTEIO, f"{method} failed ({code})", where)


def _just_before(name: str) -> str:
    """A name that sorts before this one, and after nearly every other that does: a listing begins behind a name."""
    return name[:-1] + chr(ord(name[-1]) - 1) + "\U0010ffff"


def _whole_seconds_ms(time: datetime) -> int:
    """A listing gives milliseconds on some servers where HEAD gives seconds: both are cut, so that they are equal."""
    return int(time.timestamp()) * 1000
