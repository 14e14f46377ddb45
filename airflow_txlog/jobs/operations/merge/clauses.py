"""The clauses of a MERGE, or the one of an UPDATE, numbered in the author's order; and those that need no evaluation.

For each pair of rows that ON matches, the first WHEN MATCHED clause whose condition is TRUE acts. For each source row
that matches nothing, the first WHEN NOT MATCHED clause. For each target row that no source row matches, the first WHEN
NOT MATCHED BY SOURCE clause. The number travels with the row.

A *plain* clause acts on all rows of its kind and takes columns of the source and constants. The tasks that read and
write the files write its rows, and no row goes through the JVM. The invariant: texts are read, never evaluated. A value
that is more than a column's name or a plain constant, or that differs from its column in type, is left to Spark.
Source: delta-spark, MergeIntoCommand; soundness A3, A4.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from airflow_txlog.contract.operations import AnyClause, InsertClause, Merge, UpdateClause
from airflow_txlog.datafiles.parquet.writing import SEGMENT_COLUMN
from airflow_txlog.datafiles.tasks.row_values import RowValues, SourceRows, only_values
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN, Task
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema.rules import read_rules
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, bins_by_segment
from airflow_txlog.jobs.files.stage import NewRows, TaskImages, TaskRows
from airflow_txlog.jobs.operations.merge.keys import PairColumns, key_columns, source_column
from airflow_txlog.jobs.rows.matches import SourceRowSet
from airflow_txlog.jobs.source.materialized import MaterializedSource, scan_of, unmatched_plan
from airflow_txlog.jobs.sql.columns import assigned_column
from airflow_txlog.jobs.sql.plain_values import plain_values
from airflow_txlog.sql.expression import Column, Expression, Values


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One clause, by its number in the author's list.

    `values`: SQL for each assigned column of the target, by the table's spelling, cast to its type; empty for a DELETE
    and for plain clauses.
    """

    number: int
    action: str
    condition: str | None
    values: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Clauses:
    """All clauses of one merge, checked."""

    matched: tuple[Clause, ...]
    not_matched: tuple[Clause, ...] = ()
    not_matched_by_source: tuple[Clause, ...] = ()

    @classmethod
    def of(cls, described: Sequence[AnyClause], values: Sequence[Mapping[str, str]] = ()) -> Clauses:
        """Return the author's clauses, with SQL for the values of each if it is given."""
        found: dict[str, list[Clause]] = {kind: [] for kind in ("matched", "not_matched", "not_matched_by_source")}
        for number, clause in enumerate(described):
            assigned = values[number] if values else {}
            found[clause.when].append(
                Clause(number=number, action=clause.then, condition=clause.condition, values=assigned)
            )
        return cls(**{kind: tuple(clauses) for kind, clauses in found.items()})

    @property
    def on_target(self) -> tuple[Clause, ...]:
        """The clauses that change or delete rows of the target."""
        return (*self.matched, *self.not_matched_by_source)

    @property
    def updates(self) -> tuple[Clause, ...]:
        return tuple(clause for clause in self.on_target if clause.action == "update")

    @property
    def tolerates_many_matches(self) -> bool:
        """Whether a row may match several source rows: no clause acts on matches, or only an unconditional DELETE."""
        return not self.matched or [(each.action, each.condition) for each in self.matched] == [("delete", None)]

    def conditions_on_target(self) -> list[str]:
        """Return the conditions that are evaluated on target rows."""
        return [clause.condition for clause in self.on_target if clause.condition is not None]

    def parameters(self) -> dict[str, str]:
        """Return the operationParameters, as delta-spark spells them."""
        return {
            "matchedPredicates": _described(self.matched),
            "notMatchedPredicates": _described(self.not_matched),
            "notMatchedBySourcePredicates": _described(self.not_matched_by_source),
        }


def _described(clauses: Sequence[Clause]) -> str:
    entries = [
        {**({} if clause.condition is None else {"predicate": clause.condition}), "actionType": clause.action}
        for clause in clauses
    ]
    return json.dumps(entries, ensure_ascii=False)


# --- plain clauses --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlainClauses:
    """The values that plain clauses assign: None if there is no such clause, or if only Spark can compute it."""

    updated: RowValues | None
    inserted: RowValues | None

    def are_all_of(self, clauses: Clauses) -> bool:
        """Return whether the tasks can write the values that each of these clauses assigns."""
        needed = ((self.updated, clauses.matched), (self.inserted, clauses.not_matched))
        return all(found is not None or all(clause.action == "delete" for clause in of) for found, of in needed)


