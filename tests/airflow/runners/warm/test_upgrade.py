"""A warm server whose package is upgraded or removed meanwhile: real copies of the package, each with its server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import airflow_txlog
from airflow_txlog.runners.warm.server import stop_all
from tests.helpers.depth import by_hand
from tests.helpers.paths import ROOT
from tests.helpers.submitting import eventually, runs

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow("a Spark Connect server for each release"),
    pytest.mark.long("jobs of two releases, each from a process of its own"),
    by_hand("four servers are started"),
]

# Deletes a row of a new table on the warm server of the package that it finds, and says which they are.
JOB = """
import json, sys
import airflow_txlog, pyarrow as pa
from airflow_txlog.runners.warm.runner import WarmRunner
from airflow_txlog.runners.warm.server import lease_session
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

conf = {"spark.driver.memory": "1g"}
table = make_table(sys.argv[1], pa.table({"id": [1, 2, 3]}))
spec = job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "pmod(id, 1000) = 2"}, spark_conf=conf)
WarmRunner().run(spec, log=lambda line: print(line, file=sys.stderr))
lease = lease_session(conf, lambda line: None)
lease.end(is_well=True)
left, engine = table.to_arrow()["id"].to_pylist(), table.history()[0]["engineInfo"]
found = {"left": left, "engine": engine, "java": lease.server.java.pid}
print(json.dumps(found | {"package": airflow_txlog.__file__}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TXLOG_WARM_FOLDER", str(tmp_path / "warm"))
    yield tmp_path
    stop_all()


def installed(folder: Path, version: str) -> Path:
    """The package in a folder of packages, as this release; what stood there is replaced, as an installer does it."""
    target = folder / "airflow_txlog"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "airflow_txlog", target, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir(exist_ok=True)
    shutil.copytree(ROOT / "tests" / "helpers", folder / "tests" / "helpers", dirs_exist_ok=True)
    module = target / "__init__.py"
    module.write_text(module.read_text().replace(f'"{airflow_txlog.__version__}"', f'"{version}"'))
    return folder


def ran(folder: Path, table: Path) -> dict[str, Any]:
    """What the job says that runs with the packages of a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(table)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["left"] == [1, 3]
    assert found["package"] == str(folder / "airflow_txlog" / "__init__.py")
    return found


def leave_unused(servers: Path) -> None:
    """As if no task had used a server for an hour."""
    hour_ago = time.time() - 3600
    for path in servers.rglob("*"):
        if path.name == "server.json" or path.parent.name == "sessions":
            os.utime(path, (hour_ago, hour_ago))


def processes_of(servers: Path) -> set[psutil.Process]:
    """Those that run for the servers of this folder: keepers, JVMs and Python workers."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TXLOG_WARM_FOLDER") == str(servers) and process.pid != os.getpid():
                found.add(process)
    return found


def test_a_task_of_an_upgraded_package_has_a_server_of_its_own_and_the_old_one_ends_by_itself(folder: Path) -> None:
    old, new = installed(folder / "old", "0.1.0+old"), installed(folder / "new", "0.2.0+new")
    first = ran(old, folder / "t1")
    other = ran(new, folder / "t2")
    assert other["java"] != first["java"]
    assert ("0.1.0+old" in first["engine"], "0.2.0+new" in other["engine"]) == (True, True)
    # A task that still has the old package finds its server, while the new one's runs.
    assert ran(old, folder / "t3")["java"] == first["java"]
    assert psutil.pid_exists(other["java"])

    upgraded = ran(installed(old, "0.2.0+new"), folder / "t4")
    assert upgraded["java"] not in (first["java"], other["java"])
    assert "0.2.0+new" in upgraded["engine"]
    assert psutil.pid_exists(first["java"])
    leave_unused(folder / "warm")
    eventually(lambda: not psutil.pid_exists(first["java"]), "the old server ends by itself")
    eventually(lambda: not (folder / "warm").exists(), "so do the others, and nothing of them is left")


def test_a_server_whose_package_is_removed_ends_by_itself_and_leaves_nothing(folder: Path) -> None:
    packages, servers = installed(folder / "packages", "0.1.0"), folder / "warm"
    first = ran(packages, folder / "t")
    running = processes_of(servers)
    assert first["java"] in {process.pid for process in running}
    assert len(running) > 2, "keeper, JVM and the root of the Python workers"
    shutil.rmtree(packages)
    leave_unused(servers)
    eventually(lambda: not any(map(runs, running)), "every process ends")
    eventually(lambda: not servers.exists(), "and nothing of them is left")
    assert processes_of(servers) == set()
    assert sorted(path.name for path in folder.iterdir()) == ["t"]
