"""Copies of Parquet files in which some columns have other values: the other columns are copied as bytes.

A column chunk does not depend on its place in the file, so it is neither decoded nor encoded again. The invariants:
a copied chunk has the same bytes, encodings and statistics; the row groups are those of the source; and the footer
names only chunks of this file. Indexes of pages and Bloom filters, which lie outside of the chunks, are left out, and
so is the order of sorting. A file whose footer leaves any doubt about the place of its chunks is not spliced.
Source: parquet.thrift, FileMetaData, RowGroup, ColumnChunk, ColumnMetaData.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet, rows_at_once
from airflow_txlog.datafiles.parquet.footer_statistics import is_of_old_writer
from airflow_txlog.datafiles.parquet.footers import footer_of
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.reading import calendar_of
from airflow_txlog.datafiles.parquet.thrift import (
    I16,
    I32,
    STRUCT,
    Compact,
    Fields,
    fields_of,
    integer,
    integer_of,
    struct,
    struct_list,
    structs_of,
)

_MAGIC = b"PAR1"
_ENDING_BYTES = 4 + len(_MAGIC)
"""The length of the footer, and the magic number."""
_COPIED_AT_ONCE = 8 * 1024 * 1024
_MOST_ROWS = 64 * 1024 * 1024
# Numbers of fields in parquet.thrift: of the file, a schema element, a row group, a column chunk, and its metadata.
_SCHEMA, _NUM_ROWS, ROW_GROUPS, _KEY_VALUES, _COLUMN_ORDERS, _ENCRYPTION = 2, 3, 4, 5, 7, 8
_NUM_CHILDREN, _KEY = 5, 1
_COLUMNS, _TOTAL_BYTES, _GROUP_ROWS, _SORTING, _GROUP_OFFSET, _COMPRESSED_BYTES, _ORDINAL = 1, 2, 3, 4, 5, 6, 7
_CHUNK_OFFSET, _META_DATA = 2, 3
_OFFSETS = (9, 10, 11)
_BLOOM_FILTER = (14, 15)
_SIZES = (6, 7)  # uncompressed, compressed
# Of a page's header, and of the headers of both versions of data pages in it.
_PAGE_BYTES, _DATA_PAGES, _PAGE_VALUES = 3, (5, 8), 1
# A header takes some thirty bytes; the bounds of a page may make it longer.
_USUAL_HEADER_BYTES, _MOST_HEADER_BYTES = 512, 1024 * 1024
_ARROW_SCHEMA = b"ARROW:schema"


class _Column(NamedTuple):
    """A top-level column of a schema: its elements, and the numbers of its leaves."""

    elements: list[bytes]
    leaves: range


@dataclass(frozen=True, slots=True)
class Splice:
    """A file to copy with other values in the columns with the numbers `replaced`; `groups` are not empty."""

    parquet: OpenParquet
    replaced: frozenset[int]
    groups: Sequence[int]
    kept: Sequence[int]
    """The numbers of the leaves whose chunks are copied."""
    footer: Fields
    columns: list[_Column]
    end: int
    """The place of the footer."""

    @classmethod
    def of(cls, parquet: OpenParquet, replaced: frozenset[int], groups: Sequence[int]) -> Splice | None:
        """Return the splice of an open, checked file; None if its chunks cannot be copied with certainty."""
        metadata, data = parquet.metadata, footer_of(parquet.source)
        try:
            footer = fields_of(data)
            columns = _columns(footer)
        except (ValueError, IndexError):
            return None
        kept = [leaf for number, column in enumerate(columns) if number not in replaced for leaf in column.leaves]
        filled = [group for group in groups if metadata.row_group(group).num_rows]
        # What the statistics of such a file mean depends on its writer.
        is_old = calendar_of(parquet).is_legacy or is_of_old_writer(parquet)
        if is_old or _ENCRYPTION in footer or columns[-1].leaves.stop != metadata.num_columns or not filled:
            return None
        found = cls(parquet, replaced, filled, kept, footer, columns, parquet.source.size() - _ENDING_BYTES - len(data))
        return found if all(map(found._is_certain, filled)) else None

    def _is_certain(self, group: int) -> bool:
        """Return whether each kept chunk of the row group is in this file, before the footer, and overlaps no other."""
        found = self.parquet.metadata.row_group(group)
        if any(found.column(leaf).file_path or found.column(leaf).physical_type == "INT96" for leaf in self.kept):
            return False
        places = sorted(self._places(group))
        ends = [start + size for start, size, _ in places]
        starts = [*(start for start, _, _ in places), self.end]
        return all(size > 0 for _, size, _ in places) and all(
            end <= start for end, start in zip([len(_MAGIC), *ends], starts, strict=True)
        )

    def _places(self, group: int) -> Iterator[tuple[int, int, int]]:
        """Yield the start, the size and the leaf of each kept chunk of the row group."""
        found = self.parquet.metadata.row_group(group)
        for leaf in self.kept:
            chunk = found.column(leaf)
            starts = [start for start in (chunk.dictionary_page_offset, chunk.data_page_offset) if start]
            yield min(starts, default=0), int(chunk.total_compressed_size), leaf

    @property
    def kept_bytes(self) -> int:
        """The size of the chunks that are copied."""
        return sum(size for group in self.groups for _, size, _ in self._places(group))

    @property
    def all_bytes(self) -> int:
        """The size of all chunks."""
        groups = [self.parquet.metadata.row_group(group) for group in self.groups]
        return sum(int(each.column(leaf).total_compressed_size) for each in groups for leaf in range(each.num_columns))

    def fits(self, names: Sequence[str]) -> bool:
        """Return whether these columns of each row group fit in memory at once."""
        sizes = [(group, self.parquet.metadata.row_group(group).num_rows) for group in self.groups]
        # Arrow would cut a row group of more rows in two.
        return all(
            rows <= _MOST_ROWS and 2 * rows_at_once(self.parquet, group, names, rows) >= rows for group, rows in sizes
        )

    def copy(self, group: int, sink: pa.NativeFile) -> dict[int, int]:
        """Append the kept chunks of a row group to `sink`; return by how many bytes each leaf's chunk has moved.

        Raises ChunkMismatch.
        """
        source, written = self.parquet.source, sink.tell()
        moved: dict[int, int] = {}
        ranges: list[tuple[int, int]] = []
        for start, size, leaf in sorted(self._places(group), key=lambda place: (place[2] != 0, place)):
            moved[leaf] = written - start
            written += size
            # Neighbours are read at once: each read of an object store is a request.
            first = ranges.pop()[0] if ranges and ranges[-1][1] == start else start
            ranges.append((first, start + size))
        pages = Pages({start + size: self._values(group, leaf) for start, size, leaf in self._places(group)})
        for start, end in ranges:
            source.seek(start)
            pages.begin(start)
            left = end - start
            while left:
                data = source.read(min(left, _COPIED_AT_ONCE))
                if not data:
                    raise OSError(f"the file ended {left} bytes before its footer's place")
                pages.pass_by(data)
                sink.write(data)
                left -= len(data)
            pages.end()
        source.seek(0)
        pages.check_all()
        return moved

    def _values(self, group: int, leaf: int) -> int:
        return int(self.parquet.metadata.row_group(group).column(leaf).num_values)

    def footer_with(self, new: bytes, moved: Sequence[Mapping[int, int]]) -> bytes:
        """Return the footer of the copy. `new` is that of a file of the replaced columns alone, in the file's order."""
        other = fields_of(new)
        others = iter(_columns(other))
        # Each column with the file that has its chunks.
        taken = [
            (True, next(others)) if number in self.replaced else (False, one) for number, one in enumerate(self.columns)
        ]
        schema = [structs_of(self.footer, _SCHEMA)[0], *(element for _, one in taken for element in one.elements)]
        old_groups = structs_of(self.footer, ROW_GROUPS)
        groups = [
            _row_group(ordinal, fields_of(old_groups[group]), fields_of(added), taken, moved[ordinal])
            for ordinal, (group, added) in enumerate(zip(self.groups, structs_of(other, ROW_GROUPS), strict=True))
        ]
        found = {**self._footer_of(groups), _SCHEMA: struct_list(schema)}
        orders, new_orders = structs_of(self.footer, _COLUMN_ORDERS), structs_of(other, _COLUMN_ORDERS)
        found.pop(_COLUMN_ORDERS, None)
        if len(orders) == self.parquet.metadata.num_columns and new_orders:
            chosen = [(new_orders if is_new else orders)[leaf] for is_new, one in taken for leaf in one.leaves]
            found[_COLUMN_ORDERS] = struct_list(chosen)
        return struct(found)

    def footer_of_groups(self, new: bytes, copied: Sequence[tuple[int, Mapping[int, int]] | None]) -> bytes:
        """Return the footer of a copy with whole row groups of the file, `copied` with how far their chunks have moved.

        None stands for the next row group of `new`, the footer of a file of the same schema.
        """
        old_groups, written = structs_of(self.footer, ROW_GROUPS), iter(structs_of(fields_of(new), ROW_GROUPS))
        groups = []
        for ordinal, each in enumerate(copied):
            group = fields_of(next(written) if each is None else old_groups[each[0]])
            taken = [(each is None, column) for column in self.columns]
            groups.append(_row_group(ordinal, group, group, taken, {} if each is None else each[1]))
        return struct(self._footer_of(groups))

    def _footer_of(self, groups: Sequence[Fields]) -> Fields:
        """Return the footer of the file with these row groups, without Arrow's schema."""
        found = with_groups(self.footer, groups)
        values = [pair for pair in structs_of(self.footer, _KEY_VALUES) if not _is_schema_of_arrow(pair)]
        found.pop(_KEY_VALUES, None)
        return {**found, _KEY_VALUES: struct_list(values)} if values else found

    def has_form_of(self, other: bytes) -> bool:
        """Return whether a file with the footer `other` has the same columns, whose values have the same order."""
        found = fields_of(other)
        (_, *ours), (_, *others) = (structs_of(footer, _SCHEMA) for footer in (self.footer, found))
        return ours == others and self.footer.get(_COLUMN_ORDERS) == found.get(_COLUMN_ORDERS)


