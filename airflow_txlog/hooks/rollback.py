"""The rollback of a run on many tables: all are checked before the first one is changed.

Each table is rolled back by a job, in one commit. No commit covers several tables, so readers may see the first one
rolled back and the next one not yet. The invariants: nothing is changed if a commit is in the way on any table; if one
lands after that was checked, the tables that were rolled back before it are put back. A killed rollback that runs again
completes the rest, because what is undone is not undone again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.operations import Rollback
from airflow_txlog.contract.wording import commit_text, plural
from airflow_txlog.errors import CannotRollBack, CommitStateUnknown, TxlogError
from airflow_txlog.errors.names import did_you_mean, shown_names
from airflow_txlog.hooks.named_tables import named
from airflow_txlog.hooks.upkeep import find_tables
from airflow_txlog.hooks.work_key import deployment_mark
from airflow_txlog.runners import run_unless_done

if TYPE_CHECKING:
    from airflow_txlog.engine.upkeep.rollback import RollbackPlan
    from airflow_txlog.hooks.txlog import TxlogHook

RunJob = Callable[[str, Rollback], JobResult]


@dataclass(frozen=True, kw_only=True)
class RunToUndo:
    """A DAG run of this Airflow deployment, as its commits name it."""

    dag_id: str
    run_id: str
    deployment: str | None = field(default_factory=deployment_mark)

    def record(self, since: int, commit: int | None = None) -> Rollback:
        """Return the description of the job, or of one that undoes a rollback's `commit`."""
        return Rollback(
            run_id=self.run_id, of_dag_id=self.dag_id, of_deployment=self.deployment, since=since, commit=commit
        )


def roll_back(
    hook: TxlogHook,
    places: Sequence[str],
    run: RunToUndo,
    run_job: RunJob,
    log: Callable[[str], None],
    warn: Callable[[str], None],
    *,
    dry_run: bool,
) -> list[dict[str, Any]]:
    """Roll back what the run has committed to the tables at these places; return an entry for each that it changed.

    An entry is `{"table_uri", "action", "undoes", "in_the_way", "status", "version"}`. `action` is "restore" (with
    `to_version`), "remove" (with `files`), "blocked" or "none". `run_job` runs the job of a record on a table. With
    `dry_run` nothing is changed. `warn` gets the line that no table knows the run.

    Raises CannotRollBack before a table is changed if commits are in the way; the errors of the jobs.
    """
    # Two spellings of one table are one table.
    tables = list({hook.table(each).uri: each for each in reversed(find_tables(hook, places))}.values())[::-1]
    found = {table: hook.followed(table).plan_rollback(run.dag_id, run.run_id, run.deployment) for table in tables}
    plans = {table: each.plan for table, each in found.items()}
    run = _of_one_deployment(run, {name for each in found.values() for name in each.deployments})
    entries = {table: _entry(table, plan) for table, plan in plans.items() if plan.versions or plan.undone}
    if not any(each.is_known for each in found.values()):
        warn(_unknown(run, len(tables), {other for each in found.values() for other in each.others}))
    elif not entries:
        log(f"the commits of run {run.run_id} of DAG {run.dag_id} leave nothing to undo")
    for entry in entries.values():
        log(_line(entry))
    if not dry_run:
        _check(plans)
        _run_all(entries, run, run_job, log)
    return list(entries.values())


def _unknown(run: RunToUndo, num_tables: int, others: Collection[tuple[str, str]]) -> str:
    """Return the line that no log names the run, with the run that may be meant."""
    here = "" if run.deployment is None else f" in this Airflow deployment ({run.deployment})"
    dags = {dag for dag, name in others if name == run.run_id}
    if run.dag_id in dags:
        near = " Another deployment has committed in a run of this name."
    elif dags:
        near = f" A run of this id is there, of DAG {shown_names(sorted(dags))}."
    else:
        runs = {name for dag, name in others if dag == run.dag_id}
        near = did_you_mean(run.run_id, runs) if runs else did_you_mean(run.dag_id, {dag for dag, _ in others})
    return (
        f"no commit of run {run.run_id} of DAG {run.dag_id}{here} is in the log of {plural(num_tables, 'table')}: "
        f"nothing is rolled back.{near}"
    )


def _of_one_deployment(run: RunToUndo, named: set[str]) -> RunToUndo:
    """Return the run with the deployment that its commits name, if this process does not know its own."""
    if run.deployment is not None or not named:
        return run
    if len(named) > 1:
        raise CannotRollBack(
            f"Run {run.run_id} of DAG {run.dag_id} cannot be rolled back: its commits are of several Airflow "
            f"deployments ({', '.join(sorted(named))}), and this process does not know its own. No table was changed. "
            "Choose one by the environment variable AIRFLOW__TXLOG__DEPLOYMENT_ID, or roll back in a task.",
            in_the_way={},
        )
    return replace(run, deployment=min(named))


