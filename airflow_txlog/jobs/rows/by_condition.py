"""Operations on the rows of which one text is TRUE: DELETE, UPDATE, and an overwrite with `replace_where`.

Each accepts the text in its own way and says what becomes of the rows; how they are found is the same. The invariant:
a row is found exactly where Spark says TRUE of the author's own text. Of a plain text (`predicate.plain`) the engine
knows where that is; what it makes of any other only leaves out files and rows of which it cannot be true. Source:
soundness A2, A9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.predicate import Predicate, why_not_plain
from airflow_txlog.errors import MatchNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.rows.find import find_filtered, find_rows
from airflow_txlog.jobs.rows.matches import Matches
from airflow_txlog.jobs.rows.operation import Prepared, RowOperation
from airflow_txlog.jobs.sql.gate import ROWS_ALIAS, SqlGate, columns_named
from airflow_txlog.jobs.sql.scope import exact_filter_of, read_condition
from airflow_txlog.sql.expression import Expression

ONLY_CLAUSE = 0
"""The number of the clause that acts on every row that is found: there is no other."""


@dataclass(frozen=True, kw_only=True)
class PreparedByCondition(Prepared):
    """`condition` is how the engine reads the text."""

    condition: Predicate


C = TypeVar("C", bound=PreparedByCondition)


class ByCondition(RowOperation[C]):
    """What the three share. `prepare` must have had `condition` accepted before `find` is called."""

    def __init__(self, context: JobContext, gate: SqlGate, condition: str, alias: str = ROWS_ALIAS) -> None:
        """`alias` is what the text may call the table."""
        self._context = context
        self._gate = gate
        self._condition = condition
        self._alias = alias

    def _accepted(self, snapshot: Snapshot, in_spark: Callable[[], dict[str, Any]]) -> Predicate:
        """The condition as the engine reads it, once it is accepted: a plain one is, and any other `in_spark`.

        `in_spark` gives the parameters that the condition uses. Raises NeedsSpark.
        """
        plain = self._plain(snapshot)
        if isinstance(plain, str):
            why = f"the predicate is more than a plain condition: it has {plain}"
            used = self._context.executor.by_spark(why, in_spark)
            return read_condition(self._context, snapshot, self._condition, used)
        self._gate.check_clocks(self._condition, snapshot.delta_schema.names)
        self._gate.used |= set(self._gate.parameters_in(self._condition))
        return plain[0]

    def _plain(self, snapshot: Snapshot) -> tuple[Predicate, Expression] | str:
        """The condition as the engine reads it and the filter that exactly its rows pass, where it is plain.

        Else what in it is not plain.
        """
        condition, schema = self._condition, snapshot.delta_schema
        used = self._gate.parameters_in(condition)
        why = why_not_plain(condition, schema, used)
        if why is not None:
            return why
        read = read_condition(self._context, snapshot, condition, used)
        exact = exact_filter_of(read, schema.names)
        return "what the engine cannot evaluate" if exact is None else (read, exact)

    def find(self, prepared: C, plan: FilePlan) -> Matches:
        """Every row of which the condition is TRUE, with the only clause there is. Raises NeedsSpark."""
        context, gate, condition = self._context, self._gate, self._condition
        columns = columns_named(condition, prepared.snapshot.delta_schema)
        plain = self._plain(prepared.snapshot)
        if isinstance(plain, str):
            found = find_rows(context, gate, plan, condition, columns, self._alias, read=prepared.condition)
        else:
            found = find_filtered(context, plan, columns, plain[1])
        return Matches.of_clause(ONLY_CLAUSE, found)

    def _check_matched(self, prepared: C, matched: int, require_match: bool) -> None:
        """Raises MatchNotFound where `require_match` asks for a row of which the condition is true: there is none."""
        if require_match and not matched:
            root, condition = self._context.root, prepared.scope.with_condition(self._condition)
            raise MatchNotFound(
                f"{root}: {condition!r} is true of no row at version {prepared.snapshot.version}, and require_match "
                "asks for one. Nothing was changed. Look whether the parameters have the values that you expect.",
                table=root,
                matched=0,
            )
