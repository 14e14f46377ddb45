"""A job's change that waits: an attempt that ends before its commit, and the job that commits it later.

The change, what was read for it, the files that are staged and the description of the job become one document
(`engine.staged_changes`), signed and in part encrypted with the key of the work. So only jobs with that key publish it,
and they do it as that work: with its application transaction, which makes one commit of any number of tries and
publishers. Audits of the change leave their descriptions next to it, signed and encrypted in the same way. The
invariant: a file of a document is deleted only by the job that has written the fate "discard", by a VACUUM once the
change waits no longer, or once a change that takes its place is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_txlog.contract.job import ApplicationTransaction, Details, JobResult, JobSpec
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.parquet.encryption import decrypted, encrypted
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.commit.content.attempt import ReadSet
from airflow_txlog.engine.commit.content.staged_content import decode_reads, encode_reads
from airflow_txlog.engine.staged_changes import (
    LONGEST_WAIT_MS,
    REFUSED,
    StagedChange,
    beside,
    digest_of,
    fate_of,
    put_beside,
    put_document,
    read_document,
    remade_id,
    signed_part,
)
from airflow_txlog.engine.table.snapshot.commit_times import moment_text
from airflow_txlog.errors import InvalidJobSpec, InvalidProperty, MetadataChanged, StagedChangeGone
from airflow_txlog.exactly_once.transactions import Seal, check_staged_for, how_to_repeat
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.storage.limits import LOG_FILE

_KIND = "staged change"
_ID_CHARACTERS = 32
_AUDIT_KIND, _AUDIT = "audit of a staged change", "staged-audit-"
# Who audits, by the names of annotations.
_AUDITOR = ("dag_id", "task_id", "map_index")


class _Rest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a document that only jobs with the key of the work can read. `spec` is that of the work's job."""

    reads: bytes
    spec: str


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A change that waits: its content, its reads, and the description of the job that has staged it."""

    change: StagedChange
    reads: ReadSet
    spec: JobSpec


def seal_to_wait(context: LogContext) -> Seal:
    """Return the seal of work that is to wait, before it stages. Raises InvalidJobSpec if no job could publish it."""
    if context.seal is not None:
        return context.seal
    why = (
        "the work has no identity, because execute() was called without a task instance"
        if context.spec.application is None
        else "there is no secret to sign it with: the Variable txlog_saved_work_secret can be neither read nor made"
    )
    raise InvalidJobSpec(
        f"publish=False stages a change of {context.root} for a later task, and {why}. Nothing was staged.",
        argument="publish",
    )


def longest_wait_ms(snapshot: Snapshot) -> int:
    """Return how long a change of the table may wait. Raises InvalidProperty if it may not wait at all."""
    properties = snapshot.table_properties
    retention_ms = properties.deleted_file_retention_ms
    longest_ms = min(LONGEST_WAIT_MS, retention_ms // 2)
    if longest_ms <= 0:
        raise InvalidProperty(
            f"publish=False stages a change of {snapshot.uri} for a later task, and the table keeps files that no "
            "commit names for no time at all (delta.deletedFileRetentionDuration is 0), so another engine's VACUUM "
            "might delete them first. Nothing was staged. Set a longer duration, or publish at once.",
            table=snapshot.uri,
            name="delta.deletedFileRetentionDuration",
            value=str(retention_ms),
        )
    # Afterwards no reader of the log could find out whether it was published.
    forgotten_ms = properties.set_transaction_retention_ms
    return longest_ms if forgotten_ms is None else min(longest_ms, forgotten_ms)


def staged_before(context: LogContext, seal: Seal, snapshot: Snapshot) -> JobResult | None:
    """Return the result of an earlier try of this work that has staged its change already.

    Raises StagedChangeGone if that has expired or a conflict forbids it, IdempotencyKeyReused if it is of other work.
    """
    application = context.spec.application
    assert application is not None
    id = _id_of(context, seal)
    found = read_document(context.store, id)
    if found is None or not seal.is_signed(_KIND, found.signed, found.signature):
        return None
    _check_waits(context, id, found.change)
    if fate_of(context.store, id) == REFUSED:
        raise gone(context, id, "an earlier publication failed for good")
    if check_staged_for(context.spec, snapshot, found.change.tags, found.change.staged_ms):
        context.log("the arguments have changed since: clear the task to have the change staged by the new ones")
    context.log("an earlier try has staged the change already")
    context.kept_inputs = frozenset(found.change.inputs)
    return _result(context, id, found.change, found.digest)


@dataclass(frozen=True, kw_only=True)
class PreparedChange:
    """A change that is ready to wait: its document, not yet in the store."""

    id: str
    change: StagedChange
    signature: str
    signed: bytes


def prepared(
    context: LogContext,
    seal: Seal,
    tx: Transaction,
    *,
    operation: str,
    parameters: Mapping[str, Any],
    metrics: Mapping[str, int],
    files: Mapping[str, int],
    staged: Sequence[StagedFile],
) -> PreparedChange:
    """Return the document of the change that `tx` would commit. Raises the errors of its commit's own checks."""
    snapshot, application = tx.snapshot, context.spec.application
    assert snapshot is not None
    assert application is not None
    content, reads = tx.staged(operation)
    # The job itself may have changed it: by a reservation of identity values.
    newest = context.table.snapshot()
    if content.metadata is not None and newest.metadata != snapshot.metadata:
        raise MetadataChanged(
            f"{context.root}: the metadata has changed between version {snapshot.version}, on which this change of "
            f"the metadata is made, and version {newest.version}, so it could not be published. Nothing was staged.",
            table=context.root,
            read_version=snapshot.version,
        )
    now_ms = context.store.now_ms()
    # Other engines go by the times of the files.
    oldest_ms = min([now_ms, *(file.modification_time_ms for file in staged)])
    change = StagedChange(
        table_id=snapshot.metadata.id,
        base_version=tx.read_version,
        operation=context.spec.operation.name,
        commit_operation=operation,
        app_id=application.app_id,
        app_version=application.version,
        staged_ms=now_ms,
        expires_ms=oldest_ms + longest_wait_ms(snapshot),
        parameters=dict(parameters),
        metrics=dict(metrics),
        files=dict(files),
        tags=context.spec.commit_tags(),
        content=content,
        inputs=list(context.saved_files),
    )
    rest = _Rest(reads=encode_reads(reads), spec=context.spec.replace(result_uri=None).to_json())
    signed = signed_part(change, encrypted(_reading_key(seal), msgspec.msgpack.encode(rest)))
    # No process would read a larger one.
    LOG_FILE.check(len(signed), "the staged change", context.root)
    return PreparedChange(id=_id_of(context, seal), change=change, signature=seal.sign(_KIND, signed), signed=signed)


