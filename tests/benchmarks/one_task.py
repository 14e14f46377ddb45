"""The task that `task_cases` times: `python -m tests.benchmarks.one_task RUNNER`, with a spec on standard input.

It imports what a runner needs of an operator's process, and no more.
"""

from __future__ import annotations

import os
import sys

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.runners import make_runner
from airflow_txlog.runners.base import Cluster, ConnectServer, SparkSubmit

# The environment's names of a Connect server's address and of a cluster's master.
URL, MASTER = "TASK_CASE_URL", "TASK_CASE_MASTER"


def main(runner: str) -> None:
    spec = JobSpec.from_json(sys.stdin.read())
    cluster: Cluster | None = None
    if runner == "connect":
        cluster = ConnectServer(url=os.environ[URL])
    elif runner == "submit":
        master = os.environ[MASTER]
        cluster = SparkSubmit(master=master, command=("spark-submit", "--master", master))
        # The addresses by which executors of this machine reach a driver here.
        here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        spec = spec.replace(spark_conf=here, unrestricted=("query", "spark_conf"))
    if runner == "child-spark":
        # An operator imports no pyarrow.
        from airflow_txlog.storage.limits import SMALL_JOB

        os.environ[SMALL_JOB.setting] = "1"
    result = make_runner(runner.removesuffix("-spark"), cluster).run(
        spec, log=lambda line: print(line, file=sys.stderr)
    )
    print(sum(step["seconds"] for step in result.steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
