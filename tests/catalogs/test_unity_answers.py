"""Unity Catalog behind a server that answers anything: nothing is followed, waited for without end, or shown."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_txlog.catalogs.unity import UnityCatalog
from airflow_txlog.errors import CatalogRefused, CatalogUnavailable, CredentialsUnavailable, TxlogError, UnusablePlace
from airflow_txlog.storage.credentials import UNITY, Credentials, KeptCredentials, offer
from airflow_txlog.storage.unity_api import UnityApi
from tests.helpers.http_answers import Answering, serving
from tests.helpers.managed import NAME, catalog_of
from tests.helpers.unity import FakeUnity, Fault

SECRET = "canary-19b3"
FACTS = {
    "table-type": "EXTERNAL",
    "table-uuid": "11111111-2222-4333-8444-555555555555",
    "location": "s3://lake/orders",
    "properties": {},
    "columns": {"type": "struct", "fields": []},
}


@contextlib.contextmanager
def answering(status: int, body: bytes, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server with one answer, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(Answering):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer(status, body, headers)

    with serving(Handler) as url:
        yield url, asked


def catalog_at(url: str, token: str = SECRET) -> UnityCatalog:
    offer(f"c_{url}", lambda: Credentials(kind=UNITY, values={"token": token}))
    return UnityCatalog(f"c_{url}", url)


def test_a_redirection_is_not_followed_with_the_token() -> None:
    with (
        answering(200, b"{}") as (elsewhere, asked),
        answering(302, b"", {"Location": f"{elsewhere}/x"}) as (url, _),
        pytest.raises(CatalogRefused) as raised,
    ):
        catalog_at(url).find(NAME)
    assert asked == []
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Please log in</html>",
        b"",
        b"[]",
        b"[" * 200_000,
        b'{"metadata": []}',
        json.dumps({"metadata": {**FACTS, "table-uuid": None}}).encode(),
        json.dumps({"metadata": {**FACTS, "properties": [1]}}).encode(),
        b'{"metadata": "' + b"x" * 70 * 1024**2,
    ],
    ids=["html", "empty", "list", "deep", "odd metadata", "no id", "odd properties", "huge"],
)
def test_an_answer_that_is_none_is_a_catalog_that_is_away(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_txlog.storage.unity_api._WAITS_S", ())
    with answering(200, body) as (url, _), pytest.raises(CatalogUnavailable) as raised:
        catalog_at(url).find(NAME)
    assert raised.value.retryable


@pytest.mark.parametrize(
    "columns",
    [[], {"type": "struct"}, {"type": "struct", "fields": [1]}, {"type": "struct", "fields": [{"name": "x"}]}],
)
def test_columns_of_another_form_are_none(columns: Any) -> None:
    answer = json.dumps({"metadata": {**FACTS, "columns": columns, "partition-columns": 7}}).encode()
    with answering(200, answer) as (url, _):
        entry = catalog_at(url).find(NAME)
    assert (entry.columns, entry.partition_columns) == ((), ())


@pytest.mark.parametrize("location", ["file:///etc", "s3://u:p@lake/t", "s3://lake/../t", "http://lake/t", ""])
def test_a_location_that_is_none_of_a_table_is_refused(location: str) -> None:
    with answering(200, json.dumps({"metadata": {**FACTS, "location": location}}).encode()) as (url, _):
        catalog = catalog_at(url)
        # As of a catalog on another machine.
        catalog._stores = frozenset({"s3", "gs", "abfss"})
        with pytest.raises(UnusablePlace):
            catalog.find(NAME)


def test_an_answer_that_trickles_has_an_end() -> None:
    """Each byte comes in time, and the whole never."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            client, _ = server.accept()
            with client, contextlib.suppress(OSError):
                client.recv(4096)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not stop.wait(0.02):
                    client.sendall(b" ")

        thread = threading.Thread(target=trickle)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        api = UnityApi(url, lambda: SECRET, connection="c", timeout_s=5, longest_s=0.2)
        with pytest.raises(CatalogUnavailable):
            api.post("/x", {}, name=NAME)
        stop.set()
        thread.join()


