"""The bounds that a value of `minValues` or `maxValues`, as JSON text, defends in the column's type.

Every rule answers a measured way in which a writer's statistic differs from the real value; docs/statistics.md lists
writers, types and rules. The invariant: whatever known writer wrote the text as a minimum (maximum), the file holds no
value below the lower (above the upper) bound made from it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.codecs import SECOND_US, Integer, parse_timestamp
from airflow_txlog.engine.table.schema.schema import INTEGERS, arrow_type, codec
from airflow_txlog.engine.table.schema.types import DataType, DecimalType, Primitive, StructField

Bound = tuple[Any, Any]
"""Lower and upper bound as plain values (`codecs`), None if the text does not bound that side."""
Reader = Callable[[list[bytes]], list[Bound | None]]
"""Reads texts; None for a text that is no value of the type."""

_INTEGER = re.compile(rb"-?\d{1,19}")
_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][+-]?\d{1,4})?")
# Timestamps are cut to milliseconds; without a fraction, maybe to seconds.
_CUT_US = SECOND_US // 1000
_CUT_WITHOUT_FRACTION_US = SECOND_US
# An offset from UTC that was cut to minutes is off by less than one. Named zones have had offsets of whole minutes
# since January 1972 (Liberia).
_CUT_OFFSET_US = 60 * SECOND_US
_WHOLE_MINUTES_SINCE_US = 3 * 365 * 86_400 * SECOND_US  # 1972-12-31
# XTable shows days before 1582-10-15 by the Julian calendar, which is up to ten days off.
_JULIAN_UNTIL_US = -141_427 * 86_400 * SECOND_US
_CALENDARS_US = 12 * 86_400 * SECOND_US
# A decimal of up to 15 digits survives a double; in a longer one the 15th digit may be off by one.
_DOUBLE_DIGITS = 15
_LONGEST_DECIMAL = 80
_WIDE = Context(prec=120)
# delta-rs once padded bytes of fixed length on the wrong side, which multiplies a value by a power of 256. It did so
# for these precisions; longer numbers fill all sixteen bytes.
_PADDED_PRECISIONS = range(19, 37)
# delta-rs once counted days from the year 1 instead of 1970, so its dates are 1969 years too early. A minimum before
# the first of these days shows it, and so does a maximum between the others, which means at most 9999-12-31.
_SHIFTED_BEFORE = dt.date(1000, 1, 1)
_SHIFTED_FROM, _SHIFTED_UP_TO = dt.date(2500, 1, 1), dt.date.fromordinal(2_932_896)
_MAX_CHAR = chr(0x10FFFF)
PYTHONS_SEPARATOR = '": '
"""The separator of key and value in JSON of Python; other writers' JSON has no blank."""
# Replaces bytes that are no UTF-8, and ends a maximum that an old delta-spark has cut.
_REPLACEMENT = "\ufffd"


def bound_reader(member: StructField) -> Reader | None:
    """Return the reader of this column's statistics, or None if none is trusted.

    None is trusted for boolean, binary, void and nested columns; for char and collated columns, which do not compare by
    bytes; and for columns with an unknown change of type. Source: soundness, A5 and A4.
    """
    if member.is_char or member.is_collated:
        return None
    reader = _reader_of(member.type, is_widened=member.is_widened)
    if reader is None or not member.is_widened:
        return reader
    older = _older_types(member)
    if older is None:
        return None
    # Texts of old files are of the old type, which they do not show. Only in 32-bit floats do the same digits mean
    # another value, so these are read as both types and the wider bounds are used.
    single = _reader_of(Primitive.FLOAT)
    if Primitive.FLOAT not in older or single is None:
        return reader

    def either(texts: list[bytes]) -> list[Bound | None]:
        pairs = zip(reader(texts), single(texts), strict=True)
        return [None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1])) for a, b in pairs]

    return either


