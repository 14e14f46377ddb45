"""Forms of Parquet footers: a writer's files of one schema share one, and a pattern knows it sooner than a parser.

A form is learned from a footer that `check_footer` has accepted. It fixes every byte but 64-bit numbers, the sizes of
indexes, the statistics of values, and pandas' note on its index. The invariant: no check depends on those, so each
footer of a form is as safe as the one that the form was learned from, and is cut into the same fields by Thrift.
Source: parquet.thrift; Thrift, TCompactProtocol.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from airflow_txlog.datafiles.parquet.footers import COLUMNS, META_DATA, PHYSICAL_TYPES, ROW_GROUPS, TYPE, footer_of
from airflow_txlog.datafiles.parquet.thrift import (
    BINARY,
    BYTE,
    FALSE,
    I32,
    I64,
    LIST,
    MOST_NESTED,
    STRUCT,
    TRUE,
    Compact,
)

# Numbers of fields in parquet.thrift.
_NUM_ROWS, _NUM_VALUES, _UNCOMPRESSED_BYTES, _STATISTICS = 3, 5, 6, 12
_NULL_COUNT, _MAX_VALUE, _MIN_VALUE = 3, 5, 6
_KEY_VALUES, _KEY, _VALUE = 5, 1, 2
_OF_CHUNK = (ROW_GROUPS, COLUMNS)
_OF_CHUNK_METADATA = (*_OF_CHUNK, META_DATA)
_OF_STATISTICS = (*_OF_CHUNK_METADATA, _STATISTICS)
# 32-bit numbers that differ from file to file: the lengths of the indexes, and how many pages have an encoding.
_SIZES = {(*_OF_CHUNK, 5), (*_OF_CHUNK, 7), (*_OF_CHUNK_METADATA, 13, 3)}
# The numbers and values that are read, by their place in the footer.
_ROWS_OF_FILE, _ROWS_OF_GROUP = (_NUM_ROWS,), (ROW_GROUPS, _NUM_ROWS)
_VALUES, _BYTES = (*_OF_CHUNK_METADATA, _NUM_VALUES), (*_OF_CHUNK_METADATA, _UNCOMPRESSED_BYTES)
_NULLS, _LEAST, _MOST = ((*_OF_STATISTICS, each) for each in (_NULL_COUNT, _MIN_VALUE, _MAX_VALUE))
_READ = frozenset((_ROWS_OF_FILE, _ROWS_OF_GROUP, _VALUES, _BYTES, _NULLS, _LEAST, _MOST))
_OF_FILE = -1

_NUMBER = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_SIZE = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_PANDAS, _MAGIC = b"pandas", b"PAR1"
_MOST_FORM_BYTES = 64 * 1024
_TEXTS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
# The bytes of any other value in memory, at most.
_MOST_WIDTH = 16
_UNKNOWN_BYTES = 1 << 64
_CODES = {"INT32": "i", "INT64": "q", "FLOAT": "f", "DOUBLE": "d"}
_NUMBERS = {kind: struct.Struct(f"<{code}") for kind, code in _CODES.items()}
_PLAIN = {kind: number.unpack for kind, number in _NUMBERS.items()}


_Place: TypeAlias = tuple[tuple[int, ...], int]


class ChunkStatistics(NamedTuple):
    """The statistics of a column chunk, with physical bounds; None for those that its footer does not hold."""

    num_values: int
    null_count: int | None = None
    bounds: tuple[Any, Any] | None = None


class _Column(NamedTuple):
    """The positions of a column's values among those that a form finds; None for a value that it does not have."""

    kind: str
    values: int
    size_bytes: int
    nulls: int | None
    bounds: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class FormFooter:
    """The numbers and statistics in a footer with a known form, which has one row group."""

    num_rows: int
    _columns: tuple[_Column, ...]
    _found: Sequence[bytes]

    def most_bytes(self) -> int:
        """Return the most bytes that the rows take in memory if the footer is true."""
        most = 0
        for column in self._columns:
            values, size_bytes = _signed(self._found[column.values]), _signed(self._found[column.size_bytes])
            if values < 0 or size_bytes < 0:
                return _UNKNOWN_BYTES
            # Each text may be as long as the chunk.
            most += values * (_MOST_WIDTH + (size_bytes if column.kind in _TEXTS else 0))
        return most

    def statistics(self, number: int) -> ChunkStatistics:
        """Return the statistics of the column with this number."""
        found, column = self._found, self._columns[number]
        bounds = None
        if column.bounds is not None:
            least, most = column.bounds
            bounds = found[least], found[most]
            plain = _PLAIN.get(column.kind)
            if plain is not None:
                bounds = plain(bounds[0])[0], plain(bounds[1])[0]
        nulls = None if column.nulls is None else _signed(found[column.nulls])
        return ChunkStatistics(_signed(found[column.values]), nulls, bounds)


