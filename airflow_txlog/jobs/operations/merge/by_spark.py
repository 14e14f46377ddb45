"""Spark's part of a merge, and of an UPDATE: it judges the texts, joins both sides, and computes new rows.

One join yields all pairs that ON matches, also those on which no clause acts, because they decide about ambiguity and
inserts. Images are computed from the positions and clauses of the pairs, never by ON again; a file of the
target is opened for them only if a column of it is needed. The invariant: a frame of new rows has exactly the target's
columns and types, the segment of each row, and the rule that it breaks if it can break one. It is evaluated once, by
the stage that writes it. Source: delta-spark, MergeIntoCommand; docs/decisions/positions-not-rows.md; soundness A1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from airflow_txlog.contract.operations import Merge
from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN
from airflow_txlog.datafiles.row_ids import KEPT_ID_COLUMN, RowIds
from airflow_txlog.datafiles.tasks.found_rows import PAIRS_SCHEMA, pairs_packed
from airflow_txlog.datafiles.tasks.plans import Bins
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN, FileScan
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema import types as delta
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import FrameImages, FrameRows, few_held, scan_frame, scan_frame_with_ids, through
from airflow_txlog.jobs.files.scan import FilePlan, addressed_scan, bins_by_segment, bins_for
from airflow_txlog.jobs.files.stage import NewRows
from airflow_txlog.jobs.operations.merge.clause_sql import (
    Sides,
    assigned_values,
    check_clauses,
    clause_of_row,
    columns_for_images,
    deciding_sql,
    generated_by,
    image_sql,
)
from airflow_txlog.jobs.operations.merge.clauses import Clause, Clauses
from airflow_txlog.jobs.operations.merge.keys import MATCHING, PairColumns, join_hint, key_filter, source_column
from airflow_txlog.jobs.rows.matches import Matches, SourceRowSet
from airflow_txlog.jobs.source.frames import frame_of, schema_of, unmatched_rows
from airflow_txlog.jobs.source.handed_out import HandedOut, beside_source
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.columns import SchemaJson, columns_named
from airflow_txlog.jobs.sql.gate import SqlGate, quoted
from airflow_txlog.jobs.sql.schemas import as_column_type, engine_type, without_metadata
from airflow_txlog.jobs.sql.table_rules import accepted_rules
from airflow_txlog.sql.expression import Expression, all_of, columns_of


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """Texts that Spark has accepted, over these sides."""

    context: JobContext
    gate: SqlGate
    sides: Sides

    def view(self, rows: DataFrame, alias: str) -> str:
        """Return a FROM clause of the rows."""
        view = self.context.view_name()
        rows.createOrReplaceTempView(view)
        return f"{quoted(view)} AS {quoted(alias)}"

    def computed_images(
        self,
        updated: FilePlan,
        schema: delta.StructType,
        clauses: Sequence[Clause],
        hint: str = "",
        join: str = "",
    ) -> FrameImages:
        """Return the columns that the clauses, or the table's rules, change in the rows at the plan's positions.

        Columns that no clause and no rule reads never leave Arrow. `join`: SQL that adds the source row that each row
        met, and keeps their order.
        """
        rules, t = self.sides.rules, quoted(self.sides.target_alias)
        assigned = frozenset[str]().union(*(clause.values for clause in clauses))
        computed = frozenset([*assigned, *generated_by(self.sides, clauses), *rules.table.lengths])
        names = computed | rules.enforced_columns
        needed = columns_for_images(clauses, schema, self.sides.source_alias, names)
        bins, first_files = bins_by_segment(self.context, updated)
        are_many = len(clauses) > 1
        number = clause_of_row(self.sides.target_alias) if are_many else str(clauses[0].number)
        columns = image_sql(self.sides, clauses, number, is_update=True, names=names)
        columns += [f"{t}.{ADDRESS_COLUMN}", f"{number} AS {CLAUSE_COLUMN}"]

        def computed_of(rows: DataFrame) -> DataFrame:
            target = self.view(rows, self.sides.target_alias)
            frame = self.gate.run(f"SELECT {hint} {', '.join(columns)} FROM {target} {join}")
            rows = self.as_rows_of_table(frame, clauses, are_inserts=False)
            return rows.select(*(rows[quoted(name)] for name in rows.schema.names if name not in names - computed))

        scan = _scan_of_updated(updated, needed, bins, with_address=True, with_row_id=bool(join), with_clause=are_many)
        return FrameImages(scan=scan, computed=computed_of, first_files=first_files, num_rows=updated.num_positions)

    def as_rows_of_table(self, frame: DataFrame, clauses: Sequence[Clause], *, are_inserts: bool) -> DataFrame:
        """Return the new rows typed, with generated columns that their clause leaves out, and the rules enforced.

        `frame` has columns of the table, CLAUSE_COLUMN, which goes, and columns of this package that stay.
        """
        rules = self.sides.rules
        lacking = {
            name: None if len(numbers) == len(clauses) else F.col(CLAUSE_COLUMN).isin(sorted(numbers))
            for name, numbers in generated_by(self.sides, clauses).items()
        }
        rows = rules.with_generated(self.typed(frame), lacking).drop(CLAUSE_COLUMN)
        return rules.enforce(rows, are_inserts=are_inserts)

    def typed(self, rows: DataFrame) -> DataFrame:
        """Return the rows with a type for columns that are only NULL: a union or a shuffle requires a type.

        Columns that are not the table's stay.
        """
        types = {field.name: field.dataType for field in self.sides.target}
        return rows.select(
            *(
                as_column_type(rows[quoted(field.name)], field.dataType, types[field.name]).alias(field.name)
                if field.name in types
                else rows[quoted(field.name)]
                for field in rows.schema
            )
        )


@dataclass(frozen=True, kw_only=True)
class JudgedUpdate(_Judged):
    """An UPDATE of a table whose rules Spark has accepted; its only side is the target."""

    def accept_condition(self, text: str) -> dict[str, Any]:
        """Return the parameters that the condition uses. Raises as `SqlGate.condition` does."""
        return self.gate.condition(text, self.sides.target_alone)

    def computed(
        self, schema: delta.StructType, assigned: Mapping[str, str], number: int
    ) -> Callable[[FilePlan], NewRows]:
        """Accept the values of the clause of this number; return a function that computes them in planned rows."""
        values = assigned_values(self.gate, self.sides, self.sides.target_alone, dict(assigned), is_insert=False)
        clause = Clause(number=number, action="update", condition=None, values=values)
        return lambda updated: self.computed_images(updated, schema, [clause])


@dataclass(frozen=True, kw_only=True)
class JudgedMerge(_Judged):
    """A merge whose texts Spark has accepted: the clauses have SQL for their values."""

    on: str
    source: MaterializedSource
    clauses: Clauses

    def type_in_source(self, text: str) -> delta.StructField | None:
        """Return the type of an expression over one source row. Raises InvalidPredicate."""
        return engine_type(self.gate.value(text, self.sides.source_alone))

    def source_rows(self, names: Collection[str] | None = None) -> str:
        """Return a FROM clause of all source rows, with these columns (None: all)."""
        return self.view(frame_of(self.context, self.source, names, _held_if_few), self.sides.source_alias)

    def ask(self, query: str, what: str) -> pa.Table:
        """Return the rows of a query that this package wrote. Raises as `collect` does."""
        return collect(self.gate.run(query), what)

    def pairs(self, plan: FilePlan, pair: PairColumns, only: Expression | None = None) -> Matches:
        """Return the matches by ON in all rows of the planned files that pass the filter `only`."""
        on, clauses, context = self.on, self.clauses, self.context
        by_source = clauses.not_matched_by_source
        texts = [on, *clauses.conditions_on_target()]
        # If a clause acts on rows without a match, every row is of interest.
        of_keys = None if by_source else key_filter(on, plan.schema, pair, self.source)
        filters = [each for each in (only, of_keys) if each is not None]
        named = _named(texts, pair.target, pair.source_alias).union(*map(columns_of, filters))
        scan = addressed_scan(context, plan, named, all_of(filters) if filters else None)
        target = self.view(scan_frame(context, scan), pair.target_alias)
        named = _named(texts, pair.source, pair.target_alias)
        s, t = quoted(pair.source_alias), quoted(pair.target_alias)
        hint = join_hint(context, self.source.memory_bytes([ROW_ID_COLUMN, *named]), s)
        selected = f"{t}.*" if by_source else f"{t}.{ADDRESS_COLUMN}"
        query = (
            f"SELECT /*+ {hint} */ {selected}, {s}.{ROW_ID_COLUMN}, {deciding_sql(clauses.matched)} AS {CLAUSE_COLUMN} "
            f"FROM {target} {'LEFT JOIN' if by_source else 'JOIN'} {self.source_rows(named)} ON (\n{on}\n)"
        )
        found = self.gate.run(_with_unmatched(query, t, deciding_sql(by_source)) if by_source else query)
        return Matches.of_packed(collect(through(found, pairs_packed, PAIRS_SCHEMA), MATCHING))

    def rows_that_match(self, plan: FilePlan, pair: PairColumns) -> Matches:
        """Return the rows of the planned files that ON matches with any source row, for the first clause."""
        context, on = self.context, self.on
        row_filter = key_filter(on, plan.schema, pair, self.source)
        scan = addressed_scan(context, plan, _named([on], pair.target, pair.source_alias), row_filter)
        target = self.view(scan_frame(context, scan), pair.target_alias)
        named = _named([on], pair.source, pair.target_alias)
        hint = join_hint(context, self.source.memory_bytes(named), quoted(pair.source_alias))
        query = (
            f"SELECT /*+ {hint} */ {quoted(pair.target_alias)}.{ADDRESS_COLUMN}, CAST(NULL AS BIGINT) AS "
            f"{ROW_ID_COLUMN}, CAST(0 AS INT) AS {CLAUSE_COLUMN} "
            f"FROM {target} LEFT SEMI JOIN {self.source_rows(named)} ON (\n{on}\n)"
        )
        return Matches.of_packed(collect(through(self.gate.run(query), pairs_packed, PAIRS_SCHEMA), MATCHING))

    def images(self, updated: FilePlan, schema: delta.StructType, ids: RowIds | None) -> NewRows:
        """Return new images of the rows at the plan's positions, of a table with this schema, with `ids` their ids."""
        matched, by_source = (
            [clause for clause in of if clause.action == "update"]
            for of in (self.clauses.matched, self.clauses.not_matched_by_source)
        )
        if not matched:
            return self.computed_images(updated, schema, by_source)
        texts = [text for clause in matched for text in clause.values.values()]
        named = _named(texts, self.source.columns, self.sides.target_alias)
        size_bytes = self.source.memory_bytes([ROW_ID_COLUMN, *named])
        s, t = quoted(self.sides.source_alias), quoted(self.sides.target_alias)
        hint = f"/*+ {join_hint(self.context, size_bytes, s)} */"
        join = f"JOIN {self.source_rows(named)} ON {t}.{ROW_ID_COLUMN} = {s}.{ROW_ID_COLUMN}"
        # Rows that meet a source which every task has keep their order.
        if not by_source and size_bytes < self.context.limits.broadcast_bytes:
            return self.computed_images(updated, schema, matched, hint, join)
        needed = columns_for_images(self.clauses.updates, schema, self.sides.source_alias, frozenset(schema.names))
        columns = {"with_row_id": True, "with_clause": True, "with_segment": True}
        scan = _scan_of_updated(updated, needed, bins_for(self.context, updated), **columns)
        rows = scan_frame(self.context, scan) if ids is None else scan_frame_with_ids(self.context, scan, ids)
        target = self.view(rows, self.sides.target_alias)
        frame = self._images(matched, f"{target} {join}", hint, ids)
        # Each kind of clause is a separate query: in a row without a match a bare name can only be the target's column.
        if by_source:
            numbers = ", ".join(str(clause.number) for clause in by_source)
            where = f"WHERE {clause_of_row(self.sides.target_alias)} IN ({numbers})"
            frame = frame.unionByName(self._images(by_source, f"{target} {where}", "", ids))
        return FrameRows(frame)

    def _images(self, clauses: Sequence[Clause], relation: str, hint: str, ids: RowIds | None) -> DataFrame:
        number = clause_of_row(self.sides.target_alias)
        columns = image_sql(self.sides, clauses, number, is_update=True)
        t = quoted(self.sides.target_alias)
        columns += [f"{t}.{SEGMENT_COLUMN}", f"{number} AS {CLAUSE_COLUMN}"]
        columns += [] if ids is None else [f"{t}.{KEPT_ID_COLUMN}"]
        frame = self.gate.run(f"SELECT {hint} {', '.join(columns)} FROM {relation}")
        return self.as_rows_of_table(frame, clauses, are_inserts=False)

    def inserts(self, matched: SourceRowSet, buckets: Collection[int], handed: HandedOut | None) -> FrameRows:
        """Return new rows of the source rows in these buckets that are not among `matched`, with the bucket."""
        clauses, s = self.clauses.not_matched, quoted(self.sides.source_alias)
        identities = None if handed is None else handed.values(beside_source)
        unmatched = unmatched_rows(self.context, self.source, matched.parts, buckets, identities)
        rows = self.view(unmatched, self.sides.source_alias)
        decided = f"SELECT {s}.*, {deciding_sql(clauses)} AS {CLAUSE_COLUMN} FROM {rows}"
        number = clause_of_row(self.sides.source_alias)
        columns = image_sql(self.sides, clauses, number, is_update=False)
        columns += [f"{s}.{SEGMENT_COLUMN}", f"{number} AS {CLAUSE_COLUMN}"]
        frame = self.gate.run(f"SELECT {', '.join(columns)} FROM ({decided}) AS {s} WHERE {number} IS NOT NULL")
        return FrameRows(self.as_rows_of_table(frame, clauses, are_inserts=True))