def plain_clauses(context: JobContext, merge: Merge, snapshot: Snapshot, pair: PairColumns) -> PlainClauses | None:
    """Return the values that the clauses assign if all of them are plain and no rule of the table has to judge them."""
    found: dict[str, RowValues | None] = {"matched": None, "not_matched": None}
    kinds = [clause.when for clause in merge.clauses]
    if len(set(kinds)) < len(kinds) or not set(kinds) <= set(found):
        return None
    rules = read_rules(snapshot.metadata, pair.target, snapshot.uri)
    if rules.must_check or rules.fills or any(clause.condition is not None for clause in merge.clauses):
        return None
    for clause in merge.clauses:
        if clause.then != "delete":
            assigned = _assigned(context, clause, pair, may_lack=merge.schema_evolution)
            if assigned is None:
                return None
            found[clause.when] = assigned
    return PlainClauses(updated=found["matched"], inserted=found["not_matched"])


def fit_for_tasks(
    context: JobContext,
    plain: PlainClauses | None,
    merge: Merge,
    snapshot: Snapshot,
    pair: PairColumns,
    source: MaterializedSource,
) -> PlainClauses | None:
    """Return the plain clauses that the tasks may write, given the size of the source; None for no clause.

    Rows of a large source that may go to any partition are left to Spark, which groups the rows of a partition.
    """
    if plain is None:
        return None
    updated, inserted = plain.updated, plain.inserted
    held = {name for each in (updated, inserted) if each is not None for name in each.columns_read}
    if source.bytes_of(held) > context.limits.merge_source_bytes:
        return None
    if source.num_buckets > 1 and snapshot.partition_columns:
        partition = {name.lower() for name in snapshot.partition_columns}
        moved = {name for name in (updated.names if updated is not None else ()) if name.lower() in partition}
        if moved - set(key_columns(merge.on, pair) or ()):
            return None
        inserted = None
    return PlainClauses(updated=updated, inserted=inserted)


def _assigned(context: JobContext, clause: AnyClause, pair: PairColumns, *, may_lack: bool) -> RowValues | None:
    """Return the values that one clause assigns, in the table's order for `*` and otherwise in the author's.

    `may_lack`: `*` leaves out the columns that the source lacks.
    """
    assert isinstance(clause, UpdateClause | InsertClause)
    given = clause.set if isinstance(clause, UpdateClause) else clause.values
    columns: dict[str, str] = {}
    constants: dict[str, Expression] = {}
    if isinstance(given, str):
        for wanted in pair.target:
            held = pair.source.find(wanted.name)
            if held is not None:
                columns[wanted.name] = held.name
            elif not may_lack:
                return None
        given = {}
    for name, text in given.items():
        field = assigned_column(name, pair.target.by_name, pair.target_alias)
        if field is None or field.name in columns | constants or text.strip().upper() == "DEFAULT":
            return None
        column = field.name
        named = source_column(text, pair)
        if named is not None:
            columns[column] = named
            continue
        alias, is_ansi = pair.target_alias, context.is_ansi
        values = plain_values({column: text}, pair.target, context.parameters, alias=alias, is_ansi=is_ansi)
        constant = None if isinstance(values, str) else values.values[column]
        # A name alone may be a column of either side.
        if not isinstance(constant, Values):
            return None
        constants[column] = constant
    # A batch without columns has no rows.
    if not columns or not all(pair.is_of_one_type(name, held) for name, held in columns.items()):
        return None
    return RowValues(values={name: Column(held) for name, held in columns.items()} | constants)


def plain_images(context: JobContext, updated: FilePlan, source: MaterializedSource, assigned: RowValues) -> NewRows:
    """Return the new images of the rows at the plan's positions."""
    bins, _ = bins_by_segment(context, updated)
    rows = SourceRows(
        scan=scan_of(context, source, assigned.columns_read),
        values=assigned,
        num_rows=source.num_rows,
        size_bytes=source.bytes_of([*assigned.columns_read, ROW_ID_COLUMN]),
    )
    return TaskImages(values=rows, bins=bins)


def plain_inserts(
    context: JobContext,
    source: MaterializedSource,
    matched: SourceRowSet,
    assigned: RowValues,
    buckets: Collection[int],
) -> NewRows:
    """Return the new rows of the source rows that are not among `matched`; a bucket is the work of one task."""
    plan = unmatched_plan(context, source, assigned.columns_read, matched.parts, buckets)
    bins, _ = bins_by_segment(context, plan)
    scan = MaterializedScan(bins=bins, schema=plan.schema, with_segment=True)
    values = RowValues(values={**assigned.values, SEGMENT_COLUMN: Column(SEGMENT_COLUMN)})
    return TaskRows(Task(source=scan, steps=(partial(only_values, values),)))
