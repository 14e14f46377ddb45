"""Evaluate a bound expression on Arrow rows as Spark evaluates it; define the operations for which that is possible.

`KNOWN` has one entry for each operator and function; only Spark computes anything else. The invariant: the value is the
one that Spark computes, null where Spark's is null, and no row makes it fail. NaN equals NaN and is greater than every
number, and -0.0 equals 0.0. Source: Spark, "NaN Semantics"; soundness A4; tests/sql/test_known_against_spark.py, which
is made from the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.sql.expression import Call, Column, Expression, Literal, Values, described

Rows: TypeAlias = pa.RecordBatch | pa.Table
_Operand: TypeAlias = Any  # an array, or a scalar for all rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An operator or a function that is computed here.

    `types` are the types of its operands, as a table's schema names them, for which Spark is certain to accept the text
    and to return a value without an error, whatever the values. All operands have one type. `result` is the type of the
    value. `arity`: how many operands a function takes.
    """

    compute: Callable[..., _Operand]
    types: frozenset[str] = frozenset()
    result: str = "boolean"
    arity: int = 1


def known_as(node: Expression) -> Known | None:
    """Return the table's entry for an operation; None for other nodes and for operations that only Spark computes."""
    found = KNOWN.get(node.operator) if isinstance(node, Call) else None
    if found is None or not isinstance(node, Call):
        return None
    return found if not node.is_function or len(node.operands) == found.arity else None


def values_of(expression: Expression, rows: Rows) -> pa.Array:
    """Return the value of a bound expression for each row, in order."""
    found = _computed(expression, rows)
    return pa.repeat(found, rows.num_rows) if isinstance(found, pa.Scalar) else found


def passing(expression: Expression, rows: Rows) -> pa.BooleanArray:
    """Return for each row whether a bound condition is true of it, in order; never null."""
    return pc.fill_null(values_of(expression, rows), False)


def _computed(expression: Expression, rows: Rows) -> _Operand:
    match expression:
        case Column(name):
            found = rows.column(name)
            return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        case Values(array):
            return array[0]
        case Literal("boolean", text):
            return pa.scalar(text == "true")
        case Call("in", (operand, Values(members))):
            return _is_in(_computed(operand, rows), members)
        case Call(operator, operands) if operator in KNOWN:
            return KNOWN[operator].compute(*(_computed(operand, rows) for operand in operands))
    raise TypeError(f"not a bound expression: {described(expression)}")


