"""An UPDATE that changes files in place loses races, is killed and is retried: each row is in the table once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import (
    KEY,
    application,
    by_id,
    committed,
    delete,
    files_on_disk,
    ids,
    live_files,
    rows,
    run,
    set_property,
    update,
)
from tests.helpers.racing import killed_before_commit, winning
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_PLACE = Limits(changed_in_place_bytes=0)


def updated(
    table: Table, predicate: str, *, log: Callable[[str], None] | None = None, limits: Limits = IN_PLACE, **fields: Any
) -> JobResult:
    arguments = {"predicate": predicate, "set": {"name": "'seen'"}}
    spec = job_spec(operation="update", table_uri=table.uri, arguments=arguments, saved_work_key=KEY, **fields)
    return run_job(spec, None, log=log, limits=limits)


def seen(table: Table) -> list[Any]:
    """The updated rows; every row must be there once."""
    found = ids(table)
    assert len(found) == len(set(found))
    return sorted(number for number, name in by_id(table).items() if name == "seen")


def test_a_new_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100))
    result = committed(updated(table, "id IN (103, 104)"))
    assert (seen(table), table.to_arrow().num_rows) == ([103, 104], 20)
    metrics = result.metrics
    assert (metrics["numUpdatedRows"], metrics["numCopiedRows"], metrics["numAddedFiles"]) == (2, 8, 1)
    assert result.files == {"considered": 2, "pruned": 1, "rewritten": 1, "added": 1, "removed": 1}


@pytest.mark.parametrize(("predicate", "joined"), [("id = 103", False), ("id IN (3, 103)", True)])
def test_a_single_small_file_is_changed_in_place_and_several_are_joined(
    tmp_path: Path, predicate: str, joined: bool
) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100))
    lines: list[str] = []
    result = committed(updated(table, predicate, log=lines.append, limits=Limits()))
    assert (table.to_arrow().num_rows, result.files["added"]) == (20, 1)
    assert [line for line in lines if "joined" in line] == (["4 tiny files joined into 1"] if joined else [])


def test_files_that_a_winner_did_not_touch_are_kept_and_the_others_changed_again(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", *(rows(10, start=start) for start in (0, 100, 200)))
    other = job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "id IN (104, 105)"})
    log = winning("staged", lambda: committed(run_job(other, None)))
    result = committed(updated(table, "id IN (3, 103, 104, 203)", log=log))
    assert (result.attempts, seen(table), table.to_arrow().num_rows) == (2, [3, 103, 203], 28)
    assert [line for line in log.lines if line.startswith("reused what was staged before: 2 files (")]
    assert files_on_disk(table) >= live_files(table)


def test_a_file_that_lands_is_changed_too(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100))
    log = winning("staged", lambda: append(table, rows(10, start=200)))
    result = committed(updated(table, "id IN (3, 203)", log=log))
    assert (result.attempts, seen(table), table.to_arrow().num_rows) == (2, [3, 203], 30)


@pytest.mark.parametrize("before", ["true", "false"])
def test_deletion_vectors_may_come_or_go_between_two_attempts(tmp_path: Path, before: str) -> None:
    """A vector hides the old rows of a file that stays: a file that holds the others too would double them."""
    name, after = "delta.enableDeletionVectors", "false" if before == "true" else "true"
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100), properties={name: "true"})
    set_property(table, name, before)
    log = winning("staged", lambda: (set_property(table, name, after), append(table, rows(1, start=200))))
    result = committed(updated(table, "id IN (3, 103, 200)", log=log))
    assert (result.attempts, seen(table), table.to_arrow().num_rows) == (2, [3, 103, 200], 21)
    assert (result.metrics["numDeletionVectorsAdded"] > 0) == (after == "true")


def test_a_retry_of_a_killed_try_uses_what_it_changed(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100))
    work = application()
    with killed_before_commit():
        updated(table, "id IN (3, 103)", application=work)
    staged = files_on_disk(table) - live_files(table)
    result = committed(updated(table, "id IN (3, 103)", application=work, annotations={"try_number": 2}))
    assert (seen(table), table.to_arrow().num_rows, live_files(table) <= staged) == ([3, 103], 20, True)
    assert result.metrics["numCopiedRows"] == 18


@pytest.mark.spark
def test_values_that_spark_computes_take_the_places_of_their_rows(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(50), rows(50, start=100))
    before = by_id(table)
    given = {"predicate": "pmod(id, 3) = 1 AND id > 99", "set": {"name": "reverse(name)"}}
    result = committed(run(spark, "update", table, limits=IN_PLACE, **given))
    changed = [number for number in before if number > 99 and number % 3 == 1]
    assert by_id(table) == before | {number: before[number][::-1] for number in changed}
    copied = 50 - len(changed)
    assert (result.metrics["numUpdatedRows"], result.metrics["numCopiedRows"]) == (len(changed), copied)
    assert (result.files["rewritten"], result.files["added"]) == (1, 1)


def test_a_merge_changes_files_in_place_unless_rows_leave_them(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100))
    before = by_id(table)
    pq.write_table(pa.table({"id": [3, 104, 105, 106], "new": ["a", "b", "c", None]}), tmp_path / "s.parquet")
    result = committed(
        run(
            None,
            "merge",
            table,
            limits=IN_PLACE,
            source={"format": "parquet", "path": str(tmp_path / "s.parquet")},
            on="t.id = s.id",
            clauses=[delete("s.id = 3"), update({"name": "s.new"})],
        )
    )
    assert by_id(table) == {
        **{number: name for number, name in before.items() if number != 3},
        104: "b",
        105: "c",
        106: None,
    }
    metrics = result.metrics
    assert (metrics["numTargetRowsUpdated"], metrics["numTargetRowsDeleted"]) == (3, 1)
    assert metrics["numTargetRowsCopied"] == 9 + 7
