"""A4: the rules of a named zone are Spark's alone; the engine knows of a time in it no more than the day around it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.table.columns.partitions import parse_partition_values
from airflow_txlog.engine.table.schema.types import Primitive
from tests.engine.table.predicate.tables import is_decided, read, told

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
