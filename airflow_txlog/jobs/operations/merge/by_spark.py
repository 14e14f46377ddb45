"""Spark's part of a merge, and of an UPDATE: it judges the texts, joins both sides, and computes new rows.

One join yields all pairs that ON matches, also those on which no clause acts, because they decide what is ambiguous and
what is inserted. Images are computed from the positions and clauses of the pairs, never by ON again; a file of the
target is opened for them only if a column of it is needed. The invariant: a frame of new rows has exactly the target's
columns and types, the segment of each row, and the rule that it breaks if it can break one; it is evaluated once, by
the stage that writes it. Source: delta-spark, MergeIntoCommand; docs/decisions/positions-not-rows.md; soundness A1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from airflow_txlog.contract.operations import Merge
from airflow_txlog.datafiles.parquet.writing import SEGMENT_COLUMN
from airflow_txlog.datafiles.tasks.found_rows import PAIRS_SCHEMA, pairs_packed
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN, FileScan
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema import types as delta
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import FrameImages, FrameRows, scan_frame, through
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
from airflow_txlog.jobs.operations.merge.keys import MATCHING, PairColumns, join_hint, key_filter
from airflow_txlog.jobs.rows.matches import Matches, SourceRowSet
from airflow_txlog.jobs.source.frames import frame_of, schema_of, unmatched_rows
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.columns import SchemaJson, columns_named
from airflow_txlog.jobs.sql.gate import SqlGate, quoted
from airflow_txlog.jobs.sql.schemas import as_column_type, engine_type, without_metadata
from airflow_txlog.jobs.sql.table_rules import accepted_rules


def updated_columns(
    context: JobContext, gate: SqlGate, updated: FilePlan, schema: delta.StructType, sides: Sides, clauses: Clauses
) -> FrameImages:
    """Return the columns that an UPDATE, or the table's rules, change in the rows at the plan's positions.

    Columns that no clause and no rule reads never leave Arrow.
    """
    (clause,) = clauses.matched
    generated = generated_by(sides, clauses.matched)
    computed = frozenset([*clause.values, *generated, *sides.rules.table.lengths])
    names = computed | sides.rules.enforced_columns
    needed = columns_for_images([clause], schema, sides.source_alias, names)
    read = pa.schema([field for field in updated.schema if needed is None or field.name in needed])
    bins, first_files = bins_by_segment(context, updated)
    view = context.view_name()
    task = FileScan(bins=bins, schema=read, rows="only", with_address=True)
    scan_frame(context, task).createOrReplaceTempView(view)
    columns = image_sql(sides, [clause], str(clause.number), is_update=True, names=names)
    columns.append(f"{quoted(sides.target_alias)}.{ADDRESS_COLUMN}")
    rows = _typed(gate.run(f"SELECT {', '.join(columns)} FROM {_from(view, sides)}"), sides.target)
    rows = sides.rules.enforce(sides.rules.with_generated(rows, dict.fromkeys(generated)), are_inserts=False)
    sent = [rows[quoted(name)] for name in rows.schema.names if name not in names - computed]
    return FrameImages(rows=rows.select(*sent), bins=bins, first_files=first_files, num_rows=updated.num_positions)


def updated_images(
    context: JobContext,
    gate: SqlGate,
    updated: FilePlan,
    schema: delta.StructType,
    sides: Sides,
    clauses: Clauses,
    source: MaterializedSource,
) -> DataFrame:
    """Return new images of the rows at the plan's positions, with the segments of the files."""
    needed = columns_for_images(clauses.updates, schema, sides.source_alias, frozenset(schema.names))
    read = pa.schema([field for field in updated.schema if needed is None or field.name in needed])
    task = FileScan(
        bins=bins_for(context, updated), schema=read, rows="only", with_row_id=True, with_clause=True, with_segment=True
    )
    target_view = context.view_name()
    scan_frame(context, task).createOrReplaceTempView(target_view)
    matched = tuple(clause for clause in clauses.matched if clause.action == "update")
    by_source = tuple(clause for clause in clauses.not_matched_by_source if clause.action == "update")
    # Each kind in a query of its own: without a match a bare name can mean nothing but the target's column.
    frames = []
    if by_source:
        numbers = ", ".join(str(clause.number) for clause in by_source)
        relation = f"{_from(target_view, sides)} WHERE {clause_of_row(sides.target_alias)} IN ({numbers})"
        frames.append(_images(gate, sides, by_source, relation, ""))
    if matched:
        frames.append(_matched_images(context, gate, target_view, sides, matched, source))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _matched_images(
    context: JobContext, gate: SqlGate, view: str, sides: Sides, clauses: Sequence[Clause], source: MaterializedSource
) -> DataFrame:
    """Return the images of the view's rows that met a source row."""
    source_view = context.view_name()
    frame_of(context, source).createOrReplaceTempView(source_view)
    s, t = quoted(sides.source_alias), quoted(sides.target_alias)
    hint = join_hint(context, source.memory_bytes([ROW_ID_COLUMN, *source.names]), s)
    on = f"{t}.{ROW_ID_COLUMN} = {s}.{ROW_ID_COLUMN}"
    relation = f"{_from(view, sides)} JOIN {quoted(source_view)} AS {s} ON {on}"
    return _images(gate, sides, clauses, relation, f"/*+ {hint} */")


