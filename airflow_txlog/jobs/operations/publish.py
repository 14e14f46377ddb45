"""PUBLISH and DISCARD: the end of a staged change.

A publication commits the files that were staged, and none other, on the version that they were made on: the commit loop
compares them with every commit since. It reads no row. It carries the application transaction of the work that staged
the change, so any number of publishers make one commit. A conflict is final for a change, because the rows that were
audited are no longer those that a new run would make. With `on_change: reaudit` the change is then made again, as
another one that takes its place, and audited again. The invariants: the fate of a change is "publish" before the commit
is put, and "discard" or "refused" before a file is deleted; for a change that was made again it is "publish" only after
the audits that this job has run on it. Source: soundness A10, A16, A17.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.operations import Audit, Discard, Publish
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import Transaction
from airflow_txlog.engine.many_files import PARALLELISM, look_up
from airflow_txlog.engine.staged_changes import (
    DISCARD,
    PUBLISH,
    REFUSED,
    Document,
    StagedChange,
    chain_of,
    decide,
    fate_of,
    forget,
    read_document,
    refuse,
    remade_id,
)
from airflow_txlog.errors import (
    AuditFailed,
    CommitConflict,
    InvalidJobSpec,
    StagedChangeGone,
    SubjectReturns,
    TableReplaced,
    VersionNotFound,
)
from airflow_txlog.exactly_once.transactions import done_in
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.files.erased_subjects import guard_of
from airflow_txlog.jobs.files.staged import check_is_ours
from airflow_txlog.jobs.resume.unpublished import Opened, gone, opened, recorded_audits
from airflow_txlog.locations import PRIVATE_PREFIX
from airflow_txlog.storage import Store
from airflow_txlog.storage.base import inner_parts

# Saved work holds for one dialect of SQL.
_DIALECT = "spark.sql.ansi.enabled"


def publish(context: LogContext) -> JobResult:
    """Run the job of `context.spec`.

    Raises StagedChangeGone if the change does not wait any more; the conflict that forbids it, not retryable; the
    errors of `Transaction.commit`; and, if the change is made again, those of its job and its audits.
    """
    described = context.record(Publish)
    context.table.guard = guard_of(context)
    result = _done(context)
    if result is None:
        try:
            if described.on_change == "reaudit":
                result = _published_in_the_end(context, described)
            else:
                result = _published(context, described.id, described.digest)
        except StagedChangeGone:
            # Another publisher deletes the document once its commit has landed.
            result = _done(context)
            if result is None:
                raise
    if result.status != "nothing_to_do":
        _forget_published(context, described.id)
    return result


def _published(context: LogContext, id: str, digest: str) -> JobResult:
    """Commit a change. A conflict refuses it for ever, and is raised as one that no retry may repeat."""
    with context.step("plan"):
        tx, change = _planned(context, id, digest)
    try:
        with context.step("commit"):
            tx.commit(change.commit_operation, change.parameters, change.metrics, tags=change.tags, record_empty=True)
    except SubjectReturns as error:
        return _refused(context, id, error)
    except CommitConflict as error:
        # The winner may be our own: another publisher's commit.
        done = _done(context)
        if done is None:
            message = f"{error.message} The staged change {id} cannot be published any more: stage it again."
            refuse(context.store, id, error.message)
            raise type(error)(message, **(error.facts | {"retryable": False})) from error
        return done
    assert tx.outcome is not None
    context.met = tx.outcome.met
    if tx.outcome.rebased_over:
        context.log(f"rebased over {plural(len(tx.outcome.rebased_over), 'commit')} without a conflict")
    return context.result(
        is_committed=True,
        version=tx.outcome.version,
        read_version=change.base_version,
        metrics=change.metrics,
        files=change.files,
    )


def _refused(context: LogContext, id: str, error: SubjectReturns) -> JobResult:
    """Refuse a change that holds a subject whose erasure was recorded after the change's fate was written.

    Raises SubjectReturns unless another publisher was faster. From then on a task may discard the change.
    """
    # Another publisher, which has compared the files before the erasure, loses to this commit and compares them again.
    context.table.begin().commit("ERASE", record_empty=True)
    done = _done(context)
    if done is not None:
        return done
    refuse(context.store, id, "it holds an erased subject")
    raise type(error)(f"{error.message} The staged change {id} waits until it is discarded.", **error.facts) from error


def _planned(context: LogContext, id: str, digest: str) -> tuple[Transaction, StagedChange]:
    """Return the transaction that is the change, once no discard may begin. Raises StagedChangeGone, TableReplaced."""
    found = opened(context, id, digest)
    change = found.change
    # Before the fate: a change that this cannot publish may still be discarded.
    tx = _begun(context, id, change)
    if tx.guard is not None:
        content = change.content
        tx.guard.admitted(tx.snapshot, content.metadata or tx.metadata, content.adds, content.changes)
    fate, why = decide(context.store, id, PUBLISH)
    if fate != PUBLISH:
        what = "a task discards it" if fate == DISCARD else f"an earlier publication failed for good, as {why}"
        raise gone(context, id, what.removesuffix("."))
    # A discard that has ended before the fate was written has taken the documents with it; so has a publication.
    document = read_document(context.store, id)
    if document is None or document.digest != digest or read_document(context.store, _first(context)) is None:
        if document is None:
            # Nothing else would delete the fate.
            forget(context.store, [id])
        raise gone(context, id, "it was discarded just now")
    _check_files(context, id, change)
    tx.take(change.content, found.reads)
    tx.read_application(change.app_id)
    tx.set_application(change.app_id, change.app_version)
    return tx, change


def _first(context: LogContext) -> str:
    return context.record(Publish).id


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
    _check_table(context, change, tx.snapshot.metadata.id)
    return tx


def _check_table(context: LogContext, change: StagedChange, table_id: str) -> None:
    if table_id != change.table_id:
        raise TableReplaced(
            f"{context.root} was dropped and created again since the change {_first(context)} was staged. Nothing was "
            "published. Stage it again, on the new table.",
            table=context.root,
        )


def _check_files(context: LogContext, id: str, change: StagedChange) -> None:
    paths = change.paths(context.root)
    missing = [
        path for path, info in zip(paths, look_up(context.store, paths, PARALLELISM), strict=True) if info is None
    ]
    if missing:
        raise gone(context, id, f"{plural(len(missing), 'file')} of it are gone, the first {missing[0]}")


# --- made and audited again ----------------------------------------------------------------------------------------


def _published_in_the_end(context: LogContext, described: Publish) -> JobResult:
    """Commit the change, or the one that takes its place after a conflict, and so on.

    The fates show a later try how far this one came.
    """
    id, digest, deadline_ms = described.id, described.digest, None
    first = opened(context, id, digest)
    _check_dialect(context, first.spec, "the task which staged the change, so the change could not be made again alike")
    while True:
        if fate_of(context.store, id) != REFUSED:
            try:
                return _published(context, id, digest)
            except CommitConflict as error:
                deadline_ms = deadline_ms or context.clock.now_ms() + context.spec.conflict_deadline_s * 1000
                if context.clock.now_ms() >= deadline_ms:
                    raise
                winner = error.facts.get("winning_version")
                who = type(error).__name__ if winner is None else f"version {winner}"
                context.log(f"{who} has changed what was audited: the change is made and audited again")
            except StagedChangeGone:
                # Another publisher may have met a conflict just now.
                if fate_of(context.store, id) != REFUSED:
                    raise
        made = _made_again(context, first, id)
        if isinstance(made, JobResult):
            return made
        id, digest = made


def _check_dialect(context: LogContext, other: JobSpec, whose: str) -> None:
    if other.spark_conf.get(_DIALECT) != context.spec.spark_conf.get(_DIALECT):
        raise InvalidJobSpec(
            f"spark_conf has another {_DIALECT} than that of {whose}. Nothing was published. Give both tasks the same "
            "one.",
            argument="spark_conf",
        )


def _made_again(context: LogContext, first: Opened, id: str) -> tuple[str, str] | JobResult:
    """Return the id and the digest of the change that takes the place of `id`, once it has passed the audits.

    The digest is empty if that one is refused as well. Returns a result if there is nothing left to publish. Raises
    StagedChangeGone if there is no audit to run, AuditFailed, and the errors of the job that staged the change.
    """
    remade = remade_id(id)
    fate = fate_of(context.store, remade)
    if fate == DISCARD:
        raise gone(context, _first(context), "a task discards it")
    if fate == REFUSED:
        return remade, ""
    audits = recorded_audits(context, _first(context))
    missing = {*(context.record(Publish).audited_by or ())} - {each.annotations.get("task_id") for each in audits}
    if missing or not audits:
        which = f"the audits by {', '.join(sorted(missing))} are not" if missing else "no audit of it is"
        raise gone(context, _first(context), f"another commit has changed what it read, and {which} recorded")
    for audit in audits:
        _check_dialect(context, audit, "a task which audited the change, so its SQL could pass what it has to stop")
    assert context.run is not None
    with context.step("make again"):
        result = context.run(first.spec.replace(remakes=id, saved_work_key=context.spec.saved_work_key))
    if result.status == "already_done":
        return result
    found = read_document(context.store, remade)
    if result.status == "nothing_to_do":
        context.log("on the newest version there is nothing left to change")
        return context.result(is_committed=False, version=result.version, read_version=result.read_version)
    if found is None:
        raise gone(context, _first(context), "it was discarded just now")
    _check_table(context, first.change, found.change.table_id)
    for audit in audits:
        _audit(context, audit, remade, found)
    return remade, found.digest


def _audit(context: LogContext, audit: JobSpec, id: str, found: Document) -> None:
    """Run an audit on a change that was made again. If it fails, no publisher may publish the change."""
    assert context.run is not None
    assert isinstance(audit.operation, Audit)
    operation = msgspec.structs.replace(
        audit.operation, id=id, digest=found.digest, base_version=found.change.base_version, app_id=None
    )
    try:
        with context.step("audit"):
            context.run(audit.replace(operation=operation))
    except AuditFailed as error:
        decide(context.store, id, REFUSED, error.message)
        raise


# --- the end -------------------------------------------------------------------------------------------------------


def _forget_published(context: LogContext, first: str) -> None:
    """Delete the documents of a published change, and the files of it that a change which took its place lacks."""
    store = context.store
    ids = chain_of(store, first)
    found = [read_document(store, id) for id in ids]
    if len(ids) > 1 and found[-1] is not None:
        refused = {path for each in found[:-1] if each is not None for path in each.change.paths(context.root)}
        left = refused - set(found[-1].change.paths(context.root))
        with suppress(Exception):
            live = context.table.snapshot().state.files.at_paths(left)
            if live.num_rows == 0:
                _delete_staged(store, left)
    _delete_inputs(store, found)
    forget(store, ids)


def _delete_staged(store: Store, paths: set[str]) -> None:
    for path in paths:
        check_is_ours(path)
    for path in sorted(paths):
        store.delete(path)


def _delete_inputs(store: Store, found: Sequence[Document | None]) -> None:
    """Delete the saved work from which the changes could be made again. A VACUUM takes what is left."""
    paths = {path for each in found if each is not None for path in each.change.inputs}
    with suppress(Exception):
        for path in sorted(paths):
            folder, *_ = parts = inner_parts(path)
            # A document is not signed for a discard.
            if folder.startswith(PRIVATE_PREFIX) and len(parts) > 1:
                store.delete(path)
        for folder in {path.rpartition("/")[0] for path in paths}:
            store.delete_empty_directory(folder)


def discard(context: LogContext) -> JobResult:
    """Run the job of `context.spec`. Does nothing if the change is published, gone, or may be published just now."""
    id, store = context.record(Discard).id, context.store
    with context.step("open"):
        first = read_document(store, id)
        version = context.table.snapshot().version
    nothing = context.result(is_committed=False, version=version, read_version=version)
    if first is None or first.digest != context.record(Discard).digest:
        context.log("there is no such change any more: it was published or discarded, or a VACUUM has deleted it")
        return nothing
    change, ids = first.change, [id]
    # A task may be making a refused change again. It must not publish that, either.
    while (fate := decide(store, ids[-1], DISCARD)[0]) == REFUSED:
        ids.append(remade_id(ids[-1]))
    # After the fate: no publication may begin from here on.
    found = [each for each in (read_document(store, id) for id in ids) if each is not None]
    snapshot, paths = context.table.snapshot(), {path for each in found for path in each.change.paths(context.root)}
    recorded = snapshot.application_version(change.app_id)
    # The table may have forgotten the transaction, and the signature of the document is not checked here.
    is_in_use = snapshot.state.files.at_paths(paths).num_rows > 0
    if is_in_use or (recorded is not None and recorded >= change.app_version):
        context.log("the change is published, and its files belong to the table")
        _forget_published(context, id)
    elif fate != DISCARD:
        context.log("a task may be publishing the change: its files stay until it expires, and a VACUUM deletes them")
    else:
        with context.step("discard"):
            _delete_staged(store, paths)
            _delete_inputs(store, found)
            forget(store, ids)
        context.log(f"{plural(len(paths), 'staged file')} deleted")
    return nothing
