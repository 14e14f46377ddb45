"""UPDATE: the rows of which the predicate is TRUE get new values in the assigned columns.

Those rows leave their files, which are copied without them, and their new images become new files. Every expression
sees the row as it was. Source: delta-spark, UpdateCommand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from airflow_txlog.contract import JobResult
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.files.stage import ComputedColumns
from airflow_txlog.jobs.operations.merge.clauses import Clause, Clauses, Sides, assigned_values
from airflow_txlog.jobs.operations.merge.images import updated_columns
from airflow_txlog.jobs.resume.commit import predicate_parameter
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.by_condition import ONLY_CLAUSE, ByCondition, PreparedByCondition
from airflow_txlog.jobs.rows.metrics import file_metrics
from airflow_txlog.jobs.rows.operation import Found, StagedWork
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.schemas import without_metadata
from airflow_txlog.jobs.sql.scope import check_may_remove_rows, partition_scope, read_condition
from airflow_txlog.jobs.sql.table_rules import accepted_rules
from airflow_txlog.records import Update


def update(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    return run_row_operation(context, _Update)


@dataclass(frozen=True, kw_only=True)
class _Prepared(PreparedByCondition):
    sides: Sides
    clauses: Clauses


class _Update(ByCondition[_Prepared]):
    name = "UPDATE"

    def __init__(self, context: JobContext) -> None:
        update = context.record(Update)
        super().__init__(context, SqlGate(context), update.predicate or "TRUE", update.target_alias)

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> _Prepared:
        """Predicate and values accepted; the files that may hold a row to update."""
        context, gate, condition = self._context, self._gate, self._condition
        with context.step("plan"):
            check_may_remove_rows(snapshot, "UPDATE")
            sides = _sides(context, gate, snapshot)
            used = gate.condition(condition, sides.target_alone)
            values = assigned_values(gate, sides, sides.target_alone, context.record(Update).set, is_insert=False)
            clause = Clause(number=ONLY_CLAUSE, action="update", condition=None, values=values)
            scope = partition_scope(context, gate, snapshot)
            gate.check_all_used()
            condition_read = read_condition(context, snapshot, condition, used)
            files = scope.read_files(tx, condition_read)
            return _Prepared(
                snapshot=snapshot,
                scope=scope,
                candidates=files,
                whole=files.slice(0, 0),
                updates=frozenset({ONLY_CLAUSE}),
                condition=condition_read,
                sides=sides,
                clauses=Clauses(matched=(clause,), not_matched=()),
            )

    def check(self, prepared: _Prepared, found: Found) -> None:
        """Raises MatchNotFound where a row must match and none does."""
        self._check_matched(prepared, found.updated.num_rows, self._context.record(Update).require_match)

    def images(self, prepared: _Prepared, updated: FilePlan) -> ComputedColumns:
        """The rows' new values."""
        schema = prepared.snapshot.delta_schema
        return updated_columns(self._context, self._gate, updated, schema, prepared.sides, prepared.clauses)

    def parameters(self, prepared: _Prepared) -> dict[str, Any]:
        return {"predicate": predicate_parameter([prepared.scope.with_condition(self._condition)])}

    def metrics(self, prepared: _Prepared, found: Found, work: StagedWork) -> dict[str, int]:
        return file_metrics(self._context, work) | {"numUpdatedRows": found.updated.num_rows}


def _sides(context: JobContext, gate: SqlGate, snapshot: Snapshot) -> Sides:
    rules = accepted_rules(context, snapshot.metadata)
    target = rules.spark_schema
    return Sides(
        target=target,
        source=StructType([]),
        target_alias=context.record(Update).target_alias,
        source_alias="",
        target_shape=gate.shape(without_metadata(target, nullable=True)),
        source_shape="",
        ansi=context.is_ansi,
        table_uri=context.root,
        rules=rules,
    )
