"""Computations of dates and moments on Arrow arrays as Spark computes them, for the table in `evaluation`.

They keep the invariant of `computations`. A moment is a timestamp with or without a zone; its date is that of UTC.
Source: Spark 4.2, DateTimeUtils, IntervalUtils; tests/sql/test_known_against_spark.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.sql.computations import FIRST_DAY, LAST_DAY, Value, aligned, check
from airflow_txlog.sql.operand_types import DATE, DAY_US, DAYS, DURATION, INSTANT, INT32, INT64, MONTHS, WALL_TIME

_FIVE_DIGITS = "a year of five digits"

# --- parts ------------------------------------------------------------------------------------------------------------

# Days from 0000-03-01 of a year before all dates to 1970-01-01, and that year; a cycle of 400 years has 146,097 days.
_CYCLES = 15_000
_START = 719_468 + 146_097 * _CYCLES


def date_parts(date: pa.Array) -> dict[str, pa.Array]:
    """Return year, month and day. Arrow's own are wrong beyond the year 32,767."""
    # Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days. No operand is negative.
    add, subtract, times, by = pc.add, pc.subtract, pc.multiply, pc.divide
    days = add(aligned(date, DATE).cast(pa.int32()).cast(pa.int64()), _START)
    cycle = by(days, 146_097)
    of_cycle = subtract(days, times(cycle, 146_097))
    leap = subtract(subtract(by(of_cycle, 36_524), by(of_cycle, 1_460)), by(of_cycle, 146_096))
    year = by(add(of_cycle, leap), 365)
    of_year = subtract(of_cycle, subtract(add(times(year, 365), by(year, 4)), by(year, 100)))
    # Months count from March.
    month = by(add(times(of_year, 5), 2), 153)
    is_next_year = pc.greater_equal(month, 10)
    return {
        "year": add(add(subtract(year, 400 * _CYCLES), times(cycle, 400)), is_next_year.cast(pa.int64())),
        "month": pc.if_else(is_next_year, subtract(month, 9), add(month, 3)),
        "day": add(subtract(of_year, by(add(times(month, 153), 2), 5)), 1),
    }


# Days of the years -9999 to 9999, for which Arrow's calendar is right.
_NEAR_DAYS = 4_371_587, 2_932_896


def part_of_date(name: str) -> Callable[[Value], Value]:
    near: Callable[[Value], Value] = getattr(pc, name)

    def compute(date: Value) -> Value:
        date = aligned(date, DATE)
        ends = pc.min_max(date.cast(INT32))
        first, last = ends["min"].as_py(), ends["max"].as_py()
        is_near = first is None or (-_NEAR_DAYS[0] <= first and last <= _NEAR_DAYS[1])
        return (near(date) if is_near else date_parts(date)[name]).cast(INT32)

    return compute


# Units of date_trunc(), by Spark's names, as Arrow calls them.
_UNITS = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    **dict.fromkeys(("day", "dd"), "day"),
    **{unit: unit for unit in ("quarter", "week", "hour", "minute", "second", "millisecond", "microsecond")},
}
TRUNCATED = frozenset(_UNITS)
"""The units, in lower case, to which date_trunc() is known to truncate."""


def truncated(unit: pa.Scalar, moment: Value) -> Value:
    """Return the start, in UTC, of the unit of time in which a moment lies."""
    wall = _wall_time(moment)
    return pc.floor_temporal(wall, unit=_UNITS[unit.as_py().lower()]).cast(INSTANT)


# Runs of so many letters, and marks between them, that date_format() is known to write.
_WRITTEN = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
PLAIN_FORMAT = re.compile(r"(?!.*(?:y{5}|([MdHms])\1\1))(?:yyyy|MM|dd|HH|mm|ss|[-/:., _])+")
"""The patterns that date_format() is known to write."""
# With a legacy setting, Spark writes the dates before it in another calendar.
_FIRST_GREGORIAN_DAY = -141_427


def formatted(moment: Value, pattern: pa.Scalar) -> Value:
    """Return the time that a clock in UTC shows, as a text."""
    wall = _wall_time(moment)
    check(pc.greater_equal(wall.cast(INT64), _FIRST_GREGORIAN_DAY * DAY_US), "a date before 1582-10-15")
    form = re.sub("|".join(_WRITTEN), lambda found: _WRITTEN[found[0]], pattern.as_py())
    return pc.strftime(pc.floor_temporal(wall, unit="second").cast(pa.timestamp("s")), format=form)


def part_of_time(name: str) -> Callable[[Value], Value]:
    part: Callable[[Value], Value] = getattr(pc, name)
    return lambda moment: part(_wall_time(moment)).cast(INT32)


