"""SQL's three-valued logic over Python values, written from the standard and from Spark's order of numbers.

It shares nothing with the engine. A predicate is a small tree; `truth` gives True, False or None (unknown) for one row.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Compare:
    column: str
    operator: str
    value: Any


@dataclass(frozen=True)
class In:
    column: str
    values: tuple[Any, ...]
    negated: bool


@dataclass(frozen=True)
class IsNull:
    column: str
    negated: bool


@dataclass(frozen=True)
class StartsWith:
    column: str
    prefix: str
    negated: bool


@dataclass(frozen=True)
class Not:
    child: Any


@dataclass(frozen=True)
class Both:
    left: Any
    right: Any


@dataclass(frozen=True)
class Either:
    left: Any
    right: Any


def truth(node: Any, row: Mapping[str, Any]) -> bool | None:
    match node:
        case Compare(column, "<=>", value):
            mine = row[column]
            return (mine is None and value is None) if mine is None or value is None else _order(mine, value) == 0
        case Compare(column, operator, value):
            return _compare(row[column], operator, value)
        case In(column, values, negated):
            answers = [_compare(row[column], "=", value) for value in values]
            found = True if True in answers else None if None in answers else False
            return _not(found) if negated else found
        case IsNull(column, negated):
            return (row[column] is None) is not negated
        case StartsWith(column, prefix, negated):
            found = None if row[column] is None else row[column].startswith(prefix)
            return _not(found) if negated else found
        case Not(child):
            return _not(truth(child, row))
        case Both(left, right):
            answers = [truth(left, row), truth(right, row)]
            return False if False in answers else None if None in answers else True
        case Either(left, right):
            answers = [truth(left, row), truth(right, row)]
            return True if True in answers else None if None in answers else False
    raise AssertionError(node)


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _compare(mine: Any, operator: str, value: Any) -> bool | None:
    if mine is None or value is None:
        return None
    order = _order(mine, value)
    return {
        "=": order == 0,
        "!=": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }[operator]


def _order(left: Any, right: Any) -> int:
    """Spark's: NaN equals itself and is above all numbers, zeros are equal, text compares by its UTF-8 bytes."""
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    if isinstance(left, float):
        ranks = (math.isnan(left), math.isnan(right))
        if any(ranks):
            return int(ranks[0]) - int(ranks[1])
    return int(left > right) - int(left < right)


def sql(node: Any, parameters: dict[str, Any]) -> str:
    """The node as SQL text; its constants become named parameters."""
    match node:
        case Compare(column, operator, value):
            return f"{column} {operator} {_bound(value, parameters)}"
        case In(column, values, negated):
            texts = ", ".join(_bound(value, parameters) for value in values)
            return f"{column} {'NOT ' if negated else ''}IN ({texts})"
        case IsNull(column, negated):
            return f"{column} IS {'NOT ' if negated else ''}NULL"
        case StartsWith(column, prefix, negated):
            return f"{column} {'NOT ' if negated else ''}LIKE '{prefix}%'"
        case Not(child):
            return f"NOT ({sql(child, parameters)})"
        case Both(left, right):
            return f"({sql(left, parameters)} AND {sql(right, parameters)})"
        case Either(left, right):
            return f"({sql(left, parameters)} OR {sql(right, parameters)})"
    raise AssertionError(node)


def _bound(value: Any, parameters: dict[str, Any]) -> str:
    if value is None:
        return "NULL"
    name = f"p{len(parameters)}"
    # A time without a zone is bound as text: bound as a datetime it would take the session's zone in Spark.
    is_wall = isinstance(value, dt.datetime) and value.tzinfo is None
    parameters[name] = value.isoformat(" ") if is_wall else value
    return f":{name}"
