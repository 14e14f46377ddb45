"""A process of Spark that dies loses the job; a store that refuses a connection or a missing source does not."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_txlog.contract import ApplicationTransaction, JobSpec
from airflow_txlog.errors import JobError, JobLost
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.spark.errors import collect, failure_of, translate
from tests.helpers.specs import job_spec

pytestmark = pytest.mark.spark


def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield from batches


def spec_of(**arguments: Any) -> JobSpec:
    return job_spec(operation="write", table_uri="/nowhere", arguments={"source": {"table": "/s"}}, **arguments)


def test_a_python_worker_that_is_killed_loses_the_job(spark: SparkSession) -> None:
    with pytest.raises(JobLost, match="Python worker exited unexpectedly") as caught:
        collect(spark.range(0, 2, 1, 1).mapInArrow(die, "id long"), "read the rows")
    assert "memory" in str(caught.value)
    application = ApplicationTransaction(app_id="a", version=1)
    assert failure_of(spec_of(application=application), caught.value).retryable
    assert not failure_of(spec_of(), caught.value).retryable


def test_a_store_that_refuses_a_connection_loses_no_job() -> None:
    with pytest.raises(ConnectionRefusedError) as caught, socket.socket() as unbound:
        unbound.connect(("127.0.0.1", 1))
    assert type(translate(caught.value, "read the rows")) is JobError


def sources(tmp_path: Path) -> list[dict[str, Any]]:
    (tmp_path / "empty").mkdir()
    missing = str(tmp_path / "late.parquet")
    return [
        {"format": "parquet", "path": missing},
        {"format": "csv", "path": missing, "schema": "id LONG"},
        {"format": "parquet", "path": str(tmp_path / "late-*.parquet")},
        {"format": "parquet", "path": str(tmp_path / "empty")},
        {"sql": "SELECT * FROM a", "views": {"a": {"format": "json", "path": missing}}},
        {"sql": f"SELECT * FROM parquet.`{missing}`", "views": {}},
        {"table": missing},
    ]


def test_a_source_that_has_not_arrived_is_a_class_of_its_own(tmp_path: Path, spark: SparkSession) -> None:
    found = []
    for source in sources(tmp_path):
        spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source})
        error = run_job(spec.replace(unrestricted=("query",)), spark).error
        found.append(None if error is None else (error["type"], error["retryable"]))
    assert found == [("SourceNotFound", False)] * len(found)


def test_a_source_that_is_no_query_is_still_the_authors_mistake(tmp_path: Path, spark: SparkSession) -> None:
    for sql in ("SELECT * FROM no_such_view", "SELEC 1"):
        source = {"sql": sql, "views": {}}
        error = run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), spark)
        assert error.error is not None
        assert error.error["type"] == "InvalidJobSpec"
