"""The first line of a failure of Spark names its cause and what to do, however deep Spark has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

from airflow_txlog.errors import JobError
from airflow_txlog.jobs.spark.errors import translate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


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
        assert type(error) is JobError
        first = error.message.splitlines()[0]
        assert first.startswith("Cannot write the data files: ")
        assert all(name in first for name in names), first
        assert advice in first
        assert "awaitResult" not in error.message


@pytest.mark.long("a Spark of its own, whose memory runs out")
def test_a_job_whose_memory_runs_out_says_so_in_its_first_line(tmp_path: Path) -> None:
    """A hash join that its author has asked for, of three million rows, in half a gigabyte."""
    done = subprocess.run(
        [sys.executable, "-c", RUNS_OUT, str(tmp_path / "t")], capture_output=True, text=True, check=False, timeout=300
    )
    error = json.loads(done.stdout.splitlines()[-1])
    first = error["message"].splitlines()[0]
    assert error["type"] == "JobError", error
    assert "SparkOutOfMemoryError" in first
    assert "spark.driver.memory" in first


RUNS_OUT = """
import json, sys
from airflow_txlog.contract import JobSpec
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.spark.session import local_session
from airflow_txlog.records import QuerySource, Write

keys = "(SELECT id % 3 AS id FROM range(0, 10, 1, 2)) a"
rows = "(SELECT id, repeat(CAST(id AS STRING), 20) AS x FROM range(0, 3000000, 1, 2)) b"
sql = f"SELECT /*+ SHUFFLE_HASH(b) */ b.x FROM {keys} JOIN {rows} ON a.id = b.id"
spark = local_session({"spark.driver.memory": "512m", "spark.master": "local[2]", "spark.sql.shuffle.partitions": "1"})
result = run_job(JobSpec(operation=Write(source=QuerySource(sql=sql)), table_uri=sys.argv[1]), spark)
print(json.dumps(result.error))
"""
