"""The reference implementation, delta-spark, at work in a process of its own.

A JVM has the jars that it started with, and the suite's own Spark is without delta-spark's: that is the point of it. So
delta-spark runs in a child, which reads a request a line and answers each with a line, both JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tests.helpers.java import PLAIN_QUERIES
from tests.helpers.paths import ROOT
from tests.interop.reference.plain import plain_rows, plain_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The jars of io.delta:delta-spark_4.2_2.13:4.4.0 and of what it needs beside Spark: `tools/ensure_delta_spark.sh`.
DEFAULT_JARS = ROOT / ".venv" / "delta-jars"


def jars() -> list[Path]:
    """delta-spark's jars, none where nobody fetched them; TXLOG_DELTA_JARS names another folder."""
    return sorted(Path(os.environ.get("TXLOG_DELTA_JARS", DEFAULT_JARS)).glob("*.jar"))


# Instead of the settings of `session`, for those who measure: compilers and codegen as Spark has them by itself.
AT_FULL_SPEED = {
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:+UseG1GC",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.lightweightPlanChangeValidation": "true",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}


def session(found: list[Path], work: Path, instead: Mapping[str, str] | None = None) -> SparkSession:
    """A small Spark with delta-spark in it: UTC, one file a write unless asked otherwise.

    `instead`: settings that replace those here.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.jars": ",".join(str(jar) for jar in found),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # A few rows a table: what costs is compiling, of bytecode and of queries.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms1g -Xmn400m",
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.ui.retainedExecutions": "10",
        **PLAIN_QUERIES,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        # A VACUUM lists in as many tasks, and would start ten thousand.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # The protocol knows strings alone: char(n) as the files hold it, not padded by a reader.
        "spark.sql.readSideCharPadding": "false",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**settings, **(instead or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class DeltaSparkError(Exception):
    """What delta-spark raised."""


class DeltaSpark:
    """The child, as its parent sees it: one request at a time."""

    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self._requests = requests
        self._answers = answers

    def run(self, *statements: str) -> None:
        """Run the statements in order, whatever they return. Raises DeltaSparkError."""
        self._ask({"run": statements})

    def sql(self, *statements: str) -> list[dict[str, Any]]:
        """Run the statements in order; the rows of the last, as `plain` values. Raises DeltaSparkError."""
        rows: list[dict[str, Any]] = self._ask({"sql": statements})["rows"]
        return rows

    def read(self, path: Path | str, version: int | None = None) -> dict[str, Any]:
        """All rows of the table at a version, and their schema, as `plain` values."""
        at = "" if version is None else f" VERSION AS OF {version}"
        return self._ask({"sql": [f"SELECT * FROM delta.`{path}`{at}"]})

    def job(self, **spec: Any) -> dict[str, Any]:
        """Run one of our jobs in the child's session; its result as JSON."""
        result: dict[str, Any] = self._ask({"job": spec})["result"]
        return result

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        line = self._answers.readline()
        if not line:
            raise DeltaSparkError("delta-spark's process ended without an answer")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DeltaSparkError(answer["error"])
        return answer


@contextlib.contextmanager
def running(instead: Mapping[str, str] | None = None) -> Iterator[DeltaSpark]:
    """A child with delta-spark, which ends with the block; `instead` as `session` has it."""
    # Spark and its JVM write where they like, so answers have a pipe of their own.
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "tests.helpers.delta_spark", str(writing), json.dumps(dict(instead or {}))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryFile() as noise:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=noise,
            stderr=noise,
            text=True,
            pass_fds=[writing],
        )
        os.close(writing)
        assert child.stdin is not None
        with os.fdopen(reading) as answers, child.stdin:
            try:
                yield DeltaSpark(child.stdin, answers)
            except DeltaSparkError as error:
                noise.seek(0)
                error.add_note(noise.read()[-3000:].decode(errors="replace"))
                raise
        # A Spark that takes longer to stop, on a busy machine, is not a fault of what was tested.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
        child.kill()
        child.wait()


def _answer(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    if "job" in request:
        from airflow_txlog.jobs.run import run_job
        from tests.helpers.specs import job_spec

        return {"result": json.loads(run_job(job_spec(**request["job"]), spark).to_json())}
    for statement in request.get("sql", []) or request["run"]:
        frame = spark.sql(statement)
    if "run" in request:
        return {}
    return {"rows": plain_rows(frame.toArrow()), "schema": plain_type(json.loads(frame.schema.json()))}


def _serve(answers: IO[str], instead: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as work:
        spark = session(jars(), Path(work), instead)
        for line in sys.stdin:
            try:
                answer = _answer(spark, json.loads(line))
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"[:3000]}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        spark.stop()


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "w") as pipe:
        _serve(pipe, json.loads(sys.argv[2]))
