"""What Spark's Python workers run to write change rows of rows that leave their files: deleted ones and old images.

The rows are read where they are and written whole, without a way through the JVM. The invariants are those of `tasks`:
what is foreseen is told as a record, never raised, and a row of the plan's positions is in exactly one file.
Source: protocol, "Change Data Files"; soundness A17.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.datafiles.changes import CHANGE_TYPE_FIELD, DELETE
from airflow_txlog.datafiles.plans import Bins, PlannedFile
from airflow_txlog.datafiles.tasks import CLAUSE_COLUMN, ScanTask, error_record, records, task_numbers, use_one_thread
from airflow_txlog.datafiles.writing import Layout, PartitionedWriter
from airflow_txlog.errors import TxlogError


@dataclass(frozen=True, kw_only=True)
class ChangeTask:
    """Change rows of the rows at the plan's positions, for a numbered range like a scan's; one record a file.

    `layout` is the table's. `change_types` says what each clause of the plan does to a row (`delete`,
    `update_preimage`); None: the plan has no clauses, and every row is deleted. Files never mix segments of the plan.
    """

    bins: Bins
    layout: Layout
    change_types: Mapping[int, str] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records of staged files, or one of what went wrong: then every file of this task is gone again."""
        use_one_thread()
        writer = PartitionedWriter(self.layout.for_changes())
        try:
            for number in task_numbers(batches):
                for planned in self.bins.files(number):
                    self._write(planned, writer)
            staged = writer.finish()
        except TxlogError as error:
            writer.abandon()
            for _ in batches:
                pass
            yield error_record(error)
            return
        except BaseException:
            writer.abandon()
            raise
        if staged:
            yield records(staged)

    def _write(self, planned: PlannedFile, writer: PartitionedWriter) -> None:
        scan = ScanTask(
            bins=self.bins,
            schema=self.layout.schema,
            rows="only",
            with_clause=self.change_types is not None,
            with_segment=planned.segment is not None,
        )
        for batch in scan.rows_of(planned):
            writer.write(self._with_type(batch))

    def _with_type(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.change_types is None:
            types = pa.repeat(pa.scalar(DELETE, pa.string()), batch.num_rows)
            return batch.append_column(CHANGE_TYPE_FIELD, types)
        clauses = batch.column(CLAUSE_COLUMN).dictionary_encode()
        types = pa.array([self.change_types[clause] for clause in clauses.dictionary.to_pylist()], pa.string())
        return batch.drop_columns([CLAUSE_COLUMN]).append_column(CHANGE_TYPE_FIELD, types.take(clauses.indices))
