"""New rows brought to tasks, before they are written, so that files come near their target size.

Rows of an unpartitioned table stay where they are, in no more tasks than their size is worth. Rows of a partitioned one
are shuffled by partition, and adaptive execution cuts what comes of it by the sizes that it measured: a large partition
is spread over several tasks, and small ones share one. The invariant: nothing here changes which rows there are.
Source: docs/decisions/spark-computes.md; soundness B10.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.spark.session import is_classic
from airflow_txlog.jobs.sql.gate import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def brought_to_tasks(
    context: JobContext, rows: DataFrame, partition_columns: Sequence[str], target_bytes: int
) -> DataFrame:
    """The same rows, in the tasks that are to write them."""
    if partition_columns:
        return _by_partition(context, rows, partition_columns)
    most = _tasks_worth(context, rows, target_bytes)
    # Never more tasks than there are now, and no shuffle: neighbours are read by one task.
    return rows if most is None else rows.coalesce(most)


@contextlib.contextmanager
def shuffled_towards(context: JobContext, target_bytes: int) -> Iterator[None]:
    """What is evaluated inside is cut, where it was shuffled, into tasks of the target size; for the time of a write.

    Shuffled rows weigh about as much as their files. A size that the job's own settings name stays.
    """
    if _SHUFFLED_SIZE in context.spec.spark_conf:
        yield
        return
    before = context.spark.conf.get(_SHUFFLED_SIZE, None)
    context.spark.conf.set(_SHUFFLED_SIZE, str(target_bytes))
    try:
        yield
    finally:
        if before is None:
            context.spark.conf.unset(_SHUFFLED_SIZE)
        else:
            context.spark.conf.set(_SHUFFLED_SIZE, before)


_SHUFFLED_SIZE = "spark.sql.adaptive.advisoryPartitionSizeInBytes"


def _by_partition(context: JobContext, rows: DataFrame, names: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415 - a job without Spark imports no PySpark

    columns = [F.col(quoted(name)) for name in names]
    if context.spark.conf.get("spark.sql.adaptive.enabled", "true") == "true":
        return rows.hint("rebalance", *columns)
    # Without it nothing is measured: each partition comes to one task, and so to one file.
    return rows.repartition(2 * context.parallelism, *columns)


def _tasks_worth(context: JobContext, rows: DataFrame, target_bytes: int) -> int | None:
    """How many tasks the rows are worth at most; None where it is not known how large they are (Connect).

    Spark's estimate is mostly too high, for a filter above all, and then tasks only stay as they are. Two tasks a core
    always remain: few rows may be much work.
    """
    if not is_classic(context.spark):
        return None
    plan: Any = rows._jdf.queryExecution().optimizedPlan()
    size_bytes = int(str(plan.stats().sizeInBytes()))
    return max(2 * context.parallelism, math.ceil(size_bytes / target_bytes)) if size_bytes < _UNKNOWN_BYTES else None


# What Spark assumes of a relation whose size it does not know, such as a table over a network (Long.MaxValue).
_UNKNOWN_BYTES = 2**62
