"""The constants of a predicate, typed as Spark types them: literals, typed literals, casts of literals, parameters.

What a constant means beside a column is `coercion`. The invariant: a constant is exactly the value that Spark gets, or
there is none (`OutsideGrammar`); an approximation is never made here.
Source: Spark 4.2, AstBuilder (literals), SparkDateTimeUtils (text to dates and timestamps).
"""

from __future__ import annotations

import datetime as dt
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from airflow_txlog.datafiles.codecs import (
    DAY_S,
    SECOND_US,
    WALL_TIME,
    at_offset,
    parse_date,
    parse_timestamp,
    plain_date,
    plain_time,
)
from airflow_txlog.engine.table.columns.partitions import fixed_zone
from airflow_txlog.engine.table.schema.schema import INTEGERS
from airflow_txlog.engine.table.schema.types import MAX_DECIMAL_PRECISION, DecimalType, Primitive
from airflow_txlog.errors import InvalidPredicate


class OutsideGrammar(Exception):
    """A part of the predicate that the engine does not decide; `args[0]` names it. Becomes an unknown leaf."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A value and its type in Spark. VOID is null; DATE is days, the timestamps are microseconds since 1970.

    `is_local`: a TIMESTAMP of which only is known what the clocks of a named zone show at it.
    """

    type: Primitive | DecimalType
    value: bool | int | float | Decimal | str | bytes | None
    is_local: bool = False


NULL = Constant(Primitive.VOID, None)

_SUFFIXED = {
    "L": Primitive.LONG,
    "S": Primitive.SHORT,
    "Y": Primitive.BYTE,
    "D": Primitive.DOUBLE,
    "F": Primitive.FLOAT,
    "": None,
    "BD": None,
}
_NUMBER = re.compile(r"(\d+)([LSY])|((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(BD|[DF]|)", re.IGNORECASE | re.ASCII)
_FLOAT_TEXT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_SPECIAL_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
INTEGER_TEXT = re.compile(r"[+-]?\d{1,19}", re.ASCII)
# A date's text may go on with a time, which Spark drops; only a whole date may.
_DATE_TEXT = re.compile(r"(\d{4,7}-\d{1,2}-\d{1,2})(?:[ T].*)?", re.ASCII | re.DOTALL)
_SHORT_DATE_TEXT = re.compile(r"\d{4,7}(?:-\d{1,2})?", re.ASCII)


def number(text: str, negative: bool = False) -> Constant:
    """The constant of a numeric literal such as `5`, `5L`, `0.10`, `1e3`, `1.5F`, with the sign that stands before it.

    Raises OutsideGrammar when it has no value of its type: Spark refuses it then.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise OutsideGrammar(f"the number {text}")
    digits, suffix = ("-" if negative else "") + (found[1] or found[3]), (found[2] or found[4]).upper()
    kind = _SUFFIXED[suffix]
    if kind is not None and kind in INTEGERS:
        return _fits(kind, int(digits), text)
    # An exponent without a suffix makes a double, unlike a point.
    if kind is None and suffix != "BD" and "e" in text.lower():
        kind = Primitive.DOUBLE
    if kind in (Primitive.DOUBLE, Primitive.FLOAT):
        return Constant(kind, _float(digits, kind))
    if suffix != "BD" and "." not in digits:
        return integer(int(digits))
    return decimal(Decimal(digits))


def integer(value: int) -> Constant:
    """A whole number: an int where it fits, else a bigint, else a decimal without scale."""
    for kind in (Primitive.INTEGER, Primitive.LONG):
        if INTEGERS[kind].held(value) is not None:
            return Constant(kind, value)
    return decimal(Decimal(value))


def decimal(value: Decimal) -> Constant:
    """A decimal with the precision and scale of its digits; a positive exponent is written out."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise OutsideGrammar(f"the decimal {value}")
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale)
    if precision > MAX_DECIMAL_PRECISION:
        raise OutsideGrammar(f"the decimal {value} of more than {MAX_DECIMAL_PRECISION} digits")
    return Constant(DecimalType(precision, scale), value)


def _fits(kind: Primitive | DecimalType, value: int, text: str) -> Constant:
    if INTEGERS[kind].held(value) is None:
        raise OutsideGrammar(f"the number {text}, which is no {kind}")
    return Constant(kind, value)


def _float(text: str, kind: Primitive) -> float:
    if text in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[text]
    if not _FLOAT_TEXT.fullmatch(text):
        raise OutsideGrammar(f"{text!r} as a number")
    value = float(text)
    if kind is Primitive.FLOAT:
        value = _single(text, value)
    if value in (float("inf"), float("-inf")):
        raise OutsideGrammar(f"the number {text}, which is too large")
    return value


def _single(text: str, value: float) -> float:
    """The 32-bit float of these digits. Rounding twice, by way of a double, may differ: such digits are refused."""
    if abs(value) > 3.4028234663852886e38:
        raise OutsideGrammar(f"the number {text}, which is too large")
    single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    # A double half way between two floats is where the second rounding goes astray; an exact one is rounded once.
    below, above = _float_neighbours(single)
    if value in ((single + below) / 2, (single + above) / 2) and Decimal(text) != Decimal(value):
        raise OutsideGrammar(f"the number {text}, which lies between two floats")
    return single


