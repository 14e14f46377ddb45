"""What Spark says to hundreds of predicates at once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.engine.table.predicate.examples import ROWS
from tests.engine.table.predicate.generator import Case

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    """For each case what it is for each row, or None where Spark refuses it (analysis, or an error of ANSI mode).

    `batch`: so many are looked at together; few where many are refused.
    """
    accepted: list[Case] = []
    for start in range(0, len(cases), batch):
        accepted += _accepted(spark, cases[start : start + batch])
    found: dict[int, list[bool | None]] = {}
    for start in range(0, len(accepted), _BATCH):
        asked = accepted[start : start + _BATCH]
        table = _query(spark, asked).toArrow().sort_by("position")
        found |= {id(case): _booleans(table.column(f"c{number}")) for number, case in enumerate(asked)}
    return [found.get(id(case)) for case in cases]


def _accepted(spark: SparkSession, cases: Sequence[Case]) -> list[Case]:
    """The cases that Spark does not refuse: its optimizer evaluates a local relation, at a tenth of a job's cost."""
    try:
        _query(spark, cases)._jdf.queryExecution().optimizedPlan()
    except Exception:
        if len(cases) == 1:
            return []
    else:
        return list(cases)
    middle = len(cases) // 2
    return _accepted(spark, cases[:middle]) + _accepted(spark, cases[middle:])


def _query(spark: SparkSession, cases: Sequence[Case]) -> DataFrame:
    columns = ", ".join(f"(\n{case.sql}\n) AS c{number}" for number, case in enumerate(cases))
    parameters: dict[str, Any] = {}
    for case in cases:
        parameters |= {name: _for_spark(spark, value) for name, value in case.parameters.items()}
    return spark.sql(f"SELECT position, {columns} FROM {VIEW}", args=parameters)


def _booleans(column: pa.ChunkedArray) -> list[bool | None]:
    # A bare null has no boolean type; it selects nothing either.
    values: list[Any] = column.to_pylist()
    return [value if isinstance(value, bool) else None for value in values]


def _for_spark(spark: SparkSession, value: Any) -> Any:
    if isinstance(value, bytes):
        return bytearray(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        # PySpark's own conversion refuses a year before 1000.
        jvm: Any = spark._jvm
        return jvm.java.time.LocalDate.of(value.year, value.month, value.day)
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value
