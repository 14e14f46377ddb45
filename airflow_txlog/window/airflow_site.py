"""The window's site in Airflow: its users, the tables that each may see, and the pages of tasks and runs.

The invariant: Airflow's database is read on threads with a deadline, like tables.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request

from airflow_txlog.engine import Table
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.locations import shown
from airflow_txlog.window import guard, known_tables
from airflow_txlog.window.answers import AnswerLimits, Answers, TooBusy, TooLate
from airflow_txlog.window.app import Ask, Shown, Window, problem_of, store_of
from airflow_txlog.window.facts.one_commit import OneCommit, commit_facts
from airflow_txlog.window.facts.version_lines import clipped
from airflow_txlog.window.known_tables import Places, TaskRow
from airflow_txlog.window.site import KnownTable, Refused, View

log = logging.getLogger(__name__)

_DATABASE = "airflow"
# The most of one store is that of the database, too, which answers all users.
_LIMITS = AnswerLimits(running=12, running_per_store=6, kept=2_000)
_BASE_FRESH_S = 300.0
_BASE_WAIT_S = 1.0
_MOST_VIEWS = 200
_KNOWN_FRESH_S = 10.0
_PLACES_FRESH_S = 30.0
_VIEW_FRESH_S = 5.0
_ASKED_FRESH_S = 1.0
_RUNNING = frozenset({"running", "deferred", "queued", "scheduled", "restarting", "up_for_retry", "up_for_reschedule"})
# A job works in these. The record of a worker that was killed stays when the task waits for its next try.
_WORKING = frozenset({"running", "deferred"})
_REFRESH_S = 5
_SILENT_MS = 90_000
_MOST_COMMITS = 20
_NO_TASK = "No such task is known here, or you may not see it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """The progress of a running job. A number that is not known is None."""

    step: str
    done: int
    total: int
    unit: str
    seconds: float
    bytes_per_s: int | None
    remaining_s: int | None
    attempt: int
    conflicts: int
    at_ms: int | None
    is_silent: bool
    """Whether the last report is older than any pause of a job that works: it waits, or it was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """One task of ours: its state, its table, its commit with the commits that it met, and its progress."""

    row: TaskRow
    uri: str | None
    """The table, if the user may see it."""
    status: str
    """The status of its result, such as `committed`; empty if it has none."""
    read_version: int | None
    version: int | None
    seconds: float | None
    doing: Doing | None
    commit: OneCommit | None
    problem: str = ""
    """Why the commit cannot be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksPage:
    """The tasks of ours of a run, or one of them."""

    dag_id: str
    run_id: str
    task_id: str | None
    tasks: tuple[TaskFacts, ...]

    @property
    def is_running(self) -> bool:
        return any(each.row.state in _RUNNING for each in self.tasks)


class AirflowSite:
    """Airflow's users, and the tables that the DAGs name which a user may read."""

    is_airflow = True

    def __init__(self) -> None:
        self._answers = Answers(_LIMITS)
        self._listing: set[Hashable] = set()
        self._views: dict[str, tuple[tuple[Any, ...], View]] = {}

    async def user(self, request: Request) -> Any:
        """Return Airflow's user. Raises Refused (401, 403)."""
        return await guard.user_of(request)

    async def view(self, user: Any) -> View:
        """Return the tables of the DAGs that the user may read. The answer is a few seconds old at most."""
        places = await self.places()
        known: Mapping[str, KnownTable] = await self.asked(
            "known", lambda: known_tables.known_tables(places), _KNOWN_FRESH_S
        )
        name = f"{type(user).__qualname__} {user.get_id()}"
        permitted, every = await self.asked(("dags", name), lambda: guard.visible_dags(user), _VIEW_FRESH_S)
        below = await self._in_base_folders(user, name)
        made = (known, permitted, every, below)
        before = self._views.get(name)
        if before is not None and before[0][3] == below and all(map(operator.is_, before[0][:3], made)):
            return before[1]
        view = self._view(user, *made)
        while len(self._views) >= _MOST_VIEWS:
            self._views.pop(next(iter(self._views)))
        self._views[name] = made, view
        return view

    def _view(
        self,
        user: Any,
        known: Mapping[str, KnownTable],
        permitted: frozenset[str],
        every: frozenset[str],
        below: list[KnownTable],
    ) -> View:
        tables = {
            uri: _of_these(each, permitted) for uri, each in known.items() if not permitted.isdisjoint(each.dag_ids)
        }
        for each in below:
            tables.setdefault(each.uri, each)
        # A commit may name a DAG of another Airflow, for which this one has no permissions.
        return View(tables=tables, sees=lambda dag_id: dag_id in permitted or dag_id not in every, user=user)

    async def _in_base_folders(self, user: Any, name: str) -> list[KnownTable]:
        """Return the tables in the base folders of the connections that the user may read, as far as they are known."""
        bases = (await self.places()).bases
        may_see = partial(guard.visible_connections, user, tuple(bases))
        visible = await self.asked(("connections", name, tuple(bases)), may_see, _VIEW_FRESH_S)
        below = await asyncio.gather(*(self._below(conn_id, bases[conn_id]) for conn_id in visible))
        return [each for tables in below for each in tables]

    async def _below(self, conn_id: str, base: str) -> list[KnownTable]:
        """Return the tables in a base folder; without a quick answer of its store, the last known ones."""
        key = ("below", conn_id, base)
        if key not in self._listing:
            self._listing.add(key)
            list_tables = partial(known_tables.tables_below, conn_id, base)
            try:
                found = self._answers.get(key, store_of(base), list_tables, _BASE_FRESH_S)
                return list(await asyncio.wait_for(found, _BASE_WAIT_S))
            except Exception as error:
                log.warning("The base folder of the connection %s was not listed: %s", conn_id, type(error).__name__)
            finally:
                self._listing.discard(key)
        return list(self._answers.last(key) or ())

    async def places(self) -> Places:
        """Return the base folders of the connections."""
        found: Places = await self.asked("places", known_tables.places, _PLACES_FRESH_S)
        return found

    async def asked(self, key: Any, ask: Callable[[], Any], fresh_s: float) -> Any:
        """Return an answer of Airflow's database. Raises Refused (503, 504) without one."""
        try:
            return await self._answers.get(key, _DATABASE, ask, fresh_s)
        except TooLate as late:
            raise Refused(504, f"Airflow's database has not answered for {late.waited_s:.0f} seconds.") from None
        except TooBusy:
            raise Refused(503, "Airflow's database is busy. Try again in a few seconds.") from None
        except SQLAlchemyError as error:
            message = f"Airflow's database did not answer as expected ({type(error).__name__})."
            raise Refused(503, f"{message} The log of the server says more.") from None

    def open(self, known: KnownTable) -> Table:
        """Return the table, opened by the connection whose base folder it lies in, or by this process's identity."""
        hook = TxlogHook(known.conn_id)
        return Table.at(known.place or known.uri, hook.access)


