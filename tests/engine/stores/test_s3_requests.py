"""How often an S3 server is asked, and what VACUUM drops there."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.clock import SystemClock
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.loop import CommitPolicy
from airflow_txlog.engine.commit.writers import CommitTurn
from airflow_txlog.errors import CommitStateUnknown
from airflow_txlog.storage import Access, open_store
from airflow_txlog.storage.bucket import Content
from airflow_txlog.storage.clouds import Connection, NotAnswered
from airflow_txlog.storage.objects import ObjectStore
from airflow_txlog.storage.s3 import S3Bucket
from tests.helpers import s3
from tests.helpers.fault_proxy import CHANGED_BODY, FaultProxy
from tests.helpers.limits import limited
from tests.helpers.rows import append

SCHEMA = pa.schema([(f"c{number}", pa.int64()) for number in range(20)])


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(s3.options()["endpoint_url"]) as proxy:
        yield proxy


def through(proxy: FaultProxy, uri: str, **limits: int) -> Table:
    store = open_store(uri, Access(storage_options={**s3.options(), "endpoint_url": proxy.endpoint}))
    return Table(limited(store, **limits))


def rows(count: int) -> pa.Table:
    column = pa.array(range(count), pa.int64())
    return pa.table([column] * len(SCHEMA), schema=SCHEMA)


def test_requests_of_a_table_on_s3(proxy: FaultProxy) -> None:
    uri = s3.new_folder()
    table = Table.create(uri, SCHEMA, storage_options=s3.options())
    append(table, rows(200_000))
    table.checkpoint()
    proxy.take()

    cold = through(proxy, uri)
    cold.snapshot()
    # The hint, one listing from it on, and the end of the checkpoint, which holds all of it.
    assert dict(proxy.take()) == {"GET hint": 1, "LIST": 1, "GET checkpoint": 1}
    cold.snapshot()
    assert dict(proxy.take()) == {"LIST": 1}, "a poll"

    tx = cold.begin()
    tx.add(path="x", size=1)
    tx.commit("WRITE")
    first = proxy.take()
    assert {"PUT probe": first["PUT probe"], "PUT commit": first["PUT commit"]} == {"PUT probe": 2, "PUT commit": 1}
    tx = cold.begin()
    tx.add(path="y", size=1)
    tx.commit("WRITE")
    # One listing, which proves by its etag that the last commit is still ours; is it the same log; and the put.
    assert dict(proxy.take()) == {"LIST": 1, "HEAD commit": 1, "PUT commit": 1}


class Waits(SystemClock):
    """A clock that waits are added to, and nothing else."""

    def __init__(self) -> None:
        self.began_ms, self.waited_s = super().now_ms(), 0.0

    def monotonic_s(self) -> float:
        return self.waited_s

    def now_ms(self) -> int:
        return self.began_ms + int(1000 * self.waited_s)

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds


def test_a_server_that_is_gone_from_a_put_on_is_waited_for_within_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gone = Waits(), False
    uri, nowhere = s3.new_folder(), {**s3.options(), "endpoint_url": "http://127.0.0.1:1"}
    store, dead = (open_store(uri, Access(storage_options=each)) for each in (s3.options(), nowhere))
    assert isinstance(store, ObjectStore)
    assert isinstance(dead, ObjectStore)
    client, put = Connection.client, S3Bucket.put

    def client_then(connection: Connection) -> Any:
        return client(dead._bucket._connection if gone else connection)

    def put_then(bucket: S3Bucket, key: str, data: bytes, *, if_absent: bool) -> None:
        nonlocal gone
        gone = gone or key.endswith(f"{1:020d}.json")
        put(bucket, key, data, if_absent=if_absent)

    Table.create(uri, SCHEMA, storage_options=s3.options())
    monkeypatch.setattr(Connection, "client", client_then)
    monkeypatch.setattr(S3Bucket, "put", put_then)
    store._clock = clock
    tx = Table(store, clock=clock).begin()
    tx.add(path="x", size=1)
    with pytest.raises(CommitStateUnknown):
        tx.commit("WRITE")
    deadline_s = CommitPolicy().unknown_deadline_s
    assert deadline_s - 1 < clock.waited_s < deadline_s + 5


def test_a_put_that_is_refused_is_a_refusal_also_where_the_read_that_bears_it_out_is_not_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table.create(s3.new_folder(), SCHEMA, storage_options=s3.options())
    get, is_busy = S3Bucket.get, True

    def refuse(*arguments: Any, **more: Any) -> None:
        raise OSError(errno.EREMOTEIO, "put_object failed (400)")

    def busy_once(bucket: S3Bucket, *arguments: Any, **more: Any) -> Content:
        nonlocal is_busy
        if is_busy:
            is_busy = False
            raise NotAnswered(errno.EAGAIN, "busy")
        return get(bucket, *arguments, **more)

    tx = table.begin()
    tx.add(path="x", size=1)
    monkeypatch.setattr("airflow_txlog.storage.objects.check_conditions", lambda *arguments: None)
    monkeypatch.setattr(S3Bucket, "put", refuse)
    monkeypatch.setattr(S3Bucket, "get", busy_once)
    with pytest.raises(OSError, match="put_object failed"):
        tx.commit("WRITE")
    assert not is_busy


@pytest.mark.parametrize(("kept_bytes", "reads"), [(1_000_000, {}), (1, {"GET commit": 4})])
def test_commits_that_another_was_checked_against_are_read_once_unless_they_are_large(
    kept_bytes: int, reads: dict[str, int], proxy: FaultProxy
) -> None:
    uri = s3.new_folder()
    Table.create(uri, SCHEMA, storage_options=s3.options())
    mine = through(proxy, uri, kept_commit_bytes=kept_bytes, kept_winner_bytes=kept_bytes)
    others = Table.open(uri, storage_options=s3.options())
    tx = mine.begin()
    tx.add(path="mine", size=1)
    for number in range(3):
        append(others, rows(number + 1))
    tx.commit("WRITE")
    proxy.take()
    assert mine.snapshot().num_files == 4
    assert dict(proxy.take()) == {"LIST": 1, **reads}
    assert mine.snapshot().files().equals(Table.open(uri, storage_options=s3.options()).snapshot().files())


def test_requests_of_a_scan_are_for_ranges(proxy: FaultProxy) -> None:
    uri = s3.new_folder()
    table = Table.create(uri, SCHEMA, storage_options=s3.options())
    append(table, rows(200_000))
    (path,) = table.snapshot().files().column("path").to_pylist()
    far = through(proxy, uri)
    far.snapshot()
    proxy.take()
    read = far.to_arrow(columns=["c3", "c4", "c5"])
    assert read.num_rows == 200_000
    # The end of the file, and the three neighbouring columns in one request for each row group.
    groups = pq.read_metadata(table.store.open_input(path)).num_row_groups
    asked = proxy.take()
    assert asked["GET data"] <= 1 + groups, (asked, groups)
    assert asked["HEAD data"] == 0


class InTenDays(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() + 10 * 24 * 3600 * 1000


def test_a_vacuum_deletes_many_files_by_one_request(proxy: FaultProxy) -> None:
    uri = s3.new_folder()
    days = pa.table({"day": ["1", "2"], "n": [1, 2]})
    table = Table.create(uri, days.schema, ["day"], storage_options=s3.options())
    for _ in range(3):
        append(table, days)
    tx = table.begin()
    tx.remove(tx.read())
    tx.commit("DELETE")
    proxy.take()
    result = through(proxy, uri).vacuum(timedelta(0), check_retention=False)
    assert result.deleted_files == 6
    requests = proxy.take()
    assert (requests["POST delete"], requests["DELETE data"]) == (1, 0)


def test_a_vacuum_drops_the_uploads_that_killed_writers_left(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = s3.new_folder()
    table = Table.create(uri, SCHEMA, storage_options=s3.options())
    key = uri.removeprefix(f"s3://{s3.BUCKET}/")
    for name in ("part-1.parquet", "day=1/part-2.parquet"):
        s3.client().create_multipart_upload(Bucket=s3.BUCKET, Key=f"{key}/{name}")
    beside = s3.client().create_multipart_upload(Bucket=s3.BUCKET, Key=f"{key}-beside/part.parquet")["UploadId"]

    def uploads(prefix: str) -> list[str]:
        found = s3.client().list_multipart_uploads(Bucket=s3.BUCKET, Prefix=prefix).get("Uploads", [])
        return [each["UploadId"] for each in found]

    table.vacuum()
    assert len(uploads(f"{key}/")) == 2, "they may be under way"
    store = open_store(uri, table.store.access)
    monkeypatch.setattr(store, "now_ms", InTenDays().now_ms)
    Table(store, clock=InTenDays()).vacuum(orphan_retention=timedelta(days=1))
    assert uploads(f"{key}/") == []
    assert uploads(f"{key}-beside/") == [beside], "another table's are left alone"


def test_a_body_that_arrives_changed_is_refused(proxy: FaultProxy) -> None:
    store = through(proxy, s3.new_folder()).store
    assert isinstance(store, ObjectStore)
    upload = store._bucket.start_upload(store._key("large.parquet"), if_absent=True)
    proxy.harm("PUT uploadId", CHANGED_BODY)
    with pytest.raises(OSError, match="XAmzContentSHA256Mismatch"):
        store._bucket.put_part(upload, 1, b"body")
    store._bucket.abort(upload)
    proxy.harm("PUT data", CHANGED_BODY)
    with pytest.raises(OSError, match="XAmzContentSHA256Mismatch"):
        store.put("part.parquet", b"body")
    assert proxy.is_done
    assert store.stat("part.parquet") is None


def test_what_precedes_the_first_put_of_a_process_is_sent_before_its_turn(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3.new_folder()
    Table.create(uri, SCHEMA, storage_options=s3.options())
    tx = through(proxy, uri).begin()
    tx.add(path="x", size=1)
    monkeypatch.setattr("airflow_txlog.storage.bucket._PROVED", set())
    proxy.take()
    before: list[Counter[str]] = []
    advance = CommitTurn.advance
    monkeypatch.setattr(CommitTurn, "advance", lambda turn: (before.append(proxy.take()), advance(turn))[1])
    tx.commit("WRITE")
    assert dict(before[0]) == {"PUT probe": 2, "DELETE probe": 1}
    assert dict(before[-1] + proxy.take()) == {"HEAD commit": 1, "PUT commit": 1}
