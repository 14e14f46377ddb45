"""Traces in a Parquet file: in its rows, and in what a writer has kept of rows beside them.

Of every leaf column that may hold a value, the rows are decoded, and the dictionaries, the bounds of row groups and
pages, the index of pages and the Bloom filters are compared with the values' bytes. A dictionary or a bound may outlive
its rows in a file whose writer copied pages. The footer is searched as a whole. The invariant: what cannot be decoded
raises, and is never taken for a file without traces.
Source: parquet.thrift, ColumnMetaData, Statistics, PageHeader, ColumnIndex, BloomFilterHeader; Parquet, "Bloom Filter".
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.parquet.conversion import leaves
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet, plain_texts
from airflow_txlog.datafiles.parquet.footers import footer_of
from airflow_txlog.datafiles.parquet.physical import PARQUET_ID_KEY, columns_of_leaf, inner_fields
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file, read_batches
from airflow_txlog.datafiles.parquet.thrift import (
    Fields,
    binaries_of,
    binary_of,
    fields_and_length_of,
    fields_of,
    integer_of,
    structs_of,
)
from airflow_txlog.engine.commit.content.remembered_deletions import FOLDER as TOMBSTONES
from airflow_txlog.engine.commit.content.remembered_deletions import paths_of
from airflow_txlog.engine.erasure.bloom import BloomFilter
from airflow_txlog.engine.erasure.forms import Forms, is_of_statistics
from airflow_txlog.engine.erasure.plain import Plain, plain_array, plain_type, plain_values
from airflow_txlog.engine.erasure.text_traces import kinds_of_texts, text_of
from airflow_txlog.engine.erasure.traces import Kind, Trace
from airflow_txlog.engine.log.names import LOG_DIRECTORY

# Numbers of fields in parquet.thrift: of the file, a row group, a column chunk and its metadata.
_ROW_GROUPS, _COLUMNS, _META_DATA, _INDEX_OFFSET, _INDEX_LENGTH = 4, 1, 3, 6, 7
_STATISTICS, _BLOOM_OFFSET = 12, 14
# Of a Bloom filter's header: the number of bytes that follow it.
_BLOOM_BITS = 1
_BOUNDS = (1, 2, 5, 6)
"""Of statistics: the upper and the lower bound, the deprecated ones first."""
_INDEX_BOUNDS = (2, 3)
_INDEXES = ((4, 5), (_INDEX_OFFSET, _INDEX_LENGTH))
_MAGIC_BYTES, _ENDING_BYTES = 4, 8
# Of a page's header, and of the headers of its kinds.
_SIZE, _STORED_SIZE, _DATA_PAGE, _DICTIONARY, _DATA_PAGE_V2 = 2, 3, 5, 7, 8
_STATISTICS_OF = {_DATA_PAGE: 5, _DATA_PAGE_V2: 8}
_COUNT = 1
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}
_HADOOP_LZ4_PREFIX = 8
_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "INT96": 12}
_MOST_HEADER_BYTES = 1024 * 1024
_USUAL_BLOOM_HEADER = 64


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf column of a file that may hold a value. `plain`: the bytes of the values in it."""

    number: int
    path: str
    kind: pa.DataType
    plain: Plain


def traces_in_parquet(file: DataFile, forms: Forms) -> Iterator[Trace]:
    """Yield the traces in a Parquet file.

    Raises CorruptDataFile, UnsupportedFeature, ValueError, LookupError and the errors of pyarrow for a file of which
    not all can be decoded.
    """
    with open_data_file(file) as parquet:
        forms = _forms_in(file, parquet, forms)
        searched = list(_searched(parquet, forms))
        yield from _in_rows(file, parquet, searched, forms)
        raw = footer_of(parquet.source)
        yield from _in_footer(raw, parquet, forms)
        footer = fields_of(raw)
        for number, group in enumerate(structs_of(footer, _ROW_GROUPS)):
            chunks = structs_of(fields_of(group), _COLUMNS)
            for leaf in searched:
                if leaf.plain.values:
                    yield from _in_chunk(parquet, number, leaf, fields_of(chunks[leaf.number]), forms)
        for start, end in _unnamed(parquet, footer, len(raw)):
            data = _read(parquet.source, start, end - start)
            if forms.in_bytes(data):
                yield Trace("bytes that the footer does not name", "value")
            elif data.strip(b"\0") and "\0" in text_of(data):
                raise ValueError("bytes that the footer does not name are packed")


