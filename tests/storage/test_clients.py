"""What the clouds' clients do with a slow link, a connection that is cut off, a large commit and a secret in a URL."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_txlog.errors import InvalidInput
from airflow_txlog.locations import Access
from airflow_txlog.storage import open_store

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
        store._deadline_s = 1.0  # type: ignore[attr-defined]
        with pytest.raises(OSError):
            store.read("x")
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
