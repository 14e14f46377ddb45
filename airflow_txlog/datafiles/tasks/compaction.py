"""Compaction: the rows of several data files, in the order of the files, become one file.

The files may be of any age, so each is read as a reader of the table reads it. The invariant: a compacted file holds
exactly the rows that a reader of its inputs sees, or there is no file and an error gives the reason. It may hold nulls
whatever the table demands. Memory is bounded by one row group of at most 128 MiB. Source: delta-spark,
OptimizeTableCommand; soundness A7, A8, A19.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.ahead import ahead
from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS
from airflow_txlog.datafiles.dictionaries import repeated_columns
from airflow_txlog.datafiles.parquet.conversion import relabel
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.physical import DEFAULT_CODEC, SMALL_CODEC, physical_schema
from airflow_txlog.datafiles.parquet.reading import BATCH_ROWS, open_data_file
from airflow_txlog.datafiles.parquet.rewriting import main_codec
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.row_ids import BASE_ROW_ID_CONSTANT, ROW_VERSION_CONSTANT
from airflow_txlog.datafiles.staged_files import StagedFile, is_staged_name
from airflow_txlog.datafiles.tasks.plans import PlannedFile
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan, gathered, without_values
from airflow_txlog.datafiles.tasks.small_files import fetched_ahead
from airflow_txlog.datafiles.tasks.whole_files import FileTask, Written
from airflow_txlog.storage import Store

# Small batches are joined before they are encoded: each costs a call for every column.
_JOINED_ROWS = 65_536
_JOINED_BYTES = 16 * 1024 * 1024
# Of rows that are decoded while earlier ones are encoded: the row groups of a file, and their least size in memory.
_GROUPS = 8
_LEAST_GROUP_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class CompactTask(FileTask):
    """One file, and one record, for each segment that has rows.

    The files of a segment are neighbours in a bin; the record has the segment's number. `rows`: as of FileScan.
    `read_ahead`: decode in a second thread, if cores are idle, while the row group before is encoded.
    """

    rows: Literal["all", "others"] = "all"
    read_ahead: bool = False

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.staged(batches, lambda planned: planned.segment, self._compacted)

    def _compacted(self, files: Sequence[PlannedFile], attempt: str, store: Store) -> Written:
        counts = [planned.file.num_records for planned in files]
        num_rows = sum(filter(None, counts)) if self.read_ahead and None not in counts else None
        output = _CompactedFile(self.layout, store, files[0], attempt, num_rows)
        rows = _joined(self._rows(files, output))
        try:
            for batch in ahead(rows, 2) if self.read_ahead else rows:
                output.write(batch)
            output.end()
        except BaseException:
            output.abandon()
            raise
        return Written(close=output.close, abandon=output.abandon)

    def _rows(self, files: Sequence[PlannedFile], output: _CompactedFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the scan, with the columns of the output."""
        schema = output.schema
        scan = FileScan(
            bins=self.bins,
            schema=output.table_schema,
            rows=self.rows,
            with_address=self.layout.row_ids is not None,
            reads_all=True,
        )
        fetched = fetched_ahead(files, reads_all=True, is_read_again=False)
        first = next(fetched)
        with open_data_file(first.file, reads_all=True) as parquet:
            output.follow(main_codec(parquet), first.file.name)
        fetched = chain([first], fetched)
        if self.layout.row_ids is None:
            columns_of = (rows.columns for rows in scan.rows_of_files(fetched))
        else:
            columns_of = (self._with_ids(rows, planned, scan) for planned in fetched for rows in scan.rows_of(planned))
        for found in columns_of:
            columns = [relabel(column, field.type) for column, field in zip(found, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _with_ids(self, rows: pa.RecordBatch, planned: PlannedFile, scan: FileScan) -> list[pa.Array]:
        assert self.layout.row_ids is not None
        columns: list[pa.Array] = rows.columns
        ids = planned.constants
        numbers = pc.bit_wise_and(columns.pop(), (1 << POSITION_BITS) - 1)
        self.layout.row_ids.fill(columns, scan.schema, ids[BASE_ROW_ID_CONSTANT], ids[ROW_VERSION_CONSTANT], numbers)
        return columns


class _CompactedFile:
    """The file of one segment. It begins when its first rows show how it is best encoded."""

    def __init__(
        self, layout: Layout, store: Store, first: PlannedFile, attempt: str, num_rows: int | None = None
    ) -> None:
        """`num_rows`: about how many rows it will have, if they are to be written while others are decoded."""
        self.table_schema = pa.schema([_optional(field) for field in layout.file_schema])
        self.schema = physical_schema(self.table_schema)
        self._layout = layout
        self._store = store
        self._first = first
        self._attempt = attempt
        self._num_rows = num_rows
        self._codec: str | None = None
        self._writer: RowGroupWriter | None = None

    def follow(self, codec: str, path: str) -> None:
        """Write in this codec, which the writer of the file `path` chose, unless the table has one.

        A small file of ours has its codec for its size alone.
        """
        self._codec = None if codec == SMALL_CODEC and is_staged_name(path) else codec

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            options = self._layout.parquet.options(self._codec or DEFAULT_CODEC)
            number = f"{self._first.segment or 0:05d}"
            group_bytes = None
            if self._num_rows is not None:
                group_bytes = max(_LEAST_GROUP_BYTES, batch.nbytes * self._num_rows // batch.num_rows // _GROUPS)
            self._writer = RowGroupWriter(
                self._store,
                self._layout.path_in(self._first.directory, self._attempt, number, options),
                self.schema,
                options={**options, "use_dictionary": repeated_columns(batch)},
                statistics=self._layout.statistics_for(self.schema),
                row_group_bytes=group_bytes,
            )
        self._writer.write(batch)

    def end(self) -> None:
        """Encode the last rows."""
        if self._writer is not None:
            self._writer.end_row_group()

    def close(self) -> StagedFile | None:
        """Publish the file and return it; None if there were no rows."""
        if self._writer is None:
            return None
        return self._writer.close(self._first.partition_values, segment=self._first.segment or 0)

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in larger batches, in order; none is empty."""
    # The first rows decide on dictionaries, so there should be many of them.
    for rows in gathered((batch for batch in batches if batch.num_rows), _JOINED_ROWS, _JOINED_BYTES):
        yield from rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def _optional(field: pa.Field) -> pa.Field:
    """Return the field with all its levels nullable except the keys of maps; its metadata stays."""
    return field.with_nullable(True).with_type(_optional_type(field.type))


def _optional_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(map(_optional, kind))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_optional_type(kind.key_type)), _optional(kind.item_field))
    return pa.list_(_optional(kind.value_field)) if pa.types.is_list(kind) else kind
