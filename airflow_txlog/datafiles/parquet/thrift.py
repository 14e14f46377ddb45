"""Thrift's compact protocol, in which a Parquet footer is written: a reader, and the few values that we write.

Source: Thrift, TCompactProtocol. Thrift itself trusts its own type for the items of a list, and keeps 16 bits of a
field's number; what it would read differently from this reader is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
"""The types of fields and items."""
MOST_NESTED = 32
"""The levels of structs and lists that a reader follows."""
_NUMBERS = (I16, I32, I64)
_MOST_FIELDS = 0x7FFF


class Compact:
    """A reader of Thrift's compact protocol. Fields have numbers; the caller skips the fields that it does not need."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield the number and type of each field of a struct; the caller reads or skips it before the next."""
        number = 0
        while (head := self._data[self._at]) & 0x0F:
            self._at += 1
            number = number + (head >> 4) if head >> 4 else self.signed()
            if not 0 < number <= _MOST_FIELDS:
                raise ValueError("its footer has a field whose number is none")
            yield number, head & 0x0F
        self._at += 1

    def items(self, kind: int, expected: int | None = None) -> Iterator[int]:
        """Yield the type of each item of a list; the caller reads or skips it before the next.

        Raises ValueError if the field is no list, or if its items are not of the expected type.
        """
        if kind != LIST and (kind != SET or expected is not None):
            raise of_another_type()
        count, item = self._list_head(expected)
        for _ in range(count):
            yield item

    def skip_list(self, kind: int, expected: int) -> int:
        """Skip a list of such items, and return their number. Raises ValueError as `items` does."""
        if kind != LIST:
            raise of_another_type()
        count, _ = self._list_head(expected)
        if expected in _NUMBERS:
            at = self._at
            for _ in range(count):
                at = self._after_number(at)
            self._at = at
        else:
            for _ in range(count):
                self._skip_item(expected, 0)
        return count

    def _list_head(self, expected: int | None) -> tuple[int, int]:
        """Return the number of items of a list, and their type."""
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        if count and expected not in (None, head & 0x0F):
            raise of_another_type()
        return count, head & 0x0F

    def signed(self) -> int:
        """Return an integer of any width."""
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        """Return the bytes of a text or of a binary value. Raises ValueError if they are not all there."""
        length = self._unsigned()
        found = self._data[self._at : self._at + length]
        if len(found) < length:
            raise ValueError("its footer ends within a field")
        self._at += length
        return found

    @property
    def position(self) -> int:
        """The number of bytes read."""
        return self._at

    def skip(self, kind: int, depth: int = 0) -> None:
        """Skip a field of this type."""
        if kind in _NUMBERS:
            self._at = self._after_number(self._at)
            return
        if depth > MOST_NESTED:
            raise ValueError("its footer is nested too deep")
        if kind in (TRUE, FALSE):
            return
        if kind == STRUCT:
            self._skip_struct(depth)
        elif kind in (LIST, SET):
            for item in self.items(kind):
                self._skip_item(item, depth + 1)
        elif kind == MAP:
            self._skip_map(depth)
        else:
            self._skip_plain(kind)

    def _skip_struct(self, depth: int) -> None:
        """Skip a struct in one loop: most of a footer is skipped here."""
        data, at = self._data, self._at
        while (head := data[at]) & 0x0F:
            at += 1
            if not head >> 4:  # the field's number follows as a separate integer
                at = self._after_number(at)
            kind = head & 0x0F
            if kind in _NUMBERS:
                while data[at] >= 0x80:
                    at += 1
                at += 1
            elif kind == BINARY and data[at] < 0x80:
                at += 1 + data[at]
            elif kind not in (TRUE, FALSE):
                self._at = at
                self.skip(kind, depth + 1)
                at = self._at
        self._at = at + 1

    def _after_number(self, at: int) -> int:
        data = self._data
        while data[at] >= 0x80:
            at += 1
        return at + 1

    def _skip_item(self, kind: int, depth: int) -> None:
        # In a list a boolean is a byte; as a field it is its type.
        self.skip(BYTE if kind in (TRUE, FALSE) else kind, depth)

    def _skip_map(self, depth: int) -> None:
        if count := self._unsigned():
            kinds = self._byte()
            for _ in range(count):
                self._skip_item(kinds >> 4, depth + 1)
                self._skip_item(kinds & 0x0F, depth + 1)

    def _skip_plain(self, kind: int) -> None:
        if kind == BYTE:
            self._at += 1
        elif kind == DOUBLE:
            self._at += 8
        elif kind == BINARY:
            length = self._unsigned()
            self._at += length
        else:
            raise ValueError("its footer has a field of no type that Thrift knows")
        # A list claims its number of items: without this check, all of them would be skipped beyond the end.
        if self._at > len(self._data):
            raise ValueError("its footer ends within a field")

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _unsigned(self) -> int:
        byte = self._data[self._at]
        if byte < 0x80:
            self._at += 1
            return byte
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("its footer has a number of more than 64 bits")


