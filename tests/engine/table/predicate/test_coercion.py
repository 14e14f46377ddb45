"""What a constant means beside a column of each type (soundness A4)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.table.columns.partitions import parse_partition_values
from airflow_txlog.engine.table.schema.types import Primitive
from airflow_txlog.errors import InvalidPredicate
from tests.engine.table.predicate.tables import is_decided, read, told

UTC = dt.UTC
EXACT = [
    # integers: any exact number, rounded with its operator
    ("i > 5.5", "i > 5"),
    ("i >= 5.5", "i > 5"),
    ("i < 5.5", "i <= 5"),
    ("i <= 5.5", "i <= 5"),
    ("i < -5.5", "i <= -6"),
    ("i = 5.0", "i = 5"),
    ("i = 5.5", "FALSE"),
    ("i != 5.5", "i IS NOT NULL"),
    ("tiny < 1000", "tiny IS NOT NULL"),
    ("tiny > 1000", "FALSE"),
    ("tiny = 128", "FALSE"),
    ("tiny <= 127", "tiny <= 127"),
    ("NOT tiny = 128", "tiny IS NOT NULL"),
    ("i = 5D", "i = 5"),
    ("i > 5.5D", "i > 5"),
    ("i < double('NaN')", "i IS NOT NULL"),
    ("i > double('NaN')", "FALSE"),
    ("i < double('-Infinity')", "FALSE"),
    ("small = 5F", "small = 5"),
    ("i = '5'", "i = 5"),
    ("i = '05'", "i = 5"),
    ("id = 9223372036854775807", "id = 9223372036854775807"),
    ("id = -9223372036854775808", "id = -9223372036854775808"),
    ("i IN (1, 2.5, 300)", "i IN (1, 300)"),
    ("i IN ('1', '2')", "i IN (1, 2)"),
    # decimals
    ("price > 1.555", "price > 1.55"),
    ("price = 5", "price = 5.00"),
    ("price = 1.555", "FALSE"),
    ("price < 100000", "price IS NOT NULL"),
    ("big = 0.1", "big = 0.100000000000000000"),
    # floats: both sides as doubles
    ("x > 5", "x > 5.0"),
    ("x = 0.1", "x = 0.1"),
    ("x = '0.1'", "x = 0.1"),
    ("x = 'NaN'", "x = nan"),
    ("f > 0.1", "f > 0.1"),
    ("f = 0.1F", "f = 0.10000000149011612"),
    ("f = 5", "f = 5.0"),
    ("f = '0.5'", "f = 0.5"),
    # dates
    ("day = '2024-01-01'", "day = '2024-01-01'"),
    ("day = '2024-1-1'", "day = '2024-01-01'"),
    ("day = '2024'", "day = '2024-01-01'"),
    ("day = '2024-03'", "day = '2024-03-01'"),
    ("day = '2024-01-01 05:00:00'", "day = '2024-01-01'"),
    ("day = DATE '2024-02-29'", "day = '2024-02-29'"),
    ("day IN ('2024-01-01', '2024-01-02')", "day IN ('2024-01-01', '2024-01-02')"),
    # timestamps
    ("at = '2024-01-01 00:00:00'", "at = '2024-01-01T00:00:00Z'"),
    ("at = TIMESTAMP '2024-01-01 00:00:00+01:00'", "at = '2023-12-31T23:00:00Z'"),
    ("at > DATE '2024-01-01'", "at > '2024-01-01T00:00:00Z'"),
    ("wall = TIMESTAMP_NTZ '2024-01-01 01:02:03.5'", "wall = '2024-01-01T01:02:03.5'"),
    ("wall >= '2024-01-01'", "wall >= '2024-01-01T00:00:00'"),
    ("wall >= DATE '2024-01-01'", "wall >= '2024-01-01T00:00:00'"),
    ("flag < TRUE", "flag < TRUE"),
]


@pytest.mark.parametrize(("sql", "tree"), EXACT, ids=[sql for sql, _ in EXACT])
def test_the_constant_is_moved_into_the_columns_type(sql: str, tree: str) -> None:
    assert told(sql) == tree


CAST_OR_DOUBTFUL = [
    # Spark casts the column
    "name = 5",
    "name > 5",
    "name = TRUE",
    "name = DATE '2024-01-01'",
    "day < TIMESTAMP '2024-01-01 00:00:00'",
    "wall < TIMESTAMP '2024-01-01 00:00:00'",
    "at < TIMESTAMP_NTZ '2024-01-01 00:00:00'",
    "id = 9007199254740992D",
    "i = 1F",
    "price = 1.5D",
    "price = '1.5'",
    "big = 123456789012345678901",
    "raw = 'a'",
    "flag = 1",
    "flag = 'true'",
    # Spark's analysis answers TRUE for null too
    "i < 100000000000000000000",
    "id < 9223372036854775808",
    # texts that Spark reads otherwise, or not at all
    "i = '5.5'",
    "i = ' 5'",
    "i = '3000000000'",
    "i = 'five'",
    "day = '2024-02-30'",
    "day = '20240101'",
    "day = ' 2024-01-01'",
    "day = 'today'",
    "at = '2024-01-01 25:00:00'",
    "at = '12:00'",
    "wall = '2024-01-01 00:00:00Z'",
    "f = 16777217",
    "f = '0.1'",
    "f = 1e39F",
    # one common type for a whole list
    "i IN (1, '2')",
    "i IN ('01')",
    "id IN (1, 1.5D)",
    "day IN ('2024-1-1')",
    "at IN ('2024-01-01')",
    "name IN ('a', 1)",
    "x IN (0.0D, 1.0D)",
    "x IN (double('NaN'))",
    "big IN (1, 123456789012345678901)",
]


@pytest.mark.parametrize("sql", CAST_OR_DOUBTFUL)
def test_a4_a_column_that_spark_would_cast_is_unknown(sql: str) -> None:
    assert not is_decided(read(sql)), told(sql)


ZONES = [
    ("+05:30", "1900-01-01 00:00:00", "1899-12-31T18:30:00Z"),
    ("UTC-8", "2024-01-01", "2024-01-01T08:00:00Z"),
    ("UTC", "0001-01-01 00:00:00", "0001-01-01T00:00:00Z"),
]


@pytest.mark.parametrize(("zone", "text", "instant"), ZONES)
def test_a_text_without_a_zone_is_a_time_of_the_session(zone: str, text: str, instant: str) -> None:
    assert told(f"at < '{text}'", time_zone=zone) == f"at < '{instant}'"
    assert told("at < :t", time_zone=zone, parameters={"t": text}) == f"at < '{instant}'"


BOUND: list[tuple[str, Any, str]] = [
    ("name = :p", 'O\'Brien \\ "x"', "name = 'O'Brien \\ \"x\"'"),
    ("day = :p", "2024-01-01", "day = '2024-01-01'"),
    ("day = :p", dt.date(2024, 1, 1), "day = '2024-01-01'"),
    ("day = :p", dt.date(1, 1, 1), "day = '0001-01-01'"),
    ("i = :p", 5, "i = 5"),
    ("i = :p", "5", "i = 5"),
    ("id = :p", 2**40, "id = 1099511627776"),
    ("x = :p", 1.5, "x = 1.5"),
    ("x = :p", float("nan"), "x = nan"),
    ("price = :p", Decimal("1.50"), "price = 1.50"),
    ("price > :p", Decimal("1E+2"), "price > 100.00"),
    ("flag = :p", True, "flag = TRUE"),
    ("flag OR :p", True, "TRUE"),
    ("i = :p", None, "FALSE"),
    ("i <=> :p", None, "i IS NULL"),
    ("at = :p", dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), "at = '2024-01-01T00:00:00Z'"),
    ("day = CAST(:p AS DATE)", "2024-01-01", "day = '2024-01-01'"),
    ("i IN (:p, 7)", 5, "i IN (5, 7)"),
    ("name LIKE :p", "ab%", "name LIKE 'ab%'"),
    ("i = : p", 5, "i = 5"),
]


@pytest.mark.parametrize(("sql", "value", "tree"), BOUND, ids=[f"{sql} {value!r}" for sql, value, _ in BOUND])
def test_parameters_are_bound_typed(sql: str, value: Any, tree: str) -> None:
    assert told(sql, parameters={"p": value}) == tree


@pytest.mark.parametrize("value", [dt.datetime(2024, 1, 1), [1, 2], {"a": 1}])
def test_parameters_that_only_spark_can_read_are_unknown(value: Any) -> None:
    # Spark reads a datetime without a zone by the clock of the driver's process.
    assert not is_decided(read("wall = :p OR at = :p OR i = :p", parameters={"p": value}))


def test_a_parameter_without_a_value_or_a_value_without_a_parameter_is_an_error() -> None:
    with pytest.raises(InvalidPredicate, match=":day"):
        read("day = :day", parameters={"dya": "2024-01-01"})
    with pytest.raises(InvalidPredicate, match=":country"):
        read("day = :day", parameters={"day": "2024-01-01", "country": "de"})
    with pytest.raises(InvalidPredicate, match=":day"):
        read("day = :day")
    with pytest.raises(InvalidPredicate, match=":p of"):
        read("day = :p", parameters={"p": {1}})
    # Names are told apart by case, as Spark does.
    with pytest.raises(InvalidPredicate, match=":Day"):
        read("day = :Day", parameters={"day": "2024-01-01"})


def test_a_parameter_in_a_string_or_a_comment_is_none() -> None:
    assert told("name = ':p' -- :q") == "name = ':p'"


AT = "1995-01-15 00:00:00"
BEFORE, AFTER = "at >= '1995-01-14T00:00:00Z'", "at <= '1995-01-16T00:00:00Z'"
BOUNDS: list[tuple[str, list[str]]] = [
    ("at >= '1995-01-15 00:00:00'", [BEFORE]),
    ("'1995-01-15' > at", [AFTER]),
    ("NOT at >= '1995-01-15'", [AFTER]),
    ("at = TIMESTAMP '1995-01-15 00:00:00'", [BEFORE, AFTER]),
    ("at <=> DATE '1995-01-15'", [BEFORE, AFTER]),
    ("at < CAST(:text AS TIMESTAMP)", [AFTER]),
    ("at BETWEEN :day AND :text", [BEFORE, AFTER]),
    ("at IN (TIMESTAMP '1995-01-15 12:00:00Z', TIMESTAMP '1995-01-15')", [BEFORE, "at <= '1995-01-16T12:00:00Z'"]),
]
UNKNOWN = ["at != '1995-01-15'", "at NOT IN (:day)", "NOT at <=> :day"]
PARAMETERS = {"text": AT, "day": dt.date(1995, 1, 15), "moment": dt.datetime(1995, 1, 15, tzinfo=dt.UTC)}


def given(sql: str) -> dict[str, Any]:
    return {name: value for name, value in PARAMETERS.items() if f":{name}" in sql}


@pytest.mark.parametrize(("sql", "bounds"), BOUNDS)
@pytest.mark.parametrize("zone", ["WET", "EST", "Europe/Berlin", "Etc/GMT+5"])
def test_a_time_of_a_named_zone_is_known_to_within_a_day(zone: str, sql: str, bounds: list[str]) -> None:
    text = told(sql, time_zone=zone, parameters=given(sql))
    assert [part for part in text.split(" AND ") if not part.startswith("<")] == bounds
    assert not is_decided(read(sql, time_zone=zone, parameters=given(sql)))


@pytest.mark.parametrize("sql", UNKNOWN)
def test_what_differs_from_a_time_of_a_named_zone_is_unknown(sql: str) -> None:
    assert told(sql, time_zone="WET", parameters=given(sql)).startswith("<a time of a named zone")


def test_a_time_with_its_offset_is_known_in_every_zone() -> None:
    assert told("at < '1995-01-15 00:00:00+01:00'", time_zone="WET") == "at < '1995-01-14T23:00:00Z'"
    assert told("at < :moment", time_zone="WET", parameters=given(":moment")) == "at < '1995-01-15T00:00:00Z'"
    assert told("wall < '1995-01-15'", time_zone="WET") == "wall < '1995-01-15T00:00:00'"


def test_a_partition_value_without_a_zone_is_converted_by_what_the_caller_brings() -> None:
    asked: list[int] = []

    def instants(walls: Any) -> list[int | None]:
        asked.extend(walls)
        return [None if wall == 0 else wall + 7 for wall in walls]

    texts = pa.array(["1970-01-01 00:00:00.000005", "1970-01-01 00:00:00", None, "1970-01-01T00:00:00.000001Z", "no"])
    found = parse_partition_values(texts, Primitive.TIMESTAMP, time_zone="WET", instants=instants)
    assert found.values.cast(pa.int64()).to_pylist() == [12, None, None, 1, None]
    assert found.known.to_pylist() == [True, False, True, True, False]
    assert sorted(asked) == [0, 5]
    alone = parse_partition_values(texts, Primitive.TIMESTAMP, time_zone="WET")
    assert alone.known.to_pylist() == [False, False, True, True, False]
    fixed = parse_partition_values(texts, Primitive.TIMESTAMP, time_zone="+00:00", instants=instants)
    assert fixed.values.cast(pa.int64()).to_pylist() == [5, 0, None, 1, None]
