"""Commits that contradict themselves are refused before anything is written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from airflow_txlog import errors
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.table.snapshot.files import vectors_of
from tests.helpers.vectors import inline

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def table(memory_uri: str, clock: Any) -> Table:
    return Table.create(memory_uri, SCHEMA, ["day"], clock=clock)


def add(tx: Transaction, path: str, **partition: str) -> None:
    tx.add(path=path, partition_values=partition or {"day": "1"}, size=1)


def refused(tx: Transaction, kind: type[errors.TxlogError], table: Table, operation: str = "WRITE") -> None:
    before = table.snapshot().version
    with pytest.raises(kind) as caught:
        tx.commit(operation)
    assert not caught.value.retryable
    assert table.snapshot().version == before


def test_a_file_named_twice_is_refused(table: Table) -> None:
    tx = table.begin()
    add(tx, "a%20b")
    # The same file in another spelling: relative and absolute.
    add(tx, f"{table.uri}/a%20b")
    refused(tx, errors.DuplicateActions, table)


def masked_table(memory_uri: str, clock: Any) -> Table:
    table = Table.create(memory_uri, SCHEMA, properties={"delta.enableDeletionVectors": "true"}, clock=clock)
    tx = table.begin()
    tx.add(path="f", size=1, stats='{"numRecords":10}', deletion_vector=inline([1, 2]))
    tx.commit("WRITE")
    return table


def test_a_vector_needs_the_feature_and_the_number_of_rows(table: Table, memory_uri: str, clock: Any) -> None:
    tx = table.begin()
    tx.add(path="f", partition_values={"day": "1"}, size=1, stats='{"numRecords":10}', deletion_vector=inline([1]))
    refused(tx, errors.InvalidCommit, table)
    masked = masked_table(f"{memory_uri}-masked", clock)
    for text in (None, "", "{}", '{"numRecords":null}', '{"numRecords":"10"}', '{"numRecords":-1}', "not json"):
        tx = masked.begin()
        tx.add(path="g", size=1, stats=text, deletion_vector=inline([1]))
        refused(tx, errors.RowCountMissing, masked)


def test_one_file_has_one_vector_at_a_time(memory_uri: str, clock: Any) -> None:
    table = masked_table(memory_uri, clock)
    tx = table.begin()
    for rows in ([1], [2]):
        tx.add(path="g", size=1, stats='{"numRecords":10}', deletion_vector=inline(rows))
    refused(tx, errors.DuplicateActions, table)
    tx = table.begin()
    tx.remove("f")
    tx.add(path="f", size=1, stats='{"numRecords":10}', deletion_vector=inline([1, 2, 3]))
    tx.commit("DELETE")
    assert [vector.cardinality for vector in vectors_of(table.snapshot().files()).values()] == [3]


def test_a_remove_names_the_vector_that_the_file_has(memory_uri: str, clock: Any) -> None:
    table = masked_table(memory_uri, clock)
    first = table.snapshot().files()
    (as_it_was,) = table_to_adds(first, data_change=True)
    tx = table.begin()
    tx.remove("f")
    tx.add(path="f", size=1, stats='{"numRecords":10}', deletion_vector=inline([1, 2, 3]))
    tx.commit("DELETE")
    tx = table.begin()
    # What an older version knew of the file, and what nobody ever knew: such a remove would remove nothing.
    for stale in (first, as_it_was, replace(as_it_was, deletion_vector=None), replace(as_it_was, path="g")):
        with pytest.raises(errors.InvalidCommit):
            tx.remove(stale)
    for live in (table.snapshot().files(), "f"):
        tx = table.begin()
        tx.remove(live)
        attempt = tx._attempt("DELETE", never_rebases=True)
        assert [remove.deletion_vector for remove in attempt.removes] == [inline([1, 2, 3])]
    assert tx.commit("DELETE") == 3
    assert table.snapshot().num_files == 0


def test_of_many_files_too_each_remove_names_the_vector_that_the_file_has(memory_uri: str, clock: Any) -> None:
    table = masked_table(memory_uri, clock)
    tx = table.begin()
    tx.add([replace(table_to_adds(table.snapshot().files(), True)[0], path=f"g%20{k}") for k in range(1500)])
    tx.commit("WRITE")
    before = table.snapshot().files()
    tx = table.begin()
    tx.remove("g%20700")
    tx.add(path="g%20700", size=1, stats='{"numRecords":10}', deletion_vector=inline([1, 2, 3]))
    tx.commit("DELETE")
    tx = table.begin()
    with pytest.raises(errors.InvalidCommit, match="g%20700 is live at version 3 with another deletion vector"):
        tx.remove(before)
    tx.remove(table.snapshot().files())
    tx.commit("DELETE")
    tx = table.begin()
    with pytest.raises(errors.InvalidCommit, match="is not a live file of version 4"):
        tx.remove(before)
    assert table.snapshot().num_files == 0


def test_partition_values_must_name_the_partition_columns(table: Table) -> None:
    tx = table.begin()
    tx.add(path="a", partition_values={}, size=1)
    refused(tx, errors.PartitionMismatch, table)
    tx = table.begin()
    add(tx, "a", day="1", hour="2")
    refused(tx, errors.PartitionMismatch, table)


def test_an_append_only_table_keeps_its_rows_but_may_be_compacted(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, ["day"], {"delta.appendOnly": "true"}, clock=clock)
    tx = table.begin()
    add(tx, "a")
    tx.commit("WRITE")
    tx = table.begin()
    tx.remove("a")
    refused(tx, errors.AppendOnlyViolation, table, "DELETE")
    tx = table.begin()
    tx.remove("a", data_change=False)
    tx.add(path="b", partition_values={"day": "1"}, size=1, data_change=False)
    assert tx.commit("OPTIMIZE") == 2


def test_two_versions_of_one_application_are_refused_and_equal_ones_are_one(table: Table) -> None:
    tx = table.begin()
    add(tx, "a")
    tx.set_application("task", 1)
    tx.set_application("task", 2)
    refused(tx, errors.SetTransactionVersionConflict, table)
    tx = table.begin()
    add(tx, "a")
    tx.set_application("task", 1)
    tx.set_application("task", 1)
    tx.commit("WRITE")
    assert table.snapshot().application_version("task") == 1


def test_a_path_that_is_not_live_can_be_neither_read_nor_removed(table: Table) -> None:
    tx = table.begin()
    with pytest.raises(errors.InvalidCommit, match="not a live file"):
        tx.remove("nowhere")
    with pytest.raises(errors.InvalidCommit, match="not a live file"):
        tx.read_files(["nowhere"])


@pytest.mark.parametrize("operation", ["WRITE", "DELETE", "UPDATE", "MERGE"])
def test_an_empty_commit_is_left_out_under_serializable_and_recorded_under_write_serializable(
    table: Table, memory_uri: str, clock: Any, operation: str
) -> None:
    tx = table.begin()
    tx.read("day = '1'")
    tx.set_application("task", 1)
    assert tx.commit(operation) == 0
    assert tx.outcome is not None
    assert not tx.outcome.committed
    assert table.snapshot().application_version("task") is None

    relaxed = Table.create(
        f"{memory_uri}-relaxed", SCHEMA, ["day"], {"delta.isolationLevel": "WriteSerializable"}, clock=clock
    )
    tx = relaxed.begin()
    tx.read("day = '1'")
    tx.set_application("task", 1)
    assert tx.commit(operation) == 1
    assert relaxed.snapshot().application_version("task") == 1


@pytest.mark.parametrize(
    ("schema", "partition_by", "match"),
    [
        (pa.schema([]), [], "at least one column"),
        (SCHEMA, ["month"], "cannot be partitioned by 'month'"),
        (SCHEMA, ["day", "DAY"], "named twice"),
        (SCHEMA, ["id", "day"], "every one of its columns"),
        (pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))]), ["tags"], "single value"),
    ],
)
def test_a_table_that_cannot_be_is_not_made(
    memory_uri: str, schema: pa.Schema, partition_by: list[str], match: str
) -> None:
    with pytest.raises(errors.SchemaMismatch, match=match):
        Table.create(memory_uri, schema, partition_by)
    assert not Table.exists(memory_uri)


def test_a_property_that_cannot_be_read_or_honoured_makes_no_table(memory_uri: str) -> None:
    with pytest.raises(errors.InvalidProperty):
        Table.create(memory_uri, SCHEMA, properties={"delta.checkpointInterval": "often"})
    with pytest.raises(errors.UnsupportedFeature, match="icebergCompatV2"):
        Table.create(memory_uri, SCHEMA, properties={"delta.enableIcebergCompatV2": "true"})
    assert not Table.exists(memory_uri)
