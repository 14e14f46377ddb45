"""The tables that Airflow's database names: by asset events, by outlets, and by the rendered fields of our operators;
and those in the base folders of connections. A name in a catalog is not resolved here: the result of a task has both.

A table is known by the DAGs that name it, so a user who may read none of them does not see it. DAG authors decide which
tables are named here, as they decide which tables tasks read. The invariant: queries and listings are bounded, and no
table is opened.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from airflow.models.asset import AssetEvent, AssetModel, TaskOutletAssetReference
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.providers.common.compat.sdk import conf
from airflow.utils.session import create_session
from sqlalchemy import String, and_, cast, func, select

from airflow_txlog.engine import Table
from airflow_txlog.hooks.asset_events import ASSET_SCHEME
from airflow_txlog.hooks.named_tables import may_be_name
from airflow_txlog.hooks.running_progress import STATE_KEY
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.locations import canonical_place, is_absolute, scheme_of, shown
from airflow_txlog.window.site import KnownTable

log = logging.getLogger(__name__)

MOST_ROWS = 5_000
"""The newest events, and the tasks, outlets and connections that are looked at, each."""
_RUNS_OF_A_TASK = 2
MOST_LISTED = 20_000
"""The files of a base folder that are looked at."""
ALL = "all"
"""The setting `window_tables` without which only tables in the base folders of connections are opened."""
_CONN_TYPE = "txlog"
_VARIABLE = "AIRFLOW_CONN_"
_LOG = "_delta_log"
_RESULT = "return_value"
_MOST_NAMES, _MOST_CHARACTERS = 300, 300
# Both are template fields of each of our operators, so subclasses have them too.
_FIELDS = frozenset({"table_uri", "spark_conf"})


@dataclass(frozen=True, slots=True)
class Places:
    """The base folders of the connections of type `txlog` that this process can find."""

    bases: Mapping[str, str] = field(default_factory=dict)
    """By connection."""
    teams: Mapping[str, str] = field(default_factory=dict)
    """The team of each connection that belongs to one: tasks of other teams cannot use it."""

    def connection_of(self, uri: str, teams: Collection[str | None] = ()) -> str | None:
        """Return the connection in whose base folder a table lies and which one of these teams may use."""
        place = f"{canonical_place(uri)}/"
        inside = [
            (len(base), name)
            for name, base in ((name, canonical_place(base)) for name, base in self.bases.items())
            if place.startswith(f"{base}/") and (name not in self.teams or self.teams[name] in teams)
        ]
        return max(inside)[1] if inside else None

    def resolved(self, name: str) -> str | None:
        """Return the URI of a table that a task named; None if it is not clear which folder it lies in."""
        if is_absolute(name):
            return name
        if len(self.bases) != 1 or name.startswith("~"):
            return None
        [base] = self.bases.values()
        return f"{base}/{name}"


@dataclass(slots=True)
class NamedTable:
    """A table, and what names it."""

    dag_ids: set[str] = field(default_factory=set)
    is_certain: bool = False
    """False if only an asset names it, which may be no table."""
    names: set[str] = field(default_factory=set)
    """Its names in catalogs."""


@dataclass(frozen=True, slots=True)
class _Mention:
    """One place at which the database names a table."""

    uri: str
    dag_id: str
    is_certain: bool = True
    name: str | None = None


def places() -> Places:
    """Return the base folders of connections in the database, in the environment, and in `window_connections`.

    A secrets backend cannot list its connections, so that setting names those that are there.
    """
    with create_session() as session:
        query = select(Connection).where(Connection.conn_type == _CONN_TYPE).limit(MOST_ROWS)
        found = {each.conn_id: each for each in session.scalars(query)}
    for conn_id in _named_elsewhere():
        try:
            found[conn_id] = Connection.get_connection_from_secrets(conn_id)
        except Exception as error:
            log.warning("The window cannot read the connection %s: %s", conn_id, type(error).__name__)
    bases = {name: str(each.host or "").rstrip("/") for name, each in found.items() if each.conn_type == _CONN_TYPE}
    teams = {name: team for name, each in found.items() if (team := getattr(each, "team_name", None)) is not None}
    return Places({name: base for name, base in bases.items() if is_absolute(base)}, teams)


def _named_elsewhere() -> list[str]:
    in_environment = [
        name.removeprefix(_VARIABLE).lower()
        for name, text in os.environ.items()
        if name.startswith(_VARIABLE) and (text.startswith(f"{_CONN_TYPE}:") or f'"{_CONN_TYPE}"' in text)
    ]
    given = conf.get("txlog", "window_connections", fallback="") or ""
    return list(dict.fromkeys([*in_environment, *filter(None, map(str.strip, given.split(",")))]))


def tables_below(conn_id: str, base: str) -> list[KnownTable]:
    """Return the tables in the base folder of a connection, among its first MOST_LISTED files. Lists the store."""
    store = Table.at(base, TxlogHook(conn_id).access).store
    paths = (info.path for info in islice(store.walk(lambda folder: None, lazily=True), MOST_LISTED))
    roots = sorted({path.partition(f"/{_LOG}/")[0] for path in paths if f"/{_LOG}/" in path})
    uris = [_plain(f"{base}/{root}") for root in roots]
    return [KnownTable(uri=shown(uri), place=uri, conn_id=conn_id) for uri in uris]


def known_tables(places: Places) -> dict[str, KnownTable]:
    """Return all tables that Airflow knows, by URI, with all DAGs that name them. Asks the database."""
    found: dict[str, NamedTable] = {}
    with create_session() as session:
        for mention in (*_of_events(session), *_of_tasks(session, places), *_of_outlets(session)):
            # Some stores resolve such steps, so the folder would not be the one that the text names.
            if not {"..", "."}.isdisjoint(mention.uri.split("/")):
                continue
            each = found.setdefault(mention.uri.rstrip("/"), NamedTable())
            each.dag_ids.add(mention.dag_id)
            each.is_certain = each.is_certain or mention.is_certain
            each.names.update([] if mention.name is None else [mention.name])
        teams = _teams_of({dag_id for each in found.values() for dag_id in each.dag_ids}) if places.teams else {}
    tables = (_known(uri, each, places, teams) for uri, each in found.items())
    opens_all = str(conf.get("txlog", "window_tables", fallback=ALL)).strip().lower() == ALL
    return {each.uri: each for each in tables if opens_all or each.conn_id is not None}


def _known(uri: str, named: NamedTable, places: Places, teams: Mapping[str, str | None]) -> KnownTable:
    conn_id = places.connection_of(uri, {teams.get(dag_id) for dag_id in named.dag_ids})
    dag_ids = named.dag_ids
    if conn_id is not None and conn_id in places.teams:
        # The connection opens the table only for those who may see a DAG of its team.
        dag_ids = {dag_id for dag_id in dag_ids if teams.get(dag_id) == places.teams[conn_id]}
    return KnownTable(
        uri=shown(uri),
        place=uri,
        dag_ids=tuple(sorted(dag_ids)),
        conn_id=conn_id,
        is_certain=named.is_certain,
        names=tuple(sorted(named.names)),
    )


def _teams_of(dag_ids: Collection[str]) -> Mapping[str, str | None]:
    found: Mapping[str, str | None] = DagModel.get_dag_id_to_team_name_mapping(list(dag_ids))
    return found


def _plain(uri: str) -> str:
    """Return the URI of an asset as one of a table: an absolute path for a local one."""
    return uri.removeprefix("file://") if uri.startswith("file:///") else uri


def _of_events(session: Any) -> Iterable[_Mention]:
    query = (
        select(AssetEvent.source_dag_id, AssetEvent.extra)
        .where(AssetEvent.source_dag_id.is_not(None))
        .order_by(AssetEvent.id.desc())
        .limit(MOST_ROWS)
    )
    for dag_id, extra in session.execute(query):
        uri = extra.get("table_uri") if isinstance(extra, Mapping) else None
        if isinstance(uri, str) and is_absolute(uri):
            yield _Mention(_plain(uri), dag_id, name=_name_of(extra))


def _name_of(given: Mapping[str, Any]) -> str | None:
    """Return the name in a catalog in a result or an event of ours."""
    name = given.get("table")
    return name[:_MOST_CHARACTERS] if may_be_name(name) else None


def _of_outlets(session: Any) -> Iterable[_Mention]:
    query = (
        select(TaskOutletAssetReference.dag_id, AssetModel.uri)
        .join(AssetModel, AssetModel.id == TaskOutletAssetReference.asset_id)
        .limit(MOST_ROWS)
    )
    for dag_id, uri in session.execute(query):
        # The asset of a name in a catalog names no place.
        if is_absolute(uri) and scheme_of(uri) != ASSET_SCHEME:
            yield _Mention(_plain(uri), dag_id, is_certain=False)


def _same_task(other: Any) -> Any:
    return and_(
        *(getattr(other, name) == getattr(TaskInstance, name) for name in ("dag_id", "run_id", "task_id", "map_index"))
    )


def _of_tasks(session: Any, places: Places) -> Iterable[_Mention]:
    """Yield the tables in the rendered fields of the newest runs of each task of ours, the newest first.

    Those of other operators do not count against the bound: most tasks of a large Airflow are none of ours.
    """
    fields = RenderedTaskInstanceFields
    task = (TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.map_index)
    number = func.row_number().over(partition_by=task, order_by=TaskInstance.start_date.desc()).label("number")
    columns: list[Any] = [fields.dag_id, fields.run_id, fields.task_id, fields.map_index, fields.rendered_fields]
    ranked = select(*columns, TaskInstance.start_date, number).join(TaskInstance, _same_task(fields)).subquery()
    rows: Any = ranked.c
    query = (
        select(ranked)
        .where(rows.number <= _RUNS_OF_A_TASK, cast(rows.rendered_fields, String).like("%spark_conf%"))
        .order_by(rows.start_date.desc())
        .limit(MOST_ROWS)
    )
    looked_up: set[tuple[str, str]] = set()
    questions = 0
    for row in session.execute(query):
        rendered = row.rendered_fields
        if not isinstance(rendered, Mapping) or not rendered.keys() >= _FIELDS:
            continue
        uri, name = table_named(rendered, places), _name_of(rendered)
        if uri is not None:
            yield _Mention(uri, row.dag_id)
        elif name is not None and (row.dag_id, name) not in looked_up and questions < _MOST_NAMES:
            questions += 1
            result = _result(session, row) or {}
            found = str(result.get("table_uri") or "")
            if is_absolute(found):
                # One that has failed has no result; an earlier run may have one.
                looked_up.add((row.dag_id, name))
                yield _Mention(_plain(found), row.dag_id, name=_name_of(result) or name)


def table_named(rendered: object, places: Places) -> str | None:
    """Return the table in the rendered fields of a task of ours; None for other tasks, or if it is not clear."""
    if not isinstance(rendered, Mapping) or not rendered.keys() >= _FIELDS:
        return None
    name = rendered["table_uri"]
    uri = places.resolved(name) if isinstance(name, str) and name else None
    return None if uri is None else _plain(uri).rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """The facts of Airflow's database about a task instance of ours."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    state: str
    try_number: int
    started_ms: int | None
    ended_ms: int | None
    table_uri: str | None
    result: Mapping[str, Any] | None
    """The task's XCom, if it has succeeded and is of our form."""

    @property
    def key(self) -> tuple[str, int]:
        """What makes it one task of its run."""
        return self.task_id, self.map_index