def judge_merge(
    context: JobContext,
    gate: SqlGate,
    merge: Merge,
    snapshot: Snapshot,
    source: MaterializedSource,
    *,
    keeps_members: bool,
) -> JudgedMerge:
    """Have Spark accept ON, the clauses and the table's rules. Raises as `SqlGate.condition` and `check_clauses` do."""
    pair = PairColumns(
        target=snapshot.delta_schema,
        source=source.columns,
        target_alias=merge.target_alias,
        source_alias=merge.source_alias,
    )
    sides = _sides(
        context,
        gate,
        snapshot,
        merge.target_alias,
        schema_of(source),
        merge.source_alias,
        may_lack_columns=merge.schema_evolution,
        keeps_members=keeps_members,
        named_column=lambda text: source_column(text, pair),
    )
    gate.condition(merge.on, sides.pair)
    clauses = check_clauses(gate, sides, merge.clauses)
    return JudgedMerge(context=context, gate=gate, sides=sides, on=merge.on, source=source, clauses=clauses)


def judge_update(context: JobContext, gate: SqlGate, snapshot: Snapshot, alias: str) -> JudgedUpdate:
    """Have Spark accept the table's rules."""
    return JudgedUpdate(context=context, gate=gate, sides=_sides(context, gate, snapshot, alias, StructType([]), ""))


