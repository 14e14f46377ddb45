"""A long job says in the task log how far it is."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file, read_batches
from airflow_txlog.jobs.files.frames import over_bins
from airflow_txlog.jobs.spark import progress
from airflow_txlog.jobs.spark.progress import _counts_folder, counted, watched
from airflow_txlog.jobs.spark.shipping import ship
from airflow_txlog.storage import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WAIT_S = 120
SCHEMA = pa.schema([("id", pa.int64())])


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
def test_a_folder_of_counts_that_cannot_be_made_breaks_no_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> str:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(progress, "temporary_folder", full)
    with watched(spark, "find", print, every_s=0.05):
        assert counted(spark, iter) is iter
        assert spark.range(10).count() == 10


@pytest.mark.long("it starts a Spark of its own")
def test_rows_are_shown_while_a_task_makes_them(spark: SparkSession, tmp_path: Path) -> None:
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if line.endswith(" rows in Spark so far"):
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
    shown = [line for line in lines if line.endswith(" rows in Spark so far")]
    assert shown[0].startswith("find: 0 of 2 tasks done, "), lines


@dataclass(frozen=True)
class ReadAsItIsLogged:
    """A task that reads a file of 3,000 rows, and goes on after each batch once the log has told of its rows."""

    file: DataFile
    shown: Path
    bins: Sequence[int] = (0,)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        end_s = time.monotonic() + WAIT_S
        with open_data_file(self.file) as parquet:
            for start, batch in read_batches(self.file, parquet, list(SCHEMA)):
                while int(self.shown.read_text() or 0) < start + batch.num_rows and time.monotonic() < end_s:
                    time.sleep(0.02)
                yield batch


def test_rows_that_a_task_reads_by_itself_are_shown_while_it_reads(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    pq.write_table(pa.table({"id": range(3_000)}, SCHEMA), tmp_path / "a.parquet", row_group_size=1_000)
    ship(spark)
    lines: list[str] = []
    shown = tmp_path / "shown"
    shown.write_text("0")

    def log(line: str) -> None:
        lines.append(line)
        if found := re.search(r"([\d,]+) rows read so far", line):
            shown.write_text(found[1].replace(",", ""))

    task: Any = ReadAsItIsLogged(DataFile(store=LocalStore(str(tmp_path)), path="a.parquet"), shown)
    with watched(spark, "find", log, every_s=0.1):
        assert over_bins(spark, task, SCHEMA).count() == 3_000
    told = dict.fromkeys(line.removeprefix("find: 0 of 1 tasks done, ") for line in lines if " rows " in line)
    assert list(told) == ["1,000 rows read so far", "2,000 rows read so far", "3,000 rows read so far"]
    assert not os.path.exists(_counts_folder())