def _images(gate: SqlGate, sides: Sides, clauses: Sequence[Clause], relation: str, hint: str) -> DataFrame:
    number = clause_of_row(sides.target_alias)
    columns = image_sql(sides, clauses, number, is_update=True)
    columns += [f"{quoted(sides.target_alias)}.{SEGMENT_COLUMN}", f"{number} AS {CLAUSE_COLUMN}"]
    frame = gate.run(f"SELECT {hint} {', '.join(columns)} FROM {relation}")
    return _as_rows_of_table(frame, sides, clauses, are_inserts=False)


def _from(view: str, sides: Sides) -> str:
    return f"{quoted(view)} AS {quoted(sides.target_alias)}"


def inserted_rows(
    context: JobContext,
    gate: SqlGate,
    sides: Sides,
    clauses: Clauses,
    source: MaterializedSource,
    matched: SourceRowSet,
    buckets: Collection[int],
) -> DataFrame:
    """Return the rows that WHEN NOT MATCHED clauses make of source rows in these buckets that are not among `matched`.

    The segment is the bucket.
    """
    view = context.view_name()
    unmatched_rows(context, source, matched.parts, buckets).createOrReplaceTempView(view)
    s = quoted(sides.source_alias)
    decided = f"SELECT {s}.*, {deciding_sql(clauses.not_matched)} AS {CLAUSE_COLUMN} FROM {quoted(view)} AS {s}"
    number = clause_of_row(sides.source_alias)
    columns = image_sql(sides, clauses.not_matched, number, is_update=False)
    columns += [f"{s}.{SEGMENT_COLUMN}", f"{number} AS {CLAUSE_COLUMN}"]
    frame = gate.run(f"SELECT {', '.join(columns)} FROM ({decided}) AS {s} WHERE {number} IS NOT NULL")
    return _as_rows_of_table(frame, sides, clauses.not_matched, are_inserts=True)


def _as_rows_of_table(frame: DataFrame, sides: Sides, clauses: Sequence[Clause], *, are_inserts: bool) -> DataFrame:
    """Return the new rows typed, with generated columns that their clause leaves out, and the rules enforced.

    `frame` has the table's columns, SEGMENT_COLUMN, which stays, and CLAUSE_COLUMN, which goes.
    """
    rows = _typed(frame, sides.target)
    lacking = {
        name: None if len(numbers) == len(clauses) else F.col(CLAUSE_COLUMN).isin(sorted(numbers))
        for name, numbers in generated_by(sides, clauses).items()
    }
    rows = sides.rules.with_generated(rows, lacking).drop(CLAUSE_COLUMN)
    return sides.rules.enforce(rows, are_inserts=are_inserts)


def _typed(frame: DataFrame, target: StructType) -> DataFrame:
    """Return the frame with a type for columns that are only NULL: a union or a shuffle takes none without a type.

    Columns that are not the table's stay.
    """
    types = {field.name: field.dataType for field in target}
    return frame.select(
        *(
            as_column_type(frame[quoted(field.name)], field.dataType, types[field.name]).alias(field.name)
            if field.name in types
            else frame[quoted(field.name)]
            for field in frame.schema
        )
    )


