"""An executor that comes when the others were asked what they have, and that lacks what the job's tasks need.

Each cluster has one worker, and gets a second one instead of it while the job runs. Both find the program of the tasks
by its name on their PATH.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import UnfitExecutor
from tests.airflow.racing import PLANNED
from tests.cluster.test_submit import python_without
from tests.conftest import REPORTED
from tests.helpers import s3
from tests.helpers.depth import by_hand
from tests.helpers.rows import bag
from tests.helpers.submitting import executors_of, runner_of, submitted_spec
from tests.jobs.stores.test_jobs_on_s3 import made
from tools.standalone_cluster import StandaloneCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long("a cluster of its own"),
    by_hand("a cluster for each thing that an executor may lack"),
]

PYTHON = "python-of-tasks"
REGISTERED, FAILED = "Successfully registered with driver", "Exception in task"


class LateLog(threading.Thread):
    """Notes when a late executor logs that the driver has it, and when that a task has failed."""

    def __init__(self, cluster: StandaloneCluster) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.registered_s: float | None = None
        self.failed_s: list[float] = []
        self.over = threading.Event()

    def run(self) -> None:
        known = set(self.logs())
        while not self.over.wait(0.1):
            text = "".join(path.read_text(errors="replace") for path in set(self.logs()) - known)
            if self.registered_s is None and REGISTERED in text:
                self.registered_s = time.monotonic()
            self.failed_s += [time.monotonic()] * (text.count(FAILED) - len(self.failed_s))

    def logs(self) -> list[Path]:
        return [path for path in self.cluster.files() if path.name == "stderr"]

    def seconds(self) -> str:
        """From the executor's registration to each of its failed tasks, and to now, where the error is raised."""
        if self.registered_s is None:
            return "no late executor has registered"
        shown = ", ".join(f"{at - self.registered_s:.1f}" for at in (*self.failed_s, time.monotonic()))
        return f"seconds from an executor's registration to each failed task, and to the error: {shown}"


def with_path(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def fails_on_late_executor(
    folder: Path, lacks: Path, table: Table, storage: dict[str, object], report: Callable[[str, object], None]
) -> UnfitExecutor:
    """What a delete raises whose only executor is replaced by one with the programs of `lacks`."""
    fit = folder / "fit"
    fit.mkdir()
    (fit / PYTHON).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (fit / PYTHON).chmod(0o755)
    before, replaced = bag(table), list[int]()
    with StandaloneCluster(folder / "cluster", workers=1, environment=s3.environment() | with_path(fit)) as cluster:
        late = LateLog(cluster)

        def replace(line: str) -> None:
            if PLANNED in line and not replaced:
                late.start()
                executors = executors_of(cluster)
                cluster.end_workers()
                for process in executors:
                    process.kill()
                replaced.extend(process.pid for process in executors)
                cluster.add_worker(with_path(lacks))

        spec = submitted_spec(
            operation="delete",
            table_uri=table.uri,
            arguments={"predicate": "pmod(id, 5) = 3"},
            spark_conf={"spark.pyspark.python": PYTHON},
            **storage,
        )
        try:
            with pytest.raises(UnfitExecutor) as caught:
                runner_of(cluster).run(spec, log=replace)
        finally:
            late.over.set()
        report(REPORTED, f"{caught.value.facts['missing'][0]}: {late.seconds()}")
    assert replaced, "the job had another executor"
    assert caught.value.facts["host"]
    assert not caught.value.retryable
    assert bag(table) == before
    return caught.value


def test_a_late_executor_without_pyarrow_is_named_with_it(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    python_without("pyarrow", tmp_path).rename(tmp_path / PYTHON)
    error = fails_on_late_executor(tmp_path, tmp_path, made(str(tmp_path / "t"), {}), {}, record_property)
    assert error.facts["missing"] == ["pyarrow is not installed"]


def test_a_late_executor_without_python_is_named_with_it(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    error = fails_on_late_executor(tmp_path, tmp_path, made(str(tmp_path / "t"), {}), {}, record_property)
    assert error.facts["missing"] == [f"there is no {PYTHON}"]


def test_a_late_executor_without_the_client_of_the_tables_store_is_named_with_it(
    tmp_path: Path, record_property: Callable[[str, object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(s3.new_folder(), {})
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    python_without("botocore", tmp_path).rename(tmp_path / PYTHON)
    storage: dict[str, object] = {"storage_options": s3.plain_options()}
    error = fails_on_late_executor(tmp_path, tmp_path, table, storage, record_property)
    assert error.facts["missing"] == ["botocore is not installed"]