def _signed(number: bytes) -> int:
    # Most numbers have one byte.
    return (number[0] >> 1) ^ -(number[0] & 1) if len(number) == 1 else Compact(number).signed()


@dataclass(frozen=True, slots=True)
class FooterForm:
    """The parts of a footer, of a file with one row group, that other files have in common with it."""

    _segments: tuple[re.Pattern[bytes], ...]
    """The bytes between texts of any length. Each text is preceded by its length."""
    _rows: tuple[int, int]
    """Which of the groups in the segments, and of the texts, are the numbers of rows."""
    _columns: tuple[_Column, ...]

    @classmethod
    def of(cls, source: Any) -> tuple[FooterForm, FormFooter]:
        """Return the form of the footer of `source`, which `check_footer` has accepted, and that footer by it.

        Raises ValueError if it has no form.
        """
        footer = footer_of(source)
        if len(footer) > _MOST_FORM_BYTES:
            raise ValueError("its columns are too many")
        found = _Form(footer)
        segments = tuple(re.compile(pattern, re.DOTALL) for pattern in found.segments())
        rows, columns = found.places()
        form = cls(segments, rows, columns)
        read = form.read(footer + len(footer).to_bytes(4, "little") + _MAGIC)
        if read is None:
            raise ValueError("its numbers of rows differ")
        return form, read

    def read(self, data: bytes) -> FormFooter | None:
        """Return the footer of a Parquet file by the end of the file, or None if it has another form."""
        end = len(data) - 8
        start = end - int.from_bytes(data[end : end + 4], "little")
        if data[-4:] != _MAGIC or start < 0:
            return None
        found = self._read(data, start, end)
        if found is None:
            return None
        of_file, of_group = (_signed(found[at]) for at in self._rows)
        return FormFooter(of_file, self._columns, found) if of_file == of_group and of_file >= 0 else None

    def _read(self, data: bytes, at: int, end: int) -> list[bytes] | None:
        """Return the bytes of each group and text."""
        found: list[bytes] = []
        for number, segment in enumerate(self._segments):
            if number:
                length, at = data[at], at + 1
                if length >= 0x80:
                    length, at = length & 0x7F | data[at] << 7, at + 1
                if length >= 0x80 << 7:
                    return None
                found.append(data[at : at + length])
                at += length
            match = segment.match(data, at, end)
            if match is None:
                return None
            found += match.groups()
            at = match.end()
        return found if at == end else None


