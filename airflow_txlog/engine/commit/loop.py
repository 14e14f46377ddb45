"""The commit loop: put the next version if it is absent; when the race is lost, rebase and try the one after.

Two invariants:

* A lost answer is not a lost race. Every attempt writes bytes that hold an id of their own, and whatever the store says
  but a plain success, the version is read back: our bytes mean committed, others mean lost, nothing means that the same
  bytes are put again at the same version. An attempt at the next version starts only after this one was *read* as
  another's.
* What cannot be told is raised as CommitStateUnknown, never guessed, and nothing staged is deleted after it.

Source: protocol, "Commit files"; delta-spark, OptimisticTransaction.doCommitRetryIteratively.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_txlog.engine.clock import Clock
from airflow_txlog.engine.commit.attempt import Attempt
from airflow_txlog.engine.commit.conflicts import check_winner
from airflow_txlog.engine.log.actions import Commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.segment import list_commits_after
from airflow_txlog.engine.log.wire import decode_commit, encode_commit
from airflow_txlog.engine.store.base import FileInfo, Store
from airflow_txlog.errors import CommitContention, CommitStateUnknown, TableReplaced


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """How long the loop keeps trying."""

    max_attempts: int = 200
    """Races that may be lost before CommitContention is raised."""
    first_backoff_s: float = 0.01
    max_backoff_s: float = 1.0
    """Bounds of the wait after the second lost race and on; the wait is drawn evenly from 0 up to the bound."""
    unknown_deadline_s: float = 30.0
    """How long an unanswered put is read back before CommitStateUnknown is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A commit that is in the log."""

    version: int
    attempt: Attempt
    """As it was written, after every rebase."""
    attempts: int
    rebased_over: list[int] = field(default_factory=list)
    """Versions of other writers that landed between the read version and this one."""


CommitInfo = Callable[[Attempt, str], dict[str, Any]]
"""Builds commitInfo for an attempt and the id of its bytes."""


def commit(
    store: Store,
    attempt: Attempt,
    *,
    commit_info: CommitInfo,
    read_commit: FileInfo | None,
    clock: Clock,
    policy: CommitPolicy,
) -> Landed:
    """Make the attempt the next version of the table, behind every commit that lands first and does not forbid it.

    `read_commit` is the commit file of the read version as it was when it was read, or None where there was none.
    Raises CommitConflict, CommitStateUnknown, CommitContention, TableReplaced, UnsupportedFeature.
    """
    rebased_over: list[int] = []
    version = attempt.read_version + 1
    for number in range(1, policy.max_attempts + 1):
        _check_same_table(store, attempt, read_commit)
        data = encode_commit(commit_info(attempt, clock.unique_id()), attempt.actions())
        if put_and_read_back(store, commit_name(version), data, attempt, clock, policy):
            return Landed(version=version, attempt=attempt, attempts=number, rebased_over=rebased_over)
        for winner in _read_winners(store, version, attempt):
            attempt = check_winner(attempt, winner)
            rebased_over.append(winner.version)
        version = rebased_over[-1] + 1
        # The first loss is answered at once; a crowd is spread out.
        if number > 1:
            clock.sleep(_backoff_s(number, clock, policy))
    raise CommitContention(
        f"{attempt.table}: {attempt.operation} lost {policy.max_attempts} races in a row, none of them to a conflict. "
        f"It was read at version {attempt.read_version}, and the table is now past {version - 1}. Nothing was "
        "committed. Run it again, or let fewer tasks write to this table at a time (an Airflow pool does that).",
        table=attempt.table,
        read_version=attempt.read_version,
        attempts=policy.max_attempts,
    )


def _backoff_s(number: int, clock: Clock, policy: CommitPolicy) -> float:
    bound = min(policy.max_backoff_s, policy.first_backoff_s * 2.0 ** min(number, 30))
    return bound * clock.random()


def _check_same_table(store: Store, attempt: Attempt, read_commit: FileInfo | None) -> None:
    """The log that we are about to extend must be the one that we read: a table may be dropped and made again."""
    if read_commit is None:
        return
    found = store.stat(read_commit.path)
    if found is None or (found.size_bytes, found.modified_ms) != (read_commit.size_bytes, read_commit.modified_ms):
        what = "is gone" if found is None else "is another file than the one that was read"
        raise TableReplaced(
            f"{attempt.table}: {read_commit.path} {what}, so the table was dropped and created again, or its log was "
            "rewritten, while this transaction ran. Nothing was committed. Open the table again.",
            table=attempt.table,
        )


def _read_winners(store: Store, version: int, attempt: Attempt) -> list[Commit]:
    """The commits from `version` on, ascending. Raises TableReplaced where the one that we just met is gone."""
    files = list_commits_after(store, version - 1)
    if not files:
        raise TableReplaced(
            f"{attempt.table}: version {version} was there and is gone, so the log was rewritten while this "
            "transaction ran. Nothing was committed. Open the table again.",
            table=attempt.table,
        )
    return [decode_commit(version + index, store.read(info.path), info.path) for index, info in enumerate(files)]


# --- the three-way verdict ------------------------------------------------------------------------------------------


class _Verdict(enum.Enum):
    OURS = "ours"
    ANOTHERS = "another's"
    ABSENT = "absent"
    UNREADABLE = "unreadable"


# Answers of a file system that are final: it refused, and nothing is under way that could still land.
_FINAL_ERRNO = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT})


def put_and_read_back(
    store: Store, path: str, data: bytes, attempt: Attempt, clock: Clock, policy: CommitPolicy
) -> bool:
    """True: our bytes are at `path`. False: another's are. Raises CommitStateUnknown when neither can be told."""
    deadline_ms = clock.now_ms() + int(policy.unknown_deadline_s * 1000)
    tries = 0
    failure: Exception | None = None
    while True:
        tries += 1
        try:
            if store.put_if_absent(path, data):
                return True
        except Exception as error:
            failure = error
        verdict = _read_back(store, path, data)
        if verdict is _Verdict.OURS:
            return True
        if verdict is _Verdict.ANOTHERS:
            return False
        if verdict is _Verdict.ABSENT and isinstance(failure, OSError) and failure.errno in _FINAL_ERRNO:
            raise failure
        if clock.now_ms() >= deadline_ms:
            raise _unknown(path, attempt, verdict) from failure
        clock.sleep(_backoff_s(tries + 1, clock, policy) + policy.first_backoff_s)


def _read_back(store: Store, path: str, data: bytes) -> _Verdict:
    try:
        found = store.read(path)
    except FileNotFoundError:
        return _Verdict.ABSENT
    except Exception:
        return _Verdict.UNREADABLE
    return _Verdict.OURS if found == data else _Verdict.ANOTHERS


def _unknown(path: str, attempt: Attempt, verdict: _Verdict) -> CommitStateUnknown:
    carries = bool(attempt.transactions)
    then = (
        "Running it again is safe: it carries an application transaction, and finds out."
        if carries
        else "Look at the table's history before running it again: it carries no application transaction."
    )
    version = int(path.rpartition("/")[2].partition(".")[0])
    return CommitStateUnknown(
        f"{attempt.table}: the put of version {version} was not answered, and reading it back found it "
        f"{verdict.value}. It may or may not land. Every staged file is kept. {then}",
        table=attempt.table,
        version=version,
        has_application_transaction=carries,
    )
