"""The bound tree of a predicate: AND and OR of leaves, each about a single column.

`reading` builds it from SQL, `pruning` applies it to files, `sql.evaluation` to rows. The invariant: a tree describes
the rows for which it is *true*. NOT is pushed down to the leaves, so AND and OR are set operations. A leaf has its
constant in the column's own type. Anything outside the grammar is `Opaque`: any row may match.
Source: soundness A4.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

import pyarrow as pa

from airflow_txlog.datafiles.codecs import date_text, decimal_text, timestamp_text
from airflow_txlog.engine.table.schema.schema import array_of, arrow_type, delta_type
from airflow_txlog.engine.table.schema.types import DataType, Primitive, StructField
from airflow_txlog.sql import operand_types
from airflow_txlog.sql.evaluation import Known
from airflow_txlog.sql.expression import (
    TRUE,
    Call,
    Column,
    Expression,
    Literal,
    Opaque,
    Values,
    columns_of,
    negation,
    parts_of,
)

Value: TypeAlias = bool | int | float | Decimal | str | bytes
"""A plain value (`codecs`) of a column's type; a float column compares as double."""

IN_PARTITIONS = "partition in"
"""The operator of a set of partitions: columns, then for each its values as strings of the log. Null equals null."""


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
        return Operator(_NEGATED[self.value])

    @property
    def mirrored(self) -> Operator:
        """The same comparison with its sides exchanged."""
        return Operator(_MIRRORED.get(self.value, self.value))


_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Operand:
    """The subject of a leaf: a column, or a function of columns, and its type."""

    expression: Expression
    type: DataType

    @classmethod
    def of(cls, column: StructField) -> Operand:
        return cls(Column(column.name), column.type)

    @property
    def name(self) -> str:
        """The column's name, for messages."""
        return ", ".join(sorted(columns_of(self.expression)))


def type_of_call(known: Known, types: Sequence[DataType]) -> DataType | None:
    """Return the type of a function of columns of these types; None unless it has a value for every one of theirs."""
    operands = [operand_types.Typed(TRUE, arrow_type(kind)) for kind in types]
    # The session's zone is not known here.
    is_certain = not (known.may_fail or (known.in_utc and operand_types.INSTANT in [each.type for each in operands]))
    signature = known.typed(operands) if is_certain else None
    if signature is None or signature.operands != tuple(operand.type for operand in operands):
        return None
    return delta_type(signature.result, "")


def compared(operand: Operand, operator: Operator, value: Value) -> Expression:
    """Return `operand operator value`."""
    return Call(operator.value, (operand.expression, Values(value_array((value,), operand.type))))


def member_of(operand: Operand, values: tuple[Value, ...], negated: bool = False) -> Expression:
    """Return `operand IN values` or its negation. There is at least one value; values are distinct and not null."""
    found = Call("in", (operand.expression, Values(value_array(values, operand.type))))
    return negation(found) if negated else found


def null_test(operand: Operand, *, is_null: bool) -> Expression:
    """Return `operand IS NULL` or `operand IS NOT NULL`."""
    found = Call("is null", (operand.expression,))
    return found if is_null else negation(found)


def prefixed(operand: Operand, prefix: str, negated: bool = False) -> Expression:
    """Return `operand LIKE 'prefix%'` or its negation."""
    found = Call("starts with", (operand.expression, Values(pa.array([prefix]))))
    return negation(found) if negated else found


def liked(operand: Operand, pattern: str, negated: bool = False) -> Expression:
    """Return `operand LIKE pattern` or its negation; `%` is the only wildcard."""
    found = Call("like", (operand.expression, Values(pa.array([pattern]))))
    return negation(found) if negated else found


