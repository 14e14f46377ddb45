"""Tasks on a real server with an Airflow connection: their work is done, and the connection's secrets are nowhere."""

from __future__ import annotations

import datetime as dt
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine import Table
from airflow_txlog.hooks import storage_connection
from airflow_txlog.runners.warm.server import stop_all
from airflow_txlog.storage import Access, open_store
from airflow_txlog.storage.credentials import Credentials
from airflow_txlog.storage.managed import ManagedStore
from tests.helpers import azure, gcs, s3
from tests.helpers.depth import by_hand
from tests.helpers.identity_proxies import OverTls, WithTokens
from tests.helpers.managed import catalog_of, committer_of
from tests.helpers.rows import append
from tests.helpers.unity import FakeUnity

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long("a Spark for each kind of connection")]

LIFE_MS = 2_000
Request = pytest.FixtureRequest


@dataclass(frozen=True, kw_only=True)
class Lake:
    """A server of the tests, and the connection by which a task reaches it."""

    conn_type: str
    connection: dict[str, Any]
    uri: str
    """As the task names it."""
    table: Table
    """The same one, opened with what the server knows beside the connection."""
    secrets: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    fetches: list[int] = field(default_factory=list)
    """When credentials that live for LIFE_MS were fetched; stays empty where they never expire."""


def users_at(uri: str, options: dict[str, Any]) -> Table:
    """A hundred users in two files."""
    rows = pa.table({"user_id": pa.array(range(100), pa.int64())})
    table = Table.create(uri, rows.schema, storage_options=options)
    for part in (rows.slice(0, 50), rows.slice(50)):
        append(table, part)
    return table


def aws(monkeypatch: pytest.MonkeyPatch, request: Request) -> Lake:
    options = s3.options()
    uri = s3.new_folder()
    fetches: list[int] = []
    plain = storage_connection._plain_aws_credentials

    def short_lived(conn_id: str) -> Credentials:
        fetches.append(SYSTEM_CLOCK.now_ms())
        return Credentials(kind="aws", values=plain(conn_id).values, expires_ms=fetches[-1] + LIFE_MS)

    monkeypatch.setattr(storage_connection, "_plain_aws_credentials", short_lived)
    extra = {"endpoint_url": options["endpoint_url"], "region_name": options["region"]}
    return Lake(
        conn_type="aws",
        connection={"login": options["key"], "password": options["secret"], "extra": extra},
        uri=uri,
        table=users_at(uri, options),
        secrets=[options["secret"]],
        fetches=fetches,
    )


def unity(monkeypatch: pytest.MonkeyPatch, request: Request) -> Lake:
    """A table that a catalog manages: the catalog's token, and the temporary credentials that it issues."""
    token, given, fetches = f"canary-{uuid.uuid4().hex}", s3.options(), []
    server = FakeUnity().__enter__()
    request.addfinalizer(lambda: server.__exit__(None, None, None))

    def issued(location: str, operation: str) -> dict[str, str]:
        fetches.append(SYSTEM_CLOCK.now_ms())
        return {"s3.access-key-id": given["key"], "s3.secret-access-key": given["secret"]}

    server.tokens, server.root, server.life_ms, server.credentials = {token}, s3.new_folder(), LIFE_MS, issued
    catalog = catalog_of(server, token)
    place = catalog.place_for("main.lake.users")
    access = Access(storage_options=s3.plain_options(), catalog_tables=tuple(catalog.new_tables.values()))
    rows = pa.table({"user_id": pa.array(range(100), pa.int64())})
    Table.create(open_store(place, access), rows.schema)
    fake = server.tables["main.lake.users"]
    table = Table(ManagedStore(open_store(place, s3.access()), committer_of(server, fake, token=token)))
    for part in (rows.slice(0, 50), rows.slice(50)):
        append(table, part)
    fetches.clear()
    return Lake(
        conn_type="txlog_unity",
        connection={"host": server.url, "password": token},
        uri="main.lake.users",
        table=table,
        secrets=[given["secret"], token],
        options=s3.plain_options(),
        fetches=fetches,
    )


