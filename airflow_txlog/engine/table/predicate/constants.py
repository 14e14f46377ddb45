"""The constants of a predicate, typed as Spark types them: literals, typed literals, casts of literals, parameters.

`coercion` compares them with columns. The invariant: a constant is exactly the value that Spark gets, or reading it
raises `OutsideGrammar`. Source: Spark 4.2, AstBuilder (literals), SparkDateTimeUtils (text to dates and timestamps).
"""

from __future__ import annotations

import datetime as dt
import re
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
from airflow_txlog.engine.table.schema.schema import INTEGERS, codec
from airflow_txlog.engine.table.schema.types import MAX_DECIMAL_PRECISION, DataType, DecimalType, Primitive
from airflow_txlog.errors import InvalidPredicate
from airflow_txlog.sql.expression import Literal


class OutsideGrammar(Exception):
    """A part of the predicate that becomes an unknown leaf; `args[0]` names it."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A plain value (`codecs`) and its type in Spark; VOID is null. `is_local`: a wall time in a named zone."""

    type: Primitive | DecimalType
    value: bool | int | float | Decimal | str | bytes | None
    is_local: bool = False


NULL = Constant(Primitive.VOID, None)

CAST_TARGETS: dict[str, Primitive] = {kind.value: kind for kind in Primitive} | {
    "timestamp_ltz": Primitive.TIMESTAMP,
    "real": Primitive.FLOAT,
    "tinyint": Primitive.BYTE,
    "smallint": Primitive.SHORT,
    "int": Primitive.INTEGER,
    "bigint": Primitive.LONG,
}
"""The types without parameters, by their names in SQL."""

_SUFFIXED = {
    "L": Primitive.LONG,
    "S": Primitive.SHORT,
    "Y": Primitive.BYTE,
    "D": Primitive.DOUBLE,
    "F": Primitive.FLOAT,
}
_NUMBER = re.compile(r"(\d+)([LSY])|((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(BD|[DF]|)", re.IGNORECASE | re.ASCII)
_FLOAT_TEXT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_SPECIAL_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
# Spark drops a time behind a whole date.
_DATE_TEXT = re.compile(r"(\d{4,7}-\d{1,2}-\d{1,2})(?:[ T].*)?", re.ASCII | re.DOTALL)
_SHORT_DATE_TEXT = re.compile(r"\d{4,7}(?:-\d{1,2})?", re.ASCII)


_GREATEST_FLOAT = Decimal((2 - 2**-23) * 2.0**127)


def literal(node: Literal) -> Constant:
    """Return the value of a literal. Raises OutsideGrammar, also for a string that two parsers may read differently."""
    if node.doubt is not None:
        raise OutsideGrammar(node.doubt)
    match node.kind:
        case "null":
            return NULL
        case "boolean":
            return Constant(Primitive.BOOLEAN, node.text == "true")
        case "number":
            return number(node.text.removeprefix("-"), node.text.startswith("-"))
    return Constant(Primitive.STRING, node.text)


