"""The types of operands and results, as Spark's analysis decides them, in Arrow's types.

A *signature* is a function of the operands of an operator or function: it returns the types to which they are converted
and the type of the result, or None if the operation is not certain to mean the same here and in Spark. Spark's implicit
conversions are part of it. The invariant: the types are those of Spark with ANSI mode on and off. If the modes
differ, or a decimal would need more than 38 digits, there is no signature. Source: Spark 4.2, AnsiTypeCoercion,
TypeCoercion, DecimalPrecisionTypeCoercion; tests/sql/test_known_against_spark.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_txlog.sql.expression import Expression

BOOL, INT32, INT64, DOUBLE, FLOAT = pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.float32()
TEXT, BINARY, DATE, VOID = pa.string(), pa.binary(), pa.date32(), pa.null()
INSTANT, WALL_TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")
# Intervals, which differ in the types that Spark gives to their sums: of months and years, of days and weeks, of time.
MONTHS, DAYS, DURATION = pa.month_day_nano_interval(), pa.duration("s"), pa.duration("us")
DAY_US = 86_400_000_000
# The digits that Spark gives an integer beside a decimal.
INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, INT32: 10, INT64: 20}
_INTEGERS = tuple(INTEGER_DIGITS)
MOST_DIGITS = 38
# A decimal of so many digits is the quotient of two doubles without an error, and all engines round that alike.
EXACT_DIGITS = 15
# Types whose values Spark compares, besides decimals.
_ORDERED = frozenset((*_INTEGERS, FLOAT, DOUBLE, TEXT, DATE, INSTANT, WALL_TIME))
_EQUATED = _ORDERED | {BOOL, BINARY}
_LISTED = frozenset((*_INTEGERS, DOUBLE, TEXT, DATE, INSTANT))


@dataclass(frozen=True, slots=True)
class Typed:
    """A bound operand with its type. `constant` is its plain value, if `is_constant`."""

    expression: Expression
    type: pa.DataType
    is_constant: bool = False
    constant: Any = None


@dataclass(frozen=True, slots=True)
class Signature:
    """The types to which the operands are converted, and the type of the result."""

    operands: tuple[pa.DataType, ...]
    result: pa.DataType


Signatures: TypeAlias = Callable[..., Signature | None]


def is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind))


def is_number(kind: pa.DataType) -> bool:
    return kind in INTEGER_DIGITS or kind == DOUBLE or is_decimal(kind)


def decimal(precision: int, scale: int) -> pa.DataType | None:
    """Return the decimal type, or None if it needs too many digits."""
    return pa.decimal128(max(precision, 1), scale) if max(precision, 1) <= MOST_DIGITS else None


def as_decimal(operand: Typed, *, by_value: bool = True) -> pa.DataType:
    """Return the decimal type to which Spark converts a whole number if the other operand is a decimal.

    `by_value`: as for the operands of an operator, in which a constant gets no more digits than it has.
    """
    if is_decimal(operand.type):
        return operand.type
    if by_value and operand.is_constant and operand.constant is not None:
        return pa.decimal128(len(str(abs(operand.constant))), 0)
    return pa.decimal128(INTEGER_DIGITS[operand.type], 0)


def common_type(operands: Sequence[Typed], *, by_value: bool = True) -> pa.DataType | None:
    """Return the type in which Spark compares values, or gives one of several; None if it is not certain."""
    types = {each.type for each in operands} - {VOID}
    if len(types) < 2:
        return next(iter(types), None)
    if not all(map(is_number, types)) and types != {FLOAT, DOUBLE}:
        return None
    if DOUBLE in types:
        fits = all(kind.precision <= EXACT_DIGITS for kind in types if is_decimal(kind))
        return DOUBLE if fits else None
    if types <= INTEGER_DIGITS.keys():
        return max(types, key=lambda kind: INTEGER_DIGITS[kind])
    decimals = [as_decimal(each, by_value=by_value) for each in operands if each.type != VOID]
    scale = max(each.scale for each in decimals)
    return decimal(max(each.precision - each.scale for each in decimals) + scale, scale)


def holds(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return whether every value of the `other` type is one of `kind`, the same in all engines."""
    if kind == other or other == VOID:
        return True
    if other in INTEGER_DIGITS:
        if kind in INTEGER_DIGITS:
            return INTEGER_DIGITS[kind] > INTEGER_DIGITS[other]
        return kind == DOUBLE or (is_decimal(kind) and kind.precision - kind.scale >= INTEGER_DIGITS[other])
    if is_decimal(other) and is_decimal(kind):
        return bool(kind.scale >= other.scale and kind.precision - kind.scale >= other.precision - other.scale)
    return is_decimal(other) and kind == DOUBLE and bool(other.precision <= EXACT_DIGITS)


