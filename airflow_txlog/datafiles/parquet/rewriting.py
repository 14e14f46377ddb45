"""Copies of data files without some of their rows, faithful in everything else.

A copy keeps the source file's own schema (absent columns stay absent, old types stay old), field ids, footer metadata,
codecs, working dictionaries and row groups. Timestamps change their form: INT96, milliseconds and a wrong zone flag
become microseconds as the table's schema demands. Shredded variants become whole. The invariant: every row that
neither the positions nor a deletion vector name keeps its values. Memory is bounded by one row group of at most
128 MiB. Source: soundness A7, A8, A19.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.deletion_vectors.positions import unpack
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions, kept_by_both
from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, convert_array
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet, has_dictionary, spelled_out
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.physical import DEFAULT_FORMAT, VARIANT, FileFields, ParquetFormat, is_variant
from airflow_txlog.datafiles.parquet.reading import (
    DataFile,
    corrupt_column,
    open_data_file,
    read_batches,
    row_group_starts,
)
from airflow_txlog.datafiles.parquet.variants import is_shredded

# Arrow's copy of the schema describes the source's Arrow types, which the copy may have changed.
_DROPPED_KEYS = frozenset({b"ARROW:schema"})
_CODECS = frozenset({"SNAPPY", "GZIP", "ZSTD", "BROTLI", "LZ4"})
# A dictionary at its limit, with room for the headers of pages; its most entries, and the bits of the level of a value
# and of the encoding.
_DICTIONARY_BYTES = 1024 * 1024 + 32 * 1024
_MOST_INDEX_BITS, _OTHER_BITS = 18, 2
# The bytes of a value, and the size of a chunk whose dictionary costs nothing worth sparing.
_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_LENGTH_BYTES = 4
# Of the plain values: a chunk with a dictionary that is larger gains nothing, once both are compressed.
_LARGEST_PART = 0.75
_SMALL_CHUNK_BYTES = 64 * 1024
# Spark and everything else in Java, Arrow, and delta-rs: each looks a value up before it numbers it.
_DISTINCT_WRITERS = ("parquet-mr", "parquet-cpp", "parquet-rs")


def open_for_copy(file: DataFile) -> AbstractContextManager[pq.ParquetFile]:
    """Open the file as `open_data_file` does, reading text as dictionaries if it can be copied so."""
    return open_data_file(file, dictionaries=dictionary_columns, reads_all=True)


def copy_without(
    file: DataFile,
    parquet: pq.ParquetFile,
    positions: bytes,
    writer: RowGroupWriter,
    deleted: RowPositions | None = None,
    row_groups: Sequence[int] | None = None,
    look: Callable[[int, pa.RecordBatch], None] | None = None,
    completed: Callable[[int, pa.RecordBatch], pa.RecordBatch] | None = None,
) -> int:
    """Write the rows of the file, or of these row groups, that neither `positions` nor `deleted` names.

    Returns the number of rows left out. `positions` are packed (`positions.pack`). `writer` was made with `copy_schema`
    and `copy_options` of the same file. `look` gets every batch that is read, and the position of its first row, and so
    does `completed`, which adds the columns that the schema of `writer` has and the file lacks. Raises the errors of
    `read_batches`, and CorruptDataFile for a column that does not fit.
    """
    schema = writer.schema
    leaving = unpack(positions)
    group_ends = set(row_group_starts(parquet)[1:])
    dropped = 0
    for start, batch in read_batches(file, parquet, row_groups=row_groups, keeps_dictionaries=True):
        writer.skip_to(start)
        at = start
        for part in () if look is None else spelled_out(batch):
            look(at, part)  # type: ignore[misc]
            at += part.num_rows
        # Both count the rows as the file has them, so nothing is filtered before both have answered (soundness A19).
        if completed is not None:
            batch = completed(start, batch)
        keep = leaving.keep(start, batch.num_rows)
        if deleted is not None:
            keep = kept_by_both(keep, deleted.keep(start, batch.num_rows))
        kept = batch if keep is None else batch.filter(keep)
        dropped += batch.num_rows - kept.num_rows
        if kept.num_rows:
            writer.write(_normalised(file, kept, schema))
        if start + batch.num_rows in group_ends:
            writer.end_row_group()
    writer.skip_to(parquet.metadata.num_rows)
    return dropped


def copy_schema(parquet: OpenParquet, table_schema: pa.Schema) -> pa.Schema:
    """Return the Arrow schema of a copy: the file's own, with timestamps as the table has them.

    It keeps the dictionaries that `open_for_copy` reads, and field ids. It lacks the footer's key-value metadata.
    """
    kept = parquet.dictionaries
    copied = _copied_fields(list(parquet.schema_arrow), list(table_schema))
    return pa.schema(
        [
            field.with_type(read.type) if read.name in kept and pa.types.is_dictionary(read.type) else field
            for read, field in zip(parquet.schema_arrow, copied, strict=True)
        ]
    )


def copy_options(parquet: OpenParquet, wanted: ParquetFormat = DEFAULT_FORMAT) -> dict[str, Any]:
    """Return options of `ParquetWriter` that follow the source: codecs unless `wanted` names one, dictionaries that
    were not given up, decimals as integers."""
    metadata = parquet.metadata
    rows_with = Counter[str]()
    codecs: dict[str, str] = {}
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            codecs.setdefault(chunk.path_in_schema, chunk.compression)
            rows_with[chunk.path_in_schema] += chunk.num_values * (
                1 if _keeps_dictionary(parquet, group, index) else -1
            )
    # The writer takes one choice for all row groups.
    dictionaries = sorted(path for path, rows in rows_with.items() if rows > 0)
    return {
        "use_dictionary": dictionaries if metadata.num_row_groups else True,
        **wanted.options(_compression(codecs)),
        "store_decimal_as_integer": _has_integer_decimals(parquet),
    }


def main_codec(parquet: pq.ParquetFile) -> str:
    """Return the codec of most of the file's column chunks, in the writer's spelling; SNAPPY if there are none."""
    metadata = parquet.metadata
    codecs = Counter(
        metadata.row_group(group).column(index).compression
        for group in range(metadata.num_row_groups)
        for index in range(metadata.num_columns)
    )
    return _writable_codec(codecs.most_common(1)[0][0]) if codecs else "SNAPPY"


def _has_integer_decimals(parquet: pq.ParquetFile) -> bool:
    columns = (parquet.schema.column(index) for index in range(len(parquet.schema)))
    return any(c.logical_type.type == "DECIMAL" and c.physical_type in ("INT32", "INT64") for c in columns)


def copy_key_values(parquet: pq.ParquetFile) -> dict[bytes, bytes]:
    """Return the footer's key-value metadata, which names the writing engine and its calendar."""
    return {k: v for k, v in (parquet.metadata.metadata or {}).items() if k not in _DROPPED_KEYS}


