"""The codec of each type of single values: its range, and the text of a value in the log, written and read.

Values are plain: a date is days and a timestamp microseconds since 1970, because `datetime` ends at the year 9999. The
invariant: `read(write(value)) == value`. `read` accepts every spelling that known writers use for exactly that value,
and returns None rather than guess. Source: protocol, "Partition Value Serialization".
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_txlog.errors import SchemaMismatch

DAY_S = 86_400
SECOND_US = 1_000_000

_DATE = r"([+-]?\d{4,7})-(\d{1,2})-(\d{1,2})"
_TIME = r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?"
_OFFSET = r"(Z|[+-](?:0\d|1[0-8])(?::?[0-5]\d)?)"
# ASCII: otherwise `\d` takes the digits of every script, which no other reader does.
_DATE_PATTERN = re.compile(_DATE, re.ASCII)
_TIMESTAMP_PATTERN = re.compile(f"{_DATE}(?:[T ]{_TIME}{_OFFSET}?)?", re.ASCII)
_DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_EPOCH = dt.datetime(1970, 1, 1)
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?", re.ASCII)
# Spark, Java and delta-rs spell them differently, and each reads all spellings.
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
        """Return the plain value of a nonempty text, or None if it is not exactly one of the type."""
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
        except UnicodeDecodeError:
            raise SchemaMismatch(
                f"Bytes that are not UTF-8 ({len(value)} of them) cannot be a partition value: partition values are "
                "text, so no reader would give them back. Partition by another column, or encode it (hex, base64) as "
                "a string."
            ) from None

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
        """Return the value if the type can hold it, else None."""
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
        # Arrow converts the digits to 32 bits in one step; through a double they would be rounded twice.
        try:
            value: float = pa.scalar(sign + digits).cast(self.arrow).as_py()
        except pa.ArrowInvalid:
            return None
        # A number that overflows is no value of the type.
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

    `zone` applies to texts without an offset, if the type is a timestamp with a zone.
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
        # Arrow compares narrower decimals as these.
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


# --- texts -----------------------------------------------------------------------------------------------------------


def date_text(days: int) -> str:
    """Return `yyyy-MM-dd` of days since 1970-01-01, with a plus sign after the year 9999 and a minus before 0."""
    # Years are counted from March, so that the leap day is the last of its year; 719468 days lie between 0000-03-01
    # and 1970-01-01, 146097 days make 400 years.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = year_of_era + era * 400 + (month <= 2)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def parse_date(text: str) -> int | None:
    """Return days since 1970-01-01, or None if the text is not just a date, or the days do not fit 32 bits."""
    found = _DATE_PATTERN.fullmatch(text)
    days = None if found is None else _days(*map(int, found.groups()))
    return days if days is not None and -(1 << 31) <= days < 1 << 31 else None


def timestamp_text(microseconds: int, separator: str = "T", fraction_digits: int | None = 6) -> str:
    """Return `yyyy-MM-dd`, the separator, and `HH:mm:ss.ffffff`, without a zone.

    Fewer `fraction_digits` cut off the rest, towards the past; None writes as many as needed, maybe none.
    """
    seconds, fraction = divmod(microseconds, SECOND_US)
    days, second_of_day = divmod(seconds, DAY_S)
    minute_of_day, second = divmod(second_of_day, 60)
    digits = f"{fraction:06d}"
    digits = digits.rstrip("0") if fraction_digits is None else digits[:fraction_digits]
    time = f"{minute_of_day // 60:02d}:{minute_of_day % 60:02d}:{second:02d}"
    return f"{date_text(days)}{separator}{time}" + (f".{digits}" if digits else "")


def parse_timestamp(text: str) -> tuple[int, int | None] | None:
    """Return microseconds since 1970 by the text's own clock, and that clock's offset in seconds, None without a zone.

    A date alone is its midnight. Returns None for a text that is no timestamp or is finer than microseconds.
    """
    found = _TIMESTAMP_PATTERN.fullmatch(text)
    if found is None:
        return None
    days = _days(int(found[1]), int(found[2]), int(found[3]))
    if days is None:
        return None
    if found[4] is None:
        return days * DAY_S * SECOND_US, None
    hour, minute, second = int(found[4]), int(found[5]), int(found[6])
    if hour > 23 or minute > 59 or second > 59:
        return None
    seconds = days * DAY_S + hour * 3600 + minute * 60 + second
    return seconds * SECOND_US + int((found[7] or "").ljust(6, "0")), _offset_s(found[8])


def float_text(value: float, single: bool = False) -> str:
    """Return a float as Java writes it: `1.0`, `1.0E10`, `NaN`, `-Infinity`.

    It has the fewest digits that read back the same, for a `single` as a 32-bit float.
    """
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if 1e-3 <= abs(value) < 1e7 and not single:
        return repr(value)  # Python writes these alike
    sign, digits, exponent = decimal.Decimal(_shortest_single(value) if single else repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)
    prefix = "-" if sign else ""
    if value == 0:
        return f"{prefix}0.0"
    # Java's Double.toString: plain from 1e-3 up to 1e7, else one digit before the point and an exponent.
    if 0 < point <= 7:
        whole, rest = text[:point].ljust(point, "0"), text[point:]
        return f"{prefix}{whole}.{rest or '0'}"
    if -2 <= point <= 0:
        return f"{prefix}0.{'0' * -point}{text}"
    return f"{prefix}{text[0]}.{text[1:] or '0'}E{point - 1}"


def decimal_text(value: decimal.Decimal) -> str:
    """Return all digits of the scale, never an exponent."""
    return format(value, "f")


def _shortest_single(value: float) -> str:
    bits = struct.pack("<f", value)
    for digits in range(1, 9):
        text = f"{value:.{digits}g}"
        # Rounding the digits up may leave the range of a 32-bit float.
        if abs(float(text)) < 3.4028235677973366e38 and struct.pack("<f", float(text)) == bits:
            return text
    return f"{value:.9g}"


def _days(year: int, month: int, day: int) -> int | None:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS_IN_MONTH[month - 1] + (month == 2 and leap):
        return None
    era, year_of_era = divmod(year - (month <= 2), 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _offset_s(text: str | None) -> int | None:
    if text is None or text == "Z":
        return None if text is None else 0
    digits = text[1:].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if text[0] == "-" else seconds