@dataclass(frozen=True, kw_only=True)
class JudgedMerge:
    """A merge whose texts Spark has accepted: the clauses have SQL for their values."""

    context: JobContext
    gate: SqlGate
    on: str
    source: MaterializedSource
    sides: Sides
    clauses: Clauses

    def type_in_source(self, text: str) -> delta.StructField | None:
        """Return the type of an expression over one source row. Raises InvalidPredicate."""
        return engine_type(self.gate.value(text, self.sides.source_alone))

    def source_rows(self) -> str:
        """Return a FROM clause of all source rows."""
        return self._source_rows(None)

    def ask(self, query: str, what: str) -> pa.Table:
        """Return the rows of a query of ours. Raises as `collect` does."""
        return collect(self.gate.run(query), what)

    def pairs(self, plan: FilePlan, pair: PairColumns) -> Matches:
        """Return the matches by ON in all rows of the planned files."""
        on, clauses, source = self.on, self.clauses, self.source
        by_source = clauses.not_matched_by_source
        texts, target_view = [on, *clauses.conditions_on_target()], self.context.view_name()
        # Where no match is a reason to act, every row is of interest.
        row_filter = None if by_source else key_filter(on, plan.schema, pair, source)
        scanned = _named(texts, pair.target, pair.source_alias)
        scan_frame(self.context, addressed_scan(self.context, plan, scanned, row_filter)).createOrReplaceTempView(
            target_view
        )
        named = _named(texts, pair.source, pair.target_alias)
        source_rows = self._source_rows(named)
        size_bytes = source.memory_bytes([ROW_ID_COLUMN, *named])
        s, t = quoted(pair.source_alias), quoted(pair.target_alias)
        selected = f"{t}.*" if by_source else f"{t}.{ADDRESS_COLUMN}"
        query = (
            f"SELECT /*+ {join_hint(self.context, size_bytes, s)} */ {selected}, {s}.{ROW_ID_COLUMN}, "
            f"{deciding_sql(clauses.matched)} AS {CLAUSE_COLUMN} FROM {quoted(target_view)} AS {t} "
            f"{'LEFT JOIN' if by_source else 'JOIN'} {source_rows} ON (\n{on}\n)"
        )
        found = self.gate.run(_with_unmatched(query, t, deciding_sql(by_source)) if by_source else query)
        return Matches.of_packed(collect(through(found, pairs_packed, PAIRS_SCHEMA), MATCHING))

    def images(self, updated: FilePlan, schema: delta.StructType) -> NewRows:
        """Return new images of the rows at the plan's positions, of a table with this schema."""
        rows = updated_images(self.context, self.gate, updated, schema, self.sides, self.clauses, self.source)
        return FrameRows(rows)

    def inserts(self, matched: SourceRowSet, buckets: Collection[int]) -> NewRows:
        """Return new rows of the source rows in these buckets that are not among `matched`."""
        rows = inserted_rows(self.context, self.gate, self.sides, self.clauses, self.source, matched, buckets)
        return FrameRows(rows)

    def _source_rows(self, names: Collection[str] | None) -> str:
        view = self.context.view_name()
        frame_of(self.context, self.source, names).createOrReplaceTempView(view)
        return f"{quoted(view)} AS {quoted(self.sides.source_alias)}"


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
    rules, given = accepted_rules(context, snapshot.metadata), schema_of(source)
    sides = Sides(
        target=rules.spark_schema,
        source=given,
        target_alias=merge.target_alias,
        source_alias=merge.source_alias,
        target_shape=gate.shape(without_metadata(rules.spark_schema, nullable=True)),
        source_shape=gate.shape(given),
        ansi=context.is_ansi,
        table_uri=context.root,
        rules=rules,
        may_lack_columns=merge.schema_evolution,
        keeps_members=keeps_members,
    )
    gate.condition(merge.on, sides.pair)
    clauses = check_clauses(gate, sides, merge.clauses)
    return JudgedMerge(context=context, gate=gate, on=merge.on, source=source, sides=sides, clauses=clauses)


def columns_for_evolution(source: MaterializedSource) -> SchemaJson:
    """Return Spark's JSON of the columns that a table may take over from the source."""
    columns: SchemaJson = schema_of(source).jsonValue()
    return columns


def sides_of_update(context: JobContext, gate: SqlGate, snapshot: Snapshot, alias: str) -> Sides:
    """Have Spark accept the table's rules; return the sides for the texts of an UPDATE: the target alone."""
    rules = accepted_rules(context, snapshot.metadata)
    return Sides(
        target=rules.spark_schema,
        source=StructType([]),
        target_alias=alias,
        source_alias="",
        target_shape=gate.shape(without_metadata(rules.spark_schema, nullable=True)),
        source_shape="",
        ansi=context.is_ansi,
        table_uri=context.root,
        rules=rules,
    )


def computed_values(
    context: JobContext, gate: SqlGate, schema: delta.StructType, sides: Sides, assigned: Mapping[str, str], number: int
) -> Callable[[FilePlan], NewRows]:
    """Have Spark accept the values of an UPDATE, the clause of this number; return what computes them."""
    values = assigned_values(gate, sides, sides.target_alone, dict(assigned), is_insert=False)
    clause = Clause(number=number, action="update", condition=None, values=values)
    clauses = Clauses(matched=(clause,))
    return lambda updated: updated_columns(context, gate, updated, schema, sides, clauses)


def _named(texts: Iterable[str], schema: delta.StructType, other_alias: str) -> frozenset[str]:
    """Return the schema's columns that some of the texts may mean, beside the other side's alias."""
    return frozenset().union(*(columns_named(text, schema, other_alias) for text in texts))


def _with_unmatched(pairs: str, t: str, deciding: str) -> str:
    """Return the pairs, and the target rows without one on which a clause acts.

    Its conditions are evaluated above the join, where a bare name can mean only the target's column.
    """
    row, clause = f"{t}.{ROW_ID_COLUMN}", f"{t}.{CLAUSE_COLUMN}"
    decided = (
        f"SELECT {t}.{ADDRESS_COLUMN}, {row}, CASE WHEN {row} IS NULL THEN {deciding} ELSE {clause} END "
        f"AS {CLAUSE_COLUMN} FROM ({pairs}) AS {t}"
    )
    return f"SELECT * FROM ({decided}) WHERE {ROW_ID_COLUMN} IS NOT NULL OR {CLAUSE_COLUMN} IS NOT NULL"
