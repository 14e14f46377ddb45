"""What an S3 server is sent: servers that are not Amazon's know less than its own client sends by itself."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import json
import os
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import IncompleteReadError
from botocore.loaders import Loader
from botocore.parsers import ResponseParserError, create_parser
from botocore.utils import parse_timestamp
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ProtocolError

from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.storage import Access, Store, open_store, s3
from airflow_txlog.storage.base import NoCredentials
from airflow_txlog.storage.clouds import NotAnswered, refusal
from airflow_txlog.storage.objects import ObjectStore
from tests.helpers import s3 as server

MD5 = base64.b64encode(hashlib.md5(b"body", usedforsecurity=False).digest()).decode()
OPTIONS = {"key": "k", "secret": "s", "region": "us-east-1"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The headers of every request, by their names in small letters; none is answered."""
    found: list[dict[str, str]] = []

    def kept(pool: HTTPConnectionPool, method: str, url: str, *, headers: Any, **more: Any) -> Any:
        texts = {name: value if isinstance(value, str) else value.decode() for name, value in headers.items()}
        found.append({name.lower(): text for name, text in texts.items()})
        raise ProtocolError("lost")

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", kept)
    return found


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_body_is_sent_whole_with_a_checksum_that_every_server_knows(scheme: str, sent: list[dict[str, str]]) -> None:
    store = open_store("s3://bucket/t", Access(storage_options={**OPTIONS, "endpoint_url": f"{scheme}://127.0.0.1:1"}))
    assert isinstance(store, ObjectStore)
    for put in (
        lambda: store._bucket.put("t/x", b"body", if_absent=True),
        lambda: store._bucket.put_part(("t/x", "upload", {}), 1, b"body"),
    ):
        with pytest.raises(NotAnswered):
            put()
    for headers in sent:
        assert headers["x-amz-content-sha256"] == hashlib.sha256(b"body").hexdigest()
        assert "x-amz-content-sha256" in headers["authorization"]
        assert headers.get("content-length") == "4"
        assert not {"transfer-encoding", "content-encoding", "x-amz-trailer"} & set(headers)
    assert len(sent) == 2


def test_a_body_without_a_signature_has_an_md5(sent: list[dict[str, str]]) -> None:
    options = {"endpoint_url": "http://127.0.0.1:1", "region": "us-east-1", "anon": True}
    store = open_store("s3://bucket/t", Access(storage_options=options))
    assert isinstance(store, ObjectStore)
    with pytest.raises(NotAnswered):
        store._bucket.put("t/x", b"body", if_absent=True)
    assert sent[0]["content-md5"] == MD5


@pytest.mark.parametrize("code", ["InvalidRequest", "MissingContentMD5"])
def test_a_bucket_that_demands_an_md5_gets_it_from_then_on(code: str) -> None:
    with _Demanding(code) as server:
        store = open_store("s3://bucket/t", Access(storage_options={**OPTIONS, "endpoint_url": server.endpoint}))
        assert isinstance(store, ObjectStore)
        store._bucket.put("t/x", b"body", if_absent=True)
        store._bucket.put_part(("t/x", "upload", {}), 1, b"body")
    assert server.seen == [None, MD5, MD5]


def test_a_request_that_is_refused_for_another_reason_is_sent_once() -> None:
    with _Demanding("EntityTooLarge") as server:
        store = open_store("s3://bucket/t", Access(storage_options={**OPTIONS, "endpoint_url": server.endpoint}))
        assert isinstance(store, ObjectStore)
        with pytest.raises(OSError, match="EntityTooLarge"):
            store._bucket.put("t/x", b"body", if_absent=True)
    assert server.seen == [None]


class _Demanding:
    """A server on loopback that refuses a body without Content-MD5, with this code."""

    def __init__(self, code: str) -> None:
        self.seen: list[str | None] = []
        refusal = f"<Error><Code>{code}</Code><Message>refused</Message></Error>".encode()

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(handler) -> None:
                handler.rfile.read(int(handler.headers["Content-Length"]))
                md5 = handler.headers["Content-MD5"]
                self.seen.append(md5)
                body = refusal if md5 is None else b""
                handler.send_response(200 if md5 else 400)
                handler.send_header("ETag", '"etag"')
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> _Demanding:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_batch_of_deletes_has_the_checksums_that_old_and_new_servers_want(
    scheme: str, sent: list[dict[str, str]]
) -> None:
    store = open_store("s3://bucket/t", Access(storage_options={**OPTIONS, "endpoint_url": f"{scheme}://127.0.0.1:1"}))
    assert isinstance(store, ObjectStore)
    with pytest.raises(NotAnswered):
        store._bucket.delete(["t/a", "t/b"])
    assert {"content-md5", "x-amz-checksum-crc32", "content-length"} <= sent[0].keys()
    assert not {"transfer-encoding", "content-encoding", "x-amz-trailer"} & sent[0].keys()


