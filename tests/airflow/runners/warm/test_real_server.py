"""Jobs on a real Spark Connect server of this machine: the warm one, which the runner `connect` is given too."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.contract.parameters import encode_parameters
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec, JobLost, SparkUnavailable, TxlogError
from airflow_txlog.jobs.spark.connect import TARGET, ConnectTarget
from airflow_txlog.runners.base import ConnectServer
from airflow_txlog.runners.child_process import ChildProcessRunner, job_environment
from airflow_txlog.runners.connect import ConnectRunner
from airflow_txlog.runners.warm.folders import Server, slots_of
from airflow_txlog.runners.warm.runner import WarmRunner
from airflow_txlog.runners.warm.server import lease_session, stop_all
from tests.airflow.racing import PLANNED
from tests.helpers import s3
from tests.helpers.connected import run_connected
from tests.helpers.depth import by_hand
from tests.helpers.jobs import DAY, SCHEMA, rows, run, update
from tests.helpers.rows import append, bag, make_table
from tests.helpers.signals import hold_still
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow("a Spark Connect server, and jobs on it")]

# What PySpark's own policy would wait at a call that a server does not answer is twice as long.
SOON_S = 300
LONG = "jobs on a server, each from a process of its own"
VECTORS = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
SOURCE = {
    "sql": "SELECT * FROM VALUES (2L, DATE'2024-01-09', 'b', 3D), (30L, NULL, 'c', 4D) AS s(id, day, name, amount)"
}
JOBS: list[tuple[str, dict[str, Any]]] = [
    ("write", {"source": SOURCE}),
    (
        "delete",
        {"predicate": "pmod(id, 5) = :rest AND day <= :day", "parameters": {"rest": 3, "day": DAY}},
    ),
    ("delete", {"predicate": None, "keys": {"column": "id", "values": ["1", "21"]}}),
    (
        "update",
        {"set": {"name": "concat(name, reverse('!'))", "amount": "amount + 1"}, "predicate": "id > 12"},
    ),
    ("merge", {"source": SOURCE, "on": "t.id = s.id AND t.name <> 'b'", "clauses": [update()]}),
    ("upsert", {"source": SOURCE | {"sql": SOURCE["sql"].replace("(2L", "(4L")}, "keys": ["id"]}),
    ("optimize", {}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Server]]:
    """The warm server that runs now; the first job starts it, and none is left at the end."""
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("servers") / "warm"
        patched.setenv("TXLOG_WARM_FOLDER", str(folder))
        patched.setenv("TXLOG_WARM_SESSIONS", "4")

        def current() -> Server:
            lease = lease_session(CONF, print)
            lease.end(is_well=True)
            return lease.server

        try:
            yield current
        finally:
            stop_all()
            assert [p for p in psutil.process_iter() if str(folder) in " ".join(commands(p))] == []
            assert not folder.exists()


CONF = {"spark.driver.memory": "1g"}


def target_of(process: psutil.Process) -> str:
    """What a job's process was given to reach a server."""
    try:
        return process.environ().get(TARGET, "")
    except psutil.Error:
        return ""


