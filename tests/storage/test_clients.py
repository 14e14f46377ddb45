"""What the clouds' clients do with a slow link, a connection that is cut off, a large commit and a secret in a URL."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import HTTPError

from airflow_txlog.errors import InvalidInput
from airflow_txlog.locations import Access
from airflow_txlog.storage import gcs, open_store

SECRET = "TOPSECRET"
AZURE = "abfss://c@acct.dfs.core.windows.net/t"
KEYS = {"key": "a", "secret": "b", "region": "us-east-1", "addressing_style": "path"}


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that serves each connection in a thread."""

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.socket() as server:
        # The connections inherit a small window: what a slow link holds.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@contextmanager
def refusing_proxy() -> Iterator[tuple[int, list[bytes]]]:
    """The port of a proxy that refuses every request, and the heads of the requests."""
    heads: list[bytes] = []

    def refuse(connection: socket.socket) -> None:
        with connection:
            heads.append(connection.recv(16_384))
            connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

    with listening(refuse) as port:
        yield port, heads


def at(port: int, tls: str = "") -> dict[str, tuple[str, dict[str, Any]]]:
    connection = f"DefaultEndpointsProtocol=http{tls};AccountName=acct;AccountKey=a2V5;"
    return {
        "s3": ("s3://b/t", KEYS | {"endpoint_url": f"http{tls}://127.0.0.1:{port}"}),
        "gs": ("gs://b/t", {"anon": True, "endpoint_url": f"http{tls}://127.0.0.1:{port}"}),
        "azure": (AZURE, {"connection_string": f"{connection}BlobEndpoint=http{tls}://127.0.0.1:{port}/acct;"}),
    }


@pytest.mark.long("a body that takes longer than a connection may")
@pytest.mark.parametrize("cloud", ["s3", "gs", "azure"])
def test_a_body_may_take_longer_than_a_connection(cloud: str) -> None:
    def slowly(connection: socket.socket) -> None:
        with connection:
            while connection.recv(16_384):
                time.sleep(0.02)

    with listening(slowly) as port:
        uri, options = at(port)[cloud]
        bucket = open_store(uri, Access(storage_options=options))._bucket  # type: ignore[attr-defined]
        failed: list[BaseException] = []

        def put() -> None:
            try:
                bucket.put("t/x", bytes(16 * 1024 * 1024), if_absent=True)
            except OSError as error:
                failed.append(error)

        sending = threading.Thread(target=put, daemon=True)
        sending.start()
        sending.join(8)
        assert sending.is_alive(), failed


@pytest.mark.parametrize("cloud", ["s3", "gs", "azure"])
def test_a_connection_that_is_cut_off_is_tried_again(cloud: str) -> None:
    seen: list[int] = []

    def cut(connection: socket.socket) -> None:
        seen.append(len(connection.recv(65_536)))
        connection.close()

    with listening(cut) as port:
        uri, options = at(port, tls="s")[cloud]
        store = open_store(uri, Access(storage_options=options))
        # On a busy machine the first request alone may take a second.
        for deadline_s in (1.0, 4.0, 16.0):
            store._deadline_s = deadline_s  # type: ignore[attr-defined]
            seen.clear()
            with pytest.raises(OSError):
                store.read("x")
            if len(seen) > 1:
                break
    assert len(seen) > 1


def test_no_part_of_an_error_holds_a_sas() -> None:
    options = {"account_host": "127.1:9", "sas_token": f"sv=2024&sp=rw&sig={SECRET}"}
    store = open_store(AZURE, Access(storage_options=options))
    store._deadline_s = 0.5  # type: ignore[attr-defined]
    with pytest.raises(OSError) as caught:
        store.read("x")
    error: BaseException | None = caught.value
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    while error is not None:
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__


def test_a_large_commit_on_azure_is_one_request() -> None:
    requests: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as sent:
            while line := sent.readline():
                head = [line]
                while (line := sent.readline()).strip():
                    head.append(line)
                length = next(int(each.split(b":")[1]) for each in head if each.lower().startswith(b"content-length"))
                while length:
                    length -= len(sent.read(min(length, 1 << 20)))
                requests.append(b"".join(head))
                connection.sendall(
                    b'HTTP/1.1 201 Created\r\nContent-Length: 0\r\nETag: "x"\r\n'
                    b"Last-Modified: Thu, 26 Nov 2026 00:00:00 GMT\r\nx-ms-request-server-encrypted: true\r\n\r\n"
                )

    with listening(answer) as port:
        uri, options = at(port)["azure"]
        bucket = open_store(uri, Access(storage_options=options))._bucket  # type: ignore[attr-defined]
        bucket.put("t/_delta_log/00000000000000000001.json", bytes(65 * 1024 * 1024), if_absent=True)
    assert len(requests) == 1
    assert b"if-none-match: *" in requests[0].lower()


@pytest.mark.parametrize("word", ["anon", "google_default", "cloud"])
def test_a_word_of_gcsfs_is_not_sent_as_a_token(word: str) -> None:
    with pytest.raises(InvalidInput, match="anon=true"):
        open_store("gs://b/t", Access(storage_options={"token": word}))


