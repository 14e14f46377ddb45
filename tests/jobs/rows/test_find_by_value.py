"""Alone in showing that a condition on one column of few values is put to Spark once for each value, and that the rows
found are those that Spark finds row by row."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.storage.limits import USUAL, Limits
from tests.helpers.jobs import committed, error_of, run
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 0, 7, None]),
    "whole": (pa.int64(), [-(2**63), 0, 7, 2**62, None]),
    "text": (pa.string(), ["", "a", "A", "a ", "é", "it's", None]),
    "flag": (pa.bool_(), [True, False, None]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31), None]),
    "at": (pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(1969, 1, 1), None]),
    "local": (pa.timestamp("us"), [dt.datetime(2024, 1, 1), dt.datetime(1969, 1, 1), None]),
    "p": (pa.string(), ["x", "y", None]),
}
BY_VALUE = [
    "reverse(reverse(upper(text))) = 'A'",
    "nvl2(text, text, 'a') <= 'a '",
    "octet_length(t.text) = 0 OR t.text IS NULL",
    "sign(tiny) * 2 >= 0",
    "isnull(whole)",
    "pmod(whole, 7) = 0",
    "NOT isnull(flag)",
    "flag IS NOT TRUE",
    "weekofyear(day) BETWEEN 2 AND 60",
    "timestampadd(HOUR, 1, at) > TIMESTAMP'2024-01-01 00:30:00Z'",
    "date_format(local, 'yyyy') = '1969'",
    "reverse(reverse(upper(p))) IN ('X', :p)",
    "array_max(array(tiny, -tiny)) > 200",
]
ROW_BY_ROW = ["reverse(reverse(upper(text))) = 'A' OR n > 3", "sqrt(x) > 1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in two files of each partition, some of whose rows a deletion vector has deleted."""
    folder = tmp_path_factory.mktemp("by-value") / "t"
    count = 40
    columns = {
        name: pa.array([values[(row * step) % len(values)] for row in range(count)], kind)
        for step, (name, (kind, values)) in enumerate(KINDS.items(), 1)
    }
    rows = pa.table({"n": pa.array(range(count), pa.int64()), "x": [float(row) for row in range(count)], **columns})
    properties = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    table = make_table(folder, rows.slice(0, 25), partition_by=["p"], properties=properties)
    append(table, rows.slice(25))
    committed(run(None, "delete", table, predicate="n IN (3, 30)"))
    return folder


@pytest.fixture
def lines() -> list[str]:
    return []


def updated(
    spark: SparkSession, made: Path, folder: Path, condition: str, lines: list[str], limits: Limits = USUAL
) -> Any:
    table = Table.open(str(shutil.copytree(made, folder)))
    parameters = {"p": "Y"} if ":p" in condition else {}
    given = {"predicate": condition, "set": {"x": "-1.0"}, "parameters": parameters}
    run(spark, "update", table, **given, log=lines.append, limits=limits)
    return bag(table.to_arrow())


_MORE = pytest.mark.long("the types of make test's conditions are enough there")


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.parametrize(
    "condition", [*BY_VALUE[:4], *(pytest.param(each, marks=_MORE) for each in BY_VALUE[4:]), *ROW_BY_ROW]
)
def test_a_condition_on_one_column_is_evaluated_for_each_of_its_values(
    made: Path, tmp_path: Path, spark: SparkSession, condition: str, lines: list[str]
) -> None:
    row_by_row = updated(spark, made, tmp_path / "a", condition, lines)
    assert not any("for each of" in line for line in lines)
    assert updated(spark, made, tmp_path / "b", condition, lines, Limits(many_rows=1)) == row_by_row
    assert any("the predicate was evaluated for each of" in line for line in lines) == (condition in BY_VALUE)


@pytest.mark.parametrize("limit", ["distinct_values", "distinct_value_bytes"])
def test_many_values_are_put_to_spark_row_by_row(
    made: Path, tmp_path: Path, spark: SparkSession, limit: str, lines: list[str]
) -> None:
    limits = Limits(many_rows=1)
    by_value = updated(spark, made, tmp_path / "a", BY_VALUE[0], lines, limits)
    assert any("for each of" in line for line in lines)
    lines.clear()
    assert updated(spark, made, tmp_path / "b", BY_VALUE[0], lines, replace(limits, **{limit: 2})) == by_value
    assert not any("for each of" in line for line in lines)


def test_a_value_for_which_the_condition_fails_is_the_same_error(
    made: Path, tmp_path: Path, spark: SparkSession
) -> None:
    table = Table.open(str(shutil.copytree(made, tmp_path / "t")))
    errors = []
    for limits in (USUAL, Limits(many_rows=1)):
        errors.append(error_of(run(spark, "delete", table, predicate="1 / tiny > 0", limits=limits)))
    assert errors[0] == errors[1]
    assert errors[0]["type"] == "InvalidInput"
    # What a plain part of the condition leaves out is evaluated in neither way.
    committed(run(spark, "delete", table, predicate="tiny = 7 AND 1 / tiny > 0"))