def _entry(table: str, plan: RollbackPlan) -> dict[str, Any]:
    entry: dict[str, Any] = {"table_uri": table, "action": "none", "undoes": list(plan.versions)}
    if plan.in_the_way:
        entry["action"] = "blocked"
    elif plan.restores is not None:
        entry |= {"action": "restore", "to_version": plan.restores}
    elif plan.versions:
        entry |= {"action": "remove", "files": plan.removed.num_rows}
    entry["in_the_way"] = [
        commit_text(each.version, each.operation, each.tags, each.engine) for each in plan.in_the_way
    ]
    return entry | {"status": "planned" if plan.versions else "already_done", "version": plan.head}


def _line(entry: Mapping[str, Any]) -> str:
    versions = ", ".join(map(str, entry["undoes"]))
    if entry["in_the_way"]:
        return f"{entry['table_uri']}: versions {versions} cannot be undone: {'; '.join(entry['in_the_way'])}"
    if entry["action"] == "none":
        return f"{entry['table_uri']}: rolled back already"
    if entry["action"] == "restore":
        return f"{entry['table_uri']}: version {entry['to_version']} is restored, which undoes {versions}"
    return f"{entry['table_uri']}: {plural(entry['files'], 'file')} removed, which undoes {versions}"


def _check(plans: Mapping[str, RollbackPlan]) -> None:
    blocked = {table: plan for table, plan in plans.items() if plan.in_the_way}
    if not blocked:
        return
    named = "; ".join(
        f"{table}: {commit_text(each.version, each.operation, each.tags, each.engine)}"
        for table, plan in blocked.items()
        for each in plan.in_the_way
    )
    raise CannotRollBack(
        f"The run cannot be rolled back, because later commits are in the way: {named}. They may have built on its "
        f"rows. No table was changed{_done_before(plans)}. Undo these commits first, or roll back "
        "the other tables alone.",
        in_the_way={table: [each.version for each in plan.in_the_way] for table, plan in blocked.items()},
    )


def _done_before(plans: Mapping[str, RollbackPlan]) -> str:
    done = [table for table, plan in plans.items() if plan.undone and not plan.versions]
    return f" now; an earlier rollback has undone the run on {', '.join(done)}" if done else ""


def _run_all(
    entries: Mapping[str, dict[str, Any]], run: RunToUndo, run_job: RunJob, log: Callable[[str], None]
) -> None:
    done: dict[str, int] = {}
    for table, entry in entries.items():
        if entry["action"] == "none":
            continue
        try:
            result = run_job(table, run.record(min(entry["undoes"])))
        except TxlogError as error:
            if error.retryable or isinstance(error, CommitStateUnknown):
                # The next try completes it.
                raise
            earlier = [each for each, one in entries.items() if one["action"] == "none"]
            raise _put_back(error, done, earlier, run, run_job, log) from error
        entry |= {"status": result.status, "version": result.version}
        if result.status == "committed" and result.version is not None:
            done[table] = result.version


def _put_back(
    error: TxlogError,
    done: Mapping[str, int],
    earlier: Sequence[str],
    run: RunToUndo,
    run_job: RunJob,
    log: Callable[[str], None],
) -> TxlogError:
    """Undo the rollbacks that are done, the last one first; return the error with the outcome.

    Those of an earlier try stay, and the error names their tables.
    """
    left = []
    for table, version in reversed(list(done.items())):
        log(f"{table}: its rollback, version {version}, is undone, because the run cannot be rolled back as a whole")
        try:
            run_job(table, run.record(version, version))
        except TxlogError as another:
            log(f"{table}: {another}")
            left.append(table)
    what = "The tables before it were put back." if done and not left else ""
    if earlier:
        what = f"An earlier rollback has undone the run on {', '.join(earlier)}, and it stays undone there. {what}"
    if left:
        what += f" These tables are rolled back all the same, because commits have landed there too: {', '.join(left)}."
    return type(error)(f"{error.message} {what.strip()}".rstrip(), **(error.facts | {"retryable": False}))


def roll_back_here(
    hook: TxlogHook, places: Sequence[str], run: RunToUndo, log: Callable[[str], None], *, dry_run: bool
) -> list[dict[str, Any]]:
    """Return the result of `roll_back` by the runner of the connection. Raises CannotRollBack for an unknown run."""
    name = hook.runner_or(None)

    def run_job(table: str, record: Rollback) -> JobResult:
        runner = hook.make_runner(name) if isinstance(name, str) else name
        spec = hook.with_settings(JobSpec(operation=record, table_uri=table), name)
        result = named(run_unless_done(runner, spec, log=log), spec)
        hook.keep_in_catalog(result)
        return result

    def refuse(line: str) -> None:
        raise CannotRollBack(f"{line[0].upper()}{line[1:]}", in_the_way={})

    return roll_back(hook, places, run, run_job, log, refuse, dry_run=dry_run)