def values_in_rows(file: DataFile, forms: Forms) -> Iterator[tuple[str, bool, pa.Array]]:
    """Yield the rows of each leaf column that may hold a value, batch by batch: its path, whether it is the key, and
    its values. Raises the errors of `traces_in_parquet`.
    """
    with open_data_file(file) as parquet:
        forms = _forms_in(file, parquet, forms)
        by_number = {leaf.number: leaf for leaf in _searched(parquet, forms)}
        wanted = _top_level(parquet, (leaf.path for leaf in by_number.values()))
        numbers = _leaf_numbers(parquet)
        for _, batch in read_batches(file, parquet, [parquet.schema_arrow.field(name) for name in wanted]):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                for number, values in zip(numbers[name], leaves(plain_array(column)), strict=True):
                    if number in by_number:
                        path = by_number[number].path
                        yield path, forms.is_key(path), plain_array(values)


def batches_without_values(file: DataFile, forms: Forms) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a file without those that hold a value, and how many these were in each batch.

    Raises as `traces_in_parquet` does.
    """
    with open_data_file(file) as parquet:
        forms = _forms_in(file, parquet, forms)
        searched = list(_searched(parquet, forms))

        def holds(batch: pa.RecordBatch) -> bool:
            return any(_counts(file, parquet, batch, searched, forms).values())

        for _, batch in read_batches(file, parquet):
            rest = batch.filter(pc.invert(_holds_in_key(batch, forms)))
            rows = set(_rows_that(holds, rest, 0))
            rest = rest.take(pa.array([row for row in range(rest.num_rows) if row not in rows], pa.int64()))
            yield rest, batch.num_rows - rest.num_rows


def _holds_in_key(batch: pa.RecordBatch, forms: Forms) -> pa.Array:
    """Return for each row whether a top-level column that is the key has one of the values."""
    held = pa.array([False] * batch.num_rows, pa.bool_())
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if forms.is_key(name) and not pa.types.is_nested(column.type):
            held = pc.or_(held, forms.are_values(column))
    return held


def _rows_that(holds: Callable[[pa.RecordBatch], bool], batch: pa.RecordBatch, start: int) -> Iterator[int]:
    """Yield the numbers of the rows that hold a value, halving the batch."""
    if not batch.num_rows or not holds(batch):
        return
    if batch.num_rows == 1:
        yield start
        return
    half = batch.num_rows // 2
    # A copy: a slice has the bytes of all rows.
    for begin, end in ((0, half), (half, batch.num_rows)):
        yield from _rows_that(holds, batch.take(pa.array(range(begin, end), pa.int64())), start + begin)


def _forms_in(file: DataFile, parquet: OpenParquet, forms: Forms) -> Forms:
    """Return the forms with the paths that the column has in this file."""
    own = set(_paths_of_id(parquet.schema_arrow, forms.field_id))
    if file.path.startswith(f"{TOMBSTONES}/"):
        own.update(paths_of(parquet.schema_arrow.names, parquet.metadata.metadata or {}, forms.paths))
    return forms if own <= set(forms.paths) else replace(forms, paths=(*forms.paths, *own))


def _paths_of_id(fields: Iterable[pa.Field], field_id: int | None, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the paths of the columns and members of structs with this id."""
    for field in fields:
        path = (*above, field.name)
        if field_id is not None and (field.metadata or {}).get(PARQUET_ID_KEY) == b"%d" % field_id:
            yield ".".join(path)
        if pa.types.is_struct(field.type):
            yield from _paths_of_id(field.type, field_id, path)


def _searched(parquet: OpenParquet, forms: Forms) -> Iterator[_Leaf]:
    kinds = [kind for field in parquet.schema_arrow for kind in _leaf_types(field.type)]
    if len(kinds) != len(parquet.schema):
        raise ValueError("the columns of the file and of its Arrow schema differ")
    for number, kind in enumerate(kinds):
        column = parquet.schema.column(number)
        if forms.searches(kind, column.path):
            yield _Leaf(number, column.path, kind, forms.plain(column, kind))


def _leaf_types(kind: pa.DataType) -> list[pa.DataType]:
    kind = plain_type(kind)
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _leaf_types(kind.value_type)
    inner = inner_fields(kind)
    if not inner and pa.types.is_nested(kind):
        raise ValueError("a column has a nested type that is not known here")
    return [leaf for field in inner for leaf in _leaf_types(field.type)] if inner else [kind]


# --- rows -----------------------------------------------------------------------------------------------------------


def _in_rows(file: DataFile, parquet: OpenParquet, searched: Iterable[_Leaf], forms: Forms) -> Iterator[Trace]:
    searched = list(searched)
    wanted = _top_level(parquet, (leaf.path for leaf in searched))
    found = Counter[tuple[str, Kind]]()
    batches = read_batches(file, parquet, [parquet.schema_arrow.field(name) for name in wanted]) if wanted else ()
    for _, batch in batches:
        found.update(_counts(file, parquet, batch, searched, forms))
    for (path, kind), count in found.items():
        if count:
            yield Trace(f"rows, column {forms.without_values(path)!r}", kind, count)


