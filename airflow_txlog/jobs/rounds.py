"""Rounds: a job planned afresh when another commit forbade its own, a bounded number of times.

A round opens a transaction on the newest snapshot, reads the application transaction first, plans, stages and commits.
What it staged is deleted when its commit is known not to be in the table, and kept whenever that is not known. The
invariant: a round depends on nothing of an earlier one but the pinned inputs, so its result is that of a run from the
start on its snapshot. Source: docs/decisions/retries.md; soundness A11, A17.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_txlog.application import done_in
from airflow_txlog.contract import JobResult
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.engine.store import open_store
from airflow_txlog.errors import (
    CommitConflict,
    CommitContention,
    InvalidInput,
    TableAlreadyExists,
    TableNotFound,
    UnsupportedFeature,
)
from airflow_txlog.jobs.commit import Change, commit_change
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.stage import check_not_swept, unstage

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

# Errors of a commit that prove that no version of the table holds it: found before the put, or by reading another's
# bytes at every version that was tried.
_PROVES_UNCOMMITTED = (CommitConflict, CommitContention, InvalidInput, UnsupportedFeature)
_WORTH_ANOTHER_ROUND = (CommitConflict, CommitContention, TableAlreadyExists)

Plan = Callable[[Transaction], Change]
BeginAbsent = Callable[[], Transaction]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the rounds came to: a commit, nothing to do, or work that an earlier try did (`done`)."""

    change: Change | None
    version: int | None
    read_version: int | None
    is_committed: bool
    rounds: int
    done: JobResult | None = None


def run_rounds(
    context: LogContext,
    plan: Plan,
    *,
    begin_absent: BeginAbsent | None = None,
    final: tuple[type[CommitConflict], ...] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> Outcome:
    """Plan and commit until it lands, at most `conflict_rounds` times after the first.

    `plan` reads through the transaction, stages, and says what to commit; on an error it has deleted what it staged.
    `begin_absent` begins the transaction that creates the table where there is none; without it, TableNotFound.
    `final`: conflicts after which nothing is planned again, here or by a retry.
    Raises the last round's conflict when no round is left, and every other error at once.
    """
    limit = 1 + context.spec.conflict_rounds
    # One table for all rounds: the next one reads only the commits that it lost to.
    table = Table(open_store(context.root), strict_writers=context.spec.strict_writers)
    for number in range(1, limit + 1):
        try:
            return _round(context, table, plan, begin_absent, number, clock)
        except final as error:
            told = f"{error.message} It is not planned again, because the job says on_conflict: fail."
            raise type(error)(told, **(error.facts | {"retryable": False})) from error
        except _WORTH_ANOTHER_ROUND as error:
            if number == limit or not error.retryable:
                raise
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (number - 1)) * (0.5 + clock.random())
            context.log(f"round {number} lost: {type(error).__name__}: {error} Planning again in {pause_s:.1f} s.")
            clock.sleep(pause_s)
    raise AssertionError("a round returns or raises")


def _round(
    context: LogContext, table: Table, plan: Plan, begin_absent: BeginAbsent | None, number: int, clock: Clock
) -> Outcome:
    tx = _begin(context, table, begin_absent)
    # The application transaction comes before anything else: found means done, whatever conflict led here.
    if context.spec.application is not None:
        tx.read_application(context.spec.application.app_id)
        done = None if tx.snapshot is None else done_in(table.store, tx.snapshot, context.spec, clock)
        if done is not None:
            return Outcome(
                change=None,
                version=done.version,
                read_version=done.read_version,
                is_committed=False,
                rounds=number,
                done=done,
            )
    change = plan(tx)
    check_not_swept(change.staged, clock.now_ms())
    try:
        with context.step("commit"):
            is_committed = commit_change(context, tx, change)
    except _PROVES_UNCOMMITTED:
        unstage(change.staged)
        raise
    version = None if tx.outcome is None else tx.outcome.version
    if tx.outcome is not None and tx.outcome.rebased_over:
        context.log(f"rebased over {len(tx.outcome.rebased_over)} commits that do not conflict")
    return Outcome(
        change=change,
        version=version if is_committed else tx.read_version,
        read_version=None if tx.snapshot is None else tx.read_version,
        is_committed=is_committed,
        rounds=number,
    )


def _begin(context: LogContext, table: Table, begin_absent: BeginAbsent | None) -> Transaction:
    with context.step("open"):
        try:
            return table.begin()
        except TableNotFound:
            if begin_absent is None:
                raise
    return begin_absent()
