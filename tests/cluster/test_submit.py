"""The runner `submit` on a standalone cluster: what a job does there, and what becomes of it when it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from airflow_txlog import jobs
from airflow_txlog.contract.job import ApplicationTransaction, read_result
from airflow_txlog.engine import Table
from airflow_txlog.errors import (
    ClusterLost,
    ConstraintViolation,
    ExecutorsLost,
    InvalidJobSpec,
    InvalidPredicate,
    JobLost,
    NoExecutors,
    SparkUnavailable,
    UnfitExecutor,
)
from tests.airflow.racing import PLANNED
from tests.helpers.depth import by_hand
from tests.helpers.paths import PACKAGES, ROOT
from tests.helpers.rows import make_table
from tests.helpers.submitting import (
    eventually,
    executors_of,
    packed_environment,
    processes_below,
    runner_of,
    runs,
    submitted_spec,
)
from tools.standalone_cluster import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow("a Spark cluster of three JVMs, and three for each job")]

CANARY = "canary-7f31"
SECRETS = {"spark.hadoop.fs.s3a.secret.key": CANARY, "spark.hadoop.fs.s3a.access.key": CANARY}


# The key of a task's saved work.
KEY = "5ec2e7" + "0" * 58

LONG = pytest.mark.long("one application on the cluster each")


@pytest.fixture
def users(tmp_path: Path) -> Table:
    """A hundred users in two files, at version 2."""
    parts = [pa.table({"user_id": pa.array(range(start, start + 50), pa.int64())}) for start in (0, 50)]
    return make_table(tmp_path / "users", *parts)


def transaction() -> ApplicationTransaction:
    return ApplicationTransaction(app_id="test/submit", version=1)


class CommandLines(threading.Thread):
    """Watches the command line of every process of this machine for a text."""

    def __init__(self, text: str) -> None:
        super().__init__(daemon=True)
        self.text = text
        self.shown: set[str] = set()
        self.looked = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            self.looked += 1
            for process in psutil.process_iter(["cmdline"]):
                line = " ".join(process.info["cmdline"] or ())
                if self.text in line:
                    self.shown.add(line)


def pages_of_ui(url: str) -> dict[str, bytes]:
    """What the UI of a running application shows, and what its REST API answers, by the page's path."""

    def fetched(path: str) -> bytes:
        with urllib.request.urlopen(f"{url}/{path}", timeout=30) as answer:
            return bytes(answer.read())

    (application,) = json.loads(fetched("api/v1/applications"))
    api = f"api/v1/applications/{application['id']}"
    all_queries = f"{api}/sql?details=true&planDescription=true&length=1000"
    eventually(lambda: "RUNNING" in fetched(all_queries).decode(), "the job's query runs")
    queries = json.loads(fetched(all_queries))
    stages = json.loads(fetched(f"{api}/stages"))
    paths = [
        *(
            "jobs/",
            "stages/",
            "storage/",
            "environment/",
            "executors/",
            "SQL/",
            "executors/threadDump/?executorId=driver",
        ),
        *(f"SQL/execution/?id={query['id']}" for query in queries),
        *(f"stages/stage/?id={stage['stageId']}&attempt=0" for stage in stages),
        *(f"{api}{each}" for each in ("", "/jobs", "/stages?details=true", "/allexecutors", "/environment")),
        all_queries,
    ]
    return {path: fetched(path) for path in paths}