def _counts(
    file: DataFile, parquet: OpenParquet, batch: pa.RecordBatch, searched: Iterable[_Leaf], forms: Forms
) -> Counter[tuple[str, Kind]]:
    """Return how many rows of a batch hold a value, by the path of the column and the kind of the trace."""
    by_number, numbers = {leaf.number: leaf for leaf in searched}, _leaf_numbers(parquet)
    is_log = file.path.startswith(f"{LOG_DIRECTORY}/")
    found = Counter[tuple[str, Kind]]()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns = leaves(plain_array(column))
        for at, (number, values) in enumerate(zip(numbers[name], columns, strict=True)):
            if number not in by_number:
                continue
            path = by_number[number].path
            for kind, count in _in_values(values, path, forms, is_log=is_log):
                found[path, kind] += count
            if at and _is_value_of(parquet.schema.column(number - 1).path, path):
                found[path, "value"] += forms.in_entries(columns[at - 1], values)
    return found


def _is_value_of(name: str, path: str) -> bool:
    """Return whether a leaf column has the values of a map, and the one before it their names."""
    (above, _, last), (above_name, _, last_name) = path.rpartition("."), name.rpartition(".")
    return above == above_name and (last_name, last) == ("key", "value")


def _in_values(values: pa.Array, path: str, forms: Forms, *, is_log: bool) -> Iterator[tuple[Kind, int]]:
    if count := forms.in_column(values, path):
        yield "statistic" if is_log and is_of_statistics(path) else "value", count
    # The texts of a checkpoint are JSON, paths and bounds, which hold a value as a part.
    elif is_log and pa.types.is_string(plain_type(values.type)):
        for kind in kinds_of_texts(pc.unique(plain_array(values).drop_null()).to_pylist(), path, forms):
            yield kind, 1


def _top_level(parquet: OpenParquet, paths: Iterable[str]) -> list[str]:
    names = {name for path in paths for name in columns_of_leaf(path)}
    return [name for name in parquet.schema_arrow.names if name in names]


def _leaf_numbers(parquet: OpenParquet) -> dict[str, list[int]]:
    """Return the numbers of the leaves of each top-level column."""
    found, at = {}, 0
    for field in parquet.schema_arrow:
        count = len(_leaf_types(field.type))
        found[field.name] = list(range(at, at + count))
        at += count
    return found


# --- beside the rows --------------------------------------------------------------------------------------------------


def _in_footer(raw: bytes, parquet: OpenParquet, forms: Forms) -> Iterator[Trace]:
    """Search the footer's texts: names, and key-values, in base 64 too."""
    key_values = parquet.metadata.metadata or {}
    packed = [raw]
    for value in key_values.values():
        with suppress(ValueError):
            packed.append(base64.b64decode(value, validate=True))
    texts = (value.decode(errors="replace") for value in key_values.values())
    if any(map(forms.in_bytes, packed)) or any(kinds_of_texts(texts, "", forms)):
        yield Trace("footer", "value")


