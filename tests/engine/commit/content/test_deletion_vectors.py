"""Rows deleted by masking: what a file keeps when it comes again, and what a commit may not say of it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from airflow_txlog import errors
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.commit.content.deletion_vectors import adds_with_vectors, deletes_by_vectors, wide_statistics
from airflow_txlog.engine.log.actions import Metadata, Protocol, decode_commit
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.snapshot.files import vectors_of
from tests.helpers.vectors import inline

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
ON = {"delta.enableDeletionVectors": "true"}
OFF = {"delta.enableDeletionVectors": "false"}


@pytest.fixture
def table(memory_uri: str, clock: Any) -> Table:
    """Files `a` and `b` of ten rows each."""
    table = Table.create(memory_uri, SCHEMA, ["day"], ON, clock=clock)
    tx = table.begin()
    for path in "ab":
        tx.add(
            path=path,
            partition_values={"day": "1"},
            size=7,
            stats='{"numRecords":10,"maxValues":{"id":9}}',
            tags={"k": "v"},
            modification_time=5,
        )
    tx.commit("WRITE")
    return table


def mask(table: Table, path: str, *rows: int) -> Transaction:
    """A transaction that masks these rows of the file, and no others."""
    tx = table.begin()
    files = table.snapshot().files("TRUE")
    files = files.filter(pa.array([each == path for each in files.column("path").to_pylist()]))
    tx.read_files(files)
    tx.remove(files)
    tx.add(adds_with_vectors(files, [inline(rows)], [10]))
    return tx


def preserved(table: Table, version: int) -> str | None:
    info = decode_commit(version, table.store.read(commit_name(version)), "x").info or {}
    tags: dict[str, str] = info.get("tags", {})
    return tags.get("delta.rowTracking.preserved")


def test_a_masked_file_keeps_everything_but_its_vector(table: Table) -> None:
    before = {add.path: add for add in table_to_adds(table.snapshot().files(), True)}
    mask(table, "a", 1, 2).commit("DELETE")
    after = {add.path: add for add in table_to_adds(table.snapshot().files(), True)}
    assert after["b"] == before["b"]
    assert replace(after["a"], deletion_vector=None, stats=before["a"].stats) == before["a"]
    assert json.loads(after["a"].stats or "") == {"numRecords": 10, "maxValues": {"id": 9}, "tightBounds": False}
    assert {vector.cardinality for vector in vectors_of(table.snapshot().files()).values()} == {2}


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        (
            '{"numRecords":3,"minValues":{"d":12345678901234567.89,"f":1e400}}',
            '{"numRecords":3,"minValues":{"d":12345678901234567.89,"f":1e400},"tightBounds":false}',
        ),
        ('{"numRecords":3,"tightBounds":true}', '{"numRecords":3,"tightBounds":false}'),
        (None, '{"numRecords":3,"tightBounds":false}'),
        ("", '{"numRecords":3,"tightBounds":false}'),
        ("not json", '{"numRecords":3,"tightBounds":false}'),
        ("[1]", '{"numRecords":3,"tightBounds":false}'),
        ('{"nullCount":{"a":0}}', '{"nullCount":{"a":0},"numRecords":3,"tightBounds":false}'),
    ],
)
def test_statistics_become_wide_and_keep_every_other_word(stats: str | None, expected: str) -> None:
    assert wide_statistics(stats, 3) == expected


def test_a_path_is_never_live_twice(table: Table) -> None:
    mask(table, "a", 1).commit("DELETE")
    files = table.snapshot().files()
    for forgotten in ("a", "b"):
        tx = table.begin()
        add = next(add for add in table_to_adds(files, True) if add.path == forgotten)
        # In any spelling of the path, whether the live file has a vector or not.
        for path in (forgotten, f"./{forgotten}"):
            tx.add(replace(add, path=path, deletion_vector=inline([1, 2]), stats='{"numRecords":10}'))
            with pytest.raises(errors.InvalidCommit, match="would be in the table twice"):
                tx.commit("DELETE")
            tx = table.begin()
    assert table.snapshot().num_files == 2


def test_a_vector_cannot_delete_more_rows_than_there_are(table: Table) -> None:
    with pytest.raises(errors.InvalidCommit, match="deletes 11 rows, and the file has 10"):
        mask(table, "a", *range(11)).commit("DELETE")
    mask(table, "a", *range(10)).commit("DELETE")


def test_c76_of_two_who_mask_rows_of_one_file_the_second_must_look_again(table: Table) -> None:
    one, other, elsewhere = mask(table, "a", 1), mask(table, "a", 2), mask(table, "b", 3)
    one.commit("DELETE")
    with pytest.raises(errors.ConcurrentDeleteRead):
        other.commit("DELETE")
    # Who read neither the file nor a condition that its rows may satisfy goes on.
    elsewhere.commit("DELETE")
    reading = table.begin()
    reading.read("id = 2")
    reading.add(path="c", partition_values={"day": "1"}, size=1, stats='{"numRecords":1}')
    mask(table, "a", 1, 2).commit("DELETE")
    with pytest.raises(errors.ConcurrentAppend, match=r"deleted other rows of a \(partition day=1\), which") as caught:
        reading.commit("WRITE")
    assert caught.value.retryable


def test_masking_that_is_switched_off_meanwhile_conflicts_and_copying_does_not(table: Table) -> None:
    masking, copying = mask(table, "a", 1), table.begin()
    copying.add(path="c", partition_values={"day": "1"}, size=1, stats='{"numRecords":1}')
    off = table.begin()
    metadata = off.metadata
    assert metadata is not None
    off.set_metadata(replace(metadata, configuration={**metadata.configuration, **OFF}))
    off.commit("SET TBLPROPERTIES")
    with pytest.raises(errors.MetadataChanged, match="enableDeletionVectors"):
        masking.commit("DELETE")
    copying.commit("WRITE")


def test_one_who_masks_a_file_conflicts_with_one_who_compacts_it(table: Table) -> None:
    masking = mask(table, "a", 1)
    compacting = table.begin()
    files = compacting.read("TRUE")
    compacting.remove(files, data_change=False)
    compacting.add(path="ab", partition_values={"day": "1"}, size=14, stats='{"numRecords":20}', data_change=False)
    compacting.commit("OPTIMIZE")
    with pytest.raises(errors.ConcurrentDeleteRead):
        masking.commit("DELETE")


@pytest.mark.parametrize("comes", ["nothing", "rows"])
def test_deleted_rows_keep_the_ids_of_the_others(memory_uri: str, clock: Any, comes: str) -> None:
    tracked = {
        "delta.enableRowTracking": "true",
        "delta.feature.deletionVectors": "supported",
    }
    table = Table.create(memory_uri, SCHEMA, properties=tracked, clock=clock)
    tx = table.begin()
    for path in "ab":
        tx.add(path=path, size=7, stats='{"numRecords":10}')
    tx.commit("WRITE")
    before = {add.path: add for add in table_to_adds(table.snapshot().files(), True)}
    tx = mask(table, "a", 1, 2)
    if comes == "rows":
        tx.add(path="c", size=1, stats='{"numRecords":2}')
    version = tx.commit("UPDATE")
    after = {add.path: add for add in table_to_adds(table.snapshot().files(), True)}
    for path in "ab":
        assert after[path].base_row_id == before[path].base_row_id
        assert after[path].default_row_commit_version == before[path].default_row_commit_version
    # New rows beside masked ones may be those rows, changed: their ids are not carried along, and the commit says so.
    assert preserved(table, version) == ("true" if comes == "nothing" else "false")


@pytest.mark.parametrize(
    ("features", "properties", "expected"),
    [
        (["deletionVectors"], ON, True),
        (["deletionVectors"], {}, False),
        (["deletionVectors"], {"delta.enableDeletionVectors": "false"}, False),
        ([], ON, False),
    ],
)
def test_rows_are_masked_where_the_table_has_it_switched_on(
    features: list[str], properties: dict[str, str], expected: bool
) -> None:
    protocol = Protocol(min_reader_version=3, min_writer_version=7, reader_features=features, writer_features=features)
    metadata = Metadata(id="x", partition_columns=[], configuration=properties)
    assert deletes_by_vectors(protocol, metadata, "t") is expected


def test_a_file_that_is_masked_again_leaves_with_the_vector_that_it_had(table: Table) -> None:
    mask(table, "a", 1).commit("DELETE")
    version = mask(table, "a", 1, 2).commit("DELETE")
    found = decode_commit(version, table.store.read(commit_name(version)), "x")
    assert [remove.deletion_vector for remove in found.removes] == [inline([1])]
    assert [add.deletion_vector for add in found.adds] == [inline([1, 2])]
