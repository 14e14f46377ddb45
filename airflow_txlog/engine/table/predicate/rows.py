"""A predicate evaluated on rows, as Spark would: for reading a table without Spark.

The invariant: a row is chosen only by a predicate that lies wholly within the closed grammar; there is no guess.
"""

from __future__ import annotations

import pyarrow as pa

from airflow_txlog.engine.table.predicate.partition_sets import num_partitions
from airflow_txlog.engine.table.predicate.tree import Predicate, leaves
from airflow_txlog.sql.confinement import unsupported
from airflow_txlog.sql.evaluation import passing


def rows_matching(predicate: Predicate, rows: pa.Table) -> pa.BooleanArray:
    """Which rows the predicate selects, in their order; never null: a row for which it is null is not selected.

    `rows` has the columns that the predicate names, with the schema's names and types. Raises UnsupportedPredicate,
    naming the construct, when some part lies outside the closed grammar.
    """
    for what in predicate.unknown:
        raise _undecided(predicate, what)
    if any(map(num_partitions, leaves(predicate.tree))):
        raise _undecided(predicate, "a set of partitions")
    return passing(predicate.tree, rows)


def _undecided(predicate: Predicate, construct: str) -> Exception:
    why = "Only Spark can evaluate it on rows; without Spark, compare single columns with constants."
    return unsupported(predicate.sql, construct, why)