@pytest.mark.parametrize("token", [f"{SECRET}\nX-Other: 1", f"{SECRET}\u2026", f"{SECRET}\x00"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    """The client of the standard library would quote it in its error."""
    with answering(200, b"{}") as (url, asked), pytest.raises(TxlogError) as raised:
        catalog_at(url, token).find(NAME)
    assert asked == []
    shown = "".join(traceback.format_exception(raised.value)) + repr(pickle.dumps(raised.value))
    assert SECRET not in shown


def test_a_token_with_a_line_break_at_its_end_is_the_token() -> None:
    with FakeUnity() as unity:
        unity.tokens = {SECRET}
        unity.add(NAME, "s3://lake/orders")
        assert catalog_of(unity, f"{SECRET}\n").find(NAME).uri == "s3://lake/orders"


def test_a_name_cannot_reach_another_path_of_the_server() -> None:
    with FakeUnity() as unity:
        unity.add("main.sales.x?y#z %2F", "s3://lake/odd", "EXTERNAL")
        fault = Fault("refused", on="/delta/v1", status=404, type="NotFoundException", times=9)
        with unity.harmed(fault):
            entry = catalog_of(unity).find("main.sales.x?y#z %2F")
        assert entry.uri == "s3://lake/odd"


def test_a_table_that_was_made_again_elsewhere_has_its_own_credentials_in_the_same_process() -> None:
    with FakeUnity() as unity:
        unity.credentials = lambda location, operation: {
            "s3.access-key-id": location,
            "s3.secret-access-key": "s",
        }
        catalog, keys = catalog_of(unity), []
        for place in ("s3://lake/first", "s3://lake/second"):
            unity.add(NAME, place)
            table = catalog.find(NAME).catalog_table
            assert table is not None
            assert table.storage_conn_id is not None
            keys.append(KeptCredentials(table.storage_conn_id).current().values["access_key"])
            assert table.to_write().storage_conn_id != table.storage_conn_id
        assert keys == ["s3://lake/first", "s3://lake/second"]


@pytest.mark.parametrize(
    "given",
    [
        {"prefix": "s3://lake/other"},
        {"prefix": "s3://lake/ord"},
        {"prefix": 7},
        {"config": {"s3.access-key-id": SECRET}},
        {"config": {"s3.access-key-id": [SECRET], "s3.secret-access-key": SECRET}},
        {"config": [SECRET]},
        {"expiration-time-ms": SECRET},
    ],
)
def test_credentials_for_another_place_or_of_another_form_are_none(given: dict[str, Any]) -> None:
    with FakeUnity() as unity:
        unity.add(NAME, "s3://lake/orders")
        usual = {
            "prefix": "s3://lake/orders",
            "operation": "READ",
            "config": {"s3.access-key-id": "A", "s3.secret-access-key": SECRET},
            "expiration-time-ms": None,
        }
        unity._issued = lambda table, operation: [{**usual, **given}]  # type: ignore[method-assign]
        table = catalog_of(unity).find(NAME).catalog_table
        assert table is not None
        with pytest.raises(CredentialsUnavailable) as raised:
            KeptCredentials(str(table.storage_conn_id)).current()
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_server_of_the_old_api_that_is_away_is_retryable() -> None:
    with FakeUnity() as unity:
        unity.add(NAME, "s3://lake/orders", "EXTERNAL")
        table = catalog_of(unity).find(NAME).catalog_table
        assert table is not None
        old = Fault("refused", on="/delta/v1", status=404, type="NotFoundException", times=9)
        with (
            unity.harmed(old, Fault("lost", on="temporary-table", times=9)),
            pytest.raises(CredentialsUnavailable) as raised,
        ):
            KeptCredentials(str(table.storage_conn_id)).current()
    assert raised.value.retryable


def test_what_a_catalog_records_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeUnity() as unity:
        unity.root = "s3://lake"
        with unity.harmed(Fault("refused", on="staging-tables", status=503), Fault("lost", on="staging-tables")):
            assert catalog_of(unity).place_for(NAME).startswith("s3://lake/")
