"""Jobs on the standalone cluster of the tests, by the runner `submit`."""

from __future__ import annotations

import contextlib
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.runners.base import SparkSubmit
from airflow_txlog.runners.submit import SubmitRunner
from tests.helpers.depth import LONG
from tests.helpers.java import PLAIN_QUERIES
from tests.helpers.specs import job_spec
from tools.standalone_cluster import StandaloneCluster

SMALL = {
    "spark.executor.memory": "768m",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    **({} if LONG else PLAIN_QUERIES),
}


def runner_of(cluster: StandaloneCluster) -> SubmitRunner:
    return SubmitRunner(SparkSubmit(master=cluster.master, command=("spark-submit", "--master", cluster.master)))


def submitted_spec(*, spark_conf: dict[str, str] | None = None, **given: Any) -> JobSpec:
    """A job for the cluster, small enough for it."""
    return job_spec(spark_conf={**SMALL, **(spark_conf or {})}, unrestricted=("spark_conf",), **given)


def processes_below(process: psutil.Process | None = None) -> set[psutil.Process]:
    return set((process or psutil.Process()).children(recursive=True))


def executors_of(cluster: StandaloneCluster) -> list[psutil.Process]:
    """The executors that live now: of this cluster, and of no other on the machine."""
    found = []
    for daemon in cluster.pids:
        for process in processes_below(psutil.Process(daemon)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                    found.append(process)
    return found


def runs(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(holds: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def packed_environment(folder: Path) -> Path:
    """An archive with `bin/python`, as `venv-pack` makes one, of an interpreter that is on the machine."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    packed = folder / "lake.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(folder / "bin", "bin")
    return packed
