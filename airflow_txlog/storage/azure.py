"""Containers of Azure Blob Storage, which are also those of Data Lake Storage Gen2, over adlfs.

adlfs gives the connection: its credentials, event loop and the client of Azure's SDK. The requests are made on that
client, one a call, without the SDK's own repeating. Put-if-absent is one Put Blob with `If-None-Match: *`.

Both services hold the same blobs, and have one root here, the one of Data Lake Storage. An account with a hierarchical
namespace lists its directories among the blobs: they are left out.
Source: docs/decisions/put-if-absent.md; Blob service REST API, "Put Blob", "Put Block List", "List Blobs".
"""

from __future__ import annotations

import base64
import errno
import functools
import logging
import os
import re
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from adlfs import AzureBlobFileSystem
from azure.core import MatchConditions
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.storage.blob import BlobBlock
from azure.storage.blob.aio import BlobPrefix

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import CredentialsUnavailable, UnsupportedStore
from airflow_txlog.locations import Access, split
from airflow_txlog.storage.access import credentials_of, read_options
from airflow_txlog.storage.base import Store
from airflow_txlog.storage.bucket import (
    CONNECT_S,
    READ_S,
    Check,
    Connection,
    Content,
    FoundObject,
    Listed,
    UnfinishedUpload,
    answer_error,
    answer_lacks,
    bare_etag,
    caller_of,
    needed,
    no_bucket,
    no_credentials,
    raise_as,
    refusal,
    whole_seconds_ms,
)
from airflow_txlog.storage.credentials import AZURE, KeptCredentials, azure_arguments, unavailable
from airflow_txlog.storage.objects import ObjectStore

SCHEME = "abfss"
OPTIONS: dict[str, type] = {
    "account_name": str,
    "account_host": str,
    "anon": bool,
    "client_id": str,
    "tenant_id": str,
    "account_key": str,
    "sas_token": str,
    "client_secret": str,
    "connection_string": str,
}
# The SDK logs each request and its answer in twenty lines, at a level that Airflow shows.
_REQUESTS_LOGGER = logging.getLogger(f"{__name__}.requests")
_REQUESTS_LOGGER.setLevel(logging.WARNING)
_IDENTITY_LOGGER = logging.getLogger("azure.identity")
# One try a call, as ours are counted against one deadline.
_CALL = {
    "retry_total": 0,
    "connection_timeout": CONNECT_S,
    "read_timeout": READ_S,
    "logger": _REQUESTS_LOGGER,
}
_PARTS_READ_AT_ONCE = 4
_CLOUDS = ("core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net")
_HOST = re.compile(rf"([a-z0-9]{{3,24}})\.(?:dfs|blob)\.({'|'.join(map(re.escape, _CLOUDS))})")
_RIGHTS = {
    method: f"the role Storage Blob Data Contributor, or a SAS with {letters}"
    for method, letters in {"GET": "r", "HEAD": "r", "LIST": "l", "PUT": "c and w", "DELETE": "d"}.items()
}
_TAKEN = frozenset({"BlobAlreadyExists", "ResourceAlreadyExists", "PathAlreadyExists"})


class _Place(NamedTuple):
    """Where a container is."""

    account: str
    cloud: str
    container: str
    path: str


def open_azure(uri: str, access: Access) -> Store:
    """The store at `abfss://container@account.dfs.core.windows.net/folder`, or `az://container/folder`.

    Raises UnsupportedStore, InvalidInput.
    """
    options = read_options("Azure", access.storage_options, OPTIONS)
    place = _place(uri, options)
    connection = _connection(place.account, place.cloud, tuple(sorted(options.items())), credentials_of(access, AZURE))

    def bucket_of(text: str) -> tuple[AzureBucket, str]:
        # A token or a key goes to no host but that of the table's own account, whatever a log names.
        other = _place(text, options)
        if (other.account, other.cloud) != (place.account, place.cloud):
            raise UnsupportedStore(
                f"UnsupportedStore: the file {text} is in another storage account than its table at {uri}. Nothing of "
                "it was read.",
                uri=text,
            )
        return AzureBucket(other, connection), other.path

    return ObjectStore(AzureBucket(place, connection), place.path, access, bucket_of=bucket_of)


