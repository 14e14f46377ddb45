"""RESTORE: an earlier version becomes the latest one again, once per application transaction.

It is never replanned, here or by a retry: its author has not seen a later commit, and the restore would undo it
unseen. So a later try restores on top of the version that the first one read
(`resume.first_version`), or not at all. Source: soundness B11.
"""

from __future__ import annotations

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Restore
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import DeltaTable, Snapshot, Transaction
from airflow_txlog.engine.table.schema.properties import APPEND_ONLY
from airflow_txlog.engine.table.snapshot.commit_times import moment_text, parse_moment
from airflow_txlog.engine.upkeep.restore import Restored
from airflow_txlog.engine.upkeep.restore import restore as commit_restore
from airflow_txlog.errors import ConcurrentWrite
from airflow_txlog.exactly_once.transactions import done_in, earlier_run
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.files.erased_subjects import guard_of
from airflow_txlog.jobs.resume.first_version import first_version, forget_first_version, landed_since


def restore(context: LogContext) -> JobResult:
    """Run the job of `context.spec`.

    Raises as `engine.Table.restore`; a ConcurrentWrite is not retryable here. Raises the errors of the guard.
    """
    with context.step("open"):
        table = context.table
        table.guard = guard_of(context, may_leave_out=True)
        tx = table.begin()
    snapshot, application = tx.snapshot, context.spec.application
    assert snapshot is not None
    done = _done(context, table, snapshot)
    if done is None:
        earlier = earlier_run(table.store, snapshot, context.spec)
        if earlier is not None:
            context.log(earlier)
        if application is not None:
            tx.read_application(application.app_id)
            tx.set_application(application.app_id, application.version)
        try:
            first = first_version(context, snapshot)
            if first != snapshot.version:
                raise landed_since(context, first, snapshot.version)
            restored = _commit(context, table, tx)
        except ConcurrentWrite as error:
            # The winner may be our own: the late commit of an earlier try, or another copy's.
            done = _done(context, table, table.snapshot())
            if done is None and not error.retryable:
                raise
            if done is None:
                message, winner = error.message, error.winning_version
                if winner is not None and winner > snapshot.version:
                    # A conflict advises to repeat the operation. A restore must not: it would undo the winner, unseen.
                    message = landed_since(context, snapshot.version, winner).message
                raise ConcurrentWrite(message, **(error.facts | {"retryable": False})) from error
    forget_first_version(context)
    if done is not None:
        return done
    for line in restored.rewound:
        context.log(line)
    if restored.version == snapshot.version:
        return context.result(is_committed=False, version=restored.version, read_version=snapshot.version)
    return context.result(
        is_committed=True,
        version=restored.version,
        read_version=snapshot.version,
        metrics=restored.metrics,
        files={
            "considered": snapshot.num_files,
            "pruned": 0,
            "rewritten": 0,
            "added": restored.metrics["numRestoredFiles"],
            "removed": restored.metrics["numRemovedFiles"],
        },
    )


def _done(context: LogContext, table: DeltaTable, snapshot: Snapshot) -> JobResult | None:
    return None if context.spec.application is None else done_in(table.store, snapshot, context.spec)


def _commit(context: LogContext, table: DeltaTable, tx: Transaction) -> Restored:
    described = context.record(Restore)
    version, timestamp = described.version, described.timestamp
    with context.step("plan"):
        target = table.snapshot(version, timestamp)
    context.log(f"to version {target.version}, of {plural(target.num_files, 'file')}")
    assert tx.snapshot is not None
    if APPEND_ONLY in tx.snapshot.properties and APPEND_ONLY not in target.properties:
        context.log(f"version {target.version} does not have the property {APPEND_ONLY}: the table loses it")
    with context.step("commit"):
        return commit_restore(
            tx,
            target,
            table.store,
            timestamp=None if timestamp is None else moment_text(parse_moment(timestamp)),
            ignore_missing=described.ignore_missing,
            tags=context.spec.commit_tags(),
        )