# --- signatures -------------------------------------------------------------------------------------------------------


def conditions(*operands: Typed) -> Signature | None:
    """Return the signature of AND, OR and NOT."""
    if all(each.type in (BOOL, VOID) for each in operands):
        return Signature((BOOL,) * len(operands), BOOL)
    return None


def _compared(types: frozenset[pa.DataType], operands: Sequence[Typed]) -> Signature | None:
    kind = _narrowed(operands) or common_type(operands)
    if kind is None or not (kind in types or is_decimal(kind)):
        return None
    if any(each.type in INTEGER_DIGITS for each in operands) and any(map(_is_beyond_integers, operands)):
        # Spark's analysis replaces `i < 1e20BD` by TRUE, which also selects null.
        return None
    return Signature((kind,) * len(operands), BOOL)


def _is_beyond_integers(operand: Typed) -> bool:
    is_decimal_constant = is_decimal(operand.type) and operand.is_constant and operand.constant is not None
    return is_decimal_constant and not -(2**63) <= operand.constant < 2**63


def _narrowed(operands: Sequence[Typed]) -> pa.DataType | None:
    """Return the type of the only operand that is no constant, if all constants fit in it without loss.

    Then only constants are converted. The values compare alike in any exact type.
    """
    types = {each.type for each in operands if not each.is_constant}
    if len(types) != 1:
        return None
    (kind,) = types
    return kind if is_exact(kind) and all(_fits(each, kind) for each in operands if each.is_constant) else None


def is_exact(kind: pa.DataType) -> bool:
    return kind in INTEGER_DIGITS or is_decimal(kind)


def _fits(operand: Typed, kind: pa.DataType) -> bool:
    if operand.type in (VOID, kind):
        return True
    if not is_exact(operand.type):
        return False
    if kind in INTEGER_DIGITS and operand.type in INTEGER_DIGITS:
        return bool(-(2 ** (kind.bit_width - 1)) <= operand.constant < 2 ** (kind.bit_width - 1))
    try:
        pa.scalar(operand.constant, operand.type).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def ordered(*operands: Typed) -> Signature | None:
    """Return the signature of an order between values."""
    return _compared(_ORDERED, operands)


def between(value: Typed, low: Typed, high: Typed) -> Signature | None:
    """Return the signature of BETWEEN, whose bounds Spark compares one by one, each with its own common type."""
    found, bounds = ordered(value, low, high), (ordered(value, low), ordered(value, high))
    if found is None or None in bounds:
        return None
    is_alike = is_exact(found.operands[0]) or all(each and each.operands[0] == found.operands[0] for each in bounds)
    return found if is_alike else None


def equated(*operands: Typed) -> Signature | None:
    """Return the signature of an equality."""
    return _compared(_EQUATED, operands)


def listed(*operands: Typed) -> Signature | None:
    """Return the signature of IN with a list of constants."""
    found = equated(*operands)
    if found is None or (found.operands[0] not in _LISTED and not is_decimal(found.operands[0])):
        return None
    if found.operands[0] == DOUBLE and not all(
        each.constant is None or abs(each.constant) > 0 for each in operands[1:]
    ):
        # Beside many members, Spark takes -0.0 and 0.0 for two values.
        return None
    return found


def tested(operand: Typed) -> Signature | None:
    """Return the signature of IS NULL."""
    return Signature((operand.type,), BOOL)


def matched(text: Typed, pattern: Typed) -> Signature | None:
    """Return the signature of LIKE with a constant pattern."""
    if text.type == pattern.type == TEXT and pattern.is_constant and pattern.constant is not None:
        return Signature((TEXT, TEXT), BOOL)
    return None