def defended(member: StructField, lower: pa.Array, upper: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the bounds without those that the type or the other side puts in doubt. Source: soundness, A5 and A21."""
    unknown = pa.scalar(None, upper.type)
    if isinstance(member.type, DecimalType) and member.type.precision in _PADDED_PRECISIONS:
        zero = pa.scalar(Decimal(0).scaleb(-member.type.scale)).cast(lower.type)
        lower, upper = (pc.if_else(pc.greater(lower, zero), zero, lower), pc.if_else(pc.less(upper, zero), zero, upper))
    # delta-rs once wrote the minimum of a file with several row groups as its maximum, and no minimum.
    upper = pc.if_else(pc.is_null(lower), unknown, upper)
    if member.type is Primitive.DATE or (member.is_widened and Primitive.DATE in (_older_types(member) or ())):
        days = pa.array([_SHIFTED_BEFORE, _SHIFTED_FROM, _SHIFTED_UP_TO], pa.date32()).cast(upper.type)
        before, start, end = days
        is_shifted = pc.less(lower, before)
        may_be = pc.and_(pc.greater_equal(upper, start), pc.less_equal(upper, end))
        upper = pc.if_else(pc.fill_null(pc.or_kleene(is_shifted, may_be), False), unknown, upper)
    return lower, upper


def _reader_of(data_type: DataType, *, is_widened: bool = False) -> Reader | None:
    read = value_reader(data_type)
    if read is None:
        return None
    match data_type:
        case Primitive.FLOAT | Primitive.DOUBLE:
            arrow = arrow_type(data_type)
            return lambda texts: _floats(texts, arrow)
        case DecimalType(precision, scale):
            # An integer column that was widened has whole numbers in its old files.
            has_point = scale > 0 and not is_widened
            return lambda texts: [_decimal(text, precision, scale, has_point) for text in texts]
        case Primitive.STRING:
            return lambda texts: [_string(text) for text in texts]
        case Primitive.TIMESTAMP:
            return lambda texts: [_timestamp(text, has_zone=True) for text in texts]
        case Primitive.TIMESTAMP_NTZ:
            return lambda texts: [_timestamp(text, has_zone=False) for text in texts]
    return lambda texts: [None if value is None else (value, value) for value in map(read, texts)]


# --- many texts at once ----------------------------------------------------------------------------------------------

# Each text of such a form is an ISO 8601 timestamp for Arrow, or refused by it.
_INSTANT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}([0-9]{3})?"


def usual_bounds(member_type: DataType, texts: pa.StringArray, side: int) -> pa.Array:
    """Return the lower (`side` 0) or upper bounds of texts of the usual form, without quotes; null for the others.

    They equal those of `bound_reader` for a column that was never widened. Only decimals and timestamps have a usual
    form here. Raises ArrowInvalid for a usual form that is no value of the type.
    """
    match member_type:
        case DecimalType(precision, scale):
            # Few enough digits to survive a double, and to be a value of the type.
            digits = min(_DOUBLE_DIGITS - scale, precision - scale)
            if digits > 0:
                point = rf"\.[0-9]{{1,{scale}}}" if scale else ""
                return _of_form(texts, rf"^-?[0-9]{{1,{digits}}}{point}$", member_type)
        case Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ:
            has_zone = member_type is Primitive.TIMESTAMP
            moments = _of_form(texts, _INSTANT + ("Z$" if has_zone else "$"), member_type)
            # Before, clocks and calendars differ.
            is_late = pc.greater_equal(moments.cast(pa.int64()), _WHOLE_MINUTES_SINCE_US)
            moments = pc.if_else(is_late, moments, pa.scalar(None, moments.type))
            return pc.add(moments, pa.scalar(_CUT_US, pa.duration("us"))) if side else moments
    return pa.nulls(len(texts), arrow_type(member_type))


def _of_form(texts: pa.StringArray, pattern: str, member_type: DataType) -> pa.Array:
    usual = pc.match_substring_regex(texts, pattern)
    return pc.if_else(usual, texts, pa.scalar(None, pa.string())).cast(arrow_type(member_type))


# --- types that were widened -----------------------------------------------------------------------------------------

_WIDENED_FROM = {
    str(of): of
    for of in (*INTEGERS, Primitive.FLOAT, Primitive.DATE)  # the sources of the protocol's list
}
_DECIMAL_NAME = re.compile(r"decimal\(\d+,\d+\)", re.ASCII)


def _older_types(member: StructField) -> set[DataType] | None:
    """Return the primitive types that this column had before, without decimals (they read alike); None if unknown."""
    older: set[DataType] = set()
    changes = member.metadata.get("delta.typeChanges")
    for change in changes if isinstance(changes, list) else [None]:
        name = change.get("fromType") if isinstance(change, dict) and "fieldPath" not in change else None
        if name in _WIDENED_FROM:
            older.add(_WIDENED_FROM[name])
        elif not isinstance(name, str) or not _DECIMAL_NAME.fullmatch(name):
            return None
    return older


# --- one type --------------------------------------------------------------------------------------------------------


def value_reader(data_type: DataType) -> Callable[[bytes], Any] | None:
    """Return the reader of exact values from JSON; None for a type without bounds (delta-spark, SkippingEligible)."""
    found = codec(data_type)
    if found is None or data_type in (Primitive.BOOLEAN, Primitive.BINARY):
        return None
    read = found.read
    if isinstance(found, Integer):
        # A number with a point or an exponent is none: a writer that went through a double may have moved it.
        held = found.held
        return lambda text: held(int(text)) if _INTEGER.fullmatch(text) else None
    if isinstance(data_type, DecimalType) or data_type in (Primitive.FLOAT, Primitive.DOUBLE):
        return lambda text: read(text.decode()) if _NUMBER.fullmatch(text) else None
    return lambda text: None if (value := _json_string(text)) is None else read(value)


def _floats(texts: list[bytes], arrow: pa.DataType) -> list[Bound | None]:
    # Arrow reads the digits as the column's own width: a 32-bit 0.1 written as 0.1 or as 0.10000000149011612 is one
    # value, which no double is. A value that overflows becomes infinite, and that, like NaN, bounds nothing.
    numbers = pa.array([text if _NUMBER.fullmatch(text) else None for text in texts], pa.string()).cast(arrow)
    infinite = float("inf")
    return [None if value is None or abs(value) == infinite else (value, value) for value in numbers.to_pylist()]


def _decimal(text: bytes, precision: int, scale: int, has_point: bool) -> Bound | None:
    if not _NUMBER.fullmatch(text) or len(text) > _LONGEST_DECIMAL:
        return None
    value = Decimal(text.decode())
    # Every writer shows the point, but early ones of delta-rs and delta-go, which wrote 1.25 as 125.
    if has_point and value and text.lstrip(b"-").isdigit():
        return None
    # Some writers pass decimals through a double (and write 12345678901234567.89 as 1.2345678901234568e+16, or
    # 0.30000000000000001665 as 0.3). The text hides it, but the column does not: a multiple of 10^-scale that counts
    # fewer than 10^15 of them survives. Anything else may have moved, by less than one unit of its 15th digit.
    survives = value.adjusted() + scale < _DOUBLE_DIGITS and b"e" not in text.lower()
    if survives and -int(value.as_tuple().exponent) <= scale and value.adjusted() < precision - scale:
        return value, value
    room = Decimal(0) if survives or not value else Decimal(1).scaleb(value.adjusted() - _DOUBLE_DIGITS + 1, _WIDE)
    return _on_grid(_WIDE.subtract(value, room), _WIDE.add(value, room), precision, scale)


def _on_grid(lower: Decimal, upper: Decimal, precision: int, scale: int) -> Bound | None:
    """Return the bounds rounded outwards to the type's own values, and clipped to the largest of them."""
    largest = Decimal(10**precision - 1).scaleb(-scale, _WIDE)
    # A minus sign would round to the 28 digits of the default context.
    smallest = largest.copy_negate()
    if lower > largest or upper < smallest:
        return None
    unit = Decimal(1).scaleb(-scale)
    return (
        max(lower, smallest).quantize(unit, ROUND_FLOOR, _WIDE),
        min(upper, largest).quantize(unit, ROUND_CEILING, _WIDE),
    )


def _string(text: bytes) -> Bound | None:
    value = _json_string(text)
    return None if value is None else string_bounds(value)


def string_bounds(value: str) -> Bound:
    """Return the bounds that a text defends, the upper one exclusive.

    A maximum may be the beginning of the real one, cut after 32 characters or after 64 bytes. It is not trusted from
    the first U+FFFD on: delta-spark before 3.3 ends a cut maximum with it, although the real one may continue with a
    greater character, and Java writes it for bytes that are not UTF-8, which are smaller or greater than it. Half of a
    surrogate pair in front of it became a question mark.
    """
    known, replaced, _ = value.partition(_REPLACEMENT)
    return known, first_after(known.removesuffix("?") if replaced else known)


def first_after(prefix: str) -> str | None:
    """Return the smallest string greater than all that begin with `prefix`, or None if there is no such string."""
    kept = prefix.rstrip(_MAX_CHAR)
    if not kept:
        return None
    after = ord(kept[-1]) + 1
    # Surrogates are not characters.
    return kept[:-1] + chr(0xE000 if after == 0xD800 else after)


def _timestamp(text: bytes, *, has_zone: bool) -> Bound | None:
    value = _json_string(text)
    parsed = None if value is None else parse_timestamp(value)
    # A text with a zone in a column without one, or the reverse: the intended clock is unknown.
    if parsed is None or (parsed[1] is None) == has_zone:
        return None
    lower = parsed[0] - (parsed[1] or 0) * SECOND_US
    upper = lower + (_CUT_US if "." in str(value) else _CUT_WITHOUT_FRACTION_US)
    # delta-spark 3.2 and 3.3 write instants by the session's clock, and of its offset the minutes: 09:18:59 becomes
    # +09:18, and less than a minute becomes Z. Clocks of named zones had seconds until 1972; a session may have an
    # offset with seconds at any time.
    if has_zone and (parsed[1] or lower < _WHOLE_MINUTES_SINCE_US):
        lower, upper = lower - _CUT_OFFSET_US, upper + _CUT_OFFSET_US
    if lower < _JULIAN_UNTIL_US:
        lower, upper = lower - _CALENDARS_US, upper + _CALENDARS_US
    if not -(1 << 63) <= lower < upper < 1 << 63:
        return None
    return lower, upper


def _json_string(text: bytes) -> str | None:
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return None