@LONG
def test_a_job_runs_on_the_cluster_and_its_secrets_are_seen_nowhere(
    cluster: StandaloneCluster, users: Table, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    lines: list[str] = []
    pages: dict[str, bytes] = {}

    def look(line: str) -> None:
        lines.append(line)
        if PLANNED in line:
            # The application is there until its tasks are done.
            executors = executors_of(cluster)
            for executor in executors:
                executor.suspend()
            pages.update(pages_of_ui(next(each.split()[-1] for each in lines if ", its UI at " in each)))
            for executor in executors:
                executor.resume()

    spec = submitted_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 50) = 42"},
        application=transaction(),
        saved_work_key=KEY,
        spark_conf={
            **SECRETS,
            "spark.eventLog.enabled": "true",
            # Else no secret in it would be found.
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{events}",
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
        },
    )
    watched = CommandLines(CANARY)
    watched.start()
    result = runner_of(cluster).run(spec, log=look)
    watched.over.set()
    watched.join()

    assert result.status == "committed"
    assert sorted(users.to_arrow().column("user_id").to_pylist()) == [n for n in range(100) if n % 50 != 42]
    application = cluster.state()["completedapps"][-1]
    assert [each for each in lines if each.startswith(f"Spark application {application['id']} on {cluster.master}, ")]
    # The setting and the query are shown, and so are the pages that could show a secret.
    assert any(b"fs.s3a.secret.key" in page for path, page in pages.items() if path.endswith("/environment"))
    assert any(b"MapInArrow" in page for page in pages.values())
    assert not [path for path, page in pages.items() for secret in (CANARY, KEY) if secret.encode() in page]
    assert watched.looked > 10
    assert not watched.shown
    assert CANARY not in "\n".join(lines)
    logged = [path for path in events.rglob("*") if path.is_file()]
    assert any(b"fs.s3a.secret.key" in path.read_bytes() for path in logged)
    assert all(CANARY.encode() not in path.read_bytes() for path in (*logged, *cluster.files()))
    executors = [path.read_text() for path in cluster.files() if path.name == "stderr"]
    assert any("in stage 0.0" in text for text in executors)
    assert not any("in stage 1.0" in text for text in executors), "executors log nothing of the job itself"


@LONG
def test_a_job_whose_spark_submit_is_killed_is_lost_and_leaves_nothing_that_runs(
    cluster: StandaloneCluster, users: Table
) -> None:
    """SIGKILL, as Airflow's own hook does it: the driver is not the JVM's to end."""
    before, started = processes_below(), set[psutil.Process]()

    def kill_the_jvm(line: str) -> None:
        if PLANNED in line:
            started.update(processes_below() - before)
            for process in started:
                # What starts the others may have ended by now.
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name() == "java":
                        process.kill()

    spec = submitted_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 100) = 42"},
        application=transaction(),
    )
    with pytest.raises(JobLost) as caught:
        runner_of(cluster).run(spec, log=kill_the_jvm)
    assert caught.value.retryable
    assert len(started) > 1
    eventually(lambda: not any(map(runs, started)), "the driver goes with its JVM")
    assert users.latest_version() == 2
    eventually(lambda: not cluster.state()["activeapps"], "the application goes with its driver")


@LONG
@by_hand("another application on the cluster")
def test_a_driver_that_is_killed_after_its_commit_has_done_its_work(
    cluster: StandaloneCluster, users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Path(users.uri.removeprefix("file://")) / ".pauses"
    pauses.mkdir()
    (pauses / "after").touch()
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests/airflow/scheduled/pauses'}{os.pathsep}{ROOT}")
    killed: list[psutil.Process] = []

    def kill_the_driver() -> None:
        eventually((pauses / "after.reached").exists, "the commit is put")
        driver = psutil.Process(int((pauses / "after.reached").read_text()))
        driver.kill()
        killed.append(driver)

    killer = threading.Thread(target=kill_the_driver)
    killer.start()
    spec = submitted_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 100) = 42"},
        application=transaction(),
    )
    result = runner_of(cluster).run(spec, log=print)
    killer.join()
    assert len(killed) == 1
    assert (result.status, users.latest_version()) == ("already_done", 3)
    assert 42 not in users.to_arrow().column("user_id").to_pylist()
    eventually(lambda: not cluster.state()["activeapps"], "the application goes with its driver")


# --- errors ---------------------------------------------------------------------------------------------------------


