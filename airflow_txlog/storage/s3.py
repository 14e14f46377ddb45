"""Buckets of Amazon S3, and of servers that speak its protocol, through Amazon's client, botocore.

Put-if-absent is one PutObject with `If-None-Match: *`.

A server that is not Amazon's may accept that header and ignore it (`bucket.check_conditions`).
Source: docs/decisions/put-if-absent.md; Amazon S3 API reference, "Conditional requests".
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import botocore
from botocore import UNSIGNED, exceptions
from botocore.config import Config
from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.handlers import add_expect_header, add_retry_headers
from botocore.loaders import create_loader
from botocore.parsers import ResponseParserError
from botocore.session import Session
from botocore.utils import parse_timestamp
from urllib3.exceptions import HTTPError

from airflow_txlog import __version__
from airflow_txlog.errors import InvalidInput, UnsupportedStore
from airflow_txlog.locations import Access
from airflow_txlog.storage.base import FileInfo, Store
from airflow_txlog.storage.bucket import (
    Bucket,
    Check,
    Content,
    Listed,
    RangedBucket,
    UnfinishedUpload,
    bare_etag,
    found_object,
    made_ms,
)
from airflow_txlog.storage.clouds import (
    CONNECT_S,
    CONNECTIONS,
    ENDED,
    READ_S,
    Body,
    Connection,
    answer_error,
    body_of,
    connection,
    needed,
    no_bucket,
    no_credentials,
    read_options,
    refusal,
)
from airflow_txlog.storage.credentials import AWS, KeptCredentials, credentials_of
from airflow_txlog.storage.objects import open_objects

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
_STYLES = ("path", "virtual", "auto")
# One try per call: our retries count against one deadline.
_CLIENT: dict[str, Any] = {
    "retries": {"total_max_attempts": 1},
    "connect_timeout": CONNECT_S,
    "max_pool_connections": CONNECTIONS,
    # The arguments are ours.
    "parameter_validation": False,
    # Shown in the server's log. botocore would build its own for each request.
    "user_agent": f"airflow-txlog/{__version__}",
}
if "request_checksum_calculation" in Config.OPTION_DEFAULTS:
    # Since botocore 1.36 a body over HTTPS is sent in chunks that end with a checksum, which servers that are not
    # Amazon's refuse, or keep with its frames. Every server checks the SHA-256 that is part of a signature.
    _CLIENT["request_checksum_calculation"] = "when_required"
# Each session would read its own descriptions of services: 70 ms and 15 MB for each client.
_descriptions = functools.cache(create_loader)
# What is used of the most frequent answers. The client would look for everything in its description of the service: of
# an object 45 headers, which takes some 5 % of the CPU time of reading it. By EncodingType it decodes keys.
_OF_OBJECT = {"Body", "ContentLength", "ContentRange", "ETag"}
_OF_LISTING = {"CommonPrefixes", "Contents", "EncodingType", "IsTruncated", "NextContinuationToken"}
_OF_LISTED = {"ETag", "Key", "LastModified", "Size"}
_NETWORK = (
    *(exceptions.HTTPClientError, exceptions.ConnectionError, HTTPError, OSError),
    # Errors for answers that a proxy has altered; not all of them are a BotoCoreError.
    *(ResponseParserError, exceptions.IncompleteReadError, exceptions.FlexibleChecksumError),
)
# Without the permission to list, Amazon refuses a request for a missing object.
_TO_READ = "s3:GetObject, and s3:ListBucket where the object is not there"
_RIGHTS = {
    "get_object": _TO_READ,
    "head_object": _TO_READ,
    "list_objects_v2": "s3:ListBucket",
    "delete_object": "s3:DeleteObject",
    "delete_objects": "s3:DeleteObject",
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    **dict.fromkeys(("put_object", "create_multipart_upload", "upload_part"), "s3:PutObject"),
    "complete_multipart_upload": "s3:PutObject",
    **dict.fromkeys(("copy_object", "upload_part_copy"), "s3:PutObject, and s3:GetObject of the copied object"),
}
# What the client's own search for credentials depends on, beside the machine.
_IDENTITY = (
    *("HOME", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ROLE_ARN", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
)
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
# The codes of a refused body without Content-MD5, always with status 400.
_WANTS_MD5 = frozenset({"InvalidRequest", "MissingContentMD5"})


def open_at(uri: str, access: Access) -> Store:
    """Return the store at `s3://bucket/folder`, or `s3a:` and `s3n:`. Raises UnsupportedStore, InvalidInput."""
    options = read_options("S3", access.storage_options, OPTIONS)
    if options.get("timeout_s", READ_S) <= 0:
        raise InvalidInput("storage_options: timeout_s must be a number of seconds above zero. Nothing was read.")
    if options.get("addressing_style", "path") not in _STYLES:
        raise InvalidInput(f"storage_options: addressing_style is one of {', '.join(_STYLES)}. Nothing was read.")
    if "token" in options and not {"key", "secret"} <= options.keys():
        # Its client would ignore the token and use the process's own identity.
        raise InvalidInput(
            "storage_options: token goes with key and secret. Give all three, or none. Nothing was read."
        )
    credentials = credentials_of(access, AWS)
    client = connection(_open, options, credentials)
    payer, unsigned = bool(options.get("requester_pays")), bool(options.get("anon"))
    asks = _asks(options, None if credentials is None else credentials.connection)
    return open_objects(uri, access, lambda name: S3Bucket(name, client, payer, unsigned, asks))


def _asks(options: dict[str, Any], connection_id: str | None) -> str:
    """Return a text that differs between callers, without a secret."""
    given = sorted((name, value) for name, value in options.items() if name not in ("secret", "token"))
    return repr((connection_id, given, [os.environ.get(name) for name in _IDENTITY]))


def _open(given: dict[str, Any], credentials: KeptCredentials | None) -> Any:
    config: dict[str, Any] = {**_CLIENT, "read_timeout": given.get("timeout_s", READ_S)}
    # A profile could switch the checksum of bodies off.
    config["s3"] = {"payload_signing_enabled": True}
    if "addressing_style" in given:
        config["s3"]["addressing_style"] = given["addressing_style"]
    if given.get("anon"):
        config["signature_version"] = UNSIGNED
    session = Session(profile=given.get("profile")) if credentials is None else _Session(credentials)
    session.register_component("data_loader", _descriptions(session.get_config_variable("data_path")))
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
    # This call resolves the session's credentials.
    client = session.create_client(
        "s3",
        region_name=given.get("region"),
        endpoint_url=given.get("endpoint_url"),
        aws_access_key_id=given.get("key"),
        aws_secret_access_key=given.get("secret"),
        aws_session_token=given.get("token"),
        config=Config(**config),
    )
    # A put would first send "Expect: 100-continue": one more round trip, and an endless wait for a silent server.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("before-call.s3.DeleteObjects", _add_md5)
    # Two headers that count retries, of which there are none.
    client.meta.events.unregister("request-created", add_retry_headers)
    # Each client has a description of its own.
    content, listing = (
        client.meta.service_model.operation_model(name).output_shape.members for name in ("GetObject", "ListObjectsV2")
    )
    listed = listing["Contents"].member.members
    for members, used in ((content, _OF_OBJECT), (listing, _OF_LISTING), (listed, _OF_LISTED)):
        for name in members.keys() - used:
            del members[name]
    return client


def _parse_time(text: Any) -> datetime:
    """Return a time of an answer. S3 writes two formats; guessing them takes a fifth of a listing's CPU time."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(TypeError, ValueError, AttributeError):
            time = parse(text)
            if time.tzinfo is not None:
                return time
    guessed: datetime = parse_timestamp(text)
    return guessed


