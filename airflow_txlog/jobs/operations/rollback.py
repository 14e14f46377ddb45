"""ROLLBACK: what the tasks of one DAG run have committed to the table is undone, or nothing is changed.

It needs no application transaction: a commit that undoes others names them, so a later try finds them undone. A commit
that lands between the plan and the commit is never rebased over: the plan is made again with it, and names it if it is
in the way. Source: soundness B5, B11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX, JobResult
from airflow_txlog.contract.operations import Rollback
from airflow_txlog.contract.wording import commit_text, plural
from airflow_txlog.engine import Transaction
from airflow_txlog.engine.commit.content.watermarks import rewound_text
from airflow_txlog.engine.upkeep.rollback import IsMeant, RollbackPlan, fill_rollback, of_run, plan_rollback, undoes_tag
from airflow_txlog.errors import CannotRollBack, ConcurrentWrite
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.files.erased_subjects import guard_of

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0


def rollback(context: LogContext, clock: Clock = SYSTEM_CLOCK) -> JobResult:
    """Run the job of `context.spec`.

    Raises CannotRollBack if commits are in the way; the errors of `fill_rollback`; ConcurrentWrite if other commits
    kept landing until the deadline; the errors of the guard.
    """
    described = context.record(Rollback)
    context.table.guard = guard_of(context, may_leave_out=True)
    deadline_ms: int | None = None
    number, since = 1, described.since
    while True:
        with context.step("plan"):
            tx = context.table.begin()
            assert tx.snapshot is not None
            plan = plan_rollback(context.table, tx.snapshot, _meant(described), since)
        if not plan.versions:
            return context.result(is_committed=False, version=plan.head, read_version=plan.head, attempts=number)
        if plan.in_the_way:
            named = "; ".join(
                commit_text(each.version, each.operation, each.tags, each.engine) for each in plan.in_the_way
            )
            raise CannotRollBack(
                f"{context.root} cannot be rolled back: in the way is {named}. Nothing was changed. Look at what these "
                "commits did, and undo them first.",
                in_the_way={context.spec.table_uri: [each.version for each in plan.in_the_way]},
            )
        try:
            return _commit(context, tx, plan, number)
        except ConcurrentWrite as error:
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(number - 1, 10)) * (0.5 + clock.random())
            deadline_ms = deadline_ms or clock.now_ms() + context.spec.conflict_deadline_s * 1000
            if clock.now_ms() + pause_s * 1000 > deadline_ms:
                raise
            context.log(f"version {error.winning_version} has landed meanwhile: the rollback is planned again")
            clock.sleep(pause_s)
            number, since = number + 1, min(plan.versions)


def _meant(described: Rollback) -> IsMeant:
    if described.commit is not None:
        return lambda version, info: version == described.commit
    names = {"dag_id": described.of_dag_id, "run_id": described.run_id}
    tags = {f"{ANNOTATION_TAG_PREFIX}{name}": text for name, text in names.items()}
    return of_run(tags, {f"{ANNOTATION_TAG_PREFIX}deployment": described.of_deployment})


def _commit(context: LogContext, tx: Transaction, plan: RollbackPlan, number: int) -> JobResult:
    is_restore = plan.restores is not None
    what = f"version {plan.restores} to restore" if is_restore else f"{plural(plan.removed.num_rows, 'file')} to remove"
    context.log(f"{what}, which undoes {_versions(plan.versions)}")
    assert tx.snapshot is not None
    for line in rewound_text(plan.rewinds, tx.snapshot.state.domains):
        context.log(line)
    with context.step("commit"):
        operation, parameters, metrics = fill_rollback(tx, context.table, plan)
        tags = {**context.spec.commit_tags(), **undoes_tag(plan)}
        version = tx.commit(operation, parameters, metrics, tags=tags, never_rebases=True, record_empty=True)
    return context.result(
        is_committed=True,
        version=version,
        read_version=plan.head,
        metrics=metrics,
        files=_counts(metrics),
        attempts=number,
    )


def _counts(metrics: Mapping[str, Any]) -> dict[str, int]:
    return {"added": metrics.get("numRestoredFiles", 0), "removed": metrics["numRemovedFiles"]}


def _versions(versions: tuple[int, ...]) -> str:
    return f"version{'s' * (len(versions) > 1)} {', '.join(map(str, versions))}"
