"""The commit loop: put the next version if it is absent; after a lost race, rebase and try the one after.

Two invariants:

* A lost response is not a lost race. The bytes of every attempt contain a unique id, and after any response except
  success the version is read back: our bytes mean committed, other bytes mean lost, and if there are none, the same
  bytes are put again at the same version. An attempt at the next version starts only after this one was *read* and
  belongs to another writer.
* An unknown outcome is raised as CommitStateUnknown, never guessed, and nothing staged is deleted after it.

Source: protocol, "Commit files"; delta-spark, OptimisticTransaction.doCommitRetryIteratively.
"""

from __future__ import annotations

import enum
import errno
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_txlog.clock import Clock
from airflow_txlog.engine.commit.content.attempt import Attempt, Guard
from airflow_txlog.engine.commit.content.met import NONE_MET, How, Meeting, Meetings
from airflow_txlog.engine.commit.course import Course, vanished
from airflow_txlog.engine.commit.handed import handed_on
from airflow_txlog.engine.commit.writers import commit_turn
from airflow_txlog.engine.log.actions import encode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.tail import OwnCommit, own_commit
from airflow_txlog.engine.table.schema.features import check_committer
from airflow_txlog.errors import (
    CatalogRefused,
    CommitContention,
    CommitStateUnknown,
    CredentialsUnavailable,
    OutsideTable,
    TableNotInCatalog,
    UnsupportedStore,
    WrongTableId,
)
from airflow_txlog.storage.base import FileInfo, NothingSent, Store
from airflow_txlog.storage.limits import LOG_FILE

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """How long the loop keeps trying."""

    max_attempts: int = 1000
    """Races that may be lost before CommitContention is raised. Another writer has committed in each of them."""
    race_wait_s: float = 0.02
    """The longest wait from the second lost race on; each is drawn evenly from half of it to all of it. It does not
    grow: a growing wait would favour the last winner, which does not wait."""
    first_backoff_s: float = 0.01
    max_backoff_s: float = 1.0
    """Bounds of the growing wait before an unanswered put is repeated."""
    unknown_deadline_s: float = 60.0
    """How long an unanswered put is read back and repeated before CommitStateUnknown is raised. Each request is made
    once; the loop waits for unfinished ones at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOutcome:
    """The result of `Transaction.commit`."""

    version: int
    """The version that holds the commit; the read version if there was nothing to record."""
    committed: bool
    attempts: int = 0
    rebased_over: list[int] = field(default_factory=list)
    """Versions that landed between the read version and this commit, and did not conflict."""
    met: Meetings = NONE_MET
    """Why they did not, and what the job had met before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A commit that is in the log."""

    version: int
    attempt: Attempt
    """As it was written, after every rebase."""
    attempts: int
    own: OwnCommit
    """Shows a later refresh whether the commit was replaced."""
    rebased_over: list[int] = field(default_factory=list)
    """Versions of other writers that landed between the read version and this one."""
    contents: Mapping[int, bytes] = field(default_factory=dict)
    """Their bytes by version: the next refresh need not read those that the store proves."""
    was_unanswered: bool = False
    """Whether only reading back its bytes has shown that it landed."""

    @property
    def outcome(self) -> CommitOutcome:
        """What the transaction returns. The bytes of the commit cannot hold how they landed, but this can."""
        met, name = self.attempt.met, self.attempt.operation
        if self.was_unanswered:
            met = met.and_(Meeting(version=self.version, how=How.FOUND_COMMITTED, operation=name))
        return CommitOutcome(
            version=self.version, committed=True, attempts=self.attempts, rebased_over=self.rebased_over, met=met
        )


CommitInfo = Callable[[Attempt, str], dict[str, Any]]
"""Builds commitInfo for an attempt and the id of its bytes."""


def commit(
    store: Store,
    attempt: Attempt,
    *,
    commit_info: CommitInfo,
    anchor: FileInfo | None,
    clock: Clock,
    policy: CommitPolicy,
    guard: Guard | None = None,
) -> Landed:
    """Commit the attempt as the next version of the table, rebased over every commit that comes first.

    `anchor` is the file that identifies the log of the read snapshot (`Snapshot.anchor`), None for a new table. `guard`
    looks again after each rebase. Without contention this takes two requests: one that finds the anchor unchanged, and
    the put. A lost race costs one listing and one read for each winner; on S3 the next refresh reuses those reads.
    After waiting for a turn, the log is listed before the put, and what has landed is read meanwhile.

    Raises CommitConflict, CommitStateUnknown, CommitContention, TableReplaced, UnsupportedFeature, DuplicateActions,
    LimitExceeded, the errors of the guard, and those of the store (UnsupportedStore, an OSError). Only after
    CommitStateUnknown may the commit be in the log: every other error proves that it is not.
    """
    if attempt.resulting_protocol is not None and attempt.resulting_metadata is not None:
        check_committer(attempt.resulting_protocol, attempt.resulting_metadata.configuration, store)
    course = Course(store, attempt, anchor, guard)
    store.prepare_commit()
    with commit_turn(store, clock) as turn:
        course.take(turn, clock)
        for number in range(1, policy.max_attempts + 1):
            version = course.next_version
            data = encode_commit(commit_info(course.attempt, clock.unique_id()), course.attempt.actions())
            # No reader would accept a larger version.
            LOG_FILE.check(len(data), f"the commit of version {version}", attempt.table)
            tip = course.tip
            theirs = _put_commit(course, commit_name(version), data, clock, policy)
            if theirs is None:
                turn.land(version, None if course.was_unanswered else handed_on(version, tip, data))
                return Landed(
                    version=version,
                    attempt=course.attempt,
                    attempts=number,
                    rebased_over=course.rebased_over,
                    contents=course.contents,
                    own=own_commit(store, version, data),
                    was_unanswered=course.was_unanswered,
                )
            # The first loss is answered at once; a crowd is spread out.
            if number > 1:
                clock.sleep(policy.race_wait_s * (1 + clock.random()) / 2)
            course.rebase(theirs)
    raise CommitContention(
        f"{attempt.table}: {attempt.operation} lost {policy.max_attempts} races in a row, none of them to a conflict. "
        f"It was read at version {attempt.read_version}, and the table is now past {course.next_version - 1}. Nothing "
        "was committed. Run it again, or let fewer tasks write to this table at a time (an Airflow pool does that).",
        table=attempt.table,
        read_version=attempt.read_version,
        attempts=policy.max_attempts,
    )


# --- the outcome of a put -------------------------------------------------------------------------------------------


class _Put(enum.Enum):
    OURS = "ours"
    ANOTHERS = "another's"
    ABSENT = "absent"
    UNREADABLE = "unreadable"


# Errors by which a file system created nothing: an unusable name, no space, or no permission.
_REFUSALS = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.EISDIR,
        errno.EFBIG,
        errno.EREMOTEIO,  # an object store's answer that is none of the others: it does not accept the request
    }
)


# Errors that precede the put, or by which a catalog ratified nothing.
_NOTHING_MADE = (
    OutsideTable,
    CredentialsUnavailable,
    NothingSent,
    CatalogRefused,
    TableNotInCatalog,
    WrongTableId,
)


def _is_refusal(failure: Exception) -> bool:
    """Return whether the put created nothing and cannot land later; a read-back must confirm it."""
    return isinstance(failure, UnsupportedStore) or (isinstance(failure, OSError) and failure.errno in _REFUSALS)


def _put_commit(course: Course, path: str, data: bytes, clock: Clock, policy: CommitPolicy) -> bytes | None:
    """Put a commit, and read it back unless the put succeeds. Return None for our bytes, else the bytes there.

    Raises CommitStateUnknown if neither is known or the anchor is gone, TableReplaced if the version was taken and then
    vanished, and the store's error if every put was refused and nothing is at `path`.
    """
    store, attempt = course.store, course.attempt
    deadline_ms = clock.now_ms() + int(policy.unknown_deadline_s * 1000)
    tries = 0
    failure: Exception | None = None
    is_taken = False
    is_refused = True
    is_same_log: bool | None = True
    once = store.at_once()
    while True:
        tries += 1
        try:
            # A name that was once taken is never put again: if it is free now, the log was dropped or cleaned since,
            # and these bytes belong to the earlier log.
            if not is_taken and is_same_log:
                if store.put_if_absent(path, data):
                    return None
                is_taken = True
        except Exception as error:
            if isinstance(error, _NOTHING_MADE) and is_refused:
                raise  # before anything was made
            failure = error
            # One unanswered put may land later, whatever the next one returns.
            is_refused = is_refused and _is_refusal(error)
            if tries == 1 and not is_refused:
                log.warning("%s: the put of %s was not answered; it is read back", attempt.table, path)
        # A refused put is not repeated: reading it back may last until the store's own deadline.
        outcome, found = _read_back(store if failure is not None and is_refused else once, path, data)
        if outcome is _Put.OURS:
            course.was_unanswered = True
            return None
        if outcome is _Put.ANOTHERS:
            return found
        if outcome is _Put.ABSENT and is_taken:
            raise vanished(attempt, path)
        if outcome is _Put.ABSENT and failure is not None and is_refused:
            raise failure
        is_same_log = _is_there(once, course.anchor)
        # A refused put is refused again, and a forbidden read proves nothing: waiting would not help.
        is_hopeless = is_same_log is False or (failure is not None and is_refused)
        if clock.now_ms() >= deadline_ms or is_hopeless:
            raise _unknown(path, attempt, outcome, failure) from failure
        bound_s = min(policy.max_backoff_s, policy.first_backoff_s * 2.0 ** min(tries + 1, 30))
        clock.sleep(policy.first_backoff_s + bound_s * clock.random())


def _is_there(store: Store, anchor: FileInfo | None) -> bool | None:
    """Return whether the anchor still exists; None without an answer. S3 refuses requests for a missing file: False."""
    try:
        return anchor is None or store.stat(anchor.path) == anchor
    except PermissionError:
        return False
    except Exception:
        return None


def _read_back(store: Store, path: str, data: bytes) -> tuple[_Put, bytes]:
    try:
        found = store.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return _Put.ABSENT, b""
    except Exception:
        return _Put.UNREADABLE, b""
    return (_Put.OURS if found == data else _Put.ANOTHERS), found


def _unknown(path: str, attempt: Attempt, outcome: _Put, failure: Exception | None) -> CommitStateUnknown:
    carries = bool(attempt.transactions)
    then = (
        "Running it again is safe: it carries an application transaction, and finds out."
        if carries
        else "Look at the table's history before running it again: it carries no application transaction."
    )
    version = int(path.rpartition("/")[2].partition(".")[0])
    reason = ": ".join(filter(None, [type(failure).__name__, getattr(failure, "strerror", None)]))
    met = "was not answered" if failure is None else f"failed ({reason})"
    return CommitStateUnknown(
        f"{attempt.table}: the put of version {version} {met}, and reading it back found it {outcome.value}. "
        f"It may or may not land. Every staged file is kept. {then}",
        table=attempt.table,
        version=version,
        has_application_transaction=carries,
    )
