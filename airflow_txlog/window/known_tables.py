"""The tables that Airflow's database names: by asset events, by outlets, and by the rendered fields of our operators;
and those in the base folders of connections. A name in a catalog is not resolved here: the result of a task has both.

A table is known by the DAGs that name it, so a user who may read none of them does not see it. DAG authors decide which
tables are named here, as they decide which tables tasks read. The invariant: queries and listings are bounded, and no
table is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from airflow.models.asset import AssetEvent, AssetModel, TaskOutletAssetReference
from airflow.models.connection import Connection
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import and_, select

from airflow_txlog.engine import Table
from airflow_txlog.hooks.asset_events import ASSET_SCHEME
from airflow_txlog.hooks.named_tables import may_be_name
from airflow_txlog.hooks.running_progress import STATE_KEY
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.locations import is_absolute, scheme_of, shown
from airflow_txlog.window.site import KnownTable

MOST_ROWS = 3_000
"""The newest events, tasks and outlets that are looked at, each."""
MOST_LISTED = 20_000
"""The files of a base folder that are looked at."""
_LOG = "_delta_log"
_RESULT = "return_value"
_MOST_NAMES, _MOST_CHARACTERS = 300, 300
# Both are template fields of each of our operators, so subclasses have them too.
_FIELDS = frozenset({"table_uri", "spark_conf"})


@dataclass(slots=True)
class Places:
    """The base folders of the connections of type `txlog` in the database."""

    bases: dict[str, str] = field(default_factory=dict)
    """By connection."""

    def connection_of(self, uri: str) -> str | None:
        """Return the connection whose base folder a table lies in; None without one."""
        inside = [(len(base), name) for name, base in self.bases.items() if f"{uri}/".startswith(f"{base}/")]
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


def base_folders() -> dict[str, str]:
    """Return the base folders of the connections of type `txlog` in the database, by connection."""
    with create_session() as session:
        return _places(session).bases


def tables_below(conn_id: str, base: str) -> list[KnownTable]:
    """Return the tables in the base folder of a connection, among its first MOST_LISTED files. Lists the store."""
    store = Table.at(base, TxlogHook(conn_id).access).store
    paths = (info.path for info in islice(store.walk(lambda folder: None, lazily=True), MOST_LISTED))
    roots = sorted({path.partition(f"/{_LOG}/")[0] for path in paths if f"/{_LOG}/" in path})
    uris = [_plain(f"{base}/{root}") for root in roots]
    return [KnownTable(uri=shown(uri), place=uri, conn_id=conn_id) for uri in uris]


def known_tables() -> dict[str, KnownTable]:
    """Return all tables that Airflow knows, by URI, with all DAGs that name them. Asks the database."""
    found: dict[str, NamedTable] = {}
    with create_session() as session:
        places = _places(session)
        for mention in (*_of_events(session), *_of_tasks(session, places), *_of_outlets(session)):
            each = found.setdefault(mention.uri.rstrip("/"), NamedTable())
            each.dag_ids.add(mention.dag_id)
            each.is_certain = each.is_certain or mention.is_certain
            each.names.update([] if mention.name is None else [mention.name])
    return {
        shown(uri): KnownTable(
            uri=shown(uri),
            place=uri,
            dag_ids=tuple(sorted(each.dag_ids)),
            conn_id=places.connection_of(uri),
            is_certain=each.is_certain,
            names=tuple(sorted(each.names)),
        )
        for uri, each in found.items()
    }


def _places(session: Any) -> Places:
    rows = session.scalars(select(Connection).where(Connection.conn_type == "txlog").limit(MOST_ROWS))
    bases = {each.conn_id: (each.host or "").rstrip("/") for each in rows}
    return Places(bases={name: base for name, base in bases.items() if is_absolute(base)})


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
    fields = RenderedTaskInstanceFields
    query = (
        select(fields).join(TaskInstance, _same_task(fields)).order_by(TaskInstance.start_date.desc()).limit(MOST_ROWS)
    )
    looked_up: set[tuple[str, str]] = set()
    for row in session.scalars(query):
        rendered = row.rendered_fields
        uri, name = table_named(rendered, places), _name_of(rendered) if isinstance(rendered, Mapping) else None
        if uri is not None:
            yield _Mention(uri, row.dag_id)
        elif name is not None and (row.dag_id, name) not in looked_up and len(looked_up) < _MOST_NAMES:
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


def tasks_of_run(dag_id: str, run_id: str, task_id: str | None = None, map_index: int | None = None) -> list[TaskRow]:
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
        places = _places(session)
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
