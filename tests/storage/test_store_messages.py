"""What a person reads when a store refuses, is not reached, or is behind a proxy: the cause, and what mends it."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from airflow_txlog.clock import SystemClock
from airflow_txlog.errors import InvalidInput
from airflow_txlog.storage import Access, bucket, clouds, open_store, s3
from airflow_txlog.storage.base import NothingSent
from airflow_txlog.storage.clouds import NotAnswered, caller_of, no_credentials
from airflow_txlog.storage.objects import ObjectStore

KEYS = {"key": "k", "secret": "s", "region": "us-east-1", "endpoint_url": "http://lake.example:9000"}


class Client:
    """botocore's client, each of whose methods answers the same."""

    def __init__(self, answer: Callable[[str], Any]) -> None:
        self._answer = answer

    def __getattr__(self, method: str) -> Any:
        def ask(**arguments: Any) -> Any:
            return self._answer(method)

        return ask


class Silent(BaseHTTPRequestHandler):
    """A server without TLS."""

    def log_message(self, *message: object) -> None:
        """Nothing."""


class Waits(SystemClock):
    """A clock that waits are added to, and nothing else."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def store_that(answer: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr(clouds.Connection, "client", lambda self: Client(answer))
    store = open_store("s3://bucket/t", Access(storage_options=KEYS))
    assert isinstance(store, ObjectStore)
    return store


def denied(method: str) -> Any:
    raise ClientError({"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, method)


def test_a_refused_request_names_the_right_that_it_needs_and_whose_credentials_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = store_that(denied, monkeypatch)
    # Without the right to list, S3 refuses to say that an object is not there.
    requests: dict[str, Callable[[], object]] = {
        "s3:GetObject, and s3:ListBucket": lambda: store.read("a"),
        "s3:ListBucket": lambda: store.list("_delta_log"),
        "s3:PutObject": lambda: store.put("a", b""),
        "s3:DeleteObject": lambda: store.delete("a"),
        "s3:ListBucketMultipartUploads": lambda: store.abort_unfinished(0),
    }
    for right, request in requests.items():
        with pytest.raises(PermissionError, match=rf"asked with the key of storage_options, which needs {right}"):
            request()


def test_the_owner_of_the_credentials_is_named() -> None:
    from airflow_txlog.storage.credentials import AWS, kept

    assert caller_of({"endpoint_url": "x"}, kept("aws_lake", AWS)) == "the connection 'aws_lake' (storage_conn_id)"
    assert caller_of({"profile": "lake"}, None) == "the profile 'lake' (storage_options)"
    assert "anon" in caller_of({"anon": True}, None)
    assert "own identity" in caller_of({}, None)
    assert "AZURE_CLIENT_ID" in str(no_credentials("Azure", "GET", "abfss://x"))


def test_http_and_https_mixed_up_is_said_at_once() -> None:
    with HTTPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        try:
            for uri, options in (
                ("s3://bucket/t", KEYS | {"endpoint_url": f"https://{host}"}),
                ("gs://bucket/t", {"anon": True, "endpoint_url": f"https://{host}"}),
                ("az://box/t", {"account_name": "acc", "account_host": host, "account_key": "AAAA"}),
            ):
                with pytest.raises(OSError, match=rf"no TLS connection to https://{host}") as caught:
                    open_store(uri, Access(storage_options=options)).read("a")
                assert caught.value.errno == errno.EREMOTEIO
        finally:
            server.shutdown()


@pytest.mark.parametrize("given", [{"token": "t"}, {"token": "t", "key": "k"}])
def test_a_token_that_the_client_would_ignore_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="token goes with key and secret"):
        open_store("s3://bucket/t", Access(storage_options=given))


@pytest.mark.parametrize("given", [{"endpoint_url": "lake.example:9000"}, {"addressing_style": "paths"}])
def test_an_option_that_no_client_can_take_is_refused_before_a_request(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(given))):
        open_store("s3://bucket/t", Access(storage_options=KEYS | given))


def test_a_server_that_does_not_answer_is_named_and_the_wait_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def silent(method: str) -> Any:
        raise EndpointConnectionError(endpoint_url="http://lake.example:9000")

    store, clock = store_that(silent, monkeypatch), Waits()
    store._clock = clock
    with caplog.at_level(logging.WARNING), pytest.raises(NotAnswered, match=r"by http://lake\.example:9000"):
        store.read("a")
    assert 3 < len(caplog.messages) < 15
    assert all("s3://bucket/t: get_object was not answered" in each for each in caplog.messages)


@pytest.mark.parametrize("missing", ["ETag", "ContentLength", "LastModified"])
def test_what_a_proxy_takes_out_of_an_answer_is_an_error_of_ours(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"ETag": '"e"', "ContentLength": 1, "LastModified": datetime.now(UTC)}
    del answer[missing]
    store = store_that(lambda method: answer, monkeypatch)
    with pytest.raises(OSError, match=missing):
        store.stat("a")


def test_a_commit_whose_store_did_not_answer_before_it_was_put_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe of the server is asked again, and then the commit is surely not in the log: nothing was put."""
    asked = []

    def silent(method: str) -> Any:
        asked.append(method)
        if method == "put_object":
            raise EndpointConnectionError(endpoint_url="http://lake.example:9000")
        return denied(method) if method != "list_objects_v2" else {"ResponseMetadata": {}}

    monkeypatch.setattr(bucket, "_PROVED", set())
    store = store_that(silent, monkeypatch)
    store._clock = Waits()
    monkeypatch.setattr(s3.S3Bucket, "unproved_server", lambda self: "http://lake.example:9000")
    with pytest.raises(NothingSent, match="nothing was put"):
        store.put_if_absent("_delta_log/00000000000000000000.json", b"{}")
    assert asked.count("put_object") > 5