class _Form:
    """The pattern of a footer in segments, the place of each of its groups and texts, and the types of its columns."""

    def __init__(self, data: bytes) -> None:
        self._places: list[_Place | None] = []
        self._types: list[str] = []
        self._widths: dict[int, int] = {}
        self._key = b""
        self._is_typed = False
        self._data = data
        self._footer = Compact(data)
        self._segments: list[list[bytes]] = [[]]
        self._end = 0

    def segments(self) -> list[bytes]:
        self._struct(())
        self._segments[-1].append(re.escape(self._data[self._end :]))
        return [b"".join(parts) for parts in self._segments]

    def places(self) -> tuple[tuple[int, int], tuple[_Column, ...]]:
        """Return which groups and texts of the segments are the numbers of rows, and which belong to each column."""
        at = {place: number for number, place in enumerate(self._places) if place is not None}
        columns = range(len(self._types))
        needed: set[_Place] = {(place, _OF_FILE) for place in (_ROWS_OF_FILE, _ROWS_OF_GROUP)}
        needed |= {(place, column) for place in (_VALUES, _BYTES) for column in columns}
        if len(at) < len(self._places) - self._places.count(None) or not needed <= at.keys():
            raise ValueError("the file has not one row group")
        found = []
        for column in columns:
            least, most = at.get((_LEAST, column)), at.get((_MOST, column))
            bounds = None if least is None or most is None else (least, most)
            kind = self._types[column]
            number = _NUMBERS.get(kind)
            if number is not None and any(self._widths.get(each) != number.size for each in bounds or ()):
                raise ValueError("its statistics have values of another length than their type")
            found.append(_Column(kind, at[_VALUES, column], at[_BYTES, column], at.get((_NULLS, column)), bounds))
        return (at[_ROWS_OF_FILE, _OF_FILE], at[_ROWS_OF_GROUP, _OF_FILE]), tuple(found)

    def _struct(self, path: tuple[int, ...]) -> None:
        for number, kind in self._footer.fields():
            self._value(kind, (*path, number))

    def _value(self, kind: int, path: tuple[int, ...]) -> None:
        start = self._footer.position
        if len(path) > MOST_NESTED:
            raise ValueError("its footer is nested too deep")
        if kind == STRUCT:
            if path == (_KEY_VALUES,):
                self._key = b""
            if path == _OF_CHUNK_METADATA:
                self._is_typed = False
            self._struct(path)
        elif kind == LIST:
            for item in self._footer.items(kind):
                self._value(BYTE if item in (TRUE, FALSE) else item, path)
        elif kind == I64 or (kind == I32 and path in _SIZES):
            self._footer.skip(kind)
            self._number(start, path, _NUMBER if kind == I64 else _SIZE)
        elif path == (*_OF_CHUNK_METADATA, TYPE):
            self._types.append(PHYSICAL_TYPES[self._footer.signed()])
            self._is_typed = True
        elif kind == BINARY:
            self._footer.skip(kind)
            self._bytes(start, path)
        else:
            self._footer.skip(kind)

    def _number(self, start: int, path: tuple[int, ...], pattern: bytes) -> None:
        if path in _READ:
            pattern = b"(" + pattern + b")"
            self._places.append(self._place(path))
        self._replace(start, pattern)

    def _bytes(self, start: int, path: tuple[int, ...]) -> None:
        place = self._place(path) if path in _READ else None
        if path == (_KEY_VALUES, _KEY):
            self._key = self._data[start + 1 : self._footer.position]
        if path[:-1] == _OF_STATISTICS and self._types[-1:] != ["BYTE_ARRAY"]:
            # One byte counts these.
            length = self._data[start]
            if length != self._footer.position - start - 1:
                raise ValueError("its statistics have long values")
            self._replace(start + 1, b"(.{%d})" % length)
            self._widths[len(self._places)] = length
            self._places.append(place)
        elif path[:-1] == _OF_STATISTICS or (path == (_KEY_VALUES, _VALUE) and self._key == _PANDAS):
            self._replace(start, b"")
            self._segments.append([])
            self._places.append(place)

    def _place(self, path: tuple[int, ...]) -> _Place:
        if path[:3] != _OF_CHUNK_METADATA:
            return path, _OF_FILE
        if not self._is_typed:
            raise ValueError("a column chunk has its type behind its numbers")
        return path, len(self._types) - 1

    def _replace(self, start: int, pattern: bytes) -> None:
        self._segments[-1] += [re.escape(self._data[self._end : start]), pattern]
        self._end = self._footer.position
