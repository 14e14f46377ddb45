"""How much memory the decoded rows of a Parquet file take, by its footer and its dictionaries.

The size of a file bounds nothing: pages compress a thousandfold, a dictionary holds a text once for a million rows, and
a null takes no byte. The footer gives the size of pages, the number of values and, by newer writers, the bytes of
the texts of a column chunk. It may lie about these, so the longest text of a dictionary bounds them as well.
The invariants: only footers and dictionary pages are read here, never rows. A longest text that is returned holds for
the page that Arrow reads, the first one of the chunk; for an unusual page it is None.
Source: parquet.thrift, ColumnMetaData, SizeStatistics, PageHeader and DictionaryPageHeader; Parquet, "Plain" encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.parquet.physical import columns_of_leaf
from airflow_txlog.datafiles.parquet.thrift import BINARY, I32, LIST, STRUCT, Compact, integer, struct, struct_list

BATCH_BYTES = 64 * 1024 * 1024
"""The most memory that the rows of one batch take, by the footer."""
MOST_BATCH_BYTES = 16 * BATCH_BYTES
"""The most memory that the texts from dictionaries take in one batch, even if the footer understates them."""

# Bytes that Arrow holds per value; for a text, the offset of its end.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}
_DECIMAL_BYTES = 16
_DICTIONARIES = frozenset(("PLAIN_DICTIONARY", "RLE_DICTIONARY"))
# A text that is stored as its difference from the one before may be as long as its whole chunk. Such texts are rare.
_ROWS_OF_LONG_TEXTS = 1_024
# Dictionaries whose texts cannot exceed this size are not examined.
_SMALL_BYTES = 4 * 1024 * 1024


class OpenParquet(pq.ParquetFile):  # type: ignore[misc]
    """An open Parquet file, with facts that pyarrow does not show.

    `source` is the seekable binary file object that it was opened on. `text_bytes` holds the bytes of the texts of a
    column chunk, by the numbers of its row group and column, for the chunks whose footer counts them. `dictionaries`
    are the columns that are read as dictionaries on demand.
    """

    source: Any = None
    text_bytes: Mapping[tuple[int, int], int] = {}
    dictionaries: frozenset[str] = frozenset()

    @cached_property
    def schema_arrow(self) -> pa.Schema:
        """The file's schema, which pyarrow would rebuild each time; texts instead of views of texts.

        Writers in Rust note views in the footer, and Arrow neither filters nor compares them.
        """
        found: pa.Schema = super().schema_arrow
        return pa.schema(map(_without_views, found), found.metadata) if self._may_have_views else found

    def iter_batches(self, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield the batches that pyarrow reads, without views."""
        batches: Iterator[pa.RecordBatch] = super().iter_batches(*arguments, **options)
        return map(without_views, batches) if self._may_have_views else batches

    @property
    def _may_have_views(self) -> bool:
        return b"ARROW:schema" in (self.metadata.metadata or {})


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with texts for views of texts."""
    schema = pa.schema(map(_without_views, batch.schema))
    return batch if schema == batch.schema else batch.cast(schema)


def _without_views(field: pa.Field) -> pa.Field:
    """Return the field with texts for views of texts, at any depth."""
    kind, types = field.type, pa.types
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return field.with_type(pa.string() if types.is_string_view(kind) else pa.binary())
    members = [_without_views(kind.field(number)) for number in range(kind.num_fields)]
    if types.is_struct(kind):
        return field.with_type(pa.struct(members))
    if types.is_map(kind):
        return field.with_type(pa.map_(*members[0].type))
    return field.with_type(pa.list_(members[0])) if types.is_list(kind) else field


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A column chunk. `claimed_bytes` is the size of its values by the footer, which counts texts if `knows_texts`."""

    chunk: Any
    claimed_bytes: int
    is_text: bool
    knows_texts: bool

    @property
    def has_deltas(self) -> bool:
        return "DELTA_BYTE_ARRAY" in self.chunk.encodings

    @property
    def may_repeat_texts(self) -> bool:
        """Whether the chunk may hold a text once for many values."""
        return self.is_text and has_dictionary(self.chunk)

    @property
    def most_bytes(self) -> int:
        """The size of its texts if each is as long as the chunk."""
        return int(self.chunk.num_values * self.chunk.total_uncompressed_size)


