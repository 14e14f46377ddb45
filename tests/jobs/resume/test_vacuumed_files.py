"""A job that is overtaken by a DELETE and a VACUUM that keeps nothing plans again; a file that was lost is an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.jobs.executor import spark as executor
from airflow_txlog.jobs.operations.optimize import job as optimize_job
from tests.helpers.jobs import committed, error_of, ids, rows, run
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def vacuum(table: Table) -> None:
    time.sleep(0.01)  # a tombstone of this very millisecond stays
    assert table.vacuum(0, check_retention=False).deleted_files


def forget(table: Table, number: int) -> None:
    """Remove the whole file of that place among the live ones, and have it deleted."""
    tx = table.begin()
    tx.remove(sorted(tx.read(None).column("path").to_pylist())[number])
    tx.commit("DELETE")
    vacuum(table)


def once(win: Callable[[], Any], at: str = "to scan") -> Callable[[str], None]:
    left = [win]

    def log(line: str) -> None:
        if at in line and left:
            left.pop()()

    return log


def delete_even(spark: SparkSession, table: Table, win: Callable[[], Any], **more: Any) -> JobResult:
    return run(spark, "delete", table, predicate="pmod(id, 2) = 0", log=once(win), **more)


def before_the_call(module: Any, name: str, win: Callable[[], Any], patch: pytest.MonkeyPatch) -> None:
    """Let `win` happen right before the next call of a function that starts the Spark job."""
    left, real = [win], getattr(module, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        if left:
            left.pop()()
        return real(*args, **kwargs)

    patch.setattr(module, name, called)


def test_a_job_whose_file_was_removed_and_vacuumed_goes_on_with_the_others(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=50))
    before = {row["id"] for row in table.to_arrow(columns=["id"]).to_pylist()}
    result = committed(delete_even(spark, table, lambda: forget(table, 0)))
    assert result.attempts == 2
    left = set(ids(table))
    assert left < before
    assert left in ({1, 3, 5, 7, 9}, {51, 53, 55, 57, 59})


def test_a_job_whose_time_is_over_leaves_it_to_a_retry(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=50))
    error = error_of(delete_even(spark, table, lambda: forget(table, 0), conflict_deadline_s=0))
    assert (error["type"], error["retryable"]) == ("ConcurrentDeleteRead", True)
    assert error["facts"]["read_version"] == 2


def test_a_file_that_the_table_still_names_is_lost_and_no_retry_helps(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    (path,) = table.snapshot().files().column("path").to_pylist()

    def lose() -> None:
        append(table, rows(1, start=90))
        (tmp_path / "t" / path).unlink()

    error = error_of(delete_even(spark, table, lose))
    assert (error["type"], error["retryable"]) == ("CorruptDataFile", False)
    assert error["facts"]["is_missing"] is True


def test_a_deletion_vector_that_was_replaced_and_vacuumed_is_read_anew(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), properties={"delta.enableDeletionVectors": "true"})
    committed(run(spark, "delete", table, predicate="id = 1"))

    def replace_the_vector() -> None:
        committed(run(spark, "delete", table, predicate="id = 3"))
        vacuum(table)

    result = committed(delete_even(spark, table, replace_the_vector))
    assert result.attempts == 2
    assert ids(table) == [5, 7, 9]


def test_a_source_table_whose_file_was_vacuumed_is_read_at_its_newest_version(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(2))
    source = make_table(tmp_path / "s", rows(3, start=50), rows(3, start=60))
    before_the_call(executor, "stage", lambda: forget(source, 0), monkeypatch)
    result = committed(run(spark, "write", table, source={"table": source.uri}, mode="overwrite", on_conflict="fail"))
    assert result.attempts == 2
    assert ids(table) == ids(source)
    assert len(ids(table)) == 3
    # A version that was named has its files or it does not: there is nothing newer to read.
    named = error_of(run(spark, "write", table, source={"table": source.uri, "version": 2}))
    assert (named["type"], named["retryable"]) == ("FilesMissing", False)


def test_optimize_drops_a_bin_whose_file_was_vacuumed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(2), rows(2, start=10), rows(2, start=20))
    before_the_call(optimize_job, "stage_bins", lambda: forget(table, 0), monkeypatch)
    result = committed(run(spark, "optimize", table))
    assert result.files["removed"] == 2
    assert len(table_to_adds(table.snapshot().files(), True)) == 1
    assert len(ids(table)) == 4
