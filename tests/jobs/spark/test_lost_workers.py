"""A process of Spark that dies loses the job; a store that refuses a connection or a missing source does not."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.errors import JobError, JobLost
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.spark.errors import collect, failure_of, translate
from tests.helpers.signals import hold_still
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


@pytest.mark.long("a JVM of its own, to be killed")
def test_whatever_is_asked_of_a_jvm_that_was_killed_the_job_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """py4j has an exception of its own for a call that finds the JVM gone, and none for the one that it died in."""
    gateway: Any = launch_gateway()
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    known, view = gateway.jvm.java.util.HashMap(), gateway.jvm
    with pytest.raises(Py4JError) as wrong:
        known.noSuchMethod()
    assert type(translate(wrong.value, "read the rows")) is JobError
    # It dies with the call unread, which resets the connection.
    hold_still(gateway.proc.pid)
    threading.Timer(0.5, gateway.proc.kill).start()
    calls = [known.size, known.size, lambda: view.java.util.Date(), lambda: len(known)]
    for call in calls:
        with pytest.raises((Py4JError, ConnectionError)) as caught:
            call()
        found = translate(caught.value, "read the rows")
        assert type(found) is JobLost
        assert "JVM is gone" in str(found)
    # The rows of a result come by a socket, whose end is none of py4j's.
    assert type(translate(EOFError(), "read the rows")) is JobLost


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
