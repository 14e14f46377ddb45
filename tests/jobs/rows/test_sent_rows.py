"""Few rows are read by the job's process and sent to Spark: the same of them are found as by Spark's tasks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.jobs.files import frames
from airflow_txlog.storage.limits import USUAL, Limits
from tests.helpers.depth import in_long
from tests.helpers.jobs import committed, error_of, ids, random_rows, run
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BY_TASKS = Limits(sent_bytes=0)
CONDITIONS = [
    "isnan(f) OR f * 2 < 0 OR cast(f AS string) = '-0.0'",
    "length(s) = 1 OR s LIKE '%Brien'",
    "dec * 2 = 1.00",
    "NOT b OR i IS NOT DISTINCT FROM NULL",
    # These types travel as they did.
    "year(ts) = 2024 OR hour(ntz) = 12",
    "n.x = 1 OR array_contains(a, 9)",
    *in_long(
        "each runs two jobs of Spark",
        "pmod(i, 3) = 1",
        "pmod(l, 7) = 0",
        "year(d) < 2000",
        "coalesce(s, 'none') = 'none' AND coalesce(d, DATE '2024-01-01') >= DATE '2024-01-01'",
    ),
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_rows_that_are_sent_to_spark_satisfy_what_rows_of_its_tasks_do(
    tmp_path: Path, spark: SparkSession, condition: str
) -> None:
    rows = [random_rows(random.Random(seed), 40) for seed in range(2)]
    left = []
    by_spark = f"({condition}) OR pmod(id, 1000) < 0"
    for limits in (USUAL, BY_TASKS):
        table = make_table(tmp_path / f"t{len(left)}", *(_numbered(each, n) for n, each in enumerate(rows)))
        committed(run(spark, "delete", table, predicate=by_spark, limits=limits))
        left.append(ids(table))
    assert left[0] == left[1]
    assert 0 < len(left[0]) < 80, "some go and some stay"


def _numbered(rows: pa.Table, part: int) -> pa.Table:
    return rows.add_column(0, "id", pa.array(range(part * len(rows), (part + 1) * len(rows)), pa.int64()))


def test_no_task_of_spark_reads_few_rows_and_its_tasks_read_more(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": pa.array(range(100), pa.int64())}))

    def refused(*_: object) -> None:
        raise AssertionError("a task of Spark's")

    monkeypatch.setattr(frames, "over_bins", refused)
    committed(run(spark, "delete", table, predicate="pmod(id, 7) = 3"))
    assert ids(table) == [number for number in range(100) if number % 7 != 3]
    # Decoded they are more than their file.
    failed = error_of(run(spark, "delete", table, predicate="pmod(id, 7) = 2", limits=Limits(sent_bytes=500)))
    assert "AssertionError" in failed["message"]


def test_a_value_that_fails_a_cast_is_the_same_error_either_way(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": pa.array([1, 2], pa.int64()), "s": ["1", "secret"]}))
    errors = [
        error_of(run(spark, "delete", table, predicate="CAST(s AS INT) = 1", limits=limits))
        for limits in (USUAL, BY_TASKS)
    ]
    assert errors[0] == errors[1]
    assert errors[0]["type"] == "InvalidInput"
    assert "secret" not in errors[0]["message"]


def test_a_char_is_compared_as_char_when_it_is_sent(tmp_path: Path, spark: SparkSession) -> None:
    mark = {"__CHAR_VARCHAR_TYPE_STRING": "char(4)"}
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("c", pa.string(), metadata=mark)])
    table = Table.create(str(tmp_path / "t"), schema)
    append(table, pa.table({"id": [1, 2], "c": ["ab  ", "cd  "]}, schema=schema))
    committed(run(spark, "delete", table, predicate="c = 'ab' AND pmod(id, 1000) = 1"))
    assert ids(table) == [2]