def _sides(
    context: JobContext,
    gate: SqlGate,
    snapshot: Snapshot,
    target_alias: str,
    source: StructType,
    source_alias: str,
    **more: Any,
) -> Sides:
    rules = accepted_rules(context, snapshot.metadata)
    return Sides(
        target=rules.spark_schema,
        source=source,
        target_alias=target_alias,
        source_alias=source_alias,
        target_shape=gate.shape(without_metadata(rules.spark_schema, nullable=True)),
        source_shape=gate.shape(source) if source_alias else "",
        ansi=context.is_ansi,
        table_uri=context.root,
        rules=rules,
        **more,
    )


def columns_for_evolution(source: MaterializedSource) -> SchemaJson:
    """Return Spark's JSON of the columns that a table may take over from the source."""
    columns: SchemaJson = schema_of(source).jsonValue()
    return columns


def _held_if_few(context: JobContext, scan: FileScan) -> DataFrame:
    held = few_held(context, scan, MATCHING)
    return scan_frame(context, scan) if held is None else held


def _scan_of_updated(updated: FilePlan, needed: frozenset[str], bins: Bins, **columns: Any) -> FileScan:
    """Return the scan of the rows at the plan's positions. `columns`: those of FileScan, beside those `needed`."""
    read = pa.schema([field for field in updated.schema if field.name in needed])
    return FileScan(schema=read, rows="only", bins=bins, **columns)


def _named(texts: Iterable[str], schema: delta.StructType, other_alias: str) -> frozenset[str]:
    """Return the schema's columns that some of the texts may mean, given the other side's alias."""
    return frozenset().union(*(columns_named(text, schema, other_alias) for text in texts))


def _with_unmatched(pairs: str, t: str, deciding: str) -> str:
    """Return the pairs, and the target rows without one on which a clause acts.

    Its conditions are evaluated above the join, so that a bare name can only be the target's column.
    """
    row, clause = f"{t}.{ROW_ID_COLUMN}", f"{t}.{CLAUSE_COLUMN}"
    decided = (
        f"SELECT {t}.{ADDRESS_COLUMN}, {row}, CASE WHEN {row} IS NULL THEN {deciding} ELSE {clause} END "
        f"AS {CLAUSE_COLUMN} FROM ({pairs}) AS {t}"
    )
    return f"SELECT * FROM ({decided}) WHERE {ROW_ID_COLUMN} IS NOT NULL OR {CLAUSE_COLUMN} IS NOT NULL"
