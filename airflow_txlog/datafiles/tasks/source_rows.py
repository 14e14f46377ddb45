"""Rows of a job's materialized source as new rows of the table, where each value goes over as it is or is a constant.

They go from file to file in the task that writes them. The invariant: a row is found by its number alone, which the
driver has matched; nothing is compared or computed here. Memory is bounded by what a task holds of the source at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.change_rows import CHANGE_TYPE_FIELD
from airflow_txlog.datafiles.parquet.writing import SEGMENT_COLUMN
from airflow_txlog.datafiles.tasks.plans import PlannedFile
from airflow_txlog.datafiles.tasks.row_values import RowValues
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedTask
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, ROW_ID_COLUMN
from airflow_txlog.errors import JobError

# What a task holds of the source: all of it, or the rows that so many rows of the table have met.
HELD_BYTES = 256 * 1024 * 1024
# Many rows of the table may take the values of one row of the source: what is taken at once.
_MOST_BYTES = 64 * 1024 * 1024
_MOST_ROWS = 65_536
# So few bytes of nested values are not looked at one by one.
_SMALL_BYTES = 16 * 1024
_OFFSET_BYTES = 8
_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)


@dataclass(frozen=True, kw_only=True)
class SourceRows:
    """A source's rows. `columns`: the table's name and the source's of each column that is wanted, one at least; `scan`
    reads the latter and ROW_ID_COLUMN, which take `size_bytes` in `num_rows` rows. `constants` stand beside them."""

    scan: MaterializedTask
    columns: tuple[tuple[str, str], ...]
    constants: RowValues
    num_rows: int
    size_bytes: int

    @property
    def names(self) -> tuple[str, ...]:
        """The table's names."""
        return (*(name for name, _ in self.columns), *self.constants.names)

    def beside(self, met: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For batches of ROW_ID_COLUMN and ADDRESS_COLUMN: the rows with these numbers, in their order, under the
        table's names, each with the address, in batches of a bounded size. Raises JobError.

        A source that is held as a whole is read once; any other each time that so many rows have met it.
        """
        is_held = self.size_bytes <= HELD_BYTES
        at_once = max(_MOST_ROWS, self.num_rows * HELD_BYTES // max(1, self.size_bytes))
        held: SourceTable | None = None
        for rows in _gathered(met, at_once):
            numbers, addresses = (whole(rows.column(name)) for name in (ROW_ID_COLUMN, ADDRESS_COLUMN))
            if held is None or not is_held:
                held = None
                held = self.read(None if is_held else pc.unique(numbers).sort())
            start = 0
            for taken in held.take(numbers):
                for values in self.constants.assigned(taken):
                    yield values.append_column(ADDRESS_COLUMN, addresses.slice(start, values.num_rows))
                    start += values.num_rows

    def read(self, only: pa.Array | None = None) -> SourceTable:
        """All rows, or those of the ascending numbers, in memory. Raises JobError, retryable."""
        scan = replace(self.scan, only=only)
        return SourceTable(self, pa.Table.from_batches(scan.all_rows(), scan.output_schema))


def _gathered(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The batches put together to tables of about so many rows."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(waiting)
            waiting, count = [], 0
    if count:
        yield pa.Table.from_batches(waiting)


class SourceTable:
    """The rows of a source by their numbers."""

    def __init__(self, source: SourceRows, rows: pa.Table) -> None:
        columns = {}
        for name in rows.column_names:
            columns[name] = whole(rows.column(name))
            # Of no column there are two copies for longer than it takes to make one.
            rows = rows.drop_columns([name])
        self._numbers = columns[ROW_ID_COLUMN]
        wanted = [columns[held] for _, held in source.columns]
        self._rows = pa.RecordBatch.from_arrays(wanted, names=[name for name, _ in source.columns])
        self._at_once = max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, bytes_of_largest(self._rows))))

    def take(self, numbers: pa.Array) -> Iterator[pa.RecordBatch]:
        """The rows with these numbers, in their order, under the table's names, in batches of a bounded size.

        The numbers are looked up together, which costs as much as the source has rows. Raises JobError for one that is
        not there.
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


def whole(values: pa.ChunkedArray) -> pa.Array:
    """The values in one array."""
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)


@dataclass(frozen=True, kw_only=True)
class UnmatchedTask(MaterializedTask):
    """The rows of a source, but for those that the plan says are deleted, as rows of the table: `columns` and
    `constants` are as of SourceRows.

    They come with SEGMENT_COLUMN, and as change rows of `change_type` too.
    """

    columns: tuple[tuple[str, str], ...]
    constants: RowValues
    change_type: str | None = None

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        """The rows of one file. Raises JobError, retryable."""
        for rows in super().rows_of(planned):
            columns = [rows.column(held) for _, held in self.columns]
            new = pa.RecordBatch.from_arrays(columns, names=[name for name, _ in self.columns])
            new = new.append_column(SEGMENT_COLUMN, rows.column(SEGMENT_COLUMN))
            if self.change_type is not None:
                new = new.append_column(CHANGE_TYPE_FIELD, pa.repeat(self.change_type, new.num_rows))
            yield from self.constants.assigned(new)