def google(monkeypatch: pytest.MonkeyPatch, request: Request) -> Lake:
    uri = gcs.new_folder()
    # google-auth cuts the time at which a token expires to whole seconds.
    server = WithTokens(gcs.options()["endpoint_url"], life_s=LIFE_MS // 1000 + 1).__enter__()
    request.addfinalizer(lambda: server.__exit__(None, None, None))
    return Lake(
        conn_type="google_cloud_platform",
        connection={"extra": {"keyfile_dict": json.dumps(server.keyfile), "project": "tests"}},
        uri=uri,
        table=users_at(uri, gcs.options()),
        # Its lines are written in many ways where it is quoted.
        secrets=[server.keyfile["private_key"].splitlines()[5], server.TOKENS],
        options={"endpoint_url": server.endpoint},
        fetches=server.issued_ms,
    )


def azure_by_connection_string(monkeypatch: pytest.MonkeyPatch, request: Request) -> Lake:
    text = azure.options()["connection_string"]
    return _azure("adls", {"extra": {"connection_string": text}}, [])


def azure_by_key(monkeypatch: pytest.MonkeyPatch, request: Request) -> Lake:
    host = _azure_over_tls(monkeypatch, request)
    account, key = azure.account()
    return _azure("wasb", {"login": account, "password": key, "extra": {"account_host": host}}, [])


def azure_by_sas(monkeypatch: pytest.MonkeyPatch, request: Request) -> Lake:
    from azure.storage.blob import generate_container_sas

    host = _azure_over_tls(monkeypatch, request)
    account, key = azure.account()
    until = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    given = {"account_key": key, "permission": "racwdl", "expiry": until}
    sas = generate_container_sas(account, azure.CONTAINER, **given)
    signature = next(each for each in sas.split("&") if each.startswith("sig="))
    return _azure("wasb", {"login": account, "extra": {"sas_token": sas, "account_host": host}}, [signature[4:]])


def _azure(conn_type: str, connection: dict[str, Any], secrets: list[str]) -> Lake:
    _, key = azure.account()
    table = users_at(azure.new_folder(), azure.options())
    return Lake(
        conn_type=conn_type, connection=connection, uri=table.uri, table=table, secrets=[key.split("/")[0], *secrets]
    )


def _azure_over_tls(monkeypatch: pytest.MonkeyPatch, request: Request) -> str:
    """The account's host, as a connection names it. This process and those it starts trust its certificate alone."""
    account, _ = azure.account()
    folder = request.getfixturevalue("tmp_path_factory").mktemp("tls")
    server = OverTls(azure.endpoint(), folder).__enter__()
    request.addfinalizer(lambda: server.__exit__(None, None, None))
    monkeypatch.setenv("SSL_CERT_FILE", str(server.authority))
    return f"{server.endpoint.removeprefix('https://')}/{account}"


@pytest.fixture
def lake(request: Request, monkeypatch: pytest.MonkeyPatch) -> Lake:
    # As where the providers are not installed.
    for name in ("amazon", "google"):
        monkeypatch.setitem(sys.modules, f"airflow.providers.{name}", None)
    lake: Lake = request.param(monkeypatch, request)
    return lake


@pytest.fixture
def runner(request: Request, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setenv("TXLOG_TEST_RUNNER", request.param)
    monkeypatch.setenv("TXLOG_WARM_FOLDER", str(tmp_path / "warm"))
    yield request.param
    stop_all()


KINDS = {
    "aws": aws,
    "unity": unity,
    "google": google,
    "azure by connection string": azure_by_connection_string,
    "azure by key": azure_by_key,
    "azure by SAS": azure_by_sas,
}
SPARED = ("azure by connection string", "azure by key")
CASES = [
    *(
        pytest.param("child", kind, id=name, marks=by_hand("azure by SAS is run") if name in SPARED else ())
        for name, kind in KINDS.items()
    ),
    # Workers of a server that other tasks use too ask the task that runs for its credentials.
    pytest.param("warm", aws, id="aws, warm"),
    pytest.param("warm", unity, id="unity, warm"),
    *(
        pytest.param("warm", KINDS[name], id=f"{name}, warm", marks=by_hand("a warm Spark for another kind"))
        for name in ("google", "azure by SAS")
    ),
]


@pytest.mark.parametrize(("runner", "lake"), CASES, indirect=True)
def test_a_job_outlives_its_credentials_and_the_secret_of_the_connection_is_nowhere(
    runner: str,
    lake: Lake,
    dag_of: Callable[[str, str], Any],
    airflow_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A name of its own, for a process keeps what a connection gave for a while.
    storage = f"store_{uuid.uuid4().hex}"
    is_catalog = lake.conn_type == "txlog_unity"
    extra = {"storage_options": lake.options} | ({} if is_catalog else {"storage_conn_id": storage})
    monkeypatch.setenv(f"AIRFLOW_CONN_{storage.upper()}", json.dumps({"conn_type": lake.conn_type, **lake.connection}))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "extra": extra}))
    events = tmp_path / "events"
    events.mkdir()
    given = {"TABLE": lake.uri, "CONNECTION": "lake", "EVENTS": events.as_uri()}
    given["CATALOG" if is_catalog else "STORAGE"] = storage
    for name, value in given.items():
        monkeypatch.setenv(f"TXLOG_TEST_{name}", value)

    dag = dag_of("stores", "on_an_object_store")
    dag_run = dag.test()

    tis = {ti.task_id: ti for ti in dag_run.get_task_instances()}
    assert {name: ti.state for name, ti in tis.items()} == {"join": "success", "forget": "success"}
    users = lake.table
    assert sorted(users.to_arrow()["user_id"].to_pylist()) == [user for user in range(110) if user != 42]
    assert [each["operation"] for each in users.history(2)] == ["DELETE", "WRITE"]
    if lake.fetches:
        # From the first to the last, with few between: the driver and the workers share what the task has.
        lasted_ms = lake.fetches[-1] - lake.fetches[0]
        assert lasted_ms > LIFE_MS
        if runner == "child":
            # Each task has a JVM to start: what it was given first is no longer valid when it commits.
            began_ms = int(1000 * tis["forget"].start_date.timestamp())
            of_the_delete = [fetched for fetched in lake.fetches if fetched >= began_ms]
            assert of_the_delete[-1] - of_the_delete[0] > LIFE_MS
        assert len(lake.fetches) <= 6 + 2 * lasted_ms / (LIFE_MS * 3 / 4)

    watched = "\n".join(dag.get_task("forget").runner.run.__globals__["WATCHED"])
    assert "org.apache.spark" in watched
    assert "committed" in watched
    xcom = json.dumps([ti.xcom_pull(task_ids=name) for name, ti in tis.items()])
    out, err = capfd.readouterr()
    shown = {"spec, result, command lines": watched, "xcom": xcom, "stdout": out, "stderr": err, "log": caplog.text}
    written = [*events.rglob("*"), *(path for path in airflow_home.rglob("*") if not path.is_symlink())]
    held = {str(path): path.read_bytes() for path in written if path.is_file()}
    assert any(name.startswith(str(events)) for name in held)
    held |= {each.path: users.store.read(each.path) for each in users.store.walk()}
    assert any(name.endswith("00004.json") for name in held)
    found = [name for name, text in shown.items() if any(secret in text for secret in lake.secrets)]
    leaked = [name for name, data in held.items() if any(secret.encode() in data for secret in lake.secrets)]
    assert found + leaked == []
    # Nor what opens the endpoint.
    assert "TXLOG_CREDENTIALS" not in watched + "".join(data.decode(errors="replace") for data in held.values())