def of(result: pa.DataType, *types: pa.DataType) -> Signatures:
    """Return the signature of a function whose operands have exactly these types, or are NULL."""

    def signature(*operands: Typed) -> Signature | None:
        if len(operands) != len(types) or any(
            given.type not in (kind, VOID) for given, kind in zip(operands, types, strict=True)
        ):
            return None
        return Signature(types, result)

    return signature


def _numbers(
    left: Typed, right: Typed, of_decimals: Callable[[pa.DataType, pa.DataType], pa.DataType | None]
) -> Signature | None:
    """Return the signature of arithmetic: in doubles, in the wider integer, or in decimals by Spark's rules."""
    kind = None if VOID in (left.type, right.type) else common_type((left, right))
    if kind == DOUBLE or kind in INTEGER_DIGITS:
        return Signature((kind, kind), kind)
    if not (is_exact(left.type) and is_exact(right.type)):
        return None
    types = as_decimal(left), as_decimal(right)
    result = of_decimals(*types)
    return None if result is None else Signature(types, result)


def sums(left: Typed, right: Typed) -> Signature | None:
    """Return the signature of + and -. Source: Spark, Add.resultDecimalType, BinaryArithmeticWithDatetimeResolver."""
    # A time added to a date makes a timestamp of it, in the session's zone.
    is_moved = left.type in (DATE, INSTANT, WALL_TIME) and right.type in (MONTHS, DAYS)
    if is_moved or (left.type in (INSTANT, WALL_TIME) and right.type == DURATION):
        return Signature((left.type, right.type), left.type)
    if left.type == DATE and right.type in INTEGER_DIGITS and right.type != INT64:
        return Signature((DATE, INT32), DATE)
    return _numbers(
        left,
        right,
        lambda one, other: decimal(
            max(one.precision - one.scale, other.precision - other.scale) + max(one.scale, other.scale) + 1,
            max(one.scale, other.scale),
        ),
    )


def products(left: Typed, right: Typed) -> Signature | None:
    """Return the signature of *. Source: Spark, Multiply.resultDecimalType."""
    return _numbers(
        left, right, lambda one, other: decimal(one.precision + other.precision + 1, one.scale + other.scale)
    )


def quotients(left: Typed, right: Typed) -> Signature | None:
    """Return the signature of / for integers and doubles, which are divided as doubles."""
    types = {left.type, right.type}
    return Signature((DOUBLE, DOUBLE), DOUBLE) if types <= {*_INTEGERS, DOUBLE} else None


def remainders(left: Typed, right: Typed) -> Signature | None:
    """Return the signature of % for integers."""
    kind = common_type((left, right)) if {left.type, right.type} <= set(_INTEGERS) else None
    return None if kind is None else Signature((kind, kind), kind)


def same_number(operand: Typed) -> Signature | None:
    """Return the signature of a function whose result has the type of its one number."""
    return Signature((operand.type,), operand.type) if is_number(operand.type) else None


def magnitude(operand: Typed) -> Signature | None:
    """Return the signature of abs() and of the negation. Spark keeps 34 digits of a decimal."""
    found = same_number(operand)
    return None if found is not None and is_decimal(found.result) and found.result.precision > 34 else found


def rounded(number: Typed, digits: Typed | None = None) -> Signature | None:
    """Return the signature of round() to a constant number of digits after the point.

    Source: Spark, RoundBase.dataType.
    """
    kind, scale = number.type, 0 if digits is None else digits.constant
    if digits is not None and (digits.type != INT32 or not digits.is_constant):
        return None
    if not is_number(kind) or scale is None or not 0 <= scale <= EXACT_DIGITS:
        return None
    result: pa.DataType | None = kind
    if is_decimal(kind):
        left = min(kind.scale, scale)
        result = decimal(kind.precision - kind.scale + left + 1, left)
    return None if result is None else Signature((kind, *(() if digits is None else (INT32,))), result)


def whole_decimal(kind: pa.DataType) -> pa.DataType:
    """Return the type of floor() and ceil() of a decimal. Source: Spark, Floor.dataType."""
    return kind if kind.scale == 0 else pa.decimal128(kind.precision - kind.scale + 1, 0)


def whole(number: Typed) -> Signature | None:
    """Return the signature of floor() and ceil()."""
    if is_decimal(number.type):
        return Signature((number.type,), whole_decimal(number.type)) if number.type.precision < MOST_DIGITS else None
    return Signature((number.type if number.type == DOUBLE else INT64,), INT64) if is_number(number.type) else None