def test_who_pays_is_said_at_each_request(sent: list[dict[str, str]]) -> None:
    endpoint = {"endpoint_url": "http://127.0.0.1:1", "requester_pays": True}
    store = open_store("s3://bucket/t", Access(storage_options={**OPTIONS, **endpoint}))
    assert isinstance(store, ObjectStore)
    bucket = store._bucket
    requests: list[Callable[[], object]] = [
        lambda: bucket.get("t/x"),
        lambda: bucket.head("t/x"),
        lambda: bucket.list_page("t/", start_from=None, token=None, is_deep=False),
        lambda: bucket.put("t/x", b"", if_absent=True),
        lambda: bucket.delete(["t/x"]),
    ]
    for request in requests:
        with pytest.raises(NotAnswered):
            request()
    assert [headers.get("x-amz-request-payer") for headers in sent] == ["requester"] * len(requests)


def test_no_request_counts_retries(sent: list[dict[str, str]]) -> None:
    store = open_store("s3://bucket/t", Access(storage_options=OPTIONS)).at_once()
    with pytest.raises(NotAnswered):
        store.read("a")
    assert [name for name in sent[0] if name.startswith("amz-sdk-")] == []


def test_of_an_object_the_client_reads_only_what_is_used() -> None:
    client = s3._open(OPTIONS, None)
    of_object = client.meta.service_model.operation_model("GetObject").output_shape
    headers = {
        "Content-Length": "1",
        "ETag": '"e"',
        "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT",
        "x-amz-meta-a": "b",
    }
    answer = {"status_code": 200, "headers": headers, "body": io.BytesIO(b"1")}
    assert create_parser("rest-xml").parse(answer, of_object).keys() - {"Body", "ResponseMetadata"} == {
        "ContentLength",
        "ETag",
    }


def test_clients_share_the_descriptions_of_services_and_none_changes_them() -> None:
    loader = s3._descriptions(None)
    clients = [s3._open(OPTIONS, None) for _ in range(2)]
    assert s3._descriptions(None) is loader
    assert clients[0].meta.service_model is not clients[1].meta.service_model
    described = loader.load_service_model("s3", "service-2")["shapes"]["GetObjectOutput"]["members"]
    assert {"Body", "Metadata", "ContentType"} <= described.keys()


class _Gets(BaseHTTPRequestHandler):
    """A server that answers the first requests when eight of them have come, and one of them as a busy server does."""

    together: threading.Barrier
    asked: list[str]

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.asked.append(name)
        if len(self.asked) <= self.together.parties:
            self.together.wait(60)
        is_busy = name == "3" and self.asked.count(name) == 1
        self.send_response(503 if is_busy else 200)
        self.send_header("ETag", f'"{name}"')
        self.send_header("Content-Length", "0" if is_busy else "1")
        self.end_headers()
        self.wfile.write(b"" if is_busy else name.encode())

    def log_message(self, *message: object) -> None:
        """Nothing."""


