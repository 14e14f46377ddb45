"""Alone in showing how many files a write leaves: not one for each tiny task, not one task for each large partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import committed, error_of, files_on_disk, live_files, run, spark_bag
from tests.helpers.rows import bag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def adaptive(spark: SparkSession) -> Iterator[None]:
    """Spark measures what it shuffled, as users' Spark does."""
    before = str(spark.conf.get("spark.sql.adaptive.enabled"))
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    yield
    spark.conf.set("spark.sql.adaptive.enabled", before)


def partitions_of(table: Table) -> list[str]:
    return [dict(row)["p"] for row in table.snapshot().files().column("partition_values").to_pylist()]


def test_tasks_with_few_rows_leave_no_file_each(tmp_path: Path, spark: SparkSession) -> None:
    source = {"sql": "SELECT id, concat('n', id) AS name FROM range(0, 1000, 1, 64)"}
    result = committed(run(spark, "write", tmp_path / "t", source=source))
    assert result.files["added"] <= 2 * spark.sparkContext.defaultParallelism
    assert result.metrics["numOutputRows"] == 1000


def test_many_tiny_files_are_joined_and_nothing_of_them_is_left(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An estimate that is far too high, as of a join, leaves the tasks as they are: here 17 of them."""
    monkeypatch.setattr("airflow_txlog.jobs.files.frames._tasks_worth", lambda context, rows, target_bytes: None)
    query = "SELECT id, IF(id % 7 = 0, NULL, concat('n', id)) AS name FROM range(0, 1000, 1, {})"
    lines: list[str] = []
    result = committed(run(spark, "write", tmp_path / "t", source={"sql": query.format(17)}, log=lines.append))
    table = Table.open(str(tmp_path / "t"))
    assert "17 tiny files joined into 1" in lines
    assert (result.files["added"], files_on_disk(table)) == (1, live_files(table))
    assert bag(table) == spark_bag(spark.sql(query.format(1)))
    # So few files fewer are not worth a second job.
    assert committed(run(spark, "write", table, source={"sql": query.format(16)})).files["added"] == 16


def test_tiny_files_are_joined_within_their_partition(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_txlog.jobs.files.frames._brought_to_tasks", lambda context, rows, layout: rows)
    query = "SELECT id, IF(id % 5 = 4, NULL, concat('a/=', id % 5)) AS p FROM range(0, 1000, 1, 4)"
    created = {"partition_by": ["p"], "properties": {"delta.columnMapping.mode": "name"}}
    limits = Limits(joined_files_fewer=4)
    result = committed(run(spark, "write", tmp_path / "t", source={"sql": query}, **created, limits=limits))
    table = Table.open(str(tmp_path / "t"))
    assert (result.files["added"], len(files_on_disk(table))) == (5, 5)
    assert bag(table) == spark_bag(spark.sql(query))


@pytest.mark.long("Spark runs many jobs")
def test_a_large_partition_is_spread_over_tasks_and_small_ones_share_one(tmp_path: Path, spark: SparkSession) -> None:
    """Of 200,000 rows 190,000 are of one partition. Sizes are Spark's own measure of what it shuffled."""
    columns = "IF(id % 20 > 0, 'hot', concat('cold', id % 1000)) AS p, id, uuid() AS a, uuid() AS b"
    source = {"sql": f"SELECT {columns} FROM range(0, 200000, 1, 16)"}
    created = {"partition_by": ["p"], "properties": {"delta.targetFileSize": "2mb"}}
    before = spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")
    result = committed(run(spark, "write", tmp_path / "t", source=source, **created))
    assert spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes") == before
    counts = Counter(partitions_of(Table.open(str(tmp_path / "t"))))
    assert counts.pop("hot") >= 4
    # Few of the small ones lie in a bucket that was cut because of the large one.
    assert len(counts) == 50
    assert sum(counts.values()) <= 75
    assert result.metrics["numOutputRows"] == 200_000


def test_the_target_size_of_the_table_decides(tmp_path: Path, spark: SparkSession) -> None:
    source = {"sql": "SELECT id, uuid() AS a, uuid() AS b FROM range(0, 100000, 1, 2)"}
    properties = {"delta.targetFileSize": "1mb"}
    committed(run(spark, "write", tmp_path / "t", source=source, properties=properties))
    table = Table.open(str(tmp_path / "t"))
    sizes: list[Any] = sorted(table.snapshot().files().column("size").to_pylist())
    assert len(sizes) >= 4
    assert max(sizes) < 2_500_000
    created = run(spark, "write", tmp_path / "u", source=source, properties={"delta.targetFileSize": "large"})
    assert error_of(created)["type"] == "InvalidProperty"
