"""The window in Airflow's API server: who sees what, by Airflow's own permissions, on every route."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine import Table
from airflow_txlog.window.markup import link
from tests.helpers.paths import ROOT
from tests.helpers.rows import make_table
from tests.window.tables import SCRIPT, Hands, create, tags

pytestmark = pytest.mark.airflow

VERBS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "QUERY"]
OTHER_PATHS = ["docs", "redoc", "openapi.json", "nothing", "style.css", "table/", "../api/v2/dags", "%2e%2e/task"]
QUERY = "dag_id=conflict_won_by_the_job&run_id=r&task_id=forget&map_index=-1&uri=/x&version=1"


@pytest.fixture(scope="module")
def server(airflow_home: Path) -> Iterator[Any]:
    """The application of an API server, without a process of its own."""
    from starlette.testclient import TestClient

    # An environment that was installed before the entry point was added.
    if not [each for each in entry_points(group="airflow.plugins") if each.name == "txlog"]:
        folder = airflow_home / "plugins"
        folder.mkdir(exist_ok=True)
        (folder / "window.py").write_text("from airflow_txlog.window.plugin import TxlogPlugin")
    from airflow.api_fastapi.app import create_app, purge_cached_app

    purge_cached_app()
    with TestClient(create_app(apps="core"), base_url="http://testserver") as client:
        yield client


def token(role: str) -> dict[str, str]:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    user = SimpleAuthManagerUser(username=f"vera_{role.lower()}", role=role)
    return {"Authorization": f"Bearer {get_auth_manager().generate_jwt(user)}"}


@pytest.fixture(scope="module")
def viewer(server: Any) -> dict[str, str]:
    return token("VIEWER")


def paths() -> list[str]:
    """Every route of the window, by its own table, and others."""
    from airflow_txlog.window.airflow_site import airflow_window

    return [*airflow_window().pages, *OTHER_PATHS]


@pytest.fixture(scope="module")
def raced(
    server: Any, dag_of: Callable[[str, str], Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Table, str]]:
    """A table that a task of a DAG has changed, after a conflict, and the run's id."""
    from airflow_txlog.window import airflow_site

    folder = tmp_path_factory.mktemp("raced")
    table = make_table(folder / "users", pa.table({"user_id": pa.array(range(100), pa.int64())}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TXLOG_TEST_TABLE", table.uri)
        patch.setenv("TXLOG_TEST_DEATHS", str(folder / "died"))
        patch.setattr(airflow_site, "_KNOWN_FRESH_S", 0.0)
        patch.setattr(airflow_site, "_PLACES_FRESH_S", 0.0)
        patch.setattr(airflow_site, "_VIEW_FRESH_S", 0.0)
        run = dag_of("outcomes", "conflict_won_by_the_job").test()
        assert str(run.state) == "success"
        yield table, run.run_id


def path_of(table: Table) -> str:
    return table.uri.removeprefix("file://")


def test_an_anonymous_request_gets_401_on_every_route_by_every_verb(server: Any) -> None:
    for path in paths():
        for verb in VERBS:
            for query in ("", f"?{QUERY}", f"?{QUERY}&format=json"):
                answer = server.request(verb, f"/txlog/{path}{query}", follow_redirects=False)
                outside = "/txlog/" not in str(answer.request.url)
                assert outside or answer.status_code == 401, (verb, path, answer.status_code)


@pytest.mark.parametrize("header", ["Bearer nonsense", "Bearer ", "Basic dmVyYTp2ZXJh", "bearer x.y.z"])
def test_a_bad_login_is_refused_on_every_route(server: Any, header: str) -> None:
    for path in paths():
        answer = server.get(f"/txlog/{path}?{QUERY}", headers={"Authorization": header})
        outside = "/txlog/" not in str(answer.request.url)
        assert outside or answer.status_code in (401, 403), path


def test_a_task_tab_shows_the_race_that_its_task_won(server: Any, viewer: dict[str, str], raced: Any) -> None:
    table, run_id = raced
    asked = {"dag_id": "conflict_won_by_the_job", "run_id": run_id, "task_id": "forget"}
    # Airflow's UI leaves the placeholder for a task that is not mapped.
    answer = server.get(f"/txlog/{link('task', **asked, map_index='{MAP_INDEX}')}", headers=viewer)
    assert answer.status_code == 200, answer.text
    for text in ("success", "version 3", "The race", "came first", path_of(table)):
        assert text in answer.text.replace("%2F", "/")
    facts = json.loads(server.get(f"/txlog/{link('task', **asked, format='json')}", headers=viewer).text)
    [task] = facts["tasks"]
    assert (task["status"], task["read_version"], task["version"]) == ("committed", 2, 3)
    [other] = task["commit"]["between"]
    assert (other["line"]["version"], other["meeting"]["how"], other["meeting"]["redone_files"]) == (2, "redone", 1)


def test_a_table_that_a_task_found_by_its_name_is_shown_with_the_name(
    server: Any, viewer: dict[str, str], raced: Any
) -> None:
    """The rendered fields hold the name, and the result of the task both."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
    from airflow.utils.session import create_session

    from airflow_txlog.window.known_tables import Places, known_tables

    table, run_id = raced
    asked = {"dag_id": "conflict_won_by_the_job", "run_id": run_id, "task_id": "forget"}
    with create_session() as session:
        row = session.query(Rendered).filter_by(**asked).one()
        before = dict(row.rendered_fields)
        row.rendered_fields = {**before, "table_uri": None, "table": "crm.users"}
    try:
        known = known_tables(Places())[path_of(table)]
        assert (known.names, known.is_certain) == (("crm.users",), True)
        shown = server.get(f"/txlog/{link('table', uri=path_of(table))}", headers=viewer).text
        assert "crm.users" in shown
        assert "crm.users" in server.get("/txlog/", headers=viewer).text
    finally:
        with create_session() as session:
            session.query(Rendered).filter_by(**asked).one().rendered_fields = before
    assert not [uri for uri in known_tables(Places()) if uri.startswith("txlog:")]


def test_the_tab_of_a_running_task_shows_what_its_job_reports(
    server: Any, viewer: dict[str, str], raced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the record that a job writes; one of another try, or of another form, is not shown."""
    store = pytest.importorskip("airflow.models.task_state_store", reason="Airflow has no state store before 3.3")
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    from airflow_txlog.hooks.running_progress import STATE_KEY
    from airflow_txlog.process.progress import JobProgress
    from airflow_txlog.window import airflow_site

    _, run_id = raced
    named = {"dag_id": "conflict_won_by_the_job", "run_id": run_id, "task_id": "forget"}
    progress = JobProgress(
        step="rewrite",
        done=12,
        total=40,
        bytes_per_s=85 * 2**20,
        remaining_s=20,
        attempt=2,
        conflicts=1,
        at_ms=SYSTEM_CLOCK.now_ms(),
    )

    def shown(value: object, state: str = "running") -> str:
        with create_session() as session:
            session.query(store.TaskStateStoreModel).filter_by(**named).delete()
            run = session.query(DagRun).filter_by(dag_id=named["dag_id"], run_id=run_id).one()
            session.query(TaskInstance).filter_by(**named).update({"state": state})
            row = {**named, "dag_run_id": run.id, "map_index": -1, "key": STATE_KEY, "value": json.dumps(value)}
            session.add(store.TaskStateStoreModel(**row))
        # The window keeps answers of the database for a second.
        monkeypatch.setattr(airflow_site, "_ASKED_FRESH_S", 0.0)
        return str(server.get(f"/txlog/{link('task', **named)}", headers=viewer).text)

    try:
        text = shown({"try_number": 1, "progress": progress.to_dict()})
        for part in ("12 of 40 files", "85.0 MiB/s", "about 20 s left", "Attempt 2: 1 conflict", 'data-refresh="5"'):
            assert part in text
        # The record of a worker that was killed.
        silent = replace(progress, at_ms=progress.at_ms - 600_000).to_dict()
        text = shown({"try_number": 1, "progress": silent})
        assert "12 of 40 files" in text
        assert "has been silent since then" in text
        assert "s left" not in text
        assert "12 of 40" not in shown({"try_number": 1, "progress": silent}, "up_for_retry")
        for other in (
            {"try_number": 7, "progress": progress.to_dict()},
            {"try_number": 1, "progress": [SCRIPT]},
            SCRIPT,
        ):
            text = shown(other)
            assert "12 of 40" not in text
            assert "The task is running" in text
    finally:
        with create_session() as session:
            session.query(TaskInstance).filter_by(**named).update({"state": "success"})


def test_a_run_tab_lists_the_tasks_that_name_a_table(server: Any, viewer: dict[str, str], raced: Any) -> None:
    _, run_id = raced
    asked = {"dag_id": "conflict_won_by_the_job", "run_id": run_id}
    text = server.get(f"/txlog/{link('run', **asked)}", headers=viewer).text
    assert "forget" in text
    assert "version 3" in text


def test_a_task_of_other_operators_has_a_plain_page(server: Any, viewer: dict[str, str], raced: Any) -> None:
    asked = {"dag_id": "conflict_won_by_the_job", "run_id": "no such run", "task_id": "forget", "map_index": -1}
    answer = server.get(f"/txlog/{link('task', **asked)}", headers=viewer)
    assert answer.status_code == 200
    assert "This task names no table" in answer.text


def test_the_list_and_the_page_of_a_table_that_a_dag_names(server: Any, viewer: dict[str, str], raced: Any) -> None:
    table, _ = raced
    assert link("table", uri=path_of(table)) in server.get("/txlog/", headers=viewer).text.replace("&amp;", "&")
    text = server.get(f"/txlog/{link('table', uri=path_of(table))}", headers=viewer).text
    assert "<b>98</b> rows" in text
    assert "conflict_won_by_the_job" in text


def test_a_table_that_no_dag_names_is_not_opened(
    server: Any, viewer: dict[str, str], raced: Any, tmp_path: Path
) -> None:
    other = create(str(tmp_path / "other"), Hands(1_790_000_000_000))
    for uri in (path_of(other), other.uri, "/", "s3://bucket/table", ""):
        for page in ("table", "commit"):
            answer = server.get(f"/txlog/{link(page, uri=uri, version=0)}", headers=viewer)
            assert answer.status_code == 404, uri


def test_tables_in_the_base_folder_of_a_connection_are_shown_to_those_who_may_read_it(
    server: Any, viewer: dict[str, str], raced: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.connection import Connection
    from airflow.sdk.execution_time import task_runner
    from airflow.utils.session import create_session

    # As in the process of an API server, in which no task has run.
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None, raising=False)
    folder = tmp_path / "lake"
    table = create(str(folder / "deep" / "orders"), Hands(1_790_000_000_000))
    with create_session() as session:
        session.add(Connection(conn_id="a_lake", conn_type="txlog", host=str(folder)))
    try:
        page = f"/txlog/{link('table', uri=path_of(table))}"
        assert server.get(page, headers=viewer).status_code == 404
        assert server.get(page, headers=token("ADMIN")).status_code == 200
        assert "deep/orders" in server.get("/txlog/", headers=token("ADMIN")).text
        assert "deep/orders" not in server.get("/txlog/", headers=viewer).text
    finally:
        with create_session() as session:
            session.query(Connection).filter_by(conn_id="a_lake").delete()


def test_a_user_who_may_not_read_the_dag_gets_403_or_404_on_every_route(
    server: Any, viewer: dict[str, str], raced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    table, run_id = raced
    manager = type(get_auth_manager())
    monkeypatch.setattr(manager, "is_authorized_dag", lambda *args, **kwargs: False)
    monkeypatch.setattr(manager, "get_authorized_dag_ids", lambda *args, **kwargs: set())
    asked = {"dag_id": "conflict_won_by_the_job", "run_id": run_id, "task_id": "forget", "map_index": -1}
    asked |= {"uri": path_of(table), "version": 3}
    expected = {"": 200, "table": 404, "commit": 404, "task": 403, "run": 403}
    from airflow_txlog.window.airflow_site import airflow_window

    assert expected.keys() == airflow_window().pages.keys()
    for path, status in expected.items():
        for more in ({}, {"format": "json"}):
            answer = server.get(f"/txlog/{link(path, **asked, **more)}", headers=viewer)
            assert answer.status_code == status, path
            assert "users" not in answer.text
            assert "98" not in answer.text.replace("#", "").split("<main")[-1]


@pytest.mark.parametrize(
    ("denied", "expected"), [("RUN", {"task": 200, "run": 403}), ("TASK_INSTANCE", {"task": 403, "run": 403})]
)
def test_the_tab_of_a_run_shows_tasks_only_to_those_who_may_see_tasks(
    server: Any,
    viewer: dict[str, str],
    raced: Any,
    monkeypatch: pytest.MonkeyPatch,
    denied: str,
    expected: dict[str, int],
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    _, run_id = raced
    manager = type(get_auth_manager())
    original = manager.is_authorized_dag

    def allowed(self: Any, *, access_entity: Any = None, **more: Any) -> bool:
        return getattr(access_entity, "name", None) != denied and original(self, access_entity=access_entity, **more)

    monkeypatch.setattr(manager, "is_authorized_dag", allowed)
    asked = {"dag_id": "conflict_won_by_the_job", "run_id": run_id, "task_id": "forget", "map_index": -1}
    for path, status in expected.items():
        assert server.get(f"/txlog/{link(path, **asked)}", headers=viewer).status_code == status


def test_names_of_dags_that_the_user_may_not_see_are_left_out(
    server: Any, viewer: dict[str, str], raced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    table, _ = raced
    with create_session() as session:
        bundle = session.query(DagBundleModel).first()
        session.merge(DagModel(dag_id="payroll_of_the_board", bundle_name=bundle.name))
    tx = table.begin()
    tx.add(path="more.parquet", size=1, stats='{"numRecords":0}')
    version = tx.commit("WRITE", {}, {}, tags=tags("payroll_of_the_board", "pay_them"))
    asked = {"uri": path_of(table), "version": version}
    assert "payroll_of_the_board" in server.get(f"/txlog/{link('commit', **asked)}", headers=viewer).text
    manager = type(get_auth_manager())
    seen = {"conflict_won_by_the_job"}
    monkeypatch.setattr(manager, "get_authorized_dag_ids", lambda *args, **kwargs: seen)
    for path in ("", "table", "commit"):
        for more in ({}, {"format": "json"}):
            answer = server.get(f"/txlog/{link(path, **asked, **more)}", headers=viewer)
            assert answer.status_code == 200
            assert "payroll_of_the_board" not in answer.text
            assert "pay_them" not in answer.text


def test_an_error_of_the_auth_manager_shows_nothing(
    server: Any, viewer: dict[str, str], raced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no answer")

    monkeypatch.setattr(type(get_auth_manager()), "get_authorized_dag_ids", fails)
    table, _ = raced
    answer = server.get(f"/txlog/{link('table', uri=path_of(table))}", headers=viewer)
    assert answer.status_code == 500
    assert "98" not in answer.text.split("<main")[-1]


def test_connections_of_the_environment_and_of_a_secrets_backend_open_tables(
    server: Any, raced: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.execution_time import task_runner

    from airflow_txlog.window.known_tables import places

    # As in the process of an API server, in which no task has run.
    monkeypatch.delattr(task_runner, "SUPERVISOR_COMMS", raising=False)
    secrets = tmp_path / "connections.json"
    vault = {"conn_type": "txlog", "host": "s3://vault/lake"}
    secrets.write_text(json.dumps({"of_vault": vault, "other": {"conn_type": "aws"}}))
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "airflow.secrets.local_filesystem.LocalFilesystemBackend")
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", json.dumps({"connections_file_path": str(secrets)}))
    monkeypatch.setenv("AIRFLOW_CONN_OF_ENVIRONMENT", json.dumps({"conn_type": "txlog", "host": "s3://env/lake/"}))
    monkeypatch.setenv("AIRFLOW_CONN_DATABASE", "postgres://u:p@h/txlog")
    assert "of_vault" not in places().bases
    monkeypatch.setenv("AIRFLOW__TXLOG__WINDOW_CONNECTIONS", "of_vault, other, missing")
    found = places()
    assert {"of_vault": "s3://vault/lake", "of_environment": "s3://env/lake"}.items() <= found.bases.items()
    assert not {"other", "missing", "database"} & found.bases.keys()
    assert found.connection_of("s3://vault/lake/orders") == "of_vault"
    assert found.connection_of("s3://vault/lakeside/orders") is None


def test_only_tables_in_base_folders_are_opened_if_the_setting_says_so(
    server: Any, viewer: dict[str, str], raced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = raced
    page = f"/txlog/{link('table', uri=path_of(table))}"
    assert server.get(page, headers=viewer).status_code == 200
    monkeypatch.setenv("AIRFLOW__TXLOG__WINDOW_TABLES", "connections")
    assert server.get(page, headers=viewer).status_code == 404


def test_a_connection_of_a_team_opens_only_what_a_dag_of_the_team_names() -> None:
    from airflow_txlog.window.known_tables import NamedTable, Places, _known

    places = Places({"shared": "s3://lake", "of_finance": "s3://lake/finance"}, {"of_finance": "finance"})
    teams = {"pay": "finance", "sell": "sales", "old": None}
    uri = "s3://lake/finance/salaries"
    both = _known(uri, NamedTable(dag_ids={"pay", "sell", "old"}), places, teams)
    assert (both.conn_id, both.dag_ids) == ("of_finance", ("pay",))
    others = _known(uri, NamedTable(dag_ids={"sell", "old"}), places, teams)
    assert (others.conn_id, others.dag_ids) == ("shared", ("old", "sell"))


@pytest.mark.parametrize(
    ("base", "uri"),
    [
        ("file:///lake", "/lake/t"),
        ("s3a://lake", "s3://lake/t"),
        ("s3://lake", "s3n://lake/t"),
        ("gcs://lake/a", "gs://lake/a/t"),
    ],
)
def test_a_table_lies_in_a_base_folder_however_both_are_spelled(base: str, uri: str) -> None:
    from airflow_txlog.window.known_tables import Places

    assert Places({"lake": base}).connection_of(uri) == "lake"
    assert Places({"lake": base}).connection_of(f"{uri.rpartition('/')[0]}2/t") is None


def test_the_teams_of_dags_are_those_of_airflow(server: Any, raced: Any) -> None:
    models = pytest.importorskip("airflow.models.team", reason="Airflow has no teams before 3.1")
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    from airflow_txlog.window.known_tables import _teams_of

    with create_session() as session:
        bundle = DagBundleModel(name="of_finance")
        bundle.teams.append(models.Team(name="finance"))
        session.add(bundle)
        session.flush()
        session.merge(DagModel(dag_id="pay", bundle_name="of_finance"))
    found = _teams_of({"pay", "conflict_won_by_the_job"})
    assert found["pay"] == "finance"
    assert found.get("conflict_won_by_the_job") is None


def test_a_uri_with_steps_out_of_a_base_folder_names_no_table(server: Any, raced: Any) -> None:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    from airflow_txlog.window.known_tables import Places, known_tables

    with create_session() as session:
        asset = AssetModel(uri="s3://lake/steps", name="steps")
        session.add(asset)
        session.flush()
        for uri in ("/lake/../etc/t", "s3://lake/./t", "s3://lake/x/../../other/t", "s3://lake/fine..d"):
            extra = {"table_uri": uri}
            session.add(AssetEvent(asset_id=asset.id, source_dag_id="d", source_task_id="t", extra=extra))
    found = known_tables(Places({"lake": "/lake"}))
    assert "s3://lake/fine..d" in found
    assert not [uri for uri in found if "/../" in uri or "/./" in uri]


def test_tasks_of_other_operators_do_not_displace_tables(
    server: Any, raced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a large Airflow, the newest thousands of tasks may all be those of other operators."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import delete, insert, select

    from airflow_txlog.window import known_tables

    table, run_id = raced
    tasks, rendered = TaskInstance.__table__, RenderedTaskInstanceFields.__table__
    with create_session() as session:
        task = session.execute(select(tasks).where(tasks.c.run_id == run_id)).mappings().first()
        fields = session.execute(select(rendered).where(rendered.c.run_id == run_id)).mappings().first()
        for number in range(20):
            other = f"other_{number}"
            later = {"task_id": other, "id": uuid4(), "start_date": task["start_date"] + timedelta(minutes=number + 1)}
            session.execute(insert(tasks).values({**task, **later}))
            values = {**fields, "task_id": other, "rendered_fields": {"bash_command": "true"}}
            session.execute(insert(rendered).values(values))
    try:
        monkeypatch.setattr(known_tables, "MOST_ROWS", 3)
        with create_session() as session:
            found = [each.uri for each in known_tables._of_tasks(session, known_tables.Places())]
        assert path_of(table) in found
    finally:
        with create_session() as session:
            session.execute(delete(rendered).where(rendered.c.task_id.like("other_%")))
            session.execute(delete(tasks).where(tasks.c.task_id.like("other_%")))


def test_thirty_users_at_once_are_all_answered(server: Any, raced: Any) -> None:
    """Each needs answers about their own permissions from Airflow's database."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    table, _ = raced
    path = f"/txlog/{link('table', uri=path_of(table))}"
    users = [SimpleAuthManagerUser(username=f"user_{number}", role="VIEWER") for number in range(30)]
    tokens = [get_auth_manager().generate_jwt(user) for user in users]
    with ThreadPoolExecutor(30) as pool:
        asked = [pool.submit(server.get, path, headers={"Authorization": f"Bearer {each}"}) for each in tokens]
        assert {each.result().status_code for each in asked} == {200}


@pytest.mark.parametrize("failure", ["gone", "hangs"])
def test_a_database_that_does_not_answer_is_named_and_shows_nothing(
    server: Any, viewer: dict[str, str], raced: Any, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    from sqlalchemy.exc import OperationalError

    from airflow_txlog.window import airflow_site, known_tables
    from airflow_txlog.window.airflow_site import AirflowSite
    from airflow_txlog.window.answers import AnswerLimits, Answers

    release = threading.Event()

    def fails() -> None:
        if failure == "hangs":
            release.wait(60)
        raise OperationalError("SELECT secret", {}, Exception("no route to host"))

    table, _ = raced
    monkeypatch.setattr(known_tables, "known_tables", lambda places: fails())
    monkeypatch.setattr(airflow_site, "_LIMITS", AnswerLimits(deadline_s=0.2))
    window = airflow_site.airflow_window()
    assert isinstance(window.site, AirflowSite)
    assert isinstance(window.site._answers, Answers)
    from airflow_txlog.window import plugin

    monkeypatch.setattr(plugin, "_window", [window])
    for path in ("", link("table", uri=path_of(table))):
        answer = server.get(f"/txlog/{path}", headers=viewer)
        assert answer.status_code == (503 if failure == "gone" else 504)
        assert "Airflow's database" in answer.text.replace("&#39;", "'")
        assert "secret" not in answer.text
        assert answer.headers["retry-after"] == "5"
    release.set()


def test_every_process_imports_the_plugin_and_nothing_heavy_with_it() -> None:
    code = (
        "import sys; from airflow import plugins_manager as _\nbefore = set(sys.modules)\n"
        "import airflow_txlog.window.plugin as p\n"
        "print(sorted({n.split('.')[0] for n in set(sys.modules) - before}), len(p.TxlogPlugin.external_views))\n"
        "print(sorted(n for n in sys.modules if n.startswith('airflow_txlog')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    first, second = done.stdout.strip().splitlines()[-2:]
    assert not {"pyarrow", "fsspec", "jinja2", "starlette", "fastapi", "uvicorn"} & set(eval(first.rpartition(" ")[0]))
    assert first.endswith(" 3")
    ours = {"airflow_txlog", "airflow_txlog.window", "airflow_txlog.window.plugin"}
    # Airflow itself reads the last one.
    assert set(eval(second)) <= ours | {"airflow_txlog.get_provider_info"}


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("value", ["off", "False", "0", "disabled", ""])
def test_the_window_can_be_switched_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TXLOG__WINDOW", value)
    # The module as a process imports it, and not in place of this process's own.
    plugin = runpy.run_module("airflow_txlog.window.plugin")["TxlogPlugin"]
    assert (plugin.fastapi_apps, plugin.external_views) == ([], [])


def test_the_distribution_names_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["airflow.plugins"] == {"txlog": "airflow_txlog.window.plugin:TxlogPlugin"}