def tasks_of_run(
    places: Places, dag_id: str, run_id: str, task_id: str | None = None, map_index: int | None = None
) -> list[TaskRow]:
    """Return the tasks of ours of a run, or one of them, in the order in which they started. Asks the database."""
    fields = RenderedTaskInstanceFields
    query = (
        select(TaskInstance, fields.rendered_fields)
        .join(fields, _same_task(fields), isouter=True)
        .where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id)
        .order_by(TaskInstance.start_date)
        .limit(200)
    )
    if task_id is not None:
        query = query.where(TaskInstance.task_id == task_id)
    if map_index is not None:
        query = query.where(TaskInstance.map_index == map_index)
    with create_session() as session:
        return [
            _task_row(session, task, rendered, places)
            for task, rendered in session.execute(query)
            if isinstance(rendered, Mapping) and rendered.keys() >= _FIELDS
        ]


def _task_row(session: Any, task: Any, rendered: object, places: Places) -> TaskRow:
    result = _result(session, task) if task.state == "success" else None
    uri = table_named(rendered, places)
    if result is not None and is_absolute(str(result.get("table_uri") or "")):
        uri = _plain(str(result["table_uri"])).rstrip("/")
    return TaskRow(
        dag_id=task.dag_id,
        run_id=task.run_id,
        task_id=task.task_id,
        map_index=task.map_index,
        state=str(task.state or "none"),
        try_number=task.try_number,
        started_ms=_ms(task.start_date),
        ended_ms=_ms(task.end_date),
        table_uri=uri,
        result=result,
    )


