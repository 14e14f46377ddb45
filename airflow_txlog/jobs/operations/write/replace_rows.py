"""An overwrite of the rows for which a predicate over data columns is true: a delete and an append in one commit.

The pipeline of DELETE finds and removes the leaving rows; the new rows are its inserts, one segment that is staged
once. A new row must satisfy the predicate: Spark marks each row, and the writer refuses one for which it is not true.
The invariant: a row for which the predicate is null is neither removed nor added. Source: delta-spark, WriteIntoDelta
(replaceWhere over data columns), CheckDeltaInvariant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_txlog.contract.operations import Write
from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.executor.spark import FoundBySpark
from airflow_txlog.jobs.files.frames import FrameRows
from airflow_txlog.jobs.files.stage import NewRows
from airflow_txlog.jobs.operations.write.numbered import NumberedRows
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.by_condition import ByCondition, PreparedByCondition
from airflow_txlog.jobs.rows.matches import Matches
from airflow_txlog.jobs.rows.operation import Found, StagedWork, overwrite_metrics
from airflow_txlog.jobs.rows.staging import without_change_rows
from airflow_txlog.jobs.source.frames import build_source, numbered_rows
from airflow_txlog.jobs.source.handed_out import HandedOut
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.jobs.sql.columns import evolved_by_source
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.scope import Partitions, accepted_by_spark, partition_scope, read_condition
from airflow_txlog.jobs.sql.table_rules import Rules, accepted_rules, fit_new_rows, only_inside


def replaces_rows(context: JobContext, gate: SqlGate, snapshot: Snapshot) -> bool:
    """Return whether the job's `replace_where` names more than partition columns, so that rows must be read."""
    text = context.record(Write).replace_where
    if text is None:
        return False
    accepted_by_spark(gate, snapshot, text)
    partitions = Partitions(context, gate, snapshot.delta_schema, snapshot.partition_columns)
    return not partitions.speaks_of_partitions_only(text)


@dataclass(frozen=True, kw_only=True)
class _Prepared(PreparedByCondition):
    """`frame` returns the source's rows, unless they are staged already. `handed`: their values of identity columns."""

    frame: Callable[[], DataFrame] | None
    handed: HandedOut | None
    rules: Rules
    staged_as: str


class ReplaceRows(ByCondition[_Prepared]):
    """The pipeline's view of this overwrite."""

    name = "WRITE"
    records_inserts_alone = True

    def __init__(self, context: JobContext, gate: SqlGate) -> None:
        super().__init__(context, gate, context.record(Write).replace_where or "FALSE")
        self._numbered = NumberedRows(context, gate)

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> _Prepared:
        """Accept the predicate, find the source unless its rows are staged, and return the files that it may touch."""
        context, gate, condition = self._context, self._gate, self._condition
        with context.step("plan"):
            used = accepted_by_spark(gate, snapshot, condition)
            scope = partition_scope(context, gate, snapshot)
            read_self = context.saved_inputs.reads_target
            staged_as = f"version {snapshot.version}" if read_self else "the source"
            source: FoundBySpark | MaterializedSource | None = self._numbered.written_before(snapshot)
            if source is None and (
                read_self
                or not any(without_change_rows(segment.fingerprint) == staged_as for segment in memory.segments)
            ):
                source = FoundBySpark(context, gate, build_source(context, gate, snapshot))
                gate.check_all_used()
                context.saved_inputs.reads_target = source.reads_target
                if source.reads_target:
                    # The rows differ in every attempt.
                    tx.read_whole_table()
                    staged_as = f"version {snapshot.version}"
            metadata = evolved_by_source(context, tx, None if source is None else source.described)
            if metadata is not snapshot.metadata:
                snapshot = snapshot.with_metadata(metadata)
            rules = accepted_rules(context, snapshot.metadata)
            frame, handed = self._rows(rules, source)
            condition_read = read_condition(context, snapshot, condition, used)
            candidates = scope.read_files(tx, condition_read)
            return _Prepared(
                snapshot=snapshot,
                scope=scope,
                candidates=candidates,
                condition=condition_read,
                frame=frame,
                handed=handed,
                rules=rules,
                staged_as=staged_as + ("" if handed is None else handed.first_values()),
            )

    def _rows(
        self, rules: Rules, source: FoundBySpark | MaterializedSource | None
    ) -> tuple[Callable[[], DataFrame] | None, HandedOut | None]:
        """Return a function for the rows of the source, and the values of identity columns that it adds to them."""
        if source is None:
            return None, None
        found = self._numbered.of(rules, source, self._condition)
        if found is None:
            assert isinstance(source, FoundBySpark)
            return (lambda: source.frame), None
        written, handed = found
        return (lambda: numbered_rows(self._context, written, handed)), handed

    def inserts_wanted(self, prepared: _Prepared, matches: Matches) -> Mapping[int, str]:
        """Return all rows of the source, in one bucket, whatever was found."""
        return {0: prepared.staged_as}

    def inserts(self, prepared: _Prepared, matches: Matches, buckets: Collection[int]) -> NewRows:
        """Return the source's rows as new rows of the table, with the predicate's result for each."""
        assert prepared.frame is not None
        context = self._context
        rows = fit_new_rows(prepared.frame(), prepared.rules, ansi=context.is_ansi)
        rows = only_inside(self._gate, context.view_name(), rows, self._condition)
        return FrameRows(rows.withColumn(SEGMENT_COLUMN, F.lit(0).cast("int")))

    def marks(self, prepared: _Prepared, matches: Matches) -> Mapping[str, int]:
        return {} if prepared.handed is None else prepared.handed.marks

    def parameters(self, prepared: _Prepared) -> dict[str, Any]:
        predicate = prepared.scope.with_condition(self._condition)
        partition_by = json.dumps(list(prepared.snapshot.partition_columns))
        return {"mode": "Overwrite", "partitionBy": partition_by, "predicate": predicate}

    def metrics(self, prepared: _Prepared, found: Found, work: StagedWork) -> dict[str, int]:
        return overwrite_metrics(self._context, found, work)
