"""A long job says in the task log how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_txlog.jobs.spark.progress import watched

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WAIT_S = 120


def until_there(file: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task that ends once the file is there."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        end_s = time.monotonic() + WAIT_S
        while not file.exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        yield from batches

    return wait


def test_tasks_are_told_while_they_run_and_not_after(spark: SparkSession, tmp_path: Path) -> None:
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        (tmp_path / "logged").touch()

    with watched(spark, "find", log, every_s=0.1):
        spark.range(0, 6, 1, 6).mapInArrow(until_there(tmp_path / "logged"), "id long").count()
    assert any(line.startswith("find: ") and line.endswith(" of 6 tasks done") for line in lines), lines
    told = len(lines)
    time.sleep(0.3)
    assert len(lines) == told


def test_a_broken_log_breaks_no_job(spark: SparkSession, tmp_path: Path) -> None:
    def log(line: str) -> None:
        (tmp_path / "logged").touch()
        raise OSError("no space left")

    with watched(spark, "find", log, every_s=0.05):
        assert spark.range(0, 6, 1, 6).mapInArrow(until_there(tmp_path / "logged"), "id long").count() == 6
    assert (tmp_path / "logged").exists()


@pytest.mark.long("executors report what they have done every ten seconds")
def test_rows_are_shown_while_a_task_makes_them(spark: SparkSession, tmp_path: Path) -> None:
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if line.endswith(" rows so far"):
            (tmp_path / "logged").touch()

    def make_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        end_s = time.monotonic() + WAIT_S
        for batch in batches:
            many = batch.from_pydict({"id": [batch.column(0)[0].as_py()] * 10_000})
            while not (tmp_path / "logged").exists() and time.monotonic() < end_s:
                time.sleep(0.05)
                yield many

    with watched(spark, "find", log, every_s=0.5):
        spark.range(0, 2, 1, 2).mapInArrow(make_rows, "id long").count()
    shown = [line for line in lines if line.endswith(" rows so far")]
    assert shown[0].startswith("find: 0 of 2 tasks done, "), lines