def test_a_master_that_does_not_answer_is_an_error_within_seconds(users: Table) -> None:
    nowhere = StandaloneCluster(Path("unused"))
    nowhere.master = "spark://127.0.0.1:1"
    spec = submitted_spec(operation="delete", table_uri=users.uri, arguments={"predicate": "pmod(user_id, 100) = 42"})
    with pytest.raises(SparkUnavailable, match="does not answer") as caught:
        runner_of(nowhere).run(spec, log=print)
    assert caught.value.facts["master"] == nowhere.master


def test_a_driver_python_that_is_not_there_is_named_before_anything_starts(users: Table) -> None:
    nowhere = StandaloneCluster(Path("unused"))
    spec = submitted_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 100) = 42"},
        spark_conf={"spark.pyspark.driver.python": "/none/python"},
    )
    with pytest.raises(InvalidJobSpec, match=r"spark.pyspark.driver.python is '/none/python'"):
        runner_of(nowhere).run(spec, log=print)


@LONG
@by_hand("applications that fail, each after its time")
@pytest.mark.parametrize(
    ("conf", "error", "said"),
    [
        (
            {"spark.pyspark.python": "/none/python"},
            UnfitExecutor,
            r"on 127\.0\.0\.1 cannot run the job's tasks: there is no /none/python.* spark\.pyspark\.python",
        ),
        (
            {"spark.executor.memory": "8g", "spark.txlog.executorsWaitSeconds": "10"},
            NoExecutors,
            r"ran a task of the job in 10 s.*spark\.cores\.max",
        ),
        (
            # Spark's master ends such an application after ten of them, where that comes first.
            {"spark.executor.extraJavaOptions": "-XX:+NoSuchOption", "spark.txlog.executorsWaitSeconds": "10"},
            (NoExecutors, ClusterLost),
            "executors end as soon as they start|Master removed our application",
        ),
        (
            {"spark.executor.extraJavaOptions": "-Xmx1g"},
            SparkUnavailable,
            "did not start the application: INVALID_SPARK_CONFIG.INVALID_EXECUTOR_MEMORY_OPTIONS",
        ),
    ],
    ids=["no Python", "no executor", "executors that end at once", "refused setting"],
)
def test_an_infrastructure_failure_has_its_own_class_with_advice(
    cluster: StandaloneCluster, users: Table, conf: dict[str, str], error: Any, said: str
) -> None:
    spec = submitted_spec(
        operation="delete", table_uri=users.uri, arguments={"predicate": "pmod(user_id, 100) = 42"}, spark_conf=conf
    )
    with pytest.raises(error, match=said):
        runner_of(cluster).run(spec, log=print)
    assert users.latest_version() == 2


@LONG
@by_hand("another application on the cluster; test_connect_on_a_cluster has one that lacks it")
def test_a_package_that_an_executor_lacks_is_named_with_its_host(
    cluster: StandaloneCluster, users: Table, tmp_path: Path
) -> None:
    python = python_without("pyarrow", tmp_path)
    spec = submitted_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 100) = 42"},
        spark_conf={"spark.pyspark.python": str(python)},
    )
    with pytest.raises(UnfitExecutor, match="pyarrow is not installed") as caught:
        runner_of(cluster).run(spec, log=print)
    assert caught.value.facts["host"]
    assert caught.value.facts["missing"] == ["pyarrow is not installed"]


@LONG
@by_hand("another application on the cluster; test_connect_on_a_cluster has one with such an environment")
def test_tasks_run_the_python_of_a_packed_environment(cluster: StandaloneCluster, users: Table, tmp_path: Path) -> None:
    packed = packed_environment(tmp_path / "lake")
    spec = submitted_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 100) = 42"},
        spark_conf={"spark.archives": f"{packed}#lake", "spark.pyspark.python": "./lake/bin/python"},
    )
    assert runner_of(cluster).run(spec, log=print).status == "committed"


def python_without(package: str, folder: Path) -> Path:
    """An interpreter that finds every installed package but one."""
    site = folder / "site"
    site.mkdir()
    for path in PACKAGES.iterdir():
        if not path.name.startswith(package):
            (site / path.name).symlink_to(path)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:$PYTHONPATH" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


