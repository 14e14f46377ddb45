"""The current time of a job, and the instants at which clocks of a time zone show given times: both by Spark.

A job in UTC needs no Spark for the first.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.parameters import decode_parameter, encode_parameter
from airflow_txlog.jobs.spark.errors import collect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The parameters by which a text names the instant, the day, and what the wall clock shows.
NOW = "_txlog_now"
TODAY = "_txlog_today"
WALL = "_txlog_wall"


class CurrentTime:
    """The current time of a job: one moment for all its texts, attempts and tries.

    Read (`read`, in the job's time zone) when it is first asked for, or taken from `saved` of an earlier try.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]], saved: Mapping[str, Any] | None = None) -> None:
        self._read = read
        self._values: Mapping[str, Any] | None = {
            name: decode_parameter(value) for name, value in (saved or {}).items()
        } or None

    def values(self) -> Mapping[str, Any]:
        """By NOW the instant, by TODAY the day, by WALL the text of the wall clock."""
        if self._values is None:
            self._values = self._read()
        return self._values

    @property
    def saved(self) -> dict[str, Any]:
        """The moment for another try of the job, JSON-plain; empty where nothing has asked for it."""
        return {name: encode_parameter(value) for name, value in (self._values or {}).items()}


def now_of(spark: SparkSession) -> dict[str, Any]:
    """Return the current time in the session's zone, as `CurrentTime.values` has it."""
    row = spark.sql(
        "SELECT unix_micros(current_timestamp()), unix_date(current_date()), CAST(localtimestamp() AS STRING)"
    ).collect()[0]
    instant = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=row[0])
    return {NOW: instant, TODAY: dt.date(1970, 1, 1) + dt.timedelta(days=row[1]), WALL: row[2]}


def now_in_utc() -> dict[str, Any]:
    """Return the same in UTC, by this process's clock."""
    now = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=SYSTEM_CLOCK.now_ms())
    wall = now.replace(tzinfo=None).isoformat(" ")
    return {NOW: now, TODAY: now.date(), WALL: wall.rstrip("0") if "." in wall else wall}


def instants_of(spark: SparkSession, walls: Sequence[int]) -> list[int | None]:
    """The instants at which the clocks of the session's zone show these times, all in microseconds since 1970.

    By Spark, whose zone data decides what every query of the job makes of such a time.
    """
    times = pa.table({"wall": pa.array(walls, pa.int64()).cast(pa.timestamp("us"))})
    frame = spark.createDataFrame(times, "wall TIMESTAMP_NTZ")
    found = collect(frame.selectExpr("wall", "unix_micros(CAST(wall AS TIMESTAMP)) AS at"), "convert times of its zone")
    instant = dict(zip(found.column("wall").cast(pa.int64()).to_pylist(), found.column("at").to_pylist(), strict=True))
    return [instant.get(wall) for wall in walls]