class ChunkMismatch(Exception):
    """The footer describes a column chunk in another way than its pages do."""


class Pages:
    """The pages of chunks, whose headers are read while the bytes pass by.

    A chunk that does not end with a page, or whose pages have another number of values, is not what the footer states:
    no reader could read its copy. `values` are the numbers of values of the chunks by their ends. Raises ChunkMismatch.
    """

    def __init__(self, values: Mapping[int, int]) -> None:
        self._values = dict(values)
        self._at = self._next = self._found = 0
        self._held = b""

    def begin(self, start: int) -> None:
        """Begin with the chunk at `start`, the first of its range."""
        self._at = self._next = start

    def pass_by(self, data: bytes) -> None:
        """Read the headers in the next bytes of the range."""
        data, self._held = self._held + data, b""
        end = self._at + len(data)
        while self._next < end:
            first = self._next - self._at
            try:
                length, size_bytes, values = _page(data[first : first + _USUAL_HEADER_BYTES])
            except (IndexError, ValueError):
                header = data[first : first + _MOST_HEADER_BYTES]
                try:
                    length, size_bytes, values = _page(header)
                except (IndexError, ValueError) as error:
                    if len(header) == _MOST_HEADER_BYTES:
                        raise ChunkMismatch("a page has no header") from error
                    # The header continues in the bytes that follow.
                    self._at, self._held = self._next, header
                    return
            self._next += length + size_bytes
            self._found += values
            if self._next in self._values:
                if self._values.pop(self._next) != self._found:
                    raise ChunkMismatch("the pages of a column chunk have another number of values than it")
                self._found = 0
        self._at = end

    def end(self) -> None:
        """Check the end of the range."""
        if self._held or self._next != self._at:
            raise ChunkMismatch("a column chunk does not end with a page")

    def check_all(self) -> None:
        """Check that every chunk has passed by."""
        if self._values:
            raise ChunkMismatch("a column chunk does not end with a page")


