"""A predicate evaluated on rows, as Spark would: for reading a table without Spark.

The invariant: a row is chosen only by a predicate that lies wholly within the closed grammar; there is no guess.
"""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.predicate.exact import comparable, true_where
from airflow_txlog.engine.table.predicate.tree import And, Node, Or, PartitionSet, Predicate, Truth, Unknown
from airflow_txlog.sql.confinement import unsupported


def rows_matching(predicate: Predicate, rows: pa.Table) -> pa.BooleanArray:
    """Which rows the predicate selects, in their order; never null: a row for which it is null is not selected.

    `rows` has the columns that the predicate names, with the schema's names and types. Raises UnsupportedPredicate,
    naming the construct, when some part lies outside the closed grammar.
    """
    return _selected(predicate.tree, predicate, rows)


def _selected(node: Node, predicate: Predicate, rows: pa.Table) -> pa.BooleanArray:
    match node:
        case And(children):
            return reduce(pc.and_, (_selected(child, predicate, rows) for child in children))
        case Or(children):
            return reduce(pc.or_, (_selected(child, predicate, rows) for child in children))
        case Truth(value):
            return pa.repeat(pa.scalar(value), rows.num_rows)
        case Unknown(reason):
            raise _undecided(predicate, reason)
        case PartitionSet():
            raise _undecided(predicate, "a set of partitions")
    return true_where(node, comparable(rows.column(node.column.name), node.column.type))


def _undecided(predicate: Predicate, construct: str) -> Exception:
    why = "Only Spark can evaluate it on rows; without Spark, compare single columns with constants."
    return unsupported(predicate.sql, construct, why)
