"""New rows of an update or a merge: the images of updated rows, and the source rows that matched nothing.

The images are computed from the positions and clauses that the pairs name, never by ON again; a file of the target is
opened for them only where a column of it is needed. The invariant: a frame made here has exactly the target's columns
and types, the segment of each row, and the table's rule that it breaks, where it can break one; and it is
evaluated once, by the stage that writes it.
Source: docs/decisions/positions-not-rows.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from airflow_txlog.datafiles.parquet.writing import SEGMENT_COLUMN
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN, FileScan
from airflow_txlog.engine.table.schema import types as delta
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, bins_by_segment, bins_for, scan_frame
from airflow_txlog.jobs.files.stage import ComputedColumns
from airflow_txlog.jobs.operations.merge.clause_sql import (
    Sides,
    clause_of_row,
    columns_for_images,
    deciding_sql,
    generated_by,
    image_sql,
)
from airflow_txlog.jobs.operations.merge.clauses import Clause, Clauses
from airflow_txlog.jobs.operations.merge.pairs import join_hint
from airflow_txlog.jobs.rows.matches import SourceRowSet
from airflow_txlog.jobs.source.frames import frame_of, unmatched_rows
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.jobs.sql.gate import SqlGate, quoted
from airflow_txlog.jobs.sql.schemas import as_column_type


def updated_columns(
    context: JobContext, gate: SqlGate, updated: FilePlan, schema: delta.StructType, sides: Sides, clauses: Clauses
) -> ComputedColumns:
    """The columns that the clause of an UPDATE, or the table's rules, change in the rows at the plan's positions.

    What no clause and no rule looks at never leaves Arrow.
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
    return ComputedColumns(
        values=rows.select(*sent), bins=bins, first_files=first_files, num_rows=updated.num_positions
    )


def updated_images(
    context: JobContext,
    gate: SqlGate,
    updated: FilePlan,
    schema: delta.StructType,
    sides: Sides,
    clauses: Clauses,
    source: MaterializedSource,
) -> DataFrame:
    """New images of the rows at the plan's positions (of a table with this schema), with the segments of the files."""
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
    """The images of those rows of the view that met a source row."""
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
    """What WHEN NOT MATCHED clauses make of the source rows that are not among `matched`, with the bucket as segment.

    Only source rows of these `buckets`.
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
    """The new rows typed, what the table generates computed where their clause leaves it out, and the rules enforced.

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
    """The frame with a type for whatever is only NULL in it: a union or a shuffle takes nothing without one.

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
