"""UPDATE: the rows of which the predicate is TRUE get new values in the assigned columns.

Those rows leave their files, which are copied without them, and their new images become new files. Every expression
sees the row as it was. Source: delta-spark, UpdateCommand.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StructType

from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.files.stage import ComputedColumns
from airflow_txlog.jobs.operations.delete.job import check_rows_matched, told_condition
from airflow_txlog.jobs.operations.merge.clauses import Clause, Clauses, Sides, assigned_values
from airflow_txlog.jobs.operations.merge.images import updated_columns
from airflow_txlog.jobs.resume.commit import Change, predicate_parameter
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.resume.rounds import Outcome
from airflow_txlog.jobs.rows.find import find_rows
from airflow_txlog.jobs.rows.matches import Verdicts
from airflow_txlog.jobs.rows.metrics import file_counts, file_metrics
from airflow_txlog.jobs.rows.operation import Found, Prepared, RowOperation, StagedWork
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.sql.gate import SqlGate, columns_named
from airflow_txlog.jobs.sql.partitions import Partitions
from airflow_txlog.jobs.sql.schemas import is_ansi, without_metadata
from airflow_txlog.jobs.sql.scope import both, check_may_remove_rows, files_inside, read_condition, read_scope
from airflow_txlog.jobs.sql.table_rules import accepted_rules

_CLAUSE = 0


def update(context: JobContext) -> Outcome:
    """Run the job of `context.spec`; raises TxlogError."""
    return run_row_operation(context, _Update)


@dataclass(frozen=True, kw_only=True)
class _Prepared(Prepared):
    sides: Sides
    clauses: Clauses


class _Update(RowOperation):
    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._gate = SqlGate(context)
        self._condition: str = context.arguments["predicate"] or "TRUE"

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> _Prepared:
        """Predicate and values accepted; the files that may hold a row to update."""
        context, gate, condition = self._context, self._gate, self._condition
        with context.step("plan"):
            check_may_remove_rows(snapshot, "UPDATE")
            sides = _sides(context, gate, snapshot)
            used = gate.condition(condition, sides.target_alone)
            values = assigned_values(gate, sides, sides.target_alone, context.arguments["set"], is_insert=False)
            clause = Clause(number=_CLAUSE, action="update", condition=None, values=values)
            partitions = Partitions(context, gate, snapshot.delta_schema, snapshot.partition_columns)
            scope, scope_read = read_scope(context, gate, snapshot, partitions)
            gate.check_all_used()
            condition_read = read_condition(context, snapshot, condition, used)
            files = tx.read(both(condition_read, scope_read))
            return _Prepared(
                snapshot=snapshot,
                partitions=partitions,
                scope=scope,
                candidates=files_inside(partitions, scope, files),
                whole=files.slice(0, 0),
                updates=frozenset({_CLAUSE}),
                condition=condition_read,
                sides=sides,
                clauses=Clauses(matched=(clause,), not_matched=()),
            )

    def find(self, prepared: Prepared, plan: FilePlan) -> Verdicts:
        """Every row of which the predicate is TRUE is updated, by the only clause there is."""
        columns = columns_named(self._condition, prepared.snapshot.delta_schema)
        alias = self._context.arguments["target_alias"]
        found = find_rows(self._context, self._gate, plan, self._condition, columns, alias, prepared.condition)
        return Verdicts.of_clause(_CLAUSE, found)

    def check(self, prepared: Prepared, found: Found) -> None:
        """Raises MatchNotFound where a row must match and none does."""
        check_rows_matched(self._context, prepared, self._condition, found.updated.num_rows)

    def images(self, prepared: Prepared, updated: FilePlan) -> ComputedColumns:
        """The rows' new values."""
        assert isinstance(prepared, _Prepared)
        schema = prepared.snapshot.delta_schema
        return updated_columns(self._context, self._gate, updated, schema, prepared.sides, prepared.clauses)

    def change(self, prepared: Prepared, found: Found, work: StagedWork) -> Change:
        """The commit, as delta-spark has it."""
        context = self._context
        return Change(
            operation="UPDATE",
            parameters={"predicate": predicate_parameter([told_condition(context, self._condition)])},
            staged=work.staged,
            removed=work.removed,
            metrics=file_metrics(context, work) | {"numUpdatedRows": found.updated.num_rows},
            files=file_counts(prepared, work),
        )


def _sides(context: JobContext, gate: SqlGate, snapshot: Snapshot) -> Sides:
    rules = accepted_rules(context, snapshot.metadata)
    target = rules.spark_schema
    return Sides(
        target=target,
        source=StructType([]),
        target_alias=context.arguments["target_alias"],
        source_alias="",
        target_shape=gate.shape(without_metadata(target, nullable=True)),
        source_shape="",
        ansi=is_ansi(context.spark),
        table_uri=context.root,
        rules=rules,
    )
