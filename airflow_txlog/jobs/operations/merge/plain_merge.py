"""What of a MERGE needs no evaluation: keys that are columns of both sides, and clauses that take the source's values
and constants.

The tasks that read and write the files do that themselves, and no row goes through the JVM; a small job needs no Spark
at all. The invariant: the texts are read, never evaluated: whatever is more than a column's name or a plain constant,
or of another type than the column that it meets, is left to Spark. Source: soundness A3, A4.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from airflow_txlog.contract.operations import AnyClause, InsertClause, Merge, UpdateClause
from airflow_txlog.datafiles.parquet.writing import SEGMENT_COLUMN
from airflow_txlog.datafiles.tasks.key_rows import SourceKeys
from airflow_txlog.datafiles.tasks.row_values import RowValues, only_values
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN, Task
from airflow_txlog.datafiles.tasks.source_rows import SourceRows
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema.rules import CHAR_VARCHAR_KEY, read_rules
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType, bare_type, walk_fields
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, bins_by_segment
from airflow_txlog.jobs.files.stage import ComputedColumns
from airflow_txlog.jobs.operations.merge.clauses import Clause, Clauses
from airflow_txlog.jobs.operations.merge.equalities import conjuncts_as_equalities
from airflow_txlog.jobs.rows.matches import SourceRowSet
from airflow_txlog.jobs.source.materialized import MaterializedSource, scan_of, unmatched_plan
from airflow_txlog.jobs.sql.column_names import assigned_column
from airflow_txlog.jobs.sql.plain_values import plain_values
from airflow_txlog.jobs.sql.scope import PLAIN_TYPES
from airflow_txlog.sql.expression import Column, Expression, Name, Values
from airflow_txlog.sql.sql_text import sql_text

# Types whose values are equal to every engine where they are the same; no key is a boolean.
_PLAIN = PLAIN_TYPES - {Primitive.BOOLEAN}


@dataclass(frozen=True, kw_only=True)
class PairColumns:
    """What the texts of a merge may name: the columns of both sides, and what each side is called."""

    target: StructType
    source: StructType
    target_alias: str
    source_alias: str

    def is_of_one_type(self, name: str, held: str) -> bool:
        """Whether the source's column `held` is of the type of the target's column `name`, so that its values need no
        cast."""
        wanted, given = self.target.find(name), self.source.find(held)
        assert wanted is not None
        assert given is not None
        # A collation stands beside the type, at whatever depth.
        members = [*walk_fields(StructType((wanted,))), *walk_fields(StructType((given,)))]
        # Of the type void no file holds anything.
        is_held = wanted.type is not Primitive.VOID
        is_of_one_type = bare_type(wanted.type) == bare_type(given.type)
        return is_held and is_of_one_type and not any(member.is_collated for member in members)


@dataclass(frozen=True, kw_only=True)
class PlainKeys:
    """ON is TRUE of two rows exactly where the target's `columns` equal the source's keys, and null equals nothing.

    `clause` acts on each target row that has a key; None: none does.
    """

    columns: tuple[str, ...]
    source: SourceKeys
    clause: int | None


@dataclass(frozen=True, kw_only=True)
class PlainClauses:
    """What the clauses assign, of the source's rows: None where there is no such clause, or where only Spark can say
    what."""

    updated: RowValues | None
    inserted: RowValues | None

    def are_all_of(self, clauses: Clauses) -> bool:
        """Whether the tasks can write what every one of these clauses assigns."""
        needed = (
            (self.updated, clauses.matched),
            (self.inserted, clauses.not_matched),
        )
        return all(said is not None or all(clause.action == "delete" for clause in of) for said, of in needed)


def clauses_of(merge: Merge) -> Clauses:
    """The clauses as their author gives them, without SQL for their values."""

    def of(kind: str) -> tuple[Clause, ...]:
        return tuple(
            Clause(number=number, action=clause.then, condition=clause.condition, values={})
            for number, clause in enumerate(merge.clauses)
            if clause.when == kind
        )

    return Clauses(
        matched=of("matched"), not_matched=of("not_matched"), not_matched_by_source=of("not_matched_by_source")
    )


@dataclass(frozen=True, kw_only=True)
class WhyNotPlain:
    """What is more than plain in a merge, as its author knows it: each the rest of the sentence "Spark is needed: "."""

    keys: str = "ON is more than equalities of columns that have one plain type on both sides"
    clauses: str = "the clauses have conditions, or values that are more than columns of the source and plain constants"


def why_not_plain(
    merge: Merge,
    snapshot: Snapshot,
    pair: PairColumns,
    parameters: Mapping[str, object],
    *,
    is_ansi: bool,
    words: WhyNotPlain,
) -> str | None:
    """Return why the merge needs Spark, as the rest of the sentence "Spark is needed: "; None where the tasks can do
    all of it. The size of the source is not considered: it is not written down yet.
    """
    if not key_columns(merge.on, pair):
        return words.keys
    found = _assigned_by(merge, snapshot, pair, parameters, is_ansi=is_ansi)
    if found is None:
        return words.clauses
    inserted = set(pair.target.names if found.inserted is None else found.inserted.names)
    if any(not field.nullable and field.name not in inserted for field in pair.target):
        return "a new row has no value for a column that is NOT NULL"
    return None


def plain_keys(
    context: JobContext,
    on: str,
    arrow_schema: pa.Schema,
    pair: PairColumns,
    clauses: Clauses,
    source: MaterializedSource,
) -> PlainKeys | None:
    """The keys by which the accepted condition `on` joins, where it does nothing else; None where Spark has to.

    `arrow_schema` is the types in which the target's rows are read.
    """
    if clauses.not_matched_by_source or any(clause.condition is not None for clause in clauses.matched[:1]):
        return None
    columns = key_columns(on, pair)
    if not columns or source.bytes_of([*columns.values(), ROW_ID_COLUMN]) > context.limits.merge_key_bytes:
        return None
    keys = SourceKeys(
        scan=scan_of(context, source, columns.values()),
        columns=tuple((held, arrow_schema.field(name).type) for name, held in columns.items()),
    )
    number = clauses.matched[0].number if clauses.matched else None
    return PlainKeys(columns=tuple(columns), source=keys, clause=number)


def key_columns(on: str, pair: PairColumns) -> dict[str, str] | None:
    """The source's column for each of the target's that ON wants to be equal, in the target's order; None where ON says
    more."""
    equalities = conjuncts_as_equalities(
        on,
        target_alias=pair.target_alias,
        columns=[field.name for field in pair.target if is_plain(field)],
        target_columns=pair.target.names,
        source_columns=pair.source.names,
    )
    found: dict[str, str] = {}
    for equality in equalities:
        held = None if equality is None or equality.null_safe else source_column(equality.sql, pair)
        if equality is None or held is None or equality.column in found:
            return None
        if not pair.is_of_one_type(equality.column, held):
            return None
        found[equality.column] = held
    return {name: found[name] for name in pair.target.names if name in found}


def plain_clauses(
    context: JobContext, merge: Merge, snapshot: Snapshot, pair: PairColumns, source: MaterializedSource
) -> PlainClauses | None:
    """What the clauses assign, where each acts on all rows of its kind and takes values of the source as they are and
    constants, and nothing of the table has to look at these; None where Spark has to compute.

    Of a large source, rows that may land in any partition are left to Spark too, which brings those of one together.
    """
    found = _assigned_by(merge, snapshot, pair, context.parameters, is_ansi=context.is_ansi)
    if found is None:
        return None
    updated, inserted = found.updated, found.inserted
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


def _assigned_by(
    merge: Merge, snapshot: Snapshot, pair: PairColumns, parameters: Mapping[str, object], *, is_ansi: bool
) -> PlainClauses | None:
    found: dict[str, RowValues | None] = {"matched": None, "not_matched": None}
    kinds = [clause.when for clause in merge.clauses]
    if len(set(kinds)) < len(kinds) or not set(kinds) <= set(found):
        return None
    rules = read_rules(snapshot.metadata, pair.target, snapshot.uri)
    if rules.must_check or rules.fills or any(clause.condition is not None for clause in merge.clauses):
        return None
    for clause in merge.clauses:
        if clause.then == "delete":
            continue
        assigned = _assigned(clause, pair, parameters, is_ansi=is_ansi, may_lack=merge.schema_evolution)
        if assigned is None:
            return None
        found[clause.when] = assigned
    return PlainClauses(updated=found["matched"], inserted=found["not_matched"])


def _assigned(
    clause: AnyClause, pair: PairColumns, parameters: Mapping[str, object], *, is_ansi: bool, may_lack: bool
) -> RowValues | None:
    """What one clause assigns, in the table's order for `*` and else in the author's; `may_lack`: `*` leaves out what
    the source lacks."""
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
        values = plain_values({column: text}, pair.target, parameters, alias=pair.target_alias, is_ansi=is_ansi)
        constant = None if isinstance(values, str) else values.values[column]
        # A name alone may be a column of either side.
        if not isinstance(constant, Values):
            return None
        constants[column] = constant
    # A batch of no column has no rows.
    if not columns or not all(pair.is_of_one_type(name, held) for name, held in columns.items()):
        return None
    return RowValues(values={name: Column(held) for name, held in columns.items()} | constants)


def source_column(sql: str, pair: PairColumns) -> str | None:
    """The source's column that the text is; None where it is more, or may mean something else."""
    found = sql_text(sql).expression
    # Spark takes no text that ends in a backslash.
    if not isinstance(found, Name) or not found.is_certain or sql.endswith("\\"):
        return None
    parts, alias = [part.text.lower() for part in found.parts], pair.source_alias.lower()
    named, ours = pair.source.by_name, pair.target.by_name
    if len(parts) == 1:
        return None if parts[0] in ours else _name_of(named.get(parts[0]))
    # A struct column of the alias's name would make `s.k` a member of it.
    if len(parts) == 2 and parts[0] == alias and alias not in named and alias not in ours:
        return _name_of(named.get(parts[1]))
    return None


