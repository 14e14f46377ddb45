"""The rows of a write that are materialized first: those that the table numbers, and those of a source that the job
deduplicates. They are numbered again after a lost race.

Another writer that commits first may have handed out the same values of an identity column. Then the staged files are
dropped and written again from the materialized rows: the source is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.schema.rules import RowRules, read_rules
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.resume.memory import ROWS, Memory, Segment
from airflow_txlog.jobs.source.folded import deduplicated, first_row_wanted
from airflow_txlog.jobs.source.handed_out import NOT_NUMBERED, HandedOut, Numbering, marks_after, still_handed_out
from airflow_txlog.jobs.source.materialized import MaterializedSource, read_again, saved_source
from airflow_txlog.jobs.sql.expectations import why_spark_judges
from airflow_txlog.jobs.sql.gate import SqlGate

if TYPE_CHECKING:
    from airflow_txlog.jobs.executor.base import AcceptedRules, FoundSource


class NumberedRows:
    """The rows of one job's source, for all of its attempts. Used by one thread."""

    def __init__(self, context: JobContext, gate: SqlGate) -> None:
        self._context = context
        self._gate = gate
        self._written: MaterializedSource | None = None
        self._numbering = Numbering(context)

    def written_before(self, snapshot: Snapshot) -> MaterializedSource | None:
        """Return the rows that an earlier attempt or try has materialized, if this one would materialize them too."""
        context = self._context
        saved = saved_source(context)
        if saved is None:
            return None
        names = [field["name"] for field in saved.schema["fields"]]
        if saved.num_duplicates is None and not _rules_of(snapshot).lacking(names, context.root):
            return None
        if self._written is None:
            self._gate.used.update(saved.parameters)
            self._written = read_again(context, saved, context.executor.stored_columns(saved.schema))
        return self._written

    def of(
        self, rules: AcceptedRules, source: FoundSource | MaterializedSource, inside: str | None
    ) -> tuple[MaterializedSource, HandedOut] | None:
        """Return the rows, materialized, and their values of identity columns; None if they are written as they come.

        `inside`: a condition that each row must satisfy. Raises NeedsSpark before a row is read, and
        ConstraintViolation for a column whose values only the table may choose.
        """
        context = self._context
        identities = rules.table.lacking(source.columns.names, context.root)
        if not identities and first_row_wanted(context, source.columns) is None:
            return None
        if isinstance(source, MaterializedSource):
            written = source
        else:
            source.foresee(rules, identities, inside)
            context.executor.foresee(lambda: why_spark_judges(context, source.columns, source=True))
            with context.step("materialize"):
                written = source.materialize(self._gate.used)
        self._written = deduplicated(context, written)
        return self._written, self._numbering.hand_out(identities, self._written)


def keep_numbered(memory: Memory, snapshot: Snapshot) -> bool:
    """Drop staged rows whose values of identity columns are no longer the next ones; return whether there are none."""
    staged = [segment for segment in memory.segments if segment.kind == ROWS]
    if all(segment.fingerprint == NOT_NUMBERED for segment in staged):
        return True
    identities = _rules_of(snapshot).identities
    hold = {each.fingerprint for each in staged if still_handed_out(each.fingerprint, identities)}
    return len(memory.keep(ROWS, (), hold)) == len(staged)


def move_marks(tx: Transaction, rules: RowRules, segments: Sequence[Segment]) -> None:
    """Move the marks of the identity columns past the values of the staged rows."""
    for segment in segments:
        # Rows that an expectation dropped have got values too.
        num_rows = segment.num_records + segment.judged.num_dropped
        marks = marks_after(segment.fingerprint, num_rows, rules.identities)
        if marks:
            tx.move_marks(marks)


def _rules_of(snapshot: Snapshot) -> RowRules:
    return read_rules(snapshot.metadata, snapshot.delta_schema, snapshot.uri)
