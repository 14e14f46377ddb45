"""The bounds of a column's values in statistics, by its type: how values are compared, and the JSON of a bound.

The invariant: a bound holds for every value of the column in Spark's order; one that JSON cannot express is left out.
Source: protocol, "Per-file Statistics"; soundness, A6.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_txlog.datafiles.codecs import (
    SECOND_US,
    Date,
    Decimal,
    Float,
    Integer,
    Text,
    WallTime,
    codec_of,
    date_text,
    timestamp_text,
)

# The JSON texts of a minimum and a maximum; None leaves the bound out.
Texts: TypeAlias = tuple[str | None, str | None]
Ways: TypeAlias = tuple[Callable[[Any], Any] | None, Callable[[Any, Any], Texts]]

json_string = json.encoder.encode_basestring
"""Returns a text as JSON."""

_STRING_CHARS, _MAX_STRING_CHARS = 32, 64
_MAX_CHAR = chr(0x10FFFF)
# Only dates with a four-digit year: readers fail on others.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_US, _MILLISECOND_US = 86_400 * SECOND_US, SECOND_US // 1000


def ways_of(kind: pa.DataType) -> Ways:
    """Return how values of this type become comparable, None if they have no bounds, and how bounds become JSON."""
    if pa.types.is_dictionary(kind):
        comparable, texts = ways_of(kind.value_type)
        return (None if comparable is None else lambda values: comparable(values.cast(kind.value_type))), texts
    match codec_of(kind):
        case Integer() | Decimal() as codec:
            return codec.plain_of, lambda lower, upper: (codec.write(lower), codec.write(upper))
        case Float() as codec:
            return lambda values: values.cast(pa.float64()), lambda lower, upper: _float_texts(lower, upper, codec)
        case Text():
            # As bytes, whose order is Spark's; a value that is not UTF-8 then costs its bounds and nothing else.
            if pa.types.is_string(kind):
                return _as_bytes, _string_texts
            return lambda values: values.cast(pa.large_string()).cast(pa.large_binary()), _string_texts
        case Date() as codec:
            return codec.plain_of, _date_texts
        case WallTime() as codec:
            zone = "" if codec.arrow.tz is None else "Z"
            return codec.plain_of, lambda lower, upper: _timestamp_texts(lower, upper, zone)
    return None, lambda lower, upper: (None, None)


def _as_bytes(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    return values.view(pa.binary()) if isinstance(values, pa.Array) else values.cast(pa.binary())


def _float_texts(lower: float, upper: float, codec: Float) -> Texts:
    infinite = float("inf")
    # Equal zeros may have either sign, and some readers distinguish them: take the sign that bounds both.
    lower, upper = (-0.0 if lower == 0 else lower), (0.0 if upper == 0 else upper)
    return (
        None if abs(lower) == infinite else codec.write(lower),
        None if abs(upper) == infinite else codec.write(upper),
    )


def _string_texts(lower: bytes, upper: bytes) -> Texts:
    try:
        smallest, greatest = lower.decode(), upper.decode()
    except UnicodeDecodeError:
        return None, None
    cut = _cut_above(greatest)
    # Python's characters are code points: a cut between two of them never splits one.
    return json_string(smallest[:_STRING_CHARS]), None if cut is None else json_string(cut)


def _cut_above(text: str) -> str | None:
    """Return the first 32 characters and one greater than the next one, or None if that takes too many characters.

    As in the reference implementation, U+007F follows if the text continues in ASCII, else U+10FFFF; if the text itself
    continues with that one, the prefix grows.
    """
    if len(text) <= _STRING_CHARS:
        return text
    for size in range(_STRING_CHARS, min(len(text), _MAX_STRING_CHARS)):
        if text[size] < "\x7f":
            return text[:size] + "\x7f"
        if text[size] < _MAX_CHAR:
            return text[:size] + _MAX_CHAR
    return None


def _date_texts(lower: int, upper: int) -> Texts:
    return (
        json_string(date_text(lower)) if _FIRST_DAY <= lower <= _LAST_DAY else None,
        json_string(date_text(upper)) if _FIRST_DAY <= upper <= _LAST_DAY else None,
    )


def _timestamp_texts(lower: int, upper: int, zone: str) -> Texts:
    # In milliseconds, as readers expect. Down for the minimum; up for the maximum, because not every reader adds the
    # millisecond that others cut off.
    upper = -(-upper // _MILLISECOND_US) * _MILLISECOND_US
    return tuple(  # type: ignore[return-value]
        json_string(timestamp_text(value, fraction_digits=3) + zone)
        if _FIRST_DAY * _DAY_US <= value < (_LAST_DAY + 1) * _DAY_US
        else None
        for value in (lower, upper)
    )
