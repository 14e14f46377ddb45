"""Row filters for scans: what the engine has read out of a condition, as far as a worker may drop rows by it.

The invariant: a leaf becomes part of a row filter only where all engines order and compare the column's type alike
(no floats, no decimals), and a leaf that does not become part of it lets every row pass. Source: soundness A4.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.predicate.tree import comparable_type, constants_of
from airflow_txlog.engine.table.schema.types import Primitive
from airflow_txlog.sql.evaluation import known_as
from airflow_txlog.sql.expression import Call, Expression, Literal, all_of, any_of, columns_of, parts_of

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


_COMPARED_ALIKE = frozenset(map(comparable_type, PLAIN_TYPES))


def row_filter_of(predicate: Predicate, scanned: Collection[str]) -> Expression | None:
    """What the predicate says of the `scanned` columns, or None where it says nothing that a worker may go by."""
    return _row_filter(predicate.tree, frozenset(scanned))


def exact_filter_of(predicate: Predicate, scanned: Collection[str]) -> Expression | None:
    """The row filter that exactly the rows pass of which the predicate is TRUE; None where there is none."""
    return _row_filter(predicate.tree, frozenset(scanned), is_exact=True)


def _row_filter(node: Expression, scanned: frozenset[str], *, is_exact: bool = False) -> Expression | None:
    match node:
        case Literal():
            return node if is_exact else None
        case Call("and" | "or", children):
            found = [_row_filter(child, scanned, is_exact=is_exact) for child in children]
            parts = [part for part in found if part is not None]
            if node.operator == "or":
                return any_of(parts) if len(parts) == len(found) else None
            return all_of(parts) if parts and not (is_exact and len(parts) < len(found)) else None
    calls = [known_as(part) is not None for part in parts_of(node) if isinstance(part, Call)]
    constants = constants_of(node)
    is_alike = constants is None or constants.type in _COMPARED_ALIKE
    return node if calls and all(calls) and is_alike and columns_of(node) <= scanned else None
