"""Rows on their way to Python workers: in batches with a bounded number of rows, or of bytes if the rows are wide."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidInput
from airflow_txlog.jobs.files.frames import (
    BYTES_SETTING,
    NARROW_BYTES,
    NARROW_ROWS,
    ROWS_SETTING,
    collect_narrow,
    of_narrow_rows,
    through,
)
from tests.helpers.jobs import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_SETTINGS = (ROWS_SETTING, BYTES_SETTING)
# One text of the ten is as long as `{size}`.
_ONE_LONG = "SELECT id, repeat('x', IF(id = 7, {size}, 1)) AS text, CAST(NULL AS BINARY) AS data FROM range(10)"


def _sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": pa.array([batch.num_rows], pa.int64())})


def _batches(spark: SparkSession, rows: DataFrame) -> tuple[list[int], list[str]]:
    """Return the number of rows of each batch, and the log."""
    narrow = of_narrow_rows(rows, {field.name: field.dataType for field in rows.schema})
    assert narrow is not None
    logged: list[str] = []

    def any_width() -> DataFrame:
        return rows.mapInArrow(_sizes, "rows long")

    found = collect_narrow(spark, narrow.mapInArrow(_sizes, "rows long"), any_width, "count", logged.append)
    return found.column("rows").to_pylist(), logged


def test_narrow_rows_come_in_batches_of_bounded_numbers(spark: SparkSession) -> None:
    before = [spark.conf.get(name) for name in _SETTINGS]
    rows = spark.sql("SELECT id, CAST(id AS STRING) AS text FROM range(0, 10000, 1, 1)")
    assert _batches(spark, rows) == ([NARROW_ROWS, NARROW_ROWS, 10_000 - 2 * NARROW_ROWS], [])
    assert [spark.conf.get(name) for name in _SETTINGS] == before


@pytest.mark.long("Spark runs many jobs")
def test_rows_with_one_that_is_wide_come_under_sparks_own_bound(spark: SparkSession) -> None:
    before = [spark.conf.get(name) for name in _SETTINGS]
    fits, logged = _batches(spark, spark.sql(_ONE_LONG.format(size=NARROW_BYTES)))
    assert (sum(fits), logged) == (10, [])
    counts, logged = _batches(spark, spark.sql(_ONE_LONG.format(size=NARROW_BYTES + 1)))
    assert sum(counts) == 10
    assert len(logged) == 1
    assert f"{BYTES_SETTING}=64m" in logged[0]
    assert [spark.conf.get(name) for name in _SETTINGS] == before


def test_a_row_is_as_wide_as_all_its_texts(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 'abcd' AS one, 1 AS id, 'efgh' AS two")
    for most_bytes, is_wide in ((8, False), (7, True)):
        narrow = of_narrow_rows(rows, {field.name: field.dataType for field in rows.schema}, most_bytes)
        assert narrow is not None
        logged: list[str] = []
        found = collect_narrow(spark, narrow, lambda: rows, "read", logged.append)
        assert (found.to_pylist(), bool(logged)) == ([{"one": "abcd", "id": 1, "two": "efgh"}], is_wide)


@pytest.mark.parametrize("sql", ["array('a')", "named_struct('a', 'b')", "map('a', 1)", "'a' COLLATE UTF8_LCASE"])
def test_a_width_that_spark_would_have_to_measure_is_left_to_its_bound(spark: SparkSession, sql: str) -> None:
    rows = spark.sql(f"SELECT 1 AS id, {sql} AS c1")
    assert of_narrow_rows(rows, {field.name: field.dataType for field in rows.schema}) is None


@pytest.mark.long("many texts")
def test_very_many_texts_are_left_to_sparks_bound(spark: SparkSession, tmp_path: Path) -> None:
    """Their sum is an expression on which Spark's analyzer runs out of stack."""
    columns = ", ".join(f"CAST(id AS STRING) AS t{number}" for number in range(1000))
    result = run(spark, "write", tmp_path / "t", source={"sql": f"SELECT {columns} FROM range(3)", "views": {}})
    assert result.status == "committed", result.error


def test_another_error_is_the_querys_own(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput):
        _batches(spark, spark.sql("SELECT CAST(concat('x', id) AS INT) AS number, 'a' AS text FROM range(10)"))


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.parametrize("spark_conf", [{}, {BYTES_SETTING: "1m"}, {ROWS_SETTING: "10"}])
def test_a_query_with_a_wide_row_is_written_once(
    spark: SparkSession, tmp_path: Path, spark_conf: dict[str, str]
) -> None:
    """By the setting, a job that has such rows goes the slower way at once."""
    logged: list[str] = []
    source = {"sql": _ONE_LONG.format(size=1_000_000), "views": {}}
    result = run(spark, "write", tmp_path / "t", log=logged.append, spark_conf=spark_conf, source=source)
    assert result.status == "committed", result.error
    rows = Table.open(str(tmp_path / "t")).to_arrow().sort_by("id")
    assert [len(text) for text in rows["text"].to_pylist()] == [1_000_000 if id == 7 else 1 for id in range(10)]
    assert any("a row has more than" in line for line in logged) == (not spark_conf)


def _frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"objects": pa.array([gc.get_freeze_count()], pa.int64())})


def test_the_garbage_collection_after_a_task_passes_over_what_its_worker_has_loaded(spark: SparkSession) -> None:
    here = gc.get_freeze_count()
    frame = through(spark.range(0, 2, 1, 2), _frozen, pa.schema([("objects", pa.int64())]))
    assert min(frame.toArrow().column("objects").to_pylist()) > 10_000
    # Frozen objects may die meanwhile.
    assert gc.get_freeze_count() <= here