def on_wire(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with their parameters as JSON has them."""
    return {name: encode_parameters(value) if name == "parameters" else value for name, value in arguments.items()}


def commands(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def made(folder: Path | str, properties: dict[str, str]) -> Table:
    options = s3.options() if str(folder).startswith("s3://") else {}
    table = Table.create(str(folder), SCHEMA, ["day"], properties, storage_options=options)
    append(table, rows(10))
    append(table, rows(10, start=10, day=None))
    return table


def delete(table: Table, user: int, *, work: str | None = None, try_number: int = 1, **spark_conf: str) -> JobSpec:
    return job_spec(
        operation="delete",
        table_uri=table.uri,
        arguments={"predicate": "pmod(id, 1000) = :user", "parameters": {"user": user}},
        application=ApplicationTransaction(app_id=work or uuid.uuid4().hex, version=1),
        annotations={"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1, "try_number": try_number},
        spark_conf={**CONF, **spark_conf},
    )


def numbers(folder: Path, files: int = 3) -> Table:
    return make_table(
        folder, *(pa.table({"id": pa.array(range(k * 100, k * 100 + 100), pa.int64())}) for k in range(files))
    )


def runner_of(name: str, server: Callable[[], Server]) -> WarmRunner | ConnectRunner:
    if name == "warm":
        return WarmRunner()
    found = server()
    # As a connection has it, which may say an address.
    return ConnectRunner(ConnectServer(url=f"sc://127.0.0.1:{found.port}/;token={found.token}"))


@pytest.mark.long(LONG)
@pytest.mark.parametrize(
    ("properties", "jobs", "store"),
    [
        pytest.param({}, JOBS, "disk", id="plain", marks=by_hand("the jobs of the other case, on another table")),
        pytest.param(VECTORS, JOBS, "disk", id="vectors"),
        pytest.param(VECTORS, JOBS, "s3", id="vectors on s3", marks=by_hand("the same in a bucket, by another server")),
    ],
)
def test_jobs_over_connect_leave_what_they_leave_in_a_classic_session(
    properties: dict[str, str],
    jobs: list[tuple[str, dict[str, Any]]],
    store: str,
    tmp_path: Path,
    spark: SparkSession,
    server: Callable[[], Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {"unrestricted": ("query",)}
    if store == "s3":
        given["storage_options"] = s3.plain_options()
        # Whose keys are others has a server of its own.
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
    remote = made(s3.new_folder() if store == "s3" else tmp_path / "remote", properties)
    local = made(tmp_path / "local", properties)
    specs = [job_spec(operation=name, table_uri=remote.uri, arguments=on_wire(each), **given) for name, each in jobs]
    found = server()
    url = f"sc://localhost:{found.port}/;token={found.token}"
    results = run_connected(ConnectTarget(url=url, session_id=str(uuid.uuid4())), specs)
    for (name, arguments), result in zip(jobs, results, strict=True):
        expected = run(spark, name, local, unrestricted=given["unrestricted"], **arguments)
        assert (result.status, result.version, result.error) == (expected.status, expected.version, expected.error), (
            name
        )
        assert bag(remote.to_arrow(version=result.version)) == bag(local.to_arrow(version=result.version)), name
    if properties:
        columns = ["id", "name", "_change_type", "_commit_version"]
        assert bag(remote.changes(1), *columns) == bag(local.changes(1), *columns)


@pytest.mark.long(LONG)
@by_hand("seven jobs, each from a process of its own")
@pytest.mark.parametrize("name", ["child", "warm", "connect"])
def test_every_job_by_its_runner_leaves_the_same_rows_and_changes(
    name: str, tmp_path: Path, spark: SparkSession, server: Callable[[], Server]
) -> None:
    ours, local = made(tmp_path / "ours", VECTORS), made(tmp_path / "local", VECTORS)
    runner = ChildProcessRunner() if name == "child" else runner_of(name, server)
    for operation, arguments in JOBS:
        spec = job_spec(
            operation=operation,
            table_uri=ours.uri,
            arguments=on_wire(arguments),
            unrestricted=("query", "spark_conf"),
            spark_conf=CONF,
        )
        result = runner.run(spec, log=print)
        expected = run(spark, operation, local, unrestricted=("query",), **arguments)
        assert (result.status, result.version) == (expected.status, expected.version), operation
        assert bag(ours.to_arrow()) == bag(local.to_arrow()), operation
    columns = ["id", "name", "_change_type", "_commit_version"]
    assert bag(ours.changes(1), *columns) == bag(local.changes(1), *columns)


@pytest.mark.long(LONG)
def test_a2_raw_files_of_a_delta_table_are_refused_over_connect(tmp_path: Path, server: Callable[[], Server]) -> None:
    lake = tmp_path / "the lake"
    target, other = numbers(lake / "t"), numbers(lake / "other")
    numbers(lake / "{odd}, [o]")
    (lake / "plain").mkdir()
    pq.write_table(pa.table({"id": pa.array([7], pa.int64())}), lake / "plain" / "f.parquet")
    sources: list[tuple[dict[str, Any], str]] = [
        ({"format": "parquet", "path": other.uri}, "other"),
        ({"format": "parquet", "path": f"{lake}/ot*"}, "other"),
        ({"format": "parquet", "path": f"{lake}/*", "options": {"recursiveFileLookup": "true"}}, "t"),
        ({"format": "parquet", "path": f"{lake}/t/part-*"}, "t"),
        ({"format": "parquet", "path": f"{lake}/?odd*"}, "{odd}, [o]"),
        # Spark lists no files of a subquery over Connect.
        (
            {
                "sql": "SELECT id FROM p WHERE id IN (SELECT id FROM o)",
                "views": {
                    "p": {"format": "parquet", "path": f"{lake}/plain"},
                    "o": {"format": "parquet", "path": f"{lake}/other"},
                },
            },
            "other",
        ),
        ({"sql": f"SELECT id FROM parquet.`{lake}/other`"}, "other"),
    ]
    given: dict[str, Any] = {"table_uri": target.uri, "unrestricted": ("query",)}
    specs = [job_spec(operation="write", arguments={"source": source}, **given) for source, _ in sources]
    plain = {"format": "parquet", "path": f"{lake}/plain"}
    specs.append(job_spec(operation="write", arguments={"source": plain}, **given))
    found = server()
    url = f"sc://localhost:{found.port}/;token={found.token}"
    *refused, written = run_connected(ConnectTarget(url=url, session_id=str(uuid.uuid4())), specs)
    for (source, held), result in zip(sources, refused, strict=True):
        assert result.error is not None, source
        assert result.error["type"] == "InvalidJobSpec", source
        assert f'{lake}/{held}")' in result.error["message"], (source, result.error["message"])
    assert (written.status, target.to_arrow().num_rows) == ("committed", 301)


@pytest.mark.long("a Spark Connect server of its own")
@pytest.mark.usefixtures("server")
def test_a2_whether_a_folder_is_a_tables_is_asked_of_the_connect_server(tmp_path: Path) -> None:
    """The server's own paths are other ones than this machine's: each leads to another folder."""
    lake, paths = tmp_path / "lake", tmp_path / "paths"
    target = numbers(lake / "t")
    (lake / "plain").mkdir()
    pq.write_table(pa.table({"id": pa.array([7], pa.int64())}), lake / "plain" / "f.parquet")
    # A table on this machine and plain files on the server, and the other way round.
    numbers(paths / "here")
    numbers(lake / "other")
    links = {"here": lake / "plain", "there": lake / "other"}
    mount = "spark.hadoop.fs.viewfs.mounttable.lake.link."
    conf = {
        **CONF,
        "spark.hadoop.fs.defaultFS": "viewfs://lake/",
        "spark.sql.warehouse.dir": f"file://{tmp_path}/warehouse",
        **{f"{mount}{paths}/{name}": f"file://{folder}" for name, folder in links.items()},
    }
    specs = [
        job_spec(
            operation="write",
            table_uri=target.uri,
            arguments={"source": {"format": "parquet", "path": f"{paths}/{name}"}},
        )
        for name in ("there", "here")
    ]
    lease = lease_session(conf, print)
    lease.end(is_well=True)
    url = f"sc://localhost:{lease.server.port}/;token={lease.server.token}"
    refused, written = run_connected(ConnectTarget(url=url, session_id=str(uuid.uuid4())), specs)
    assert refused.error is not None
    assert refused.error["type"] == "InvalidJobSpec", refused.error
    assert f"the Delta table viewfs://lake{paths}/there" in refused.error["message"]
    assert (written.error, target.to_arrow().num_rows) == (None, 301)


@pytest.mark.long("a Spark Connect server of its own")
@by_hand("another kind of source")
def test_files_in_a_bucket_are_sources_over_connect(
    tmp_path: Path, server: Callable[[], Server], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark's own meaning, by readers of ours: the server has no connector for the store."""
    options = s3.plain_options()
    # Whose keys are others has a server of its own.
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    local, bucket = tmp_path / "in", s3.new_folder().removesuffix("/t")
    frame = spark.createDataFrame(rows(3).to_pandas(), "id BIGINT, day DATE, name STRING, amount DOUBLE").coalesce(1)
    ddl = "id BIGINT, day DATE, name STRING, amount DOUBLE"
    sources = []
    for kind, given in (("parquet", {}), ("orc", {}), ("json", {}), ("csv", {"header": "true"})):
        frame.write.options(**given).format(kind).save(str(local / kind))
        (file,) = (local / kind).glob(f"part-*.{kind}*")
        key = f"{bucket}/{kind}/{file.name}".removeprefix(f"s3://{s3.BUCKET}/")
        s3.client().put_object(Bucket=s3.BUCKET, Key=key, Body=file.read_bytes())
        source = {"format": kind, "path": f"{bucket}/{kind}", "options": given}
        sources.append(source if kind in ("parquet", "orc") else source | {"schema": ddl})
    table = Table.create(f"{bucket}/t", SCHEMA, ["day"], VECTORS, storage_options=s3.options())
    specs = [
        job_spec(operation="write", table_uri=table.uri, arguments={"source": source}, storage_options=options)
        for source in sources
    ]
    found = server()
    url = f"sc://localhost:{found.port}/;token={found.token}"
    results = run_connected(ConnectTarget(url=url, session_id=str(uuid.uuid4())), specs)
    assert [(result.status, result.error) for result in results] == [("committed", None)] * 4
    assert bag(table.to_arrow()) == bag(pa.concat_tables([rows(3)] * 4))


@pytest.mark.long(LONG)
def test_a_job_on_the_warm_spark_has_no_jvm_of_its_own_and_its_secrets_are_in_no_command_line(
    tmp_path: Path, server: Callable[[], Server]
) -> None:
    table, token = numbers(tmp_path / "t"), server().token
    seen: list[str] = []
    lines: list[str] = []

    def look(line: str) -> None:
        lines.append(line)
        if PLANNED in line:
            below = psutil.Process().children(recursive=True)
            started = [child for child in below if child.pid not in (each.pid for each in before)]
            assert [child.name() for child in started if child.name() == "java"] == []
            seen.extend(" ".join(commands(process)) for process in psutil.process_iter())

    before = psutil.Process().children(recursive=True)
    result = WarmRunner().run(delete(table, 7, **{"spark.sql.shuffle.partitions": "3"}), log=look)
    assert (result.status, table.to_arrow().num_rows) == ("committed", 299)
    assert seen
    assert not [text for text in (*seen, *lines) if token in text]
    assert [slot.is_busy for slot in slots_of(server()) if slot.session_id] == [False]


KILLED = """
import os, signal, sys, threading, time
from airflow_txlog.contract.job import read_spec
from airflow_txlog.engine import Table
from airflow_txlog.runners.child_process import job_environment
from airflow_txlog.runners.base import ConnectServer
from airflow_txlog.runners.connect import ConnectRunner
from airflow_txlog.runners.warm.runner import WarmRunner

spec, moment = read_spec(sys.argv[1]), sys.argv[2]
url = os.environ.get("TEST_URL")
runner = WarmRunner() if url is None else ConnectRunner(ConnectServer(url=url))

def die_at(line):
    print(line, flush=True)
    if moment in line:
        os.kill(os.getpid(), signal.SIGKILL)

def watch():
    while Table.open(spec.table_uri).latest_version() < 4:
        time.sleep(0.02)
    die_at("committed")

threading.Thread(target=watch, daemon=True).start()
runner.run(spec, log=die_at)
die_at("committed")
"""


@pytest.mark.long(LONG)
@pytest.mark.parametrize("name", ["warm", "connect"])
@pytest.mark.parametrize(
    "moment",
    [
        *(pytest.param(each, marks=by_hand("another moment")) for each in ("delete file:", PLANNED, "to delete in")),
        *("staged", pytest.param("committed", marks=by_hand("another moment"))),
    ],
)
def test_work_whose_worker_was_killed_is_done_once_and_nothing_of_it_runs_on(
    name: str, moment: str, tmp_path: Path, server: Callable[[], Server]
) -> None:
    table, work = numbers(tmp_path / "t"), uuid.uuid4().hex
    first = tmp_path / "spec.json"
    first.write_text(delete(table, 7, work=work).to_json(with_key=True))
    found = server()
    url = {"TEST_URL": f"sc://localhost:{found.port}/;token={found.token}"} if name == "connect" else {}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(first), moment], env={**os.environ, **url}, stdout=subprocess.PIPE, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    result = runner_of(name, server).run(delete(table, 7, work=work, try_number=2), log=print)
    assert result.status in (("already_done",) if moment == "committed" else ("committed", "already_done"))
    assert (table.latest_version(), table.to_arrow().num_rows) == (4, 299)
    assert [p for p in psutil.process_iter() if found.token in target_of(p)] == [], "the child of the killed worker"


