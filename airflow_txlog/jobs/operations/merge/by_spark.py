"""What Spark does for a merge, and for an UPDATE: it judges the texts, joins both sides, and computes new rows.

The invariant of `pairs` holds here too: one join yields all pairs that ON matches, also those on which no clause acts.
Source: delta-spark, MergeIntoCommand; soundness A1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from airflow_txlog.contract.operations import Merge
from airflow_txlog.datafiles.tasks.found_rows import PAIRS_SCHEMA, pairs_packed
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema import types as delta
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, through
from airflow_txlog.jobs.files.stage import ComputedColumns
from airflow_txlog.jobs.operations.merge.clause_sql import Sides, assigned_values, check_clauses, deciding_sql
from airflow_txlog.jobs.operations.merge.clauses import Clause, Clauses
from airflow_txlog.jobs.operations.merge.images import inserted_rows, updated_columns, updated_images
from airflow_txlog.jobs.operations.merge.key_filter import key_filter
from airflow_txlog.jobs.operations.merge.pairs import MATCHING, join_hint
from airflow_txlog.jobs.operations.merge.plain_merge import PairColumns
from airflow_txlog.jobs.rows.find import scan_columns
from airflow_txlog.jobs.rows.matches import Matches, SourceRowSet
from airflow_txlog.jobs.source.frames import frame_of, schema_of
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.gate import SqlGate, columns_named, quoted
from airflow_txlog.jobs.sql.schema_evolution import SchemaJson
from airflow_txlog.jobs.sql.schemas import engine_type, without_metadata
from airflow_txlog.jobs.sql.table_rules import accepted_rules


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
        """The type of an expression over one source row. Raises InvalidPredicate."""
        return engine_type(self.gate.value(text, self.sides.source_alone))

    def source_rows(self) -> str:
        """A FROM clause of all source rows."""
        return self._source_rows(None)

    def ask(self, query: str, what: str) -> pa.Table:
        """The rows of a query of ours. Raises as `collect` does."""
        return collect(self.gate.run(query), what)

    def pairs(self, plan: FilePlan, pair: PairColumns) -> Matches:
        """The matches by ON in all rows of the planned files."""
        on, clauses, source = self.on, self.clauses, self.source
        by_source = clauses.not_matched_by_source
        texts, target_view = [on, *clauses.conditions_on_target()], self.context.view_name()
        # Where no match is a reason to act, every row is of interest.
        row_filter = None if by_source else key_filter(on, plan.schema, pair, source)
        scanned = _named(texts, pair.target, pair.source_alias)
        scan_columns(self.context, plan, scanned, row_filter).createOrReplaceTempView(target_view)
        named = _named(texts, pair.source, pair.target_alias)
        source_rows = self._source_rows(named)
        size_bytes = source.memory_bytes([ROW_ID_COLUMN, *(source.names if named is None else named)])
        s, t = quoted(pair.source_alias), quoted(pair.target_alias)
        selected = f"{t}.*" if by_source else f"{t}.{ADDRESS_COLUMN}"
        query = (
            f"SELECT /*+ {join_hint(self.context, size_bytes, s)} */ {selected}, {s}.{ROW_ID_COLUMN}, "
            f"{deciding_sql(clauses.matched)} AS {CLAUSE_COLUMN} FROM {quoted(target_view)} AS {t} "
            f"{'LEFT JOIN' if by_source else 'JOIN'} {source_rows} ON (\n{on}\n)"
        )
        found = self.gate.run(_with_unmatched(query, t, deciding_sql(by_source)) if by_source else query)
        return Matches.of_packed(collect(through(found, pairs_packed, PAIRS_SCHEMA), MATCHING))

    def images(self, updated: FilePlan, schema: delta.StructType) -> DataFrame:
        """New images of the rows at the plan's positions, of a table with this schema."""
        return updated_images(self.context, self.gate, updated, schema, self.sides, self.clauses, self.source)

    def inserts(self, matched: SourceRowSet, buckets: Collection[int]) -> DataFrame:
        """New rows of those source rows in these buckets that are not among `matched`."""
        return inserted_rows(self.context, self.gate, self.sides, self.clauses, self.source, matched, buckets)

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
    """Spark's JSON of the columns that a table may take over from the source."""
    columns: SchemaJson = schema_of(source).jsonValue()
    return columns


def sides_of_update(context: JobContext, gate: SqlGate, snapshot: Snapshot, alias: str) -> Sides:
    """Have Spark accept the table's rules; return what the texts of an UPDATE are checked on: the target alone."""
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
) -> Callable[[FilePlan], ComputedColumns]:
    """Have Spark accept what an UPDATE, the clause of this number, assigns; return what computes it in planned rows."""
    values = assigned_values(gate, sides, sides.target_alone, dict(assigned), is_insert=False)
    clause = Clause(number=number, action="update", condition=None, values=values)
    clauses = Clauses(matched=(clause,), not_matched=())
    return lambda updated: updated_columns(context, gate, updated, schema, sides, clauses)


def _named(texts: Iterable[str], schema: delta.StructType, other_alias: str) -> frozenset[str] | None:
    """The schema's columns that some of the texts may mean, beside the other side's alias; None for any."""
    named: frozenset[str] = frozenset()
    for text in texts:
        found = columns_named(text, schema, other_alias)
        if found is None:
            return None
        named |= found
    return named


def _with_unmatched(pairs: str, t: str, deciding: str) -> str:
    """The pairs, and the target rows without one on which a clause acts.

    Its conditions are evaluated above the join, where a bare name can mean nothing but the target's column.
    """
    row, clause = f"{t}.{ROW_ID_COLUMN}", f"{t}.{CLAUSE_COLUMN}"
    decided = (
        f"SELECT {t}.{ADDRESS_COLUMN}, {row}, CASE WHEN {row} IS NULL THEN {deciding} ELSE {clause} END "
        f"AS {CLAUSE_COLUMN} FROM ({pairs}) AS {t}"
    )
    return f"SELECT * FROM ({decided}) WHERE {ROW_ID_COLUMN} IS NOT NULL OR {CLAUSE_COLUMN} IS NOT NULL"
