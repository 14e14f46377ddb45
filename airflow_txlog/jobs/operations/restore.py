"""RESTORE as a job: an earlier version becomes the latest one again, once per application transaction.

It is never planned again, here or by a retry: whatever landed meanwhile is a change that the author of the restore has
not seen, and would be undone unseen. So the first try notes the version that it meets, beside the saved work of other
jobs, and a later try of the same work restores on top of that version or not at all.

The invariant: no note permits what the log forbids. Any process that writes the table may replace or delete the note.
So it is signed, one that is not forbids the restore, and without one that is signed the times of the commits decide:
none may have landed since the work was first tried. Source: soundness A23, B11.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from airflow_txlog.application import done_in, earlier_run, how_to_repeat, remove_restore_note
from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract import ApplicationTransaction, JobResult
from airflow_txlog.engine import Snapshot, Table, Transaction
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.snapshot.time_travel import moment_text, parse_moment
from airflow_txlog.engine.upkeep.restore import Restored
from airflow_txlog.engine.upkeep.restore import restore as commit_restore
from airflow_txlog.errors import ConcurrentWrite, TableReplaced
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.records import Restore
from airflow_txlog.saved_work import Seal, restore_note
from airflow_txlog.storage import Store
from airflow_txlog.wording import plural

_EXAMPLES = 5


def restore(context: LogContext) -> JobResult:
    """Run the job of `context.spec`.

    Raises what `engine.Table.restore` raises; a ConcurrentWrite is not retryable here.
    """
    with context.step("open"):
        table = context.table
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
            if application is not None:
                _check_head(context, application, table.store, snapshot)
            restored = _commit(context, table, tx)
        except ConcurrentWrite as error:
            # What landed may be our own: the late commit of an earlier try, or another copy's.
            done = _done(context, table, table.snapshot())
            if done is None and not error.retryable:
                raise
            if done is None:
                message = (
                    f"{error.message} It is not tried again: that would undo, unseen, what landed. Look at it first."
                )
                raise ConcurrentWrite(message, **(error.facts | {"retryable": False})) from error
    _forget_head(context, table.store)
    if done is not None:
        return done
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


def _done(context: LogContext, table: Table, snapshot: Snapshot) -> JobResult | None:
    return None if context.spec.application is None else done_in(table.store, snapshot, context.spec)


def _commit(context: LogContext, table: Table, tx: Transaction) -> Restored:
    described = context.record(Restore)
    version, timestamp = described.version, described.timestamp
    with context.step("plan"):
        target = table.snapshot(version, timestamp)
    context.log(f"to version {target.version}, of {plural(target.num_files, 'file')}")
    with context.step("commit"):
        return commit_restore(
            tx,
            target,
            table.store,
            timestamp=None if timestamp is None else moment_text(parse_moment(timestamp)),
            ignore_missing=described.ignore_missing,
            tags=context.spec.commit_tags(),
        )


# --- the version that the first try met -------------------------------------------------------------------------------

_LARGEST_NOTE_BYTES = 1024
_NOTE_KIND = "restore head"
# Most object stores give the times of objects, and their own, in whole seconds.
_COARSE_MS = 2_000
_TICK_MS = 50


@dataclass(frozen=True, kw_only=True)
class _Head:
    """What a note holds: the table's id and the version that the first try of a RESTORE met."""

    table: str
    version: int

    def to_note(self, seal: Seal | None) -> bytes:
        signature = None if seal is None else seal.sign(_NOTE_KIND, self._signed)
        return json.dumps({"table": self.table, "version": self.version, "signature": signature}).encode()

    def is_signed(self, seal: Seal, signature: object) -> bool:
        return isinstance(signature, str) and seal.is_signed(_NOTE_KIND, self._signed, signature)

    @property
    def _signed(self) -> bytes:
        return f"{self.version} {self.table}".encode()


def _noted(store: Store, path: str, seal: Seal | None) -> _Head | None:
    """Return what a note says; None if it is no note, or not signed by this work. Raises FileNotFoundError."""
    info = store.stat(path)
    if info is not None and info.size_bytes > _LARGEST_NOTE_BYTES:
        return None
    try:
        found = json.loads(store.read(path))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("table"), str):
        return None
    version = found.get("version")
    if type(version) is not int or version < 0:
        return None
    head = _Head(table=found["table"], version=version)
    return head if seal is None or head.is_signed(seal, found.get("signature")) else None


