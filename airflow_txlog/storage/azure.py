"""Containers of Azure Blob Storage, which are also those of Data Lake Storage Gen2, over Azure's own SDK.

One request per call, without the client's own retries. Put-if-absent is one Put Blob with `If-None-Match: *`. Both
services hold the same blobs; their root here is that of Data Lake Storage. An account with a hierarchical namespace
lists its directories among the blobs; they are skipped.
Source: docs/decisions/put-if-absent.md; Blob service REST API, "Put Blob", "Put Block List", "List Blobs".
"""

from __future__ import annotations

import errno
import logging
import os
import re
import ssl
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
from azure.core import MatchConditions
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import ClientSecretCredential, DefaultAzureCredential
from azure.storage.blob import BlobBlock, BlobPrefix, BlobServiceClient
from requests.adapters import HTTPAdapter

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.locations import Access, split
from airflow_txlog.storage.base import FileInfo, Store
from airflow_txlog.storage.bucket import Bucket, Check, Content, Listed, bare_etag, found_object
from airflow_txlog.storage.clouds import (
    CONNECT_S,
    CONNECTIONS,
    READ_S,
    Body,
    Connection,
    NameTaken,
    answer_error,
    answer_lacks,
    connection,
    needed,
    no_bucket,
    no_credentials,
    read_options,
    refusal,
)
from airflow_txlog.storage.credentials import AZURE, KeptCredentials, azure_arguments, credentials_of, unavailable
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
# One try per call: our retries count against one deadline.
_CALL = {
    "retry_total": 0,
    "connection_timeout": CONNECT_S,
    "read_timeout": READ_S,
    "logger": _REQUESTS_LOGGER,
}
# A commit is one request whatever its size (the service takes 5,000 MiB): as blocks, two writers' could be mixed.
_ONE_PUT: dict[str, Any] = {"max_single_put_size": 5000 * 1024 * 1024}
_PARTS_READ_AT_ONCE, _COPY_POLL_S = 4, 0.5
_CLOUDS = ("core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net")
_HOST = re.compile(rf"([a-z0-9]{{3,24}})\.(?:dfs|blob)\.({'|'.join(map(re.escape, _CLOUDS))})")
_RIGHTS = {
    method: f"the role Storage Blob Data Contributor, or a SAS with {letters}"
    for method, letters in {"GET": "r", "HEAD": "r", "LIST": "l", "PUT": "c and w", "DELETE": "d"}.items()
}
_TAKEN = frozenset({"BlobAlreadyExists", "ResourceAlreadyExists", "PathAlreadyExists"})


class _Place(NamedTuple):
    """The address of a container."""

    account: str
    cloud: str
    container: str
    path: str


def open_at(uri: str, access: Access) -> Store:
    """Return the store at `abfss://container@account.dfs.core.windows.net/folder`, or `az://container/folder`.

    Raises UnsupportedStore, InvalidInput.
    """
    options = read_options("Azure", access.storage_options, OPTIONS)
    place = _place(uri, options)
    client = _connection(place, options, credentials_of(access, AZURE))

    def bucket_of(text: str) -> tuple[AzureBucket, str]:
        # A token or a key is sent only to the host of the table's own account, whatever a log names.
        other = _place(text, options)
        if (other.account, other.cloud) != (place.account, place.cloud):
            raise UnsupportedStore(
                f"UnsupportedStore: the file {text} is in another storage account than its table at {uri}. Nothing of "
                "it was read.",
                uri=text,
            )
        return AzureBucket(other, client), other.path

    return ObjectStore(AzureBucket(place, client), place.path, access, bucket_of=bucket_of)


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


def _connection(place: _Place, options: Mapping[str, Any], credentials: KeptCredentials | None) -> Connection:
    server = f"https://{options.get('account_host', f'{place.account}.blob.{place.cloud}')}"
    given = {**options, "_account": place.account, "_cloud": place.cloud, "_server": server}
    return connection(_open, given, credentials, server)


