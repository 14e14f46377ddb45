"""Jobs by the runner `connect` on a Spark Connect server whose executors are those of a cluster."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.errors import InvalidInput, NoExecutors, UnfitExecutor
from airflow_txlog.runners.base import ConnectServer
from airflow_txlog.runners.connect import ConnectRunner
from tests.cluster.core_jobs import CORE, leave_equal_rows
from tests.cluster.test_submit import python_without
from tests.helpers import s3
from tests.helpers.depth import WHOLE, by_hand
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec
from tests.helpers.submitting import SMALL, packed_environment
from tests.jobs.stores.test_jobs_on_s3 import VECTORS, made
from tools.standalone_cluster import StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long("a Spark Connect server on a cluster")]

FEED = {"delta.enableChangeDataFeed": "true"}
CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
STARTED = re.compile(r"Spark Connect server started at: \S+:(\d+)\s*$")
PYTHON = "spark.sql.execution.pyspark.python"
SPARK_EVALUATES = {"predicate": "pmod(id, 5) = 3"}


@contextlib.contextmanager
def server_on(
    cluster: StandaloneCluster, folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[ConnectRunner]:
    """A server as somebody else starts one, by Spark's own program, with nothing of this package; its runner."""
    home = os.path.dirname(pyspark.__file__)
    # One core of the two: another server has the other one.
    given = {**SMALL, "spark.cores.max": "1", "spark.connect.grpc.binding.port": "0", **(settings or {})}
    command = [f"{home}/bin/spark-submit", "--class", CLASS, "--master", cluster.master]
    command += [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]
    variables = {**os.environ, "SPARK_HOME": home, "PYTHONPATH": ""}
    with (folder / "server.log").open("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        found = None
        for line in process.stdout:
            output.write(line)
            found = STARTED.search(line)
            if found is not None:
                break
        reader = threading.Thread(target=lambda: output.writelines(process.stdout or ()))
        reader.start()
        try:
            assert found is not None, (folder / "server.log").read_text()
            yield ConnectRunner(ConnectServer(url=f"sc://localhost:{found[1]}"))
        finally:
            process.terminate()
            process.wait()
            reader.join()


@pytest.fixture(scope="module")
def runner(cluster: StandaloneCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectRunner]:
    folder = tmp_path_factory.mktemp("server")
    settings = {
        "spark.archives": f"{packed_environment(folder / 'lake')}#lake",
        "spark.executorEnv.TXLOG_CREDENTIALS": "own",
    }
    with server_on(cluster, folder, settings) as found:
        yield found


def done(runner: ConnectRunner, operation: str, uri: str, arguments: dict[str, Any], **more: Any) -> JobResult:
    given: dict[str, Any] = {"unrestricted": ("query", "spark_conf"), **more}
    return runner.run(job_spec(operation=operation, table_uri=uri, arguments=arguments, **given), log=print)


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({}, marks=by_hand("six jobs on the server; the next case has a change feed too")),
        FEED,
        pytest.param(VECTORS, marks=by_hand("six jobs on the server; the case before copies files")),
    ],
    ids=["plain", "change feed", "vectors and change feed"],
)
def test_core_jobs_leave_equal_rows_and_equal_changes(
    runner: ConnectRunner, spark: SparkSession, tmp_path: Path, properties: dict[str, str]
) -> None:
    there, here = made(str(tmp_path / "there"), properties), made(str(tmp_path / "here"), properties)

    def do(operation: str, arguments: dict[str, Any]) -> JobResult:
        return done(runner, operation, there.uri, arguments)

    leave_equal_rows(do, there, here, spark, CORE if WHOLE else CORE[1:4])


@by_hand("two jobs more, on another kind of store")
def test_on_a_store_the_driver_has_the_connections_identity_and_executors_their_own(
    runner: ConnectRunner, spark: SparkSession, tmp_path: Path, connection: str
) -> None:
    """The workers of the cluster have keys in their environment; server and driver have none."""
    there, here = made(s3.new_folder(), {}), made(str(tmp_path / "here"), {})
    given = {"storage_options": s3.plain_options(), "storage_conn_id": connection}

    def do(operation: str, arguments: dict[str, Any]) -> JobResult:
        return done(runner, operation, there.uri, arguments, **given)

    leave_equal_rows(do, there, here, spark, CORE if WHOLE else [CORE[1], CORE[4]])


@pytest.mark.parametrize("lacks", ["pyarrow", "Python"])
def test_what_an_executor_lacks_is_named_with_its_host(runner: ConnectRunner, tmp_path: Path, lacks: str) -> None:
    table = made(str(tmp_path / "t"), {})
    python = "/none/python" if lacks == "Python" else str(python_without(lacks, tmp_path))
    with pytest.raises(UnfitExecutor) as caught:
        done(runner, "delete", table.uri, SPARK_EVALUATES, spark_conf={PYTHON: python})
    assert caught.value.facts["missing"] == [
        "there is no /none/python" if lacks == "Python" else "pyarrow is not installed"
    ]
    assert caught.value.facts["host"]
    assert table.latest_version() == 2


def test_a_row_that_reads_like_a_missing_package_is_blamed_as_a_row(runner: ConnectRunner, tmp_path: Path) -> None:
    """Spark quotes the value of a cast that fails; over Connect in one text with the rest."""
    table = make_table(tmp_path / "t", pa.table({"name": ["No module named pyarrow", "1"]}))
    with pytest.raises(InvalidInput):
        done(runner, "delete", table.uri, {"predicate": "CAST(name AS INT) + 0 = 1"})


@by_hand("it waits")
def test_a_cluster_that_grants_no_executor_is_an_error_after_a_stated_wait(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    table = made(str(tmp_path / "t"), {})
    with (
        server_on(cluster, tmp_path, {"spark.executor.memory": "8g"}) as runner,
        pytest.raises(NoExecutors, match="ran a task of the job in 10 s") as caught,
    ):
        done(runner, "delete", table.uri, SPARK_EVALUATES, spark_conf={"spark.txlog.executorsWaitSeconds": "10"})
    assert caught.value.retryable
    assert table.latest_version() == 2


def test_tasks_run_the_python_of_a_packed_environment(runner: ConnectRunner, tmp_path: Path) -> None:
    """As docs/spark-connect.md has it: a session's tasks start one folder below the one in which archives lie."""
    table = made(str(tmp_path / "t"), {})
    result = done(runner, "delete", table.uri, SPARK_EVALUATES, spark_conf={PYTHON: "../lake/bin/python"})
    assert result.status == "committed"
