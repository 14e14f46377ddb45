"""Two users of one machine with one folder for temporary files: each has a warm server that the other cannot use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.depth import by_hand

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow("a Spark Connect server for each of two users"),
    pytest.mark.long("a job for each user, from a process of its own"),
    by_hand("two more servers are started"),
]

# Two that are in every /etc/passwd: Spark does not start for a user without an entry.
USERS = (1, 2)
# Deletes a row of a table of its own on the warm server of its user, and says where that server is.
JOB = """
import json, sys
from pathlib import Path
import pyarrow as pa
from airflow_txlog.runners.warm.folders import base_folder
from airflow_txlog.runners.warm.runner import WarmRunner
from airflow_txlog.runners.warm.server import lease_session
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

conf = {"spark.driver.memory": "1g"}
table = make_table(Path(sys.argv[1]) / "t", pa.table({"id": [1, 2, 3]}))
spec = job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "pmod(id, 1000) = 2"}, spark_conf=conf)
WarmRunner().run(spec, log=lambda line: print(line, file=sys.stderr))
lease = lease_session(conf, lambda line: None)
lease.end(is_well=True)
found = {"left": table.to_arrow()["id"].to_pylist(), "folder": str(base_folder()), "port": lease.server.port}
print(json.dumps(found | {"java": lease.server.java.pid}))
"""
# What the other user tries: to look into the folder, to read each file in it, to use the server, to put it to an end.
THEFT = """
import json, os, sys, urllib.error
from pathlib import Path
import pyarrow as pa
from airflow_txlog.errors import TxlogError
from airflow_txlog.runners.base import ConnectServer
from airflow_txlog.runners.connect import ConnectRunner
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

folder, port, java, mine = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
refused = {}
def tried(name, work):
    try:
        work()
    except (OSError, TxlogError) as error:
        refused[name] = f"{type(error).__name__}: {error}"
table = make_table(mine / "theft", pa.table({"id": [1, 2, 3]}))
spec = job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "pmod(id, 1000) = 2"})
job = lambda url: ConnectRunner(ConnectServer(url=url)).run(spec, log=lambda line: None)
tried("list", lambda: os.listdir(folder))
tried("enter", lambda: os.chdir(folder))
tried("environment", lambda: Path(f"/proc/{java}/environ").read_bytes())
tried("no token", lambda: job(f"sc://localhost:{port}"))
tried("a token", lambda: job(f"sc://localhost:{port}/;token=guessed"))
tried("kill", lambda: os.kill(java, 9))
command = Path(f"/proc/{java}/cmdline").read_bytes().decode()
print(json.dumps({"refused": refused, "left": table.to_arrow().num_rows, "command": command}))
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may make files in, as /tmp is."""
    if os.geteuid():
        pytest.skip("only root becomes another user")
    with tempfile.TemporaryDirectory(prefix="txlog-two-users-") as name:
        Path(name).chmod(0o1777)
        yield Path(name)
        for user in USERS:
            _run(user, Path(name), "from airflow_txlog.runners.warm.server import stop_all; stop_all(); print(0)")


def _run(user: int, shared: Path, code: str, *arguments: object) -> Any:
    """The last line, JSON, of Python code that another user of this machine runs."""
    home = shared / f"home-{user}"
    if not home.exists():
        home.mkdir(mode=0o700)
        os.chown(home, user, user)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "JAVA_HOME", "SPARK_LOCAL_IP")}
    environment = kept | {"HOME": str(home), "TMPDIR": str(shared), "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    try:
        done = subprocess.run(
            command,
            env=environment | {"PYSPARK_PYTHON": sys.executable},
            user=user,
            group=user,
            extra_groups=[],
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
    except PermissionError:
        pytest.skip(f"another user of this machine may not run {sys.executable}")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_each_user_has_a_server_that_the_other_cannot_use(shared: Path) -> None:
    first, second = (_run(user, shared, JOB, shared / f"home-{user}") for user in USERS)
    assert [first["left"], second["left"]] == [[1, 3], [1, 3]]
    assert len({each[name] for each in (first, second) for name in ("folder", "port", "java")}) == 6

    theft = _run(USERS[1], shared, THEFT, first["folder"], first["port"], first["java"], shared / f"home-{USERS[1]}")
    assert [(name, text.partition(":")[0]) for name, text in theft["refused"].items()] == [
        ("list", "PermissionError"),
        ("enter", "PermissionError"),
        ("environment", "PermissionError"),
        ("no token", "SparkUnavailable"),
        ("a token", "SparkUnavailable"),
        ("kill", "PermissionError"),
    ]
    assert "refused the token" in theft["refused"]["a token"]
    assert theft["left"] == 3
    # What every user sees of the server's process.
    assert "token" not in theft["command"].lower()
