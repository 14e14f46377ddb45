"""Traces in a column chunk: in its dictionary, and in what a writer has kept of its rows beside them.

The bounds of the chunk and of its pages, the index of pages and the Bloom filter are compared with the values' bytes. A
dictionary or a bound may outlive its rows in a file whose writer copied pages.
The invariant: what cannot be decoded raises, and is never taken for a chunk without traces.
Source: parquet.thrift, ColumnMetaData, Statistics, PageHeader, ColumnIndex, BloomFilterHeader; Parquet, "Bloom Filter".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.parquet.conversion import leaves
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet, plain_texts
from airflow_txlog.datafiles.parquet.physical import columns_of_leaf, inner_fields
from airflow_txlog.datafiles.parquet.thrift import (
    Fields,
    binaries_of,
    binary_of,
    fields_and_length_of,
    fields_of,
    integer_of,
)
from airflow_txlog.engine.erasure.bloom import BloomFilter
from airflow_txlog.engine.erasure.traces import Kind, Trace
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.erasure.values.plain import Plain, is_text, plain_array, plain_type, plain_values

# Numbers of fields in parquet.thrift: of a column chunk, and of its metadata.
META_DATA, INDEX_OFFSET, INDEX_LENGTH = 3, 6, 7
STATISTICS, BLOOM_OFFSET = 12, 14
# Of a Bloom filter's header: the number of bytes that follow it.
_BLOOM_BITS = 1
_BOUNDS = (1, 2, 5, 6)
"""Of statistics: the upper and the lower bound, the deprecated ones first."""
_INDEX_BOUNDS = (2, 3)
# Of a page's header, and of the headers of its kinds.
_SIZE, _STORED_SIZE, _DATA_PAGE, _DICTIONARY, _DATA_PAGE_V2 = 2, 3, 5, 7, 8
_STATISTICS_OF = {_DATA_PAGE: 5, _DATA_PAGE_V2: 8}
_COUNT = 1
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}
_HADOOP_LZ4_PREFIX = 8
_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "INT96": 12}
_USUAL_HEADER_BYTES, _MOST_HEADER_BYTES = 1024, 1024 * 1024
_USUAL_BLOOM_HEADER = 64


@dataclass(frozen=True, slots=True)
class SearchedLeaf:
    """A leaf column of a file that may hold a value.

    `plain`: the bytes of the values in it. `is_read_whole`: its rows are read with all values of its dictionaries.
    `is_compared`: its bounds are compared as a whole, because that of another person may hold a value. They are those
    of the key, and of JSON in a checkpoint.
    """

    number: int
    path: str
    kind: pa.DataType
    plain: Plain
    is_read_whole: bool
    is_compared: bool


def leaf_types(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of the leaf columns of a column."""
    kind = plain_type(kind)
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return leaf_types(kind.value_type)
    inner = inner_fields(kind)
    if not inner and pa.types.is_nested(kind):
        raise ValueError("a column has a nested type that is not known here")
    return [leaf for field in inner for leaf in leaf_types(field.type)] if inner else [kind]


def top_level(parquet: OpenParquet, paths: Iterable[str]) -> list[str]:
    """Return the names of the columns with these leaf columns, in the order of the file."""
    names = {name for path in paths for name in columns_of_leaf(path)}
    return [name for name in parquet.schema_arrow.names if name in names]


def leaf_numbers(parquet: OpenParquet) -> dict[str, list[int]]:
    """Return the numbers of the leaves of each top-level column."""
    found, at = {}, 0
    for field in parquet.schema_arrow:
        count = len(leaf_types(field.type))
        found[field.name] = list(range(at, at + count))
        at += count
    return found


def traces_in_chunk(
    parquet: OpenParquet, group: int, leaf: SearchedLeaf, chunk: Fields, forms: Forms
) -> Iterator[Trace]:
    """Yield the traces in a column chunk beside its rows. `chunk`: its fields in the footer.

    Raises the errors of `traces_in_parquet`.
    """
    traces = list(_traces_in_chunk(parquet, group, leaf, chunk, forms))
    if traces:
        where = f"column {forms.without_values(leaf.path)!r}, row group {group}"
        yield from (Trace(f"{what} of {where}", kind) for what, kind in traces)


