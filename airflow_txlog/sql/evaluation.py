"""Evaluate a bound expression on Arrow rows as Spark evaluates it; define the operations for which that is possible.

`KNOWN` has one entry for each operator and function; only Spark computes anything else. The invariant: the value is the
one that Spark computes, null where Spark's is null, with ANSI mode on and off. A row for which that is not certain
(an overflow, a division by zero, a letter that Java may change in another way) ends the evaluation with
`left_to_spark`, and the job has Spark compute the author's text, with its value or its error. Evaluation is eager: a
branch of CASE that no row takes may also end it. NaN equals NaN and is greater than every number, and -0.0 equals 0.0.
Source: Spark, "NaN Semantics"; soundness A4; tests/sql/test_known_against_spark.py, which is made from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.errors import InvalidInput
from airflow_txlog.sql import computations as compute
from airflow_txlog.sql import dates
from airflow_txlog.sql import operand_types as types
from airflow_txlog.sql.computations import ForSpark, aligned
from airflow_txlog.sql.expression import Call, Column, Converted, Expression, Literal, Values, described, parts_of
from airflow_txlog.sql.operand_types import BOOL, DATE, INSTANT, INT32, TEXT, Signature, Typed

__all__ = ["KNOWN", "LIKE_WITH_ONE", "Known", "aligned", "known_as", "may_be_left_to_spark", "passing", "values_of"]

Rows: TypeAlias = pa.RecordBatch | pa.Table

_ONE, _TWO, _ANY = range(1, 2), range(2, 3), range(1, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An operator or a function that is computed here.

    `signature` gives the types for which Spark is certain to accept the text. `arity`: how many operands a function may
    have. `may_fail`: some values are left to Spark; otherwise no value of the types is. `in_utc`: of a timestamp, its
    value is that of a session in UTC; a function of dates takes a timestamp's date, and one of timestamps a date's
    midnight.
    """

    compute: Callable[..., Any]
    signature: Callable[..., Signature | None]
    arity: range = _ONE
    may_fail: bool = False
    in_utc: bool = False

    def typed(self, operands: Sequence[Typed]) -> Signature | None:
        """Return the signature for these operands; None if only Spark can compute the operation on them."""
        return self.signature(*operands)


def known_as(node: Expression) -> Known | None:
    """Return the table's entry for an operation; None for other nodes and for operations that only Spark computes."""
    found = KNOWN.get(node.operator) if isinstance(node, Call) else None
    if found is None or not isinstance(node, Call):
        return None
    return found if not node.is_function or len(node.operands) in found.arity else None


def may_be_left_to_spark(expression: Expression) -> bool:
    """Return whether the evaluation of a bound expression may end with `left_to_spark`."""
    return any(
        KNOWN[part.operator].may_fail if isinstance(part, Call) and part.operator in KNOWN else _may_fail(part)
        for part in parts_of(expression)
    )


def _may_fail(part: Expression) -> bool:
    return isinstance(part, Converted) and part.may_fail


def values_of(expression: Expression, rows: Rows) -> pa.Array:
    """Return the value of a bound expression for each row, in order.

    Raises InvalidInput with the fact `left_to_spark` if only Spark can compute one of them.
    """
    try:
        found = _computed(expression, rows)
    except ForSpark as error:
        raise _left_to_spark(str(error)) from None
    except pa.ArrowInvalid:
        raise _left_to_spark("a value that does not fit in its type") from None
    return pa.repeat(found, rows.num_rows) if isinstance(found, pa.Scalar) else found


def _left_to_spark(why: str) -> InvalidInput:
    return InvalidInput(
        f"The SQL of this job meets {why}, which only Spark evaluates. Nothing was committed. Run the job with Spark.",
        left_to_spark=why,
    )


def passing(expression: Expression, rows: Rows) -> pa.BooleanArray:
    """Return for each row whether a bound condition is true of it, in order; never null. Raises as `values_of`."""
    return pc.fill_null(values_of(expression, rows), False)


