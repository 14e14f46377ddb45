"""A server that speaks Spark Connect and is not Apache Spark runs no job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from pyspark.sql.connect import proto

from airflow_txlog.jobs.spark.connect import ConnectTarget
from airflow_txlog.runners.child_process import job_environment

_JOB = """
from airflow_txlog.jobs.spark.connect import connect_session
from airflow_txlog.jobs.spark.shipping import ship
spark = connect_session()
try:
    ship(spark)
except Exception as error:
    print(type(error).__name__, error)
"""


def _settings(request: Any, context: Any) -> Any:
    asked = request.operation
    pairs = [*asked.get_with_default.pairs, *(proto.KeyValue(key=key) for key in asked.get_option.keys)]
    return proto.ConfigResponse(session_id=request.session_id, server_side_session_id="s", pairs=pairs)


def _interrupt(request: Any, context: Any) -> Any:
    return proto.InterruptResponse(session_id=request.session_id, server_side_session_id="s")


@pytest.fixture
def another_engine() -> Iterator[str]:
    """The URL of a server that opens sessions, has no setting, and implements nothing else."""
    handlers = {
        "Config": grpc.unary_unary_rpc_method_handler(
            _settings, proto.ConfigRequest.FromString, proto.ConfigResponse.SerializeToString
        ),
        "Interrupt": grpc.unary_unary_rpc_method_handler(
            _interrupt, proto.InterruptRequest.FromString, proto.InterruptResponse.SerializeToString
        ),
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("spark.connect.SparkConnectService", handlers),)
    )
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"sc://localhost:{port}"
    server.stop(None)


@pytest.mark.long("it starts a Spark of its own")
def test_a_server_that_takes_no_python_files_is_refused_as_another_engine(another_engine: str) -> None:
    target = ConnectTarget(url=another_engine, session_id="6f1de9a8-5c1b-4d0e-9d46-5b7f0d6f0d2a")
    environment = {**job_environment(), **target.environment()}
    done = subprocess.run(
        [sys.executable, "-c", _JOB], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("InvalidJobSpec The Spark Connect server takes no Python files"), done.stdout
