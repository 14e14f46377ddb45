"""Rows of a table are split by partition and segment, into the forms that files hold.

The invariant: every row is in exactly one part, and a part has the rows of one partition and one segment, in order.
Source: protocol, "Partition Values".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.parquet.conversion import convert_array, null_in, relabel
from airflow_txlog.datafiles.partitioning import partition_string

if TYPE_CHECKING:
    from airflow_txlog.datafiles.parquet.writing import Layout

# Rows may come with this column (int32) after the table's: files never mix rows of two segments.
SEGMENT_COLUMN = "_txlog_segment"


class FileKey(NamedTuple):
    """The values that all rows of one file share: the partition's strings, and the segment if rows have one."""

    partition: tuple[str | None, ...]
    segment: int | None = None


def as_in_file(batch: pa.RecordBatch, schema: pa.Schema, file_schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of `schema` as they are stored."""
    stored = [
        convert_array(column, field.type, field.name) for column, field in zip(batch.columns, schema, strict=True)
    ]
    columns = [relabel(column, field.type) for column, field in zip(stored, file_schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=file_schema)


def _stored(table: pa.Table, layout: Layout) -> pa.Table:
    """Return the columns that files have, as they are stored."""
    rows = table.select(layout.file_schema.names)
    stored = [as_in_file(batch, layout.file_schema, layout.stored_schema) for batch in rows.to_batches()]
    return pa.Table.from_batches(stored, layout.stored_schema)


def split_by_partition(table: pa.Table, layout: Layout) -> Iterator[tuple[FileKey, pa.Table]]:
    """Yield the rows of each partition and segment without these columns, in their order, as they are stored.

    Raises ConstraintViolation for a null, or a value that is stored as one, in a NOT NULL partition column.
    """
    table = _with_null_for_empty(table, layout)
    codes: list[_Codes] = [_partition_codes(table, layout, name) for name in layout.partition_columns]
    has_segments = SEGMENT_COLUMN in table.schema.names
    if has_segments:
        codes.append(_segment_codes(table))
    if not codes:
        yield FileKey(()), _stored(table, layout)
        return
    numbers, combinations = _combined(codes)
    keys = [FileKey(values[:-1], values[-1]) if has_segments else FileKey(values) for values in combinations]
    if len(keys) == 1:
        yield keys[0], _stored(table, layout)
        return
    # Sorting integers groups the rows in one pass, however many partitions there are.
    grouped = _stored(table, layout).take(pc.sort_indices(numbers))
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(numbers).to_pylist()}
    start = 0
    for number in sorted(counts):
        yield keys[number], grouped.slice(start, counts[number])
        start += counts[number]


def _with_null_for_empty(table: pa.Table, layout: Layout) -> pa.Table:
    """Return the rows with the values that partition columns will have for readers, if files contain them."""
    for field in layout.materialized:
        index = table.schema.get_field_index(field.name)
        column = table.column(index)
        if field.nullable and (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
            is_empty = pc.equal(pc.binary_length(column), 0)
            table = table.set_column(index, field, pc.if_else(is_empty, pa.scalar(None, column.type), column))
    return table


class _Codes(NamedTuple):
    """A column as numbers: the place of each row's value among `values`."""

    numbers: pa.Array
    values: list[Any]


def _combined(codes: Sequence[_Codes]) -> _Codes:
    """Return the columns as one, whose values are the combinations that occur, as tuples."""
    numbers, combinations = codes[0].numbers, [(value,) for value in codes[0].values]
    for code in codes[1:]:
        # There are never more combinations than rows, so a number stays below rows x values: 64 bits always hold it.
        # A product over all columns would not fit.
        found = pc.add(pc.multiply(numbers, len(code.values)), code.numbers).dictionary_encode()
        pairs = (divmod(number, len(code.values)) for number in found.dictionary.to_pylist())
        combinations = [(*combinations[before], code.values[value]) for before, value in pairs]
        numbers = found.indices.cast(pa.int64())
    return _Codes(numbers, combinations)


def _partition_codes(table: pa.Table, layout: Layout, name: str) -> _Codes:
    encoded = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
    texts = partition_string(encoded.dictionary)
    # An empty string is stored as null, so it breaks NOT NULL just as a null does.
    if None in texts and not layout.schema.field(name).nullable:
        raise null_in(name, " (an empty string in a partition column is stored as null)")
    # Two values of one text (null and the empty string, 0.0 written two ways) are one partition.
    places: dict[str | None, int] = {}
    place_of = pa.array([places.setdefault(text, len(places)) for text in texts], pa.int64())
    return _Codes(place_of.take(encoded.indices), list(places))


def _segment_codes(table: pa.Table) -> _Codes:
    encoded = table.column(SEGMENT_COLUMN).combine_chunks().dictionary_encode(null_encoding="encode")
    return _Codes(encoded.indices.cast(pa.int64()), encoded.dictionary.to_pylist())