def of_another_type() -> ValueError:
    return ValueError("its footer has a field of another type than Parquet says")


# --- values as bytes ------------------------------------------------------------------------------------------------

Fields: TypeAlias = dict[int, tuple[int, bytes]]
"""The type and the bytes of each field of a struct, by its number."""


def fields_of(data: bytes) -> Fields:
    """Return the fields of a struct. Raises ValueError or IndexError for bytes that are none."""
    return fields_and_length_of(data)[0]


def fields_and_length_of(data: bytes) -> tuple[Fields, int]:
    """Return the fields of the struct with which the bytes begin, and its length. Raises as `fields_of` does."""
    reader = Compact(data)
    found = {}
    for number, kind in reader.fields():
        start = reader.position
        reader.skip(kind)
        found[number] = kind, data[start : reader.position]
    return found, reader.position


def structs_of(fields: Fields, number: int) -> list[bytes]:
    """Return the structs of a list that is a field; none without the field. Raises ValueError for another type."""
    if number not in fields:
        return []
    kind, data = fields[number]
    reader = Compact(data)
    found = []
    for item in reader.items(kind, STRUCT):
        start = reader.position
        reader.skip(item)
        found.append(data[start : reader.position])
    return found


def binary_of(fields: Fields, number: int) -> bytes | None:
    """Return the bytes in a field; None without the field. Raises ValueError for another type."""
    if number not in fields:
        return None
    kind, data = fields[number]
    if kind != BINARY:
        raise of_another_type()
    return Compact(data).binary()


def binaries_of(fields: Fields, number: int) -> list[bytes]:
    """Return the items of a list of bytes; none without the field. Raises ValueError for another type."""
    if number not in fields:
        return []
    kind, data = fields[number]
    reader = Compact(data)
    return [reader.binary() for _ in reader.items(kind, BINARY)]


def integer_of(fields: Fields, number: int) -> int | None:
    """Return the integer in a field; None without the field."""
    return Compact(fields[number][1]).signed() if number in fields else None


def struct(fields: Mapping[int, tuple[int, bytes]]) -> bytes:
    """Return the struct with these fields."""
    parts, last = [], 0
    for number in sorted(fields):
        kind, data = fields[number]
        step = number - last
        parts += [bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + _signed(number), data]
        last = number
    return b"".join([*parts, b"\0"])


def struct_list(structs: Sequence[bytes]) -> tuple[int, bytes]:
    """Return the type and the bytes of a list of structs."""
    count = len(structs)
    head = bytes([count << 4 | STRUCT]) if count < 15 else bytes([0xF0 | STRUCT]) + _unsigned(count)
    return LIST, b"".join([head, *structs])


def integer(value: int, kind: int = I64) -> tuple[int, bytes]:
    """Return the type and the bytes of an integer."""
    return kind, _signed(value)


def _signed(value: int) -> bytes:
    return _unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def _unsigned(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
