"""How rows go from Spark's JVM to a Python worker: in batches that are bounded, and made without measuring each row.

Spark bounds the bytes of a batch by measuring all of it before each of its rows, which takes half of the time that the
rows take on their way. Rows that are known to be narrow need no such bound: the number of rows in a batch is one. That
a text is not long is known only when it is there, so one that is too long ends the evaluation, which is then repeated
under Spark's own bound. The invariant: only a whole evaluation counts, so a frame that writes leaves at most files that
no commit names. Source: soundness B10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_txlog.errors import TxlogError
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.spark.session import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

# The most bytes of a row's texts and binary values, and so many rows: a megabyte in a batch as rows mostly are, 256 MiB
# where each row is as wide as may be. Fewer rows in a batch cost more time than a measured batch does.
NARROW_BYTES = 64 * 1024
NARROW_ROWS = 4096
# The sum over more columns than this is an expression so deep that Spark's analyzer runs out of stack near a thousand.
MOST_TEXTS = 100

ROWS_SETTING, BYTES_SETTING = (
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
)
# The one value for which Spark measures nothing.
_UNBOUNDED = str(2**31 - 1)
_TOO_WIDE = "airflow_txlog: a row is too wide for batches without a bound on their bytes"

OF_FIXED_WIDTH = frozenset(
    ("boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "date", "timestamp", "timestamp_ntz")
)
"""Types (`typeName`) whose values take a few bytes each."""


def of_narrow_rows(rows: DataFrame, types: Mapping[str, DataType]) -> DataFrame | None:
    """The same rows, whose evaluation fails at one that is wider than NARROW_BYTES; None where the types do not say,
    or where there are very many texts.

    `types` are those of their columns, whose names need no quotes.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415 - a job without Spark imports no PySpark

    texts = []
    for name, kind in types.items():
        # Of a nested value Spark does not know the width without a look at all of it.
        if kind.simpleString() in ("string", "binary"):
            texts.append(name)
        elif kind.typeName() not in OF_FIXED_WIDTH:
            return None
    if not texts:
        return rows
    if len(texts) > MOST_TEXTS:
        return None
    widths = (F.coalesce(F.octet_length(name), F.lit(0)).cast("long") for name in texts)
    is_narrow = reduce(lambda one, other: one + other, widths) <= NARROW_BYTES
    return rows.withColumn(texts[-1], F.when(is_narrow, F.col(texts[-1])).otherwise(F.raise_error(F.lit(_TOO_WIDE))))


def collect_narrow(
    spark: SparkSession, narrow: DataFrame, any_width: Callable[[], DataFrame], what: str, log: Callable[[str], None]
) -> pa.Table:
    """The rows of `narrow`, which is made of what `of_narrow_rows` gives; of `any_width()` where a row is too wide.

    Raises as `collect` does.
    """
    try:
        with session_settings(spark, {ROWS_SETTING: str(NARROW_ROWS), BYTES_SETTING: _UNBOUNDED}):
            return collect(narrow, what)
    except TxlogError as error:
        if _TOO_WIDE not in str(error.__cause__):
            raise
    log(
        f"a row has more than {NARROW_BYTES // 1024} KiB of text: the query is evaluated once more, in batches of "
        f"bounded bytes. A spark_conf with {BYTES_SETTING}=64m goes that way at once"
    )
    return collect(any_width(), what)