def stage(context: LogContext, prepared: PreparedChange) -> JobResult | None:
    """Write the document, and return the result with its handle; None if another copy of the work has been faster."""
    change = prepared.change
    if not put_document(context.store, prepared.id, prepared.signature, prepared.signed):
        return None
    context.kept_inputs = frozenset(change.inputs)
    files = plural(len(change.paths(context.root)), "file")
    context.log(f"staged, and not published: {files} wait until {moment_text(change.expires_ms)}")
    return _result(context, prepared.id, change, digest_of(prepared.signed))


def opened(context: LogContext, id: str, digest: str) -> Opened:
    """Return a change that waits. Raises StagedChangeGone."""
    seal = seal_to_wait(context)
    found = read_document(context.store, id)
    if found is None or found.digest != digest or not seal.is_signed(_KIND, found.signed, found.signature):
        what = "there is none" if found is None else "the one that is there is another, or was changed"
        raise gone(context, id, f"{what}: it was discarded, or a VACUUM has deleted it")
    _check_waits(context, id, found.change)
    try:
        rest = msgspec.msgpack.decode(decrypted(_reading_key(seal), found.rest) or b"", type=_Rest)
        return Opened(change=found.change, reads=decode_reads(rest.reads), spec=JobSpec.from_json(rest.spec))
    except (msgspec.MsgspecError, ValueError, InvalidJobSpec) as error:
        raise gone(context, id, "another build of airflow_txlog has written it") from error