def _place(uri: str, options: dict[str, Any]) -> _Place:
    scheme, authority, path = split(uri)
    container, at, host = authority.partition("@")
    if not at and scheme in ("az", "abfs") and container:
        return _Place(_default_account(uri, options), _CLOUDS[0], container, path.strip("/"))
    found = _HOST.fullmatch(host.lower())
    if not container or found is None:
        raise UnsupportedStore(
            f"UnsupportedStore: {uri!r} names no container of a storage account; write "
            "abfss://container@account.dfs.core.windows.net/folder, or az://container/folder. For another host, set "
            "account_host in storage_options.",
            uri=uri,
        )
    return _Place(found[1], found[2], container, path.strip("/"))


def _default_account(uri: str, options: dict[str, Any]) -> str:
    text = options.get("connection_string") or os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    settings = dict(each.split("=", 1) for each in text.split(";") if "=" in each)
    host = urlsplit(settings.get("BlobEndpoint", "")).hostname or ""
    found = (
        options.get("account_name")
        or settings.get("AccountName")
        or (host.partition(".")[0] if _HOST.fullmatch(host) else None)
        or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    )
    if not found:
        raise UnsupportedStore(
            f"UnsupportedStore: {uri!r} names no storage account; write "
            "abfss://container@account.dfs.core.windows.net/folder, or set account_name in storage_options or "
            "AZURE_STORAGE_ACCOUNT_NAME.",
            uri=uri,
        )
    return str(found)


@functools.lru_cache(maxsize=16)
def _connection(
    account: str, cloud: str, options: tuple[tuple[str, Any], ...], credentials: KeptCredentials | None
) -> Connection:
    given = dict(options)
    server = f"https://{given.get('account_host', f'{account}.blob.{cloud}')}"
    return Connection(lambda: _open(account, cloud, given, credentials), caller_of(given, credentials), server)


def _open(account: str, cloud: str, given: dict[str, Any], credentials: KeptCredentials | None) -> AzureBlobFileSystem:
    host = {"account_host": f"{account}.blob.{cloud}", **given, "account_name": account}
    if credentials is not None and given.get("account_name", account) != account:
        # A connection's key or SAS is for its own account: no other host gets to see it.
        raise UnsupportedStore(
            f"UnsupportedStore: the table is in the storage account {account}, and the connection "
            f"{credentials.connection!r} is of {given['account_name']}. Nothing was read or written.",
            uri=f"{SCHEME}://{account}.dfs.{cloud}",
        )
    arguments = host | ({} if credentials is None else azure_arguments(credentials))
    key = arguments.get("account_key")
    try:
        if key:
            base64.b64decode(key, validate=True)
            # At a host that does not name it, the client has to be given the account.
            arguments["account_key"] = {"account_name": account, "account_key": key}
        opened = AzureBlobFileSystem if credentials is None else _OfConnection
        filesystem = opened(**arguments, skip_instance_cache=True, use_listings_cache=False)
    except ValueError:
        # Its text may hold what was given.
        why = f"the key, the SAS or the connection string for the storage account {account} is malformed; copy it again"
        if credentials is not None:
            raise unavailable(credentials.connection, why) from None
        raise PermissionError(errno.EACCES, why) from None
    if filesystem.credential is not None and _IDENTITY_LOGGER.level == logging.NOTSET:
        # Where none of its ways leads to credentials it logs twenty lines, and our error says it in one.
        _IDENTITY_LOGGER.setLevel(logging.ERROR)
    _leave_open_in_forks(filesystem)
    named = filesystem.service_client.account_name
    if named not in (None, account):
        raise UnsupportedStore(
            f"UnsupportedStore: the table is in the storage account {account}, and the connection string that this "
            f"process was given, in its options or its environment, is that of {named}. Nothing was read or written.",
            uri=f"{SCHEME}://{account}.dfs.{cloud}",
        )
    return filesystem


class _OfConnection(AzureBlobFileSystem):  # type: ignore[misc]
    """With the secret that it is given: where the environment holds another one, adlfs would take that first."""

    def __init__(self, **given: Any) -> None:
        self._given = given
        super().__init__(**given)

    def do_connect(self) -> None:
        for name in ("connection_string", "account_key", "sas_token"):
            setattr(self, name, self._given.get(name))
        super().do_connect()


def _leave_open_in_forks(filesystem: AzureBlobFileSystem) -> None:
    """Keep a forked process from closing this client when it ends.

    adlfs does so on the loop of the process that opened it, which does not run in the other: it would never end.
    """
    registered = list(getattr(weakref.finalize, "_registry", ()))
    closings = [each for each in registered if (each.peek() or (None,))[0] is filesystem]

    def leave() -> None:
        for each in closings:
            each.atexit = False

    os.register_at_fork(after_in_child=leave)


