"""What a predicate becomes once it is read: a tree of questions about single columns.

Holds the values only. Reading SQL is `reading`, asking the questions of files is `pruning`, of rows is `rows`. The
invariant: a node stands for the rows where it is *true*. Null and false are distinguished while a node is built (NOT is
pushed to the leaves there), never afterwards, so that AND and OR are plain set operations; and a leaf holds its
constant in the column's own type, so that evaluating it converts nothing. Source: soundness A4.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from airflow_txlog.datafiles.text import date_text, decimal_text, timestamp_text
from airflow_txlog.engine.table.schema.types import DataType, Primitive

# A value in a column's own type: int for the integers, for dates (days since 1970) and for timestamps (microseconds
# since 1970, UTC or, without a zone, by the clock); float for float and double (a float column compares as double);
# Decimal at the column's scale.
Value: TypeAlias = bool | int | float | Decimal | str | bytes


class Operator(enum.Enum):
    """A comparison; the value is its spelling in SQL."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def negated(self) -> Operator:
        """The comparison that holds for exactly the other values that are not null."""
        return _NEGATED[self]

    @property
    def mirrored(self) -> Operator:
        """The comparison that says the same with its sides exchanged."""
        return _MIRRORED.get(self, self)


_NEGATED = {
    Operator.EQ: Operator.NE,
    Operator.NE: Operator.EQ,
    Operator.LT: Operator.GE,
    Operator.GE: Operator.LT,
    Operator.GT: Operator.LE,
    Operator.LE: Operator.GT,
}
_MIRRORED = {
    Operator.LT: Operator.GT,
    Operator.GT: Operator.LT,
    Operator.LE: Operator.GE,
    Operator.GE: Operator.LE,
}


@dataclass(frozen=True, slots=True)
class Column:
    """A top-level column, by the schema's spelling and with the type it had when the predicate was read."""

    name: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column op value`. NaN equals itself and is greater than everything; -0.0 equals 0.0."""

    column: Column
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class Membership:
    """`column IN values` or, negated, `column NOT IN values`; values are distinct, not null, and at least one."""

    column: Column
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class NullTest:
    """`column IS NULL` or `column IS NOT NULL`."""

    column: Column
    is_null: bool


@dataclass(frozen=True, slots=True)
class Prefix:
    """`column LIKE 'prefix%'` or its negation."""

    column: Column
    prefix: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """The partition values, as strings of the log, are one of these tuples; None is null."""

    columns: tuple[str, ...]
    rows: frozenset[tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class Truth:
    """Every row, or none."""

    value: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """Outside the closed grammar: any row may match. `reason` names the construct, for messages."""

    reason: str


@dataclass(frozen=True, slots=True)
class And:
    """Rows that are in every child."""

    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Rows that are in some child."""

    children: tuple[Node, ...]


Leaf: TypeAlias = Comparison | Membership | NullTest | Prefix | PartitionSet | Truth | Unknown
Node: TypeAlias = Leaf | And | Or

TRUE = Truth(True)
FALSE = Truth(False)


def all_of(children: list[Node]) -> Node:
    """The conjunction, flat, without what is always true."""
    flat: list[Node] = []
    for child in children:
        flat.extend(child.children if isinstance(child, And) else [child])
    kept = [child for child in flat if child != TRUE]
    if FALSE in kept:
        return FALSE
    return TRUE if not kept else kept[0] if len(kept) == 1 else And(tuple(kept))


def any_of(children: list[Node]) -> Node:
    """The disjunction, flat, without what never holds."""
    flat: list[Node] = []
    for child in children:
        flat.extend(child.children if isinstance(child, Or) else [child])
    kept = [child for child in flat if child != FALSE]
    if TRUE in kept:
        return TRUE
    return FALSE if not kept else kept[0] if len(kept) == 1 else Or(tuple(kept))


def leaves(node: Node) -> list[Leaf]:
    """Every leaf, left to right."""
    pending: list[Node] = [node]
    found: list[Leaf] = []
    while pending:
        here = pending.pop()
        if isinstance(here, And | Or):
            pending.extend(reversed(here.children))
        else:
            found.append(here)
    return found


def columns_of(leaf: Leaf) -> tuple[str, ...]:
    """The columns that a leaf names; none for a truth and for the unknown."""
    match leaf:
        case Comparison(column) | Membership(column) | NullTest(column) | Prefix(column):
            return (column.name,)
        case PartitionSet(columns):
            return columns
        case Truth() | Unknown():
            return ()


@dataclass(frozen=True, slots=True)
class Predicate:
    """One boolean expression over the rows of a table, read as far as the engine can defend.

    `sql` is the author's text, which Spark evaluates; `tree` only prunes and judges conflicts. `columns` is a superset
    of the top-level columns that the text names, in the schema's spelling, or None when they cannot be known.
    """

    sql: str
    tree: Node
    columns: frozenset[str] | None = field(default_factory=frozenset)

    @classmethod
    def true(cls) -> Predicate:
        """Every row of the table."""
        return cls("TRUE", TRUE)


# A description is for people: long lists are cut.
_VALUES_SHOWN = 10


def describe(node: Node, nested: bool = False) -> str:
    """The node in words close to SQL, for messages. Never parsed again: SQL is not regenerated from a tree."""
    match node:
        case Comparison(column, operator, value):
            return f"{column.name} {operator.value} {_literal(value, column.type)}"
        case Membership(column, values, negated):
            texts = [_literal(value, column.type) for value in values[: _VALUES_SHOWN + 1]]
            return f"{column.name} {'NOT IN' if negated else 'IN'} ({_listed(texts, len(values))})"
        case NullTest(column, is_null):
            return f"{column.name} IS {'NULL' if is_null else 'NOT NULL'}"
        case Prefix(column, prefix, negated):
            return f"{column.name} {'NOT LIKE' if negated else 'LIKE'} {_literal(prefix + '%', column.type)}"
        case PartitionSet(columns, rows):
            shown = sorted(rows, key=lambda row: [(value is not None, value or "") for value in row])
            texts = ["/".join(f"{name}={value}" for name, value in zip(columns, row, strict=True)) for row in shown]
            return f"partition IN ({_listed(texts, len(texts))})"
        case Truth(value):
            return "TRUE" if value else "FALSE"
        case Unknown(reason):
            return f"<{reason}>"
        case And(children) | Or(children):
            text = (" AND " if isinstance(node, And) else " OR ").join(describe(child, True) for child in children)
            return f"({text})" if nested else text


def _literal(value: Value, data_type: DataType) -> str:
    match value:
        case str():
            return f"'{value}'"
        case bool():
            return str(value).upper()
        case Decimal():
            return decimal_text(value)
        case int() if data_type is Primitive.DATE:
            return f"'{date_text(value)}'"
        case int() if data_type is Primitive.TIMESTAMP:
            return f"'{timestamp_text(value, fraction_digits=None)}Z'"
        case int() if data_type is Primitive.TIMESTAMP_NTZ:
            return f"'{timestamp_text(value, fraction_digits=None)}'"
    return str(value)


def _listed(texts: list[str], count: int) -> str:
    more = count - _VALUES_SHOWN
    return ", ".join(texts[:_VALUES_SHOWN]) + (f", … and {more} more" if more > 0 else "")
