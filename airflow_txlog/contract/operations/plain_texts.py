"""A guess whether an SQL text is plain, from its tree alone: the types of the columns are not known here.

The job itself decides (`jobs/sql`). A wrong guess starts a process, or a Spark, that was not needed; it changes no
result.
"""

from __future__ import annotations

from airflow_txlog.sql.expression import Call, Cast, Expression, Literal, Opaque, parts_of
from airflow_txlog.sql.sql_text import sql_text

_COMPARING = frozenset(("and", "or", "not", "=", "!=", "<", "<=", ">", ">=", "<=>", "in", "between", "is null"))
_CALCULATING = frozenset(("+", "-", "*"))


def looks_plain(text: str, *, is_value: bool = False) -> bool:
    """Whether a text consists of names, constants and comparisons; with `is_value`, also of `+`, `-` and `*`."""
    expression = sql_text(text).expression
    operators = _COMPARING | _CALCULATING if is_value else _COMPARING
    return expression is not None and all(_looks_plain(part, operators) for part in parts_of(expression))


def _looks_plain(part: Expression, operators: frozenset[str]) -> bool:
    match part:
        case Call(operator):
            return operator in operators
        case Cast(operand):
            return isinstance(operand, Literal)
    return not isinstance(part, Opaque)