def test_files_are_asked_for_at_once_and_again_where_the_server_was_busy() -> None:
    handler = type("_Handler", (_Gets,), {"together": threading.Barrier(8), "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            endpoint = {"endpoint_url": f"http://127.0.0.1:{server.server_port}", "addressing_style": "path"}
            store = open_store("s3://bucket/t", Access(storage_options={**OPTIONS, **endpoint}))
            names = [str(number) for number in range(8)]
            assert list(store.read_all(names)) == [name.encode() for name in names]
        finally:
            server.shutdown()
    assert sorted(handler.asked) == sorted([*names, "3"])  # type: ignore[attr-defined]


def test_what_the_client_refuses_before_it_asks_is_an_error_of_ours(sent: list[dict[str, str]]) -> None:
    nowhere = {"endpoint_url": "http://127.0.0.1:1", "region": "us-east-1"}
    for uri, options in (
        ("s3://bucket/t", {**nowhere, "profile": "one that is not there"}),
        ("s3://bad bucket!/t", {**nowhere, **OPTIONS}),
    ):
        with pytest.raises(OSError, match="failed") as caught:
            open_store(uri, Access(storage_options=options)).stat("x")
        # Surely nothing was put: a commit is then refused, and not unknown.
        assert caught.value.errno == errno.EREMOTEIO
    assert sent == []


def test_a_process_without_credentials_finds_those_that_come_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The role of a machine may be unavailable for a moment, and a triggerer runs for weeks."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    nowhere = {"endpoint_url": "http://127.0.0.1:1", "region": "us-east-1", "timeout_s": 7}
    bucket = open_store("s3://bucket/t", Access(storage_options=nowhere))._bucket  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(NoCredentials):
            bucket.get("t/x")
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    with pytest.raises(NotAnswered):
        bucket.get("t/x")


def test_a_process_finds_the_credentials_that_replace_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A key in a file is rotated, or replaced by the next temporary one, while a triggerer runs."""
    given = server.options()
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    def rotate(key: str, secret: str) -> None:
        text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        (tmp_path / "credentials").write_text(text)

    rotate("gone", "gone")
    store = open_store(server.new_folder(), Access(storage_options=server.plain_options()))
    with pytest.raises(PermissionError, match="InvalidAccessKeyId"):
        store.put("x", b"1")
    rotate(given["key"], given["secret"])
    store.put("x", b"1")
    assert store.read("x") == b"1"


def test_each_store_is_asked_with_the_identity_of_the_environment_in_which_it_was_opened(
    monkeypatch: pytest.MonkeyPatch, sent: list[dict[str, str]]
) -> None:
    nowhere = Access(storage_options={"endpoint_url": "http://127.0.0.1:1", "region": "us-east-1"})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    stores: list[Store] = []
    for key in ("first", "second", "first"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        stores.append(open_store("s3://bucket/t", nowhere).at_once())
        with pytest.raises(NotAnswered):
            stores[-1].read("x")
    keys = [headers["authorization"].partition("Credential=")[2].partition("/")[0] for headers in sent]
    assert keys == ["first", "second", "first"]
    assert stores[0].access_mark == stores[2].access_mark != stores[1].access_mark


def test_an_answer_that_is_none_of_s3_is_asked_for_again() -> None:
    for error in (ResponseParserError("<html>"), IncompleteReadError(actual_bytes=1, expected_bytes=2)):
        bucket = open_store("s3://bucket/t", Access(storage_options=OPTIONS))._bucket  # type: ignore[attr-defined]
        assert isinstance(bucket._meant(error, "put_object", "s3://bucket/t/x"), NotAnswered)


def test_files_of_a_batch_that_is_refused_are_deleted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("s3://bucket/t", Access(storage_options=OPTIONS))
    deleted: list[str] = []

    def delete(bucket: s3.S3Bucket, keys: Sequence[str]) -> dict[str, Exception]:
        if len(keys) > 1:
            # As of a name with a character that XML does not have, and of a server that has no such request.
            raise refusal(400, "MalformedXML", "delete_objects", "s3://bucket/")
        if keys == ["t/c"]:
            raise PermissionError(keys[0])
        deleted.extend(keys)
        return {}

    monkeypatch.setattr(s3.S3Bucket, "delete", delete)
    failures = store.delete_many(["a\x01b", "c", "d"])
    assert deleted == ["t/a\x01b", "t/d"]
    assert [(path, type(error)) for path, error in failures.items()] == [("c", PermissionError)]


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-23T03:16:34.933Z",
        "2026-11-23T03:16:34Z",
        "Mon, 23 Nov 2026 03:16:34 GMT",
        "20261123T031634Z",
        "2026-11-23T04:16:34+01:00",
        "2026-11-23T03:16:34",
        "1795403794",
        1795403794,
        1795403794.5,
    ],
)
def test_a_time_of_an_answer_is_what_botocore_takes_it_for(text: Any) -> None:
    assert s3._parse_time(text) == parse_timestamp(text)


def test_a_client_that_knows_no_conditional_put_is_refused_before_the_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[dict[str, str]]
) -> None:
    """An older botocore's description of the service, in which a put has no condition, is read in place of its own."""
    described = Loader().load_service_model("s3", "service-2")
    assert described["shapes"]["PutObjectRequest"]["members"].pop("IfNoneMatch")
    folder = tmp_path / "s3" / described["metadata"]["apiVersion"]
    folder.mkdir(parents=True)
    (folder / "service-2.json").write_text(json.dumps(described))
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    # Amazon's own, which no probe asks; not the options of another test, whose client is there already.
    options = {**OPTIONS, "timeout_s": 14}
    store = open_store("s3://bucket/t", Access(storage_options=options))
    with pytest.raises(UnsupportedStore, match=r"If-None-Match.*botocore>=1\.36"):
        store.put_if_absent("_delta_log/00000000000000000000.json", b"{}")
    assert sent == []