def _name_of(field: StructField | None) -> str | None:
    return None if field is None else field.name


def is_plain(field: StructField) -> bool:
    """Whether values of the target's column are equal to all engines where they are the same, and only there."""
    return field.type in _PLAIN and not field.is_collated and CHAR_VARCHAR_KEY not in field.metadata


# --- the rows -------------------------------------------------------------------------------------------------------


def plain_images(
    context: JobContext, updated: FilePlan, source: MaterializedSource, assigned: RowValues
) -> ComputedColumns:
    """The new images of the rows at the plan's positions, where each assigned value is one of the source's or a
    constant: no row has to go through the JVM."""
    bins, first_files = bins_by_segment(context, updated)
    rows = SourceRows(
        scan=scan_of(context, source, assigned.columns_read),
        values=assigned,
        num_rows=source.num_rows,
        size_bytes=source.bytes_of([*assigned.columns_read, ROW_ID_COLUMN]),
    )
    return ComputedColumns(values=rows, bins=bins, first_files=first_files, num_rows=updated.num_positions)


def plain_inserts(
    context: JobContext,
    source: MaterializedSource,
    matched: SourceRowSet,
    assigned: RowValues,
    buckets: Collection[int],
) -> Task:
    """The new rows of the source's that are not among `matched`, in the same case; a bucket is the work of one task."""
    plan = unmatched_plan(context, source, assigned.columns_read, matched.parts, buckets)
    bins, _ = bins_by_segment(context, plan)
    scan = MaterializedScan(bins=bins, schema=plan.schema, with_segment=True)
    values = RowValues(values={**assigned.values, SEGMENT_COLUMN: Column(SEGMENT_COLUMN)})
    return Task(source=scan, steps=(partial(only_values, values),))
