"""What `deltalake` writes, we read row for row."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_txlog.engine import Table
from tests.helpers.readers import assert_both_read, rows_by_deltalake, rows_by_us
from tests.helpers.rows import append, bag
from tests.interop.test_deltalake_reads_ours import (
    ALL_TYPES,
    ALL_TYPES_ROWS,
    PARTITION_STRINGS,
    PARTITION_TYPES,
    PEOPLE,
    delete_commits,
    people,
    rows_by_type,
)


def test_every_type_is_read_back(uri: str) -> None:
    rows = pa.Table.from_pylist(ALL_TYPES_ROWS, schema=ALL_TYPES)
    write_deltalake(uri, rows)
    assert_both_read(uri, rows)


def test_append_overwrite_delete_update_merge_and_optimize(uri: str) -> None:
    steps: list[Callable[[], object]] = [
        lambda: write_deltalake(uri, people("ann", "bob")),
        lambda: write_deltalake(uri, people("cid", "dot", start=2), mode="append"),
        lambda: DeltaTable(uri).delete("id = 1"),
        lambda: DeltaTable(uri).update({"name": "'CID'"}, predicate="id = 2"),
        lambda: (
            DeltaTable(uri)
            .merge(people("eve", "fay", start=3), "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        ),
        lambda: DeltaTable(uri).optimize.compact(),
        lambda: write_deltalake(uri, people("gus"), mode="overwrite"),
    ]
    for step in steps:
        step()
        assert_both_read(uri, rows_by_deltalake(uri).cast(PEOPLE))
    assert bag(rows_by_us(uri)) == bag(people("gus"))
    for version in range(DeltaTable(uri).version() + 1):
        assert bag(rows_by_us(uri, version)) == bag(rows_by_deltalake(uri, version))


@pytest.mark.parametrize("partition_by", [None, ["name"]], ids=["unpartitioned", "partitioned"])
def test_its_checkpoint_alone_is_enough(uri: str, partition_by: list[str] | None) -> None:
    write_deltalake(uri, people("ann", "bob"), partition_by=partition_by)
    write_deltalake(uri, people("cid", start=2), mode="append")
    once = CommitProperties(app_transactions=[Transaction("nightly/load", 7)])
    write_deltalake(uri, people("dot", start=3), mode="append", commit_properties=once)
    table = DeltaTable(uri)
    table.create_checkpoint()
    delete_commits(uri, table.version() + 1)
    assert_both_read(uri, people("ann", "bob", "cid", "dot"))
    assert Table.open(uri).snapshot().application_version("nightly/load") == 7
    append(Table.open(uri), people("eve", start=4))
    assert_both_read(uri, people("ann", "bob", "cid", "dot", "eve"))


def test_partition_values_with_anything_in_them(uri: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("part one", pa.string())])
    rows = pa.table({"id": range(len(PARTITION_STRINGS)), "part one": PARTITION_STRINGS}, schema=schema)
    write_deltalake(uri, rows, partition_by=["part one"])
    assert_both_read(uri, rows)


# deltalake cannot write two of the values that it reads: a negative decimal ("0.-1") and 1e300 (a name too long).
WRITABLE_BY_DELTALAKE: dict[str, list[object]] = {
    "decimal": [decimal.Decimal("1.50"), decimal.Decimal("99999999.99"), None],
    "double": [0.1, -2.5e10, None],
}


def test_partition_values_of_every_type(uri: str) -> None:
    rows = rows_by_type(WRITABLE_BY_DELTALAKE)
    write_deltalake(uri, rows, partition_by=list(PARTITION_TYPES))
    DeltaTable(uri).create_checkpoint()
    assert_both_read(uri, rows)


def test_a_column_added_later_is_null_in_older_files(uri: str) -> None:
    write_deltalake(uri, people("ann"))
    wider = PEOPLE.append(pa.field("born", pa.date32()))
    rows = pa.Table.from_pylist([{"id": 1, "name": "bob", "born": dt.date(1999, 1, 1)}], schema=wider)
    write_deltalake(uri, rows, mode="append", schema_mode="merge")
    expected = [{"id": 0, "name": "ann", "born": None}, *rows.to_pylist()]
    assert_both_read(uri, pa.Table.from_pylist(expected, schema=wider))


def test_files_that_delta_rs_compacts_its_log_into_are_passed_over(uri: str) -> None:
    write_deltalake(uri, people("ann"))
    for number in range(1, 5):
        write_deltalake(uri, people(f"p{number}", start=number), mode="append")
    DeltaTable(uri).compact_logs(1, 3)
    assert_both_read(uri, people("ann", "p1", "p2", "p3", "p4"))


def test_files_of_both_are_pruned_alike(uri: str) -> None:
    write_deltalake(uri, people("ann", "bob"))
    append(Table.open(uri), people("cid", "dot", start=2))
    write_deltalake(uri, people("eve", start=4), mode="append")
    snapshot = Table.open(uri).snapshot()
    assert snapshot.num_files == 3
    assert snapshot.files("id >= 2 AND id < 4").num_rows == 1
    assert snapshot.files("id = 4").num_rows == 1
    assert snapshot.files("name = 'nobody'").num_rows == 0
    chosen = Table.open(uri).to_arrow("id >= 1 AND id <= 2")
    assert sorted(chosen["name"].to_pylist()) == ["bob", "cid"]