def _traces_in_chunk(
    parquet: OpenParquet, group: int, leaf: SearchedLeaf, chunk: Fields, forms: Forms
) -> Iterator[tuple[str, Kind]]:
    metadata = fields_of(chunk[META_DATA][1])
    if _in_statistics(metadata, STATISTICS, leaf, forms):
        yield "statistics", "statistic"
    if _in_index(parquet.source, chunk, leaf, forms):
        yield "page index", "statistic"
    if _in_bloom_filter(parquet, group, leaf, metadata):
        yield "Bloom filter", "statistic"
    found = parquet.metadata.row_group(group).column(leaf.number)
    in_dictionary = in_pages = False
    for header, body in _pages(parquet.source, found):
        if _DICTIONARY in header:
            in_dictionary |= _in_dictionary(header, body, found, parquet, leaf, forms)
        for kind, statistics in _STATISTICS_OF.items():
            if kind in header:
                in_pages |= _in_statistics(fields_of(header[kind][1]), statistics, leaf, forms)
    if in_dictionary:
        yield "dictionary", "value"
    if in_pages:
        yield "statistics of pages", "statistic"


def bytes_of_chunk_hold(parquet: OpenParquet, group: int, number: int, forms: Forms) -> bool:
    """Return whether a chunk of a column of numbers that is not compressed holds the bytes of a value."""
    chunk = parquet.metadata.row_group(group).column(number)
    return chunk.compression == "UNCOMPRESSED" and forms.in_bytes(read_bytes(parquet.source, *range_of_chunk(chunk)))


def range_of_chunk(chunk: Any) -> tuple[int, int]:
    """Return the start and the length of a column chunk (`ColumnChunkMetaData`)."""
    start = min(start for start in (chunk.dictionary_page_offset, chunk.data_page_offset) if start)
    return start, chunk.total_compressed_size


def _in_statistics(fields: Fields, number: int, leaf: SearchedLeaf, forms: Forms) -> bool:
    return number in fields and _have_bound(fields[number][1], bounds_in(fields[number][1]), leaf, forms)


def _have_bound(raw: bytes, bounds: Iterable[bytes], leaf: SearchedLeaf, forms: Forms) -> bool:
    """Return whether a bound is a value, or holds one. `raw`: the bytes with all bounds."""
    return any(map(leaf.plain.in_bound, bounds)) or (not leaf.is_compared and forms.in_bytes(raw))


def bounds_in(statistics: bytes) -> list[bytes]:
    """Return the bounds in the statistics of a column chunk or of a page."""
    fields = fields_of(statistics)
    return [bound for number in _BOUNDS if (bound := binary_of(fields, number)) is not None]


def _in_index(source: Any, chunk: Fields, leaf: SearchedLeaf, forms: Forms) -> bool:
    start, length = integer_of(chunk, INDEX_OFFSET), integer_of(chunk, INDEX_LENGTH)
    if not start or not length:
        return False
    raw = read_bytes(source, start, length)
    index = fields_of(raw)
    return _have_bound(raw, (each for number in _INDEX_BOUNDS for each in binaries_of(index, number)), leaf, forms)


def _in_bloom_filter(parquet: OpenParquet, group: int, leaf: SearchedLeaf, metadata: Fields) -> bool:
    """Return whether the filter claims a value that no row of the row group explains."""
    start = integer_of(metadata, BLOOM_OFFSET)
    if not start:
        return False
    found = BloomFilter.of(read_bytes(parquet.source, start, bloom_filter_bytes(parquet.source, start)))
    claimed = {value for value in leaf.plain.values if found.may_hold(value)}
    if not claimed:
        return False
    # Other values may have set the same bits, which is what such a filter allows.
    return not found.is_explained(claimed, _plain_values(parquet, group, leaf))