class AzureBucket:
    """One container. Implements `Bucket`."""

    part_bytes = 8 * 1024 * 1024
    # A batch of deletes has not been seen to work on a server that can be had for tests.
    deletes_at_once = 1
    page_keys = 5000

    def __init__(self, place: _Place, connection: Connection) -> None:
        self.uri = f"{SCHEME}://{place.container}@{place.account}.dfs.{place.cloud}"
        self._name = place.container
        self._connection = connection

    def get(self, key: str, start: int = 0, end: int | None = None) -> Content:
        of_all = (start, end) == (0, None)
        asked = {} if of_all else {"offset": start, "length": None if end is None else end - start}
        content: Content = self._request("GET", key, functools.partial(self._read, key, asked))
        return content

    def get_all(self, keys: Sequence[str], check: Check) -> Sequence[Content | BaseException]:
        answers = self._connection.run_all([functools.partial(self._read, key, {}, check) for key in keys])
        return [
            self._meant(answer, "GET", key) if isinstance(answer, Exception) else answer
            for key, answer in zip(keys, answers, strict=True)
        ]

    async def _read(self, key: str, asked: Mapping[str, Any], check: Check | None = None) -> Content:
        # The SDK reads up to 32 MiB by the first request, and the rest of the same content by further ones.
        stream = await self._blob(key).download_blob(**asked, max_concurrency=_PARTS_READ_AT_ONCE, **_CALL)
        where = f"{self.uri}/{key}"
        whole = int(_given(stream.properties, "content_range", where).rpartition("/")[2])
        if check is not None:
            check(key, whole)
        etag = bare_etag(_given(stream.properties, "etag", where))
        return Content(data=await stream.readall(), size_bytes=whole, etag=etag)

    def get_tail(self, key: str, length: int) -> Content:
        # The service knows no range from the end.
        found = self.head(key)
        if found is None:
            raise answer_error(404, "", "HEAD", f"{self.uri}/{key}")
        if found.size_bytes == 0:
            return Content(data=b"", size_bytes=0, etag=found.etag)
        content = self.get(key, max(0, found.size_bytes - length))
        if content.etag != found.etag:
            raise answer_error(None, "replaced meanwhile", "GET", f"{self.uri}/{key}")
        return content

    def head(self, key: str) -> FoundObject | None:
        try:
            found = self._request("HEAD", key, lambda: self._blob(key).get_blob_properties(**_CALL))
        except FileNotFoundError:
            return None
        return None if _is_directory(found) else _found(key, found, f"{self.uri}/{key}")

    def list_page(self, prefix: str, *, start_from: str | None, token: Any, is_deep: bool) -> tuple[Listed, Any]:
        # Names before `start_from` come along: the service's own way to leave them out is not proved.
        found, following, _ = self._page(prefix, token, is_deep, self.page_keys)
        where = f"{self.uri}/{prefix}"
        objects = [_found(each.name, each, where) for each in found if not isinstance(each, BlobPrefix)]
        prefixes = [each.name for each in found if isinstance(each, BlobPrefix)]
        return Listed(objects=objects, prefixes=prefixes), following

    def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        self._request(
            "PUT",
            key,
            lambda: self._blob(key).upload_blob(data, length=len(data), overwrite=not if_absent, **_CALL),
            is_conditional=if_absent,
        )

    def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        try:
            self._request("DELETE", keys[0], lambda: self._blob(keys[0]).delete_blob(**_CALL))
        except FileNotFoundError:
            return {}
        return {}

    def start_upload(self, key: str, *, if_absent: bool) -> Any:
        # Nothing is sent: a blob's blocks are known by their names, which no other upload uses.
        return key, SYSTEM_CLOCK.unique_id(), if_absent

    def put_part(self, upload: Any, number: int, data: bytes) -> Any:
        key, name, _ = upload
        block = f"{name}-{number:05d}"
        self._request("PUT", key, lambda: self._blob(key).stage_block(block, data, length=len(data), **_CALL))
        return block

    def complete(self, upload: Any, parts: Sequence[Any]) -> None:
        key, _, if_absent = upload
        condition = {"match_condition": MatchConditions.IfMissing} if if_absent else {}
        blocks = [BlobBlock(each) for each in parts]
        self._request(
            "PUT",
            key,
            lambda: self._blob(key).commit_block_list(blocks, **condition, **_CALL),
            is_conditional=if_absent,
        )

    def abort(self, upload: Any) -> None:
        """Nothing: the service drops blocks that no blob has after a week, or when a blob of the name is made."""

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """None, for the same reason."""
        return iter(())

    def now_ms(self, prefix: str) -> int:
        _, _, headers = self._page(prefix, None, False, 1)
        return whole_seconds_ms(parsedate_to_datetime(needed(headers, "Date", f"{self.uri}/{prefix}")))

    def unproved_server(self) -> str | None:
        server: str = self._request("connect", "", self._host)
        return None if server.endswith(_CLOUDS) else server

    # --- requests ---------------------------------------------------------------------------------------------------

    def _blob(self, key: str) -> Any:
        return self._connection.filesystem().service_client.get_blob_client(self._name, key)

    async def _host(self) -> str:
        return str(self._connection.filesystem().service_client.primary_hostname)

    def _page(self, prefix: str, token: Any, is_deep: bool, keys: int) -> tuple[list[Any], Any, dict[str, str]]:
        """A page's blobs and prefixes without directories, the next page's token, and the answer's headers."""
        headers: dict[str, str] = {}

        async def read() -> tuple[list[Any], Any]:
            container = self._connection.filesystem().service_client.get_container_client(self._name)
            pages = (container.list_blobs if is_deep else container.walk_blobs)(
                name_starts_with=prefix,
                include=["metadata"],
                results_per_page=keys,
                raw_response_hook=lambda answer: headers.update(answer.http_response.headers),
                **_CALL,
            ).by_page(token)
            page = await anext(pages)
            return [each async for each in page], pages.continuation_token

        found, following = self._request("LIST", prefix, read)
        return [each for each in found if not _is_directory(each)], following, headers

    def _request(
        self, method: str, key: str, request: Callable[[], Awaitable[Any]], *, is_conditional: bool = False
    ) -> Any:
        async def answer() -> Any:
            return await request()

        try:
            return self._connection.run(answer)
        except Exception as error:
            raise_as(self._meant(error, method, key, is_conditional), error)

    def _meant(self, error: Exception, method: str, key: str, is_conditional: bool = False) -> Exception:
        meant = _as_os_error(error, method, f"{self.uri}/{key}", is_conditional)
        return self._connection.error(meant, error, _RIGHTS.get(method, ""))


