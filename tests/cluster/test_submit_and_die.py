"""The process of the runner `submit` dies by SIGKILL at five moments: nothing runs on, and a retry commits once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.engine import Table
from tests.helpers.depth import by_hand
from tests.helpers.paths import ROOT
from tests.helpers.rows import make_table
from tests.helpers.submitting import eventually, processes_below, runner_of, runs, submitted_spec
from tools.standalone_cluster import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.long("two applications on a cluster for each moment")]

WORKER = """
import sys, threading, time
from airflow_txlog.contract.job import JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.runners.base import SparkSubmit
from airflow_txlog.runners.submit import SubmitRunner

spec = JobSpec.from_json(open(sys.argv[1]).read())
command = ("spark-submit", "--master", sys.argv[2])
print("began", flush=True)

def watch():
    while Table.open(spec.table_uri).latest_version() < 2:
        time.sleep(0.02)
    print("committed", flush=True)

threading.Thread(target=watch, daemon=True).start()
runner = SubmitRunner(SparkSubmit(master=sys.argv[2], command=command))
runner.run(spec, log=lambda line: print(line, flush=True))
print("ended", flush=True)
"""
# What the worker has said when it is killed.
MOMENTS = (
    *(pytest.param(moment, marks=by_hand("another moment")) for moment in ("began", "Spark application", " to scan")),
    *("staged", pytest.param("committed", marks=by_hand("another moment"))),
)


def spec_of(table: Table) -> JobSpec:
    return submitted_spec(
        operation="delete",
        table_uri=table.uri,
        arguments={"predicate": "pmod(user_id, 100) = 42"},
        application=ApplicationTransaction(app_id="test/die", version=1),
    )


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_that_dies_leaves_nothing_that_runs_and_its_retry_commits_once(
    cluster: StandaloneCluster, tmp_path: Path, moment: str
) -> None:
    table = make_table(tmp_path / "users", pa.table({"user_id": pa.array(range(100), pa.int64())}))
    described = tmp_path / "spec.json"
    described.write_text(spec_of(table).to_json())
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(described), cluster.master], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert worker.stdout is not None
    started: set[psutil.Process] = set()
    for line in worker.stdout:
        if moment in line:
            eventually(lambda: bool(processes_below(psutil.Process(worker.pid))), "spark-submit has begun")
            started = processes_below(psutil.Process(worker.pid))
            worker.send_signal(signal.SIGKILL)
            break
    assert worker.wait() == -signal.SIGKILL
    worker.stdout.close()
    assert started
    eventually(lambda: not any(map(runs, started)), "driver and JVM end with the worker")
    eventually(lambda: not cluster.state()["activeapps"], "and so does the application")

    result = runner_of(cluster).run(spec_of(table), log=print)
    assert result.status in (("already_done",) if moment == "committed" else ("committed", "already_done"))
    assert table.latest_version() == 2
    assert sorted(table.to_arrow().column("user_id").to_pylist()) == [n for n in range(100) if n != 42]
