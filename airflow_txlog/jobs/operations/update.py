"""UPDATE: rows for which the predicate is TRUE get new values in the assigned columns.

Those rows leave their files, which are copied without them, and their new images become new files. Every expression
sees the row as it was. Tasks compute plain values (`sql/plain_values`), Spark all others. Source: delta-spark,
UpdateCommand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Update
from airflow_txlog.datafiles.tasks.row_values import NewImages, RowValues
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.schema.rules import read_rules
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, bins_by_segment
from airflow_txlog.jobs.files.stage import NewRows, TaskImages
from airflow_txlog.jobs.resume.attempts import check_may_remove_rows
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.by_condition import ONLY_CLAUSE, ByCondition, PreparedByCondition
from airflow_txlog.jobs.rows.operation import Found, StagedWork, file_metrics
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.sql.expectations import why_spark_judges
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.plain_checks import rules_of_spark
from airflow_txlog.jobs.sql.plain_values import plain_values
from airflow_txlog.jobs.sql.scope import partition_scope

if TYPE_CHECKING:
    from airflow_txlog.jobs.operations.merge.by_spark import JudgedUpdate


def update(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    return run_row_operation(context, _Update)


@dataclass(frozen=True, kw_only=True)
class _Prepared(PreparedByCondition):
    """`computed` returns the new images of the rows at a plan's positions; its texts are accepted."""

    computed: Callable[[FilePlan], NewRows]


class _Update(ByCondition[_Prepared]):
    name = "UPDATE"
    joins_files = True

    def __init__(self, context: JobContext) -> None:
        update = context.record(Update)
        super().__init__(context, SqlGate(context), update.predicate or "TRUE", update.target_alias)

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> _Prepared:
        """Accept predicate and values; return the files that may hold a row to update."""
        context, gate, condition = self._context, self._gate, self._condition
        with context.step("plan"):
            check_may_remove_rows(snapshot, "UPDATE")
            judged = functools.cache(functools.partial(self._judged, snapshot))
            condition_read = self._accepted(snapshot, lambda: judged().accept_condition(condition))
            computed = self._computed(snapshot, judged)
            scope = partition_scope(context, gate, snapshot)
            gate.check_all_used()
            files = scope.read_files(tx, condition_read)
            return _Prepared(
                snapshot=snapshot,
                scope=scope,
                candidates=files,
                updates=frozenset({ONLY_CLAUSE}),
                condition=condition_read,
                computed=computed,
            )

    def _computed(self, snapshot: Snapshot, judged: Callable[[], JudgedUpdate]) -> Callable[[FilePlan], NewRows]:
        """Return a function that computes the new values: tasks if the texts are plain and no rule judges new rows."""
        context, gate, update = self._context, self._gate, self._context.record(Update)
        found: RowValues | str = "rules of the table"
        rules = read_rules(snapshot.metadata, snapshot.delta_schema, snapshot.uri)
        why_judged = why_spark_judges(context, snapshot.delta_schema)
        if why_judged is None and not rules_of_spark(context, snapshot.delta_schema, rules).has_texts:
            used = {name: value for text in update.set.values() for name, value in gate.parameters_in(text).items()}
            is_ansi = context.is_ansi
            found = plain_values(
                update.set,
                snapshot.delta_schema,
                used,
                alias=update.target_alias,
                is_ansi=is_ansi,
                may_fail=not context.leaves_values_to_spark,
                time_zone=context.spec.time_zone,
            )
            if isinstance(found, RowValues):
                rules.check_update(found.values, context.root)
                for text in update.set.values():
                    gate.check_clocks(text, snapshot.delta_schema.names)
                gate.used |= set(used)
                return functools.partial(_assigned_by_tasks, context, found)
        why = why_judged or f"the new values are more than plain ones: they have {found}"
        return context.executor.by_spark(why, lambda: judged().computed(snapshot.delta_schema, update.set, ONLY_CLAUSE))

    def check(self, prepared: _Prepared, found: Found) -> None:
        """Raise MatchNotFound if a row must match and none does."""
        self._check_matched(prepared, found.updated.num_rows, self._context.record(Update).require_match)

    def images(self, prepared: _Prepared, updated: FilePlan) -> NewRows:
        return prepared.computed(updated)

    def metrics(self, prepared: _Prepared, found: Found, work: StagedWork) -> dict[str, int]:
        return file_metrics(self._context, work) | {"numUpdatedRows": found.updated.num_rows}

    def _judged(self, snapshot: Snapshot) -> JudgedUpdate:
        from airflow_txlog.jobs.operations.merge.by_spark import judge_update  # noqa: PLC0415 - only with Spark

        return judge_update(self._context, self._gate, snapshot, self._alias)


def _assigned_by_tasks(context: JobContext, values: RowValues, updated: FilePlan) -> NewRows:
    bins, _ = bins_by_segment(context, updated)
    return TaskImages(values=NewImages(clauses={ONLY_CLAUSE: values}), bins=bins)
