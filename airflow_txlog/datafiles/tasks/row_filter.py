"""Rows that a condition cannot be TRUE of, dropped in the worker that reads them, before they cost a way to the JVM.

A row filter is what the driver has read out of a condition: comparisons of single columns with constants, joined by
AND and OR. It decides nothing: Spark evaluates the author's own text on every row that passes. The invariant: a row of
which the condition is TRUE passes, and so does a row about which the filter is not certain.
Source: docs/decisions/spark-computes.md; soundness A4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """`column operator value`: the operator as SQL spells it, the value as an array of one, of the column's type."""

    column: str
    operator: str
    value: pa.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """`column IN values`, or `column NOT IN values`; values of the column's type, not null."""

    column: str
    values: pa.Array
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull:
    """`column IS NULL`, or `column IS NOT NULL`."""

    column: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class AllOf:
    """Rows that pass every part: all rows where there is none."""

    parts: tuple[RowFilter, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Rows that pass some part: no row where there is none."""

    parts: tuple[RowFilter, ...]


RowFilter: TypeAlias = Compared | OneOf | IsNull | AllOf | AnyOf


def columns_of(row_filter: RowFilter) -> frozenset[str]:
    """The columns that a row filter looks at."""
    if isinstance(row_filter, AllOf | AnyOf):
        return frozenset[str]().union(*(columns_of(part) for part in row_filter.parts))
    return frozenset({row_filter.column})


def passing(row_filter: RowFilter, columns: Mapping[str, pa.Array]) -> pa.BooleanArray:
    """Which rows pass, by their columns in the table's types, of which there is one at least; never null."""
    match row_filter:
        case AllOf(()) | AnyOf(()):
            return pa.repeat(isinstance(row_filter, AllOf), len(next(iter(columns.values()))))
        case Compared(column=name, operator=operator, value=value):
            return pc.fill_null(_COMPARE[operator](columns[name], value[0]), False)
        case OneOf(column=name, values=values, negated=negated):
            found = pc.is_in(columns[name], value_set=values)
            return pc.and_not(columns[name].is_valid(), found) if negated else found
        case IsNull(column=name, negated=negated):
            return columns[name].is_valid() if negated else columns[name].is_null()
        case AllOf(parts):
            return reduce(pc.and_, (passing(part, columns) for part in parts))
        case AnyOf(parts):
            return reduce(pc.or_, (passing(part, columns) for part in parts))
