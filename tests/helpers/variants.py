"""Variants in tests, apart from the code under test: encoded in wide numbers, decoded, and shredded by a type."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import uuid
from typing import Any

import pyarrow as pa

EPOCH = dt.datetime(1970, 1, 1)
WIDE = decimal.Context(prec=99)
MISSING = object()


def metadata_of(*names: str) -> bytes:
    """Metadata with these names, in four-byte numbers."""
    texts = [name.encode() for name in names]
    ends = [sum(map(len, texts[:count])) for count in range(len(texts) + 1)]
    return b"\xc1" + struct.pack(f"<{len(ends) + 1}I", len(texts), *ends) + b"".join(texts)


def names_in(value: Any) -> list[str]:
    """The names of fields at every depth of a value, each once."""
    found: dict[str, None] = {}
    if isinstance(value, dict):
        found |= dict.fromkeys(value)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        found |= dict.fromkeys(names_in(inner))
    return list(found)


def encoded(value: Any, names: list[str]) -> bytes:
    """A JSON value as a variant: integers of 64 bits, and four bytes for every size."""
    match value:
        case None:
            return b"\x00"
        case bool():
            return b"\x04" if value else b"\x08"
        case int():
            return b"\x18" + struct.pack("<q", value)
        case float():
            return b"\x1c" + struct.pack("<d", value)
        case str():
            data = value.encode()
            return b"\x40" + struct.pack("<I", len(data)) + data
        case list():
            parts, ids = [encoded(each, names) for each in value], []
            header = (1 << 2 | 3) << 2 | 3
        case dict():
            ordered = sorted(value, key=str.encode)
            parts, ids = [encoded(value[name], names) for name in ordered], [names.index(name) for name in ordered]
            header = (1 << 4 | 3 << 2 | 3) << 2 | 2
    ends = [sum(map(len, parts[:count])) for count in range(len(parts) + 1)]
    return bytes([header]) + struct.pack(f"<{1 + len(ids) + len(ends)}I", len(parts), *ids, *ends) + b"".join(parts)


def decoded(variant: dict[str, bytes] | None) -> Any:
    """The value of a variant, in Python's own types; MISSING for a column that is null."""
    if variant is None:
        return MISSING
    data = variant["metadata"]
    width = (data[0] >> 6) + 1
    numbers = [int.from_bytes(data[at : at + width], "little") for at in range(1, len(data), width)]
    count, start = numbers[0], 1 + width * (numbers[0] + 2)
    names = [data[start + numbers[n + 1] : start + numbers[n + 2]].decode() for n in range(count)]
    return _value(variant["value"], names)


def _value(data: bytes, names: list[str]) -> Any:
    kind, header, rest = data[0] & 3, data[0] >> 2, data[1:]
    if kind == 1:
        return rest[:header].decode()
    if kind == 0:
        return _primitive(header, rest)
    large = header >> (4 if kind == 2 else 2) & 1
    id_width, width = (header >> 2 & 3) + 1 if kind == 2 else 0, (header & 3) + 1

    def numbers(at: int, size: int, count: int) -> list[int]:
        return (
            [int.from_bytes(rest[n : n + size], "little") for n in range(at, at + size * count, size)] if size else []
        )

    at = 4 if large else 1
    [count] = numbers(0, at, 1)
    ids, offsets = numbers(at, id_width, count), numbers(at + id_width * count, width, count + 1)
    start = at + id_width * count + width * (count + 1)
    parts = [_value(rest[start + offset :], names) for offset in offsets[:-1]]
    if kind == 3:
        return parts
    found = [names[number] for number in ids]
    assert found == sorted(found, key=str.encode), "fields are in the order of their names"
    return dict(zip(found, parts, strict=True))


def _primitive(number: int, data: bytes) -> Any:
    if number in (0, 1, 2):
        return [None, True, False][number]
    if number in (3, 4, 5, 6):
        return int.from_bytes(data[: 1 << number - 3], "little", signed=True)
    if number in (8, 9, 10):
        width = {8: 4, 9: 8, 10: 16}[number]
        return decimal.Decimal(int.from_bytes(data[1 : 1 + width], "little", signed=True)).scaleb(-data[0], WIDE)
    if number in (15, 16):
        text = data[4 : 4 + int.from_bytes(data[:4], "little")]
        return text if number == 15 else text.decode()
    if number in (7, 14):
        return struct.unpack("<d" if number == 7 else "<f", data[: 8 if number == 7 else 4])[0]
    if number == 20:
        return uuid.UUID(bytes=data[:16])
    count = int.from_bytes(data[: 4 if number == 11 else 8], "little", signed=True)
    if number == 11:
        return EPOCH.date() + dt.timedelta(days=count)
    if number == 17:
        return (EPOCH + dt.timedelta(microseconds=count)).time()
    if number in (12, 13):
        return EPOCH.replace(tzinfo=dt.UTC if number == 12 else None) + dt.timedelta(microseconds=count)
    return (number, count)


def shredded(value: Any, kind: pa.DataType | None, names: list[str]) -> dict[str, Any]:
    """The group of a value whose `typed_value` is of this type; None: there is none."""
    group: dict[str, Any] = {"value": None, "typed_value": None}
    if value is MISSING:
        return group
    if kind is not None and pa.types.is_struct(kind) and isinstance(value, dict):
        inner = {field.name: typed_of(field.type) for field in kind}
        group["typed_value"] = {name: shredded(value.get(name, MISSING), each, names) for name, each in inner.items()}
        left = {name: each for name, each in value.items() if name not in inner}
        group["value"] = encoded(left, names) if left else None
    elif kind is not None and pa.types.is_list(kind) and isinstance(value, list):
        group["typed_value"] = [shredded(each, typed_of(kind.value_type), names) for each in value]
    elif kind is not None and _is_of(value, kind):
        group["typed_value"] = value
    else:
        group["value"] = encoded(value, names)
    return group


def typed_of(group: pa.StructType) -> pa.DataType | None:
    index = group.get_field_index("typed_value")
    return None if index < 0 else group.field(index).type


def group_of(kind: pa.DataType | None) -> pa.StructType:
    """The type of a group with this type of `typed_value`."""
    typed = [] if kind is None else [pa.field("typed_value", kind)]
    return pa.struct([pa.field("value", pa.binary()), *typed])


def column_of(kind: pa.DataType | None) -> pa.StructType:
    """The type of a column of variants with this type of `typed_value`."""
    return pa.struct([pa.field("metadata", pa.binary(), nullable=False), *group_of(kind)])


def _is_of(value: Any, kind: pa.DataType) -> bool:
    plain = {pa.bool_(): bool, pa.int64(): int, pa.float64(): float, pa.string(): str}.get(kind)
    return plain is not None and type(value) is plain
