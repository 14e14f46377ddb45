"""Row filters for scans: what the engine has read out of a condition, as far as a worker may drop rows by it.

The invariant: a leaf becomes part of a row filter only where all engines order and compare the column's type alike
(no floats, no decimals), and a leaf that does not become part of it lets every row pass. Source: soundness A4.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_txlog.datafiles.tasks.row_filter import AllOf, AnyOf, Compared, IsNull, OneOf, RowFilter
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.predicate.exact import value_array
from airflow_txlog.engine.table.predicate.tree import And, Comparison, Membership, Node, NullTest, Or, Truth
from airflow_txlog.engine.table.schema.types import Primitive

PLAIN_TYPES = frozenset(
    (
        Primitive.BOOLEAN,
        Primitive.BYTE,
        Primitive.SHORT,
        Primitive.INTEGER,
        Primitive.LONG,
        Primitive.DATE,
        Primitive.TIMESTAMP,
        Primitive.TIMESTAMP_NTZ,
        Primitive.STRING,
    )
)


def row_filter_of(predicate: Predicate, scanned: Collection[str]) -> RowFilter | None:
    """What the predicate says of the `scanned` columns, or None where it says nothing that a worker may go by."""
    return _row_filter(predicate.tree, frozenset(scanned))


def exact_filter_of(predicate: Predicate, scanned: Collection[str]) -> RowFilter | None:
    """The row filter that exactly the rows pass of which the predicate is TRUE; None where there is none."""
    return _row_filter(predicate.tree, frozenset(scanned), is_exact=True)


def _row_filter(node: Node, scanned: frozenset[str], *, is_exact: bool = False) -> RowFilter | None:
    match node:
        case Truth(value) if is_exact:
            return AllOf(()) if value else AnyOf(())
        case And(children):
            found = [_row_filter(child, scanned, is_exact=is_exact) for child in children]
            parts = [part for part in found if part is not None]
            if is_exact and len(parts) < len(found):
                return None
            return None if not parts else parts[0] if len(parts) == 1 else AllOf(tuple(parts))
        case Or(children):
            branches = [_row_filter(child, scanned, is_exact=is_exact) for child in children]
            known = tuple(branch for branch in branches if branch is not None)
            return AnyOf(known) if len(known) == len(branches) else None
        case Comparison(column, operator, value) if column.type in PLAIN_TYPES and column.name in scanned:
            array = value_array((value,), column.type)
            return Compared(column=column.name, operator=operator.value, value=array)
        case Membership(column, values, negated) if column.type in PLAIN_TYPES and column.name in scanned:
            return OneOf(column=column.name, values=value_array(values, column.type), negated=negated)
        case NullTest(column, is_null) if column.name in scanned:
            return IsNull(column=column.name, negated=not is_null)
    return None
