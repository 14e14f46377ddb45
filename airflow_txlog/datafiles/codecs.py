"""The codec of each type of single values: its range, and the text of a value in the log, written and read.

Python holds a value plainly: a date as days and a timestamp as microseconds since 1970, because `datetime` ends at the
year 9999. The invariant: `read(write(value)) == value`. `read` accepts every spelling that known writers use for
exactly that value, and returns None rather than guess.
Source: protocol, "Partition Value Serialization".
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.text import (
    SECOND_US,
    date_text,
    decimal_text,
    float_text,
    parse_date,
    parse_timestamp,
    timestamp_text,
)
from airflow_txlog.errors import SchemaMismatch

_EPOCH = dt.datetime(1970, 1, 1)
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?", re.ASCII)
# Spark, Java and delta-rs spell them differently, and each reads the others' spelling.
_SPECIAL_FLOATS = {"nan": "nan", "infinity": "inf", "inf": "inf"}
_EXACT = decimal.Context(prec=100, traps=[decimal.Inexact, decimal.InvalidOperation])


@dataclass(frozen=True, slots=True)
class Codec:
    """One type. `arrow` is the type of its columns, `plain` the Arrow type of plain values."""

    arrow: pa.DataType

    @property
    def plain(self) -> pa.DataType:
        return self.arrow

    def plain_of(self, values: pa.Array) -> pa.Array:
        """Return values of any representation of the type plainly. Raises ArrowInvalid if one does not fit `arrow`."""
        return values if values.type == self.plain else values.cast(self.arrow).cast(self.plain)

    def array(self, plain: Iterable[Any]) -> pa.Array:
        """Return plain values as a column."""
        values = pa.array(plain, self.plain)
        return values if self.plain == self.arrow else values.cast(self.arrow)

    def write(self, value: Any) -> str:
        """Return the text of a plain value."""
        raise NotImplementedError

    def read(self, text: str) -> Any:
        """Return the plain value of a text that is not empty, or None if it is not exactly one of the type."""
        raise NotImplementedError


class Text(Codec):
    def write(self, value: str) -> str:
        return value

    def read(self, text: str) -> str:
        return text


class _Binary(Codec):
    def write(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise SchemaMismatch(
                f"Bytes that are not UTF-8 ({len(value)} of them) cannot be a partition value: partition values are "
                "text, so no reader would give them back. Partition by another column, or encode it (hex, base64) as "
                "a string."
            ) from error

    def read(self, text: str) -> bytes:
        return text.encode()


class _Boolean(Codec):
    def write(self, value: bool) -> str:
        return "true" if value else "false"

    def read(self, text: str) -> bool | None:
        return {"true": True, "false": False}.get(text.lower())


@dataclass(frozen=True, slots=True)
class Integer(Codec):
    """Whole numbers from `least` to `greatest`."""

    least: int
    greatest: int

    def write(self, value: int) -> str:
        return str(value)

    def read(self, text: str) -> int | None:
        return self.held(int(text)) if _INTEGER.fullmatch(text) else None

    def held(self, value: int) -> int | None:
        """Return the value if the type has it, else None."""
        return value if self.least <= value <= self.greatest else None


@dataclass(frozen=True, slots=True)
class Float(Codec):
    is_single: bool

    def write(self, value: float) -> str:
        return float_text(value, self.is_single)

    def read(self, text: str) -> float | None:
        sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text.removeprefix("+"))
        special = _SPECIAL_FLOATS.get(digits.lower())
        if special is not None:
            return float(sign + special)
        if not _NUMBER.fullmatch(digits):
            return None
        # Arrow brings the digits to 32 bits in one step; by way of a double they would be rounded twice.
        try:
            value: float = pa.scalar(sign + digits).cast(self.arrow).as_py()
        except pa.ArrowInvalid:
            return None
        # What overflows is no value of the type.
        return value if abs(value) != float("inf") else None


class Decimal(Codec):
    def write(self, value: decimal.Decimal) -> str:
        return decimal_text(value)

    def read(self, text: str) -> decimal.Decimal | None:
        if not _NUMBER.fullmatch(text):
            return None
        try:
            value = decimal.Decimal(text).quantize(decimal.Decimal(1).scaleb(-self.arrow.scale), context=_EXACT)
        except (decimal.Inexact, decimal.InvalidOperation):
            return None
        return value if len(value.as_tuple().digits) <= self.arrow.precision else None


class Date(Codec):
    @property
    def plain(self) -> pa.DataType:
        return pa.int32()

    def write(self, value: int) -> str:
        return date_text(value)

    def read(self, text: str) -> int | None:
        return parse_date(text)


class WallTime(Codec):
    """Without a zone, as a clock shows it. In the only form that delta-rs reads: `yyyy-MM-dd HH:mm:ss[.f]`."""

    @property
    def plain(self) -> pa.DataType:
        return pa.int64()

    def write(self, value: int) -> str:
        return timestamp_text(value, separator=" ", fraction_digits=None)

    def read(self, text: str) -> int | None:
        parsed = parse_timestamp(text)
        # An offset in a value that has none by type: readers disagree whether it counts.
        return None if parsed is None or parsed[1] is not None else _in_range(parsed[0])


WALL_TIME = WallTime(pa.timestamp("us"))


@dataclass(frozen=True, slots=True)
class Instant(WallTime):
    """`yyyy-MM-ddTHH:mm:ss.ffffffZ` in UTC, which every reader knows. A text without an offset is read in `zone`."""

    zone: dt.timezone | None = None

    def write(self, value: int) -> str:
        return timestamp_text(value) + "Z"

    def read(self, text: str) -> int | None:
        parsed = parse_timestamp(text)
        if parsed is None:
            return None
        wall_us, offset_s = parsed
        if offset_s is not None:
            return _in_range(wall_us - offset_s * SECOND_US)
        return None if self.zone is None else _in_range(at_offset(wall_us, self.zone))


def codec_of(arrow: pa.DataType, zone: dt.timezone | None = None) -> Codec | None:
    """Return the codec of the type whose values `arrow` represents, or None for void and nested types.

    `zone` is that of timestamps whose type has one and whose text has none.
    """
    is_a = pa.types
    if is_a.is_boolean(arrow):
        return _Boolean(arrow)
    if is_a.is_integer(arrow):
        values = 1 << arrow.bit_width
        least = -(values >> 1) if is_a.is_signed_integer(arrow) else 0
        return Integer(arrow, least, least + values - 1)
    if is_a.is_floating(arrow):
        is_single = not is_a.is_float64(arrow)
        return Float(pa.float32() if is_single else arrow, is_single)
    if is_a.is_decimal(arrow):
        # Arrow compares narrower ones as these.
        wide = pa.decimal256 if is_a.is_decimal256(arrow) else pa.decimal128
        return Decimal(wide(arrow.precision, arrow.scale))
    if is_a.is_string(arrow) or is_a.is_large_string(arrow) or is_a.is_string_view(arrow):
        return Text(arrow)
    if (
        is_a.is_binary(arrow)
        or is_a.is_large_binary(arrow)
        or is_a.is_binary_view(arrow)
        or is_a.is_fixed_size_binary(arrow)
    ):
        return _Binary(arrow)
    if is_a.is_date(arrow):
        return Date(pa.date32())
    if is_a.is_timestamp(arrow):
        held = pa.timestamp("us", tz=arrow.tz)
        return WallTime(held) if arrow.tz is None else Instant(held, zone)
    return None


def plain_date(day: dt.date) -> int:
    """Return a date of Python plainly."""
    return day.toordinal() - _EPOCH.toordinal()


def plain_time(moment: dt.datetime) -> int:
    """Return a datetime of Python plainly: the instant, or without a zone the time as a clock shows it."""
    epoch = _EPOCH if moment.tzinfo is None else _EPOCH.replace(tzinfo=dt.UTC)
    return (moment - epoch) // dt.timedelta(microseconds=1)


def at_offset(wall_us: int, zone: dt.timezone) -> int:
    """Return the microseconds since 1970 UTC at which a clock with this offset shows `wall_us`."""
    return wall_us - zone.utcoffset(None) // dt.timedelta(microseconds=1)


def _in_range(microseconds: int) -> int | None:
    return microseconds if -(1 << 63) <= microseconds < 1 << 63 else None
