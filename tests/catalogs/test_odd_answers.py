"""Glue and a metastore behind servers that answer anything: a typed error, in time, and nothing is followed."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from airflow_txlog.catalogs.base import TABLE_ID, VERSION, CatalogColumn, Description, is_newer
from airflow_txlog.catalogs.glue import GlueCatalog
from airflow_txlog.catalogs.hive import HiveCatalog
from airflow_txlog.catalogs.thrift_calls import Kind, ThriftConnection, ThriftFailed
from airflow_txlog.errors import CatalogRefused, CatalogUnavailable, TxlogError
from tests.catalogs.test_failures import KEYS, TABLE, answering, glue
from tests.conftest import ManualClock

DESCRIBED = Description(
    name="db.t",
    uri="s3://b/t",
    table_id="1",
    version=1,
    columns=(CatalogColumn(name="id", type_text="bigint"),),
    partition_columns=(),
    properties={},
    schema_json="{}",
)


@pytest.mark.parametrize(
    "answer",
    [
        "<html>Please log in</html>",
        "[1]",
        '["ab"]',
        "[" * 100_000,
        {},
        {"Table": 7},
        {"Table": [["Name", "t"]]},
        {"Table": {**TABLE, "Parameters": [1]}},
        {"Table": {**TABLE, "StorageDescriptor": "x"}},
        {"Table": {**TABLE, "StorageDescriptor": {"Location": 5}}},
        {"Table": {**TABLE, "PartitionKeys": [{}]}},
        {"Table": {"TargetTable": {"CatalogId": "1"}}},
        "x" * (17 * 1024**2),
    ],
    ids=lambda answer: str(answer)[:40],
)
def test_an_answer_of_glue_that_is_none_is_a_catalog_that_is_away(clock: ManualClock, answer: object) -> None:
    with answering(*[(200, answer)] * 3) as (endpoint, _), pytest.raises(CatalogUnavailable) as raised:
        glue(endpoint, clock).find("db.t")
    assert raised.value.retryable


def test_the_text_of_a_refusal_is_one_short_line(clock: ManualClock) -> None:
    denied = (400, {"__type": "AccessDeniedException", "Message": "no\n\x1b[31m" + "x" * 100_000})
    with answering(denied) as (endpoint, _), pytest.raises(CatalogRefused) as raised:
        glue(endpoint, clock).find("db.t")
    assert len(str(raised.value)) < 1_000
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "harm",
    [{"PartitionKeys": [3]}, {"PartitionKeys": 3}, {"StorageDescriptor": {"Location": "s3://b/t", "Columns": ["x"]}}],
    ids=str,
)
def test_an_entry_of_glue_that_is_none_is_not_updated(clock: ManualClock, harm: dict[str, object]) -> None:
    with answering((200, {"Table": {**TABLE, **harm}})) as (endpoint, _), pytest.raises(CatalogUnavailable):
        glue(endpoint, clock).update(DESCRIBED)


def test_an_answer_of_glue_that_trickles_has_an_end(clock: ManualClock) -> None:
    def trickle(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(100):
            client.sendall(b" ")
            threading.Event().wait(0.02)

    with serving(trickle) as port:
        url = f"http://127.0.0.1:{port}"
        catalog = GlueCatalog("c", region="r", endpoint_url=url, credentials=lambda: KEYS, clock=clock, longest_s=0.1)
        with pytest.raises(CatalogUnavailable, match="TimeoutError"):
            catalog.find("db.t")


@pytest.mark.parametrize("mark", ["", "x", "-9", "²", "9" * 5_000, "٩٩"])
def test_a_mark_that_is_no_version_keeps_no_update_out(mark: str) -> None:
    given = {TABLE_ID: DESCRIBED.table_id, VERSION: mark}
    assert not is_newer(given, DESCRIBED)
    assert is_newer({**given, VERSION: "2"}, DESCRIBED)


# --- Thrift ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that reads a request, and lets `answer` write what it likes; its port."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    client, _ = server.accept()
                    with client:
                        client.settimeout(1)
                        client.recv(65536)
                        answer(client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            thread.join()


def reply(result: bytes, kind: int = 2) -> bytes:
    return struct.pack(">Ii", 0x8001_0000 | kind, 9) + b"get_table" + struct.pack(">i", 0) + result


def field(kind: Kind, number: int, value: bytes) -> bytes:
    return struct.pack(">bh", kind, number) + value


def text(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


OF_A_STRUCT = field(Kind.STRUCT, 0, b"")
PLACE = field(Kind.STRING, 2, text(b"s3://b/t"))
OF_DELTA = struct.pack(">bbi", Kind.STRING, Kind.STRING, 1) + text(b"table_type") + text(b"delta")
ANSWERS = {
    "nothing": b"",
    "HTML": b"HTTP/1.1 400 Bad Request\r\n\r\n<html>",
    "a truncated head": reply(b"")[:7],
    "a truncated struct": reply(OF_A_STRUCT + field(Kind.STRING, 1, struct.pack(">i", 100) + b"x")),
    "a text of 2 GB": reply(OF_A_STRUCT + field(Kind.STRING, 1, struct.pack(">i", 2**31 - 1))),
    "a text of less than nothing": reply(OF_A_STRUCT + field(Kind.STRING, 1, struct.pack(">i", -5))),
    "a list of 2 billion": reply(OF_A_STRUCT + field(Kind.LIST, 1, struct.pack(">bi", Kind.STRUCT, 2**31 - 1))),
    "a list of no type": reply(OF_A_STRUCT + field(Kind.LIST, 1, struct.pack(">bi", 0, 3))),
    "an unknown type": reply(OF_A_STRUCT + b"\x7f\0\1"),
    "a map by lists": reply(
        OF_A_STRUCT
        + field(Kind.MAP, 1, struct.pack(">bbi", Kind.LIST, Kind.BOOL, 1) + struct.pack(">bi", Kind.BOOL, 0) + b"\1")
    ),
    "deep structs": reply(OF_A_STRUCT + field(Kind.STRUCT, 1, b"") * 100),
    "a result that is a text": reply(field(Kind.STRING, 0, text(b"x")) + b"\0"),
    "no result": reply(b"\0"),
    "an undeclared exception": reply(field(Kind.STRUCT, 9, b"\0") + b"\0"),
    "an exception that is a number": reply(field(Kind.I32, 1, b"\0\0\0\1") + b"\0"),
    "a storage that is a number": reply(OF_A_STRUCT + field(Kind.I32, 7, b"\0\0\0\1") + b"\0\0"),
    "parameters that are a text": reply(OF_A_STRUCT + field(Kind.STRING, 9, text(b"x")) + b"\0\0"),
    "a refusal without a reason": reply(b"\0", kind=3),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_of_a_metastore_that_is_none_is_an_error_of_the_catalog(clock: ManualClock, what: str) -> None:
    with serving(lambda client: client.sendall(ANSWERS[what])) as port, pytest.raises(TxlogError) as raised:
        HiveCatalog("c", [("127.0.0.1", port)], clock=clock).find("db.t")
    assert type(raised.value).__name__ in ("CatalogUnavailable", "NotADeltaTable")


@pytest.mark.parametrize(
    "storage",
    [PLACE, PLACE + field(Kind.LIST, 1, struct.pack(">bii", Kind.I32, 1, 5))],
    ids=["no columns", "a column that is a number"],
)
def test_an_entry_of_a_metastore_that_is_none_is_not_updated(clock: ManualClock, storage: bytes) -> None:
    answer = reply(OF_A_STRUCT + field(Kind.STRUCT, 7, storage + b"\0") + field(Kind.MAP, 9, OF_DELTA) + b"\0\0")
    with serving(lambda client: client.sendall(answer)) as port, pytest.raises(CatalogUnavailable):
        HiveCatalog("c", [("127.0.0.1", port)], clock=clock).update(DESCRIBED)


def test_the_reason_of_a_metastore_is_one_short_line(clock: ManualClock) -> None:
    why = reply(field(Kind.STRING, 1, text(b"no\n\x1b[31m" + b"x" * 100_000)) + b"\0", kind=3)
    with serving(lambda client: client.sendall(why)) as port, pytest.raises(CatalogUnavailable) as raised:
        HiveCatalog("c", [("127.0.0.1", port)], clock=clock).find("db.t")
    assert len(str(raised.value)) < 1_000
    assert str(raised.value).isprintable()


def test_no_bytes_of_a_metastore_raise_another_error(clock: ManualClock) -> None:
    """Whatever follows a good head, by chance or by design."""
    draw = random.Random(38)
    kinds = [bytes([each]) for each in Kind] + [b"\0\0", b"\0\1", b"\0\0\0\1", b"\0\7", b"\0\x0c", b"x"]
    current = [b""]
    with serving(lambda client: client.sendall(current[0])) as port:
        for _ in range(150):
            current[0] = reply(b"".join(draw.choices(kinds, k=draw.randrange(40))))
            with contextlib.suppress(TxlogError):
                HiveCatalog("c", [("127.0.0.1", port)], clock=clock).find("db.t")


def test_an_answer_of_a_metastore_that_trickles_has_an_end() -> None:
    def trickle(client: socket.socket) -> None:
        client.sendall(reply(OF_A_STRUCT + field(Kind.STRING, 1, struct.pack(">i", 10_000))))
        for _ in range(200):
            client.sendall(b"x")
            threading.Event().wait(0.01)

    with serving(trickle) as port:
        connection = ThriftConnection("127.0.0.1", port, 5.0, 0.2)
        with contextlib.closing(connection), pytest.raises(ThriftFailed, match="takes more than"):
            connection.call("get_table", {})


def test_the_name_of_an_entry_is_the_one_that_was_asked_for(clock: ManualClock) -> None:
    """An answer about another table must not become a name in the commit, nor be updated later."""
    storage = field(Kind.STRUCT, 7, field(Kind.STRING, 4 - 2, text(b"/lake/t")) + b"\0")
    names = field(Kind.STRING, 1, text(b"other\n\x1b[31m")) + field(Kind.STRING, 2, text(b"elsewhere"))
    answer = reply(OF_A_STRUCT + names + storage + field(Kind.MAP, 9, OF_DELTA) + b"\0\0")
    with serving(lambda client: client.sendall(answer)) as port:
        assert HiveCatalog("c", [("127.0.0.1", port)], clock=clock).find("DB.T").name == "db.t"


def test_a_json_answer_is_read_whole(clock: ManualClock) -> None:
    wide = {**TABLE, "Parameters": {"table_type": "delta", "note": "x" * 1_000_000}}
    with answering((200, json.dumps({"Table": wide}))) as (endpoint, _):
        assert len(glue(endpoint, clock).find("db.t").properties["note"]) == 1_000_000