def _page(header: bytes) -> tuple[int, int, int]:
    """Return the bytes of a page's header, those that follow it, and its number of values.

    Raises IndexError or ValueError for bytes that are not the whole header of a page.
    """
    reader = Compact(header)
    size_bytes, values = -1, 0
    for number, kind in reader.fields():
        if number == _PAGE_BYTES and kind == I32:
            size_bytes = reader.signed()
        elif number in _DATA_PAGES and kind == STRUCT:
            for inner, inner_kind in reader.fields():
                if inner == _PAGE_VALUES and inner_kind == I32:
                    values = reader.signed()
                else:
                    reader.skip(inner_kind)
        else:
            reader.skip(kind)
    if size_bytes < 0 or values < 0:
        raise ValueError("a page has no size")
    return reader.position, size_bytes, values


def _columns(footer: Fields) -> list[_Column]:
    """Return the top-level columns of a footer's schema."""
    elements = structs_of(footer, _SCHEMA)
    children = [integer_of(fields_of(element), _NUM_CHILDREN) or 0 for element in elements]
    found: list[_Column] = []
    at, leaf = 1, 0
    for _ in range(children[0]):
        start, first, left = at, leaf, 1
        # Each element takes the place of one that was waited for, and its children are waited for.
        while left:
            left += children[at] - 1
            leaf += not children[at]
            at += 1
        found.append(_Column(elements[start:at], range(first, leaf)))
    if at != len(elements) or not found:
        raise ValueError("the schema has elements outside of its columns")
    return found