ENDLESS = "SELECT max(a.id * b.id) AS id FROM range(1000000) a CROSS JOIN range(100000) b WHERE a.id % 7 <> b.id % 7"


def computes(java: psutil.Process, does: bool) -> None:
    """Wait until a server computes, or no longer does."""
    deadline = time.monotonic() + 60
    shares: list[float] = []
    while len(shares) < 3 or any((share > 50) != does for share in shares[-3:]):
        assert time.monotonic() < deadline, shares
        shares.append(java.cpu_percent(interval=1))


@pytest.mark.long(LONG)
@by_hand("goes by the share of a core that a process has")
@pytest.mark.parametrize("name", ["warm", "connect"])
def test_kill_ends_what_runs_on_the_server(name: str, tmp_path: Path, server: Callable[[], Server]) -> None:
    spec = job_spec(
        operation="write",
        table_uri=str(tmp_path / "t"),
        arguments={"source": {"sql": ENDLESS}},
        unrestricted=("query",),
        spark_conf=CONF,
    )
    runner = runner_of(name, server)
    java = psutil.Process(server().java.pid)
    threading.Timer(12, runner.kill).start()
    with pytest.raises(JobLost, match="was stopped"):
        runner.run(spec, log=print)
    computes(java, False)
    assert not Table.exists(str(tmp_path / "t"))


