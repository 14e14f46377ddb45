"""TRUNCATE: every live file leaves the table, by the log alone.

Nothing is read, so a lost race spoils nothing: the next attempt removes the files that are then live.
Source: delta-spark, DeltaOperations.Truncate.
"""

from __future__ import annotations

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import Transaction
from airflow_txlog.engine.table.snapshot.files import known_sum, live_row_counts
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.resume.attempts import Change, check_may_remove_rows, run_attempts


def truncate(context: LogContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    return run_attempts(context, lambda tx: _plan(context, tx))


def _plan(context: LogContext, tx: Transaction) -> Change:
    snapshot = tx.snapshot
    assert snapshot is not None
    with context.step("plan"):
        check_may_remove_rows(snapshot, "TRUNCATE")
        files = tx.read_whole_table()
        deleted = known_sum(live_row_counts(files))
    rows = "rows that were never counted" if deleted is None else plural(deleted, "row")
    context.log(f"{plural(files.num_rows, 'file')} with {rows} to remove")
    metrics = {"numRemovedFiles": files.num_rows, "numRemovedBytes": sum(files.column("size").to_pylist())}
    if deleted is not None:
        metrics["numDeletedRows"] = deleted
    return Change(
        operation="TRUNCATE",
        parameters={},
        removed=files,
        metrics=metrics | {"executionTimeMs": context.step_ms("plan")},
        files={"considered": snapshot.num_files, "pruned": 0, "rewritten": 0, "added": 0, "removed": files.num_rows},
    )
