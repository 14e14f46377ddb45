"""Alone in showing that many tiny files that a change touches are copied into few, with the rows of as many copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.datafiles.tasks.compaction import CompactTask
from airflow_txlog.engine import Table
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import (
    application,
    committed,
    error_of,
    ever_live,
    files_on_disk,
    insert,
    run,
    set_property,
    tried_without_spark,
    update,
)
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import stage

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("name", pa.string())])
FILES = 16
# One group has no more files, so that a partition has two.
LIMITS = Limits(copied_together=8)
CHANGES: dict[str, dict[str, Any]] = {
    "delete": {"predicate": "id % 10 = 3"},
    "update": {"predicate": "id % 10 = 3", "set": {"name": "concat(name, '!')"}},
}


@pytest.fixture(autouse=True)
def without_spark() -> Iterator[None]:
    with tried_without_spark():
        yield


def make(folder: Path, properties: dict[str, str] | None = None) -> Table:
    """Two partitions with so many files of ten rows each, in one commit."""
    table = Table.create(str(folder), SCHEMA, ["p"], properties=properties or {})
    tx = table.begin()
    for number in range(2 * FILES):
        ids = range(10 * number, 10 * number + 10)
        columns = {"id": ids, "p": ["ab"[number % 2]] * 10, "name": [f"n{k % 7}" for k in ids]}
        tx.add(stage(table, pa.table(columns, schema=SCHEMA), tx=tx))
    tx.commit("WRITE")
    return table


def expected(operation: str, count: int = 20 * FILES) -> dict[int, tuple[str, str]]:
    return {
        k: ("ab"[k // 10 % 2], f"n{k % 7}" + "!" * (k % 10 == 3))
        for k in range(count)
        if k % 10 != 3 or operation == "update"
    }


def found(table: Table) -> dict[int, tuple[str, str]]:
    rows = table.to_arrow().to_pylist()
    by_id = {row["id"]: (row["p"], row["name"]) for row in rows}
    assert len(by_id) == len(rows)
    return by_id


def change(table: Table, operation: str, **more: Any) -> JobResult:
    return committed(run(None, operation, table, **CHANGES[operation], **more))


@pytest.mark.parametrize("operation", CHANGES)
@pytest.mark.parametrize(
    "properties",
    [{}, {"delta.enableChangeDataFeed": "true"}, {"delta.columnMapping.mode": "name"}],
    ids=str,
)
def test_tiny_files_are_copied_into_few(tmp_path: Path, operation: str, properties: dict[str, str]) -> None:
    table = make(tmp_path, properties)
    result = change(table, operation, limits=LIMITS)
    assert found(table) == expected(operation)
    assert result.files["removed"] == result.files["rewritten"] == 2 * FILES
    assert table.snapshot().num_files <= 8
    assert result.metrics["numCopiedRows"] == 18 * FILES
    assert files_on_disk(table) <= ever_live(table)
    if "delta.enableChangeDataFeed" in properties:
        version = table.snapshot().version
        kinds = table.changes(version, version).column("_change_type").to_pylist()
        assert len(kinds) == 2 * FILES * (2 if operation == "update" else 1)


@pytest.mark.parametrize("operation", CHANGES)
def test_files_of_other_writers_and_with_deletion_vectors_are_copied_together(tmp_path: Path, operation: str) -> None:
    table = make(tmp_path, {"delta.enableDeletionVectors": "true"})
    committed(run(None, "delete", table, predicate="id % 100 = 7"))
    tx = table.begin()
    for number in range(30):
        first, partition = 1_000 + 10 * number, "ab"[number % 2]
        rows = pa.table({"id": range(first, first + 10), "name": [f"n{k % 7}" for k in range(first, first + 10)]})
        # In another order, or with narrower numbers; in other codecs, some without a dictionary.
        rows = [rows.select(["name", "id"]), rows.set_column(0, "id", rows["id"].cast(pa.int32())), rows][number % 3]
        path = tmp_path / f"p={partition}" / f"other-{number}.parquet"
        pq.write_table(rows, path, compression="ZSTD" if number % 2 else "NONE", use_dictionary=number % 4 == 0)
        tx.add(path=f"p={partition}/{path.name}", partition_values={"p": partition}, size=path.stat().st_size)
    tx.commit("WRITE")
    set_property(table, "delta.enableDeletionVectors", "false")
    result = change(table, operation, limits=LIMITS)
    others = {k: ("ab"[k // 10 % 2], f"n{k % 7}" + "!" * (k % 10 == 3)) for k in range(1_000, 1_300)}
    left = expected(operation) | {k: v for k, v in others.items() if k % 10 != 3 or operation == "update"}
    assert found(table) == {k: v for k, v in left.items() if k >= 1_000 or k % 100 != 7}
    assert result.files["removed"] == 2 * FILES + 30
    assert table.snapshot().num_files <= 14


def test_rows_with_ids_are_copied_file_by_file(tmp_path: Path) -> None:
    table = make(tmp_path, {"delta.enableRowTracking": "true"})
    change(table, "delete", limits=LIMITS)
    assert found(table) == expected("delete")
    assert table.snapshot().num_files == 2 * FILES


def test_few_files_are_copied_one_by_one(tmp_path: Path) -> None:
    table = make(tmp_path)
    change(table, "delete", limits=Limits(joined_files_fewer=2 * FILES))
    assert found(table) == expected("delete")
    assert table.snapshot().num_files == 2 * FILES


@pytest.mark.parametrize("operation", CHANGES)
def test_a_conflict_costs_the_group_of_the_changed_file_alone(tmp_path: Path, operation: str) -> None:
    table, lines = make(tmp_path), list[str]()

    def land(_: object) -> None:
        committed(run(None, "update", table, predicate="id = 5", set={"name": "'theirs'"}))

    with before_commit(land):
        result = change(table, operation, limits=LIMITS, log=lines.append)
    assert result.attempts == 2
    assert found(table) == expected(operation) | {5: ("a", "theirs")}
    # "staged 6 files with 432 rows"
    staged = [int(line.split()[4]) for line in lines if line.startswith("staged")]
    assert 0 < staged[1] < staged[0]
    assert files_on_disk(table) <= ever_live(table)


@pytest.mark.parametrize("fault", ["each group loses a row", "one group loses a row that another has twice"])
@pytest.mark.parametrize("uncounted", [False, True])
def test_a_group_that_came_out_with_other_rows_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, uncounted: bool
) -> None:
    table, really = make(tmp_path), CompactTask._rows
    if uncounted:
        path = tmp_path / "p=b" / "uncounted.parquet"
        pq.write_table(pa.table({"id": [5_003, 5_004], "name": ["x", "y"]}), path)
        tx = table.begin()
        tx.add(path=f"p=b/{path.name}", partition_values={"p": "b"}, size=path.stat().st_size)
        tx.commit("WRITE")

    def rows(self: CompactTask, files: Any, output: Any) -> Iterator[pa.RecordBatch]:
        made = really(self, files, output)
        first = next(made)
        loses = fault.startswith("each") or files[0].segment == 0
        yield from [first.slice(1)] if loses else [first, first.slice(0, int(files[0].segment == 1))]
        yield from made

    monkeypatch.setattr(CompactTask, "_rows", rows)
    before = files_on_disk(table)
    error = error_of(run(None, "delete", table, predicate="id % 10 = 3", limits=LIMITS))
    assert "rows that stay" in error["message"]
    assert files_on_disk(table) == before


def test_a_merge_copies_tiny_files_into_few(tmp_path: Path) -> None:
    """In each file one row changes and one leaves; a new row comes."""
    table, source = make(tmp_path / "t"), tmp_path / "source.parquet"
    ids = [k for k in range(20 * FILES) if k % 10 in (3, 4)] + [9_001]
    pq.write_table(pa.table({"id": ids, "p": ["a"] * len(ids)}), source)
    clauses = [
        {"when": "matched", "then": "delete", "condition": "s.id % 10 = 4"},
        update({"name": "concat(t.name, '!')"}),
        insert({"id": "s.id", "p": "s.p", "name": "'new'"}),
    ]
    given = {"format": "parquet", "path": str(source)}
    result = committed(run(None, "merge", table, source=given, on="t.id = s.id", clauses=clauses, limits=LIMITS))
    stays = {k: row for k, row in expected("update").items() if k % 10 != 4}
    assert found(table) == stays | {9_001: ("a", "new")}
    assert result.files["removed"] == result.files["rewritten"] == 2 * FILES
    assert table.snapshot().num_files <= 10


@pytest.mark.parametrize("operation", CHANGES)
def test_joint_copies_of_a_killed_try_are_kept(tmp_path: Path, operation: str) -> None:
    table, work, lines = make(tmp_path), application(), list[str]()
    with killed_before_commit():
        change(table, operation, limits=LIMITS, application=work)
    staged = files_on_disk(table)
    result = change(table, operation, limits=LIMITS, application=work, log=lines.append)
    assert any("reused what was staged before" in line for line in lines)
    assert files_on_disk(table) <= staged
    assert found(table) == expected(operation)
    assert result.files["rewritten"] == 2 * FILES