def holds_dictionary(chunk: Any) -> bool:
    """Return whether the column chunk has a dictionary that its writer did not give up.

    Every writer gives up a dictionary at 1 MiB and continues without; trying again would cost a quarter of the copy's
    time. Such a dictionary has at most 2^18 entries, and no more than there are values. So a chunk larger than it and
    its indexes has other values.
    """
    bits = min(_MOST_INDEX_BITS, int(chunk.num_values).bit_length()) + _OTHER_BITS
    fits = chunk.total_uncompressed_size <= _DICTIONARY_BYTES + chunk.num_values * bits // 8
    return bool(fits) and has_dictionary(chunk)


def _keeps_dictionary(parquet: OpenParquet, group: int, index: int) -> bool:
    """Return whether a column chunk has a dictionary that its writer did not give up, and that makes it smaller.

    To look each value up takes most of the time that it takes to write the chunk, which is wasted if the dictionary
    holds nearly every value. Texts are judged only if the footer counts their bytes.
    """
    chunk = parquet.metadata.row_group(group).column(index)
    if not holds_dictionary(chunk):
        return False
    kind = chunk.physical_type
    width = parquet.schema.column(index).length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind)
    text_bytes = parquet.text_bytes.get((group, index), 0)
    if (width is None and not text_bytes) or chunk.total_uncompressed_size < _SMALL_CHUNK_BYTES:
        return True
    known = chunk.statistics
    nulls = known.null_count if known is not None and known.has_null_count else 0
    plain_bytes = (chunk.num_values - nulls) * (width or _LENGTH_BYTES) + text_bytes
    return bool(chunk.total_uncompressed_size < _LARGEST_PART * plain_bytes)


