"""Rows of a job's materialized source as new rows of the table, where each value goes over as it is.

They go from file to file in the task that writes them. The invariant: a row is found by its number alone, which the
driver has matched; nothing is compared or computed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.change_rows import CHANGE_TYPE_FIELD
from airflow_txlog.datafiles.parquet.writing import SEGMENT_COLUMN
from airflow_txlog.datafiles.tasks.plans import PlannedFile
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedTask
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN
from airflow_txlog.errors import JobError

# Many rows of the table may take the values of one row of the source: what is taken at once.
_MOST_BYTES = 64 * 1024 * 1024
_MOST_ROWS = 65_536
# So few bytes of rows are not looked at one by one.
_SMALL_BYTES = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class SourceRows:
    """A source that fits in memory. `columns`: the table's name and the source's of each column that is wanted; `scan`
    reads the latter and ROW_ID_COLUMN."""

    scan: MaterializedTask
    columns: tuple[tuple[str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The table's names."""
        return tuple(name for name, _ in self.columns)

    def read(self) -> SourceTable:
        """The rows, in memory. Raises JobError, retryable."""
        bins = self.scan.bins
        store = bins.store.open()
        planned = (file for number in range(len(bins)) for file in bins.files(number, store))
        batches = [batch for file in planned for batch in self.scan.rows_of(file)]
        return SourceTable(self, pa.Table.from_batches(batches, self.scan.output_schema))


class SourceTable:
    """The rows of a source by their numbers."""

    def __init__(self, source: SourceRows, rows: pa.Table) -> None:
        columns = {name: whole(rows.column(name)) for name in rows.column_names}
        self._numbers = columns[ROW_ID_COLUMN]
        wanted = [columns[held] for _, held in source.columns]
        self._rows = pa.RecordBatch.from_arrays(wanted, names=list(source.names))
        self._at_once = max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, _bytes_of_largest(self._rows))))

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


def _bytes_of_largest(rows: pa.RecordBatch) -> int:
    """What no row takes more than: exact where one is large."""
    size_bytes = int(rows.nbytes)
    if rows.num_rows <= 1 or size_bytes <= _SMALL_BYTES:
        return size_bytes
    half = rows.num_rows // 2
    return max(_bytes_of_largest(rows.slice(0, half)), _bytes_of_largest(rows.slice(half)))


def whole(values: pa.ChunkedArray) -> pa.Array:
    """The values in one array."""
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)


@dataclass(frozen=True, kw_only=True)
class UnmatchedTask(MaterializedTask):
    """The rows of a source whose numbers are not among `matched`, as rows of the table: `columns` is as of SourceRows.

    They come with SEGMENT_COLUMN, and as change rows of `change_type` too.
    """

    columns: tuple[tuple[str, str], ...]
    matched: pa.Array
    change_type: str | None = None

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        """The rows of one file. Raises JobError, retryable."""
        for batch in super().rows_of(planned):
            rows = batch.filter(pc.invert(pc.is_in(batch.column(ROW_ID_COLUMN), value_set=self.matched)))
            columns = [rows.column(held) for _, held in self.columns]
            new = pa.RecordBatch.from_arrays(columns, names=[name for name, _ in self.columns])
            new = new.append_column(SEGMENT_COLUMN, rows.column(SEGMENT_COLUMN))
            if self.change_type is not None:
                new = new.append_column(CHANGE_TYPE_FIELD, pa.repeat(self.change_type, new.num_rows))
            if new.num_rows:
                yield new
