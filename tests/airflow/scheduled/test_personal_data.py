"""A person's address, given to tasks that succeed, fail, are killed and are cleared, is nowhere but in the rows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.runners.warm.server import lease_session, stop_all
from tests.airflow.scheduled.deployment import Deployment
from tests.airflow.scheduled.jobs import Lake, none_left
from tests.helpers.depth import WHOLE
from tools.standalone_cluster import StandaloneCluster

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600), pytest.mark.long("a whole Airflow over PostgreSQL")]

PERSON = "mary.canary@home.example"
SCHEMA = pa.schema([("id", pa.int64()), ("email", pa.string()), ("day", pa.date32())])
# The first runs without Spark, the next two on `warm`.
WAYS = (
    "forget_by_keys",
    *(("forget_by_file", "forget_by_parameter") if WHOLE else ()),
    *(("forget_on_child", "forget_on_submit", "forget_on_connect") if WHOLE else ()),
)
POINTS = ("staging", "after") if WHOLE else ("after",)
# Of an address, in whatever case and escaped however.
TRACE = re.compile(rb"mary.{1,8}?canary|canary.{1,8}?home", re.IGNORECASE | re.DOTALL)


def rows(*emails: str) -> list[dict[str, object]]:
    """The person is between others: the least and greatest values of a file stand in the table's log."""
    return [{"id": i, "email": email, "day": None} for i, email in enumerate(["aa", *emails, "zz"])]


@contextlib.contextmanager
def clusters(airflow: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Spark for `submit` and one for `connect`, in the folder of the deployment, with the connections of the DAGs."""
    for name in ("PYTHONPATH", "TMPDIR"):
        monkeypatch.setenv(name, airflow.environment()[name])
    monkeypatch.setenv("TXLOG_WARM_FOLDER", str(airflow.folder / "server"))
    # Its jobs have sessions of their own, which do not keep it up.
    monkeypatch.setenv("TXLOG_WARM_IDLE_S", "86400")
    with StandaloneCluster(airflow.folder / "cluster", environment=airflow.environment()) as cluster:
        lease = lease_session({}, print)
        try:
            lease.end(is_well=True)
            server = lease.server
            master, _, port = cluster.master.rpartition(":")
            for connection in (
                {"connection_id": "spark_cluster", "conn_type": "spark", "host": master, "port": int(port)},
                {
                    "connection_id": "spark_server",
                    "conn_type": "spark_connect",
                    "host": "127.0.0.1",
                    "port": server.port,
                    "password": server.token,
                },
            ):
                airflow.api("POST", "connections", connection)
            yield
        finally:
            stop_all()


@pytest.fixture
def with_clusters(airflow: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with clusters(airflow, monkeypatch) if WHOLE else contextlib.nullcontext():
        yield


@pytest.mark.usefixtures("with_clusters")
def test_a_person_is_in_no_log_database_xcom_commit_or_temporary_file(airflow: Deployment) -> None:
    airflow.person.write_text(PERSON)
    outside = airflow.person.parent
    requests = outside / "requests.csv"
    requests.write_text(f"{PERSON}\n")
    data: set[Path] = set()
    lakes = []

    def lake_for(name: str) -> Lake:
        lake = Lake(airflow, name, SCHEMA)
        lake.append(rows(PERSON, PERSON))
        data.update(lake.folder.glob("*.parquet"))
        lakes.append(lake)
        return lake

    for dag_id in WAYS:
        conf = {"requests": str(requests)}
        # Killed while it stages and after its commit, then retried; cleared, and cleared again once the person is back.
        for point in POINTS:
            run = f"{dag_id}-{point}"
            lake = lake_for(run)
            lake.hold(point)
            airflow.trigger(dag_id, run, table=lake.uri, **conf)
            held = lake.held(point, dag_id, run)
            held.kill("task")
            none_left(held)
            assert airflow.wait(dag_id, [run]) == {run: "success"}
            assert lake.table.to_arrow(columns=["email"])["email"].to_pylist() == ["aa", "zz"]
            before = set(lake.folder.glob("*.parquet"))
            lake.append(rows(PERSON))
            data.update(set(lake.folder.glob("*.parquet")) - before)
            airflow.clear(dag_id, run, "forget")
            assert airflow.wait(dag_id, [run]) == {run: "success"}
            assert PERSON not in lake.table.to_arrow(columns=["email"])["email"].to_pylist()
    failed = 0
    for dag_id in ("forget_fails", *(["forget_fails_elsewhere"] if WHOLE else [])):
        lake = lake_for(dag_id)
        airflow.trigger(dag_id, "fails", table=lake.uri)
        assert airflow.wait(dag_id, ["fails"]) == {"fails": "failed"}
        tasks = airflow.tasks(dag_id)
        assert {task["state"] for task in tasks} == {"failed"}
        assert lake.table.snapshot().version == 1
        failed += len(tasks)

    # Every task was given the person, and its log was written.
    logs = [*(airflow.folder / "logs").rglob("attempt=*.log")]
    assert len(logs) >= 3 * len(POINTS) * len(WAYS) + failed
    dump = airflow.postgres.dump()
    assert "forget_by_keys-after" in dump
    traces = sorted(set(TRACE.findall(dump.encode())))
    written = [path for path in airflow.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    # Tables of other tests may be partitioned by the address, which their logs then name.
    others = set((airflow.folder / "lake").iterdir()) - {lake.folder for lake in lakes}
    ours = [path for path in written if path not in data and not others & set(path.parents)]
    found = [path for path in ours if TRACE.search(path.read_bytes())]
    assert (traces, [str(path) for path in found]) == ([], [])
