"""Starts the Spark of a warm server: `spark-submit` runs this file, and it stays until that Spark's JVM ends.

With Spark's own main class of a Connect server each session has artifacts, for which the executor connects to a port
of the same process. No process can do that here (`spark.launch`). The invariant: PySpark, whose memory would be taken
for as long as the server runs, is not imported.
"""

from __future__ import annotations

import os
import sys
from typing import Any

# Python searches a script's folder first, whose modules are not top-level modules.
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != os.path.dirname(os.path.abspath(__file__))]

from py4j.java_gateway import GatewayParameters, JavaGateway  # noqa: E402
from py4j.protocol import Py4JJavaError  # noqa: E402

from airflow_txlog.jobs.spark.launch import JARS, jars_in_place  # noqa: E402


def main() -> int:
    """Start Spark and its Connect service, print the port, and wait for the end of the JVM."""
    port, secret = int(os.environ["PYSPARK_GATEWAY_PORT"]), os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret))
    try:
        print(f"Spark Connect server started at: 127.0.0.1:{_started(gateway.jvm)}", flush=True)
    except Py4JJavaError as error:
        print(error.java_exception.toString(), flush=True)
        return 1
    # A pipe of the JVM, which ends with it.
    sys.stdin.buffer.read()
    return 0


def _started(jvm: Any) -> int:
    system = jvm.java.lang.System
    # Including those that `spark-submit` has found for spark.jars.packages.
    jars = system.getProperty(JARS)
    if jars:
        system.setProperty(JARS, jars_in_place(jars))
    session = jvm.org.apache.spark.sql.SparkSession.builder().getOrCreate()
    service = jvm.org.apache.spark.sql.connect.service
    service.SparkConnectService.start(session.sparkContext())
    return int(getattr(getattr(service, "SparkConnectService$"), "MODULE$").localPort())


if __name__ == "__main__":
    sys.exit(main())
