"""Convert the keys of a delete to the exact type of the table's column, or refuse them.

A file of keys in which `007` was read as the number 7 would find nothing in a column of texts, and a join that casts
one side would find somebody else. So a key becomes a value of the column only if it is the same number, day, instant or
text, written in the one way that reads back unchanged. Otherwise the error names both types, and never the key: keys
are personal. The invariant: two keys become one value only if they are equal. Source: soundness B7.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.codecs import DAY_S, SECOND_US, Integer, date_text, parse_date, plain_date, plain_time
from airflow_txlog.datafiles.deletion_vectors.positions import places_of_different, whole
from airflow_txlog.engine.table.schema.schema import INTEGERS, array_of, arrow_type, codec
from airflow_txlog.engine.table.schema.types import DataType, DecimalType, Primitive, StructField
from airflow_txlog.errors import SchemaMismatch, UnsupportedFeature

# A double distinguishes all decimals of at most this many digits, and all whole numbers up to the limit below.
_DOUBLE_DIGITS = 15
_DOUBLE_WHOLE = 1 << 53

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,37}", re.ASCII)
_PLAIN_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?", re.ASCII)
_EXACT = Context(prec=100)
_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "whole number"),
    (float, "floating-point number"),
    (Decimal, "decimal"),
    (str, "text"),
    (dt.datetime, "timestamp"),
    (dt.date, "date"),
    (bytes, "binary"),
)


class _NotExact(Exception):
    """The value is not exactly one of the column's; `args[0]` is the reason."""


def convert_keys(given: pa.Array | pa.ChunkedArray | Sequence[Any], field: StructField, table: str) -> pa.Array:
    """Return the given keys as distinct values of the column `field` of `table`, in order.

    `given` is an Arrow column, or Python values (text, numbers, dates, datetimes, Decimals, bytes). Raises
    SchemaMismatch for the first key that is null or not exactly a value of the column's type, by its place;
    UnsupportedFeature for a column with which no key can be compared by value.
    """
    check_key_column(field, table)
    kind = arrow_type(field.type)
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return _convert_column(given, field, kind, table)
    return pc.unique(_convert_values(list(given), field, table))


def check_key_column(field: StructField, table: str) -> None:
    """Raise UnsupportedFeature if equal values of the column may belong to different subjects."""
    what = None
    if field.is_collated:
        what = "has a collation, so that different texts are equal"
    elif field.is_char:
        what = f"is {field.metadata['__CHAR_VARCHAR_TYPE_STRING']}, which is stored padded"
    elif not isinstance(field.type, DecimalType) and field.type not in {*INTEGERS, *_CONVERTERS}:
        what = f"is {field.type}, and only single values can be keys"
    if what is not None:
        raise UnsupportedFeature(
            f"{table}: rows cannot be deleted by keys of the column {field.name!r}: it {what}. Use a predicate. "
            "Nothing was read.",
            table=table,
            feature="keys of this column",
            needed_to="delete by keys",
        )


def _convert_column(given: pa.Array | pa.ChunkedArray, field: StructField, kind: pa.DataType, table: str) -> pa.Array:
    column = whole(given) if isinstance(given, pa.ChunkedArray) else given
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        place = pc.index(pc.is_null(column), pa.scalar(True)).as_py()
        raise _refusal(place, "null", "null equals nothing", field, table)
    # Keys repeat; each is judged once. To find out that whole numbers differ takes less time than to hash them.
    are_different = places_of_different(column, 4 * len(column)) is not None
    distinct = column if are_different else pc.unique(column)
    if _is_same(distinct.type, kind) and field.type not in (Primitive.FLOAT, Primitive.DOUBLE):
        return distinct.cast(kind)
    name = str(column.type)
    try:
        values = distinct.to_pylist()
    except (ValueError, OverflowError) as error:
        raise _refusal(None, name, "years outside 1 to 9999 are not converted", field, table) from error
    return pc.unique(_convert_values(values, field, table, found=name, places=column))