@pytest.mark.long(LONG)
@by_hand("goes by the share of a core that a process has")
@pytest.mark.parametrize("name", ["warm", "connect"])
def test_what_a_killed_worker_has_left_running_is_cancelled_by_its_retry(
    name: str, tmp_path: Path, server: Callable[[], Server]
) -> None:
    table, work = numbers(tmp_path / "t"), uuid.uuid4().hex
    retry = delete(table, 7, work=work, try_number=2)
    first = job_spec(
        operation="write",
        table_uri=table.uri,
        arguments={"source": {"sql": ENDLESS}},
        application=retry.application,
        annotations={**retry.annotations, "try_number": 1},
        unrestricted=("query",),
        spark_conf=CONF,
    )
    (tmp_path / "spec.json").write_text(first.to_json(with_key=True))
    found = server()
    java = psutil.Process(found.java.pid)
    url = {"TEST_URL": f"sc://localhost:{found.port}/;token={found.token}"} if name == "connect" else {}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "spec.json"), "never said"]
    with subprocess.Popen(command, env={**os.environ, **url}, stdout=subprocess.DEVNULL) as worker:
        try:
            computes(java, True)
        finally:
            # With its child, which would cancel what it has started.
            children = psutil.Process(worker.pid).children(recursive=True)
            for child in children:
                child.suspend()
            worker.kill()
            for child in children:
                child.kill()
    computes(java, True)
    assert runner_of(name, server).run(retry, log=print).status == "committed"
    computes(java, False)


