"""The texts of pyarrow's and Spark's own errors quote values: none of them comes out, wherever a value does not fit."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, convert_array
from airflow_txlog.engine.upkeep.inventory import read_inventory
from airflow_txlog.errors import InvalidInput
from airflow_txlog.storage import PLAIN
from tests.helpers.jobs import error_of, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANARY = 4711


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array([631152000000000000 + CANARY], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC")),
        (pa.array([5_000_000_000 + CANARY], pa.int64()), pa.int32()),
        (pa.array([9_100_000_000_000_000 + CANARY], pa.int64()), pa.float64()),
        (pa.array([[5_000_000_000 + CANARY]], pa.list_(pa.int64())), pa.list_(pa.int32())),
        (pa.array([4_000_000_000_000_000_000 + CANARY], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([dt.datetime(1999, 1, 1, 0, 0, 0, CANARY)], pa.timestamp("us")), pa.timestamp("s")),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else str(value),
)
def test_a_value_that_does_not_fit_its_column_is_not_shown(values: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(ColumnMismatch) as caught:
        convert_array(values, wanted, "c")
    assert str(CANARY) not in str(caught.value)


@pytest.mark.parametrize("text", [f"path,size\na,1\nb,2,x{CANARY}\n", f"path,isDir\na,x{CANARY}\n", f"x{CANARY}\ny\n"])
def test_a_file_that_is_no_inventory_shows_no_line_of_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "i.csv").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_inventory(str(tmp_path / "i.csv"), f"file://{tmp_path}/t", PLAIN)
    assert str(CANARY) not in str(caught.value)


@pytest.mark.spark
def test_a_bound_value_that_spark_parses_is_not_shown(spark: SparkSession, tmp_path: Path) -> None:
    source = {"sql": "SELECT from_json('1', :kind) AS x"}
    kind = f"alpha{CANARY} of beta{CANARY}"
    error = error_of(run(spark, "write", tmp_path / "t", source=source, parameters={"kind": kind}))
    assert str(CANARY) not in str(error)
