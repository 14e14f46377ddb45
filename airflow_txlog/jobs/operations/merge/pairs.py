"""Pairs of a merge: every target row and source row that ON matches, and the clause that acts on them.

One Spark job joins the rows of the scanned files with the materialized source and yields numbers only, which its tasks
pack file by file: where the target row lives, which source row it met, which clause acts.

The invariant: these are *all* pairs that ON matches, also those on which no clause acts, because they decide what is
ambiguous and what is inserted; and every target row that matches nothing and on which a WHEN NOT MATCHED BY SOURCE
clause acts. Source: delta-spark, MergeIntoCommand; soundness A1.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from airflow_txlog.datafiles.tasks.found_rows import PAIRS_SCHEMA, pairs_packed
from airflow_txlog.datafiles.tasks.key_rows import pairs_of_keys
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN, Task
from airflow_txlog.engine.table.schema.schema import StructType
from airflow_txlog.errors import AmbiguousMerge
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, collected
from airflow_txlog.jobs.operations.merge.clauses import Clauses
from airflow_txlog.jobs.operations.merge.key_filter import key_filter
from airflow_txlog.jobs.operations.merge.plain_merge import PairColumns, PlainKeys, plain_keys
from airflow_txlog.jobs.rows.find import addressed_scan, scan_columns
from airflow_txlog.jobs.rows.matches import Matches
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.gate import SqlGate, columns_named, quoted

_DOING = "match source and target"


def find_pairs(
    context: JobContext,
    gate: SqlGate,
    plan: FilePlan,
    on: str,
    pair: PairColumns,
    clauses: Clauses,
    source: MaterializedSource,
) -> Matches:
    """The matches by the accepted condition `on` in all rows of the planned files. Raises NeedsSpark."""
    if plan.num_files == 0 or (source.num_rows == 0 and not clauses.not_matched_by_source):
        return Matches()
    keys = plain_keys(context, on, plan.schema, pair, clauses, source)
    if keys is not None:
        return _pairs_of_keys(context, plan, keys, may_meet_many=_may_meet_many(clauses))
    why = "the keys of the source are more than one task may hold"
    return context.executor.by_spark(why, lambda: _pairs_by_spark(context, gate, plan, on, pair, clauses, source))


def _pairs_by_spark(
    context: JobContext,
    gate: SqlGate,
    plan: FilePlan,
    on: str,
    pair: PairColumns,
    clauses: Clauses,
    source: MaterializedSource,
) -> Matches:
    """The same by a join of Spark's."""
    from airflow_txlog.jobs.operations.merge.clause_sql import deciding_sql  # noqa: PLC0415
    from airflow_txlog.jobs.source.frames import frame_of  # noqa: PLC0415 - only with Spark
    from airflow_txlog.jobs.sql.schemas import spark_schema  # noqa: PLC0415

    texts = [on, *clauses.conditions_on_target()]
    target_view, source_view = context.view_name(), context.view_name()
    # Where no match is a reason to act, every row is of interest.
    row_filter = None if clauses.not_matched_by_source else key_filter(on, plan.schema, pair, source)
    scanned = _named(texts, pair.target, pair.source_alias)
    scan_columns(context, plan, scanned, row_filter).createOrReplaceTempView(target_view)
    named = _named(texts, pair.source, pair.target_alias)
    frame_of(context, source, named).createOrReplaceTempView(source_view)
    size_bytes = source.memory_bytes([ROW_ID_COLUMN, *(source.names if named is None else named)])
    s, t = quoted(pair.source_alias), quoted(pair.target_alias)
    source_row = f"{s}.{ROW_ID_COLUMN}"
    by_source = clauses.not_matched_by_source
    selected = f"{t}.*" if by_source else f"{t}.{ADDRESS_COLUMN}"
    query = (
        f"SELECT /*+ {join_hint(context, size_bytes, s)} */ {selected}, {source_row}, "
        f"{deciding_sql(clauses.matched)} AS {CLAUSE_COLUMN} FROM {quoted(target_view)} AS {t} "
        f"{'LEFT JOIN' if by_source else 'JOIN'} {quoted(source_view)} AS {s} ON (\n{on}\n)"
    )
    found = gate.run(_with_unmatched(query, t, deciding_sql(by_source)) if by_source else query)
    return Matches.of_packed(collect(found.mapInArrow(pairs_packed, spark_schema(PAIRS_SCHEMA)), _DOING))


def _pairs_of_keys(context: JobContext, plan: FilePlan, keys: PlainKeys, *, may_meet_many: bool) -> Matches:
    """The same where keys alone decide: the tasks that read them find the pairs."""
    scan = addressed_scan(context, plan, frozenset(keys.columns))
    at_once = context.limits.looked_up_bytes
    pairs = partial(pairs_of_keys, keys.source, keys.clause, may_meet_many=may_meet_many, bytes_at_once=at_once)
    task = Task(source=scan, steps=(pairs, pairs_packed), more_weight=keys.source.scan.bins.weight)
    return Matches.of_packed(collected(context, [task], PAIRS_SCHEMA, _DOING))


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


def join_hint(context: JobContext, size_bytes: int, alias: str) -> str:
    """Return how to join with the side `alias` (quoted), whose columns take so many bytes in a hash table."""
    return f"{'BROADCAST' if size_bytes < context.limits.broadcast_bytes else 'SHUFFLE_MERGE'}({alias})"


def check_unambiguous(context: JobContext, matches: Matches, plan: FilePlan, clauses: Clauses) -> None:
    """Raises AmbiguousMerge where two source rows match a target row that a clause may act on.

    `matches` are those in all files of the plan.
    """
    if _may_meet_many(clauses):
        return
    many, first = matches.met_by_many()
    if first is None:
        return
    file, row = first
    path = plan.name_of(file)
    raise AmbiguousMerge(
        f"{context.root}: at least {many} target rows are matched by more than one source row, the first of them row "
        f"{row} of {path}. It is not defined which one acts: make the source unique in the columns of ON. "
        "Nothing was changed.",
        table=context.root,
        path=path,
        row=row,
    )


def _may_meet_many(clauses: Clauses) -> bool:
    # Without a WHEN MATCHED clause it does not matter how often a row matches.
    return not clauses.matched or clauses.tolerates_many_matches


def _named(texts: Iterable[str], schema: StructType, other_alias: str) -> frozenset[str] | None:
    """The schema's columns that some of the texts may mean, beside the other side's alias; None for any."""
    named: frozenset[str] = frozenset()
    for text in texts:
        found = columns_named(text, schema, other_alias)
        if found is None:
            return None
        named |= found
    return named