def _found(key: str, properties: Any, where: str) -> FoundObject:
    return FoundObject(
        key=key,
        size_bytes=int(_given(properties, "size", where)),
        modified_ms=whole_seconds_ms(_given(properties, "last_modified", where)),
        etag=bare_etag(_given(properties, "etag", where)),
    )


def _given(properties: Any, name: str, where: str) -> Any:
    """What an answer must have; the SDK has None for a header that did not come."""
    value = getattr(properties, name)
    return needed({} if value is None else {name: value}, name, where)


def _is_directory(found: Any) -> bool:
    return str((getattr(found, "metadata", None) or {}).get("hdi_isfolder", "")).lower() == "true"


def _as_os_error(error: Exception, method: str, where: str, is_conditional: bool) -> Exception:
    if isinstance(error, CredentialsUnavailable):
        return error
    status = getattr(error, "status_code", None)
    code = getattr(error, "error_code", None) or ""
    code = str(getattr(code, "value", code))
    if code == "ContainerNotFound":
        return no_bucket(where, SCHEME)
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno == errno.EREMOTEIO):
        return error  # ours already
    if status is None and isinstance(error, ClientAuthenticationError):
        return no_credentials("Azure", method, where)
    if type(error) is ValueError:
        # How the SDK says that a header is missing, by which it knows how long a blob is.
        return answer_lacks("something that it must have", where)
    if status is None and not isinstance(error, AzureError | aiohttp.ClientError | OSError | TimeoutError):
        return error
    if status in (409, 412):
        # A lease, a snapshot or a policy is refused by these too.
        is_taken = is_conditional and (status == 412 or code in _TAKEN)
        return answer_error(412, "", method, where) if is_taken else refusal(status, code, method, where)
    # The body of a good answer that breaks off.
    is_broken = status is not None and status < 300
    return answer_error(None if is_broken else status, code or type(error).__name__, method, where)