def record_audit(context: LogContext, id: str, work: ApplicationTransaction) -> None:
    """Write the description of an audit next to the change that it checks, for a publication that audits again.

    `work` is that which staged the change. The last description of a task counts.
    """
    key = context.spec.saved_work_key
    if key is None:
        context.log("without the Variable txlog_saved_work_secret a publication cannot run this audit again")
        return
    seal = Seal(key, context.root, work)
    auditor = [str(context.spec.annotations.get(name)) for name in _AUDITOR]
    name = _AUDIT + seal.sign(_AUDIT_KIND, "\0".join(auditor).encode())[:_ID_CHARACTERS]
    described = encrypted(_reading_key(seal), context.spec.replace(result_uri=None).to_json().encode())
    data = seal.sign(_AUDIT_KIND, _audit_part(id, name, described)).encode() + b"\n" + described
    put_beside(context.store, id, name, data)


def recorded_audits(context: LogContext, id: str) -> list[JobSpec]:
    """Return the descriptions of the audits of a change, one for each task. Others' files are passed over."""
    seal, found = seal_to_wait(context), []
    for name, data in beside(context.store, id, _AUDIT).items():
        signature, _, described = data.partition(b"\n")
        if not seal.is_signed(_AUDIT_KIND, _audit_part(id, name, described), signature.decode("latin-1")):
            context.log(f"ignored an audit of the staged change {id} that no task of its DAG has written")
            continue
        try:
            found.append(JobSpec.from_json(decrypted(_reading_key(seal), described) or b""))
        except InvalidJobSpec as error:
            raise gone(context, id, "another build of airflow_txlog has written an audit of it") from error
    return found


def _audit_part(id: str, name: str, described: bytes) -> bytes:
    return f"{id}\n{name}\n".encode() + described


def gone(context: LogContext, id: str, why: str) -> StagedChangeGone:
    application = context.spec.application
    if application is not None and application.check_digest:
        again = how_to_repeat(application)
    else:
        # A publisher does not know who has named the work.
        again = "clear the task that staged it; if that has an idempotency_key, give it another one"
    return StagedChangeGone(
        f"The staged change {id} of {context.root} cannot be published: {why}. Nothing was published. To have it made "
        f"again on the newest version, {again}.",
        table=context.root,
        id=id,
    )


def _check_waits(context: LogContext, id: str, change: StagedChange) -> None:
    if context.store.now_ms() >= change.expires_ms:
        raise gone(context, id, f"it has waited since {moment_text(change.staged_ms)}, which is too long")


def _result(context: LogContext, id: str, change: StagedChange, digest: str) -> JobResult:
    return JobResult(
        status="staged",
        operation=change.operation,
        table_uri=context.spec.table_uri,
        read_version=change.base_version,
        metrics=change.metrics,
        files=change.files,
        steps=context.times.as_json(),
        details=Details(
            staged={
                "table_uri": context.spec.table_uri,
                "id": id,
                "digest": digest,
                "operation": change.operation,
                "base_version": change.base_version,
                "metrics": change.metrics,
                "app_id": change.app_id,
                "app_version": change.app_version,
                "staged_ms": change.staged_ms,
                "expires_at": moment_text(change.expires_ms),
            }
        ),
    )


def _id_of(context: LogContext, seal: Seal) -> str:
    """Return the id of the change of this work: another one for a task that was cleared before its publication."""
    application = context.spec.application
    assert application is not None
    if context.spec.remakes is not None:
        return remade_id(context.spec.remakes)
    return seal.sign(f"{_KIND}'s id", str(application.began_ms or "").encode())[:_ID_CHARACTERS]


def _reading_key(seal: Seal) -> bytes:
    return bytes.fromhex(seal.sign(f"encryption of the reads of a {_KIND}", b""))
