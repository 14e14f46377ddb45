"""DELETE: the rows of which the predicate is TRUE go; a row of which it is NULL stays.

Where the predicate names partition columns only, whole files go without being read, as Spark (of a plain predicate the
engine) says of their partition values; else the files that hold a matching row are copied without it.
Source: delta-spark, DeleteCommand; soundness A9.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Delete
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.snapshot.files import known_sum, live_row_counts
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.operations.delete.by_keys import DeleteByKeys
from airflow_txlog.jobs.resume.commit import check_may_remove_rows, predicate_parameter
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.by_condition import ByCondition, PreparedByCondition
from airflow_txlog.jobs.rows.metrics import file_metrics
from airflow_txlog.jobs.rows.operation import Found, StagedWork
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.sql.gate import SqlGate, columns_named
from airflow_txlog.jobs.sql.scope import Partitions, accepted_by_spark, partition_scope


def delete(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    if context.record(Delete).keys is None:
        return run_row_operation(context, _Delete)
    return run_row_operation(context, DeleteByKeys)


class _Delete(ByCondition[PreparedByCondition]):
    name = "DELETE"
    writes_rows = False

    def __init__(self, context: JobContext) -> None:
        super().__init__(context, SqlGate(context), context.record(Delete).predicate or "TRUE")

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> PreparedByCondition:
        """The predicate accepted; the files that it may touch, and those that it takes as a whole."""
        context, gate, condition = self._context, self._gate, self._condition
        with context.step("plan"):
            check_may_remove_rows(snapshot, "DELETE")
            partitions = Partitions(context, gate, snapshot.delta_schema, snapshot.partition_columns)
            condition_read = self._accepted(snapshot, lambda: accepted_by_spark(gate, snapshot, condition))
            scope = partition_scope(context, gate, snapshot, partitions)
            gate.check_all_used()
            files = scope.read_files(tx, condition_read)
            whole = files.slice(0, 0)
            named = columns_named(condition, snapshot.delta_schema)
            # A text without the name of a data column is worth the question.
            may_be = named is not None and named <= set(scope.partitions.columns)
            if may_be and scope.partitions.speaks_of_partitions_only(condition):
                files, whole = whole, scope.files_accepted(condition, files)
                if context.record(Delete).require_match:
                    # Whether a file without a count holds a row is known once it is read.
                    counted = pa.array([count is not None for count in live_row_counts(whole)], pa.bool_())
                    files, whole = whole.filter(pc.invert(counted)), whole.filter(counted)
            return PreparedByCondition(
                snapshot=snapshot, scope=scope, candidates=files, whole=whole, condition=condition_read
            )

    def check(self, prepared: PreparedByCondition, found: Found) -> None:
        """Raises MatchNotFound where a row must match and none does."""
        # A file of which all rows are deleted already holds none.
        rows = found.removed.num_rows + sum(count or 0 for count in live_row_counts(prepared.whole))
        self._check_matched(prepared, rows, self._context.record(Delete).require_match)

    def parameters(self, prepared: PreparedByCondition) -> dict[str, Any]:
        return {"predicate": predicate_parameter([prepared.scope.with_condition(self._condition)])}

    def metrics(self, prepared: PreparedByCondition, found: Found, work: StagedWork) -> dict[str, int]:
        deleted = known_sum([*live_row_counts(prepared.whole), found.removed.num_rows])
        # A delete that reads no file cannot always know how many rows went.
        return file_metrics(self._context, work) | ({} if deleted is None else {"numDeletedRows": deleted})