def bloom_filter_bytes(source: Any, start: int) -> int:
    """Return the size of a Bloom filter with its header, which older writers do not state in the footer."""
    head = read_bytes(source, start, min(_USUAL_BLOOM_HEADER, source.size() - start))
    header, length = fields_and_length_of(head)
    return length + (integer_of(header, _BLOOM_BITS) or 0)


def _plain_values(parquet: OpenParquet, group: int, leaf: SearchedLeaf) -> Iterator[bytes]:
    """Yield the bytes of the values of a leaf column in a row group."""
    (top,) = top_level(parquet, [leaf.path])
    at = leaf_numbers(parquet)[top].index(leaf.number)
    for batch in parquet.iter_batches(row_groups=[group], columns=[top]):
        values = pc.unique(plain_array(leaves(plain_array(batch.column(0)))[at]).drop_null())
        yield from plain_values(values, parquet.schema.column(leaf.number))


def _pages(source: Any, chunk: Any) -> Iterator[tuple[Fields, bytes]]:
    """Yield the header and the stored body of each page of a column chunk (`ColumnChunkMetaData`)."""
    data = read_bytes(source, *range_of_chunk(chunk))
    at = 0
    while at < len(data):
        header, length = _page_header(data, at)
        size = integer_of(header, _STORED_SIZE)
        if size is None or size < 0 or at + length + size > len(data):
            raise ValueError("a page is longer than its column chunk")
        yield header, data[at + length : at + length + size]
        at += length + size


def _page_header(data: bytes, at: int) -> tuple[Fields, int]:
    """Return the fields and the length of the header of a page."""
    with suppress(ValueError, IndexError):
        return fields_and_length_of(data[at : at + _USUAL_HEADER_BYTES])
    return fields_and_length_of(data[at : at + _MOST_HEADER_BYTES])


def _in_dictionary(
    header: Fields, body: bytes, chunk: Any, parquet: OpenParquet, leaf: SearchedLeaf, forms: Forms
) -> bool:
    """Return whether a dictionary page has a value, or in a column that is not the key a text that holds one."""
    data = _decompressed(body, chunk.compression, integer_of(header, _SIZE) or 0)
    count = integer_of(fields_of(header[_DICTIONARY][1]), _COUNT) or 0
    if count < 0:
        raise ValueError("a dictionary has fewer values than none")
    if chunk.physical_type == "BYTE_ARRAY":
        if not forms.is_key(leaf.path) and not is_text(leaf.kind):
            return forms.in_bytes(data)
        if not forms.is_key(leaf.path) and (leaf.is_read_whole or not forms.need_each_text(data)):
            return forms.in_texts(data)
        values = plain_texts(data, count).combine_chunks() if count else pa.array([], pa.binary())
        if forms.is_key(leaf.path):
            return _have_one(values, leaf.plain.array)
        return bool(forms.in_column(values.view(pa.string()), leaf.path))
    width = _WIDTHS.get(chunk.physical_type) or parquet.schema.column(leaf.number).length
    if len(data) < count * width:
        raise ValueError("a dictionary ends within a value")
    kind = pa.binary(width)
    values = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])
    known = [each for each in leaf.plain.values if len(each) == width]
    return _have_one(values, pa.array(known, kind))


def _have_one(values: pa.Array | pa.ChunkedArray, wanted: pa.Array) -> bool:
    return bool(pc.any(pc.is_in(values, value_set=wanted)).as_py())


def _decompressed(body: bytes, codec: str, size: int) -> bytes:
    if codec == "UNCOMPRESSED":
        return body
    if codec == "LZ4":
        # Arrow has one name for two forms; the older one precedes the block with two lengths.
        with suppress(OSError, pa.ArrowException):
            return bytes(pa.decompress(body, size, codec="lz4_raw"))
        body = body[_HADOOP_LZ4_PREFIX:]
    return bytes(pa.decompress(body, size, codec=_CODECS[codec]))


def read_bytes(source: Any, start: int, length: int) -> bytes:
    """Return bytes of a file. Raises ValueError beyond its end."""
    source.seek(start)
    data: bytes = source.read(length)
    source.seek(0)
    if len(data) < length:
        raise ValueError("the footer names bytes beyond the end of the file")
    return data
