"""Pairs of a merge: every target row and source row that ON matches, and the clause that acts on them.

One Spark job joins the rows of the scanned files with the materialized source and yields numbers only, which its tasks
pack file by file: where the target row lives, which source row it met, which clause acts.

The invariant: these are *all* pairs that ON matches, also those on which no clause acts, because they decide what is
ambiguous and what is inserted; and every target row that matches nothing and on which a WHEN NOT MATCHED BY SOURCE
clause acts. Source: delta-spark, MergeIntoCommand; soundness A1.
"""

from __future__ import annotations

from functools import partial

from airflow_txlog.datafiles.tasks.found_rows import PAIRS_SCHEMA, pairs_packed
from airflow_txlog.datafiles.tasks.key_rows import pairs_of_keys
from airflow_txlog.datafiles.tasks.scan_and_write import Task
from airflow_txlog.errors import AmbiguousMerge
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.operations.merge.clauses import Clauses
from airflow_txlog.jobs.operations.merge.plain_merge import PairColumns, PlainKeys, plain_keys
from airflow_txlog.jobs.rows.find import addressed_scan
from airflow_txlog.jobs.rows.matches import Matches
from airflow_txlog.jobs.source.materialized import MaterializedSource

MATCHING = "match source and target"


def find_by_keys(
    context: JobContext,
    plan: FilePlan,
    on: str,
    pair: PairColumns,
    clauses: Clauses,
    source: MaterializedSource,
) -> Matches | None:
    """Return the matches by the accepted condition `on` in all rows of the planned files, if tasks can find them.

    None: they need a join of Spark's.
    """
    if plan.num_files == 0 or (source.num_rows == 0 and not clauses.not_matched_by_source):
        return Matches()
    keys = plain_keys(context, on, plan.schema, pair, clauses, source)
    if keys is None:
        return None
    return _pairs_of_keys(context, plan, keys, may_meet_many=_may_meet_many(clauses))


def _pairs_of_keys(context: JobContext, plan: FilePlan, keys: PlainKeys, *, may_meet_many: bool) -> Matches:
    """The same where keys alone decide: the tasks that read them find the pairs."""
    scan = addressed_scan(context, plan, frozenset(keys.columns))
    at_once = context.limits.looked_up_bytes
    pairs = partial(pairs_of_keys, keys.source, keys.clause, may_meet_many=may_meet_many, bytes_at_once=at_once)
    task = Task(source=scan, steps=(pairs, pairs_packed), more_weight=keys.source.scan.bins.weight)
    return Matches.of_packed(context.executor.run([task], PAIRS_SCHEMA, MATCHING))


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