def has_dictionary(chunk: Any) -> bool:
    """Return whether a column chunk (`ColumnChunkMetaData`) has a dictionary."""
    # Some writers omit the place of the dictionary; the encodings still show it.
    return bool(chunk.has_dictionary_page) or not _DICTIONARIES.isdisjoint(chunk.encodings)


def decoded_bytes(parquet: OpenParquet) -> int:
    """Return the size of all rows in memory by the footer, and by dictionaries if the footer counts no texts."""
    total = 0
    for group in range(parquet.metadata.num_row_groups):
        chunks = list(_chunks(parquet, group, None))
        silent = [each for each in chunks if each.may_repeat_texts and not each.knows_texts]
        found = _bytes_of_repeated(parquet.source, silent, _SMALL_BYTES)
        total += sum(each.claimed_bytes for each in chunks) + sum(size or 0 for size in found)
    return total


def rows_at_once(
    parquet: OpenParquet,
    group: int,
    columns: Sequence[str] | None,
    most_rows: int,
    *,
    keeps_dictionaries: bool = False,
) -> int:
    """Return how many rows of a row group to decode at once. `columns` are top-level names, None for all.

    `keeps_dictionaries`: columns that are read as dictionaries stay so, and hold a text once.
    """
    rows = parquet.metadata.row_group(group).num_rows
    chunks = list(_chunks(parquet, group, columns))
    most, claimed = most_rows, sum(each.claimed_bytes for each in chunks)
    if claimed > BATCH_BYTES:
        most = min(most, rows * BATCH_BYTES // claimed)
    kept = {each.name for each in parquet.schema_arrow if keeps_dictionaries and pa.types.is_dictionary(each.type)}
    repeated = [each for each in chunks if each.may_repeat_texts and each.chunk.path_in_schema not in kept]
    # For these, pyarrow counts only the bytes that differ.
    is_unknown = any(each.has_deltas and each.most_bytes > BATCH_BYTES for each in chunks)
    if sum(each.most_bytes for each in repeated) > MOST_BATCH_BYTES:
        found = _bytes_of_repeated(parquet.source, repeated, 0)
        is_unknown |= any(size is None and not each.knows_texts for each, size in zip(repeated, found, strict=True))
        longest = sum(size or 0 for size in found)
        silent = sum(size or 0 for each, size in zip(repeated, found, strict=True) if not each.knows_texts)
        for size_bytes, allowed in ((longest, MOST_BATCH_BYTES), (claimed + silent, 4 * BATCH_BYTES)):
            if size_bytes > allowed:
                most = min(most, rows * allowed // size_bytes)
    return max(1, min(most, _ROWS_OF_LONG_TEXTS) if is_unknown else most)


def spelled_out(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch that take no more than MOST_BATCH_BYTES once their dictionaries are spelled out."""
    held = [column.dictionary for column in batch.columns if pa.types.is_dictionary(column.type)]
    longest = sum(pc.max(pc.binary_length(texts)).as_py() or 0 for texts in held)
    at_once = max(1, MOST_BATCH_BYTES // longest if longest else batch.num_rows)
    for start in range(0, batch.num_rows, at_once):
        yield batch.slice(start, at_once)


def _bytes_of_repeated(source: Any, texts: Sequence[_Chunk], small_bytes: int) -> list[int | None]:
    """Return the size of each chunk's texts if all are as long as the longest of its dictionary; None if unknown."""
    large = [each for each in texts if each.most_bytes > small_bytes]
    longest = iter([] if source is None or not large else longest_texts(source, [each.chunk for each in large]))
    found: list[int | None] = []
    for each in texts:
        if each.most_bytes <= small_bytes:
            found.append(each.most_bytes)
        else:
            length = next(longest, None)
            found.append(None if length is None else int(length * each.chunk.num_values))
    return found


def _chunks(parquet: OpenParquet, group: int, columns: Sequence[str] | None) -> Iterator[_Chunk]:
    found, schema = parquet.metadata.row_group(group), parquet.schema
    wanted = None if columns is None else set(columns)
    for index in range(found.num_columns):
        chunk = found.column(index)
        if wanted is not None and wanted.isdisjoint(columns_of_leaf(chunk.path_in_schema)):
            continue
        kind = chunk.physical_type
        leaf = schema.column(index)
        width = leaf.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS[kind]
        if leaf.logical_type.type == "DECIMAL":
            width = max(width, _DECIMAL_BYTES)
        texts = parquet.text_bytes.get((group, index))
        claimed = max(chunk.num_values * width + (texts or 0), chunk.total_uncompressed_size)
        yield _Chunk(chunk, int(claimed), kind == "BYTE_ARRAY", texts is not None)


# Their numbers in parquet.thrift. Without LZ4: pyarrow has one name for two forms of it.
_UNCOMPRESSED = 0
_CODECS = {"UNCOMPRESSED": _UNCOMPRESSED, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6}
# Pages so near to each other are one read.
_NEAR_BYTES = 512 * 1024
# A page that is larger, by its size or by its header, is not examined; and no read extends far beyond it.
_MOST_BYTES = 16 * 1024 * 1024
# The most texts that are examined, over all pages: any number of chunks may claim the same page of empty texts.
_MOST_TEXTS = 4_000_000
# Numbers of fields and values in parquet.thrift.
_KIND, _SIZE, _COMPRESSED_SIZE, _DICTIONARY = 1, 2, 3, 7
_COUNT, _ENCODING = 1, 2
_DICTIONARY_PAGE = 2
_PLAIN = (0, 2)


def longest_texts(source: Any, chunks: Sequence[Any]) -> list[int | None]:
    """Return the length of the longest text in the dictionary of each chunk (`ColumnChunkMetaData`); None if unknown.

    `source` is the file that holds the chunks, as a store opens it. A footer may lack the place of a dictionary.
    """
    found: list[int | None] = [None] * len(chunks)
    places = sorted((chunk.dictionary_page_offset or 0, chunk.data_page_offset, i) for i, chunk in enumerate(chunks))
    left = _MOST_TEXTS
    for start, end, near in _together(places):
        source.seek(start)
        # Of a file in memory nothing is copied.
        data = source.read_buffer(end - start)
        for page_start, page_end, index in near:
            page = memoryview(data)[page_start - start : page_end - start]
            found[index], count = _longest(page, chunks[index].compression, left)
            left -= count
    source.seek(0)
    return found


_Place = tuple[int, int, int]


def _together(places: Sequence[_Place]) -> Iterator[tuple[int, int, list[_Place]]]:
    """Yield each range to read and its pages, without pages for which the footer gives an impossible place."""
    near: list[_Place] = []
    for place in places:
        if not 0 < place[0] < place[1] <= place[0] + _MOST_BYTES:
            continue
        if near and (place[0] > near[-1][1] + _NEAR_BYTES or place[1] > near[0][0] + _MOST_BYTES):
            yield near[0][0], max(end for _, end, _ in near), near
            near = []
        near.append(place)
    if near:
        yield near[0][0], max(end for _, end, _ in near), near


def _longest(page: memoryview, compression: str, most_texts: int) -> tuple[int | None, int]:
    """Return the longest text, None if more than `most_texts` must be examined for it, and how many were examined."""
    count = 0
    try:
        header = _Header(page)
        is_usual = header.is_plain_dictionary and 0 <= header.size_bytes <= _MOST_BYTES
        # Each takes four bytes at least.
        if not is_usual or header.count > min(most_texts, header.size_bytes // 4):
            return None, 0
        count = header.count
        body = page[header.length : header.length + header.compressed_bytes]
        texts = _texts(body, count, header.size_bytes, _CODECS[compression]) if count else None
        return 0 if texts is None else int(pc.max(pc.binary_length(texts)).as_py()), count
    # The page is not of the kind that its header claims. Decoding it will find the fault.
    except (ValueError, LookupError, OSError, pa.ArrowException):
        return None, count


def plain_texts(data: bytes, count: int) -> pa.ChunkedArray:
    """Return `count` values of bytes, one or more, each preceded by its length in four bytes.

    Raises ArrowInvalid or OSError if there are not `count` texts.
    """
    return _texts(data, count, len(data), _UNCOMPRESSED)


def _texts(body: bytes | memoryview, count: int, size_bytes: int, codec: int) -> pa.ChunkedArray:
    """Return the texts as `plain_texts` does, of a page that is compressed and has `size_bytes` without that.

    Arrow reads it as a file with one page: in Python, each text takes longer than its row does in a copy.
    """
    page = _page_of_values(size_bytes, len(body), count)
    footer = _footer_of_values(len(page), size_bytes, len(body), count, codec)
    file = b"".join([_MAGIC, page, body, footer, len(footer).to_bytes(4, "little"), _MAGIC])
    (values,) = pq.ParquetFile(pa.BufferReader(file)).read(use_threads=False).columns
    return values


_MAGIC = b"PAR1"
_NAME = b"\1v"


def _page_of_values(size_bytes: int, compressed_bytes: int, count: int) -> bytes:
    """Return the header of a data page with `count` plain values and no levels."""
    values = struct({1: integer(count, I32), 2: integer(0, I32), 3: integer(3, I32), 4: integer(3, I32)})
    sizes = {_SIZE: integer(size_bytes, I32), _COMPRESSED_SIZE: integer(compressed_bytes, I32)}
    return struct({_KIND: integer(0, I32), **sizes, 5: (STRUCT, values)})


def _footer_of_values(header_bytes: int, size_bytes: int, compressed_bytes: int, count: int, codec: int) -> bytes:
    """Return the footer of a file with one page, of these sizes behind its header, of texts that are never null."""
    root = struct({4: (BINARY, _NAME), 5: integer(1, I32)})
    leaf = struct({1: integer(6, I32), 3: integer(0, I32), 4: (BINARY, _NAME)})
    plain, path = (LIST, bytes([1 << 4 | I32, 0])), (LIST, bytes([1 << 4 | BINARY]) + _NAME)
    sizes = {6: integer(header_bytes + size_bytes), 7: integer(header_bytes + compressed_bytes)}
    metadata = {1: integer(6, I32), 2: plain, 3: path, 4: integer(codec, I32), 5: integer(count), **sizes}
    metadata[9] = integer(len(_MAGIC))
    chunk = struct({2: integer(len(_MAGIC)), 3: (STRUCT, struct(metadata))})
    group = struct({1: struct_list([chunk]), 2: integer(header_bytes + size_bytes), 3: integer(count)})
    return struct({1: integer(1, I32), 2: struct_list([root, leaf]), 3: integer(count), 4: struct_list([group])})


class _Header:
    """The header of the first page of a chunk."""

    def __init__(self, page: memoryview) -> None:
        self.size_bytes = self.compressed_bytes = self.count = self._kind = self._encoding = -1
        # A header takes some twenty bytes; statistics could make it longer, but a dictionary page has none.
        header = Compact(bytes(page[:1024]))
        for number, kind in header.fields():
            if kind == I32 and number == _KIND:
                self._kind = header.signed()
            elif kind == I32 and number == _SIZE:
                self.size_bytes = header.signed()
            elif kind == I32 and number == _COMPRESSED_SIZE:
                self.compressed_bytes = header.signed()
            elif kind == STRUCT and number == _DICTIONARY:
                self._read_dictionary(header)
            else:
                header.skip(kind)
        self.length = header.position
        if not 0 <= self.compressed_bytes <= len(page) - self.length:
            raise ValueError("the page is longer than the dictionary of its chunk")

    @property
    def is_plain_dictionary(self) -> bool:
        return self._kind == _DICTIONARY_PAGE and self._encoding in _PLAIN and self.count >= 0

    def _read_dictionary(self, header: Compact) -> None:
        for number, kind in header.fields():
            if kind == I32 and number == _COUNT:
                self.count = header.signed()
            elif kind == I32 and number == _ENCODING:
                self._encoding = header.signed()
            else:
                header.skip(kind)