@pytest.mark.parametrize("cloud", ["s3", "gs", "azure"])
def test_a_request_goes_through_the_proxy_of_the_environment(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        with connection:
            asked.append(connection.recv(16_384).split(b"\r\n")[0])
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    uri, options = at(80)[cloud]
    given = {
        name: text.replace("127.0.0.1", "store.example") if isinstance(text, str) else text
        for name, text in options.items()
    }
    with listening(answer) as port, listening(answer) as direct:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        assert open_store(uri, Access(storage_options=given)).stat("x") is None
        assert b" http://store.example" in asked.pop()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        uri, options = at(direct)[cloud]
        assert open_store(uri, Access(storage_options=options)).stat("x") is None
        assert b" /" in asked.pop()


PROXY_USER = f"us%40er:{SECRET}%2F%C3%BC"
PROXY_WORD = base64.b64encode(f"us@er:{SECRET}/ü".encode())


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("user", [f"{PROXY_USER}@", "us:pw@", ""])
def test_a_proxy_that_refuses_is_asked_once_and_with_its_password(
    scheme: str, user: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with refusing_proxy() as (port, heads):
        monkeypatch.setenv(f"{scheme}_proxy", f"http://{user}127.0.0.1:{port}")
        # A client is kept for its options, with its proxy.
        options = {"anon": True, "endpoint_url": f"{scheme}://g.example:{port}"}
        store = open_store("gs://b/t", Access(storage_options=options))
        store._deadline_s = 1.0  # type: ignore[attr-defined]
        with pytest.raises(PermissionError, match=r"refused \(407\): the proxy of") as caught:
            store.read("x")
    assert len(heads) == 1
    assert heads[0].startswith(b"CONNECT g.example:" if scheme == "https" else b"GET http://g.example:")
    assert (b"proxy-authorization: basic " in heads[0].lower()) == bool(user)
    assert (PROXY_WORD in heads[0]) == (user == f"{PROXY_USER}@")
    assert "storage.objects" not in str(caught.value)
    told = caplog.text + "".join(traceback.format_exception(caught.value))
    error: BaseException | None = caught.value
    while error is not None:
        told += repr(error)
        error = error.__cause__ or error.__context__
    assert SECRET not in told
    assert PROXY_WORD.decode() not in told


@pytest.mark.parametrize("cloud", ["s3", "azure"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("user", [f"us:{SECRET}@", ""])
def test_every_client_is_refused_once_by_a_proxy(
    cloud: str, scheme: str, user: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with refusing_proxy() as (port, heads):
        monkeypatch.setenv(f"{scheme}_proxy", f"http://{user}127.0.0.1:{port}")
        uri, options = at(port, tls=scheme.removeprefix("http"))[cloud]
        given = {name: text.replace("127.0.0.1", f"{cloud}.example") for name, text in options.items()}
        store = open_store(uri, Access(storage_options=given))
        store._deadline_s = 1.0  # type: ignore[attr-defined]
        with pytest.raises(PermissionError, match=r"refused \(407\): the proxy of") as caught:
            store.read("x")
    assert len(heads) == 1
    assert (b"proxy-authorization: basic " in heads[0].lower()) == bool(user)
    assert "It was asked with" not in str(caught.value)
    assert SECRET not in caplog.text + "".join(traceback.format_exception(caught.value))


@pytest.mark.long("the tries of Azure's own client")
def test_a_proxy_that_refuses_a_request_for_a_token_of_azure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"client_id": "c", "tenant_id": "11111111-1111-1111-1111-111111111111", "client_secret": SECRET}
    with refusing_proxy() as (port, heads):
        monkeypatch.setenv("https_proxy", f"http://us:{SECRET}@127.0.0.1:{port}")
        store = open_store(AZURE, Access(storage_options=options))
        with pytest.raises(PermissionError, match=r"refused \(407\): the proxy of") as caught:
            store.read("x")
    assert all(head.startswith(b"CONNECT login.microsoftonline.com:443") for head in heads)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_proxy_that_refuses_a_request_for_a_token_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    (tmp_path / "key.json").write_text(json.dumps(key))
    with refusing_proxy() as (port, heads):
        monkeypatch.setenv("https_proxy", f"http://{PROXY_USER}@127.0.0.1:{port}")
        store = open_store("gs://b/t", Access(storage_options={"token": str(tmp_path / "key.json")}))
        store._deadline_s = 1.0  # type: ignore[attr-defined]
        with pytest.raises(PermissionError, match="the proxy of") as caught:
            store.read("x")
    # As often as the client of Google itself tries.
    assert 1 <= len(heads) <= 4
    assert all(head.startswith(b"CONNECT oauth2.googleapis.com:443") for head in heads)
    assert all(PROXY_WORD in head for head in heads)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [f"socks5://u:{SECRET}@h:1", f"http://u:{SECRET}@h:port", f"http://u:{SECRET}#@h:1", f"u:{SECRET}@", "ftp://h"],
)
def test_a_proxy_that_cannot_be_used_is_refused_at_once_without_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", url)
    options = {"anon": True, "endpoint_url": "https://refused.example"}
    store = open_store("gs://b/t", Access(storage_options=options))
    store._deadline_s = 1.0  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match="HTTPS_PROXY in the environment must be") as caught:
        store.stat("x")
    error: BaseException | None = caught.value
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    while error is not None:
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "localhost", "[::1]"])
def test_this_machine_is_not_asked_through_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    through_proxy: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        with connection:
            through_proxy.append(connection.recv(16_384))
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with listening(answer) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        with pytest.raises(HTTPError):
            gcs._Pools().urlopen("GET", f"http://{host}:9/token", retries=False)
    assert through_proxy == []


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("169.254.169.254", 80, True),
        ("metadata.google.internal", 80, True),
        ("metadata.google.internal.", 80, True),
        ("a.example", 443, True),
        ("a.example", 8443, False),
        ("b.example", 80, True),
        ("::2", 443, True),
        ("storage.googleapis.com", 443, False),
        ("localhost.example", 80, False),
        ("10.0.0.1", 80, False),
    ],
)
def test_what_is_reached_without_a_proxy(host: str, port: int, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "a.example:443,b.example,::2")
    assert gcs._is_direct(host, port) is expected
