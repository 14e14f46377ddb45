"""RESTORE as a job: an earlier version becomes the latest one again, once per application transaction.

It is never planned again, here or by a retry: whatever landed meanwhile is a change that the author of the restore has
not seen, and would be undone unseen. So the first try notes the version that it meets, beside the saved work of other
jobs, and a later try of the same work restores on top of that version or not at all.

The invariant: the note can only forbid. It is not signed as other saved work is, and any process that writes the table
may have written it: so it names no file, and one that cannot be read forbids the restore. Source: soundness B11.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from airflow_txlog.application import done_in, earlier_run, how_to_repeat, remove_restore_note
from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract import ApplicationTransaction, JobResult
from airflow_txlog.engine import Snapshot, Table, Transaction
from airflow_txlog.engine.table.snapshot.time_travel import moment_text, parse_moment
from airflow_txlog.engine.upkeep.restore import Restored
from airflow_txlog.engine.upkeep.restore import restore as commit_restore
from airflow_txlog.engine.upkeep.vacuum import ORPHAN_RETENTION_FLOOR_MS
from airflow_txlog.errors import ConcurrentWrite, TableReplaced
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.records import Restore
from airflow_txlog.saved_work import restore_note
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

# A VACUUM may delete the note of it once it is a day old, so a try that finds none is not believed to be the first one
# after half of that.
_KNOWN_FOR_MS = ORPHAN_RETENTION_FLOOR_MS // 2
_LARGEST_NOTE_BYTES = 1024


def _noted(store: Store, path: str) -> dict[str, Any] | None:
    """What a note says; None for what is no note. Raises FileNotFoundError."""
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
    return found if type(version) is int and version >= 0 else None


def _check_head(context: LogContext, application: ApplicationTransaction, store: Store, head: Snapshot) -> None:
    """Note the version that the first try of this work meets, and let no later try restore on top of another one.

    Raises ConcurrentWrite, not retryable, where commits have landed since, or may have: a try that was killed cannot
    report. TableReplaced where the table was made again.
    """
    path = restore_note(application)
    try:
        first = _noted(store, path)
    except FileNotFoundError:
        first = {"table": head.metadata.id, "version": head.version}
        tried_ms = application.first_tried_ms
        if tried_ms is not None and SYSTEM_CLOCK.now_ms() - tried_ms >= _KNOWN_FOR_MS:
            hours = (SYSTEM_CLOCK.now_ms() - tried_ms) / 3_600_000
            what = f"was first tried {hours:.0f} hours ago, and which version it met then is not known any more"
            raise _landed(context, application, head, None, what) from None
        if not store.put_if_absent(path, json.dumps(first).encode()):
            # Another copy of this work has just noted what it met.
            first = _note_of_other_copy(context, application, store, head)
    if first is None:
        what = f"was tried before, and its note of the version that it met then ({path}) cannot be read"
        raise _landed(context, application, head, None, what)
    if first["table"] != head.metadata.id:
        raise TableReplaced(
            f"{context.root} was dropped and created again since this RESTORE was first tried. Nothing was committed. "
            "Start from the new table.",
            table=context.root,
        )
    if first["version"] != head.version:
        landed = range(first["version"] + 1, head.version + 1)
        shown = ", ".join(map(str, landed[:_EXAMPLES])) + (", …" if len(landed) > _EXAMPLES else "")
        what = f"met version {first['version']} when it was first tried, and since then landed: version {shown}"
        raise _landed(context, application, head, first["version"], what)


def _note_of_other_copy(
    context: LogContext, application: ApplicationTransaction, store: Store, head: Snapshot
) -> dict[str, Any] | None:
    try:
        return _noted(store, restore_note(application))
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
