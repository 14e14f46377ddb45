"""The version that the first try of a job met, for work that must never undo a later commit unseen.

A killed try cannot report the version that it met. So the first one notes it, next to the saved work of other jobs, and
every later try counts from there. `Operation.counts_from_first_try` requires it.

The invariant: no note permits what the log forbids. Any process that writes the table may replace or delete the note.
So it is signed. An unsigned note forbids the work; without a signed one the times of the commits decide: none may have
landed since the work was first tried. Source: soundness A23, B11.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import ConcurrentWrite, TableReplaced
from airflow_txlog.exactly_once.transactions import Seal, first_version_note, how_to_repeat, remove_first_version_note
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.storage import Store

NO_TABLE = -1
"""The version that a try meets if there is no table."""

_EXAMPLES = 5
_LARGEST_NOTE_BYTES = 1024
_NOTE_KIND = "first version"
# Most object stores give the times of objects, and their own, in whole seconds.
_COARSE_MS = 2_000
_TICK_MS = 50


def first_version(context: LogContext, head: Snapshot | None) -> int:
    """Return the version that the first try of this work met, or NO_TABLE, and note it if this is the first try.

    It is never later than `head`, the version that this try met (None: no table). Raises ConcurrentWrite, not
    retryable, if commits may have landed since an unknown first version, TableReplaced if the table was dropped since.
    """
    met = _Met(table="", version=NO_TABLE) if head is None else _Met(table=head.metadata.id, version=head.version)
    application = context.spec.application
    if application is None:
        return met.version
    path, seal, store = first_version_note(application), context.seal, context.store
    is_known = True
    try:
        first = _noted(store, path, seal)
    except FileNotFoundError:
        # Before it is noted again: a deleted note must not come back with a later version.
        _check_times(context, application, head)
        first, is_known = met, False
        if not store.put_if_absent(path, first.to_note(seal)):
            # Another copy of this work has just noted the version that it met.
            first = _note_of_other_copy(context, application)
    if first is None:
        what = (
            "was tried before, and its note of the version that it met then "
            f"({path}) cannot be read, or was not written by this task"
        )
        raise _landed(context, application, what, read_version=met.version)
    if first.table not in ("", met.table):
        raise TableReplaced(
            f"{context.root} was dropped since this {_name(context)} was first tried. Nothing was committed. "
            "Start from the new table.",
            table=context.root,
        )
    if is_known and seal is None:
        _check_times(context, application, head)
    return min(first.version, met.version)


def landed_since(context: LogContext, first: int, head: int) -> ConcurrentWrite:
    """Return the error for work that cannot be done on `head`, because its first try met the version `first`."""
    met = "no table" if first == NO_TABLE else f"version {first}"
    what = f"met {met} when it was first tried, and since then landed: {_versions(range(first + 1, head + 1))}"
    return _landed(context, context.spec.application, what, read_version=first, winning_version=first + 1)


def forget_first_version(context: LogContext) -> None:
    """Delete the note, because the work is done. If that fails, VACUUM sweeps it."""
    if context.spec.application is not None:
        with contextlib.suppress(Exception):
            remove_first_version_note(context.store, context.spec.application)


@dataclass(frozen=True, kw_only=True)
class _Met:
    """The content of a note: the id and the version of the table that the first try met; "" and NO_TABLE for none."""

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


def _noted(store: Store, path: str, seal: Seal | None) -> _Met | None:
    """Return the content of a note; None if it is no note, or not signed by this work. Raises FileNotFoundError."""
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
    if type(version) is not int or version < NO_TABLE or (version == NO_TABLE) != (found["table"] == ""):
        return None
    met = _Met(table=found["table"], version=version)
    return met if seal is None or met.is_signed(seal, found.get("signature")) else None


def _check_times(context: LogContext, application: ApplicationTransaction, head: Snapshot | None) -> None:
    """Raise ConcurrentWrite if, by the store's clock, a commit may have landed since the first try of this work."""
    if head is None or application.first_tried_ms is None or application.is_first_try:
        return
    store = context.store
    before_ms, store_ms, now_ms = SYSTEM_CLOCK.now_ms(), store.now_ms(), SYSTEM_CLOCK.now_ms()
    # A disk uses this machine's clock, one tick late.
    is_one_clock = before_ms - _TICK_MS <= store_ms <= now_ms
    first_ms = application.first_tried_ms - (0 if is_one_clock else now_ms - store_ms)
    landed: list[int] = []
    for version in range(head.version, max(-1, head.version - _EXAMPLES - 1), -1):
        info = store.stat(commit_name(version))
        if info is None:
            if not landed:
                what = f"was tried before, and when version {version} landed is not known any more"
                raise _landed(context, application, what, read_version=head.version)
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
        raise _landed(context, application, what, read_version=head.version)


def _versions(landed: range) -> str:
    return "version " + ", ".join(map(str, landed[:_EXAMPLES])) + (", …" if len(landed) > _EXAMPLES else "")


def _note_of_other_copy(context: LogContext, application: ApplicationTransaction) -> _Met | None:
    try:
        return _noted(context.store, first_version_note(application), context.seal)
    except FileNotFoundError:
        # A copy deletes it when the work is done; the caller looks for its commit.
        what = "was tried at the same time by another copy of it, which has ended"
        raise _landed(context, application, what) from None


def _landed(
    context: LogContext, application: ApplicationTransaction | None, what: str, **facts: int
) -> ConcurrentWrite:
    repeat = "" if application is None else f"; to repeat the work all the same, {how_to_repeat(application)}"
    return ConcurrentWrite(
        f"The {_name(context)} of {context.root} {what}. To do it now might undo, unseen, what others have "
        f"committed. Nothing was committed. Look at the table's history{repeat}.",
        table=context.root,
        retryable=False,
        **facts,
    )


def _name(context: LogContext) -> str:
    return context.spec.operation.name.upper()