def airflow_window() -> Window:
    """Return the window of this Airflow."""
    return Window(AirflowSite(), {"task": task_page, "run": run_page})


async def task_page(window: Window, ask: Ask) -> Shown:
    """Show one task instance. Tasks of other operators get a plain page."""
    dag_id, run_id, task_id = (ask.query.get(name, "") for name in ("dag_id", "run_id", "task_id"))
    text = ask.query.get("map_index", "")
    # Of a task that is not mapped, Airflow leaves the placeholder as it is.
    map_index = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1
    return await _tasks(window, ask, (guard.TASK_INSTANCE,), dag_id, run_id, task_id, map_index)


async def run_page(window: Window, ask: Ask) -> Shown:
    """Show the tasks of ours of one run."""
    dag_id, run_id = (ask.query.get(name, "") for name in ("dag_id", "run_id"))
    return await _tasks(window, ask, (guard.RUN, guard.TASK_INSTANCE), dag_id, run_id, None, None)


async def _tasks(
    window: Window,
    ask: Ask,
    entities: Sequence[Any],
    dag_id: str,
    run_id: str,
    task_id: str | None,
    map_index: int | None,
) -> Shown:
    site = window.site
    assert isinstance(site, AirflowSite)
    if not dag_id or not run_id or task_id == "":
        raise Refused(404, _NO_TASK)
    user = ask.view.user
    name = f"{type(user).__qualname__} {user.get_id()}"
    for entity in entities:
        may_see = partial(guard.may_see, user, dag_id, entity)
        if not await site.asked(("may", name, dag_id, entity.value), may_see, _VIEW_FRESH_S):
            raise Refused(403, "You may not see the runs or the tasks of this DAG.")
    places = await site.places()
    rows: Sequence[TaskRow] = await site.asked(
        ("tasks", dag_id, run_id, task_id, map_index),
        lambda: known_tables.tasks_of_run(places, dag_id, run_id, task_id, map_index),
        _ASKED_FRESH_S,
    )
    running = [row for row in rows if row.state in _WORKING]
    key = ("progress", dag_id, run_id, task_id, map_index)
    progress = await site.asked(key, lambda: known_tables.progress_of(running), _ASKED_FRESH_S) if running else {}
    found = await asyncio.gather(
        *(
            _task(window, ask, row, progress.get(row.key), with_commit=number < _MOST_COMMITS)
            for number, row in enumerate(rows)
        )
    )
    facts = TasksPage(dag_id=dag_id, run_id=run_id, task_id=task_id, tasks=tuple(found))
    return Shown(template="tasks.html", facts=facts, values={"refresh": _REFRESH_S if facts.is_running else 0})