def _row_group(
    ordinal: int, old: Fields, new: Fields, taken: Sequence[tuple[bool, _Column]], moved: Mapping[int, int]
) -> Fields:
    """Return a row group of the copy. `taken` has for each column whether it is a new one."""
    of_old, of_new = structs_of(old, _COLUMNS), structs_of(new, _COLUMNS)
    chunks = [
        _moved(of_new[leaf], 0) if is_new else _moved(of_old[leaf], moved[leaf])
        for is_new, column in taken
        for leaf in column.leaves
    ]
    return row_group({**old, _ORDINAL: integer(0, I16)}, chunks, ordinal)


def row_group(group: Fields, chunks: Sequence[tuple[Fields, Fields]], ordinal: int) -> Fields:
    """Return a row group with the rows of `group`, these chunks with their metadata, and this number if it has one."""
    metadata = [each for _, each in chunks]
    starts = [integer_of(each, number) or 0 for each in metadata for number in _OFFSETS]
    uncompressed, compressed = (sum(integer_of(each, size) or 0 for each in metadata) for size in _SIZES)
    return {
        **{number: value for number, value in group.items() if number != _SORTING},
        _COLUMNS: struct_list([struct({**chunk, _META_DATA: (STRUCT, struct(each))}) for chunk, each in chunks]),
        _TOTAL_BYTES: integer(uncompressed),
        _GROUP_OFFSET: integer(min(start for start in starts if start)),
        _COMPRESSED_BYTES: integer(compressed),
        **({_ORDINAL: integer(ordinal, I16)} if _ORDINAL in group else {}),
    }


def chunks_of_group(group: Fields, by: int) -> list[tuple[Fields, Fields]]:
    """Return the column chunks of a row group, moved by as many bytes, each with its metadata."""
    return [_moved(chunk, by) for chunk in structs_of(group, _COLUMNS)]


