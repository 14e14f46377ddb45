"""Variants whose parts are in separate columns (shredding), reassembled into their two binaries.

A part of a variant is a group of `value`, which has it encoded, and `typed_value`, which has it as a column of one
type: a primitive type, a list of parts, or a struct of the parts of an object. The invariant: every row has the variant
that was written, or the whole column is refused as `Malformed`. Numbers take the smallest width that holds them, as
Spark writes them. Source: Parquet, VariantShredding.md and VariantEncoding.md.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

NULL_VALUE = b"\x00"
"""A variant that is null, as against a column that is null."""

Parts: TypeAlias = list[bytes | None]
"""One encoded part for each row; None if it is missing."""

_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_LONGEST_SHORT_TEXT = 63
# The numbers of primitive types, with the bytes of their values; None: after a length in four bytes.
_TRUE, _FALSE, _DOUBLE, _DATE, _INSTANT, _TIMESTAMP, _FLOAT, _BINARY, _TEXT = 1, 2, 7, 11, 12, 13, 14, 15, 16
_TIME, _INSTANT_NS, _TIMESTAMP_NS, _UUID = 17, 18, 19, 20
_INTEGERS = {3: 1, 4: 2, 5: 4, 6: 8}
_DECIMALS = {8: (9, 4), 9: (18, 8), 10: (38, 16)}
_TIMES = {_DATE: 4, _INSTANT: 8, _TIMESTAMP: 8, _TIME: 8, _INSTANT_NS: 8, _TIMESTAMP_NS: 8}
_SIZES = _INTEGERS | _TIMES | {0: 0, _TRUE: 0, _FALSE: 0, 8: 5, 9: 9, 10: 17, _FLOAT: 4, _DOUBLE: 8, _UUID: 16}


class Malformed(Exception):
    """The parts are no variant, or none that a table may have. The text names no value."""


def is_shredded(kind: pa.StructType) -> bool:
    """Return whether a variant of this type has parts in separate columns."""
    return bool(kind.get_field_index("typed_value") >= 0)


def assembled(parts: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    """Return the values and the metadata of the variants of a column, both binary; null if the column is null.

    Raises Malformed.
    """
    members = _members(parts)
    metadata = members.get("metadata")
    if metadata is None or not _is_bytes(metadata.type):
        raise Malformed("it has no metadata")
    texts = metadata.to_pylist()
    dictionaries: dict[bytes | None, _Dictionary] = {}
    names = [dictionaries.setdefault(text, _Dictionary(text)) for text in texts]
    try:
        found = _encoded(members, names)
    except (IndexError, ValueError, struct.error, OverflowError) as error:
        raise Malformed("its bytes are no variant") from error
    is_there = parts.is_valid().to_pylist()
    values = [(value or NULL_VALUE) if there else None for value, there in zip(found, is_there, strict=True)]
    if any(text is None and there for text, there in zip(texts, is_there, strict=True)):
        raise Malformed("a row has no metadata")
    return pa.array(values, pa.binary()), pa.array(texts, pa.binary())


class _Dictionary:
    """The names of fields in the metadata of one variant, and their numbers. They are decoded when they are needed."""

    def __init__(self, metadata: bytes | None) -> None:
        self._metadata = metadata
        self._found: tuple[list[bytes], dict[bytes, int]] | None = None

    @property
    def names(self) -> list[bytes]:
        return self._decoded()[0]

    def number(self, name: bytes) -> int:
        try:
            return self._decoded()[1][name]
        except KeyError:
            raise Malformed("its metadata lacks the name of a field") from None

    def _decoded(self) -> tuple[list[bytes], dict[bytes, int]]:
        if self._found is None:
            data = self._metadata or b""
            if not data or data[0] & 0x0F != 1:
                raise Malformed("its metadata has an unknown version")
            width = (data[0] >> 6) + 1
            count = _number(data, 1, width)
            start = 1 + width * (count + 2)
            ends = [start + end for end in _numbers(data, 1 + width, width, count + 1)]
            if ends[-1] > len(data) or any(one > other for one, other in pairwise(ends)):
                raise Malformed("its metadata is no list of names")
            names = [data[one:other] for one, other in pairwise(ends)]
            self._found = names, {name: number for number, name in reversed(list(enumerate(names)))}
        return self._found


# --- parts in columns -----------------------------------------------------------------------------------------------


def _encoded(members: dict[str, pa.Array], names: Sequence[_Dictionary]) -> Parts:
    """Return the encoded parts of a group with these members; None if both of them are null."""
    value, typed = members.get("value"), members.get("typed_value")
    if value is not None and not _is_bytes(value.type):
        raise Malformed(f"its value is of the type {value.type}")
    values: Parts = [None] * len(names) if value is None else value.to_pylist()
    if typed is None:
        return values
    if isinstance(typed, pa.ExtensionArray):
        typed = typed.storage
    if pa.types.is_struct(typed.type):
        return _objects(typed, values, names)
    of_type = _arrays(typed, names) if _is_list(typed.type) else _primitives(typed)
    if any(one is not None and other is not None for one, other in zip(values, of_type, strict=True)):
        raise Malformed("a value is there twice")
    return [one if other is None else other for one, other in zip(values, of_type, strict=True)]


def _objects(typed: pa.StructArray, values: Parts, names: Sequence[_Dictionary]) -> Parts:
    """Return objects of shredded fields and of the fields in `values`, or what `values` has instead of an object."""
    fields = [
        (field.name.encode(), _encoded(_members(child), names))
        for field, child in zip(typed.type, typed.flatten(), strict=True)
    ]
    found: Parts = []
    for row, (is_object, value) in enumerate(zip(typed.is_valid().to_pylist(), values, strict=True)):
        if not is_object:
            found.append(value)
            continue
        parts = {} if value is None else dict(_fields(value, names[row]))
        parts |= {name: part for name, column in fields if (part := column[row]) is not None}
        found.append(_object(parts, names[row]))
    return found


def _arrays(typed: pa.Array, names: Sequence[_Dictionary]) -> Parts:
    lengths = pc.list_value_length(typed).to_pylist()
    of_elements = [name for name, length in zip(names, lengths, strict=True) for _ in range(length or 0)]
    elements = iter(_encoded(_members(typed.flatten()), of_elements))
    return [
        None if length is None else _array([next(elements) or NULL_VALUE for _ in range(length)]) for length in lengths
    ]


def _primitives(typed: pa.Array) -> Parts:
    encode = _encoder(typed.type)
    # Times are counts: Python's own would lose nanoseconds, and have no year 10000.
    if pa.types.is_timestamp(typed.type) or pa.types.is_time64(typed.type):
        typed = typed.cast(pa.int64())
    elif pa.types.is_date32(typed.type):
        typed = typed.cast(pa.int32())
    return [None if value is None else encode(value) for value in typed.to_pylist()]


def _encoder(kind: pa.DataType) -> Callable[[Any], bytes]:
    is_a = pa.types
    if is_a.is_boolean(kind):
        return lambda value: _primitive(_TRUE if value else _FALSE)
    if is_a.is_signed_integer(kind):
        return _integer
    if is_a.is_float64(kind):
        return lambda value: _primitive(_DOUBLE) + struct.pack("<d", value)
    if is_a.is_float32(kind):
        return lambda value: _primitive(_FLOAT) + struct.pack("<f", value)
    if is_a.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= max(most for most, _ in _DECIMALS.values()):
        return lambda value: _decimal(value, kind.scale)
    if _is_bytes(kind):
        return lambda value: _sized(_BINARY, value)
    if is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind):
        return _text
    if is_a.is_fixed_size_binary(kind) and kind.byte_width == _SIZES[_UUID]:
        return lambda value: _primitive(_UUID) + value
    if is_a.is_date32(kind):
        return lambda value: _primitive(_DATE) + struct.pack("<i", value)
    number = _TIME if kind == pa.time64("us") else None
    if is_a.is_timestamp(kind):
        by_unit = {"us": _TIMESTAMP, "ns": _TIMESTAMP_NS} if kind.tz is None else {"us": _INSTANT, "ns": _INSTANT_NS}
        number = by_unit.get(kind.unit)
    if number is not None:
        header = _primitive(number)
        return lambda value: header + struct.pack("<q", value)
    raise Malformed(f"{kind} is no type of a shredded value")


def _members(parts: pa.Array) -> dict[str, pa.Array]:
    """Return the members of a group by name; a member of a null group is null."""
    if not pa.types.is_struct(parts.type):
        raise Malformed(f"a part of it is no group but {parts.type}")
    return dict(zip(parts.type.names, parts.flatten(), strict=True))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


# --- the binary encoding --------------------------------------------------------------------------------------------


def _primitive(number: int) -> bytes:
    return bytes([number << 2 | _PRIMITIVE])


def _integer(value: int) -> bytes:
    number, width = next((n, w) for n, w in _INTEGERS.items() if -(1 << 8 * w - 1) <= value < 1 << 8 * w - 1)
    return _primitive(number) + value.to_bytes(width, "little", signed=True)


def _decimal(value: decimal.Decimal, scale: int) -> bytes:
    sign, digits, _ = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    number, width = next((n, w) for n, (most, w) in _DECIMALS.items() if len(str(abs(unscaled))) <= most >= scale)
    return _primitive(number) + bytes([scale]) + unscaled.to_bytes(width, "little", signed=True)


def _text(value: str) -> bytes:
    data = value.encode()
    return bytes([len(data) << 2 | _SHORT_TEXT]) + data if len(data) <= _LONGEST_SHORT_TEXT else _sized(_TEXT, data)


def _sized(number: int, data: bytes) -> bytes:
    return _primitive(number) + struct.pack("<I", len(data)) + data


def _object(fields: dict[bytes, bytes], names: _Dictionary) -> bytes:
    ordered = sorted(fields)
    numbers = [names.number(name) for name in ordered]
    id_width = _width(max(numbers, default=0))
    offsets, width = _offsets([fields[name] for name in ordered])
    is_large = len(ordered) > 0xFF
    header = is_large << 4 | id_width - 1 << 2 | width - 1
    return b"".join(
        [
            bytes([header << 2 | _OBJECT]),
            len(ordered).to_bytes(4 if is_large else 1, "little"),
            *(number.to_bytes(id_width, "little") for number in numbers),
            *(offset.to_bytes(width, "little") for offset in offsets),
            *(fields[name] for name in ordered),
        ]
    )


def _array(elements: Sequence[bytes]) -> bytes:
    offsets, width = _offsets(elements)
    is_large = len(elements) > 0xFF
    header = is_large << 2 | width - 1
    return b"".join(
        [
            bytes([header << 2 | _ARRAY]),
            len(elements).to_bytes(4 if is_large else 1, "little"),
            *(offset.to_bytes(width, "little") for offset in offsets),
            *elements,
        ]
    )


def _offsets(values: Iterable[bytes]) -> tuple[list[int], int]:
    """Return the starts of the values and the end of the last one, and the bytes of each of these numbers."""
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value))
    return offsets, _width(offsets[-1])


def _width(most: int) -> int:
    return max(1, (most.bit_length() + 7) // 8)


def _fields(value: bytes, names: _Dictionary) -> Iterable[tuple[bytes, bytes]]:
    """Yield the fields of an encoded object."""
    if value[0] & 3 != _OBJECT:
        raise Malformed("a value is there twice")
    header = value[0] >> 2
    count_width, id_width, width = 4 if header >> 4 & 1 else 1, (header >> 2 & 3) + 1, (header & 3) + 1
    count = _number(value, 1, count_width)
    ids_at = 1 + count_width
    offsets_at = ids_at + count * id_width
    start = offsets_at + (count + 1) * width
    ids = _numbers(value, ids_at, id_width, count)
    for number, offset in zip(ids, _numbers(value, offsets_at, width, count), strict=True):
        at = start + offset
        end = at + _size(value, at)
        if end > len(value):
            raise Malformed("a field ends behind its object")
        yield names.names[number], value[at:end]


def _size(data: bytes, at: int) -> int:
    """Return the number of bytes of the encoded value at this place."""
    kind, header = data[at] & 3, data[at] >> 2
    if kind == _SHORT_TEXT:
        return 1 + header
    if kind == _PRIMITIVE:
        if header in (_BINARY, _TEXT):
            return 5 + _number(data, at + 1, 4)
        if header not in _SIZES:
            raise Malformed(f"it has a value of the unknown type {header}")
        return 1 + _SIZES[header]
    is_large = header >> (4 if kind == _OBJECT else 2) & 1
    count_width, width = 4 if is_large else 1, (header & 3) + 1
    id_width = (header >> 2 & 3) + 1 if kind == _OBJECT else 0
    count = _number(data, at + 1, count_width)
    last = 1 + count_width + count * (id_width + width)
    return last + width + _number(data, at + last, width)


def _number(data: bytes, at: int, width: int) -> int:
    if at + width > len(data):
        raise Malformed("it ends too early")
    return int.from_bytes(data[at : at + width], "little")


def _numbers(data: bytes, at: int, width: int, count: int) -> list[int]:
    if at + width * count > len(data):
        raise Malformed("it ends too early")
    return [int.from_bytes(data[place : place + width], "little") for place in range(at, at + width * count, width)]
