"""A file in a folder that others may write stops no job, whatever JSON it holds: it is passed over, or called damaged.

`test_forged_memory` shows it for the memory of a job, `tests/airflow/test_erasure_records.py` for a whole erasure.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from airflow_txlog.contract.erasure.check_report import check
from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.engine.commit.content.met import meetings_of
from airflow_txlog.engine.commit.content.remembered_deletions import decoded
from airflow_txlog.engine.commit.content.watermarks import WATERMARKS, watermarks_of
from airflow_txlog.engine.erasure.described_files import described, is_gone
from airflow_txlog.engine.log.actions import DomainMetadata
from airflow_txlog.engine.log.segment import read_hint
from airflow_txlog.engine.staged_changes import read_document, staged_in, waiting_files
from airflow_txlog.engine.upkeep.removed_files import read_last_vacuum
from airflow_txlog.exactly_once.exchange import Exchange
from airflow_txlog.exactly_once.transactions import first_version_note
from airflow_txlog.jobs.files.erasure_lists import (
    earlier_records,
    place_of,
    read_record,
    unverified_requests,
)
from airflow_txlog.jobs.resume.first_version import _noted
from airflow_txlog.locations import PRIVATE_PREFIX
from airflow_txlog.storage import LocalStore

KEY = "ab" * 32
DEEP = b"[" * 100_000 + b"]" * 100_000
CONTENTS = {
    "nothing": b"",
    "no object": b"null",
    "a list": b"[]",
    "a text": b'"requests"',
    "half of it": b'{"requests": [',
    "nested deeply": DEEP,
    "a member nested deeply": b'{"files":[],"requests":["r"],"path":"a","partitionValues":' + DEEP + b"}",
    "a text nested deeply": b'{"path":"a","stats":"' + DEEP + b'"}',
    "a value nested less deeply": b'{"path":"a","partitionValues":' + b"[" * 600 + b"1" + b"]" * 600 + b"}",
    "no Unicode": b'{"files":[{"name":"\xff\xfe"}],"requests":["\xff"]}',
    "half a character": rb'{"path":"\ud800","stats":"{","requests":["\ud800"]}',
    "a path of nothing": b'{"path":"","partitionValues":{"a":"b"}}',
    "a path with a zero": rb'{"path":"a=\u0000b/c","stats":"{"}',
    "a path through a link": b'{"path":"link/x","stats":"{"}',
    "other types": b'{"files":7,"requests":{"r":1},"steps":"x","version":"1","table":[],"report":[],"path":7}',
    "a name twice": b'{"version":1,"version":"1","requests":["r"],"requests":7,"files":[],"files":7}',
    "no numbers": b'{"version":NaN,"requests":[Infinity],"files":-Infinity,"report":{"a":NaN}}',
    "large numbers": b'{"version":' + b"9" * 9_999 + b',"requests":[1e999],"path":"a","partitionValues":1e999}',
}


def _records(store: LocalStore, folder: Path, data: bytes) -> None:
    for kind in ("erased", "planned"):
        packed = gzip.compress(data, mtime=0)
        name = f"{kind}-{place_of('/t')}-{hashlib.sha256(packed).hexdigest()[:32]}.json.gz"
        (folder / name).write_bytes(packed)
        (folder / f"{kind}-{place_of('/t')}-").write_bytes(data)
        for key in (KEY, None):
            read_record(store, name, key, str)
    for key in (KEY, None):
        assert earlier_records(store, "/t", ["r"], key, str) == []
        unverified_requests(store, "/t", ["r"], key, str)


def _descriptions(store: LocalStore, folder: Path, data: bytes) -> None:
    (folder / "x.json").write_bytes(data)
    (folder / "link").symlink_to("/")
    info = store.stat("x.json")
    assert info is not None
    assert all(is_gone(store, path) for path in described(store, info, lambda path: True))


def _tombstones(store: LocalStore, folder: Path, data: bytes) -> None:
    with suppress(msgspec.MsgspecError):
        decoded(data)


def _watermarks(store: LocalStore, folder: Path, data: bytes) -> None:
    name = f"{WATERMARKS}c"
    domain = DomainMetadata(domain=name, configuration=data.decode("utf-8", "surrogateescape"), removed=False)
    assert watermarks_of({name: domain}) == {}
    meetings_of({"tags": {"met": domain.configuration}})


def _staged_change(store: LocalStore, folder: Path, data: bytes) -> None:
    path = folder / f"{PRIVATE_PREFIX}{'a' * 32}" / "staged-change"
    path.parent.mkdir()
    path.write_bytes(b"signature\n" + data)
    assert read_document(store, "a" * 32) is None
    assert list(staged_in(store)) == []
    assert [each.paths for each in waiting_files(store)] == [None]


def _first_version(store: LocalStore, folder: Path, data: bytes) -> None:
    path = first_version_note(ApplicationTransaction(app_id="a", version=1))
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)
    assert _noted(store, path, None) is None


def _handles(store: LocalStore, folder: Path, data: bytes) -> None:
    exchange = Exchange(store, KEY)
    (folder / exchange.folder).mkdir()
    for name in ("spec-1", "spec-", "spec-x", "spec-999999", "result-1"):
        (folder / exchange.folder / name).write_bytes(data)
    assert (exchange.last(), exchange.get("result", 1)) == (0, None)


def _hints(store: LocalStore, folder: Path, data: bytes) -> None:
    (folder / "_delta_log").mkdir()
    for name in ("_last_checkpoint", "_last_vacuum_info"):
        (folder / "_delta_log" / name).write_bytes(data)
    assert (read_hint(store), read_last_vacuum(store)) == (None, None)


def _report(store: LocalStore, folder: Path, data: bytes) -> None:
    assert check(data, KEY, lambda name: data).problems


@pytest.mark.parametrize(
    "read",
    [_records, _descriptions, _tombstones, _watermarks, _staged_change, _first_version, _handles, _hints, _report],
)
def test_no_content_of_a_file_stops_who_reads_it(
    tmp_path: Path, read: Callable[[LocalStore, Path, bytes], None]
) -> None:
    for number, data in enumerate(CONTENTS.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        read(LocalStore(str(folder)), folder, data)
