"""A long job says in the task log how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from airflow_txlog.jobs.spark.progress import watched

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.4)
        yield batch


def test_tasks_are_told_while_they_run_and_not_after(spark: SparkSession) -> None:
    lines: list[str] = []
    with watched(spark, "find", lines.append, every_s=0.1):
        spark.range(0, 6, 1, 6).mapInArrow(slowly, "id long").count()
    assert any(line.startswith("find: ") and line.endswith(" of 6 tasks done") for line in lines), lines
    told = len(lines)
    time.sleep(0.3)
    assert len(lines) == told


def test_a_broken_log_breaks_no_job(spark: SparkSession) -> None:
    def log(line: str) -> None:
        raise OSError("no space left")

    with watched(spark, "find", log, every_s=0.05):
        assert spark.range(0, 6, 1, 6).mapInArrow(slowly, "id long").count() == 6
