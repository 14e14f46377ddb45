"""UPSERT: a MERGE whose ON and clauses follow from key columns."""

from __future__ import annotations

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import InsertClause, Merge, UpdateClause, Upsert
from airflow_txlog.contract.operations.fields import ClauseAssignments
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.operations.merge.by_keys import MergeByKeys, merge_by_keys
from airflow_txlog.jobs.operations.merge.keys import source_values
from airflow_txlog.jobs.rows.pipeline import run_row_operation


def upsert(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    described = context.record(Upsert)
    return run_row_operation(context, lambda job: MergeByKeys(job, described, as_merge(described)))


def as_merge(upsert: Upsert) -> Merge:
    """Return the merge that does what the upsert describes. Its texts are quoted names alone."""
    updated: ClauseAssignments = "*"
    if upsert.columns is not None:
        updated = source_values(upsert.columns)
    return merge_by_keys(upsert, UpdateClause(when="matched", set=updated), InsertClause(values="*"))
