"""What Spark says to hundreds of predicates at once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.engine.table.predicate.examples import ROWS
from tests.engine.table.predicate.generator import Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEW = "predicate_rows"
_BATCH = 250


def make_view(spark: SparkSession) -> None:
    """A view of the example rows, in order of `position`. Spark holds it as a local relation: no job runs."""
    from pyspark.sql.types import (
        BinaryType,
        BooleanType,
        ByteType,
        DataType,
        DateType,
        DecimalType,
        DoubleType,
        FloatType,
        IntegerType,
        LongType,
        ShortType,
        StringType,
        StructField,
        StructType,
        TimestampNTZType,
        TimestampType,
    )  # fmt: skip

    kinds: dict[str, DataType] = {
        "boo": BooleanType(), "byt": ByteType(), "sho": ShortType(), "int": IntegerType(), "lng": LongType(),
        "flt": FloatType(), "dbl": DoubleType(), "dec": DecimalType(5, 2), "whole": DecimalType(38, 0),
        "wide": DecimalType(38, 18), "str": StringType(), "bin": BinaryType(), "dat": DateType(),
        "tim": TimestampType(), "ntz": TimestampNTZType(),
    }  # fmt: skip
    table = ROWS.append_column("position", pa.array(range(ROWS.num_rows), pa.int32()))
    fields = [StructField(name, kinds.get(name, IntegerType())) for name in table.column_names]
    spark.createDataFrame(table, StructType(fields)).createOrReplaceTempView(VIEW)


def parsed(spark: SparkSession, sql: str) -> Any:
    """Spark's tree of an expression, or None where Spark refuses it."""
    from pyspark.errors import PySparkException

    try:
        return spark._jsparkSession.sessionState().sqlParser().parseExpression(sql)  # type: ignore[attr-defined]
    except PySparkException:
        return None


def answers(spark: SparkSession, cases: Sequence[Case], batch: int = _BATCH) -> list[list[bool | None] | None]:
    """For each case what it is for each row, or None where Spark refuses it (analysis, or an error of ANSI mode)."""
    found: list[list[bool | None] | None] = []
    for start in range(0, len(cases), batch):
        found.extend(_bisected(spark, list(cases[start : start + batch])))
    return found


def _bisected(spark: SparkSession, cases: list[Case]) -> list[list[bool | None] | None]:
    try:
        return _asked(spark, cases)
    except Exception:
        if len(cases) == 1:
            return [None]
    middle = len(cases) // 2
    return _bisected(spark, cases[:middle]) + _bisected(spark, cases[middle:])


def _asked(spark: SparkSession, cases: list[Case]) -> list[list[bool | None] | None]:
    columns = ", ".join(f"(\n{case.sql}\n) AS c{number}" for number, case in enumerate(cases))
    parameters: dict[str, Any] = {}
    for case in cases:
        parameters |= {name: _for_spark(value) for name, value in case.parameters.items()}
    table = spark.sql(f"SELECT position, {columns} FROM {VIEW}", args=parameters).toArrow().sort_by("position")
    return [_booleans(table.column(f"c{number}")) for number in range(len(cases))]


def _booleans(column: pa.ChunkedArray) -> list[bool | None]:
    # A bare null has no boolean type; it selects nothing either.
    values: list[Any] = column.to_pylist()
    return [value if isinstance(value, bool) else None for value in values]


def _for_spark(value: Any) -> Any:
    if isinstance(value, bytes):
        return bytearray(value)
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value
