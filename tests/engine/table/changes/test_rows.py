"""The change data feed, read: change files, whole files, deletion vectors, and what cannot be told any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table, changes_since
from airflow_txlog.engine.log.columns import table_to_adds
from tests.helpers.rows import append, stage, stage_changes
from tests.helpers.vectors import inline, stored

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
PROPERTIES = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}


def rows(*ids: int, day: str | None = "1") -> list[dict[str, Any]]:
    return [{"id": each, "day": day} for each in ids]


@pytest.fixture(params=[[], ["day"]], ids=["unpartitioned", "partitioned"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """Version 1 holds the rows 1 to 4 in one file."""
    table = Table.create(str(tmp_path / "t"), SCHEMA, request.param, PROPERTIES)
    append(table, rows(1, 2, 3, 4))
    return table


def told(table: Table, start: int, end: int | None = None) -> list[tuple[int, str, int, str | None]]:
    found = table.changes(start, end)
    names = ("_commit_version", "_change_type", "id", "day")
    assert found.schema.names == ["id", "day", "_change_type", "_commit_version", "_commit_timestamp"]
    return sorted((tuple(row[name] for name in names) for row in found.to_pylist()), key=repr)


def give_vector(table: Table, *masked: int, file: int = 0) -> int:
    """The table's file gets this vector, or none."""
    tx = table.begin()
    files = table.snapshot().files().slice(file, 1)
    (add,) = table_to_adds(files, data_change=True)
    tx.remove(files)
    tx.add(msgspec.structs.replace(add, deletion_vector=inline(list(masked)) if masked else None))
    return tx.commit("DELETE")


def test_added_files_are_inserts_and_removed_files_are_deletes(table: Table) -> None:
    tx = table.begin()
    tx.remove(tx.read("day = '1'"))
    tx.add(stage(table, pa.Table.from_pylist(rows(5, day=None), schema=SCHEMA)))
    tx.commit("WRITE")
    assert told(table, 0) == [
        *((1, "insert", each, "1") for each in (1, 2, 3, 4)),
        *((2, "delete", each, "1") for each in (1, 2, 3, 4)),
        (2, "insert", 5, None),
    ]
    assert told(table, 1, 1) == told(table, 0)[:4]


def test_where_there_are_change_files_they_alone_say_what_changed(table: Table) -> None:
    tx = table.begin()
    tx.remove(tx.read("id = 2"))
    tx.add(stage(table, pa.Table.from_pylist(rows(1, 20, 3, 4), schema=SCHEMA)))
    changes = [
        {"id": 2, "day": "1", "_change_type": "update_preimage"},
        {"id": 20, "day": "1", "_change_type": "update_postimage"},
        {"id": 0, "day": None, "_change_type": "delete"},
    ]
    tx.add_changes(stage_changes(table, changes))
    assert tx.commit("UPDATE") == 2
    assert told(table, 2) == [
        (2, "delete", 0, None), (2, "update_postimage", 20, "1"), (2, "update_preimage", 2, "1")
    ]  # fmt: skip
    assert sorted(table.to_arrow(columns=["id"]).column("id").to_pylist()) == [1, 3, 4, 20]


def test_a_vector_that_changes_tells_the_rows_between(table: Table) -> None:
    give_vector(table, 1)
    give_vector(table, 1, 3)
    give_vector(table, 0)
    give_vector(table)
    tx = table.begin()
    tx.remove(tx.read())
    tx.commit("TRUNCATE")
    assert told(table, 2, 5) == [
        (2, "delete", 2, "1"),
        (3, "delete", 4, "1"),
        (4, "delete", 1, "1"),
        (4, "insert", 2, "1"),
        (4, "insert", 4, "1"),
        (5, "insert", 1, "1"),
    ]
    assert told(table, 6) == [(6, "delete", each, "1") for each in (1, 2, 3, 4)]


def test_a_masked_row_is_not_deleted_again_with_its_file(table: Table) -> None:
    give_vector(table, 0, 2)
    tx = table.begin()
    tx.remove(tx.read())
    tx.commit("DELETE")
    assert told(table, 3) == [(3, "delete", 2, "1"), (3, "delete", 4, "1")]


def test_a_compaction_and_a_change_of_properties_change_no_row(table: Table) -> None:
    tx = table.begin()
    tx.remove(tx.read(), data_change=False)
    adds = stage(table, pa.Table.from_pylist(rows(1, 2, 3, 4), schema=SCHEMA))
    tx.add(msgspec.structs.replace(add, data_change=False) for add in adds)
    tx.commit("OPTIMIZE")
    configure(table, k="v")
    assert told(table, 2) == []
    assert table.changes(2, columns=["ID"]).schema.names[0] == "id"


def test_a_merge_that_only_copied_rows_changes_none(table: Table) -> None:
    """As delta-spark once wrote them: the metrics say that the files hold copies."""
    table = Table.open(table.uri)
    metrics = dict.fromkeys(("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"), 0)
    tx = table.begin()
    tx.add(stage(table, pa.Table.from_pylist(rows(9), schema=SCHEMA)))
    tx.commit("MERGE", metrics=metrics)
    assert told(table, 2) == []


