"""Single values as the text that Delta tables hold: dates, timestamps, floats, decimals; and the calendar behind it.

Works on integers (days, microseconds), not on `datetime`, because columns hold years beyond 1..9999. Shared by
partition values and by statistics. The invariant: `parse_date` and `parse_timestamp` read back exactly what
`date_text` and `timestamp_text` wrote, and answer None rather than guess. Standard library only.
"""

from __future__ import annotations

import re
import struct
from decimal import Decimal

DAY_S = 86_400
SECOND_US = 1_000_000

_DATE = r"([+-]?\d{4,7})-(\d{1,2})-(\d{1,2})"
_TIME = r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?"
_OFFSET = r"(Z|[+-](?:0\d|1[0-8])(?::?[0-5]\d)?)"
# ASCII: otherwise `\d` takes the digits of every script, which no other reader does.
_DATE_PATTERN = re.compile(_DATE, re.ASCII)
_TIMESTAMP_PATTERN = re.compile(f"{_DATE}(?:[T ]{_TIME}{_OFFSET}?)?", re.ASCII)
_DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def date_text(days: int) -> str:
    """`yyyy-MM-dd` of days since 1970-01-01; years after 9999 with a plus sign, years before 0 with a minus."""
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
    """Return days since 1970-01-01; None if the text is not a date alone, or its day does not fit 32 bits."""
    found = _DATE_PATTERN.fullmatch(text)
    days = None if found is None else _days(*map(int, found.groups()))
    return days if days is not None and -(1 << 31) <= days < 1 << 31 else None


def timestamp_text(microseconds: int, separator: str = "T", fraction_digits: int | None = 6) -> str:
    """`yyyy-MM-dd`, the separator, `HH:mm:ss.ffffff`, without a zone.

    With fewer `fraction_digits` the rest is cut off, towards the past; None writes as many as are needed, maybe none.
    """
    seconds, fraction = divmod(microseconds, SECOND_US)
    days, second_of_day = divmod(seconds, DAY_S)
    minute_of_day, second = divmod(second_of_day, 60)
    digits = f"{fraction:06d}"
    digits = digits.rstrip("0") if fraction_digits is None else digits[:fraction_digits]
    time = f"{minute_of_day // 60:02d}:{minute_of_day % 60:02d}:{second:02d}"
    return f"{date_text(days)}{separator}{time}" + (f".{digits}" if digits else "")


def parse_timestamp(text: str) -> tuple[int, int | None] | None:
    """Microseconds since 1970-01-01T00:00:00 by the clock that the text shows, and that clock's offset in seconds.

    The offset is None where the text has no zone. A date alone is its midnight. None where the text is not a
    timestamp, or has digits finer than microseconds.
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
    """A float as Java writes it: `1.0`, `1.0E10`, `NaN`, `-Infinity`; the shortest digits that read back the same.

    `single` says that the value is a 32-bit float, whose shortest digits are fewer.
    """
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(_shortest_single(value) if single else repr(value)).as_tuple()
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


def decimal_text(value: Decimal) -> str:
    """All digits of the scale, never an exponent."""
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
