"""A table that a hook keeps open, and whose log it follows from refresh to refresh.

It answers two questions: is a condition reached (`ask`, for sensors and triggers), and which versions has a consumer
not processed yet (`unprocessed_versions`)? The second answer is read from the log, not counted from events, because
Airflow may merge or drop asset events (apache/airflow #56050), and a task may die in between. Invariant: a part of the
log is handed out again, with the same bounds and the same key, until it is processed; the work under its key is done
once.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.ledger import Ledger
from airflow_txlog.engine.erasure.returns import ReturnGuard
from airflow_txlog.engine.table.changes.following import (
    Condition,
    ConditionAnswer,
    LogFollower,
    Position,
    ask,
    mark_at,
    new_versions,
)
from airflow_txlog.engine.upkeep.rollback import RollbackPlan, check_rollback, of_run, plan_rollback, tags_of
from airflow_txlog.exactly_once.transactions import RecordedWork, recorded_version, recorded_work
from airflow_txlog.hooks.waiting import WaitAnswer

if TYPE_CHECKING:
    from airflow_txlog.hooks.txlog import TxlogHook

START = Position(version=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprocessedVersions:
    """The versions later than `from_version`, up to `version`."""

    table_uri: str
    from_version: int
    version: int
    versions: list[int]
    """Those that added or removed rows, ascending."""
    partitions: list[dict[str, str | None]]
    """The partitions that they changed, as texts of the log by column; empty for a table without."""
    is_complete: bool
    """False if the versions do not show every change: the log was cleaned past `from_version`, the table was dropped
    and recreated, its partition columns changed, or another engine removed files without their partitions. Then read
    the table as of `version`.
    """
    key: str = field(repr=False)
    """A name for this piece of work, the same in every run: for `idempotency_key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """The commits of a run in a table's log.

    `deployments`: those that they name. `others`: other DAGs and their runs. `is_known`: whether there is any commit of
    the run, also one that needs no undoing.
    """

    plan: RollbackPlan
    deployments: Collection[str]
    others: Collection[tuple[str, str]]
    is_known: bool


def guard_of(hook: TxlogHook, table: Table) -> ReturnGuard | None:
    """Return the guard of a table by the ledger of the hook's connection; None if that names none."""
    uri = hook.ledger_uri
    if uri is None:
        return None
    keys = [DigestKey.of(text, "a key of the ledger") for text in hook.ledger_keys]
    return ReturnGuard(Ledger(hook.table(uri), keys), table.store)


class _TableOfHook(Table):
    """A table whose restores bring no erased subject back, if the hook's connection names a ledger."""

    hook: TxlogHook

    def restore(self, *args: Any, **kwargs: Any) -> int:
        """Restore as `Table.restore` does. Raises the errors of the guard."""
        given, self.guard = self.guard, self.guard or guard_of(self.hook, self)
        try:
            return super().restore(*args, **kwargs)
        finally:
            self.guard = given


class FollowedTable:
    """The table at `uri`, as answers and keys name it. Nothing is read before a method is called. For one thread."""

    def __init__(self, uri: str, hook: TxlogHook) -> None:
        self.uri = uri
        self.table = _TableOfHook.at(uri, hook.access, strict_writers=hook.strict_writers)
        self.table.hook = hook

    @cached_property
    def follower(self) -> LogFollower:
        """The table's log, followed from look to look."""
        return LogFollower(self.table.store)

    def recorded_version(self, app_id: str) -> int | None:
        """Return the number that the table has recorded for an application transaction; None if it has none."""
        return recorded_version(self.table, app_id)

    def recorded_work(self, app_id_end: str) -> list[RecordedWork]:
        """Return the application transactions whose id ends so, newest first."""
        return recorded_work(self.table, app_id_end)

    def mark(self, version: int) -> str | None:
        """Return the mark of the version's commit, as a position has it; None if the log does not hold the commit."""
        return mark_at(self.table.store, version)

    def plan_rollback(self, dag_id: str, run_id: str, deployment: str | None) -> FoundRun:
        """Return what undoes the commits of the run, and the runs that the log names.

        `deployment` None: those of every deployment. Raises as `check_rollback` if the table forbids it.
        """
        names = [f"{ANNOTATION_TAG_PREFIX}{name}" for name in ("dag_id", "run_id", "deployment")]
        is_of_run = of_run(dict(zip(names, (dag_id, run_id), strict=False)), {names[2]: deployment})
        deployments, others, is_known = set[str](), set[tuple[str, str]](), False

        def is_meant(version: int, info: Mapping[str, Any]) -> bool:
            nonlocal is_known
            dag, run, owner = map(tags_of(info).get, names)
            if (dag, run) == (dag_id, run_id) and deployment in (None, owner or deployment):
                is_known = True
            elif dag is not None and run is not None:
                others.add((str(dag), str(run)))
            if not is_of_run(version, info):
                return False
            if owner is not None:
                deployments.add(str(owner))
            return True

        plan = plan_rollback(self.table, self.table.snapshot(), is_meant)
        if plan.versions and not plan.in_the_way:
            check_rollback(self.table, plan)
        return FoundRun(plan=plan, deployments=deployments, others=others, is_known=is_known)

    def ask(
        self,
        questions: Sequence[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]],
        up_to: int | None = None,
    ) -> list[WaitAnswer | Exception]:
        """Look at the log once, and return the answer to each question: a condition, and the position of its last
        check.

        A condition of None is never reached; its answer gives the table's position. The error of one question is its
        answer. `up_to`: the latest version that counts. Raises the errors of the look itself: CorruptTable, those of
        the store and the connection.
        """
        self.follower.look(up_to)
        found: list[WaitAnswer | Exception] = []
        for condition, checked in questions:
            try:
                if condition is None:
                    found.append(WaitAnswer(False, asdict(self.follower.position), {}))
                    continue
                before = None if checked is None else position_of(checked)
                answer = ask(engine_condition(condition), self.follower, partial(self.table.snapshot, up_to), before)
                found.append(WaitAnswer(answer.reached, asdict(answer.position), self._report(answer)))
            except Exception as error:
                found.append(error)
        return found

    def _report(self, answer: ConditionAnswer) -> dict[str, Any]:
        match = answer.match
        return {
            "table_uri": self.uri,
            **asdict(answer.position),
            "from_version": answer.after,
            "matched_version": None if match is None else match.version,
            "operation": None if match is None else match.operation,
            "timestamp_ms": None if match is None else match.timestamp_ms,
            "recreated": answer.is_another_log,
        }

    def unprocessed_versions(self, consumer: str, state: Any) -> Iterator[UnprocessedVersions]:
        """Yield the parts of the log that the consumer has not processed; see `TxlogHook.unprocessed_versions`."""
        state_key = f"txlog_consumer_{hashlib.sha256(f'{consumer}|{self.uri}'.encode()).hexdigest()[:16]}"
        kept = state.get(state_key) or {"done": asdict(START)}
        # First the part handed out before and not processed, then all new versions, but none that land during this run:
        # these may be the consumer's own.
        for _ in range(2 if "doing" in kept else 1):
            found, until = self._part(consumer, kept)
            if until == kept["done"]:
                return
            if found.versions or not found.is_complete:
                # The bounds are kept before the work begins: a try that follows takes this part, and no larger one.
                kept = {"done": kept["done"], "doing": until}
                state.set(state_key, kept)
                yield found
                if state.get(state_key) != kept:
                    # This run was taken for dead, and its retry has already continued from here or later.
                    return
            kept = {"done": until}
            state.set(state_key, kept)

    def _part(self, consumer: str, kept: dict[str, Any]) -> tuple[UnprocessedVersions, dict[str, Any]]:
        """Return the part of the log after the processed one: the part handed out already, or everything new."""
        self.follower.look()
        after, doing = position_of(kept["done"]), kept.get("doing")
        new = new_versions(self.follower, after, None if doing is None else position_of(doing))
        end, partitions = new.position, self.follower.partitions(new.commits)
        bounds = f"{consumer}|{self.uri}|{after.version}|{after.commit_mark}|{end.version}|{end.commit_mark}"
        found = UnprocessedVersions(
            table_uri=self.uri,
            from_version=after.version,
            version=end.version,
            versions=[commit.version for commit in new.commits],
            partitions=partitions or [],
            is_complete=new.is_complete and partitions is not None,
            key=f"{consumer}/{after.version}-{end.version}/{hashlib.sha256(bounds.encode()).hexdigest()[:12]}",
        )
        return found, asdict(end)


def engine_condition(condition: Mapping[str, Any]) -> Condition:
    """Return the engine's condition from the JSON of `waiting.condition_of`."""
    newer_than, since = condition.get("newer_than"), condition.get("since")
    by = {"dag_id": condition.get("committed_by_dag"), "task_id": condition.get("committed_by_task")}
    return Condition(
        version=condition.get("version"),
        newer_than=None if newer_than is None else position_of(newer_than),
        since_ms=None if since is None else int(dt.datetime.fromisoformat(since).timestamp() * 1000),
        operations=frozenset(condition.get("operation") or ()),
        tags={f"{ANNOTATION_TAG_PREFIX}{name}": text for name, text in by.items() if text is not None},
        partition=condition.get("partition") or {},
        data_changes_only=condition.get("data_changes_only"),
    )


def position_of(data: Mapping[str, Any]) -> Position:
    """Return the position from its JSON, `{"version", "commit_mark"}`."""
    return Position(version=int(data["version"]), commit_mark=data.get("commit_mark"))
