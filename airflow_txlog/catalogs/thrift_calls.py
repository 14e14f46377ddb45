"""Calls of a Thrift service: the strict binary protocol over a buffered socket, without generated code.

A struct is a dict from field number to a `Value`, which keeps its type. So a record that is read, changed and written
back keeps every field, also one that a later release of the service has added. Source: Apache Thrift, "Thrift Binary
protocol encoding" and "Thrift RPC".
"""

from __future__ import annotations

import enum
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from airflow_txlog.clock import SYSTEM_CLOCK

# A table with a thousand columns is below 1 MB. Each byte may become a struct, of a hundred.
_MOST_BYTES = 16 * 1024**2
_LONGEST_S = 60.0
_MOST_DEPTH = 32
_VERSION_1, _CALL, _REPLY = 0x8001_0000, 1, 2


class Kind(enum.IntEnum):
    """The types on the wire."""

    STOP = 0
    BOOL = 2
    BYTE = 3
    DOUBLE = 4
    I16 = 6
    I32 = 8
    I64 = 10
    STRING = 11
    STRUCT = 12
    MAP = 13
    SET = 14
    LIST = 15


class Value(NamedTuple):
    """A value and its type. `of`: the types of the items of a list, a set or a map."""

    kind: Kind
    value: Any
    of: tuple[Kind, ...] = ()


Struct: TypeAlias = dict[int, Value]

_NUMBERS = {Kind.BYTE: ">b", Kind.I16: ">h", Kind.I32: ">i", Kind.I64: ">q", Kind.DOUBLE: ">d"}


class ThriftFailed(OSError):
    """The service closed the connection, answered another protocol, or does not know the call."""


def text(value: str) -> Value:
    """Return a text as a value."""
    return Value(Kind.STRING, value)


def texts(values: Mapping[str, str]) -> Value:
    """Return a mapping of texts as a value."""
    return Value(Kind.MAP, dict(values), (Kind.STRING, Kind.STRING))


def structs(values: list[Struct]) -> Value:
    """Return a list of structs as a value."""
    return Value(Kind.LIST, values, (Kind.STRUCT,))


class ThriftConnection:
    """One connection to a service, closed by `close`. Not for several threads.

    `timeout_s`: how long the next bytes of an answer may take; `longest_s`: the whole answer.
    """

    def __init__(self, host: str, port: int, timeout_s: float, longest_s: float = _LONGEST_S) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._reader = self._socket.makefile("rb")
        self._longest_s = longest_s
        self._left, self._ends_s = _MOST_BYTES, 0.0

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
        self._socket.close()

    def call(self, name: str, arguments: Struct) -> Struct:
        """Return the result's struct: field 0 is the value, and any other an exception that the service declares.

        Raises ThriftFailed, and OSError for a connection that ends.
        """
        encoded = name.encode()
        message = [struct.pack(">Ii", _VERSION_1 | _CALL, len(encoded)), encoded, struct.pack(">i", 0)]
        self._socket.sendall(b"".join((*message, *_struct_bytes(arguments))))
        self._left, self._ends_s = _MOST_BYTES, SYSTEM_CLOCK.monotonic_s() + self._longest_s
        (head,) = struct.unpack(">I", self._read(4))
        if head & 0xFFFF_0000 != _VERSION_1:
            raise ThriftFailed("it does not answer by Thrift's binary protocol")
        self._read(self._size())
        self._read(4)
        try:
            result = self._struct()
        except (KeyError, TypeError):
            # A list of no type, or a map by keys that are none.
            raise ThriftFailed("its answer is malformed") from None
        if head & 0xFF != _REPLY:
            reason = result.get(1)
            raise ThriftFailed(f"it refuses the call {name}: {reason.value if reason else 'no reason'}")
        return result

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, size: int) -> bytes:
        self._left -= size
        if size < 0 or self._left < 0:
            raise ThriftFailed("its answer is too large")
        pieces = []
        while size:
            data = self._reader.read1(size)
            if not data:
                raise ThriftFailed("it closed the connection")
            if SYSTEM_CLOCK.monotonic_s() > self._ends_s:
                raise ThriftFailed(f"its answer takes more than {self._longest_s:g} seconds")
            pieces.append(data)
            size -= len(data)
        return b"".join(pieces)

    def _number(self, kind: Kind) -> Any:
        form = _NUMBERS[kind]
        return struct.unpack(form, self._read(struct.calcsize(form)))[0]

    def _size(self) -> int:
        return int(self._number(Kind.I32))

    def _kind(self) -> Kind:
        number = self._read(1)[0]
        try:
            return Kind(number)
        except ValueError:
            raise ThriftFailed(f"its answer has the unknown type {number}") from None

    def _struct(self, depth: int = 0) -> Struct:
        found: Struct = {}
        while (kind := self._kind()) is not Kind.STOP:
            number = int(self._number(Kind.I16))
            found[number] = self._value(kind, depth + 1)
        return found

    def _value(self, kind: Kind, depth: int) -> Value:
        if depth > _MOST_DEPTH:
            raise ThriftFailed("its answer is nested too deeply")
        if kind is Kind.BOOL:
            return Value(kind, self._read(1) != b"\0")
        if kind is Kind.STRING:
            return Value(kind, self._read(self._size()).decode("utf-8", "surrogateescape"))
        if kind is Kind.STRUCT:
            return Value(kind, self._struct(depth))
        if kind is Kind.MAP:
            key, item, count = self._kind(), self._kind(), self._size()
            pairs = ((self._value(key, depth + 1).value, self._item(item, depth)) for _ in range(count))
            return Value(kind, dict(pairs), (key, item))
        if kind in (Kind.LIST, Kind.SET):
            item, count = self._kind(), self._size()
            return Value(kind, [self._item(item, depth) for _ in range(count)], (item,))
        return Value(kind, self._number(kind))

    def _item(self, kind: Kind, depth: int) -> Any:
        found = self._value(kind, depth + 1)
        # Of a nested collection the types of its items are needed to write it back.
        return found if kind in (Kind.MAP, Kind.LIST, Kind.SET) else found.value


# --- writing --------------------------------------------------------------------------------------------------------


def _struct_bytes(fields: Struct) -> Iterator[bytes]:
    for number, value in fields.items():
        yield struct.pack(">bh", value.kind, number)
        yield from _value_bytes(value)
    yield b"\0"


def _value_bytes(value: Value) -> Iterator[bytes]:
    kind = value.kind
    if kind is Kind.BOOL:
        yield b"\1" if value.value else b"\0"
    elif kind is Kind.STRING:
        encoded = value.value.encode("utf-8", "surrogateescape")
        yield struct.pack(">i", len(encoded)) + encoded
    elif kind is Kind.STRUCT:
        yield from _struct_bytes(value.value)
    elif kind is Kind.MAP:
        yield struct.pack(">bbi", *value.of, len(value.value))
        for key, item in value.value.items():
            yield from _value_bytes(Value(value.of[0], key))
            yield from _item_bytes(value.of[1], item)
    elif kind in (Kind.LIST, Kind.SET):
        yield struct.pack(">bi", value.of[0], len(value.value))
        for item in value.value:
            yield from _item_bytes(value.of[0], item)
    else:
        yield struct.pack(_NUMBERS[kind], value.value)


def _item_bytes(kind: Kind, item: Any) -> Iterator[bytes]:
    return _value_bytes(item if isinstance(item, Value) else Value(kind, item))
