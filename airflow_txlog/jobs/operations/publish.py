"""PUBLISH and DISCARD: the end of a staged change.

A publication commits the files that were staged, and none other, on the version that they were made on: the commit loop
compares them with every commit since. It reads no row. It carries the application transaction of the work that staged
the change, so any number of publishers make one commit. A conflict is final, because the rows that were audited are no
longer those that a new run would make. The invariant: the fate of the change is "publish" before the commit is put, and
"discard" or "refused" before a file is deleted. Source: soundness A10, A16, A17.
"""

from __future__ import annotations

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Discard, Publish
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import Transaction
from airflow_txlog.engine.many_files import PARALLELISM, look_up
from airflow_txlog.engine.staged_changes import (
    DISCARD,
    PUBLISH,
    REFUSED,
    StagedChange,
    decide,
    forget,
    read_document,
    refuse,
)
from airflow_txlog.errors import CommitConflict, StagedChangeGone, TableReplaced, VersionNotFound
from airflow_txlog.exactly_once.transactions import done_in
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.files.staged import check_is_ours
from airflow_txlog.jobs.resume.unpublished import gone, opened


def publish(context: LogContext) -> JobResult:
    """Run the job of `context.spec`.

    Raises StagedChangeGone if the change does not wait any more; the conflict that forbids it, not retryable; and the
    errors of `Transaction.commit`.
    """
    id, digest = context.record(Publish).id, context.record(Publish).digest
    done = _done(context)
    if done is not None:
        forget(context.store, id)
        return done
    try:
        with context.step("plan"):
            tx, change = _planned(context, id, digest)
    except StagedChangeGone:
        # Another publisher deletes the document once its commit has landed.
        done = _done(context)
        if done is None:
            raise
        forget(context.store, id)
        return done
    try:
        with context.step("commit"):
            tx.commit(change.commit_operation, change.parameters, change.metrics, tags=change.tags, record_empty=True)
    except CommitConflict as error:
        # The winner may be our own: another publisher's commit.
        done = _done(context)
        if done is None:
            message = f"{error.message} The staged change {id} cannot be published any more: stage it again."
            refuse(context.store, id, error.message)
            raise type(error)(message, **(error.facts | {"retryable": False})) from error
        forget(context.store, id)
        return done
    assert tx.outcome is not None
    if tx.outcome.rebased_over:
        context.log(f"rebased over {plural(len(tx.outcome.rebased_over), 'commit')} without a conflict")
    forget(context.store, id)
    return context.result(
        is_committed=True,
        version=tx.outcome.version,
        read_version=change.base_version,
        metrics=change.metrics,
        files=change.files,
    )


def _planned(context: LogContext, id: str, digest: str) -> tuple[Transaction, StagedChange]:
    """Return the transaction that is the change, once no discard may begin. Raises StagedChangeGone, TableReplaced."""
    change, reads = opened(context, id, digest)
    # Before the fate: a change that this cannot publish may still be discarded.
    tx = _begun(context, id, change)
    fate, why = decide(context.store, id, PUBLISH)
    if fate != PUBLISH:
        what = "a task discards it" if fate == DISCARD else f"an earlier publication failed for good, as {why}"
        raise gone(context, id, what.removesuffix("."))
    # A discard that has ended before the fate was written has taken the document with it; so has a publication.
    found = read_document(context.store, id)
    if found is None or found.digest != digest:
        raise gone(context, id, "it was discarded just now")
    _check_files(context, id, change)
    tx.take(change.content, reads)
    tx.read_application(change.app_id)
    tx.set_application(change.app_id, change.app_version)
    return tx, change


def _done(context: LogContext) -> JobResult | None:
    """Return the result of a publication that has landed already."""
    with context.step("open"):
        return done_in(context.store, context.table.snapshot(), context.spec)


def _begun(context: LogContext, id: str, change: StagedChange) -> Transaction:
    try:
        tx = context.table.begin(change.base_version)
    except VersionNotFound as error:
        # Not refused: another publisher may have read that version in time.
        raise gone(context, id, f"version {change.base_version}, which it was made on, left the log") from error
    assert tx.snapshot is not None
    if tx.snapshot.metadata.id != change.table_id:
        raise TableReplaced(
            f"{context.root} was dropped and created again since the change {id} was staged. Nothing was published. "
            "Stage it again, on the new table.",
            table=context.root,
        )
    return tx


def _check_files(context: LogContext, id: str, change: StagedChange) -> None:
    paths = change.paths(context.root)
    missing = [
        path for path, info in zip(paths, look_up(context.store, paths, PARALLELISM), strict=True) if info is None
    ]
    if missing:
        raise gone(context, id, f"{plural(len(missing), 'file')} of it are gone, the first {missing[0]}")


def discard(context: LogContext) -> JobResult:
    """Run the job of `context.spec`. Does nothing if the change is published, gone, or may be published just now."""
    id, store = context.record(Discard).id, context.store
    with context.step("open"):
        found = read_document(store, id)
        version = context.table.snapshot().version
    nothing = context.result(is_committed=False, version=version, read_version=version)
    if found is None or found.digest != context.record(Discard).digest:
        context.log("there is no such change any more: it was published or discarded, or a VACUUM has deleted it")
        return nothing
    change = found.change
    fate, _ = decide(store, id, DISCARD)
    # After the fate: no publication may begin from here on.
    snapshot, paths = context.table.snapshot(), change.paths(context.root)
    recorded = snapshot.application_version(change.app_id)
    # The table may have forgotten the transaction, and the signature of the document is not checked here.
    is_in_use = snapshot.state.files.at_paths(set(paths)).num_rows > 0
    if is_in_use or (recorded is not None and recorded >= change.app_version):
        context.log("the change is published, and its files belong to the table")
        forget(store, id)
    elif fate not in (DISCARD, REFUSED):
        context.log("a task may be publishing the change: its files stay until it expires, and a VACUUM deletes them")
    else:
        with context.step("discard"):
            for path in paths:
                check_is_ours(path)
            for path in paths:
                store.delete(path)
            forget(store, id)
        context.log(f"{plural(len(paths), 'staged file')} deleted")
    return nothing