def _open(given: dict[str, Any], credentials: KeptCredentials | None) -> BlobServiceClient:
    account, cloud = given["_account"], given["_cloud"]
    uri = f"{SCHEME}://{account}.dfs.{cloud}"
    if credentials is not None and given.get("account_name", account) != account:
        # A connection's key or SAS is for its own account: no other host gets to see it.
        raise UnsupportedStore(
            f"UnsupportedStore: the table is in the storage account {account}, and the connection "
            f"{credentials.connection!r} is of {given['account_name']}. Nothing was read or written.",
            uri=uri,
        )
    # A connection's credentials are not mixed with those of the environment.
    secrets = _own_secrets(given) if credentials is None else azure_arguments(credentials)
    transport = RequestsTransport(session=_session(), session_owner=False, connection_verify=_authorities())
    try:
        if text := secrets.get("connection_string"):
            client = BlobServiceClient.from_connection_string(text, transport=transport, **_ONE_PUT)
        else:
            credential = _credential(account, given, secrets)
            sas = f"?{secrets['sas_token'].removeprefix('?')}" if credential is None and "sas_token" in secrets else ""
            client = BlobServiceClient(given["_server"] + sas, credential, transport=transport, **_ONE_PUT)
    except ValueError:
        # Its text may quote the credentials.
        why = f"the key, the SAS or the connection string for the storage account {account} is malformed; copy it again"
        if credentials is not None:
            raise unavailable(credentials.connection, why) from None
        raise PermissionError(errno.EACCES, why) from None
    if client.account_name not in (None, account):
        raise UnsupportedStore(
            f"UnsupportedStore: the table is in the storage account {account}, and the connection string that this "
            "process was given, in its options or its environment, is that of "
            f"{client.account_name}. Nothing was read or written.",
            uri=uri,
        )
    return client


class _InPieces(HTTPAdapter):
    """Sends a body as a stream."""

    def send(self, request: requests.PreparedRequest, *args: Any, **given: Any) -> requests.Response:
        body = request.body
        if isinstance(body, bytes):
            request.body = Body(body)
        try:
            return super().send(request, *args, **given)
        finally:
            request.body = body


def _session() -> requests.Session:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _InPieces(pool_maxsize=CONNECTIONS))
    # Otherwise requests would replace the client's own header by a password for the host in ~/.netrc.
    session.auth = lambda request: request
    return session


