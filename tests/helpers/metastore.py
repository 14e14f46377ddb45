"""A real Hive Metastore on loopback: the one in PySpark's jars, with its database in memory.

`HiveMetaStore.main` would listen on all addresses. So a JVM with Py4J's gateway, which is how PySpark itself drives
one, makes the metastore's handler and serves it on 127.0.0.1 alone. The JVM ends when this process closes its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Metastore:
    """A running metastore. `handler` is what it serves, and `jvm` its JVM, for a test that writes as Hive does."""

    host: str
    port: int
    handler: Any
    jvm: Any

    @property
    def connection(self) -> str:
        """The connection of Airflow, as JSON."""
        return json.dumps({"conn_type": "hive_metastore", "host": self.host, "port": self.port})


@contextlib.contextmanager
def running(warehouse: Path) -> Iterator[Metastore]:
    """Yield a metastore whose databases are below a folder. Skips the test without Java."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java for a Hive Metastore")
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    jars = Path(pyspark.__file__).parent / "jars"
    port, token, process = launch_gateway(
        port=0,
        jarpath=str(next(jars.glob("py4j*.jar"))),
        classpath=f"{jars}/*",
        javaopts=[
            *("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"),
            f"-Dderby.stream.error.file={warehouse}/derby.log",
        ],
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        cwd=str(warehouse),
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        here, handler = _serve(gateway, warehouse)
        _wait_for(here)
        yield Metastore("127.0.0.1", here, handler, gateway.jvm)
    finally:
        with contextlib.suppress(Exception):
            gateway.shutdown()
        process.stdin.close()
        try:
            process.wait(timeout=20)
        except Exception:
            process.kill()
            process.wait()


def _serve(gateway: Any, warehouse: Path) -> tuple[int, Any]:
    jvm = gateway.jvm
    settings = jvm.org.apache.hadoop.hive.conf.HiveConf()
    for name, value in {
        "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:hms;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "NONE",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": warehouse.as_uri(),
    }.items():
        settings.set(name, value)
    metastore = jvm.org.apache.hadoop.hive.metastore
    handler = metastore.HiveMetaStore.newRetryingHMSHandler("hms", settings, True)
    address = jvm.java.net.InetSocketAddress(jvm.java.net.InetAddress.getByName("127.0.0.1"), 0)
    transport = jvm.org.apache.thrift.transport.TServerSocket(address)
    port = int(transport.getServerSocket().getLocalPort())
    arguments = jvm.org.apache.thrift.server.TThreadPoolServer.Args(transport)
    arguments.processor(metastore.TSetIpAddressProcessor(handler))
    server = jvm.org.apache.thrift.server.TThreadPoolServer(arguments)

    def serve() -> None:
        # Ends with the JVM.
        with contextlib.suppress(Exception):
            server.serve()

    threading.Thread(target=serve, daemon=True).start()
    return port, handler


def _wait_for(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        threading.Event().wait(0.1)
    raise AssertionError("the metastore does not listen")