class _Session(Session):  # type: ignore[misc]
    """A session with the credentials of a connection and no others. It cannot be pickled."""

    def __init__(self, credentials: KeptCredentials) -> None:
        super().__init__()
        self._kept = credentials

    def get_credentials(self) -> Credentials:
        return _SigningCredentials(self._kept)


class _SigningCredentials(Credentials):  # type: ignore[misc]
    """Read when each request is signed. Those of botocore fetch anew each time in their last ten minutes."""

    def __init__(self, credentials: KeptCredentials) -> None:
        super().__init__("", "", method="txlog")
        self._kept = credentials

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        values = self._kept.current().values
        return ReadOnlyCredentials(values["access_key"], values["secret_key"], values.get("token"))


class S3Bucket(RangedBucket):
    """One bucket."""

    deletes_at_once = 1000
    most_copied_bytes = 5 * 1024**3
    """The largest object that one request copies."""
    copied_part_bytes = 1024**3

    def __init__(
        self, name: str, client: Connection, requester_pays: bool, is_unsigned: bool = False, asks: str | None = None
    ) -> None:
        """`asks` distinguishes callers: see `access_mark`."""
        super().__init__(f"{SCHEME}://{name}", name, client)
        self._sends_md5 = is_unsigned
        self._payer = {"RequestPayer": "requester"} if requester_pays else {}
        self._asks = asks

    @property
    def access_mark(self) -> str | None:
        if self._asks is None:
            return None
        client = self._asked("connect", "", self._connection.client)
        return f"{client.meta.endpoint_url} {self._asks}"

    def _head(self, key: str) -> FileInfo:
        answer, where = self._request("head_object", Key=key), self._where(key)
        size, modified, etag = (needed(answer, name, where) for name in ("ContentLength", "LastModified", "ETag"))
        return found_object(key, size, modified, etag)

    def list_page(self, prefix: str, *, start_from: str | None, token: Any, is_deep: bool) -> Listed:
        arguments: dict[str, Any] = {} if is_deep else {"Delimiter": "/"}
        if token is not None:
            arguments["ContinuationToken"] = token
        elif start_from is not None:
            arguments["StartAfter"] = _just_before(start_from)
        page = self._request("list_objects_v2", Prefix=prefix, MaxKeys=self.page_keys, **arguments)
        return Listed(
            objects=[
                found_object(each["Key"], each["Size"], each["LastModified"], each["ETag"])
                for each in page.get("Contents", ())
            ],
            prefixes=[each["Prefix"] for each in page.get("CommonPrefixes", ())],
            following=page["NextContinuationToken"] if page.get("IsTruncated") else None,
        )

    def put(self, key: str, data: bytes, *, if_absent: bool) -> int | None:
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        answer = self._sent("put_object", data, Key=key, **condition)
        return made_ms(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}))

    def copy(self, source: Bucket, source_key: str, key: str) -> bool:
        if not isinstance(source, S3Bucket):
            return False
        size_bytes = source._head(source_key).size_bytes
        origin = {"Bucket": source._name, "Key": source_key}
        try:
            if size_bytes <= self.most_copied_bytes:
                self._request("copy_object", Key=key, CopySource=origin)
            else:
                self._copy_parts(origin, size_bytes, key)
        except OSError as error:
            if error.errno != errno.EREMOTEIO:
                raise
            # A server that copies nothing, or not between these buckets.
            return False
        return True

    def _copy_parts(self, origin: dict[str, str], size_bytes: int, key: str) -> None:
        upload = self.start_upload(key, if_absent=False)
        try:
            parts = []
            for number, start in enumerate(range(0, size_bytes, self.copied_part_bytes), start=1):
                last = min(start + self.copied_part_bytes, size_bytes) - 1
                part = {"CopySourceRange": f"bytes={start}-{last}", "UploadId": upload[1], "PartNumber": number}
                answer = self._request("upload_part_copy", Key=key, CopySource=origin, **part)
                etag = needed(answer.get("CopyPartResult", {}), "ETag", self._where(key))
                parts.append({"ETag": etag, "PartNumber": number})
            self.complete(upload, parts)
        except BaseException:
            with suppress(OSError):
                self.abort(upload)
            raise

    def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        if len(keys) == 1:
            self._request("delete_object", Key=keys[0])
            return {}
        listed = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = self._request("delete_objects", Delete=listed)
        return {
            each["Key"]: self._failed_delete(each["Key"], each.get("Code", "")) for each in answer.get("Errors", ())
        }

    def _failed_delete(self, key: str, code: str) -> Exception:
        error = refusal(403 if code == "AccessDenied" else None, code, "delete_objects", self._where(key))
        return self._connection.error(error, error, _RIGHTS["delete_objects"])

    def start_upload(self, key: str, *, if_absent: bool) -> Any:
        # Some servers ignore the condition here: it may catch a mistake, but no commit relies on it.
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        return key, self._request("create_multipart_upload", Key=key)["UploadId"], condition

    def put_part(self, upload: Any, number: int, data: bytes) -> Any:
        key, upload_id, _ = upload
        answer = self._sent("upload_part", data, Key=key, UploadId=upload_id, PartNumber=number)
        return {"ETag": needed(answer, "ETag", self._where(key)), "PartNumber": number}

    def complete(self, upload: Any, parts: Sequence[Any]) -> int | None:
        key, upload_id, condition = upload
        answer = self._request(
            "complete_multipart_upload", Key=key, UploadId=upload_id, MultipartUpload={"Parts": [*parts]}, **condition
        )
        return made_ms(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}))

    def abort(self, upload: Any) -> None:
        key, upload_id, _ = upload
        with suppress(FileNotFoundError):
            self._request("abort_multipart_upload", Key=key, UploadId=upload_id)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        markers: dict[str, str] = {}
        while True:
            page = self._request("list_multipart_uploads", Prefix=prefix, **markers)
            for each in page.get("Uploads", ()):
                started_ms = int(each["Initiated"].timestamp()) * 1000
                key = each["Key"]
                yield UnfinishedUpload(upload=(key, each["UploadId"], {}), key=key, started_ms=started_ms)
            if not page.get("IsTruncated"):
                return
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _date(self, prefix: str) -> str:
        answer = self._request("list_objects_v2", Prefix=prefix, MaxKeys=1)
        return str(needed(answer["ResponseMetadata"]["HTTPHeaders"], "date", self._where(prefix)))

    def unproved_server(self) -> str | None:
        client = self._asked("connect", "", self._connection.client)
        # An older description of the service lacks the condition, and a put would fail with an obscure error.
        if "IfNoneMatch" not in client.meta.service_model.operation_model("PutObject").input_shape.members:
            raise UnsupportedStore(
                f"UnsupportedStore: botocore {botocore.__version__}, which is installed on {os.uname().nodename}, does "
                "not know the condition of a put (If-None-Match), without which two writers could make one version of "
                f"a table in {self.uri}. Nothing was committed. Install botocore>=1.36, as "
                "airflow-provider-txlog[s3] asks for.",
                uri=self.uri,
                filesystem=SCHEME,
            )
        endpoint: str = client.meta.endpoint_url
        return None if (urlsplit(endpoint).hostname or "").endswith(_AMAZON) else endpoint

    # --- requests ---------------------------------------------------------------------------------------------------

    def _get(self, key: str, arguments: dict[str, Any], check: Check | None = None) -> Content:
        answer, where = self._request("get_object", Key=key, **arguments), self._where(key)
        with closing(answer["Body"]) as body:
            whole = answer.get("ContentRange", "").rpartition("/")[2] or needed(answer, "ContentLength", where)
            if check is not None:
                check(int(whole))
            data = self._asked("get_object", key, lambda: body_of(body.read))
        return Content(data=data, size_bytes=int(whole), etag=bare_etag(needed(answer, "ETag", where)))

    def _sent(self, method: str, data: bytes, **arguments: Any) -> dict[str, Any]:
        """Return the answer of a request with a body, which the server checks against a checksum.

        The signature includes the body's SHA-256. An MD5 costs twice the time, so it is sent only if there is no
        signature or the bucket demands it, as one with an object lock does.
        """
        if not self._sends_md5:
            try:
                return self._request(method, Body=Body(data), **arguments)
            except OSError as error:
                # A refused request has written nothing.
                answer = getattr(error.__cause__, "response", None) or {}
                if answer.get("Error", {}).get("Code") not in _WANTS_MD5:
                    raise
            self._sends_md5 = True
        return self._request(method, Body=Body(data), ContentMD5=_md5(data), **arguments)

    def _request(self, method: str, **arguments: Any) -> dict[str, Any]:
        def send() -> dict[str, Any]:
            answer: dict[str, Any] = getattr(self._connection.client(), method)(
                Bucket=self._name, **arguments, **self._payer
            )
            return answer

        return self._asked(method, arguments.get("Key") or arguments.get("Prefix", ""), send)

    def _meant(self, error: Exception, method: str, where: str) -> Exception:
        answer = getattr(error, "response", None) or {}
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        code = str(answer.get("Error", {}).get("Code", ""))
        if code == "NoSuchBucket":
            return no_bucket(where, SCHEME)
        if code in ENDED or isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            # Otherwise this process would never look again for a role, a file or a variable that has come or changed.
            self._connection.drop()
            if not code:
                return no_credentials("S3", method, where)
        if status is None and not isinstance(error, _NETWORK):
            # A profile that is missing, a sign-on that has ended, a name that no bucket can have: nothing was sent.
            is_own = isinstance(error, exceptions.BotoCoreError)
            return refusal(None, type(error).__name__, method, where) if is_own else error
        return answer_error(status, code or ("" if status else type(error).__name__), method, where)

    def _right(self, method: str, key: str) -> str:
        return _RIGHTS.get(method, "")


def _add_md5(params: dict[str, Any], **event: Any) -> None:
    """Add the MD5 that older servers require for a batch of deletes; the client sends only a CRC32."""
    params["headers"]["Content-MD5"] = _md5(params["body"])


def _md5(data: bytes) -> str:
    return b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _just_before(name: str) -> str:
    """Return a name that sorts right before this one: a listing begins after a name."""
    return name[:-1] + chr(ord(name[-1]) - 1) + "\U0010ffff"