def extreme(*operands: Typed) -> Signature | None:
    """Return the signature of greatest() and least()."""
    found = one_of(*operands)
    return found if found is not None and (found.result in _ORDERED or is_decimal(found.result)) else None


def one_of(*operands: Typed) -> Signature | None:
    """Return the signature of a function that returns one of its operands."""
    kind = common_type(operands, by_value=False)
    return None if kind is None or len(operands) < 1 else Signature((kind,) * len(operands), kind)


def cases(*operands: Typed) -> Signature | None:
    """Return the signature of CASE: conditions, each with its value, and the value of ELSE."""
    if len(operands) < 3 or len(operands) % 2 == 0:
        return None
    tests, values = operands[:-1:2], [*operands[1::2], operands[-1]]
    kind = common_type(values, by_value=False)
    # With ANSI mode Spark refuses NULL as a condition.
    if kind is None or any(each.type != BOOL for each in tests):
        return None
    return Signature((BOOL, kind) * len(tests) + (kind,), kind)


def null_if(value: Typed, other: Typed) -> Signature | None:
    """Return the signature of nullif(), whose result has the type of its first operand."""
    found = equated(value, other)
    return Signature(found.operands, value.type) if found is not None and found.operands[0] == value.type else None


def texts(*operands: Typed) -> Signature | None:
    """Return the signature of concat() and ||, which write whole numbers as texts."""
    types = {each.type for each in operands}
    if not operands or TEXT not in types or not types <= {TEXT, VOID, *_INTEGERS}:
        return None
    return Signature((TEXT,) * len(operands), TEXT)


def constant_from(first: int, signature: Signatures) -> Signatures:
    """Return the signature of a function whose operands from this one on must be constants other than NULL."""

    def only_constants(*operands: Typed) -> Signature | None:
        given = operands[first:]
        if any(not each.is_constant or each.constant is None for each in given):
            return None
        return signature(*operands)

    return only_constants


def truncated(units: frozenset[str]) -> Signatures:
    """Return the signature of date_trunc() to one of the units."""

    def signature(unit: Typed, moment: Typed) -> Signature | None:
        is_known = unit.type == TEXT and unit.is_constant and str(unit.constant).lower() in units
        is_column = moment.type == INSTANT and not moment.is_constant
        return Signature((TEXT, INSTANT), INSTANT) if is_known and is_column else None

    return signature


def formatted(pattern: re.Pattern[str]) -> Signatures:
    """Return the signature of date_format() with a constant that the pattern describes."""

    def signature(moment: Typed, form: Typed) -> Signature | None:
        is_known = form.type == TEXT and form.is_constant and pattern.fullmatch(str(form.constant)) is not None
        return Signature((INSTANT, TEXT), TEXT) if is_known and moment.type == INSTANT else None

    return signature


def named_struct(*operands: Typed) -> Signature | None:
    """Return the signature of named_struct() for names and values."""
    names, values = operands[::2], operands[1::2]
    is_named = all(each.type == TEXT and each.is_constant and each.constant is not None for each in names)
    if not values or len(names) != len(values) or not is_named or any(each.type == VOID for each in values):
        return None
    fields = [pa.field(name.constant, value.type) for name, value in zip(names, values, strict=True)]
    if len({field.name.lower() for field in fields}) < len(fields):
        return None
    return Signature(tuple(each.type for each in operands), pa.struct(fields))


def castable(kind: pa.DataType, given: pa.DataType) -> bool:
    """Return whether CAST is known from the type `given` to `kind`: it has Spark's value, or goes to Spark."""
    if holds(kind, given):
        return True
    if given in INTEGER_DIGITS or is_decimal(given) or given == DOUBLE:
        if kind in INTEGER_DIGITS:
            # With ANSI mode Spark makes a double of a decimal on its way to an int, and only there.
            is_doubled = is_decimal(given) and given.scale > 0 and kind != INT64
            return not is_doubled or given.precision <= EXACT_DIGITS
        if kind == TEXT:
            return given in INTEGER_DIGITS
        return is_decimal(kind) and given != DOUBLE
    if given == TEXT:
        return kind in INTEGER_DIGITS or kind == DATE
    return kind == TEXT and given in (BOOL, DATE)