def _float_neighbours(single: float) -> tuple[float, float]:
    bits = struct.unpack("<i", struct.pack("<f", abs(single)))[0]
    above: float = struct.unpack("<f", struct.pack("<i", min(bits + 1, 0x7F7FFFFF)))[0]
    below: float = struct.unpack("<f", struct.pack("<i", max(bits - 1, 0)))[0]
    return (below, above) if single >= 0 else (-below, -above)


# --- text and other constants as a type -------------------------------------------------------------------------------


def as_date(text: str) -> int:
    """Days since 1970 of a text that Spark casts to a date: `yyyy`, `yyyy-m`, `yyyy-m-d` and a time that is dropped."""
    found = _DATE_TEXT.fullmatch(text)
    if found is not None:
        days = parse_date(found[1])
    elif _SHORT_DATE_TEXT.fullmatch(text):
        days = parse_date(text + ("-01" if "-" in text else "-01-01"))
    else:
        days = None
    if days is None:
        raise OutsideGrammar(f"{text!r} as a date")
    return days


def as_timestamp(text: str, time_zone: str) -> Constant:
    """The timestamp that Spark casts a text to, in the session's zone where the text has none."""
    parsed = parse_timestamp(text)
    if parsed is None:
        raise OutsideGrammar(f"{text!r} as a timestamp")
    wall_us, offset_s = parsed
    if offset_s is None:
        return at_clock(wall_us, time_zone)
    return Constant(Primitive.TIMESTAMP, _in_range(wall_us - offset_s * SECOND_US))


def as_timestamp_ntz(text: str) -> int:
    """Microseconds since 1970 of a text without a zone that Spark casts to a timestamp_ntz."""
    microseconds = WALL_TIME.read(text) if text else None
    if microseconds is None:
        raise OutsideGrammar(f"{text!r} as a timestamp without a zone")
    return microseconds


def as_double(text: str) -> float:
    """A text that Spark casts to a double."""
    return _float(text, Primitive.DOUBLE)


def midnight(days: int) -> int:
    """Microseconds since 1970 by the clock at the start of a day."""
    return _in_range(days * DAY_S * SECOND_US)


def at_clock(wall_us: int, time_zone: str) -> Constant:
    """The timestamp at which the clocks of the zone show `wall_us`, microseconds since 1970 as they count them.

    The rules of a named zone are Spark's to apply, whose zone data is another than Python's: the time stays local.
    """
    zone = fixed_zone(time_zone)
    if zone is None:
        return Constant(Primitive.TIMESTAMP, _in_range(wall_us), is_local=True)
    return Constant(Primitive.TIMESTAMP, _in_range(at_offset(wall_us, zone)))


def _in_range(microseconds: int) -> int:
    if INTEGERS[Primitive.LONG].held(microseconds) is None:
        raise OutsideGrammar("a timestamp outside 64 bits")
    return microseconds


def cast(constant: Constant, target: Primitive | DecimalType, time_zone: str) -> Constant:
    """`CAST(constant AS target)` or a typed literal such as `DATE '…'`, where it is exact in every mode of Spark."""
    value = constant.value
    if constant.type is Primitive.VOID or constant.type == target:
        return constant
    if isinstance(value, str):
        match target:
            case Primitive.DATE:
                return Constant(target, as_date(value))
            case Primitive.TIMESTAMP:
                return as_timestamp(value, time_zone)
            case Primitive.TIMESTAMP_NTZ:
                return Constant(target, as_timestamp_ntz(value))
            case Primitive.DOUBLE | Primitive.FLOAT:
                return Constant(target, _float(value, target))
            case Primitive.BYTE | Primitive.SHORT | Primitive.INTEGER | Primitive.LONG if INTEGER_TEXT.fullmatch(value):
                return _fits(target, int(value), value)
    if constant.type in INTEGERS and target in INTEGERS and isinstance(value, int):
        return _fits(target, value, str(value))
    raise OutsideGrammar(f"a cast to {target}")


# --- parameters ------------------------------------------------------------------------------------------------------


def bound(name: str, value: object, sql: str) -> Constant:
    """The constant that Spark gets for a parameter of this Python value.

    Raises InvalidPredicate when no parameter can have such a value, OutsideGrammar when it can and is not decided here.
    """
    match value:
        case None:
            return NULL
        case bool():
            return Constant(Primitive.BOOLEAN, value)
        case int():
            return integer(value)
        case float():
            return Constant(Primitive.DOUBLE, value)
        case Decimal():
            return decimal(value)
        case str():
            return Constant(Primitive.STRING, value)
        case bytes() | bytearray():
            return Constant(Primitive.BINARY, bytes(value))
        case dt.datetime() if value.tzinfo is None:
            # Spark takes it for the clock of the driver's process, whatever the session's zone and the column's type.
            raise OutsideGrammar("a datetime without a zone")
        case dt.datetime():
            return Constant(Primitive.TIMESTAMP, plain_time(value))
        case dt.date():
            return Constant(Primitive.DATE, plain_date(value))
        case list() | Mapping():
            raise OutsideGrammar(f"the {'list' if isinstance(value, list) else 'map'} :{name}")
    raise InvalidPredicate(
        f"The parameter :{name} of the predicate {sql!r} has the type {type(value).__name__}. A parameter may be a "
        "str, int, float, bool, Decimal, date, datetime, bytes, None, or a list or dict of these.",
        predicate=sql,
    )
