"""Alone in showing that an erasure by one column leaves no other value of the subject's rows in the log."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.described_files import described
from airflow_txlog.storage import LocalStore
from airflow_txlog.storage.base import FileInfo
from tests.engine.erasure.test_removal import FEED, VECTORS, erase, folder_of
from tests.helpers.byte_search import holding
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append, make_table

EMAIL = "zz.ann.canary@example.org"
SUBJECT = 731_955_201
LONG = pytest.mark.long("another shape of the table")
SCHEMA = pa.schema([("user_id", pa.int64()), ("payload", pa.string()), ("day", pa.string())])
V2 = {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"}
STRUCTS = {"delta.checkpoint.writeStatsAsStruct": "true", "delta.checkpointInterval": "1"}


def rows(*of: tuple[int, str]) -> pa.Table:
    ids, payloads = zip(*of, strict=True)
    return pa.table([list(ids), list(payloads), ["monday"] * len(ids)], schema=SCHEMA)


def others() -> pa.Table:
    return rows((1, "bob@example.org"), (9_000_000_000, "carol@example.org"))


def table_with_subject(path: Path, properties: dict[str, str] | None = None, partition_by: str | None = None) -> Table:
    """Return a table whose log has the e-mail of the subject as a bound, and never its number."""
    both = pa.concat_tables([others(), rows((SUBJECT, EMAIL))])
    by = [] if partition_by is None else [partition_by]
    return make_table(path, both, others(), both, partition_by=by, properties=properties or {})


@pytest.mark.parametrize(
    ("properties", "partition_by"),
    [
        ({}, None),
        pytest.param(VECTORS | FEED, None, marks=LONG),
        (V2 | VECTORS, None),
        pytest.param(STRUCTS, None, marks=LONG),
        (V2 | STRUCTS | FEED, "payload"),
    ],
    ids=["plain", "vectors and feed", "v2", "structs", "partitioned"],
)
def test_no_other_value_of_a_subject_is_left_as_a_bound_or_a_partition(
    tmp_path: Path, properties: dict[str, str], partition_by: str | None
) -> None:
    table = table_with_subject(tmp_path / "t", properties, partition_by)
    table.checkpoint()
    append(table, others())
    assert holding(folder_of(table) / "_delta_log", EMAIL)
    before = sorted(map(repr, table.to_arrow(f"user_id <> {SUBJECT}").to_pylist()))

    assert erase(table, (SUBJECT,), "user_id").cut is not None

    assert holding(folder_of(table), EMAIL) == []
    assert sorted(map(repr, Table.open(table.uri).to_arrow().to_pylist())) == before
    # Doing it again finds nothing to do.
    again = erase(table, (SUBJECT,), "user_id")
    assert (again.deleted_files, again.deleted_log_files, again.cut) == (0, 0, None)


def test_the_log_is_also_cut_after_a_vacuum_and_after_a_kill_that_left_only_the_log(tmp_path: Path) -> None:
    for name, is_vacuumed in (("vacuumed", True), ("killed", False)):
        table = table_with_subject(tmp_path / name)
        if is_vacuumed:
            run(None, "delete", table, predicate=f"user_id = {SUBJECT}")
            table.vacuum(0, check_retention=False)
        else:
            erase(table, (SUBJECT,), "user_id", cut_log=False)
        assert {path.partition("/")[0] for path in holding(folder_of(table), EMAIL)} == {"_delta_log"}
        assert erase(table, (SUBJECT,), "user_id").cut is not None
        assert holding(folder_of(table), EMAIL) == []


def test_the_log_stays_if_no_file_held_the_subject_also_beside_old_files_of_others(tmp_path: Path) -> None:
    table = table_with_subject(tmp_path / "t")
    run(None, "optimize", table)
    assert erase(table, (424_242,), "user_id").cut is None
    assert table.snapshot(0).version == 0


def test_counts_of_rows_and_nulls_describe_no_value(tmp_path: Path) -> None:
    lines = {
        "bounds": '{"add":{"path":"a%20b","partitionValues":{},"stats":"{\\"maxValues\\":{\\"x\\":{\\"y\\":7}}}"}}',
        "partition": '{"cdc":{"path":"a%20b","partitionValues":{"day":"monday"}}}',
        "unreadable": '{"remove":{"path":"a%20b","stats":"{"}}',
        "checksum": '{"allFiles":[{"path":"a b","stats":"{\\"minValues\\":{\\"x\\":7}}"}]}',
        "counts": '{"add":{"path":"a%20b","partitionValues":{},"stats":"{\\"numRecords\\":1,\\"maxValues\\":{}}"}}',
        "null": '{"remove":{"path":"a%20b","partitionValues":{"day":null}}}',
        "folder": '{"remove":{"path":"day=monday/a%20b"}}',
        "another": '{"cdc":{"path":"c","partitionValues":{"day":"monday"}}}',
    }
    store, found = LocalStore(str(tmp_path)), []
    for name, line in lines.items():
        (tmp_path / name).write_text(f"{{}}\n{line}\n")
        info = FileInfo(path=name, size_bytes=len(line), modified_ms=0)
        if list(described(store, info, lambda path: path.endswith("a b"))):
            found.append(name)
    assert found == ["bounds", "partition", "unreadable", "checksum", "folder"]


@pytest.mark.parametrize("properties", [pytest.param({}, marks=LONG), V2], ids=["classic", "v2"])
def test_a_vacuum_of_each_day_prolongs_no_wait_for_writers(tmp_path: Path, properties: dict[str, str]) -> None:
    """Its files have tombstones in each checkpoint, and these name partitions."""
    table = table_with_subject(tmp_path / "t", properties, "day")
    committed(run(None, "update", table, set={"payload": "upper(payload)"}, predicate="user_id = 1"))
    table.checkpoint()
    assert erase(table, (SUBJECT,), "user_id", writer_hours=24).waits
    first = table.snapshot().version
    append(table, others())
    table.checkpoint()
    for path in folder_of(table).rglob("*"):
        os.utime(path, (time.time() - 90_000,) * 2)
    table.vacuum(0, check_retention=False)
    again = erase(table, (SUBJECT,), "user_id", writer_hours=24)
    assert again.cut is not None
    assert again.cut <= first
    assert not again.waits
    assert not erase(table, (SUBJECT,), "user_id").deleted_log_files
    assert table.to_arrow().num_rows == 4 * others().num_rows
