"""A task on a real S3 server with an Airflow connection: its work is done, and the secret is nowhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.credentials import Credentials
from airflow_txlog.engine import Table
from airflow_txlog.hooks import storage_connection
from tests.helpers import s3
from tests.helpers.rows import append

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long("forty seconds, with a Spark of its own")]

LIFE_MS = 2_000


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Table:
    """A hundred users in two files, in a bucket of the tests' server."""
    uri = s3.new_folder()
    rows = pa.table({"user_id": pa.array(range(100), pa.int64())})
    table = Table.create(uri, rows.schema, storage_options=s3.options())
    for part in (rows.slice(0, 50), rows.slice(50)):
        append(table, part)
    monkeypatch.setenv("TXLOG_TEST_TABLE", uri)
    return table


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The connection's credentials live for two seconds; the times at which they were asked for."""
    asked: list[int] = []
    plain = storage_connection._plain_aws_credentials

    def short_lived(conn_id: str) -> Credentials:
        asked.append(SYSTEM_CLOCK.now_ms())
        return Credentials(kind="aws", values=plain(conn_id).values, expires_ms=asked[-1] + LIFE_MS)

    monkeypatch.setattr(storage_connection, "_plain_aws_credentials", short_lived)
    # As where the provider is not installed.
    monkeypatch.setitem(sys.modules, "airflow.providers.amazon", None)
    return asked


def test_a_job_outlives_its_credentials_and_the_secret_of_the_connection_is_nowhere(
    users: Table,
    fetches: list[int],
    dag_of: Callable[[str, str], Any],
    airflow_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = s3.options()
    extra = {"endpoint_url": options["endpoint_url"], "region_name": options["region"]}
    connection = {"conn_type": "aws", "login": options["key"], "password": options["secret"], "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_ON_S3", json.dumps(connection))
    monkeypatch.setenv("TXLOG_TEST_STORAGE", "lake_on_s3")
    events = tmp_path / "events"
    events.mkdir()
    monkeypatch.setenv("TXLOG_TEST_EVENTS", events.as_uri())

    dag = dag_of("stores", "on_an_object_store")
    dag_run = dag.test()

    (ti,) = dag_run.get_task_instances()
    assert ti.state == "success"
    assert sorted(users.to_arrow()["user_id"].to_pylist()) == [user for user in range(100) if user != 42]
    # From the first to the last, with few between: the driver and the workers share what the task has.
    lasted_ms = fetches[-1] - fetches[0]
    assert lasted_ms > LIFE_MS
    assert len(fetches) <= 3 + 2 * lasted_ms / (LIFE_MS * 3 / 4)

    watched = "\n".join(dag.get_task("forget").runner.run.__globals__["WATCHED"])
    assert "org.apache.spark" in watched
    assert "committed" in watched
    xcom = json.dumps(ti.xcom_pull(task_ids="forget"))
    out, err = capfd.readouterr()
    shown = {"spec, result, command lines": watched, "xcom": xcom, "stdout": out, "stderr": err, "log": caplog.text}
    written = [*events.rglob("*"), *(path for path in airflow_home.rglob("*") if not path.is_symlink())]
    held = {str(path): path.read_bytes() for path in written if path.is_file()}
    assert any(name.startswith(str(events)) for name in held)
    prefix = users.uri.removeprefix(f"s3://{s3.BUCKET}/")
    for key in s3.keys_under(users.uri):
        held[key] = s3.client().get_object(Bucket=s3.BUCKET, Key=f"{prefix}/{key}")["Body"].read()
    found = [name for name, text in shown.items() if options["secret"] in text]
    assert found + [name for name, data in held.items() if options["secret"].encode() in data] == []
    # Nor what opens the endpoint.
    assert "TXLOG_CREDENTIALS" not in watched + "".join(data.decode(errors="replace") for data in held.values())