def number(text: str, negative: bool = False) -> Constant:
    """Return the constant of `5`, `5L`, `0.10`, `1e3` or `1.5F`, with the sign before it. Raises OutsideGrammar."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise OutsideGrammar(f"the number {text}")
    digits, suffix = ("-" if negative else "") + (found[1] or found[3]), (found[2] or found[4]).upper()
    kind = _SUFFIXED.get(suffix)
    if kind is not None and kind in INTEGERS:
        return _fits(kind, int(digits), text)
    # Without a suffix, an exponent makes a double and a point a decimal.
    if kind is None and suffix != "BD" and "e" in text.lower():
        kind = Primitive.DOUBLE
    if kind in (Primitive.DOUBLE, Primitive.FLOAT):
        if kind is Primitive.FLOAT and abs(Decimal(digits)) > _GREATEST_FLOAT:
            raise OutsideGrammar(f"the number {text}, which no float holds")
        return Constant(kind, as_float(digits, kind))
    if suffix != "BD" and "." not in digits:
        return integer(int(digits))
    return decimal(Decimal(digits))


def integer(value: int) -> Constant:
    """Return a whole number as an int if it fits, else as a bigint, else as a decimal without scale."""
    for kind in (Primitive.INTEGER, Primitive.LONG):
        if INTEGERS[kind].held(value) is not None:
            return Constant(kind, value)
    return decimal(Decimal(value))


def decimal(value: Decimal) -> Constant:
    """Return a decimal with the precision and scale of its digits; a positive exponent is written out."""
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


def as_float(text: str, kind: Primitive = Primitive.DOUBLE) -> float:
    """Return the value of a text that Spark casts to a float or a double."""
    if text in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[text]
    if not _FLOAT_TEXT.fullmatch(text):
        raise OutsideGrammar(f"{text!r} as a number")
    found = codec(kind)
    value: float | None = None if found is None else found.read(text)
    if value is None:
        raise OutsideGrammar(f"the number {text}, which is too large")
    return value


def as_date(text: str) -> int:
    """Return days since 1970 of `yyyy`, `yyyy-m` or `yyyy-m-d`, which may be followed by a time that is dropped."""
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
    """Return the timestamp that Spark casts a text to, in the session's zone if the text has none."""
    parsed = parse_timestamp(text)
    if parsed is None:
        raise OutsideGrammar(f"{text!r} as a timestamp")
    wall_us, offset_s = parsed
    if offset_s is None:
        return at_clock(wall_us, time_zone)
    return Constant(Primitive.TIMESTAMP, _in_range(wall_us - offset_s * SECOND_US))


def as_timestamp_ntz(text: str) -> int:
    """Return microseconds since 1970 of a text without a zone that Spark casts to a timestamp_ntz."""
    microseconds = WALL_TIME.read(text) if text else None
    if microseconds is None:
        raise OutsideGrammar(f"{text!r} as a timestamp without a zone")
    return microseconds


def midnight(days: int) -> int:
    """Return microseconds since 1970 at the start of a day."""
    return _in_range(days * DAY_S * SECOND_US)


def at_clock(wall_us: int, time_zone: str) -> Constant:
    """Return the timestamp with this wall time (microseconds since 1970) in the zone; local in a named zone."""
    zone = fixed_zone(time_zone)
    if zone is None:
        return Constant(Primitive.TIMESTAMP, _in_range(wall_us), is_local=True)
    return Constant(Primitive.TIMESTAMP, _in_range(at_offset(wall_us, zone)))


def _in_range(microseconds: int) -> int:
    if INTEGERS[Primitive.LONG].held(microseconds) is None:
        raise OutsideGrammar("a timestamp outside 64 bits")
    return microseconds


def cast(constant: Constant, target: Primitive | DecimalType, time_zone: str) -> Constant:
    """Return `CAST(constant AS target)`, or the typed literal, if it is exact in every mode of Spark."""
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
                return Constant(target, as_float(value, target))
            case Primitive() if target in INTEGERS and (whole := INTEGERS[target].read(value)) is not None:
                return Constant(target, whole)
    if constant.type is Primitive.DATE and target is Primitive.TIMESTAMP and isinstance(value, int):
        return at_clock(midnight(value), time_zone)
    if constant.type is Primitive.TIMESTAMP and target is Primitive.DATE and fixed_zone(time_zone) == dt.UTC:
        assert isinstance(value, int)
        return Constant(target, value // (DAY_S * SECOND_US))
    if constant.type in INTEGERS and target in INTEGERS and isinstance(value, int):
        return _fits(target, value, str(value))
    raise OutsideGrammar(f"a cast to {target}")


def bound(name: str, value: object, sql: str) -> Constant:
    """Return the constant that Spark gets for a parameter's Python value. Raises OutsideGrammar, InvalidPredicate."""
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
            # Spark reads it in the zone of the driver's process, whatever the session's zone and the column's type.
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


def is_canonical(data_type: DataType, text: str) -> bool:
    """Return whether the text is exactly what Spark writes for a whole number or a date of the type."""
    found = codec(data_type) if data_type is Primitive.DATE or data_type in INTEGERS else None
    value = found.read(text) if found is not None else None
    return found is not None and value is not None and found.write(value) == text