def aligned(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return the values in one array of the type in which they are compared."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return array if array.type == kind else array.cast(kind)


# --- conditions -------------------------------------------------------------------------------------------------------


def _is_in(values: pa.Array, members: pa.Array) -> pa.Array:
    values = aligned(values, members.type)
    return pc.if_else(pc.is_valid(values), pc.is_in(values, value_set=members), pa.scalar(None, pa.bool_()))


def _compared(
    compare: Callable[[Any, Any], Any], beside_nan: Callable[[Any, Any, Any], Any]
) -> Callable[[_Operand, _Operand], _Operand]:
    """Return a comparison. `beside_nan` corrects its result for floats, given on which sides each row has NaN."""

    def compute(left: _Operand, right: _Operand) -> _Operand:
        # Compared with a double, a float becomes one; dictionaries and other units of time become plain values.
        if isinstance(left, pa.Array):
            left = aligned(left, right.type)
        found = compare(left, right)
        if not pa.types.is_floating(right.type):
            return found
        return beside_nan(found, pc.is_nan(left), pc.is_nan(right))

    return compute


_equal = _compared(pc.equal, lambda found, left, right: pc.or_(found, pc.and_(left, right)))
_less = _compared(pc.less, lambda found, left, right: pc.or_(found, pc.and_not(right, left)))
_more = _compared(pc.greater, lambda found, left, right: pc.or_(found, pc.and_not(left, right)))
_at_most = _compared(pc.less_equal, lambda found, _, right: pc.or_(found, right))
_at_least = _compared(pc.greater_equal, lambda found, left, _: pc.or_(found, left))


def _starts_with(text: pa.Array, prefix: pa.Scalar) -> pa.Array:
    return pc.starts_with(aligned(text, prefix.type), prefix.as_py())


def _like(text: pa.Array, pattern: pa.Scalar) -> pa.Array:
    # On bytes, so that `%` also matches bytes that are not Unicode.
    return pc.match_like(aligned(text, pa.string()).cast(pa.binary()), pattern.as_py())


def _null_safe(left: _Operand, right: _Operand) -> _Operand:
    return pc.if_else(
        pc.or_(pc.is_null(left), pc.is_null(right)),
        pc.and_(pc.is_null(left), pc.is_null(right)),
        _equal(left, right),
    )


def _between(value: _Operand, low: _Operand, high: _Operand) -> _Operand:
    return pc.and_kleene(_at_least(value, low), _at_most(value, high))


# A text that is canonical, as Jinja renders a number or a date, is cast to these without an error.
_LISTED = frozenset(("byte", "short", "integer", "long", "string", "date"))
# Both engines follow IEEE 754, and no value is an error.
_DOUBLE = frozenset(("double",))
_ORDERED = _LISTED | _DOUBLE | {"timestamp"}
_EQUATED = _ORDERED | {"boolean"}
_TEXT, _DATE = frozenset(("string",)), frozenset(("date",))


def _trimmed(trim: Callable[..., pa.Array]) -> Known:
    # Spark trims spaces alone.
    compute = partial(trim, characters=" ")
    return Known(compute=lambda text: compute(aligned(text, pa.string())), types=_TEXT, result="string")


# Days from 0000-03-01 of a year before all dates to 1970-01-01, and that year; a cycle of 400 years has 146,097 days.
_CYCLES = 15_000
_FIRST_DAY = 719_468 + 146_097 * _CYCLES


def _date_parts(date: pa.Array) -> dict[str, pa.Array]:
    """Return year, month and day. Arrow's own are wrong beyond the year 32,767."""
    # Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days. No operand is negative.
    add, subtract, times, by = pc.add, pc.subtract, pc.multiply, pc.divide
    days = add(aligned(date, pa.date32()).cast(pa.int32()).cast(pa.int64()), _FIRST_DAY)
    cycle = by(days, 146_097)
    of_cycle = subtract(days, times(cycle, 146_097))
    leap = subtract(subtract(by(of_cycle, 36_524), by(of_cycle, 1_460)), by(of_cycle, 146_096))
    year = by(add(of_cycle, leap), 365)
    of_year = subtract(of_cycle, subtract(add(times(year, 365), by(year, 4)), by(year, 100)))
    # Months count from March.
    month = by(add(times(of_year, 5), 2), 153)
    is_next_year = pc.greater_equal(month, 10)
    return {
        "year": add(add(subtract(year, 400 * _CYCLES), times(cycle, 400)), is_next_year.cast(pa.int64())),
        "month": pc.if_else(is_next_year, subtract(month, 9), add(month, 3)),
        "day": add(subtract(of_year, by(add(times(month, 153), 2), 5)), 1),
    }


def _part_of_date(name: str) -> Known:
    return Known(compute=lambda date: _date_parts(date)[name].cast(pa.int32()), types=_DATE, result="integer")


KNOWN: dict[str, Known] = {
    "and": Known(compute=lambda *each: reduce(pc.and_kleene, each)),
    "or": Known(compute=lambda *each: reduce(pc.or_kleene, each)),
    "not": Known(compute=pc.invert),
    "=": Known(compute=_equal, types=_EQUATED),
    "!=": Known(compute=lambda *sides: pc.invert(_equal(*sides)), types=_EQUATED),
    "<": Known(compute=_less, types=_ORDERED),
    "<=": Known(compute=_at_most, types=_ORDERED),
    ">": Known(compute=_more, types=_ORDERED),
    ">=": Known(compute=_at_least, types=_ORDERED),
    "<=>": Known(compute=_null_safe, types=_EQUATED),
    "in": Known(compute=_is_in, types=_LISTED),
    "between": Known(compute=_between, types=_ORDERED),
    "is null": Known(compute=pc.is_null, types=_EQUATED | {"binary", "float", "timestamp_ntz"}),
    "like": Known(compute=_like, types=_TEXT),
    # The form that the engine gives to LIKE with a plain prefix.
    "starts with": Known(compute=_starts_with),
    "+": Known(compute=pc.add, types=_DOUBLE, result="double"),
    "-": Known(compute=pc.subtract, types=_DOUBLE, result="double"),
    "*": Known(compute=pc.multiply, types=_DOUBLE, result="double"),
    "btrim()": _trimmed(pc.ascii_trim),
    "ltrim()": _trimmed(pc.ascii_ltrim),
    "rtrim()": _trimmed(pc.ascii_rtrim),
    "trim()": _trimmed(pc.ascii_trim),
    "day()": _part_of_date("day"),
    "dayofmonth()": _part_of_date("day"),
    "month()": _part_of_date("month"),
    "year()": _part_of_date("year"),
}
