"""The values of parameters as Spark is to bind them, so that each arrives as the value that was given.

Classic PySpark hands dates and timestamps over as `java.sql` types, which go through the zone and the calendars of the
driver's machine: an instant before 1900 moves by the offsets of old clocks, one before 1582 by days, and a day that the
zone left out becomes the next one. `java.time` has them as they are. Over Spark Connect the server writes values into
the text: a timestamp as a time of the session's zone, a date of before 1582 by another calendar. The invariant: a value
that Spark would read as another one is refused.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.spark.session import LOCAL_ONLY, is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SAFE_SINCE = dt.date(1900, 1, 1)


def as_bound(spark: SparkSession, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `SparkSession.sql` takes as `args`; None for no value.

    Raises InvalidJobSpec (argument `parameters.<name>`) for a value that Spark Connect would read as another one.
    """
    if is_classic(spark):
        return {name: _in_java(spark, value) for name, value in values.items()} or None
    bound = {name: _with_type(value) for name, value in values.items()}
    _check_arrived(spark, values, bound)
    return bound or None


# --- classic --------------------------------------------------------------------------------------------------------


def _in_java(spark: SparkSession, value: Any) -> Any:
    if isinstance(value, list):
        return [_in_java(spark, each) for each in value]
    if not isinstance(value, dt.date):
        return value
    java: Any = spark._jvm
    if not isinstance(value, dt.datetime):
        return java.java.time.LocalDate.of(value.year, value.month, value.day)
    if value.tzinfo is None:
        day = java.java.time.LocalDate.of(value.year, value.month, value.day)
        nanoseconds = value.microsecond * 1000
        return day.atTime(value.hour, value.minute, value.second, nanoseconds)
    microseconds = (value - _EPOCH) // dt.timedelta(microseconds=1)
    return java.java.time.Instant.ofEpochSecond(microseconds // 1_000_000, microseconds % 1_000_000 * 1000)


# --- Spark Connect --------------------------------------------------------------------------------------------------


def _with_type(value: Any) -> Any:
    """A time without a zone as TIMESTAMP_NTZ, as which classic Spark binds it; any other value as it is."""
    from pyspark.sql import functions as F  # noqa: PLC0415 - what of it is Connect's is decided when it is imported
    from pyspark.sql.connect.column import Column  # noqa: PLC0415
    from pyspark.sql.connect.expressions import LiteralExpression  # noqa: PLC0415
    from pyspark.sql.types import TimestampNTZType  # noqa: PLC0415

    if isinstance(value, list) and any(_is_wall(each) for each in value):
        return F.array(*(F.lit(_with_type(each)) for each in value))
    return Column(LiteralExpression(value, TimestampNTZType())) if _is_wall(value) else value


def _is_wall(value: Any) -> bool:
    return isinstance(value, dt.datetime) and value.tzinfo is None


def _check_arrived(spark: SparkSession, values: Mapping[str, Any], bound: Mapping[str, Any]) -> None:
    """Asks Spark what became of those values that a text may not hold: one small query, where there are any."""
    asked = [name for name, value in values.items() if any(_may_differ(each) for each in _each(value))]
    if not asked:
        return
    columns = ", ".join(
        f"transform({_list(values[name], name)}, v -> {_number_of(next(iter(_each(values[name]))))})" for name in asked
    )
    row = spark.sql(f"SELECT {columns}", args={name: bound[name] for name in asked}).collect()[0]
    for name, found in zip(asked, row, strict=True):
        if [_number(value) for value in _each(values[name])] != list(found):
            raise InvalidJobSpec(
                f"parameters.{name}: Spark Connect would read it as another time than the one that was given, as it "
                "writes values into the text: clocks of the session's time zone show this time twice, or it is from "
                'before 1582. Take time_zone="UTC", or run the job with a Spark of its own (runner="child"). Nothing '
                "was read.",
                argument=f"parameters.{name}",
                **LOCAL_ONLY,
            )


def _each(value: Any) -> Iterable[Any]:
    return [each for each in value if each is not None] if isinstance(value, list) else [value]


def _list(value: Any, name: str) -> str:
    return f":{name}" if isinstance(value, list) else f"array(:{name})"


def _may_differ(value: Any) -> bool:
    """A date before 1900, and any instant."""
    if not isinstance(value, dt.datetime):
        return isinstance(value, dt.date) and value < _SAFE_SINCE
    return value.tzinfo is not None or value.date() < _SAFE_SINCE


def _number_of(value: Any) -> str:
    if not isinstance(value, dt.datetime):
        return "unix_date(v)"
    if value.tzinfo is not None:
        return "unix_micros(v)"
    return "timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', v)"


def _number(value: dt.date) -> int:
    if not isinstance(value, dt.datetime):
        return (value - _EPOCH.date()).days
    return (value.replace(tzinfo=value.tzinfo or dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)