def with_groups(footer: Fields, groups: Sequence[Fields]) -> Fields:
    """Return the footer with these row groups."""
    rows = sum(integer_of(group, _GROUP_ROWS) or 0 for group in groups)
    return {**footer, _NUM_ROWS: integer(rows), ROW_GROUPS: struct_list(list(map(struct, groups)))}


def _moved(data: bytes, by: int) -> tuple[Fields, Fields]:
    """Return a column chunk whose pages have moved, without what lies elsewhere in its file, and its metadata."""
    chunk = fields_of(data)
    metadata = fields_of(chunk[_META_DATA][1])
    for number in _OFFSETS:
        if offset := integer_of(metadata, number):
            metadata[number] = integer(offset + by)
    for number in _BLOOM_FILTER:
        metadata.pop(number, None)
    offset = integer_of(chunk, _CHUNK_OFFSET) or 0
    return {_CHUNK_OFFSET: integer(offset + by if offset else 0)}, metadata


def _is_schema_of_arrow(pair: bytes) -> bool:
    # A text begins with its length, which is one byte here.
    return fields_of(pair)[_KEY][1][1:] == _ARROW_SCHEMA


class JoiningWriter(RowGroupWriter):
    """Writes a file that is put together of chunks. Its footer is that of `_footer`."""

    def _stream(self, sink: Any) -> pa.NativeFile:
        self._open = _BeforeFooter(sink)
        # One stream for both, so that Arrow counts the bytes of copied chunks.
        self._chunks = pa.PythonFile(self._open, "w")
        return self._chunks

    def _end(self, writer: pq.ParquetWriter) -> None:
        footer = self._open.footer = bytearray()
        super()._end(writer)
        merged = self._footer(bytes(footer[:-_ENDING_BYTES]))
        sink, self._open.sink = self._open.sink, None  # Its buffers are freed once it is closed.
        sink.write(merged + len(merged).to_bytes(4, "little") + _MAGIC)

    @abc.abstractmethod
    def _footer(self, written: bytes) -> bytes:
        """Return the footer of the file; `written` is that of a file of the rows that Arrow has written here alone."""


class SplicingWriter(JoiningWriter):
    """Writes a copy of which some chunks are bytes of its source."""

    def __init__(self, splice: Splice, *of_file: Any, **options: Any) -> None:
        super().__init__(*of_file, **options)
        self._splice = splice


class SplicedWriter(SplicingWriter):
    """Writes a copy with other columns. `write` takes the rows of the replaced columns. `end_row_group` ends one of the
    source's row groups and copies the chunks of its other columns.
    """

    def __init__(self, *of_file: Any, **options: Any) -> None:
        super().__init__(*of_file, **options)
        self._moved: list[dict[int, int]] = []
        self._row_group_bytes = sys.maxsize

    def _write_group(self, writer: pq.ParquetWriter, table: pa.Table) -> None:
        # Java's readers look for the middle of a row group behind the start of its first column. If another chunk came
        # first, that could be beyond the file, and they would read no row.
        is_first = 0 in self._splice.replaced
        if is_first:
            super()._write_group(writer, table)
        group = self._splice.groups[len(self._moved)]
        self._moved.append(self._splice.copy(group, self._chunks))
        if not is_first:
            super()._write_group(writer, table)

    def _footer(self, written: bytes) -> bytes:
        return self._splice.footer_with(written, self._moved)


class _BeforeFooter:
    """A binary file that passes on what is written to it, until it keeps the rest in `footer`."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink
        self.footer: bytearray | None = None
        self.closed = False

    def write(self, data: Any) -> int:
        if self.footer is None:
            self.sink.write(data)
        else:
            self.footer += data
        return len(data)

    def flush(self) -> None:
        """Do nothing: the file is seen when it is closed, not before."""

    def close(self) -> None:
        self.closed = True
