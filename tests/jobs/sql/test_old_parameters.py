"""Alone in showing that a parameter means its own moment: before the Gregorian calendar, and without a zone.

`java.sql`, through which PySpark binds parameters, would move old ones by days.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.helpers.jobs import committed, ids, run
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("day", pa.date32())])
MOMENTS = [dt.datetime(year, 1, 1, microsecond=1, tzinfo=dt.UTC) for year in (1, 1500, 1900, 9999)]


def test_a8_an_old_parameter_means_its_own_day(tmp_path: Path, spark: SparkSession) -> None:
    rows = pa.table([range(4), MOMENTS, [moment.date() for moment in MOMENTS]], schema=SCHEMA)
    table = make_table(tmp_path / "t", rows)
    for predicate, left in (("ts = :at", [0, 2, 3]), ("day = :at", [2, 3]), ("ts > :at", [])):
        at = dt.date(1, 1, 1) if "day" in predicate else MOMENTS[1]
        committed(run(spark, "delete", table, predicate=predicate, parameters={"at": at}))
        assert ids(table) == left, predicate


def test_a3_a_moment_without_a_zone_is_one_of_the_jobs_zone_for_spark_and_for_pruning(
    tmp_path: Path, spark: SparkSession
) -> None:
    naive = dt.datetime(2024, 6, 1)
    instants = [dt.datetime(2024, 6, 1, hour, tzinfo=dt.UTC) for hour in (0, 4, 8)]
    schema = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("wall", pa.timestamp("us"))])
    files = [pa.table([[n], [at], [at.replace(tzinfo=None)]], schema=schema) for n, at in enumerate(instants)]
    table = make_table(tmp_path / "t", *files)
    zone = "America/New_York"
    result = committed(run(spark, "delete", table, predicate="ts = :at", parameters={"at": naive}, time_zone=zone))
    assert ids(table) == [0, 2], "midnight in New York is four o'clock in UTC"
    assert result.metrics["numDeletedRows"] == 1
    committed(run(spark, "delete", table, predicate="wall = :at", parameters={"at": naive}, time_zone=zone))
    assert ids(table) == [2]
