"""What Spark's Python workers run to copy data files without some of their rows.

The invariants are those of `scan_and_write` and of `parquet.rewriting`: what is foreseen is returned as a record, never
raised, and a row that stays is in exactly one copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.datafiles.deletion_vectors.rows import deleted_rows
from airflow_txlog.datafiles.parquet.output import RowGroupWriter, StagedFile
from airflow_txlog.datafiles.parquet.rewriting import (
    copy_key_values,
    copy_options,
    copy_schema,
    copy_without,
    open_for_copy,
)
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.plans import Bins, PlannedFile
from airflow_txlog.datafiles.tasks.scan_and_write import (
    error_record,
    records,
    task_numbers,
    use_one_thread,
    without_values,
)
from airflow_txlog.errors import TxlogError
from airflow_txlog.storage import Store


@dataclass(frozen=True, kw_only=True)
class FileTask:
    """New files in the place of the planned ones, for a numbered range like a scan's; one record a file."""

    bins: Bins
    layout: Layout

    @property
    def weight(self) -> int:
        """What it costs to read all files, as of Bins."""
        return self.bins.weight

    def staged(
        self,
        batches: Iterator[pa.RecordBatch],
        key: Callable[[PlannedFile], Hashable],
        stage: Callable[[list[PlannedFile], str, Store], StagedFile | None],
    ) -> Iterator[pa.RecordBatch]:
        """Records of what `stage` makes of neighbouring files of one key; of files that fail, the error."""
        use_one_thread()
        attempt = SYSTEM_CLOCK.unique_id()
        store = self.layout.store.open()
        planned_store = self.bins.store_beside(store)
        for number in task_numbers(batches):
            try:
                planned = self.bins.files(number, planned_store)
            except TxlogError as error:
                yield error_record(error)
                continue
            for _, files in itertools.groupby(planned, key):
                try:
                    staged = stage(list(files), attempt, store)
                except TxlogError as error:
                    yield error_record(error)
                    continue
                if staged is not None:
                    yield records([staged])


@dataclass(frozen=True, kw_only=True)
class CopyTask(FileTask):
    """Copies of data files without the plan's positions, and without the rows that their deletion vectors delete.

    One record a file, or a part of a file. A copy of which no row is left is not made.
    """

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records of staged files, and of what went wrong."""
        yield from self.staged(batches, _alone, lambda files, *at: self.copied(files[0], *at))

    def copied(
        self,
        planned: PlannedFile,
        attempt: str,
        store: Store,
        look: Callable[[int, pa.RecordBatch], None] | None = None,
    ) -> StagedFile | None:
        """The copy of one file in `store`, None where no row is left; a failed one leaves nothing.

        `look`: see `copy_without`.
        """
        writer: RowGroupWriter | None = None
        number = f"{planned.index:05d}" if planned.parts == 1 else f"{planned.index:05d}-{planned.part}"
        try:
            with open_for_copy(planned.file) as parquet:
                deleted = deleted_rows(planned.deleted, planned.file.name, parquet.metadata.num_rows)
                options = copy_options(parquet, self.layout.parquet)
                schema = copy_schema(parquet, self.layout.schema)
                writer = RowGroupWriter(
                    store,
                    self.layout.path_in(planned.directory, attempt, number, options),
                    schema,
                    options=options,
                    key_values=copy_key_values(parquet),
                    statistics=self.layout.statistics_for(schema),
                )
                groups = planned.row_groups(parquet.metadata.num_row_groups)
                copy_without(planned.file, parquet, planned.positions or b"", writer, deleted, groups, look)
            return writer.close(planned.partition_values, source=planned.index)
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise


def _alone(planned: PlannedFile) -> tuple[int, int]:
    return planned.index, planned.part