async def _task(
    window: Window, ask: Ask, row: TaskRow, progress: Mapping[str, Any] | None, *, with_commit: bool
) -> TaskFacts:
    uri = None if row.table_uri is None else shown(row.table_uri)
    known = ask.view.tables.get(uri or "")
    result = row.result or {}
    version = _number(result.get("version"))
    commit, problem = None, ""
    if known is not None and version is not None and with_commit and result.get("status") != "nothing_to_do":
        try:
            commit = await window.of_table(
                known, ("commit", version), lambda table: commit_facts(table, window.kept, version)
            )
            commit = commit.for_user(ask.view.sees)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            problem = problem_of(error)[1]
    return TaskFacts(
        row=replace(row, result=None, table_uri=uri),
        uri=None if known is None else known.uri,
        status=clipped(str(result.get("status") or ""), 100),
        read_version=_number(result.get("read_version")),
        version=version,
        seconds=_seconds(result.get("seconds")),
        doing=_doing(progress, ask.now_ms),
        commit=commit,
        problem=problem,
    )


def _of_these(known: KnownTable, permitted: frozenset[str]) -> KnownTable:
    """Return a table with those of its DAGs that the user may read. Most users share most of the records."""
    if permitted.issuperset(known.dag_ids):
        return known
    return replace(known, dag_ids=tuple(dag_id for dag_id in known.dag_ids if dag_id in permitted))


def _number(value: object) -> int | None:
    """Return a whole number of a result or of a state, which any task can write; None for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < 10**18 else None


def _seconds(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < 10**12 else None


def _doing(progress: Mapping[str, Any] | None, now_ms: int) -> Doing | None:
    """Return the progress that a job reports; None for a form that is not ours."""
    if progress is None or not isinstance(progress.get("step"), str):
        return None
    counts = {name: _number(progress.get(name)) for name in ("done", "total", "attempt", "conflicts")}
    at_ms = _number(progress.get("at_ms"))
    return Doing(
        step=clipped(progress["step"], 100),
        done=counts["done"] or 0,
        total=counts["total"] or 0,
        unit="tasks" if progress.get("unit") == "tasks" else "files",
        seconds=_seconds(progress.get("seconds")) or 0.0,
        bytes_per_s=_number(progress.get("bytes_per_s")),
        remaining_s=_number(progress.get("remaining_s")),
        attempt=counts["attempt"] or 1,
        conflicts=counts["conflicts"] or 0,
        at_ms=at_ms,
        is_silent=at_ms is not None and now_ms - at_ms > _SILENT_MS,
    )
