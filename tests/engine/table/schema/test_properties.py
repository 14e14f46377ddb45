"""Typed table properties: defaults, intervals, refusals."""

from __future__ import annotations

import pytest

from airflow_txlog.engine.table.schema.properties import DAY_MS, HOUR_MS, TableProperties, parse_interval_ms
from airflow_txlog.engine.table.schema.types import path_text
from airflow_txlog.errors import InvalidProperty


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval 7 days", 7 * DAY_MS),
        ("INTERVAL 1 week", 7 * DAY_MS),
        ("12 hours", 12 * HOUR_MS),
        ("interval 1 day 12 hours", 36 * HOUR_MS),
        ("interval 0 seconds", 0),
        ("interval 250 milliseconds", 250),
    ],
)
def test_an_interval_reads_as_milliseconds(text: str, expected: int) -> None:
    assert parse_interval_ms(text) == expected


@pytest.mark.parametrize(
    "text", ["", "interval", "7", "interval 1 month", "interval 1 year", "soon", "7 days and more"]
)
def test_an_interval_without_a_fixed_length_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_interval_ms(text)


def test_defaults_are_the_protocols() -> None:
    properties = TableProperties({}, "memory://t")
    assert properties.isolation_level == "Serializable"
    assert properties.checkpoint_interval == 10
    assert properties.deleted_file_retention_ms == 7 * DAY_MS
    assert properties.num_indexed_columns == 32
    assert properties.set_transaction_retention_ms is None
    assert properties.stats_columns is None
    assert not properties.append_only


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta.isolationLevel", "SnapshotIsolation"),
        ("delta.checkpointInterval", "0"),
        ("delta.appendOnly", "yes"),
        ("delta.deletedFileRetentionDuration", "interval 1 month"),
        ("delta.dataSkippingNumIndexedCols", "-2"),
    ],
)
def test_a_value_that_cannot_be_read_names_the_property(name: str, value: str) -> None:
    with pytest.raises(InvalidProperty) as caught:
        TableProperties({name: value}, "memory://t").validate()
    assert caught.value.name == name
    assert caught.value.value == value
    assert name in str(caught.value)


def test_a_value_that_nothing_uses_is_not_read() -> None:
    unused = {"delta.randomPrefixLength": "long", "delta.inCommitTimestampEnablementVersion": "soon"}
    TableProperties(unused, "memory://t").validate()
    with pytest.raises(InvalidProperty):
        TableProperties({**unused, "delta.randomizeFilePrefixes": "true"}, "memory://t").validate()


STATS_COLUMNS = "delta.dataSkippingStatsColumns"


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("`a,b`, `c.d`.e ,`f``g`", [("a,b",), ("c.d", "e"), ("f`g",)]),
        ("s.x,order id,", [("s", "x"), ("order id",)]),
        ("", []),
    ],
)
def test_stats_columns_are_paths_as_spark_reads_them(text: str, paths: list[tuple[str, ...]]) -> None:
    assert TableProperties({STATS_COLUMNS: text}, "t").stats_columns == paths
    again = ",".join(map(path_text, paths))
    assert TableProperties({STATS_COLUMNS: again}, "t").stats_columns == paths


@pytest.mark.parametrize("text", ["`a", "a`", "a..b", "`a`b", "a,``"])
def test_stats_columns_that_spark_cannot_read_are_refused(text: str) -> None:
    with pytest.raises(InvalidProperty):
        TableProperties({STATS_COLUMNS: text}, "t").validate()


def test_stats_columns_are_split_and_unquoted() -> None:
    assert TableProperties({"delta.dataSkippingStatsColumns": "a, `b`"}, "t").stats_columns == [("a",), ("b",)]