# As a job writes down the rows of a query over a view: Connect analyses the frame, and then evaluates it.
VIEWED = """
import sys
import pyspark.sql.functions as F
from airflow_txlog.jobs.spark.connect import connect_session
from airflow_txlog.jobs.spark.session import job_settings

def same(batches):
    yield from batches

spark = connect_session()
with job_settings(spark, "UTC", {"spark.connect.session.planCache.enabled": "true"}):
    spark.range(int(sys.argv[1])).createOrReplaceTempView("people")
    rows = spark.sql("SELECT id FROM people").withColumn("part", F.spark_partition_id())
    print(len(rows.mapInArrow(same, rows.schema).toArrow()))
"""


@pytest.mark.long(LONG)
def test_a_session_that_is_used_again_reads_its_views_anew(server: Callable[[], Server]) -> None:
    """Each client counts its frames from the beginning, and the server must not take one for another's, whatever the
    job's own settings say.
    """
    found = server()
    target = ConnectTarget(url=f"sc://localhost:{found.port}/;token={found.token}", session_id=str(uuid.uuid4()))
    environment = {**job_environment(), **target.environment()}
    for count in ("5", "7"):
        command = [sys.executable, "-c", VIEWED, count]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        assert done.stdout == f"{count}\n"


@pytest.mark.long(LONG)
def test_four_tasks_at_once_each_change_the_table_once(tmp_path: Path, server: Callable[[], Server]) -> None:
    table = numbers(tmp_path / "t", files=4)
    failed: list[TxlogError] = []

    def task(user: int) -> None:
        try:
            WarmRunner().run(delete(table, user), log=lambda line: None)
        except TxlogError as error:
            failed.append(error)

    tasks = [threading.Thread(target=task, args=(user,)) for user in (5, 105, 205, 305)]
    for each in tasks:
        each.start()
    for each in tasks:
        each.join()
    assert failed == []
    assert (table.latest_version(), table.to_arrow().num_rows) == (8, 396)
    assert len([slot for slot in slots_of(server()) if slot.session_id]) == 4


