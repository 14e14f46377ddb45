"""A standalone Spark cluster on loopback, from pip's pyspark: one master, and workers of one core each.

`with StandaloneCluster(folder) as cluster:` starts it; `cluster.master` is its URL. For the tests and the demo. Every
process ends with the block, and with the thread that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark

READY_S = 240.0
STOP_S = 15.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_UI = re.compile(r"Bound MasterWebUI to \S+, and started at (http://\S+)")
_PR_SET_PDEATHSIG = 1


class StandaloneCluster:
    """A cluster that is up inside its `with` block."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        worker_memory: str = "2g",
        environment: Mapping[str, str] | None = None,
        apart: bool = False,
        standby: bool = False,
    ) -> None:
        """`folder`: for logs, and for what executors write, which is deleted at the end. `environment` is of all its
        processes. `apart`: each worker has an address of its own, as if on a host of its own; for Linux. `standby`:
        there is an address for a second master, which `start_standby` starts.
        """
        self._environment = dict(environment or {})
        self._folder = folder
        self._workers = workers
        self._apart = apart
        self._standby = standby
        self._worker_memory = worker_memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._reserved: list[socket.socket] = []
        self.master = ""
        """`spark://127.0.0.1:PORT`, with `standby` `spark://127.0.0.1:PORT,127.0.0.1:PORT`."""
        self.ui = ""
        """`http://localhost:PORT` of the master."""

    def __enter__(self) -> StandaloneCluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """The process ids of the master and of the workers."""
        return [process.pid for process in self._processes]

    def state(self) -> dict[str, Any]:
        """Return the master's answer: `aliveworkers`, `activeapps`, `completedapps`."""
        with urllib.request.urlopen(f"{self.ui}/json/", timeout=10) as answer:
            return dict(json.load(answer))

    def kill_application(self, application: str) -> None:
        """End an application, as the button in the master's UI does."""
        form = urllib.parse.urlencode({"id": application, "terminate": "true"}).encode()
        with urllib.request.urlopen(f"{self.ui}/app/kill/", data=form, timeout=10):
            pass

    def kill_master(self) -> None:
        """Kill the master, without a word to its workers and applications, which go on."""
        master = self._processes.pop(0)
        master.kill()
        master.wait()

    def start_standby(self) -> None:
        """Start the second master, which knows what the first one knew; returns when its workers are back.

        In a cluster with ZooKeeper it would run before, and learn that the first one is gone.
        """
        self._start_master(self._reserved[1].getsockname()[1])
        self._processes.insert(0, self._processes.pop())

        def is_back() -> bool | None:
            found = self.state()
            return (found["status"] == "ALIVE" and found["aliveworkers"] == self._workers) or None

        self._wait(is_back, "the second master did not recover")

    def add_worker(self, environment: Mapping[str, str] | None = None) -> None:
        """Start one worker more, with these variables in addition. Returns before it has registered."""
        self._start_worker(self._workers, environment)
        self._workers += 1

    def end_workers(self) -> None:
        """Kill the workers that run. Their executors go on until they notice."""
        for process in self._processes[1:]:
            process.kill()
            process.wait()
        del self._processes[1:]

    def files(self) -> list[Path]:
        """Return the files that the daemons and the executors have written."""
        return [path for path in self._folder.rglob("*") if path.is_file()]

    def stop(self) -> None:
        """End every process: workers, whose executors go with them, then the master."""
        for process in reversed(self._processes):
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in reversed(self._processes):
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        for held in self._reserved:
            held.close()
        self._reserved.clear()
        shutil.rmtree(self._folder / "work", ignore_errors=True)

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._standby:
            self._reserved = [_reserved_port() for _ in range(2)]
            ports = [held.getsockname()[1] for held in self._reserved]
            self._start_master(ports[0])
            self.master = f"spark://{','.join(f'127.0.0.1:{port}' for port in ports)}"
        else:
            self.master = self._start_master(0)
        for number in range(self._workers):
            self._start_worker(number)
        self._wait(lambda: self.state()["aliveworkers"] == self._workers or None, "the workers did not register")

    def _start_master(self, port: int) -> str:
        """Start a master at this port, 0 for any that is free; its address."""
        log = self._run(f"master-{port}", "org.apache.spark.deploy.master.Master", "--port", str(port))
        address = self._said(log, _MASTER)
        self.ui = self._said(log, _UI)
        return address

    def _start_worker(self, number: int, environment: Mapping[str, str] | None = None) -> None:
        options = ["--port", "0", "--cores", "1", "--memory", self._worker_memory]
        options += ["--work-dir", str(self._folder / "work" / str(number)), self.master]
        host = f"127.0.0.{2 + number}" if self._apart else "127.0.0.1"
        name = f"worker-{number}"
        self._run(name, "org.apache.spark.deploy.worker.Worker", *options, host=host, environment=environment)

    def _run(
        self, name: str, *command: str, host: str = "127.0.0.1", environment: Mapping[str, str] | None = None
    ) -> Path:
        """Start a daemon of Spark; where it logs."""
        home = os.path.dirname(pyspark.__file__)
        # Its port is fixed, and a second cluster would not find it free.
        of_masters = "-Dspark.master.rest.enabled=false"
        if self._standby:
            # What one master knows, the next one reads, whatever its address is.
            of_masters += (
                f" -Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self._folder}/recovery"
            )
        variables = {
            **os.environ,
            "SPARK_HOME": home,
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            # What executors inherit is the worker's environment: nothing of the package, and no keys.
            "PYTHONPATH": "",
            "SPARK_MASTER_OPTS": of_masters,
            **self._environment,
            **(environment or {}),
        }
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [f"{home}/bin/spark-class", *command, "--host", host, "--webui-port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self._processes.append(process)
        return log

    def _said(self, log: Path, pattern: re.Pattern[str]) -> str:
        def look() -> str | None:
            found = pattern.search(log.read_text(errors="replace"))
            return found and found[1]

        return str(self._wait(look, f"{log} has no line like {pattern.pattern!r}"))

    def _wait(self, look: Any, failure: str) -> Any:
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError):
                found = look()
                if found is not None:
                    return found
            ended = [process.args for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"{failure}; ended: {ended}; see {self._folder}")
            time.sleep(0.1)


def _reserved_port() -> socket.socket:
    """Return a port of loopback at which nothing listens and that no other program gets. A master may listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