def _own_secrets(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the secrets of the options, and of the environment for those that they lack."""
    names = ("connection_string", "account_key", "sas_token", "tenant_id", "client_id", "client_secret")
    found = {name: given.get(name) or os.environ.get(f"AZURE_STORAGE_{name.upper()}") for name in names}
    return {name: value for name, value in found.items() if value}


def _credential(account: str, given: Mapping[str, Any], secrets: Mapping[str, Any]) -> Any:
    """Return what Azure's client takes, None for a SAS and for `anon`. Raises ValueError for a malformed key."""
    if "credential" in secrets:
        return secrets["credential"]
    if key := secrets.get("account_key"):
        b64decode(key, validate=True)
        # The client needs the account if the host does not name it.
        return {"account_name": account, "account_key": key}
    if "sas_token" in secrets:
        return None
    if "client_id" in secrets:
        tenant, secret = secrets.get("tenant_id", ""), secrets.get("client_secret", "")
        return ClientSecretCredential(tenant, secrets["client_id"], secret, **_limits())
    is_anonymous = os.environ.get("AZURE_STORAGE_ANON", "").lower() not in ("false", "0", "f", "")
    if given.get("anon", is_anonymous):
        return None
    if _IDENTITY_LOGGER.level == logging.NOTSET:
        # Without credentials it logs twenty lines; our error needs one.
        _IDENTITY_LOGGER.setLevel(logging.ERROR)
    return DefaultAzureCredential(**_limits())


def _limits() -> dict[str, Any]:
    return {"connection_timeout": CONNECT_S, "read_timeout": READ_S, "connection_verify": _authorities()}


def _authorities() -> str | bool:
    return ssl.get_default_verify_paths().cafile or ssl.get_default_verify_paths().capath or True


class AzureBucket(Bucket):
    """One container."""

    # A batch of deletes has not been seen to work on a server that can be had for tests.
    deletes_at_once = 1
    page_keys = 5000
    most_parts = 50_000
    causes_quote_urls = True  # a SAS is part of the URL

    def __init__(self, place: _Place, client: Connection) -> None:
        uri = f"{SCHEME}://{place.container}@{place.account}.dfs.{place.cloud}"
        super().__init__(uri, place.container, client)

    def get(self, key: str, start: int = 0, end: int | None = None, check: Check | None = None) -> Content:
        of_all, where = (start, end) == (0, None), self._where(key)
        asked = {} if of_all else {"offset": start, "length": None if end is None else end - start}

        def read() -> Content:
            # The SDK reads up to 32 MiB by the first request, and the rest of the same content by further ones.
            stream = self._blob(key).download_blob(**asked, max_concurrency=_PARTS_READ_AT_ONCE, **_CALL)
            whole = int(_given(stream.properties, "content_range", where).rpartition("/")[2])
            if check is not None:
                check(whole)
            etag = bare_etag(_given(stream.properties, "etag", where))
            return Content(data=stream.readall(), size_bytes=whole, etag=etag)

        return self._asked("GET", key, read)

    def get_tail(self, key: str, length: int) -> Content:
        # The service has no suffix ranges.
        found = self.head(key)
        if found is None:
            raise answer_error(404, "", "HEAD", self._where(key))
        if found.size_bytes == 0:
            return Content(data=b"", size_bytes=0, etag=found.etag or "")
        content = self.get(key, max(0, found.size_bytes - length))
        if content.etag != found.etag:
            raise answer_error(None, "replaced meanwhile", "GET", self._where(key))
        return content

    def _head(self, key: str) -> FileInfo | None:
        found = self._asked("HEAD", key, lambda: self._blob(key).get_blob_properties(**_CALL))
        return None if _is_directory(found) else self._found(key, found)

    def list_page(self, prefix: str, *, start_from: str | None, token: Any, is_deep: bool) -> Listed:
        # Includes names before `start_from`: the service's own filter is not proved.
        found, following, _ = self._page(prefix, token, is_deep, self.page_keys)
        objects = [self._found(each.name, each) for each in found if not isinstance(each, BlobPrefix)]
        prefixes = [each.name for each in found if isinstance(each, BlobPrefix)]
        return Listed(objects=objects, prefixes=prefixes, following=following)

    def put(self, key: str, data: bytes, *, if_absent: bool) -> int | None:
        blob = self._blob(key)
        return self._put(
            key, if_absent, lambda: blob.upload_blob(data, length=len(data), overwrite=not if_absent, **_CALL)
        )

    def copy(self, source: Bucket, source_key: str, key: str) -> bool:
        if not isinstance(source, AzureBucket) or source.uri.partition("@")[2] != self.uri.partition("@")[2]:
            return False
        blob, sas = self._blob(key), getattr(source._client().credential, "signature", None)
        place = source._blob(source_key).url + (f"?{sas}" if sas else "")
        try:
            # The service takes the sender for a reader of its own account; of a SAS, the address has it.
            copied = self._asked("PUT", key, lambda: blob.start_copy_from_url(place, **_CALL))["copy_status"]
            while copied == "pending":
                SYSTEM_CLOCK.sleep(_COPY_POLL_S)
                copied = self._asked("HEAD", key, lambda: blob.get_blob_properties(**_CALL)).copy.status
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EREMOTEIO):
                raise
            # A server that copies nothing, or a sender that may read and write, and not copy.
            return False
        return bool(copied == "success")

    def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        with suppress(FileNotFoundError):
            self._asked("DELETE", keys[0], lambda: self._blob(keys[0]).delete_blob(**_CALL))
        return {}

    def start_upload(self, key: str, *, if_absent: bool) -> Any:
        # Nothing is sent: a blob's blocks are known by their names, which no other upload uses.
        return key, SYSTEM_CLOCK.unique_id(), if_absent

    def put_part(self, upload: Any, number: int, data: bytes) -> Any:
        key, name, _ = upload
        block = f"{name}-{number:05d}"
        self._asked("PUT", key, lambda: self._blob(key).stage_block(block, data, length=len(data), **_CALL))
        return block

    def complete(self, upload: Any, parts: Sequence[Any]) -> int | None:
        key, _, if_absent = upload
        condition = {"match_condition": MatchConditions.IfMissing} if if_absent else {}
        blob, blocks = self._blob(key), [BlobBlock(each) for each in parts]
        return self._put(key, if_absent, lambda: blob.commit_block_list(blocks, **condition, **_CALL))

    def abort(self, upload: Any) -> None:
        """Do nothing: the service drops blocks that no blob has after a week, or when a blob of the name is made."""

    def _date(self, prefix: str) -> str:
        return str(needed(self._page(prefix, None, False, 1)[2], "Date", self._where(prefix)))

    def unproved_server(self) -> str | None:
        server: str = self._asked("connect", "", lambda: self._client().primary_hostname)
        return None if server.endswith(_CLOUDS) else server

    # --- requests ---------------------------------------------------------------------------------------------------

    def _client(self) -> Any:
        return self._connection.client()

    def _blob(self, key: str) -> Any:
        return self._client().get_blob_client(self._name, key)

    def _page(self, prefix: str, token: Any, is_deep: bool, keys: int) -> tuple[list[Any], Any, Mapping[str, str]]:
        """Return a page's blobs and prefixes without directories, the next page's token, and the answer's headers."""
        # Kept in the SDK's mapping, whose names ignore case.
        headers: Mapping[str, str] = {}

        def keep(answer: Any) -> None:
            nonlocal headers
            headers = answer.http_response.headers

        def read() -> tuple[list[Any], Any]:
            container = self._client().get_container_client(self._name)
            pages = (container.list_blobs if is_deep else container.walk_blobs)(
                name_starts_with=prefix,
                include=["metadata"],
                results_per_page=keys,
                raw_response_hook=keep,
                **_CALL,
            ).by_page(token)
            return list(next(pages)), pages.continuation_token

        found, following = self._asked("LIST", prefix, read)
        return [each for each in found if not _is_directory(each)], following, headers

    def _put(self, key: str, if_absent: bool, request: Callable[[], Any]) -> int | None:
        def put() -> Any:
            try:
                return request()
            except AzureError as error:
                status, code = _answer_of(error)
                # A lease, a snapshot or a policy is refused by 409 and 412 too.
                if if_absent and (status == 412 or (status == 409 and code in _TAKEN)):
                    raise NameTaken(self._where(key)) from None
                raise

        made = self._asked("PUT", key, put).get("last_modified")
        return None if made is None else int(made.timestamp()) * 1000

    def _meant(self, error: Exception, method: str, where: str) -> Exception:
        status, code = _answer_of(error)
        if code == "ContainerNotFound":
            return no_bucket(where, SCHEME)
        if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno == errno.EREMOTEIO):
            return error  # ours already
        if status is None and isinstance(error, ClientAuthenticationError):
            return no_credentials("Azure", method, where)
        if type(error) is ValueError:
            # The SDK's error for a missing header that holds a blob's length.
            return answer_lacks("something that it must have", where)
        if status is None and not isinstance(error, AzureError | OSError):
            return error
        if status in (409, 412):
            return refusal(status, code, method, where)
        # The body of a good answer that breaks off.
        is_broken = status is not None and status < 300
        return answer_error(None if is_broken else status, code or type(error).__name__, method, where)

    def _right(self, method: str, key: str) -> str:
        return _RIGHTS.get(method, "")

    def _found(self, key: str, properties: Any) -> FileInfo:
        where = self._where(key)
        size, modified, etag = (_given(properties, name, where) for name in ("size", "last_modified", "etag"))
        return found_object(key, size, modified, etag)


def _answer_of(error: Exception) -> tuple[int | None, str]:
    """Return an answer's status, or None, and the service's error code, or an empty text."""
    code = getattr(error, "error_code", None) or ""
    return getattr(error, "status_code", None), str(getattr(code, "value", code))


def _given(properties: Any, name: str, where: str) -> Any:
    """Return what an answer must have; the SDK has None for a missing header."""
    value = getattr(properties, name)
    return needed({} if value is None else {name: value}, name, where)


def _is_directory(found: Any) -> bool:
    return str((getattr(found, "metadata", None) or {}).get("hdi_isfolder", "")).lower() == "true"
