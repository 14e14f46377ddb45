"""`python -m tests.helpers.connected`: jobs in one Spark Connect session, one after another.

Descriptions come on standard input, a list; results go to standard output, a line each. A process of its own, because
PySpark is in Connect mode for as long as the process lives.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.jobs.spark.connect import ConnectTarget
from airflow_txlog.runners.child_process import job_environment


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[Callable[[], ConnectTarget]]:
    """A server that is started for this context, as what gives a new session of it each time.

    `folder` is where the server has its own.
    """
    from airflow_txlog.runners.warm.server import lease_session, stop_all

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TXLOG_WARM_FOLDER", str(folder))
        lease = lease_session({"spark.driver.memory": "1g"}, print)
        lease.end(is_well=True)
        try:
            url = f"sc://localhost:{lease.server.port}/;token={lease.server.token}"
            yield lambda: ConnectTarget(url=url, session_id=str(uuid.uuid4()))
        finally:
            stop_all()


def run_connected(target: ConnectTarget, specs: Sequence[JobSpec]) -> list[JobResult]:
    """The results of the jobs, which a child process runs in this session."""
    texts = json.dumps([spec.to_json(with_key=True) for spec in specs])
    command = [sys.executable, "-m", "tests.helpers.connected"]
    environment = {**job_environment(), **target.environment()}
    done = subprocess.run(command, input=texts, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [JobResult.from_json(line) for line in done.stdout.splitlines()]


def main() -> None:
    from airflow_txlog.jobs.run import run_job
    from airflow_txlog.jobs.spark.connect import connect_session

    spark = connect_session()
    for text in json.load(sys.stdin):
        print(json.dumps(json.loads(run_job(JobSpec.from_json(text), spark).to_json())), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
