"""A4, A9: a time of a named zone is what Spark makes of it, in conditions and in partition values."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.codecs import timestamp_text
from airflow_txlog.engine import Table
from airflow_txlog.jobs.spark.session import job_settings
from airflow_txlog.jobs.sql.bound import Binder
from airflow_txlog.storage import PLAIN
from tests.helpers.jobs import begin_job, committed, ids, run
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Zone data of different years disagree about the winter of 1995 there: Lisbon was an hour ahead of WET, or was WET.
ZONE, AT = "WET", "1995-01-15 00:00:00"
INSTANT = pa.timestamp("us", tz="UTC")
TIMED = pa.schema([("id", pa.int64()), ("ts", INSTANT)])


@pytest.fixture
def instant(spark: SparkSession) -> int:
    """The instant that Spark makes of AT in ZONE."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    found: int = spark.sql(f"SELECT unix_micros(TIMESTAMP '{AT}')").collect()[0][0]
    spark.conf.set("spark.sql.session.timeZone", before)
    return found


def row(key: int, at: int) -> pa.Table:
    return pa.table([[key], pa.array([at], pa.int64()).cast(INSTANT)], schema=TIMED)


@pytest.mark.spark
def test_a4_a_file_is_not_pruned_by_another_release_of_the_zone_data(
    tmp_path: Path, spark: SparkSession, instant: int
) -> None:
    days = 3 * 86_400_000_000
    files = [row(1, instant), row(2, instant - 1), row(3, instant - days), row(4, instant + days)]
    table = make_table(tmp_path / "t", *files)
    result = committed(run(spark, "delete", table, predicate=f"ts <= '{AT}'", time_zone=ZONE))
    assert (ids(table), result.files["pruned"]) == ([4], 1)

    table = make_table(tmp_path / "u", *files)
    result = committed(run(spark, "delete", table, predicate=f"ts >= '{AT}'", time_zone=ZONE))
    assert (ids(table), result.files["pruned"]) == ([2, 3], 1)
    naive = {"at": dt.datetime(1995, 1, 14)}
    committed(run(spark, "delete", table, predicate="ts > :at", parameters=naive, time_zone=ZONE))
    assert ids(table) == [3]


@pytest.mark.spark
def test_a9_a_partition_value_without_a_zone_is_the_instant_that_spark_makes_of_it(
    tmp_path: Path, spark: SparkSession, instant: int
) -> None:
    table = Table.create(str(tmp_path / "t"), TIMED, ["ts"])
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "t" / "f.parquet")
    tx = table.begin()
    size = (tmp_path / "t" / "f.parquet").stat().st_size
    tx.add(path="f.parquet", size=size, partition_values={"ts": AT})
    tx.commit("WRITE")
    scope = f"ts = TIMESTAMP '{timestamp_text(instant)}Z'"
    update = {"set": {"id": "id + 10"}, "predicate": "id = 2", "partition_predicate": scope}
    committed(run(spark, "update", table, time_zone=ZONE, **update))
    values = {dict(row["partition_values"])["ts"] for row in table.snapshot().files().to_pylist()}
    assert values == {AT, f"{timestamp_text(instant)}Z"}, "what was copied keeps its value, and what is new names UTC"
    committed(run(spark, "delete", table, predicate=scope, time_zone=ZONE))
    assert table.snapshot().num_files == 0


@pytest.mark.spark
def test_a3_a_parameter_is_the_instant_that_was_given_also_in_an_hour_that_a_clock_repeats(
    tmp_path: Path, spark: SparkSession
) -> None:
    given = dt.datetime(2024, 11, 3, 6, 30, tzinfo=dt.UTC)  # New York: 01:30 for the second time
    at = int(given.timestamp()) * 1_000_000
    hour = 3_600_000_000
    table = make_table(tmp_path / "t", row(1, at), row(2, at - hour), row(3, at - hour // 2))
    zone = "America/New_York"
    result = committed(run(spark, "delete", table, predicate="ts = :p", parameters={"p": given}, time_zone=zone))
    assert (ids(table), result.metrics["numDeletedRows"]) == ([2, 3], 1)


@pytest.mark.spark
def test_a3_a_bound_date_or_instant_does_not_go_through_the_zone_of_the_machine(spark: SparkSession) -> None:
    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[attr-defined]
    before = zones.getDefault()
    days = [dt.date(2011, 12, 30), dt.date(1500, 1, 1)]
    moments = [dt.datetime(1850, 1, 1, tzinfo=dt.UTC), dt.datetime(1890, 1, 1, 0, 0, 0, 5, tzinfo=dt.UTC)]
    query = (
        "SELECT CAST(:d AS STRING), CAST(:m AS STRING), array_join(:days, ' '), unix_micros(element_at(:moments, 2))"
    )
    with job_settings(spark, "UTC"):
        zones.setDefault(zones.getTimeZone("Pacific/Apia"))  # where no clock showed 2011-12-30
        try:
            values = {"d": days[0], "m": moments[0], "days": days, "moments": moments}
            context = begin_job(job_spec(operation="truncate", table_uri="/t"), spark, Table.at("/t", PLAIN), print)
            told = tuple(Binder(context, values).frame(query, values).collect()[0])
        finally:
            zones.setDefault(before)
    exact = (moments[1] - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    assert told == ("2011-12-30", "1850-01-01 00:00:00", "2011-12-30 1500-01-01", exact)