def comparable_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type in which columns of a type are compared: double for float, else their own."""
    return pa.float64() if data_type is Primitive.FLOAT else arrow_type(data_type)


def value_array(values: tuple[Value, ...], data_type: DataType) -> pa.Array:
    """Return constants as an array that compares with a column of the type."""
    return array_of(list(values), Primitive.DOUBLE if data_type is Primitive.FLOAT else data_type)


def constants_of(leaf: Expression) -> pa.Array | None:
    """Return the constants of a leaf, or None if it has none."""
    return next((part.array for part in parts_of(leaf) if isinstance(part, Values)), None)


def operand_of(leaf: Call) -> Expression:
    """Return the subject of a leaf, without its negation: a column, or a function of columns."""
    first = leaf.operands[0]
    return first.operands[0] if leaf.operator == "not" and isinstance(first, Call) else first


def leaves(tree: Expression) -> list[Expression]:
    """Return every leaf, left to right."""
    pending = [tree]
    found: list[Expression] = []
    while pending:
        here = pending.pop()
        if isinstance(here, Call) and here.operator in ("and", "or"):
            pending.extend(reversed(here.operands))
        else:
            found.append(here)
    return found


@dataclass(frozen=True, slots=True)
class Predicate:
    """The author's text, for Spark, and its tree, for pruning and conflicts.

    `columns`: a superset of the top-level columns that the text names, in the schema's spelling; None if unknown.
    """

    sql: str
    tree: Expression
    columns: frozenset[str] | None = field(default_factory=frozenset)

    @property
    def unknown(self) -> list[str]:
        """The parts outside the grammar, in words."""
        return [leaf.what for leaf in leaves(self.tree) if isinstance(leaf, Opaque)]

    @classmethod
    def true(cls) -> Predicate:
        return cls("TRUE", TRUE)


_VALUES_SHOWN = 10


def describe(node: Expression, nested: bool = False) -> str:
    """Return the node in words close to SQL, for messages; long lists are cut. It is never parsed again."""
    match node:
        case Call("and" | "or", children):
            text = f" {node.operator.upper()} ".join(describe(child, True) for child in children)
            return f"({text})" if nested else text
        case Call("not", (Call("is null", (operand,)),)):
            return f"{describe(operand)} IS NOT NULL"
        case Call("not", (Call(operator, (operand, Values(array))),)):
            return _described(operand, f"NOT {_WORDS[operator]}", operator, array)
        case Call("is null", (operand,)):
            return f"{describe(operand)} IS NULL"
        case Call(operator, (operand, Values(array))) if operator != IN_PARTITIONS:
            return _described(operand, _WORDS.get(operator, operator), operator, array)
        case Call(operator, operands) if operator == IN_PARTITIONS:
            names = [part.name for part in operands if isinstance(part, Column)]
            rows = zip(*(part.array.to_pylist() for part in operands if isinstance(part, Values)), strict=True)
            shown = sorted(rows, key=lambda row: [(value is not None, value or "") for value in row])
            texts = ["/".join(f"{name}={value}" for name, value in zip(names, row, strict=True)) for row in shown]
            return f"partition IN ({_listed(texts, len(texts))})"
        case Column(name):
            return name
        case Literal(_, text):
            return text.upper()
        case Opaque(what):
            return f"<{what}>"
        case Call(operator, operands):
            return f"{operator.removesuffix('()')}({', '.join(map(describe, operands))})"
    raise TypeError(f"no node of a predicate: {node!r}")


_WORDS = {"in": "IN", "like": "LIKE", "starts with": "LIKE"}


def _described(operand: Expression, words: str, operator: str, array: pa.Array) -> str:
    texts = _literals(array.slice(0, _VALUES_SHOWN + 1))
    if operator == "starts with":
        texts = [f"{texts[0][:-1]}%'"]
    shown = f"({_listed(texts, len(array))})" if operator == "in" else texts[0]
    return f"{describe(operand)} {words} {shown}"


def _literals(array: pa.Array) -> list[str]:
    kind = array.type
    if pa.types.is_date(kind):
        return [f"'{date_text(days)}'" for days in array.cast(pa.int32()).to_pylist()]
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        return [f"'{timestamp_text(us, fraction_digits=None)}{zone}'" for us in array.cast(pa.int64()).to_pylist()]
    if pa.types.is_string(kind):
        return [f"'{text}'" for text in array.to_pylist()]
    if pa.types.is_decimal(kind):
        return [decimal_text(value) for value in array.to_pylist()]
    return [str(value).upper() if isinstance(value, bool) else str(value) for value in array.to_pylist()]


def _listed(texts: list[str], count: int) -> str:
    more = count - _VALUES_SHOWN
    return ", ".join(texts[:_VALUES_SHOWN]) + (f", … and {more} more" if more > 0 else "")
