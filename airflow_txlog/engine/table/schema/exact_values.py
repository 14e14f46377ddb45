"""Convert values that people give to the exact type of a table's column, or refuse them.

These values decide whose rows are deleted, erased or searched for. If a file with `007` is read as the number 7, a
column of texts has no such value, and a cast could find another person. So a value is converted only if it is the same
number, day, instant or text, written in the one way that reads back unchanged. The error gives the reason, and never
shows the value, which is personal. The invariant: two values become one only if they are equal.
Source: soundness B7.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.codecs import DAY_S, SECOND_US, Integer, date_text, parse_date, plain_date, plain_time
from airflow_txlog.datafiles.deletion_vectors.positions import places_of_different, whole
from airflow_txlog.engine.table.schema.schema import INTEGERS, array_of, arrow_type, codec
from airflow_txlog.engine.table.schema.types import DataType, DecimalType, Primitive


class _Float(NamedTuple):
    """The numbers that a floating-point format distinguishes.

    It has all whole numbers below `whole`, which may be the next one rounded, and all decimals of at most `digits`
    digits.
    """

    whole: int
    digits: int


_DOUBLE = _Float(1 << 53, 15)
_NARROW = {pa.float16(): _Float(1 << 11, 3), pa.float32(): _Float(1 << 24, 6)}

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,37}", re.ASCII)
_PLAIN_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?", re.ASCII)
# Digits that it cannot hold are an error: without them it would be another number.
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation, Overflow])
_TYPE_NAMES: dict[type, str] = {
    bool: "boolean",
    int: "whole number",
    float: "floating-point number",
    Decimal: "decimal",
    str: "text",
    dt.datetime: "timestamp",
    dt.date: "date",
    bytes: "binary",
    type(None): "null",
}


class NotExact(Exception):
    """A value is not exactly a value of the column.

    `reason`: the cause. `found`: the type of the value. `place`: its position from 0 on, if known.
    """

    def __init__(self, reason: str, found: str = "value", place: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.found, self.place = reason, found, place


def are_compared(kind: DataType) -> bool:
    """Return whether a column of this type has exact values."""
    return isinstance(kind, DecimalType) or kind in INTEGERS or kind in _CONVERTERS


def exact_values(
    given: pa.Array | pa.ChunkedArray | Sequence[Any], kind: DataType, *, skips_nulls: bool = False
) -> pa.Array:
    """Return the given values as distinct values of a column of the type `kind`, in order.

    `given` is an Arrow column, or Python values (text, numbers, dates, datetimes, Decimals, bytes). Raises NotExact for
    the first value that is not exactly one of the type, and for null, unless `skips_nulls`.
    """
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return _convert_column(given, kind, skips_nulls=skips_nulls)
    return pc.unique(_convert_values(list(map(_plain, given)), kind, skips_nulls=skips_nulls))


def exact_number(text: str) -> Decimal:
    """Return the number of a text that is written as a column of numbers writes it. Raises NotExact for others."""
    number: Decimal = _number(text, _PLAIN_DECIMAL)
    return number


def _plain(value: Any) -> Any:
    """Return a value of NumPy as one of Python. Arrow would drop the nanoseconds of a time of pandas."""
    if type(value) not in _TYPE_NAMES and not isinstance(value, dt.datetime):
        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            return pa.scalar(value).as_py()
    return value


def _convert_column(given: pa.Array | pa.ChunkedArray, kind: DataType, *, skips_nulls: bool) -> pa.Array:
    column = _plain_column(whole(given) if isinstance(given, pa.ChunkedArray) else given, kind)
    known = column
    if column.null_count:
        if not skips_nulls:
            place = pc.index(pc.is_null(column), pa.scalar(True)).as_py()
            raise NotExact("null equals nothing", "null", place)
        known = column.drop_null()
    name = str(column.type)
    # Keys repeat; each is judged once. To find out that whole numbers differ takes less time than to hash them.
    are_different = places_of_different(known, 4 * len(known)) is not None
    try:
        distinct = known if are_different else pc.unique(known)
    except pa.ArrowNotImplementedError:
        raise NotExact("only single values are compared", name) from None
    if _is_same(distinct.type, arrow_type(kind)) and kind not in (Primitive.FLOAT, Primitive.DOUBLE):
        return distinct.cast(arrow_type(kind))
    try:
        values = distinct.to_pylist()
    except (ValueError, OverflowError) as error:
        raise NotExact("years outside 1 to 9999 are not converted", name) from error
    floats = _NARROW.get(column.type, _DOUBLE)
    return pc.unique(_convert_values(values, kind, found=name, places=column, floats=floats))


def _plain_column(column: pa.Array, kind: DataType) -> pa.Array:
    """Return a column without a dictionary or views, with UUIDs as bytes, times in microseconds, dates in days."""
    name, types = str(column.type), pa.types
    if types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if isinstance(column.type, pa.BaseExtensionType):
        if kind is not Primitive.BINARY and types.is_fixed_size_binary(column.type.storage_type):
            raise NotExact("only a column of bytes can hold it", name)
        column = column.storage
    # Arrow drops no nulls of views.
    if types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    elif types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    try:
        if types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz))
        elif types.is_date64(column.type):
            column = column.cast(pa.date32())
    except pa.ArrowInvalid:
        # Arrow's message has the value in it.
        raise NotExact("a time is finer than the column's, or too far away", name) from None
    return column


def _is_same(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_large_string(found):
        found = pa.string()
    if pa.types.is_large_binary(found):
        found = pa.binary()
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        # Instants are the same whatever the name of the zone.
        return bool(found.unit == wanted.unit and (found.tz is None) == (wanted.tz is None))
    return bool(found == wanted)


def _convert_values(
    values: list[Any],
    kind: DataType,
    *,
    found: str | None = None,
    places: pa.Array | None = None,
    skips_nulls: bool = False,
    floats: _Float = _DOUBLE,
) -> pa.Array:
    convert = _converter(kind, floats)
    converted = []
    for index, value in enumerate(values):
        try:
            if value is None:
                if skips_nulls:
                    continue
                raise NotExact("null equals nothing")
            converted.append(convert(value))
        except NotExact as problem:
            place = index if places is None else _place(value, places)
            raise NotExact(problem.reason, found or _type_name(value), place) from None
    try:
        return array_of(converted, kind)
    except UnicodeEncodeError:
        # Python's message has the text in it.
        raise NotExact("a text has a character that UTF-8 cannot encode", found or "text") from None


def _place(value: Any, values: pa.Array) -> int | None:
    place = -1
    # Not every type has values that Arrow looks for.
    with suppress(pa.ArrowException):
        place = pc.index(values, pa.scalar(value, values.type)).as_py()
    return place if place >= 0 else None


def _type_name(value: object) -> str:
    return next((name for each, name in _TYPE_NAMES.items() if isinstance(value, each)), "value")


def _converter(kind: DataType, floats: _Float) -> Callable[[Any], Any]:
    if isinstance(kind, DecimalType):
        return lambda value: _decimal(value, kind, floats)
    if kind in INTEGERS:
        return lambda value: _integer(value, INTEGERS[kind], floats)
    return _CONVERTERS.get(kind, _nothing)


def _nothing(value: Any) -> Any:
    raise NotExact("only single values are compared")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise NotExact("a text may spell it in several ways (7, 07, 7.0)")


def _binary(value: Any) -> bytes:
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise NotExact("a column of bytes holds only bytes")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise NotExact("only true and false are booleans")


def _integer(value: Any, kind: Integer, floats: _Float) -> int:
    number = _whole(value, floats)
    if kind.held(number) is None:
        raise NotExact("it is out of range")
    return number


def _number(value: Any, text: re.Pattern[str]) -> Any:
    """Return the value; convert a number that matches `text` to a Decimal."""
    if isinstance(value, bool):
        raise NotExact("a boolean is no number")
    if not isinstance(value, str):
        return value
    if text.fullmatch(value) is None:
        raise NotExact("the text is not written as the column writes a number, and would not read back unchanged")
    return Decimal(value)


def _whole(value: Any, floats: _Float) -> int:
    number = _number(value, _WHOLE)
    if isinstance(number, int):
        return number
    if isinstance(number, float):
        if not math.isfinite(number) or number != math.floor(number) or abs(number) >= floats.whole:
            raise NotExact(
                "it is no whole number, or one that a floating-point number cannot distinguish from its neighbour"
            )
        return int(number)
    if isinstance(number, Decimal) and number.is_finite() and number == number.to_integral_value(context=_EXACT):
        return int(number)
    raise NotExact("it is no whole number")


def _decimal(value: Any, kind: DecimalType, floats: _Float) -> Decimal:
    number = _number(value, _PLAIN_DECIMAL)
    if isinstance(number, float) and math.isfinite(number):
        number = Decimal(repr(number))
        # The zeros before the point are digits, too.
        after_point = max(0, len(number.normalize(_EXACT).as_tuple().digits) - 1 - number.adjusted())
        if number and number.adjusted() + 1 + after_point > floats.digits:
            raise NotExact("a floating-point number with so many digits may stand for several decimals")
    elif not isinstance(number, int) and not (isinstance(number, Decimal) and number.is_finite()):
        raise NotExact("it is no number")
    number = Decimal(number)
    with suppress(ArithmeticError):
        scaled = number.scaleb(kind.scale, _EXACT)
        if scaled == scaled.to_integral_value(context=_EXACT) and scaled.copy_abs() < 10**kind.precision:
            return number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    raise NotExact("its digits do not fit")


def _double(value: Any) -> float:
    given = _number(value, _PLAIN_DECIMAL)
    is_exact = isinstance(given, float) or (isinstance(given, int) and abs(given) <= _DOUBLE.whole)
    if isinstance(given, Decimal) and given.is_finite():
        is_exact = Decimal(repr(float(given))) == given
    if not is_exact:
        raise NotExact("no floating-point number is exactly this value")
    number = float(given)
    if math.isnan(number):
        raise NotExact("NaN equals nothing")
    # One zero: Spark's joins treat both as equal.
    return number + 0.0


def _single(value: Any) -> float:
    number = _double(value)
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        raise NotExact("it is out of range") from None
    if rounded != number:
        raise NotExact("no floating-point number of 32 bits is exactly this value")
    return rounded


def _date(value: Any) -> int:
    if isinstance(value, dt.datetime):
        raise NotExact("the day of an instant depends on a time zone")
    if isinstance(value, dt.date):
        return plain_date(value)
    days = parse_date(value) if isinstance(value, str) else None
    if days is None or date_text(days) != value:
        raise NotExact("it is no date written as yyyy-MM-dd")
    return days


def _timestamp(value: Any) -> int:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return _moment(value)
    return _read(value, Primitive.TIMESTAMP, "only a time with its offset from UTC names an instant")


def _timestamp_ntz(value: Any) -> int:
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return _moment(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return plain_date(value) * DAY_S * SECOND_US
    return _read(value, Primitive.TIMESTAMP_NTZ, "the column holds only times without a zone")


def _moment(value: dt.datetime) -> int:
    # Of pandas.
    if getattr(value, "nanosecond", 0):
        raise NotExact("it is finer than a microsecond")
    return plain_time(value)


def _read(value: Any, kind: Primitive, why_not: str) -> int:
    found = codec(kind)
    plain: int | None = found.read(value) if found is not None and isinstance(value, str) else None
    if plain is None:
        raise NotExact(why_not)
    return plain


_CONVERTERS: dict[DataType, Callable[[Any], Any]] = {
    Primitive.STRING: _text,
    Primitive.BINARY: _binary,
    Primitive.BOOLEAN: _boolean,
    Primitive.FLOAT: _single,
    Primitive.DOUBLE: _double,
    Primitive.DATE: _date,
    Primitive.TIMESTAMP: _timestamp,
    Primitive.TIMESTAMP_NTZ: _timestamp_ntz,
}
