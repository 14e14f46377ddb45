"""The first line of a failure of Spark names its cause and what to do, however deep Spark has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.errors import ClusterLost, ExecutorsLost, JobError, JobLost, OutOfMemory, TxlogError, UnfitExecutor
from airflow_txlog.jobs.spark.causes import causes_of
from airflow_txlog.jobs.spark.errors import failure_of, translate
from tests.helpers.jobs import run
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SPEC = job_spec(
    operation="delete",
    table_uri="/lake/t",
    arguments={"predicate": "true"},
    application=ApplicationTransaction(app_id="a", version=1),
)


def raised(spark: SparkSession, cause: Any) -> Exception:
    """What Python sees of an exception of the JVM that Spark has wrapped twice, as it does with those of a task."""
    java: Any = spark.sparkContext._jvm
    aborted = java.org.apache.spark.SparkException("Job aborted due to stage failure: Task 3 in stage 12.0", cause)
    outer = java.org.apache.spark.SparkException("Exception thrown in awaitResult: ", aborted)
    with pytest.raises(Py4JJavaError) as caught:
        java.java.util.concurrent.CompletableFuture.failedFuture(outer).get()
    return caught.value


def test_the_innermost_cause_and_its_advice_stand_in_the_first_line(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    facts = java.java.util.HashMap({"requestedBytes": "134217728", "receivedBytes": "0"})
    for cause, names, advice in [
        (
            java.org.apache.spark.memory.SparkOutOfMemoryError("UNABLE_TO_ACQUIRE_MEMORY", facts),
            ["SparkOutOfMemoryError", "requestedBytes: 134217728"],
            "spark.driver.memory",
        ),
        (java.java.lang.OutOfMemoryError("Java heap space"), ["OutOfMemoryError: Java heap space"], "memory"),
        (java.java.io.IOException("/tmp/x: No space left on device"), ["No space left on device"], "spark.local.dir"),
        (
            java.org.apache.spark.SparkException(
                "Total size of results (2 GiB) is bigger than spark.driver.maxResultSize (1 GiB)"
            ),
            ["is bigger than spark.driver.maxResultSize"],
            "raise it",
        ),
    ]:
        error = translate(raised(spark, cause), "write the data files")
        assert type(error) is (OutOfMemory if "emory" in advice else JobError)
        first = error.message.splitlines()[0]
        assert first.startswith("Cannot write the data files: ")
        assert all(name in first for name in names), first
        assert advice in first
        assert "awaitResult" not in error.message


OF_A_WORKER = "Task 0 in stage 0.0 failed 4 times: Lost task 0.3 in stage 0.0 (TID 7) (node-7.lake executor 3): "


@pytest.mark.parametrize(
    ("cause", "text", "error", "said"),
    [
        (
            "java.io.IOException",
            'Cannot run program "/opt/python": error=2, No such file or directory',
            UnfitExecutor,
            "An executor on node-7.lake cannot run the job's tasks: there is no /opt/python.",
        ),
        (
            "org.apache.spark.SparkException",
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in "
            "driver: 3.11, PySpark cannot run",
            UnfitExecutor,
            "its Python is 3.12, and the driver's is 3.11",
        ),
        (
            "org.apache.spark.SparkException",
            "Error from python worker:\n  ModuleNotFoundError: No module named 'pyarrow'",
            UnfitExecutor,
            "pyarrow is not installed",
        ),
        (
            "org.apache.spark.SparkException",
            "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: code 137",
            ExecutorsLost,
            "spark.executor.memoryOverhead",
        ),
        ("org.apache.spark.SparkException", "Master removed our application: KILLED", ClusterLost, "its master knows"),
        ("org.apache.spark.SparkException", "All masters are unresponsive! Giving up.", ClusterLost, "or is gone"),
        ("java.lang.RuntimeException", "No module named 'pyarrow', says a row", JobError, "RuntimeException"),
        ("java.io.IOException", 'a row: Cannot run program "secret"', JobError, "IOException"),
    ],
)
def test_a_failure_of_the_cluster_is_a_class_of_its_own_with_what_to_do(
    spark: SparkSession, cause: str, text: str, error: type[TxlogError], said: str
) -> None:
    java: Any = spark.sparkContext._jvm
    kind = java
    for name in cause.split("."):
        kind = getattr(kind, name)
    around = java.org.apache.spark.SparkException(OF_A_WORKER, kind(text))
    found = translate(raised(spark, around), "read the rows")
    assert type(found) is error, found
    assert said in found.message
    assert "secret" not in found.message
    if error is UnfitExecutor:
        assert found.facts["host"] == "node-7.lake"
    if isinstance(found, JobLost):
        assert type(failure_of(SPEC, found)) is error
        assert failure_of(SPEC, found).retryable


@pytest.mark.long("a Spark of its own, whose memory runs out")
def test_a_job_whose_memory_runs_out_says_so_in_its_first_line(tmp_path: Path) -> None:
    """A hash join that its author has asked for, of three million rows, in half a gigabyte."""
    done = subprocess.run(
        [sys.executable, "-c", RUNS_OUT, str(tmp_path / "t")], capture_output=True, text=True, check=False, timeout=300
    )
    error = json.loads(done.stdout.splitlines()[-1])
    first = error["message"].splitlines()[0]
    assert error["type"] == "OutOfMemory", error
    assert "SparkOutOfMemoryError" in first
    assert "spark.driver.memory" in first


RUNS_OUT = """
import json, sys
from airflow_txlog.contract.job import JobSpec
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.spark.session import local_session
from airflow_txlog.contract.operations import QuerySource, Write

keys = "(SELECT id % 3 AS id FROM range(0, 10, 1, 2)) a"
rows = "(SELECT id, repeat(CAST(id AS STRING), 20) AS x FROM range(0, 3000000, 1, 2)) b"
sql = f"SELECT /*+ SHUFFLE_HASH(b) */ b.x FROM {keys} JOIN {rows} ON a.id = b.id"
spark = local_session({"spark.driver.memory": "512m", "spark.master": "local[2]", "spark.sql.shuffle.partitions": "1"})
result = run_job(JobSpec(operation=Write(source=QuerySource(sql=sql)), table_uri=sys.argv[1]), spark)
print(json.dumps(result.error))
"""


def test_an_executor_whose_python_lacks_a_package_is_named_though_spark_raises_without_it(spark: SparkSession) -> None:
    """As Spark brings it from a Python worker that could not start: the exception alone, and not of which task."""

    def lacking(batches: Any) -> Any:
        raise ModuleNotFoundError("No module named 'pyarrow'")
        yield

    with pytest.raises(Exception, match="pyarrow") as caught:
        spark.range(1).mapInArrow(lacking, "id LONG").toArrow()
    assert not [cause for cause in causes_of(caught.value) if cause.host]
    found = translate(caught.value, "find the matching rows")
    assert isinstance(found, UnfitExecutor)
    assert found.facts["missing"] == ["pyarrow is not installed"]
    # As a local Spark names its one executor.
    assert found.facts["host"] == "localhost"


def test_a_row_that_reads_like_a_missing_package_is_blamed_as_a_row(spark: SparkSession, tmp_path: Path) -> None:
    """Spark quotes the value of a cast that fails."""
    table = make_table(tmp_path / "t", pa.table({"name": ["No module named pyarrow", "1"]}))
    result = run(spark, "delete", table, predicate="CAST(name AS INT) + 0 = 1")
    assert result.error is not None
    assert result.error["type"] == "InvalidInput", result.error
