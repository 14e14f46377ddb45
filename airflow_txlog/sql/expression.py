"""The tree of a SQL expression: names, constants, operations on them, and parts that only Spark can interpret.

A text's tree consists of `Name`, `Literal`, `Parameter`, `Cast`, `Call` and `Opaque`. In a *bound* tree, names have
become a `Column`, and constants `Values` of the type in which they are compared; `evaluation` computes it. The
invariant: two texts with the same tree mean the same to Spark, so a tree has no parentheses, comments, letter case of
keywords or second spellings of an operator. SQL is never made from a tree; `span` leads back to the author's own text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from airflow_txlog.sql.lexer import NO_CERTAIN_NAMES

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_txlog.sql.lexer import Token

Span: TypeAlias = tuple[int, int]
"""The first token of a part of a text, and the one after its last."""

OF_INTERVALS = "interval "
"""What begins the target of a cast that is an INTERVAL of whole numbers: `interval day hour`, with their units."""

_NOWHERE: Span = (0, 0)
_PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Name:
    """A column, a member of one, or a name that Spark takes for a clock or a user: the parts between the dots."""

    parts: tuple[Token, ...]
    span: Span = field(default=_NOWHERE, compare=False)

    @property
    def is_certain(self) -> bool:
        """Whether the first part, with nothing before it, can only be a name."""
        first = self.parts[0]
        is_plain = _PLAIN_NAME.fullmatch(first.text) is not None and first.text.lower() not in NO_CERTAIN_NAMES
        return first.kind == "name" or is_plain

    def __str__(self) -> str:
        return ".".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. `kind` is string, number, boolean or null; `text` is its content, and a number's includes the sign.

    `doubt` is the reason why two parsers may read a string differently.
    """

    kind: str
    text: str
    span: Span = field(default=_NOWHERE, compare=False)
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """`:name`."""

    name: str
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Cast:
    """`CAST(operand AS type)` in any spelling, `DATE '…'` and `INTERVAL 1 DAY` included.

    `target` is the type in lower case.
    """

    operand: Expression
    target: str
    span: Span = field(default=_NOWHERE, compare=False)

    @property
    def is_interval(self) -> bool:
        return self.target.startswith(OF_INTERVALS)


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function with its operands: `and`, `=`, `is null`, `negate`, `upper()`.

    NOT IN and the like are the negation of the operation. AND and OR have two operands or more.
    """

    operator: str
    operands: tuple[Expression, ...]
    span: Span = field(default=_NOWHERE, compare=False)

    @property
    def is_function(self) -> bool:
        return self.operator.endswith("()")


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part that only Spark can interpret. `what` names it in messages; `parts` are the expressions read within it."""

    what: str
    span: Span = field(default=_NOWHERE, compare=False)
    parts: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the rows, in the schema's spelling."""

    name: str
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Values:
    """A constant, or the members of a list, in the type in which a column is compared with them."""

    array: pa.Array
    span: Span = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Converted:
    """A bound operand in another type. `may_fail`: some values of the operand's type have no certain value there."""

    operand: Expression
    type: pa.DataType
    may_fail: bool = False
    span: Span = field(default=_NOWHERE, compare=False)


Expression: TypeAlias = Name | Literal | Parameter | Cast | Call | Opaque | Column | Values | Converted
TRUE, FALSE = Literal("boolean", "true"), Literal("boolean", "false")


def parts_of(expression: Expression) -> Iterator[Expression]:
    """Yield the expression and all its parts, from left to right."""
    pending = [expression]
    while pending:
        here = pending.pop()
        yield here
        pending.extend(reversed(_children(here)))


def is_deeper(expression: Expression, most: int) -> bool:
    """Return whether the tree has more than so many levels."""
    level = [expression]
    for _ in range(most):
        level = [child for each in level for child in _children(each)]
        if not level:
            return False
    return True


def _children(expression: Expression) -> Sequence[Expression]:
    if isinstance(expression, Call):
        return expression.operands
    if isinstance(expression, Opaque):
        return expression.parts
    return (expression.operand,) if isinstance(expression, Cast | Converted) else ()


def operands_of(operator: str, expression: Expression) -> Iterator[Expression]:
    """Yield the operands of a chain of one operator, AND or OR, from left to right; else the expression itself."""
    pending = [expression]
    while pending:
        here = pending.pop()
        if isinstance(here, Call) and here.operator == operator:
            pending.extend(reversed(here.operands))
        else:
            yield here


def columns_of(expression: Expression) -> frozenset[str]:
    """Return the columns of a bound tree."""
    return frozenset(part.name for part in parts_of(expression) if isinstance(part, Column))


def all_of(children: Sequence[Expression]) -> Expression:
    """Return the conjunction, flat, without conditions that are always true."""
    return _joined("and", children, TRUE, FALSE)


def any_of(children: Sequence[Expression]) -> Expression:
    """Return the disjunction, flat, without conditions that never hold."""
    return _joined("or", children, FALSE, TRUE)


def _joined(operator: str, children: Sequence[Expression], neutral: Expression, decides: Expression) -> Expression:
    flat = [each for child in children for each in operands_of(operator, child)]
    kept = [child for child in flat if child != neutral]
    if decides in kept:
        return decides
    return neutral if not kept else kept[0] if len(kept) == 1 else Call(operator, tuple(kept))


def negation(expression: Expression) -> Expression:
    return Call("not", (expression,))


def described(node: Expression) -> str:
    """Return a description of a part of a text, for messages."""
    match node:
        case Opaque(what):
            return what
        case Call("case"):
            return "CASE"
        case Call(operator):
            return f"the function {operator}" if node.is_function else f"the operator {operator}"
        case Cast() if node.is_interval:
            return "INTERVAL"
        case Cast() | Converted():
            return "a cast"
        case Name():
            return f"the function {node}()"
        case Literal() | Parameter() | Values():
            return "a constant where a column should stand"
        case Column(name):
            return f"the column {name}"