def _wall_time(moment: Value) -> Value:
    """Return the time that a clock in UTC shows. Raises ForSpark unless its year has four digits."""
    wall = moment if moment.type == WALL_TIME else moment.cast(INSTANT).cast(INT64).cast(WALL_TIME)
    us = wall.cast(INT64)
    check(pc.and_(pc.less(us, (LAST_DAY + 1) * DAY_US), pc.greater_equal(us, FIRST_DAY * DAY_US)), _FIVE_DIGITS)
    return wall


def days_between(end: Value, start: Value) -> Value:
    return pc.subtract_checked(end.cast(INT32), start.cast(INT32))


# --- intervals --------------------------------------------------------------------------------------------------------

_UNITS_OF_INTERVALS = {
    "year": (MONTHS, 12),
    "month": (MONTHS, 1),
    "week": (DAYS, 7 * DAY_US),
    "day": (DAYS, DAY_US),
    "hour": (DURATION, 3_600_000_000),
    "minute": (DURATION, 60_000_000),
    "second": (DURATION, 1_000_000),
    "millisecond": (DURATION, 1_000),
    "microsecond": (DURATION, 1),
}


def interval_of(counts: Sequence[int], units: Sequence[str], factor: int | None = None) -> pa.Array | None:
    """Return an array of one interval, the sum of such numbers of units.

    Returns None for units or a number that Spark refuses, or may refuse. Spark takes a product of days and a `factor`
    for a time, which makes a timestamp of a date.
    """
    if not _UNITS_OF_INTERVALS.keys() >= set(units):
        return None
    kinds, sizes = zip(*(_UNITS_OF_INTERVALS[unit] for unit in units), strict=True)
    if MONTHS in kinds and len(set(kinds)) > 1:
        return None
    kind = DURATION if DURATION in kinds else kinds[0]
    total = sum(count * size for count, size in zip(counts, sizes, strict=True))
    product = total * (1 if factor is None else factor)
    # With `spark.sql.legacy.interval.enabled` Spark multiplies doubles.
    most = 2**31 if kind == MONTHS else 2**63 if factor is None else 2**53
    if max(abs(total), abs(product)) >= most:
        return None
    if kind == MONTHS:
        return pa.array([(product, 0, 0)], MONTHS)
    return pa.array([product], INT64).cast(DURATION).cast(kind if factor is None else DURATION)


def moving(of_numbers: Callable[[Value, Value], Value], sign: int) -> Callable[[Value, Value], Value]:
    """Return + (`sign` 1) or - (-1): `of_numbers`, or a date or a moment moved by days or by an interval."""

    def compute(left: Value, right: Value) -> Value:
        if right.type == MONTHS:
            return _months_later(left, sign * right.as_py().months)
        if pa.types.is_duration(right.type):
            return _later(left, sign * right.cast(DURATION).cast(INT64).as_py())
        if left.type == DATE:
            return of_numbers(left.cast(INT32), right).cast(DATE)
        return of_numbers(left, right)

    return compute


def months_later(date: Value, months: pa.Scalar) -> Value:
    return _months_later(date, months.as_py())


def _later(moment: Value, duration_us: int) -> Value:
    if moment.type == DATE:
        return pc.add_checked(moment.cast(INT32), pa.scalar(duration_us // DAY_US, INT32)).cast(DATE)
    later = pc.add_checked(_wall_time(moment).cast(INT64), duration_us).cast(WALL_TIME)
    return _wall_time(later).cast(moment.type)


def _months_later(moment: Value, months: int) -> Value:
    """Return the same day of another month, or its last day if it has fewer days, at the same time of day."""
    wall = None if moment.type == DATE else _wall_time(moment)
    parts = date_parts(moment if wall is None else wall.cast(DATE))
    month = pc.add(pc.add(pc.multiply(parts["year"], 12), parts["month"]), months - 1)
    check(pc.and_(pc.greater_equal(month, 12), pc.less(month, 120_000)), _FIVE_DIGITS)
    first, next_first = _first_day(month), _first_day(pc.add(month, 1))
    days = pc.subtract(pc.min_element_wise(pc.add(first, parts["day"]), next_first), 1)
    if wall is None:
        return days.cast(INT32).cast(DATE)
    time = pc.subtract(wall.cast(INT64), pc.multiply(wall.cast(DATE).cast(INT32).cast(INT64), DAY_US))
    return pc.add(pc.multiply(days, DAY_US), time).cast(WALL_TIME).cast(moment.type)


def _first_day(month: pa.Array) -> pa.Array:
    """Return days since 1970 of the first day of each month; months count from January of the year 0."""
    # Source: Howard Hinnant, days_from_civil; years begin in March. No operand is negative.
    by, times = pc.divide, pc.multiply
    since_march = pc.subtract(month, 2)
    year = by(since_march, 12)
    of_year = pc.subtract(since_march, times(year, 12))
    leap_days = pc.add(pc.subtract(by(year, 4), by(year, 100)), by(year, 400))
    days = pc.add(pc.add(times(year, 365), leap_days), by(pc.add(times(of_year, 153), 2), 5))
    return pc.subtract(days, 719_468)