@LONG
@by_hand("another application on the cluster")
def test_the_authors_mistake_keeps_its_class(cluster: StandaloneCluster, users: Table) -> None:
    spec = submitted_spec(operation="delete", table_uri=users.uri, arguments={"predicate": "user_id = 1)"})
    with pytest.raises(InvalidPredicate):
        runner_of(cluster).run(spec, log=print)


@LONG
@by_hand("another application on the cluster")
def test_an_error_of_an_executor_keeps_its_class_and_facts(cluster: StandaloneCluster, tmp_path: Path) -> None:
    rule = {"delta.constraints.small": "user_id < 200"}
    table = make_table(tmp_path / "t", pa.table({"user_id": pa.array(range(9), pa.int64())}), properties=rule)
    spec = submitted_spec(
        operation="update",
        table_uri=table.uri,
        arguments={"predicate": "user_id = 1", "set": {"user_id": "pmod(700L, 1000L)"}},
    )
    with pytest.raises(ConstraintViolation) as caught:
        runner_of(cluster).run(spec, log=print)
    assert caught.value.facts["constraint"] == "small"


@LONG
def test_an_application_that_is_ended_in_the_masters_ui_is_lost_with_its_cluster(
    cluster: StandaloneCluster, users: Table
) -> None:
    def end_it(line: str) -> None:
        if PLANNED in line:
            for application in cluster.state()["activeapps"]:
                cluster.kill_application(application["id"])

    spec = submitted_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 100) = 42"},
        application=transaction(),
    )
    with pytest.raises(ClusterLost) as caught:
        runner_of(cluster).run(spec, log=end_it)
    assert caught.value.retryable
    assert users.latest_version() == 2


@LONG
@by_hand("another application on the cluster")
def test_executors_that_die_in_every_attempt_are_reported_as_lost(
    cluster: StandaloneCluster, users: Table, tmp_path: Path
) -> None:
    """Each executor is killed as soon as it runs a task of the job's own, which its log shows."""
    over = threading.Event()

    def kill_executors() -> None:
        for process in executors_of(cluster):
            process.kill()
        logs = {path for path in cluster.files() if path.name == "stderr"}
        while not over.wait(0.05):
            for path in {path for path in cluster.files() if path.name == "stderr"} - logs:
                if "Running task" in path.read_text(errors="replace"):
                    logs.add(path)
                    number = path.parent.name
                    for process in executors_of(cluster):
                        if f"--executor-id {number} " in " ".join(process.cmdline()):
                            process.kill()

    def begin(line: str) -> None:
        if PLANNED in line and not killer.is_alive():
            killer.start()

    killer = threading.Thread(target=kill_executors, daemon=True)
    spec = submitted_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 100) = 42"},
        application=transaction(),
        spark_conf={"spark.task.maxFailures": "2"},
    )
    try:
        with pytest.raises((ExecutorsLost, ClusterLost)) as caught:
            runner_of(cluster).run(spec, log=begin)
    finally:
        over.set()
    assert caught.value.retryable
    assert users.latest_version() == 2


@LONG
@pytest.mark.parametrize("main", ["submitted_main", "__main__"])
def test_a_driver_that_is_submitted_without_a_master_is_refused_and_does_not_run_on_one_machine(
    users: Table, tmp_path: Path, main: str
) -> None:
    """Spark itself takes `local[*]`, without a word."""
    spec = submitted_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 100) = 42"},
        result_uri=str(tmp_path / "result.json"),
    )
    described = tmp_path / "spec.json"
    described.write_text(spec.to_json())
    program, file = Path(sys.executable).with_name("spark-submit"), Path(jobs.__file__).with_name(f"{main}.py")
    done = subprocess.run(
        [program, file, described],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    result = read_result(str(tmp_path / "result.json"))
    assert result is not None
    assert "the master 'local[*]', which is no cluster" in str(result.typed_error())
    assert users.latest_version() == 2
