"""DELETE: the rows of which the predicate is TRUE go; a row of which it is NULL stays.

Where the predicate speaks of partition columns only, whole files go without being read, as Spark says of their
partition values; else the files that hold a matching row are copied without it.
Source: delta-spark, DeleteCommand; soundness A9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.datafiles.output import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.files import live_row_counts, vectors_of
from airflow_txlog.jobs.commit import Change, predicate_parameter
from airflow_txlog.jobs.context import JobContext, plural
from airflow_txlog.jobs.find import FoundRows, files_outside, find_rows
from airflow_txlog.jobs.partitions import Partitions
from airflow_txlog.jobs.rounds import Outcome, run_rounds
from airflow_txlog.jobs.scan import plan_files
from airflow_txlog.jobs.schemas import spark_table_schema
from airflow_txlog.jobs.scope import both, check_may_remove_rows, files_inside, known_sum, read_condition, read_scope
from airflow_txlog.jobs.sql import SqlGate, aliased, columns_named
from airflow_txlog.jobs.stage import layout_of, stage


def delete(context: JobContext) -> Outcome:
    """Run the job of `context.spec`; raises TxlogError."""
    gate = SqlGate(context, context.parameters)
    return run_rounds(context, lambda tx: _plan(context, gate, tx))


@dataclass(frozen=True, kw_only=True)
class _Candidates:
    """The files that may hold a matching row: those that hold nothing else, and those to look into."""

    whole: pa.Table
    to_scan: pa.Table

    @property
    def num_files(self) -> int:
        return int(self.whole.num_rows + self.to_scan.num_rows)


def _plan(context: JobContext, gate: SqlGate, tx: Transaction) -> Change:
    snapshot = tx.snapshot
    assert snapshot is not None
    condition = context.arguments["predicate"] or "TRUE"
    with context.step("plan"):
        check_may_remove_rows(snapshot, "DELETE")
        candidates = _candidates(context, gate, tx, snapshot, condition)
    context.log(
        f"{plural(snapshot.num_files, 'file')} considered, {snapshot.num_files - candidates.num_files} pruned, "
        f"{candidates.whole.num_rows} removed without reading, {candidates.to_scan.num_rows} to scan"
    )
    with context.step("find"):
        plan = plan_files(snapshot, candidates.to_scan, context.spec.time_zone)
        found = FoundRows(positions={})
        if plan.num_files:
            found = find_rows(context, gate, plan, condition, columns_named(condition, snapshot.delta_schema))
        # A compaction of files in which nothing was found, and that lands first, does not concern us.
        tx.read_files(files_outside(candidates.to_scan, found.positions), matched=False)
    context.log(f"{plural(found.num_rows, 'row')} to delete in {plural(len(found.positions), 'file')}")
    with context.step("rewrite"):
        copies = found.plan(plan, found.partly(plan))
        staged = stage(context, layout_of(context, snapshot), copies=copies, rows=None)
    return _change(context, snapshot, condition, candidates, found, staged)


def _change(
    context: JobContext,
    snapshot: Snapshot,
    condition: str,
    candidates: _Candidates,
    found: FoundRows,
    staged: Sequence[StagedFile],
) -> Change:
    touched = candidates.to_scan.take(pa.array(sorted(found.positions), pa.int64()))
    removed = pa.concat_tables([candidates.whole, touched])
    deleted = known_sum([*live_row_counts(candidates.whole), found.num_rows])
    return Change(
        operation="DELETE",
        parameters={"predicate": predicate_parameter([_told(context, condition)])},
        staged=staged,
        removed=removed,
        # As delta-spark has it: a delete that reads no file cannot always know how many rows went.
        metrics=_metrics(context, removed, staged) | ({} if deleted is None else {"numDeletedRows": deleted}),
        files={
            "considered": snapshot.num_files,
            "pruned": snapshot.num_files - candidates.num_files,
            "rewritten": len(staged),
            "added": len(staged),
            "removed": removed.num_rows,
        },
    )


def _metrics(context: JobContext, removed: pa.Table, staged: Sequence[StagedFile]) -> dict[str, int]:
    return {
        "numRemovedFiles": removed.num_rows,
        "numRemovedBytes": sum(removed.column("size").to_pylist()),
        "numAddedFiles": len(staged),
        "numAddedBytes": sum(file.size_bytes for file in staged),
        "numCopiedRows": sum(file.num_records for file in staged),
        "numAddedChangeFiles": 0,
        "numDeletionVectorsAdded": 0,
        "numDeletionVectorsRemoved": len(vectors_of(removed)),
        "numDeletionVectorsUpdated": 0,
        "executionTimeMs": sum(context.step_ms(name) for name in ("plan", "find", "rewrite")),
        "scanTimeMs": context.step_ms("find"),
        "rewriteTimeMs": context.step_ms("rewrite"),
    }


def _candidates(context: JobContext, gate: SqlGate, tx: Transaction, snapshot: Snapshot, condition: str) -> _Candidates:
    used = gate.condition(condition, aliased(gate.shape(spark_table_schema(snapshot))))
    partitions = Partitions(context, gate, snapshot.delta_schema, snapshot.partition_columns)
    scope, scope_read = read_scope(context, gate, snapshot, partitions)
    gate.check_all_used()
    condition_read = read_condition(context, snapshot, condition, used)
    files = files_inside(partitions, scope, tx.read(both(condition_read, scope_read)))
    named = columns_named(condition, snapshot.delta_schema)
    # A text without the name of a data column is worth the question.
    if named is not None and named <= set(partitions.columns) and partitions.speaks_of_partitions_only(condition):
        return _Candidates(whole=files_inside(partitions, condition, files), to_scan=files.slice(0, 0))
    return _Candidates(whole=files.slice(0, 0), to_scan=files)


def _told(context: JobContext, condition: str) -> str:
    scope = context.arguments["partition_predicate"]
    return condition if scope is None else f"({scope}) AND ({condition})"