def _unnamed(parquet: OpenParquet, footer: Fields, footer_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each range of bytes that the footer does not name."""
    end = parquet.source.size() - _ENDING_BYTES - footer_bytes
    named = [(0, _MAGIC_BYTES), (end, end)]
    for number, group in enumerate(structs_of(footer, _ROW_GROUPS)):
        for leaf, chunk in enumerate(map(fields_of, structs_of(fields_of(group), _COLUMNS))):
            found = parquet.metadata.row_group(number).column(leaf)
            start = min(start for start in (found.dictionary_page_offset, found.data_page_offset) if start)
            named.append((start, start + found.total_compressed_size))
            if start := integer_of(fields_of(chunk[_META_DATA][1]), _BLOOM_OFFSET) or 0:
                named.append((start, start + _bloom_filter_bytes(parquet.source, start)))
            for offset, length in _INDEXES:
                if start := integer_of(chunk, offset) or 0:
                    named.append((start, start + (integer_of(chunk, length) or 0)))
    at = 0
    for start, stop in sorted(named):
        if at < start:
            yield at, start
        at = max(at, stop)


def _in_chunk(parquet: OpenParquet, group: int, leaf: _Leaf, chunk: Fields, forms: Forms) -> Iterator[Trace]:
    metadata = fields_of(chunk[_META_DATA][1])
    where = f"column {forms.without_values(leaf.path)!r}, row group {group}"
    if _in_statistics(metadata, _STATISTICS, leaf):
        yield Trace(f"statistics of {where}", "statistic")
    if _in_index(parquet.source, chunk, leaf):
        yield Trace(f"page index of {where}", "statistic")
    if _in_bloom_filter(parquet, group, leaf, metadata):
        yield Trace(f"Bloom filter of {where}", "statistic")
    found = parquet.metadata.row_group(group).column(leaf.number)
    in_dictionary = in_pages = False
    for header, body in _pages(parquet.source, found):
        if _DICTIONARY in header:
            in_dictionary |= _in_dictionary(header, body, found, parquet, leaf, forms)
        for kind, statistics in _STATISTICS_OF.items():
            if kind in header:
                in_pages |= _in_statistics(fields_of(header[kind][1]), statistics, leaf)
    if in_dictionary:
        yield Trace(f"dictionary of {where}", "value")
    if in_pages:
        yield Trace(f"statistics of pages of {where}", "statistic")


def _in_statistics(fields: Fields, number: int, leaf: _Leaf) -> bool:
    if number not in fields:
        return False
    statistics = fields_of(fields[number][1])
    bounds = (binary_of(statistics, bound) for bound in _BOUNDS)
    return any(bound is not None and leaf.plain.in_bound(bound) for bound in bounds)


def _in_index(source: Any, chunk: Fields, leaf: _Leaf) -> bool:
    start, length = integer_of(chunk, _INDEX_OFFSET), integer_of(chunk, _INDEX_LENGTH)
    if not start or not length:
        return False
    index = fields_of(_read(source, start, length))
    return any(leaf.plain.in_bound(bound) for number in _INDEX_BOUNDS for bound in binaries_of(index, number))


def _in_bloom_filter(parquet: OpenParquet, group: int, leaf: _Leaf, metadata: Fields) -> bool:
    """Return whether the filter claims a value that no row of the row group explains."""
    start = integer_of(metadata, _BLOOM_OFFSET)
    if not start:
        return False
    found = BloomFilter.of(_read(parquet.source, start, _bloom_filter_bytes(parquet.source, start)))
    claimed = {value for value in leaf.plain.values if found.may_hold(value)}
    if not claimed:
        return False
    # Other values may have set the same bits, which is what such a filter allows.
    return not found.is_explained(claimed, _plain_values(parquet, group, leaf))


def _bloom_filter_bytes(source: Any, start: int) -> int:
    """Return the size of a Bloom filter with its header, which older writers do not state in the footer."""
    head = _read(source, start, min(_USUAL_BLOOM_HEADER, source.size() - start))
    header, length = fields_and_length_of(head)
    return length + (integer_of(header, _BLOOM_BITS) or 0)


def _plain_values(parquet: OpenParquet, group: int, leaf: _Leaf) -> Iterator[bytes]:
    """Yield the bytes of the values of a leaf column in a row group."""
    (top,) = _top_level(parquet, [leaf.path])
    at = _leaf_numbers(parquet)[top].index(leaf.number)
    for batch in parquet.iter_batches(row_groups=[group], columns=[top]):
        values = pc.unique(plain_array(leaves(plain_array(batch.column(0)))[at]).drop_null())
        yield from plain_values(values, parquet.schema.column(leaf.number))


def _pages(source: Any, chunk: Any) -> Iterator[tuple[Fields, bytes]]:
    """Yield the header and the stored body of each page of a column chunk (`ColumnChunkMetaData`)."""
    starts = [start for start in (chunk.dictionary_page_offset, chunk.data_page_offset) if start]
    data = _read(source, min(starts), chunk.total_compressed_size)
    at = 0
    while at < len(data):
        header, length = fields_and_length_of(data[at : at + _MOST_HEADER_BYTES])
        size = integer_of(header, _STORED_SIZE)
        if size is None or size < 0 or at + length + size > len(data):
            raise ValueError("a page is longer than its column chunk")
        yield header, data[at + length : at + length + size]
        at += length + size


def _in_dictionary(header: Fields, body: bytes, chunk: Any, parquet: OpenParquet, leaf: _Leaf, forms: Forms) -> bool:
    """Return whether a dictionary page has a value, or in a column that is not the key a text that holds one."""
    data = _decompressed(body, chunk.compression, integer_of(header, _SIZE) or 0)
    count = integer_of(fields_of(header[_DICTIONARY][1]), _COUNT) or 0
    if chunk.physical_type == "BYTE_ARRAY":
        if not forms.is_key(leaf.path):
            return forms.in_texts(data) if pa.types.is_string(leaf.kind) else forms.in_bytes(data)
        values = plain_texts(data, count) if count else pa.array([], pa.binary())
        return _have_one(values, leaf.plain.array)
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


def _read(source: Any, start: int, length: int) -> bytes:
    source.seek(start)
    data: bytes = source.read(length)
    source.seek(0)
    if len(data) < length:
        raise ValueError("the footer names bytes beyond the end of the file")
    return data
