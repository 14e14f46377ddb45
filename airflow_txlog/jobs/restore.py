"""RESTORE as a job: an earlier version becomes the latest one again, once per application transaction.

It is tried once and never planned again, here or by a retry: whatever landed meanwhile is a change that the author of
the restore has not seen, and would be undone unseen. Source: soundness B11.
"""

from __future__ import annotations

from airflow_txlog.application import done_in
from airflow_txlog.engine import Snapshot, Table, Transaction
from airflow_txlog.engine.store import open_store
from airflow_txlog.engine.table.time_travel import moment_text, parse_moment
from airflow_txlog.engine.upkeep.restore import Restored
from airflow_txlog.engine.upkeep.restore import restore as commit_restore
from airflow_txlog.errors import ConcurrentWrite
from airflow_txlog.jobs.commit import Change
from airflow_txlog.jobs.context import LogContext, plural
from airflow_txlog.jobs.rounds import Outcome


def restore(context: LogContext) -> Outcome:
    """Run the job of `context.spec`.

    Raises what `engine.Table.restore` raises; a ConcurrentWrite is not retryable here.
    """
    with context.step("open"):
        table = Table(open_store(context.root), strict_writers=context.spec.strict_writers)
        tx = table.begin()
    snapshot, application = tx.snapshot, context.spec.application
    assert snapshot is not None
    if application is not None:
        tx.read_application(application.app_id)
        done = done_in(table.store, snapshot, context.spec)
        if done is not None:
            return Outcome(
                change=None,
                version=done.version,
                read_version=done.read_version,
                is_committed=False,
                rounds=1,
                done=done,
            )
        tx.set_application(application.app_id, application.version)
    restored = _commit(context, table, tx)
    is_committed = restored.version != snapshot.version
    return Outcome(
        change=_told(snapshot, restored) if is_committed else None,
        version=restored.version,
        read_version=snapshot.version,
        is_committed=is_committed,
        rounds=1,
    )


def _commit(context: LogContext, table: Table, tx: Transaction) -> Restored:
    version, timestamp = context.arguments["version"], context.arguments["timestamp"]
    with context.step("plan"):
        target = table.snapshot(version, timestamp)
    context.log(f"to version {target.version}, of {plural(target.num_files, 'file')}")
    try:
        with context.step("commit"):
            return commit_restore(
                tx,
                target,
                table.store,
                timestamp=None if timestamp is None else moment_text(parse_moment(timestamp)),
                ignore_missing=context.arguments["ignore_missing"],
                tags=context.spec.commit_tags(),
            )
    except ConcurrentWrite as error:
        told = f"{error.message} It is not tried again: that would undo, unseen, what landed. Look at it first."
        raise ConcurrentWrite(told, **(error.facts | {"retryable": False})) from error


def _told(before: Snapshot, restored: Restored) -> Change:
    metrics = restored.metrics
    return Change(
        operation="RESTORE",
        parameters={},
        metrics=metrics,
        files={
            "considered": before.num_files,
            "pruned": 0,
            "rewritten": 0,
            "added": metrics["numRestoredFiles"],
            "removed": metrics["numRemovedFiles"],
        },
    )