def _check_head(context: LogContext, application: ApplicationTransaction, store: Store, head: Snapshot) -> None:
    """Note the version that the first try of this work meets, and let no later try restore on top of another one.

    Raises ConcurrentWrite, not retryable, where commits have landed since, or may have: a try that was killed cannot
    report. TableReplaced where the table was made again.
    """
    path, seal = restore_note(application), context.seal
    is_known = True
    try:
        first = _noted(store, path, seal)
    except FileNotFoundError:
        # Before it is noted again: a note that somebody has deleted must not come back with a later version.
        _check_times(context, application, store, head)
        first, is_known = _Head(table=head.metadata.id, version=head.version), False
        if not store.put_if_absent(path, first.to_note(seal)):
            # Another copy of this work has just noted what it met.
            first = _note_of_other_copy(context, application, store, head)
    if first is None:
        what = (
            "was tried before, and its note of the version that it met then "
            f"({path}) cannot be read, or was not written by this task"
        )
        raise _landed(context, application, head, None, what)
    if first.table != head.metadata.id:
        raise TableReplaced(
            f"{context.root} was dropped and created again since this RESTORE was first tried. Nothing was committed. "
            "Start from the new table.",
            table=context.root,
        )
    if first.version != head.version:
        landed = range(first.version + 1, head.version + 1)
        what = f"met version {first.version} when it was first tried, and since then landed: {_versions(landed)}"
        raise _landed(context, application, head, first.version, what)
    if is_known and seal is None:
        _check_times(context, application, store, head)


def _check_times(context: LogContext, application: ApplicationTransaction, store: Store, head: Snapshot) -> None:
    """Raise ConcurrentWrite if a commit has landed since this work was first tried, by the times of the store.

    A try that is known to be the first one has nothing to compare; nor has work that does not say when it began.
    """
    if application.first_tried_ms is None or application.is_first_try:
        return
    before_ms, store_ms, now_ms = SYSTEM_CLOCK.now_ms(), store.now_ms(), SYSTEM_CLOCK.now_ms()
    # A disk's clock is this machine's, a tick late.
    is_one_clock = before_ms - _TICK_MS <= store_ms <= now_ms
    first_ms = application.first_tried_ms - (0 if is_one_clock else now_ms - store_ms)
    landed: list[int] = []
    for version in range(head.version, max(-1, head.version - _EXAMPLES - 1), -1):
        info = store.stat(commit_name(version))
        if info is None:
            if not landed:
                what = f"was tried before, and when version {version} landed is not known any more"
                raise _landed(context, application, head, None, what)
            break
        if info.modified_ms + (0 if info.modified_ms % 1000 else _COARSE_MS) < first_ms:
            break
        landed.append(version)
    if landed:
        minutes = (now_ms - application.first_tried_ms) / 60_000
        what = (
            f"was first tried {minutes:.0f} minutes ago, which version it met then is not known any more, and since "
            f"then landed, or may have: {_versions(range(landed[-1], head.version + 1))}"
        )
        raise _landed(context, application, head, None, what)


def _versions(landed: range) -> str:
    return "version " + ", ".join(map(str, landed[:_EXAMPLES])) + (", …" if len(landed) > _EXAMPLES else "")


def _note_of_other_copy(
    context: LogContext, application: ApplicationTransaction, store: Store, head: Snapshot
) -> _Head | None:
    try:
        return _noted(store, restore_note(application), context.seal)
    except FileNotFoundError:
        # A copy deletes it when the work is done; the caller looks for its commit.
        what = "was tried at the same time by another copy of it, which has ended"
        raise _landed(context, application, head, None, what) from None


def _landed(
    context: LogContext, application: ApplicationTransaction, head: Snapshot, first: int | None, what: str
) -> ConcurrentWrite:
    return ConcurrentWrite(
        f"The RESTORE of {context.root} {what}. To restore now would undo, unseen, "
        "what others have committed. Nothing was committed. Look at the table's history; to restore all the same, "
        f"{how_to_repeat(application)}.",
        table=context.root,
        read_version=head.version if first is None else first,
        winning_version=None if first is None else first + 1,
        retryable=False,
    )


def _forget_head(context: LogContext, store: Store) -> None:
    """The work is done. What cannot be deleted is left to a VACUUM."""
    if context.spec.application is not None:
        with contextlib.suppress(Exception):
            remove_restore_note(store, context.spec.application)