@pytest.mark.long(LONG)
def test_a_server_that_is_killed_under_a_job_is_a_lost_job_and_the_next_try_starts_another(
    tmp_path: Path, server: Callable[[], Server]
) -> None:
    table, work, first = numbers(tmp_path / "t"), uuid.uuid4().hex, server()
    killed_s: list[float] = []

    def kill_the_server(line: str) -> None:
        if PLANNED in line:
            os.kill(first.java.pid, signal.SIGKILL)
            killed_s.append(time.monotonic())

    with pytest.raises(JobLost, match="the Spark Connect server is gone") as caught:
        WarmRunner().run(delete(table, 7, work=work), log=kill_the_server)
    assert caught.value.retryable
    assert time.monotonic() - killed_s[0] < SOON_S
    assert WarmRunner().run(delete(table, 7, work=work, try_number=2), log=print).version == 4
    assert server().java.pid != first.java.pid


@pytest.mark.long(LONG)
@by_hand("two more servers are started")
def test_a_server_that_hangs_is_replaced_before_anything_has_begun(
    tmp_path: Path, server: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first answer of the server that replaces it takes seconds too.
    monkeypatch.setenv("TXLOG_CONNECT_OPEN_S", "40")
    lines: list[str] = []
    table, first = numbers(tmp_path / "t"), server()
    hold_still(first.java.pid)
    assert WarmRunner().run(delete(table, 7), log=lines.append).version == 4
    assert [line for line in lines if "does not answer" in line and "Another one is started" in line], lines
    assert server().java.pid != first.java.pid


@pytest.mark.long(LONG)
def test_a_job_that_connect_cannot_run_gets_a_spark_of_its_own(tmp_path: Path, server: Callable[[], Server]) -> None:
    lines: list[str] = []
    source = {"sql": "SELECT from_json('{\"id\": 1}', 'id BIGINT').id AS id"}
    spec = job_spec(
        operation="write",
        table_uri=str(tmp_path / "t"),
        arguments={"source": source},
        spark_conf={"spark.driver.memory": "1g"},
    )
    assert WarmRunner().run(spec, log=lines.append).status == "committed"
    (line,) = [line for line in lines if "gets a Spark of its own" in line]
    assert "the function from_json()" in line, "the reason"
    assert 'unrestricted=["query"]' in line, "what to do"
    assert lines.count(f"write {spec.table_uri}") == 1, lines
    with pytest.raises(InvalidJobSpec, match=r"the function from_json\(\)"):
        runner_of("connect", server).run(spec, log=print)


@pytest.mark.long(LONG)
def test_a_job_that_needs_spark_after_all_logs_no_line_twice(tmp_path: Path, server: Callable[[], Server]) -> None:
    """Keys that are fractions are compared by Spark alone, which the try without it finds out."""
    table = make_table(tmp_path / "t", pa.table({"id": [0.5, 1.5, 2.5]}))
    keys = {"predicate": None, "keys": {"column": "id", "values": [1.5]}}
    spec = job_spec(operation="delete", table_uri=table.uri, arguments=keys, spark_conf=CONF)
    lines: list[str] = []
    assert WarmRunner().run(spec, log=lines.append).status == "committed"
    assert [line for line in lines if line.startswith("The job needs Spark: ")]
    assert sorted(set(lines)) == sorted(lines)


@pytest.mark.long(LONG)
def test_what_a_server_would_ignore_is_refused_by_name(tmp_path: Path, server: Callable[[], Server]) -> None:
    spec = delete(numbers(tmp_path / "t"), 7).replace(spark_conf={"spark.driver.memory": "7g"})
    with pytest.raises(InvalidJobSpec, match=r"spark\.driver\.memory"):
        runner_of("connect", server).run(spec, log=print)


@pytest.mark.long(LONG)
def test_a_wrong_token_and_a_dead_server_are_errors_soon(tmp_path: Path, server: Callable[[], Server]) -> None:
    spec, began_s = delete(numbers(tmp_path / "t"), 7), time.monotonic()
    lines: list[str] = []
    wrong = ConnectServer(url=f"sc://localhost:{server().port}/;token=canary")
    with pytest.raises(SparkUnavailable, match="refused the token") as caught:
        ConnectRunner(wrong).run(spec, log=lines.append)
    assert not caught.value.retryable
    assert "canary" not in "\n".join([str(caught.value), *lines])
    assert f"connecting to Spark: sc://localhost:{server().port}" in lines
    assert time.monotonic() - began_s < SOON_S
    began_s = time.monotonic()
    with pytest.raises(SparkUnavailable, match="does not answer"):
        ConnectRunner(ConnectServer(url="sc://localhost:1")).run(spec, log=print)
    # Ten, and the start of the job's process on a busy machine.
    assert time.monotonic() - began_s < 60


@pytest.mark.long(LONG)
@by_hand("forty jobs, each from a process of its own")
@pytest.mark.timeout(3600)
def test_memory_and_daemons_of_a_server_stay_as_they_are_after_the_first_jobs(
    tmp_path: Path, server: Callable[[], Server], record_property: Callable[[str, Any], None]
) -> None:
    """Three hundred with TXLOG_TEST_JOBS=300."""
    count = int(os.environ.get("TXLOG_TEST_JOBS", "40"))
    table = make_table(tmp_path / "t", pa.table({"id": pa.array(range(1000), pa.int64())}))
    sizes: list[tuple[float, int]] = []
    for user in range(count):
        WarmRunner().run(delete(table, user), log=lambda line: None)
        java = psutil.Process(server().java.pid)
        daemons = [p for p in java.children(recursive=True) if "airflow_txlog.runners.warm.workers" in commands(p)]
        roots = [p for p in daemons if p.ppid() == java.pid]
        sizes.append((java.memory_info().rss / 1e6, len(roots)))
    record_property("reported", f"warm server after 20 jobs {sizes[20]}, after {count} {sizes[-1]} (MB, daemons)")
    assert sizes[-1][1] == sizes[20][1]
    assert sizes[-1][0] < sizes[20][0] + 200


@pytest.mark.long(LONG)
def test_a_files_footer_imports_no_python_module_over_connect(
    tmp_path: Path, server: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark asks the server for the schema, and would load the class that the footer names."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "txlog_canary.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')\n")
    named = {"type": "udt", "pyClass": "txlog_canary.Type", "serializedClass": "", "sqlType": "long"}
    fields = [{"name": "id", "type": named, "nullable": True, "metadata": {}}]
    metadata = {"org.apache.spark.sql.parquet.row.metadata": json.dumps({"type": "struct", "fields": fields})}
    pq.write_table(pa.table({"id": [1, 2]}).replace_schema_metadata(metadata), tmp_path / "in.parquet")
    spec = job_spec(
        operation="write",
        table_uri=str(tmp_path / "t"),
        arguments={"source": {"format": "parquet", "path": str(tmp_path / "in.parquet")}},
        spark_conf=CONF,
    )
    runner = runner_of("connect", server)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'modules'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(InvalidJobSpec, match="A class is named for the type of a column"):
        runner.run(spec, log=print)
    assert not (tmp_path / "canary").exists()


WATCHED = """
import time
from airflow_txlog.datafiles.moved_rows import count_rows
from airflow_txlog.jobs.spark.connect import connect_session
from airflow_txlog.jobs.spark.progress import counted, watched

def wait(batches):
    for batch in batches:
        count_rows(read=1000)
        time.sleep(1.5)
        yield batch

spark = connect_session()
with watched(spark, "find", print, every_s=0.1):
    print(spark.range(0, 4, 1, 4).mapInArrow(counted(spark, wait), "id long").count())
"""


@pytest.mark.long(LONG)
def test_progress_of_a_job_over_connect_is_said(server: Callable[[], Server]) -> None:
    found = server()
    target = ConnectTarget(url=f"sc://localhost:{found.port}/;token={found.token}", session_id=str(uuid.uuid4()))
    environment = {**job_environment(), **target.environment()}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    *said, count = done.stdout.splitlines()
    assert count == "4"
    assert said[0].startswith("find: ")
    assert any(line.endswith(",000 rows read so far") for line in said), said
    assert all(re.match(r"find: \d of [145] tasks done", line) for line in said), said