def configure(table: Table, **properties: str) -> int:
    metadata = table.snapshot().metadata
    tx = table.begin()
    known = {**metadata.configuration, **properties}
    tx.set_metadata(msgspec.structs.replace(metadata, configuration=known))
    return tx.commit("SET TBLPROPERTIES")


def test_the_moment_of_a_change_is_that_of_its_version(table: Table) -> None:
    append(table, rows(5))
    moments = table.changes(1).select(["_commit_version", "_commit_timestamp"]).to_pylist()
    found = {row["_commit_version"]: int(row["_commit_timestamp"].timestamp() * 1000) for row in moments}
    assert found == {each.version: each.timestamp_ms for each in changes_since(table.snapshot(), 0)}
    assert found[2] == table.snapshot().timestamp_ms


@pytest.mark.parametrize(("start", "end"), [(-1, None), (2, None), (1, 0)])
def test_a_range_that_is_none_is_refused(table: Table, start: int, end: int | None) -> None:
    with pytest.raises(errors.VersionNotFound, match="range"):
        table.changes(start, end)


def test_versions_without_the_feed_are_refused_and_those_after_are_not(table: Table) -> None:
    off, on = {"delta.enableChangeDataFeed": "false"}, {"delta.enableChangeDataFeed": "true"}
    configure(table, **off)
    append(table, rows(5))
    configure(table, **on)
    append(table, rows(6))
    for start, end in ((0, None), (2, None), (2, 2), (3, 4), (3, 3)):
        with pytest.raises(errors.VersionNotFound, match="no change data feed at version"):
            table.changes(start, end)
    assert told(table, 1, 1) == [(1, "insert", each, "1") for each in (1, 2, 3, 4)]
    assert told(table, 4) == [(5, "insert", 6, "1")]


def test_a_column_that_came_later_is_null_before(table: Table) -> None:
    metadata = table.snapshot().metadata
    schema = metadata.schema_string or ""
    later = schema.replace('"fields":[', '"fields":[{"name":"n","type":"long","nullable":true,"metadata":{}},', 1)
    tx = table.begin()
    tx.set_metadata(msgspec.structs.replace(metadata, schema_string=later))
    tx.commit("ADD COLUMNS")
    append(table, [{"n": 7, "id": 9, "day": "1"}])
    assert sorted((row["id"], row["n"]) for row in table.changes(1, columns=["id", "n"]).to_pylist()) == [
        (1, None), (2, None), (3, None), (4, None), (9, 7)
    ]  # fmt: skip


def test_a_column_that_changed_its_type_is_not_read_over_the_change(table: Table) -> None:
    metadata = table.snapshot().metadata
    schema = (metadata.schema_string or "").replace('"long"', '"date"')
    tx = table.begin()
    tx.remove(tx.read())
    tx.set_metadata(msgspec.structs.replace(metadata, schema_string=schema))
    tx.commit("CREATE OR REPLACE TABLE")
    with pytest.raises(errors.UnsupportedFeature, match="with id of type long, now date"):
        table.changes(1)
    assert len(told(table, 1, 1)) == 4


def test_a_table_that_was_partitioned_otherwise_is_not_read_over_the_change(table: Table) -> None:
    metadata = table.snapshot().metadata
    tx = table.begin()
    tx.remove(tx.read())
    tx.set_metadata(msgspec.structs.replace(metadata, partition_columns=[] if metadata.partition_columns else ["day"]))
    tx.commit("CREATE OR REPLACE TABLE")
    with pytest.raises(errors.UnsupportedFeature, match="partitioned"):
        table.changes(1)


def test_changes_that_a_vacuum_took_are_missing_by_name(table: Table) -> None:
    tx = table.begin()
    tx.remove(tx.read())
    tx.add(stage(table, pa.Table.from_pylist(rows(1), schema=SCHEMA)))
    changes = stage_changes(table, [{"id": 2, "day": "1", "_change_type": "delete"}])
    tx.add_changes(changes)
    tx.commit("DELETE")
    (file,) = Path(table.uri.removeprefix("file://")).glob("_change_data/**/*.parquet")
    file.unlink()
    with pytest.raises(errors.FilesMissing, match="changes of version 2"):
        table.changes(1)
    assert len(told(table, 1, 1)) == 4


def test_a_vector_that_a_vacuum_took_is_missing_by_name(table: Table) -> None:
    folder = Path(table.uri.removeprefix("file://"))
    tx = table.begin()
    files = table.snapshot().files()
    (add,) = table_to_adds(files, data_change=True)
    tx.remove(files)
    tx.add(msgspec.structs.replace(add, deletion_vector=stored(folder, [[1]])[0]))
    tx.commit("DELETE")
    assert told(table, 2) == [(2, "delete", 2, "1")]
    for path in folder.glob("*.bin"):
        path.unlink()
    with pytest.raises(errors.FilesMissing, match="version 2"):
        table.changes(2)


def test_a_remove_without_partition_values_is_refused(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, ["day"], PROPERTIES)
    append(table, rows(1))
    tx = table.begin()
    tx.remove(tx.read())
    tx.commit("DELETE")
    log = tmp_path / "t/_delta_log/00000000000000000002.json"
    log.write_text(log.read_text().replace('"partitionValues":{"day":"1"},', ""))
    with pytest.raises(errors.CorruptTable, match="partition values"):
        Table.open(table.uri).changes(2)