def _computed(expression: Expression, rows: Rows) -> Any:
    match expression:
        case Column(name):
            return _plain(rows.column(name))
        case Values(array):
            return array[0]
        case Literal("boolean", text):
            return pa.scalar(text == "true")
        case Converted(operand, kind):
            return compute.converted(_computed(operand, rows), kind)
        case Call("in", (operand, Values(members))):
            return compute.is_in(_computed(operand, rows), members)
        case Call(".", (operand, Literal("string", name))):
            return _plain(compute.member(_computed(operand, rows), name))
        case Call(operator, operands) if operator in KNOWN:
            return KNOWN[operator].compute(*(_computed(operand, rows) for operand in operands))
    raise TypeError(f"not a bound expression: {described(expression)}")


def _plain(found: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column's values in one array, without a dictionary and in microseconds."""
    array = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    kind = array.type
    if pa.types.is_dictionary(kind):
        return array.cast(kind.value_type)
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return array.cast(pa.timestamp("us", kind.tz))
    return array


LIKE_WITH_ONE = "like with _"
"""The operator of a LIKE with `_`, which leaves texts to Spark that are not UTF-8."""

_TEXT = types.of(TEXT, TEXT)
_IN_TEXT = types.constant_from(1, types.of(BOOL, TEXT, TEXT))
_DATE_TO_INT = types.of(INT32, DATE)
_PART = types.constant_from(1, types.of(TEXT, TEXT, INT32))
_SLICE = types.constant_from(1, types.of(TEXT, TEXT, INT32, INT32))


def _trim(trim: Callable[..., pa.Array]) -> Known:
    return Known(compute=compute.trimmed(trim), signature=_TEXT)


def _part(part: Callable[..., pa.Array]) -> Known:
    return Known(compute=compute.counting_characters(part), signature=_PART, arity=_TWO, may_fail=True)


def _date_part(name: str) -> Known:
    return Known(compute=dates.part_of_date(name), signature=_DATE_TO_INT, in_utc=True)


def _within(test: Callable[..., pa.Array]) -> Known:
    return Known(compute=compute.on_bytes(test), signature=_IN_TEXT, arity=_TWO)


def _time_part(name: str) -> Known:
    signature = types.of(INT32, INSTANT)
    return Known(compute=dates.part_of_time(name), signature=signature, in_utc=True, may_fail=True)


_COALESCE = Known(compute=pc.coalesce, signature=types.one_of, arity=_ANY)
_NVL = Known(compute=pc.coalesce, signature=types.one_of, arity=_TWO)
_CONCAT = Known(compute=compute.joined, signature=types.texts, arity=_ANY)
_UPPER = Known(compute=compute.in_case(pc.ascii_upper, pc.utf8_upper), signature=_TEXT, may_fail=True)
_LOWER = Known(compute=compute.in_case(pc.ascii_lower, pc.utf8_lower), signature=_TEXT, may_fail=True)
_LENGTH = Known(compute=compute.counting_characters(pc.utf8_length), signature=types.of(INT32, TEXT), may_fail=True)
_SUBSTRING = Known(
    compute=compute.counting_characters(compute.substring),
    signature=lambda *operands: (_PART if len(operands) == 2 else _SLICE)(*operands),
    arity=range(2, 4),
    may_fail=True,
)
_PLUS, _MINUS = dates.moving(pc.add_checked, 1), dates.moving(pc.subtract_checked, -1)
_DAYS_LATER = types.of(DATE, DATE, INT32)
_CEIL = Known(compute=compute.whole("up"), signature=types.whole, may_fail=True)
_REMAINDER = Known(compute=compute.remainder, signature=types.remainders, arity=_TWO, may_fail=True)
_DAYS_BETWEEN = Known(compute=dates.days_between, signature=types.of(INT32, DATE, DATE), arity=_TWO, may_fail=True)

KNOWN: dict[str, Known] = {
    "and": Known(compute=compute.all_true, signature=types.conditions),
    "or": Known(compute=compute.any_true, signature=types.conditions),
    "not": Known(compute=pc.invert, signature=types.conditions),
    "=": Known(compute=compute.equal, signature=types.equated),
    "!=": Known(compute=lambda *sides: pc.invert(compute.equal(*sides)), signature=types.equated),
    "<": Known(compute=compute.less, signature=types.ordered),
    "<=": Known(compute=compute.at_most, signature=types.ordered),
    ">": Known(compute=compute.more, signature=types.ordered),
    ">=": Known(compute=compute.at_least, signature=types.ordered),
    "<=>": Known(compute=compute.null_safe, signature=types.equated),
    "in": Known(compute=compute.is_in, signature=types.listed),
    "between": Known(compute=compute.between, signature=types.between),
    "is null": Known(compute=pc.is_null, signature=types.tested),
    "like": Known(compute=compute.like, signature=types.matched),
    LIKE_WITH_ONE: Known(compute=compute.like_with_one, signature=types.matched, may_fail=True),
    "contains()": _within(pc.match_substring),
    "startswith()": _within(pc.starts_with),
    "endswith()": _within(pc.ends_with),
    # The form that the engine gives to LIKE with a plain prefix.
    "starts with": Known(compute=compute.starts_with, signature=types.matched),
    "case": Known(compute=compute.case, signature=types.cases),
    "if()": Known(compute=compute.case, signature=types.cases, arity=range(3, 4)),
    "nullif()": Known(compute=compute.null_if, signature=types.null_if, arity=_TWO),
    "coalesce()": _COALESCE,
    "ifnull()": _NVL,
    "nvl()": _NVL,
    "+": Known(compute=_PLUS, signature=types.sums, may_fail=True),
    "-": Known(compute=_MINUS, signature=types.sums, may_fail=True),
    "*": Known(compute=pc.multiply_checked, signature=types.products, may_fail=True),
    "/": Known(compute=compute.quotient, signature=types.quotients, may_fail=True),
    "%": _REMAINDER,
    "mod()": _REMAINDER,
    "negate": Known(compute=pc.negate_checked, signature=types.magnitude, may_fail=True),
    "abs()": Known(compute=pc.abs_checked, signature=types.magnitude, may_fail=True),
    "round()": Known(compute=compute.rounded, signature=types.rounded, arity=range(1, 3), may_fail=True),
    "floor()": Known(compute=compute.whole("down"), signature=types.whole, may_fail=True),
    "ceil()": _CEIL,
    "ceiling()": _CEIL,
    "greatest()": Known(compute=compute.first_by(compute.more), signature=types.extreme, arity=range(2, 1000)),
    "least()": Known(compute=compute.first_by(compute.less), signature=types.extreme, arity=range(2, 1000)),
    "btrim()": _trim(pc.ascii_trim),
    "ltrim()": _trim(pc.ascii_ltrim),
    "rtrim()": _trim(pc.ascii_rtrim),
    "trim()": _trim(pc.ascii_trim),
    "upper()": _UPPER,
    "ucase()": _UPPER,
    "lower()": _LOWER,
    "lcase()": _LOWER,
    "length()": _LENGTH,
    "char_length()": _LENGTH,
    "concat()": _CONCAT,
    "replace()": Known(
        compute=compute.replaced,
        signature=lambda *operands: types.constant_from(1, types.of(TEXT, *(TEXT for _ in operands)))(*operands),
        arity=range(2, 4),
    ),
    "||": _CONCAT,
    "substring()": _SUBSTRING,
    "substr()": _SUBSTRING,
    "left()": _part(compute.left_part),
    "right()": _part(compute.right_part),
    "day()": _date_part("day"),
    "dayofmonth()": _date_part("day"),
    "month()": _date_part("month"),
    "year()": _date_part("year"),
    "hour()": _time_part("hour"),
    "minute()": _time_part("minute"),
    "second()": _time_part("second"),
    "to_date()": Known(compute=lambda date: date, signature=types.of(DATE, DATE), in_utc=True),
    "date_trunc()": Known(
        compute=dates.truncated,
        signature=types.truncated(dates.TRUNCATED),
        arity=_TWO,
        in_utc=True,
        may_fail=True,
    ),
    "date_format()": Known(
        compute=dates.formatted, signature=types.formatted(dates.PLAIN_FORMAT), arity=_TWO, in_utc=True, may_fail=True
    ),
    "add_months()": Known(
        compute=dates.months_later, signature=types.constant_from(1, _DAYS_LATER), arity=_TWO, may_fail=True
    ),
    "date_add()": Known(compute=_PLUS, signature=_DAYS_LATER, arity=_TWO, may_fail=True),
    "date_sub()": Known(compute=_MINUS, signature=_DAYS_LATER, arity=_TWO, may_fail=True),
    "datediff()": _DAYS_BETWEEN,
    "named_struct()": Known(compute=compute.struct_of, signature=types.named_struct, arity=_ANY),
}
