"""Values as Parquet stores them: the bytes of one, and whether a bound may be one that was shortened.

Source: parquet.thrift, Statistics and ConvertedType; Parquet, "Plain" encoding and "Logical types".
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

_SHORTEST_PREFIX = 8
"""A shortened bound of fewer characters identifies no subject, unless it is more than half of the value."""
_Form = TypeVar("_Form", str, bytes)
_FLOATS = {"FLOAT": struct.Struct("<f"), "DOUBLE": struct.Struct("<d")}
_INT96 = struct.Struct("<qI")
_JULIAN_1970, _DAY_US = 2_440_588, 86_400_000_000
_INTEGER_BYTES = {"INT32": 4, "INT64": 8}


class Beginnings(Generic[_Form]):
    """The beginnings of some ordered values, to which a writer may have shortened them, and that identify a subject."""

    def __init__(self, ordered: Sequence[_Form]) -> None:
        self._ordered: Sequence[_Form] = ordered
        self._short: set[_Form] = {
            value[:size] for value in ordered for size in range(len(value) // 2 + 1, min(_SHORTEST_PREFIX, len(value)))
        }

    def have(self, start: _Form) -> bool:
        """Return whether one of the values begins with this, and is longer."""
        if len(start) < _SHORTEST_PREFIX:
            return start in self._short
        at = bisect_right(self._ordered, start)
        return at < len(self._ordered) and self._ordered[at].startswith(start)


@dataclass(frozen=True)
class Plain:
    """Values as the bytes that dictionaries, bounds and Bloom filters have."""

    values: frozenset[bytes] = frozenset()

    @cached_property
    def array(self) -> pa.BinaryArray:
        """The values as an array."""
        return pa.array(self._ordered, pa.binary())

    @cached_property
    def _ordered(self) -> list[bytes]:
        return sorted(self.values)

    def in_bound(self, bound: bytes) -> bool:
        """Return whether a lower or upper bound is one of the values, or may be one that was shortened."""
        if bound in self.values:
            return True
        raised = bound[:-1] + bytes([max(0, bound[-1] - 1)]) if bound else b""
        return self._beginnings.have(bound) or self._beginnings.have(raised)

    @cached_property
    def _beginnings(self) -> Beginnings[bytes]:
        return Beginnings(self._ordered)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values: without a dictionary, and without what an extension makes of them."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def plain_array(values: pa.Array) -> pa.Array:
    """Return values as an array of their `plain_type`."""
    while values.type != plain_type(values.type):
        if isinstance(values.type, pa.BaseExtensionType):
            values = values.storage
        elif pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        else:
            values = pc.run_end_decode(values)
    return values


def plain_values(values: pa.Array, column: Any) -> Iterator[bytes]:
    """Yield the bytes of each value by the plain encoding, without the length of a text.

    `column` is Parquet's description (`ColumnSchema`). Values that its type cannot hold are left out.
    """
    for value in values:
        if value.is_valid:
            yield from _plain(value, column)


def _plain(value: pa.Scalar, column: Any) -> Iterator[bytes]:
    physical, kind = column.physical_type, value.type
    if is_text(kind) or is_bytes(kind):
        plain = value.as_py()
        yield plain.encode() if isinstance(plain, str) else bytes(plain)
    elif physical in _FLOATS:
        yield _FLOATS[physical].pack(value.as_py())
    elif physical == "INT96":
        yield _int96(value)
    elif physical == "BOOLEAN":
        yield bytes([value.as_py()])
    else:
        for number in _integers(value):
            with suppress(OverflowError):
                if physical in _INTEGER_BYTES:
                    yield number.to_bytes(_INTEGER_BYTES[physical], "little", signed=True)
                else:
                    size = column.length if physical == "FIXED_LEN_BYTE_ARRAY" else (number.bit_length() + 8) // 8
                    yield number.to_bytes(size, "big", signed=True)


def _int96(value: Any) -> bytes:
    """Return a time as older writers store it: its nanoseconds of the day, and the Julian day."""
    days, micros = divmod(int(value.cast(pa.timestamp("us", value.type.tz)).value), _DAY_US)
    return _INT96.pack(micros * 1000, days + _JULIAN_1970)


def _integers(value: Any) -> Iterator[int]:
    """Yield the numbers that Parquet may store for a value: for a time, one in each unit."""
    kind, types = value.type, pa.types
    if types.is_decimal(kind):
        yield int(value.as_py().scaleb(kind.scale))
    elif types.is_date(kind):
        yield int(value.cast(pa.date32()).value)
    elif types.is_timestamp(kind):
        for unit in ("ms", "us", "ns"):
            with suppress(pa.ArrowInvalid):
                yield int(value.cast(pa.timestamp(unit, kind.tz)).value)
    else:
        yield int(value.as_py())


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))
