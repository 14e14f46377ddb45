"""The clauses of a MERGE, or the one of an UPDATE, numbered in the author's order; and those that need no evaluation.

For each pair of rows that ON matches, the first WHEN MATCHED clause whose condition is TRUE acts. For each source row
that matches nothing, the first WHEN NOT MATCHED clause. For each target row that no source row matches, the first WHEN
NOT MATCHED BY SOURCE clause. The number travels with the row.

A clause is *plain* if its condition and its values are (`jobs/sql/plain_values`), over columns of both sides. Tasks
that read and write the files evaluate it, and no row goes through the JVM. The invariant: a part that is not
certain to be Spark's, such as a value that differs from its column in type, is left to Spark.
Source: delta-spark, MergeIntoCommand; soundness A3, A4.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from airflow_txlog.contract.operations import AnyClause, InsertClause, Merge, UpdateClause
from airflow_txlog.datafiles.tasks.key_rows import Acting
from airflow_txlog.datafiles.tasks.row_values import (
    ActingClauses,
    NewImages,
    RowValues,
    SourceRows,
    inserted_rows,
    of_source,
)
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN, Task
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.predicate.binding import ColumnBinder, NotPlain, columns_in, plain_expression
from airflow_txlog.engine.table.schema.rules import RowRules, read_rules
from airflow_txlog.engine.table.schema.schema import arrow_type
from airflow_txlog.engine.table.schema.types import StructField, StructType
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, bins_by_segment
from airflow_txlog.jobs.files.stage import NewRows, TaskImages, TaskRows
from airflow_txlog.jobs.operations.merge.keys import PairColumns, key_columns, source_column
from airflow_txlog.jobs.rows.matches import SourceRowSet
from airflow_txlog.jobs.source.handed_out import HandedOut, beside_source
from airflow_txlog.jobs.source.materialized import MaterializedSource, scan_of, unmatched_plan
from airflow_txlog.jobs.sql.columns import assigned_column, shown_type
from airflow_txlog.jobs.sql.expectations import why_spark_judges
from airflow_txlog.jobs.sql.plain_checks import rules_of_spark
from airflow_txlog.jobs.sql.plain_values import plain_value
from airflow_txlog.sql.expression import Column, Expression, Values, columns_of


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
    """The parts of the clauses that tasks compute; None for a part that only Spark computes.

    `acting` has the clauses on rows of the table, `updates` the values of those that update, `inserting` the clauses
    that insert, and `inserts` their values. `why_not` is the first reason why some part is left to Spark.
    """

    acting: Acting | None
    updates: Mapping[int, RowValues] | None
    inserting: ActingClauses
    inserts: Mapping[int, RowValues] | None
    why_not: str | None = None


def plain_clauses(context: JobContext, merge: Merge, snapshot: Snapshot, pair: PairColumns) -> PlainClauses:
    """Return the parts that tasks compute, whatever the size of the source."""
    rules = read_rules(snapshot.metadata, pair.target, snapshot.uri)
    reader = _Reader(context, pair, rules, may_lack=merge.schema_evolution)
    of_spark = rules_of_spark(context, pair.target, rules)
    why_rules = "the table has rules for new rows" if of_spark.has_texts or rules.defaults else None
    why_rules = why_rules or why_spark_judges(context, pair.target)
    needed = {field.name for field in pair.target if not field.nullable}
    conditions: dict[str, dict[int, Expression | None]] = {
        "matched": {},
        "not_matched": {},
        "not_matched_by_source": {},
    }
    values: dict[str, dict[int, RowValues]] = {"update": {}, "insert": {}, "delete": {}}
    problems: dict[str, list[str]] = {"acting": [], "update": [], "insert": [], "delete": []}
    for number, clause in enumerate(merge.clauses):
        try:
            conditions[clause.when][number] = reader.condition(clause)
        except NotPlain as found:
            problems["insert" if clause.when == "not_matched" else "acting"].append(f"a condition has {found.args[0]}")
        try:
            if clause.then != "delete":
                values[clause.then][number] = reader.values(clause)
        except NotPlain as found:
            problems[clause.then].append(f"a value has {found.args[0]}")
        if why_rules is not None:
            problems[clause.then].append(why_rules)
    if any(needed.difference(each.values) for each in values["insert"].values()):
        problems["insert"].append("a new row has no value for a column that is NOT NULL")
    acting = Acting(
        matched=ActingClauses(conditions=conditions["matched"]),
        unmatched=ActingClauses(conditions=conditions["not_matched_by_source"]),
    )
    return PlainClauses(
        acting=None if problems["acting"] else acting,
        updates=None if problems["update"] else values["update"],
        inserting=ActingClauses(conditions=conditions["not_matched"]),
        inserts=None if problems["insert"] else _of_same_columns(values["insert"], pair),
        why_not=next((problem for kind in ("acting", "update", "insert") for problem in problems[kind]), None),
    )


def _of_same_columns(inserts: Mapping[int, RowValues], pair: PairColumns) -> Mapping[int, RowValues]:
    """Return the values with NULL for each column that another clause assigns: a task writes rows of one schema."""
    assigned = {name for values in inserts.values() for name in values.values}
    nulls = {field.name: Values(pa.nulls(1, arrow_type(field.type))) for field in pair.target if field.name in assigned}
    return {number: RowValues(values={**nulls, **each.values}) for number, each in inserts.items()}


def fit_for_tasks(
    context: JobContext,
    plain: PlainClauses,
    merge: Merge,
    snapshot: Snapshot,
    pair: PairColumns,
    source: MaterializedSource,
) -> PlainClauses:
    """Return the plain clauses without those whose rows the tasks may not write, given the size of the source.

    Rows of a large source that may go to any partition are left to Spark, which groups the rows of a partition.
    """
    updates, inserts = plain.updates or {}, plain.inserts or {}
    held = _source_columns(source, plain.inserting, *updates.values(), *inserts.values())
    if source.bytes_of(held) > context.limits.merge_source_bytes or not len(source.stored):
        return replace(plain, updates=None, inserts=None)
    if source.num_buckets == 1 or not snapshot.partition_columns:
        return plain
    partition = {name.lower() for name in snapshot.partition_columns}
    moved = {name for values in updates.values() for name in values.values if name.lower() in partition}
    if moved - set(key_columns(context, merge, pair)):
        plain = replace(plain, updates=None)
    return replace(plain, inserts=None if inserts else plain.inserts)


def _source_columns(source: MaterializedSource, *readers: RowValues | ActingClauses) -> list[str]:
    """Return the columns of the source that some of the values and conditions read."""
    read = frozenset[str]().union(*(each.columns_read for each in readers))
    return [name for name in source.names if of_source(name) in read]


@dataclass(frozen=True)
class _Reader:
    """Reads the texts of clauses. `may_lack`: `*` leaves out the columns that the source lacks."""

    context: JobContext
    pair: PairColumns
    rules: RowRules
    may_lack: bool

    def condition(self, clause: AnyClause) -> Expression | None:
        """Return the condition over `pair.rows`. Raises NotPlain."""
        if clause.condition is None:
            return None
        tree = self.pair.resolved(plain_expression(clause.condition), clause.when)
        bound, rows = self._binder(clause.when).condition(tree), self.pair.rows(clause.when)
        named = [rows.by_name[name.lower()] for name in columns_of(bound)]
        if any(isinstance(field.type, StructType) for field in named):
            # Arrow joins no rows with structs.
            raise NotPlain("a member of a struct")
        return bound

    def _binder(self, when: str) -> ColumnBinder:
        may_fail = not self.context.leaves_values_to_spark
        zone = self.context.spec.time_zone
        return ColumnBinder(columns_in(self.pair.rows(when)), self.context.parameters, may_fail, zone)

    def values(self, clause: AnyClause) -> RowValues:
        """Return the values over `pair.rows`, and those of identity columns that the clause leaves to the table.

        Raises NotPlain; ConstraintViolation and UnsupportedFeature for an identity column that it may not assign.
        """
        assert isinstance(clause, UpdateClause | InsertClause)
        found, uri = self._assigned(clause), self.context.root
        if isinstance(clause, UpdateClause):
            self.rules.check_update(found, uri)
            return RowValues(values=found)
        lacking = self.rules.lacking(found, uri)
        if len(lacking) < len(self.rules.identities):
            raise NotPlain("an identity column, in which no row may be NULL")
        return RowValues(values=found | {each.name: Column(beside_source(each.name)) for each in lacking})

    def _assigned(self, clause: UpdateClause | InsertClause) -> dict[str, Expression]:
        given, pair = clause.set if isinstance(clause, UpdateClause) else clause.values, self.pair
        if isinstance(given, str):
            return self._every_column()
        values: dict[str, Expression] = {}
        for name, text in given.items():
            field = assigned_column(name, pair.target.by_name, pair.target_alias)
            if field is None or field.name in values or text.strip().upper() == "DEFAULT":
                raise NotPlain(f"the assigned column {name}")
            values[field.name] = self._value(text, field, clause.when)
        return values

    def _every_column(self) -> dict[str, Expression]:
        values: dict[str, Expression] = {}
        for wanted in self.pair.target:
            held = self.pair.source.find(wanted.name)
            if held is not None:
                values[wanted.name] = self._of_source(wanted, held.name)
            elif not self.may_lack and wanted.name not in self.rules.identities:
                raise NotPlain(f"a column {wanted.name} that the source lacks")
        return values

    def _value(self, text: str, field: StructField, when: str) -> Expression:
        pair, context = self.pair, self.context
        named = source_column(text, pair) if when != "not_matched_by_source" else None
        if named is not None:
            return self._of_source(field, named)
        tree = pair.resolved(plain_expression(text), when)
        return plain_value(tree, field, self._binder(when), is_ansi=context.is_ansi)

    def _of_source(self, field: StructField, name: str) -> Column:
        if not self.pair.is_of_one_type(field.name, name):
            given = shown_type(self.pair.source.by_name[name.lower()].type)
            wanted = shown_type(field.type)
            raise NotPlain(f"the source's column {name} ({given}) for the table's column {field.name} ({wanted})")
        return Column(of_source(name))


def plain_images(
    context: JobContext, updated: FilePlan, source: MaterializedSource, clauses: Mapping[int, RowValues]
) -> NewRows:
    """Return the new images of the rows at the plan's positions."""
    bins, _ = bins_by_segment(context, updated)
    read = _source_columns(source, *clauses.values())
    rows = SourceRows(
        scan=scan_of(context, source, read),
        num_rows=source.num_rows,
        size_bytes=source.bytes_of([*read, ROW_ID_COLUMN]),
    )
    return TaskImages(values=NewImages(clauses=clauses, source=rows if read else None), bins=bins)


def plain_inserts(
    context: JobContext,
    source: MaterializedSource,
    matched: SourceRowSet,
    plain: PlainClauses,
    buckets: Collection[int],
    handed: HandedOut | None,
) -> NewRows:
    """Return the new rows of the source rows that are not among `matched`; a bucket is the work of one task."""
    assert plain.inserts is not None
    # A batch without columns has no rows.
    read = _source_columns(source, plain.inserting, *plain.inserts.values()) or source.stored.names[:1]
    plan = unmatched_plan(context, source, read, matched.parts, buckets)
    bins, _ = bins_by_segment(context, plan)
    identities = None if handed is None else handed.values(beside_source)
    scan = MaterializedScan(
        bins=bins, schema=plan.schema, with_segment=True, identities=identities, written=context.written_rows
    )
    return TaskRows(Task(source=scan, steps=(partial(inserted_rows, plain.inserting, plain.inserts),)))
