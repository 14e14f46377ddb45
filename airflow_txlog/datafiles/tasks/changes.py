"""What Spark's Python workers run to write change rows of rows that leave their files: deleted ones and old images.

The rows are read where they are and written whole, without a way through the JVM. The invariants are those of
`scan_and_write`: what is foreseen is returned as a record, never raised, and a row of the plan's positions is in
exactly one file. Source: protocol, "Change Data Files"; soundness A17.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.change_rows import CHANGE_TYPE_FIELD, DELETE, UPDATE_PREIMAGE
from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.datafiles.tasks.plans import Bins, PlannedFile
from airflow_txlog.datafiles.tasks.scan_and_write import (
    CLAUSE_COLUMN,
    ScanTask,
    task_numbers,
    use_one_thread,
    without_values,
    writing,
)


@dataclass(frozen=True, kw_only=True)
class ChangeTask:
    """Change rows of the rows at the plan's positions, for a numbered range like a scan's; one record a file.

    Of a file without positions it is every row that no deletion vector deletes. `layout` is the table's. `updates` are
    the clauses of the plan that update a row, whose old image it is; any other, or none, deletes it. Files never mix
    segments of the plan.
    """

    bins: Bins
    layout: Layout
    updates: frozenset[int] = frozenset()

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records of staged files, or one of what went wrong: then every file of this task is gone again."""
        use_one_thread()
        with writing(self.layout.for_changes(), batches) as (writer, report):
            store = self.bins.store_beside(writer.store)
            for number in task_numbers(batches):
                for planned in self.bins.files(number, store):
                    self._write(planned, writer)
        yield from report

    def _write(self, planned: PlannedFile, writer: PartitionedWriter) -> None:
        scan = ScanTask(
            bins=self.bins,
            schema=self.layout.schema,
            rows="all" if planned.positions is None else "only",
            with_clause=planned.clauses is not None,
            with_segment=planned.segment is not None,
        )
        for batch in scan.rows_of(planned):
            writer.write(self._with_type(batch))

    def _with_type(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if CLAUSE_COLUMN not in batch.schema.names:
            types = pa.repeat(pa.scalar(DELETE, pa.string()), batch.num_rows)
            return batch.append_column(CHANGE_TYPE_FIELD, types)
        is_update = pc.is_in(batch.column(CLAUSE_COLUMN), value_set=pa.array(list(self.updates), pa.int32()))
        types = pc.if_else(is_update, UPDATE_PREIMAGE, DELETE)
        return batch.drop_columns([CLAUSE_COLUMN]).append_column(CHANGE_TYPE_FIELD, types)