def _is_same(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_large_string(found) or pa.types.is_string_view(found):
        found = pa.string()
    if pa.types.is_large_binary(found) or pa.types.is_binary_view(found):
        found = pa.binary()
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        # Instants are the same whatever the name of the zone.
        return bool(found.unit == wanted.unit and (found.tz is None) == (wanted.tz is None))
    return bool(found == wanted)


def _convert_values(
    values: list[Any], field: StructField, table: str, *, found: str | None = None, places: pa.Array | None = None
) -> pa.Array:
    convert = _converter(field.type)
    converted = []
    for index, value in enumerate(values):
        try:
            if value is None:
                raise _NotExact("null equals nothing")
            converted.append(convert(value))
        except _NotExact as problem:
            place = index if places is None else pc.index(places, pa.scalar(value, places.type)).as_py()
            raise _refusal(place, found or _type_name(value), str(problem), field, table) from None
    return array_of(converted, field.type)


def _type_name(value: object) -> str:
    return "null" if value is None else next((name for each, name in _TYPE_NAMES if isinstance(value, each)), "value")


def _refusal(place: int | None, found: str, why: str, field: StructField, table: str) -> SchemaMismatch:
    which = "A key" if place is None or place < 0 else f"Key number {place + 1}"
    return SchemaMismatch(
        f"{which} is a {found}, and the column {field.name!r} of {table} is {field.type}: {why}. A key that is changed "
        "on the way would match no row, or another subject's. Give the keys in the column's own type: cast them in a "
        "query, give the file a schema, or filter them. Nothing was read.",
        table=table,
        columns=[field.name],
    )


def _converter(kind: DataType) -> Callable[[Any], Any]:
    if isinstance(kind, DecimalType):
        return lambda value: _decimal(value, kind)
    if kind in INTEGERS:
        return lambda value: _integer(value, INTEGERS[kind])
    return _CONVERTERS[kind]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise _NotExact("a text may have been written in several ways (7, 07, 7.0)")


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise _NotExact("only bytes are bytes")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise _NotExact("only true and false are booleans")


def _integer(value: Any, kind: Integer) -> int:
    number = _whole(value)
    if kind.held(number) is None:
        raise _NotExact("it is out of range")
    return number


def _number(value: Any, text: re.Pattern[str]) -> Any:
    """Return the value; convert a number that matches `text` to a Decimal."""
    if isinstance(value, bool):
        raise _NotExact("a boolean is no number")
    if not isinstance(value, str):
        return value
    if text.fullmatch(value) is None:
        raise _NotExact("the text is not how that type writes a number, so it would not read back as it was")
    return Decimal(value)


def _whole(value: Any) -> int:
    number = _number(value, _WHOLE)
    if isinstance(number, int):
        return number
    if isinstance(number, float):
        if not math.isfinite(number) or number != math.floor(number) or abs(number) > _DOUBLE_WHOLE:
            raise _NotExact(
                "it is no whole number, or one that a floating-point number cannot distinguish from its neighbour"
            )
        return int(number)
    if isinstance(number, Decimal) and number.is_finite() and number == number.to_integral_value(context=_EXACT):
        return int(number)
    raise _NotExact("it is no whole number")


def _decimal(value: Any, kind: DecimalType) -> Decimal:
    number = _number(value, _PLAIN_DECIMAL)
    if isinstance(number, float) and math.isfinite(number):
        number = Decimal(repr(number))
        if len(number.normalize(_EXACT).as_tuple().digits) > _DOUBLE_DIGITS:
            raise _NotExact("a floating-point number of so many digits may stand for several decimals")
    elif not isinstance(number, int) and not (isinstance(number, Decimal) and number.is_finite()):
        raise _NotExact("it is no number")
    number = Decimal(number)
    scaled = number.scaleb(kind.scale, _EXACT)
    if scaled != scaled.to_integral_value(context=_EXACT) or scaled.copy_abs() >= 10**kind.precision:
        raise _NotExact("its digits do not fit")
    return number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)


def _double(value: Any) -> float:
    given = _number(value, _PLAIN_DECIMAL)
    is_exact = isinstance(given, float) or (isinstance(given, int) and abs(given) <= _DOUBLE_WHOLE)
    if isinstance(given, Decimal) and given.is_finite():
        is_exact = Decimal(repr(float(given))) == given
    if not is_exact:
        raise _NotExact("it has no exact floating-point number")
    number = float(given)
    if math.isnan(number):
        raise _NotExact("NaN matches no row")
    # One zero: Spark's joins treat both as equal.
    return number + 0.0


def _single(value: Any) -> float:
    number = _double(value)
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        raise _NotExact("it is out of range") from None
    if rounded != number:
        raise _NotExact("it has no exact floating-point number of 32 bits")
    return rounded


def _date(value: Any) -> int:
    if isinstance(value, dt.datetime):
        raise _NotExact("which day an instant belongs to depends on a time zone")
    if isinstance(value, dt.date):
        return plain_date(value)
    days = parse_date(value) if isinstance(value, str) else None
    if days is None or date_text(days) != value:
        raise _NotExact("it is no date written as yyyy-MM-dd")
    return days


def _timestamp(value: Any) -> int:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return plain_time(value)
    return _read(value, Primitive.TIMESTAMP, "only a time with its offset from UTC names an instant")


def _timestamp_ntz(value: Any) -> int:
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return plain_time(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return plain_date(value) * DAY_S * SECOND_US
    return _read(value, Primitive.TIMESTAMP_NTZ, "only a time without a zone is one")


def _read(value: Any, kind: Primitive, why_not: str) -> int:
    found = codec(kind)
    plain: int | None = found.read(value) if found is not None and isinstance(value, str) else None
    if plain is None:
        raise _NotExact(why_not)
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
