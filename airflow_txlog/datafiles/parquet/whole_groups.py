"""Copies of Parquet files in which the row groups that no row leaves are copied as bytes, with all their columns.

The invariants: a row group is copied so only if no row of it leaves or changes, and if the rows that are written with
it have exactly the form of the file. Statistics count the values of both. Source: `splicing`, which copies chunks.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.moved_rows import count_rows
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet
from airflow_txlog.datafiles.parquet.footer_statistics import chunks_of, leaves_of_footer
from airflow_txlog.datafiles.parquet.footers import footer_of
from airflow_txlog.datafiles.parquet.physical import DEFAULT_FORMAT, FileFields, is_as_held
from airflow_txlog.datafiles.parquet.reading import DataFile, read_batches, row_group_starts
from airflow_txlog.datafiles.parquet.splicing import Splice, SplicingWriter
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector
from airflow_txlog.datafiles.parquet.writing import Layout


def split_groups(
    parquet: OpenParquet, groups: Sequence[int], leaving: Sequence[RowPositions | None]
) -> tuple[list[int], list[int]]:
    """Return the row groups, of `groups`, of which all rows stay, and those of which some do.

    `leaving` are positions, each in one of them at most.
    """
    starts = row_group_starts(parquet)
    named = [positions for positions in leaving if positions is not None]
    whole: list[int] = []
    partly: list[int] = []
    for group in groups:
        start, end = starts[group], starts[group + 1]
        left = end - start - sum(positions.num_before(end) - positions.num_before(start) for positions in named)
        if left:
            (whole if left == end - start else partly).append(group)
    return whole, partly


def whole_groups(
    parquet: OpenParquet, groups: Sequence[int], layout: Layout, schema: pa.Schema, options: Mapping[str, Any]
) -> Splice | None:
    """Return the splice of these row groups; None if they are few, or cannot be copied as bytes with certainty.

    `schema` and `options` are those of the copy's writer.
    """
    if not groups or layout.parquet != DEFAULT_FORMAT or not _are_as_held(layout.data_schema, parquet.schema_arrow):
        return None
    splice = Splice.of(parquet, frozenset(), groups)
    if splice is None or splice.all_bytes < layout.store.limits.changed_in_place_bytes:
        return None
    return splice if splice.has_form_of(_form(schema, options)) else None


def _are_as_held(fields: Iterable[pa.Field], held: pa.Schema) -> bool:
    """Return whether the file's columns have the names and types of the table's columns, if the table has them."""
    members = FileFields(held)
    found = ((field, members.find(field)) for field in fields)
    is_held = (place is None or is_as_held(field, _spelled_out(held.field(place))) for field, place in found)
    return len(set(held.names)) == len(held) and all(is_held)


def _spelled_out(field: pa.Field) -> pa.Field:
    """Return the field of a column that may be read as a dictionary."""
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _form(schema: pa.Schema, options: Mapping[str, Any]) -> bytes:
    """Return the footer of a file without rows."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, store_schema=False, **options).close()
    return footer_of(io.BytesIO(sink.getvalue()))


def add_statistics(statistics: StatisticsCollector, splice: Splice, file: DataFile, fields: Sequence[pa.Field]) -> None:
    """Add the rows of the row groups; `fields` are the table's columns that the file has."""
    parquet, groups = splice.parquet, splice.groups
    rows = sum(parquet.metadata.row_group(group).num_rows for group in groups)
    count_rows(read=rows, written=rows)
    unproven = statistics.add_groups(rows, chunks_of(parquet, groups), leaves_of_footer(parquet))
    if unproven:
        wanted = [field for field in fields if field.name in unproven]
        for _, batch in read_batches(file, parquet, wanted, row_groups=groups):
            statistics.add_values(batch, unproven)


class GroupsWriter(SplicingWriter):
    """Writes a copy with whole row groups of its source: those of the splice, which replaces no column.

    `skip_to` copies those that begin before a row, and `write` takes the other rows.
    """

    def __init__(self, *of_file: Any, **options: Any) -> None:
        super().__init__(*of_file, **options)
        self._left = list(self._splice.groups)
        self._starts = row_group_starts(self._splice.parquet)
        self._groups: list[tuple[int, Mapping[int, int]] | None] = []

    def skip_to(self, position: int) -> None:
        """Copy the row groups that begin before this position. Raises ChunkMismatch."""
        while self._left and self._starts[self._left[0]] < position:
            self.end_row_group()
            self._begun()
            group = self._left.pop(0)
            self._groups.append((group, self._splice.copy(group, self._chunks)))
            self._num_records += self._starts[group + 1] - self._starts[group]

    def _write_group(self, writer: pq.ParquetWriter, table: pa.Table) -> None:
        super()._write_group(writer, table)
        self._groups.append(None)

    def _footer(self, written: bytes) -> bytes:
        return self._splice.footer_of_groups(written, self._groups)
