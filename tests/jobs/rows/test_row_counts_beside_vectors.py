"""Alone in showing jobs on files whose statistics count the rows that a deletion vector leaves, as ANALYZE of older
Trino versions writes them, or whose statistics lack the count: no row is lost, none comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog import errors
from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.snapshot.files import live_row_counts, vectors_of
from tests.helpers.jobs import committed, ids, rows, run
from tests.helpers.rows import make_table
from tests.helpers.vectors import allow_vectors, mask

MASKED = {*range(0, 40, 2)}
LEFT = set(range(60)) - MASKED
NEXT = {*range(1, 40, 2)}
ON = {"delta.enableDeletionVectors": "true"}

Change = Callable[[dict[str, Any]], None]


def visible(stats: dict[str, Any]) -> None:
    """Of 60 rows 20 are deleted, so the count says 40: as many as are deleted once 20 more are."""
    stats["numRecords"] -= len(MASKED)
    del stats["tightBounds"]


def visible_and_tight(stats: dict[str, Any]) -> None:
    visible(stats)
    stats["minValues"]["id"] = 1


def physical(stats: dict[str, Any]) -> None:
    del stats["tightBounds"]


def missing(stats: dict[str, Any]) -> None:
    del stats["numRecords"]


COUNTS: list[Change] = [visible, visible_and_tight, physical, missing]
OPERATIONS: dict[str, tuple[dict[str, Any], set[int]]] = {
    "delete": ({"predicate": None, "keys": {"column": "id", "values": sorted(NEXT)}}, LEFT - NEXT),
    "update": ({"predicate": "id < 40", "set": {"name": "'x'"}}, LEFT),
    "optimize": ({}, LEFT),
    "truncate": ({}, set()),
}


def counted(folder: Path, change: Change, **properties: str) -> Table:
    """One file with the ids 0 to 59, of which another engine masked 20 and `change` rewrote the statistics."""
    table = make_table(folder, rows(60), properties=properties)
    allow_vectors(table)
    version = mask(table, {0: MASKED})
    commit = folder / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    (add,) = [action["add"] for action in actions if "add" in action]
    stats = json.loads(add["stats"])
    change(stats)
    add["stats"] = json.dumps(stats, separators=(",", ":"))
    commit.write_text("\n".join(map(json.dumps, actions)))
    return Table.open(str(folder))


def ids_at(table: Table, version: int) -> set[int]:
    return set(table.to_arrow(version=version, columns=["id"]).column("id").to_pylist())


def done(table: Table, operation: str) -> JobResult:
    arguments, _ = OPERATIONS[operation]
    return run(None, operation, table, **arguments)


@pytest.mark.parametrize("change", COUNTS)
def test_exactly_the_rows_that_the_vector_leaves_are_read(tmp_path: Path, change: Change) -> None:
    table = counted(tmp_path / "t", change)
    assert set(ids(table)) == LEFT
    for predicate, left in (
        ("id >= 58", {58, 59}),
        ("id < 2", {1}),
        ("name IS NOT NULL", LEFT),
        ("name IS NULL", set()),
    ):
        assert set(table.to_arrow(predicate, columns=["id"]).column("id").to_pylist()) == left
    # Whether 60 or 40 rows are in the file is not known without its footer.
    assert live_row_counts(table.snapshot().files()) == [None]
    assert ids_at(table, 1) == set(range(60))
    table.checkpoint()
    assert set(ids(Table.open(table.uri))) == LEFT


@pytest.mark.parametrize("change", COUNTS)
def test_the_changes_are_the_rows_that_the_vector_deletes(tmp_path: Path, change: Change) -> None:
    table = counted(tmp_path / "t", change, **{"delta.enableChangeDataFeed": "true"})
    version = table.snapshot().version
    changes = table.changes(version, version)
    assert set(changes.column("_change_type").to_pylist()) == {"delete"}
    assert set(changes.column("id").to_pylist()) == MASKED


@pytest.mark.parametrize("change", [visible, physical])
def test_a_restored_file_has_the_count_that_it_had(tmp_path: Path, change: Change) -> None:
    table = counted(tmp_path / "t", change)
    version = table.snapshot().version
    committed(done(table, "truncate"))
    table.restore(version)
    assert set(ids(table)) == LEFT
    committed(done(table, "delete"))
    assert set(ids(table)) == LEFT - NEXT


@pytest.mark.parametrize("by_vectors", [True, False])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("change", COUNTS)
def test_a_job_loses_no_row_that_is_left(tmp_path: Path, change: Change, operation: str, by_vectors: bool) -> None:
    table = counted(tmp_path / "t", change, **(ON if by_vectors else {}))
    result = committed(done(table, operation))
    assert set(ids(table)) == OPERATIONS[operation][1]
    assert "numDeletedRows" not in result.metrics or operation == "delete"
    if operation == "delete":
        assert result.metrics["numDeletedRows"] == len(NEXT)
    files = table.snapshot().files()
    for number, vector in vectors_of(files).items():
        # A file that comes again has the count that the protocol demands.
        stats = json.loads(files.column("stats")[number].as_py())
        assert (stats["numRecords"], stats["tightBounds"], vector.cardinality) == (60, False, 40)
    assert ids_at(table, table.snapshot().version - 1) == LEFT


def test_a_compaction_is_harmless_only_where_both_counts_are_known(tmp_path: Path) -> None:
    """Of 40 rows that are left 20 leave in a commit that claims to change nothing: by the wrong count it balances."""
    table = counted(tmp_path / "t", visible)
    tx = table.begin()
    tx.read_files(table.snapshot().files(), matched=False)
    winner = table.begin()
    winner.remove(table.snapshot().files(), data_change=False)
    winner.add(path="f", size=1, stats='{"numRecords":20}', data_change=False)
    winner.commit("OPTIMIZE")
    tx.add(path="g", size=1, stats='{"numRecords":1}')
    with pytest.raises(errors.CommitConflict):
        tx.commit("DELETE")


def test_a_vector_without_a_row_count_is_read_and_never_committed(tmp_path: Path) -> None:
    table = counted(tmp_path / "t", missing)
    assert set(ids(table)) == LEFT
    version = table.snapshot().version
    committed(run(None, "optimize", table))
    with pytest.raises(errors.RowCountMissing) as caught:
        table.restore(version)
    assert (caught.value.table, caught.value.retryable) == (table.uri, False)
    assert caught.value.path is not None
    assert set(ids(table)) == LEFT
