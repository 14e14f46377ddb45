"""DELETE: the rows of which the predicate is TRUE go; a row of which it is NULL stays.

Where the predicate speaks of partition columns only, whole files go without being read, as Spark says of their
partition values; else the files that hold a matching row are copied without it.
Source: delta-spark, DeleteCommand; soundness A9.
"""

from __future__ import annotations

from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.snapshot.files import live_row_counts
from airflow_txlog.errors import MatchNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.operations.delete.by_keys import DeleteByKeys
from airflow_txlog.jobs.resume.commit import Change, predicate_parameter
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.resume.rounds import Outcome
from airflow_txlog.jobs.rows.find import find_rows
from airflow_txlog.jobs.rows.matches import Verdicts
from airflow_txlog.jobs.rows.metrics import file_counts, file_metrics
from airflow_txlog.jobs.rows.operation import Found, Prepared, RowOperation, StagedWork
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.sql.gate import SqlGate, aliased, columns_named
from airflow_txlog.jobs.sql.partitions import Partitions
from airflow_txlog.jobs.sql.schemas import spark_table_schema
from airflow_txlog.jobs.sql.scope import (
    both,
    check_may_remove_rows,
    files_inside,
    known_sum,
    read_condition,
    read_scope,
)


def delete(context: JobContext) -> Outcome:
    """Run the job of `context.spec`; raises TxlogError."""
    return run_row_operation(context, _Delete if context.arguments["keys"] is None else DeleteByKeys)


class _Delete(RowOperation):
    writes_rows = False

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._gate = SqlGate(context)
        self._condition: str = context.arguments["predicate"] or "TRUE"

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> Prepared:
        """The predicate accepted; the files that it may touch, and those that it takes as a whole."""
        context, gate, condition = self._context, self._gate, self._condition
        with context.step("plan"):
            check_may_remove_rows(snapshot, "DELETE")
            used = gate.condition(condition, aliased(gate.shape(spark_table_schema(snapshot))))
            partitions = Partitions(context, gate, snapshot.delta_schema, snapshot.partition_columns)
            scope, scope_read = read_scope(context, gate, snapshot, partitions)
            gate.check_all_used()
            condition_read = read_condition(context, snapshot, condition, used)
            files = files_inside(partitions, scope, tx.read(both(condition_read, scope_read)))
            whole = files.slice(0, 0)
            named = columns_named(condition, snapshot.delta_schema)
            # A text without the name of a data column is worth the question.
            may_be = named is not None and named <= set(partitions.columns)
            if may_be and partitions.speaks_of_partitions_only(condition):
                files, whole = whole, files_inside(partitions, condition, files)
            return Prepared(
                snapshot=snapshot,
                partitions=partitions,
                scope=scope,
                candidates=files,
                whole=whole,
                condition=condition_read,
            )

    def find(self, prepared: Prepared, plan: FilePlan) -> Verdicts:
        """Every row of which the predicate is TRUE is deleted, by the only clause there is."""
        columns = columns_named(self._condition, prepared.snapshot.delta_schema)
        found = find_rows(self._context, self._gate, plan, self._condition, columns, read=prepared.condition)
        return Verdicts.of_clause(0, found)

    def check(self, prepared: Prepared, found: Found) -> None:
        """Raises MatchNotFound where a row must match and none does."""
        # A file whose rows are not counted may hold one; a file of which all are deleted already holds none.
        whole = sum(count is None or count > 0 for count in live_row_counts(prepared.whole))
        check_rows_matched(self._context, prepared, self._condition, found.removed.num_rows + whole)

    def change(self, prepared: Prepared, found: Found, work: StagedWork) -> Change:
        """The commit, as delta-spark has it."""
        context = self._context
        deleted = known_sum([*live_row_counts(prepared.whole), found.removed.num_rows])
        return Change(
            operation="DELETE",
            parameters={"predicate": predicate_parameter([told_condition(context, self._condition)])},
            staged=work.staged,
            removed=work.removed,
            # A delete that reads no file cannot always know how many rows went.
            metrics=file_metrics(context, work) | ({} if deleted is None else {"numDeletedRows": deleted}),
            files=file_counts(prepared, work),
        )


def check_rows_matched(context: JobContext, prepared: Prepared, condition: str, matched: int) -> None:
    """Raises MatchNotFound where `require_match` asks for a row of which the condition is true, and there is none."""
    if context.arguments["require_match"] and not matched:
        raise MatchNotFound(
            f"{context.root}: {told_condition(context, condition)!r} is true of no row at version "
            f"{prepared.snapshot.version}, and require_match asks for one. Nothing was changed. Look whether the "
            "parameters have the values that you expect.",
            table=context.root,
            matched=0,
        )


def told_condition(context: JobContext, condition: str) -> str:
    """The condition as the commit tells it: the scope belongs to it."""
    scope = context.arguments["partition_predicate"]
    return condition if scope is None else f"({scope}) AND ({condition})"