def _ms(moment: Any) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def _result(session: Any, task: Any) -> Mapping[str, Any] | None:
    row = session.scalars(
        select(XComModel).where(
            XComModel.dag_id == task.dag_id,
            XComModel.run_id == task.run_id,
            XComModel.task_id == task.task_id,
            XComModel.map_index == task.map_index,
            XComModel.key == _RESULT,
        )
    ).first()
    value = None if row is None else XComModel.deserialize_value(row)
    return value if isinstance(value, Mapping) else None


def progress_of(tasks: Sequence[TaskRow]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Return the progress of running tasks of one run, by key.

    A task has none before its first report, and before Airflow 3.3.
    """
    try:
        from airflow.models.task_state_store import TaskStateStoreModel as Stored
    except ImportError:
        return {}
    tries = {task.key: task.try_number for task in tasks}
    query = select(Stored.task_id, Stored.map_index, Stored.value).where(
        Stored.dag_id == tasks[0].dag_id,
        Stored.run_id == tasks[0].run_id,
        Stored.task_id.in_({task.task_id for task in tasks}),
        Stored.key == STATE_KEY,
    )
    found = dict[tuple[str, int], Mapping[str, Any]]()
    with create_session() as session:
        for task_id, map_index, value in session.execute(query):
            key = (task_id, map_index)
            progress = _decoded(value, tries[key]) if key in tries else None
            if progress is not None:
                found[key] = progress
    return found


def _decoded(text: Any, try_number: int) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
    if not isinstance(value, Mapping) or value.get("try_number") not in (None, try_number):
        return None
    progress = value.get("progress")
    return progress if isinstance(progress, Mapping) else None
