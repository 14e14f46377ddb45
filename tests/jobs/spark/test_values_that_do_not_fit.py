"""A value that does not fit a column's type fails the job, and the message names the columns it can have been for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.helpers.jobs import error_of, run
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("operation", "arguments", "columns", "words"),
    [
        ("write", {"source": {"sql": "SELECT id * 3000000000L AS id FROM range(3)"}}, ["id", "n"], "BIGINT cannot be"),
        ("write", {"source": {"sql": "SELECT id * 1000000 AS paid FROM range(3)"}}, ["paid"], "fit DECIMAL(5,2)."),
        ("update", {"set": {"n": "id + 3000000000"}}, ["n"], "BIGINT cannot be cast to INT"),
    ],
)
def test_it_names_the_columns_of_the_type_and_no_value(
    tmp_path: Path, spark: SparkSession, operation: str, arguments: dict[str, Any], columns: list[str], words: str
) -> None:
    schema = pa.schema([("id", pa.int32()), ("n", pa.int32()), ("paid", pa.decimal128(5, 2)), ("name", pa.string())])
    table = make_table(tmp_path / "t", pa.table([[1], [1], [None], ["a"]], schema=schema))
    error = error_of(run(spark, operation, table, **arguments))
    assert (error["type"], error["facts"]["columns"]) == ("InvalidInput", columns)
    assert f"Columns of that type: {', '.join(columns)}." in error["message"]
    assert words in error["message"]
    assert "00000" not in error["message"]
