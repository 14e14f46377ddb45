"""Copies of data files without some of their rows, faithful in everything else. Rows that a deletion vector deletes go.

A copy keeps the source file's own schema (absent columns stay absent, old types stay old), field ids, footer metadata,
codecs, working dictionaries and row groups. Only timestamps change their form: INT96, milliseconds and a wrong zone
flag become what the table's schema demands, microseconds either way. The invariant: every row that is not named by a
position comes out with the values it went in with. Memory is bounded by one row group of at most 128 MiB.
Source: soundness A7, A8, A19.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.deletion_vectors.positions import unpack
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions, kept_by_both
from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, convert_array
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.physical import DEFAULT_FORMAT, FileFields, ParquetFormat
from airflow_txlog.datafiles.parquet.reading import DataFile, corrupt_column, open_data_file, read_batches

# Arrow's copy of the schema describes the source's Arrow types, which the copy may have changed.
_DROPPED_KEYS = frozenset({b"ARROW:schema"})
_CODECS = frozenset({"SNAPPY", "GZIP", "ZSTD", "BROTLI", "LZ4"})


def open_for_copy(file: DataFile) -> AbstractContextManager[pq.ParquetFile]:
    """The open file as `open_data_file` gives it, text read as dictionaries where it stands so and can be copied so."""
    return open_data_file(file, dictionaries=dictionary_columns)


def copy_without(
    file: DataFile,
    parquet: pq.ParquetFile,
    positions: bytes,
    writer: RowGroupWriter,
    deleted: RowPositions | None = None,
    row_groups: Sequence[int] | None = None,
    look: Callable[[int, pa.RecordBatch], None] | None = None,
) -> int:
    """Write to `writer` the rows of the file, or of these row groups, that neither names; the number of rows left out.

    `positions` are as `positions.pack` gives them. `writer` must have been made with `copy_schema`
    and `copy_options` of the same file. `look` gets every batch as it was read, with the position of its first row: the
    rows that leave need no reading of their own. Raises what `read_batches` raises, and CorruptDataFile for a column
    that does not fit.
    """
    schema = writer.schema
    leaving = unpack(positions)
    group_ends = set(_row_group_ends(parquet))
    dropped = 0
    for start, batch in read_batches(file, parquet, row_groups=row_groups):
        if look is not None:
            look(start, batch)
        # Both count the rows as the file has them, so nothing is filtered before both have spoken (soundness A19).
        keep = leaving.keep(start, batch.num_rows)
        if deleted is not None:
            keep = kept_by_both(keep, deleted.keep(start, batch.num_rows))
        kept = batch if keep is None else batch.filter(keep)
        dropped += batch.num_rows - kept.num_rows
        if kept.num_rows:
            writer.write(_normalised(file, kept, schema))
        if start + batch.num_rows in group_ends:
            writer.end_row_group()
    return dropped


def copy_schema(parquet: pq.ParquetFile, table_schema: pa.Schema) -> pa.Schema:
    """The Arrow schema of a copy: the file's own, its timestamps as the table has them.

    Dictionaries are kept as `open_for_copy` reads them, and nowhere else. Field metadata (field ids) is kept; the
    footer's key-value metadata is not in it.
    """
    kept = set(dictionary_columns(parquet))
    copied = _copied_fields(list(parquet.schema_arrow), list(table_schema))
    return pa.schema(
        [
            field.with_type(read.type) if read.name in kept and is_held_as_dictionary(read.type) else field
            for read, field in zip(parquet.schema_arrow, copied, strict=True)
        ]
    )


def copy_options(parquet: pq.ParquetFile, wanted: ParquetFormat = DEFAULT_FORMAT) -> dict[str, Any]:
    """Options of `ParquetWriter` that follow the source: codecs where the table does not say (`wanted`), dictionaries
    that held, decimals as integers."""
    metadata = parquet.metadata
    dictionaries: set[str] = set()
    codecs: dict[str, str] = {}
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            codecs.setdefault(chunk.path_in_schema, chunk.compression)
            if holds_dictionary(chunk):
                dictionaries.add(chunk.path_in_schema)
    return {
        "use_dictionary": sorted(dictionaries) if metadata.num_row_groups else True,
        **wanted.options(_compression(codecs)),
        "store_decimal_as_integer": _has_integer_decimals(parquet),
    }


def main_codec(parquet: pq.ParquetFile) -> str:
    """The codec of most of the file's column chunks, as the writer calls it; SNAPPY where there are none."""
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
    """The footer's key-value metadata, which says how other engines wrote and what calendar they used."""
    return {k: v for k, v in (parquet.metadata.metadata or {}).items() if k not in _DROPPED_KEYS}


def _row_group_ends(parquet: pq.ParquetFile) -> Iterator[int]:
    end = 0
    for group in range(parquet.metadata.num_row_groups):
        end += parquet.metadata.row_group(group).num_rows
        yield end


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
        # A column that the table no longer has is an instant: TIMESTAMP is what every writer meant by INT96.
        zone = wanted.tz if wanted is not None and is_a.is_timestamp(wanted) else "UTC"
        return pa.timestamp("us", tz=zone)
    if is_a.is_struct(kind):
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
    """The file's fields as they are copied, each by what the table's field that it holds demands of it."""
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


# A dictionary at its limit, with room for the headers of pages; an index of it, with room for what the coding adds.
_DICTIONARY_BYTES = 1_200_000
_INDEX_BYTES = 2.5
# Spark and everything else in Java, Arrow, and delta-rs: each looks a value up before it numbers it.
_DISTINCT_WRITERS = ("parquet-mr", "parquet-cpp", "parquet-rs")


def holds_dictionary(chunk: Any) -> bool:
    """Whether the column chunk has a dictionary that was not given up on the way.

    Every writer gives a dictionary up at 1 MiB and goes on plainly; to try again would cost a quarter of the copy's
    time for nothing. Such a dictionary has at most 2^18 entries, so a chunk that holds more than it and 18 bits a value
    has values outside of it.
    """
    # Some writers leave the offset of the dictionary page out; the encodings show it all the same.
    if not (chunk.has_dictionary_page or {"PLAIN_DICTIONARY", "RLE_DICTIONARY"} & set(chunk.encodings)):
        return False
    return bool(chunk.total_uncompressed_size <= _DICTIONARY_BYTES + chunk.num_values * _INDEX_BYTES)


def dictionary_columns(parquet: pq.ParquetFile) -> list[str]:
    """The top-level columns of an open file that may be read as dictionaries, in the file's order."""
    metadata = parquet.metadata
    if not (metadata.created_by or "").startswith(_DISTINCT_WRITERS):
        return []
    by_path = {parquet.schema.column(index).path: index for index in range(metadata.num_columns)}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    found = []
    for field in parquet.schema_arrow:
        index = by_path.get(field.name)
        # A name with a dot in it may be the path of a member too.
        if index is None or "." in field.name or not is_held_as_dictionary(_dictionary_of(field.type)):
            continue
        if groups and all(holds_dictionary(group.column(index)) for group in groups):
            found.append(field.name)
    return found


def is_held_as_dictionary(kind: pa.DataType) -> bool:
    """Whether this is the type in which `dictionary_columns` are read."""
    return bool(kind in (_dictionary_of(pa.string()), _dictionary_of(pa.binary())))


def _dictionary_of(kind: pa.DataType) -> pa.DataType:
    return kind if pa.types.is_dictionary(kind) else pa.dictionary(pa.int32(), kind)
