"""New values of columns: expressions over a row of the table, or over a row of a job's materialized source.

The driver reads them from plain texts (`jobs/sql/plain_values`). The invariants: a value is the one that Spark computes
from the author's text, and no row makes the computation fail. A source row is found by its number alone, which the
driver has matched. Memory is bounded by the source rows that a task holds at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import whole
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, ROW_ID_COLUMN, gathered
from airflow_txlog.errors import JobError
from airflow_txlog.sql.evaluation import values_of
from airflow_txlog.sql.expression import Expression, Values, columns_of
from airflow_txlog.storage.limits import USUAL


@dataclass(frozen=True, kw_only=True)
class RowValues:
    """The new value of each assigned column. All of them are computed from the old row."""

    values: Mapping[str, Expression]
    most_bytes: int = 64 * 1024 * 1024
    """The most memory that the constants of a batch of new rows take."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.values)

    @property
    def columns_read(self) -> frozenset[str]:
        """The columns from which the new values are computed."""
        return frozenset[str]().union(*map(columns_of, self.values.values()))

    def assigned(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the assigned columns replaced, in batches of a bounded size.

        `rows` have `columns_read`, and at least one column.
        """
        for part, new in self._new(rows):
            kept = {name: part.column(name) for name in part.schema.names if name not in new}
            yield pa.RecordBatch.from_pydict(new | kept)

    def alone(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the assigned columns alone, of which there is at least one, in such batches."""
        return (pa.RecordBatch.from_pydict(new) for _, new in self._new(rows))

    def _new(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, dict[str, pa.Array]]]:
        constants = sum(each.array.nbytes for each in self.values.values() if isinstance(each, Values))
        at_once = max(1, self.most_bytes // max(1, constants))
        for start in range(0, rows.num_rows, at_once):
            part = rows.slice(start, at_once)
            yield part, {name: values_of(value, part) for name, value in self.values.items()}


def only_values(values: RowValues, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the assigned columns alone; a step of a task."""
    for batch in rows:
        yield from values.alone(batch)


# The most memory of the values taken at once: many rows of the table may take the values of one row of the source.
_MOST_BYTES = 64 * 1024 * 1024
# Nested values that take so few bytes are not measured one by one.
_SMALL_BYTES = 16 * 1024
_OFFSET_BYTES = 8
_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)


@dataclass(frozen=True, kw_only=True)
class SourceRows:
    """Rows of a source that give columns of the table their `values`, at least one of them a column of the source.

    `scan` reads the columns that the values need, and ROW_ID_COLUMN: `size_bytes` in `num_rows` rows.
    """

    scan: MaterializedScan
    values: RowValues
    num_rows: int
    size_bytes: int

    @property
    def names(self) -> tuple[str, ...]:
        return self.values.names

    def beside(self, met: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the values of the source rows whose numbers `met` has, in that order, with the addresses.

        `met` has ROW_ID_COLUMN and ADDRESS_COLUMN. The batches are of a bounded size. A source that fits in memory is
        read once, a larger one for each part of `met`. Raises JobError.
        """
        limits = self.scan.bins.store.limits
        held_bytes = limits.held_source_bytes
        is_held = self.size_bytes <= held_bytes
        at_once = max(limits.taken_source_rows, self.num_rows * held_bytes // max(1, self.size_bytes))
        held: SourceTable | None = None
        for rows in gathered(met, at_once):
            numbers, addresses = (whole(rows.column(name)) for name in (ROW_ID_COLUMN, ADDRESS_COLUMN))
            if held is None or not is_held:
                held = None
                held = self.read(None if is_held else pc.unique(numbers).sort())
            start = 0
            for taken in held.take(numbers):
                for values in self.values.alone(taken):
                    yield values.append_column(ADDRESS_COLUMN, addresses.slice(start, values.num_rows))
                    start += values.num_rows

    def read(self, only: pa.Array | None = None) -> SourceTable:
        """Return all rows, or those with the ascending numbers. Raises JobError, retryable."""
        scan = replace(self.scan, only=only)
        rows = pa.Table.from_batches(scan.all_rows(), scan.output_schema)
        return SourceTable(rows, self.scan.bins.store.limits.taken_source_rows)


class SourceTable:
    """The rows of a source by their numbers."""

    def __init__(self, rows: pa.Table, most_rows: int = USUAL.taken_source_rows) -> None:
        columns = {}
        for name in rows.column_names:
            columns[name] = whole(rows.column(name))
            # No column is held twice for longer than it takes to copy it.
            rows = rows.drop_columns([name])
        self._numbers = columns.pop(ROW_ID_COLUMN)
        self._rows = pa.RecordBatch.from_pydict(columns)
        self._at_once = max(1, min(most_rows, _MOST_BYTES // max(1, bytes_of_largest(self._rows))))

    def take(self, numbers: pa.Array) -> Iterator[pa.RecordBatch]:
        """Yield the rows with these numbers, in their order, in batches of a bounded size. Raises JobError if one is
        missing.
        """
        places = pc.index_in(numbers, value_set=self._numbers)
        if places.null_count:
            raise JobError(
                f"{places.null_count} matched rows are not in the source that this job has written down. Nothing was "
                "committed. Report this as a bug."
            )
        for start in range(0, len(places), self._at_once):
            yield self._rows.take(places.slice(start, self._at_once))


def bytes_of_largest(rows: pa.RecordBatch) -> int:
    """Return a number of bytes that no row exceeds: the largest value of each column, added up."""
    small = _SMALL_BYTES // max(1, rows.num_columns)
    return sum(_bytes_of_largest_value(column, small) for column in rows.columns)


def _bytes_of_largest_value(values: pa.Array, small: int) -> int:
    """Return a number of bytes that no value exceeds; at most `small` more than the largest one if they are nested."""
    kind = values.type
    if any(is_text(kind) for is_text in _TEXTS):
        return int(pc.max(pc.binary_length(values)).as_py() or 0) + _OFFSET_BYTES
    if pa.types.is_primitive(kind):
        return -(-int(kind.bit_width) // 8)
    size_bytes = int(values.nbytes)
    if len(values) <= 1 or size_bytes <= small:
        return size_bytes
    half = len(values) // 2
    parts = (values.slice(0, half), values.slice(half))
    return max(_bytes_of_largest_value(part, small) for part in parts)
