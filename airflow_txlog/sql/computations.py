"""Computations on Arrow arrays as Spark computes them, for the table in `evaluation`.

Each takes its operands in the types of its signature: arrays, and scalars for constants; at least one is an array. The
invariant: the value is Spark's in every mode, or the computation raises `ForSpark` or Arrow's ArrowInvalid, and the job
has Spark compute the text instead. So this module has no error messages and need not know the modes.
Source: Spark 4.2, Cast, RoundBase, UTF8String, CharVarcharUtils; tests/sql/test_known_against_spark.py.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.sql.operand_types import (
    BINARY,
    DATE,
    DOUBLE,
    INSTANT,
    INT32,
    INT64,
    INTEGER_DIGITS,
    MOST_DIGITS,
    TEXT,
    WALL_TIME,
    is_decimal,
    whole_decimal,
)

Value: TypeAlias = Any
"""An array, or a scalar for all rows."""


class ForSpark(Exception):
    """A value that only Spark can compute, or for which it raises an error. `args[0]` names its kind."""


def aligned(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return the values in one array of the type in which they are compared."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return array if array.type == kind else array.cast(kind)


def converted(value: Value, kind: pa.DataType) -> Value:
    """Return the values in another type, as CAST does. Raises ForSpark and ArrowInvalid."""
    given = value.type
    if given == kind:
        return value
    if given == pa.null() or pa.types.is_struct(kind):
        return value.cast(kind)
    if is_decimal(given):
        return _decimal_as(value, given, kind)
    if given == DOUBLE:
        # A cast that is safe fails for NaN and for what does not fit.
        return pc.trunc(value).cast(kind)
    if kind == DOUBLE:
        return value.cast(DOUBLE, safe=False)
    if given in INTEGER_DIGITS and is_decimal(kind):
        return value.cast(pa.decimal128(INTEGER_DIGITS[given], 0)).cast(kind)
    if pa.types.is_timestamp(given) and kind == DATE:
        return value.cast(INSTANT).cast(INT64).cast(WALL_TIME).cast(DATE)
    if given == TEXT:
        return _text_as(value, kind)
    if given == DATE:
        days = value.cast(INT32)
        check(pc.and_(pc.less_equal(days, LAST_DAY), pc.greater_equal(days, FIRST_DAY)), "a year of five digits")
    return value.cast(kind)


# Texts that Spark reads with ANSI mode on and off; it knows more forms.
_WHOLE_NUMBER, _DAY = r"^-?[0-9]{1,18}\z", r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\z"


def _text_as(text: Value, kind: pa.DataType) -> Value:
    check(pc.match_substring_regex(text, _DAY if kind == DATE else _WHOLE_NUMBER), f"a text that may be no {kind}")
    found = text.cast(kind)
    if kind == DATE:
        check(pc.greater_equal(found.cast(INT32), FIRST_DAY), "a year 0")
    return found


# Of the years 1 to 9999.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896


def _decimal_as(value: Value, given: pa.DataType, kind: pa.DataType) -> Value:
    if is_decimal(kind):
        if given.scale > kind.scale:
            value = round_half_up(value, kind.scale)
        return value.cast(kind)
    if kind == DOUBLE:
        # Both are exact, and the division gives the nearest double.
        return pc.divide(_units(value).cast(DOUBLE), float(10**given.scale))
    return pc.trunc(value).cast(kind)


# Decimals of so many digits are computed as integers, which is several times faster.
_INTEGER_DIGITS = 17
_EXACT = Context(prec=MOST_DIGITS)


def _units(value: Value) -> Value:
    """Return decimals of at most 18 digits in units of their last digit."""
    array = pa.array([value.as_py()], value.type) if isinstance(value, pa.Scalar) else value
    units = _with_scale(array, value.type.precision, 0).cast(pa.int64())
    return units[0] if isinstance(value, pa.Scalar) else units


def _with_scale(array: pa.Array, precision: int, scale: int) -> pa.Array:
    """Return the same digits as decimals of another scale, without a copy."""
    kind = pa.decimal128(precision, scale)
    return pa.Array.from_buffers(kind, len(array), array.buffers(), array.null_count, array.offset)


def check(holds: Value, what: str) -> None:
    """Raise ForSpark unless the condition is true of every value that is not null."""
    if not pc.all(holds, min_count=0).as_py():
        raise ForSpark(what)


# --- conditions -------------------------------------------------------------------------------------------------------


def is_in(values: pa.Array, members: pa.Array) -> pa.Array:
    values = aligned(values, members.type)
    return pc.if_else(pc.is_valid(values), pc.is_in(values, value_set=members), pa.scalar(None, pa.bool_()))


def _compared(
    compare: Callable[[Any, Any], Any], beside_nan: Callable[[Any, Any, Any], Any]
) -> Callable[[Value, Value], Value]:
    """Return a comparison. `beside_nan` corrects its result for floats, given on which sides each row has NaN."""

    def compute(left: Value, right: Value) -> Value:
        # In a leaf of a predicate, a float column is compared with a double.
        if left.type != right.type:
            left = aligned(left, right.type)
        found = compare(left, right)
        if not pa.types.is_floating(right.type):
            return found
        return beside_nan(found, pc.is_nan(left), pc.is_nan(right))

    return compute


equal = _compared(pc.equal, lambda found, left, right: pc.or_(found, pc.and_(left, right)))
less = _compared(pc.less, lambda found, left, right: pc.or_(found, pc.and_not(right, left)))
more = _compared(pc.greater, lambda found, left, right: pc.or_(found, pc.and_not(left, right)))
at_most = _compared(pc.less_equal, lambda found, _, right: pc.or_(found, right))
at_least = _compared(pc.greater_equal, lambda found, left, _: pc.or_(found, left))


def starts_with(text: pa.Array, prefix: pa.Scalar) -> pa.Array:
    return pc.starts_with(aligned(text, prefix.type), prefix.as_py())


def like(text: pa.Array, pattern: pa.Scalar) -> pa.Array:
    # On bytes, so that `%` also matches bytes that are not Unicode.
    return pc.match_like(aligned(text, TEXT).cast(pa.binary()), pattern.as_py())


def like_with_one(text: Value, pattern: pa.Scalar) -> Value:
    """Return LIKE of a pattern with `_`, which is one character. Raises ArrowInvalid for a text that is not UTF-8."""
    text.validate(full=True)
    return pc.match_like(text, pattern.as_py())


def on_bytes(test: Callable[..., Value]) -> Callable[[Value, pa.Scalar], Value]:
    """Return a test whether a text has a constant in it. Spark looks at the bytes, of any encoding."""
    return lambda text, part: test(text.cast(BINARY), part.as_py().encode())


def null_safe(left: Value, right: Value) -> Value:
    either, both = pc.or_(pc.is_null(left), pc.is_null(right)), pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.if_else(either, both, equal(left, right))


def between(value: Value, low: Value, high: Value) -> Value:
    return pc.and_kleene(at_least(value, low), at_most(value, high))


def case(*operands: Value) -> Value:
    """Return the value after the first condition that is true, else the last one."""
    found = operands[-1]
    for at in range(len(operands) - 3, -1, -2):
        found = pc.if_else(pc.fill_null(operands[at], False), operands[at + 1], found)
    return found


def null_if(value: Value, other: Value) -> Value:
    return pc.if_else(pc.fill_null(equal(value, other), False), pa.scalar(None, value.type), value)


def first_by(is_better: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    """Return greatest() or least(), which skip null and return the first one of equal values."""

    def compute(*operands: Value) -> Value:
        def better(found: Value, other: Value) -> Value:
            takes = pc.or_(pc.is_null(found), pc.fill_null(is_better(other, found), False))
            return pc.if_else(takes, other, found)

        return reduce(better, operands)

    return compute


# --- numbers ----------------------------------------------------------------------------------------------------------


def quotient(left: Value, right: Value) -> Value:
    check(pc.not_equal(right, 0.0), "a division by zero")
    return pc.divide(left, right)


def remainder(left: Value, right: Value) -> Value:
    """Return the remainder with the sign of the dividend."""
    return pc.subtract(left, pc.multiply(pc.divide_checked(left, right), right))


def round_half_up(value: Value, digits: int) -> Value:
    """Return decimals of the same scale, with room for the carry. Raises ForSpark if 38 digits may not have it."""
    kind = value.type
    if kind.precision < MOST_DIGITS:
        value = _wider(value)
    elif digits < kind.scale:
        first_carried = Decimal(10**MOST_DIGITS - 5 * 10 ** (kind.scale - digits - 1)).scaleb(-kind.scale, _EXACT)
        check(pc.less(pc.abs(value), pa.scalar(first_carried, kind)), "a number of many digits")
    return pc.round(value, ndigits=digits, round_mode="half_towards_infinity")


def _wider(value: Value) -> Value:
    """Return decimals of one digit more. Arrow may make 0, without an error, of a rounded value that does not fit."""
    return value.cast(pa.decimal128(value.type.precision + 1, value.type.scale))


def rounded(number: Value, digits: pa.Scalar | None = None) -> Value:
    """Return the number with `digits` after the point; a half is rounded away from zero."""
    kind, places = number.type, 0 if digits is None else digits.as_py()
    if kind == DOUBLE:
        return _double_rounded(number, places)
    if not is_decimal(kind):
        return number
    left = min(kind.scale, places)
    if kind.precision <= _INTEGER_DIGITS and isinstance(number, pa.Array):
        unit, units = 10 ** (kind.scale - left), _units(number)
        # A division of integers drops what is left.
        half = pc.if_else(pc.less(units, 0), -(unit // 2), unit // 2)
        whole = pc.divide(pc.add(units, half), unit) if unit > 1 else units
        return _with_scale(whole.cast(pa.decimal128(19, 0)), kind.precision - kind.scale + left + 1, left)
    return round_half_up(number, left).cast(pa.decimal128(kind.precision - kind.scale + left + 1, left))


def whole(round_mode: str) -> Callable[[Value], Value]:
    """Return floor() or ceil(). Raises ArrowInvalid for NaN and for a double that no whole number of 64 bits holds."""

    def compute(number: Value) -> Value:
        kind = number.type
        if is_decimal(kind):
            return pc.round(_wider(number), ndigits=0, round_mode=round_mode).cast(whole_decimal(kind))
        return pc.round(number, ndigits=0, round_mode=round_mode).cast(INT64) if kind == DOUBLE else number

    return compute


_MOST_EXACT = 1e14


def _double_rounded(number: Value, places: int) -> Value:
    """Round the shortest decimal text of each double, as Java does.

    Let T be the decimal halfway between two results. It has at most 15 digits, so T is the shortest text of the double
    t next to it, and the text of any smaller (greater) double is smaller (greater) than T. So comparing with t decides.
    """
    power = float(10**places)
    size = pc.abs(number)
    scaled = pc.multiply(size, power)
    is_small = pc.less(scaled, _MOST_EXACT)
    # NaN, infinities, and numbers without a fraction, are their own results.
    check(pc.or_(is_small, pc.or_(pc.is_nan(size), pc.greater_equal(size, 2.0**52))), "a number of many digits")
    below = pc.floor(scaled)
    halfway = pc.divide(pc.add(pc.multiply(below, 2.0), 1.0), 2.0 * power)
    whole = pc.if_else(pc.greater_equal(size, halfway), pc.add(below, 1.0), below)
    # Adding zero makes 0.0 of -0.0.
    found = pc.add(pc.multiply(pc.divide(whole, power), pc.sign(number)), 0.0)
    return pc.if_else(is_small, found, number)


# --- texts ------------------------------------------------------------------------------------------------------------


def trimmed(trim: Callable[..., pa.Array]) -> Callable[[Value], Value]:
    # Spark trims spaces alone.
    return lambda text: trim(text, characters=" ")


def replaced(text: Value, search: pa.Scalar, replacement: pa.Scalar | None = None) -> Value:
    other = "" if replacement is None else replacement.as_py()
    return pc.replace_substring(text, search.as_py(), other) if search.as_py() else text


def joined(*texts: Value) -> Value:
    return pc.binary_join_element_wise(*texts, "", null_handling="emit_null")


def counting_characters(compute: Callable[..., Value]) -> Callable[..., Value]:
    """Wrap a function that counts the characters of a text, its first operand: Spark has its own way for other bytes.

    Raises ArrowInvalid for a text that is not UTF-8.
    """

    def computed(text: Value, *others: Any) -> Value:
        text.validate(full=True)
        return compute(text, *others)

    return computed


def substring(text: Value, position: pa.Scalar, length: pa.Scalar | None = None) -> Value:
    """Return part of a text; a position counts from 1, or from the end if it is negative, and 0 is 1."""
    first, count = position.as_py(), None if length is None else length.as_py()
    start = first - 1 if first > 0 else first
    if count is None:
        return pc.utf8_slice_codeunits(text, start)
    if count <= 0:
        return pc.utf8_slice_codeunits(text, 0, 0)
    end = start + count
    return pc.utf8_slice_codeunits(text, start, None if start < 0 <= end else min(end, 2**31 - 1))


def left_part(text: Value, length: pa.Scalar) -> Value:
    return pc.utf8_slice_codeunits(text, 0, max(length.as_py(), 0))


def right_part(text: Value, length: pa.Scalar) -> Value:
    count = length.as_py()
    return pc.utf8_slice_codeunits(text, -count) if count > 0 else pc.utf8_slice_codeunits(text, 0, 0)


# A character that Arrow may change in another way than Java, with its newer Unicode or because it looks at it alone:
# ß, İ, Σ at the end of a word, and all outside of Latin, Greek, Cyrillic, scripts without case, punctuation and emoji.
_OF_OTHER_CASE = (
    r"[^\x{0}-\x{de}\x{e0}-\x{12f}\x{131}-\x{148}\x{14a}-\x{19a}\x{19c}-\x{1ef}\x{1f1}-\x{24f}\x{370}-\x{38f}\x{391}-\x{3a1}"
    r"\x{3a4}-\x{3af}\x{3b1}-\x{52f}\x{590}-\x{fff}\x{2000}-\x{20ff}\x{3000}-\x{9fff}\x{ac00}-\x{d7a3}\x{1f000}-\x{1faff}]"
)


def in_case(of_ascii: Callable[[Value], Value], change: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """Return upper() or lower() of texts whose letters have one other case in every version of Unicode."""

    def compute(text: Value) -> Value:
        if _has_small_bytes(text):
            return of_ascii(text)
        array = text if isinstance(text, pa.Array) else pa.array([text.as_py()], TEXT)
        others = array.filter(pc.invert(pc.string_is_ascii(array)))
        check(
            pc.invert(pc.match_substring_regex(others, _OF_OTHER_CASE)), "letters of which Java may know another case"
        )
        # Arrow would read characters of too many bytes.
        text.validate(full=True)
        return change(text)

    return compute


def _has_small_bytes(text: Value) -> bool:
    """Return whether the memory of an array of texts has no byte of another character than ASCII."""
    data = text.buffers()[2] if isinstance(text, pa.Array) else None
    if data is None:
        return False
    return bool(pc.greater_equal(pc.min(pa.Array.from_buffers(pa.int8(), data.size, [None, data])), 0).as_py())


# --- structs ----------------------------------------------------------------------------------------------------------


def struct_of(*operands: Value) -> Value:
    names, values = [each.as_py() for each in operands[::2]], operands[1::2]
    count = next(len(each) for each in values if isinstance(each, pa.Array))
    arrays = [pa.repeat(each, count) if isinstance(each, pa.Scalar) else each for each in values]
    return pa.StructArray.from_arrays(arrays, names)


def member(struct: Value, name: str) -> Value:
    return pc.struct_field(struct, [name])


def all_true(*each: Value) -> Value:
    return reduce(pc.and_kleene, each)


def any_true(*each: Value) -> Value:
    return reduce(pc.or_kleene, each)