def dictionary_columns(parquet: OpenParquet) -> list[str]:
    """Return the top-level columns of an open file that may be read as dictionaries, in the file's order.

    A column qualifies if every chunk has a dictionary that its writer did not give up, and the writer puts no value in
    a dictionary twice: Arrow renumbers the values and keeps the indices, so a repeated value would shift those behind
    it.
    """
    metadata = parquet.metadata
    if not (metadata.created_by or "").startswith(_DISTINCT_WRITERS):
        return []
    by_path = {parquet.schema.column(index).path: index for index in range(metadata.num_columns)}
    found = []
    for field in parquet.schema_arrow:
        index = by_path.get(field.name)
        value = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        # A name with a dot in it may be the path of a member too.
        if index is None or "." in field.name or value not in (pa.string(), pa.binary()):
            continue
        numbers = range(metadata.num_row_groups)
        if numbers and all(_keeps_dictionary(parquet, number, index) for number in numbers):
            found.append(field.name)
    return found


def _compression(codecs: Mapping[str, str]) -> str | dict[str, str]:
    names = {path: _writable_codec(codec) for path, codec in codecs.items()}
    distinct = set(names.values())
    if len(distinct) == 1:
        return distinct.pop()
    return names or "SNAPPY"


def _writable_codec(codec: str) -> str:
    # "UNCOMPRESSED" is "NONE" to the writer; a codec that Arrow cannot write (LZO) becomes Spark's default.
    if codec == "UNCOMPRESSED":
        return "NONE"
    return codec if codec in _CODECS else "SNAPPY"


def _copied_type(kind: pa.DataType, wanted: pa.DataType | None) -> pa.DataType:
    is_a = pa.types
    if is_a.is_dictionary(kind):
        return _copied_type(kind.value_type, wanted)
    if is_a.is_timestamp(kind):
        # A column that the table no longer has is an instant: every writer meant TIMESTAMP by INT96.
        zone = wanted.tz if wanted is not None and is_a.is_timestamp(wanted) else "UTC"
        return pa.timestamp("us", tz=zone)
    if is_a.is_struct(kind):
        if wanted is not None and is_variant(wanted) and is_shredded(kind):
            # Arrow loses the mark by which other readers know a shredded variant.
            return VARIANT
        children: Sequence[pa.Field] = list(wanted) if wanted is not None and is_a.is_struct(wanted) else []
        return pa.struct(_copied_fields(list(kind), children))
    if is_a.is_map(kind):
        inner = wanted if wanted is not None and is_a.is_map(wanted) else None
        key = kind.key_field.with_type(_copied_type(kind.key_type, inner and inner.key_type))
        item = kind.item_field.with_type(_copied_type(kind.item_type, inner and inner.item_type))
        return pa.map_(key, item)
    if is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
        inner_value = wanted.value_type if wanted is not None and is_a.is_list(wanted) else None
        return pa.list_(kind.value_field.with_type(_copied_type(kind.value_type, inner_value)))
    return kind


def _copied_fields(fields: Sequence[pa.Field], wanted: Sequence[pa.Field]) -> list[pa.Field]:
    """Return the file's fields as they are copied, each as the table's field of that column demands."""
    held = FileFields(fields)
    types = {held.find(field): field.type for field in wanted}
    return [field.with_type(_copied_type(field.type, types.get(index))) for index, field in enumerate(fields)]


def _normalised(file: DataFile, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    try:
        columns = [
            convert_array(column, field.type, field.name) for column, field in zip(batch.columns, schema, strict=True)
        ]
    except ColumnMismatch as error:
        raise corrupt_column(file, error) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
