"""Executors that come and go while a job runs or lose what they shuffled, and tasks that run twice at once: rows exact,
no orphan committed.

Its cluster has workers with an address each: Spark runs no second copy of a task on the host of the first.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from tests.helpers.depth import by_hand
from tests.helpers.jobs import by_id, files_on_disk, live_files
from tests.helpers.submitting import eventually, executors_of, runner_of, submitted_spec
from tests.jobs.executors.test_executors import named_in_log
from tests.jobs.stores.test_jobs_on_s3 import made
from tools.standalone_cluster import StandaloneCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long("a cluster of its own"),
    by_hand("a cluster of its own, and an application for each way to lose an executor"),
]
FAULTS = Path(__file__).parents[1] / "jobs" / "executors" / "faults"


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where trouble is ordered for a task (`faults/sitecustomize.py`)."""
    return tmp_path_factory.mktemp("orders")


@pytest.fixture(scope="module")
def local_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where executors keep what they shuffle."""
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, orders: Path, local_folder: Path) -> Iterator[StandaloneCluster]:
    places = {"TXLOG_FAULTS": str(orders), "SPARK_LOCAL_DIRS": str(local_folder)}
    environment = {"PYTHONPATH": str(FAULTS), **places}
    folder = tmp_path_factory.mktemp("apart")
    with StandaloneCluster(folder, workers=2, environment=environment, apart=True) as started:
        yield started


def deleted(cluster: StandaloneCluster, table: Table, conf: dict[str, str], log: object = print) -> JobResult:
    spec = submitted_spec(
        operation="delete", table_uri=table.uri, arguments={"predicate": "pmod(id, 5) = 3"}, spark_conf=conf
    )
    result = runner_of(cluster).run(spec, log=log)  # type: ignore[arg-type]
    assert result.status == "committed", result.error
    assert sorted(by_id(table)) == [number for number in range(20) if number % 5 != 3]
    assert live_files(table) <= files_on_disk(table)
    return result


def test_of_two_copies_of_a_task_that_both_staged_one_is_committed(
    cluster: StandaloneCluster, orders: Path, tmp_path: Path
) -> None:
    """The first copy waits when it has written its file, so that Spark starts a second one on the other host."""
    table = made(str(tmp_path / "t"), {})
    (orders / "staged.wait").touch()
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        # A stage of one task has no others to be slower than.
        "spark.speculation.task.duration.threshold": "3s",
    }
    deleted(cluster, table, speculation)
    assert (orders / "staged.wait.obeyed").exists(), "a copy waited"
    orphans = files_on_disk(table) - named_in_log(table)
    assert orphans, "the copy that waited had written its file"
    assert not orphans & live_files(table)


def test_executors_that_are_decommissioned_hand_their_work_on(cluster: StandaloneCluster, tmp_path: Path) -> None:
    table, left = made(str(tmp_path / "t"), {}), list[int]()

    def decommission(line: str) -> None:
        if "to delete in" in line and not left:
            for process in executors_of(cluster)[:1]:
                # What Spark's worker sends to an executor whose node is about to be taken away.
                os.kill(process.pid, signal.SIGPWR)
                left.append(process.pid)

    conf = {"spark.decommission.enabled": "true", "spark.storage.decommission.enabled": "true"}
    deleted(cluster, table, conf, decommission)
    assert left
    eventually(lambda: left[0] not in {each.pid for each in executors_of(cluster)}, "it stayed")


def test_executors_that_dynamic_allocation_takes_away_and_brings_cost_no_row(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    table, seen = made(str(tmp_path / "t"), {}), set[int]()
    dynamic = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.cachedExecutorIdleTimeout": "1s",
    }

    def look(line: str) -> None:
        seen.update(process.pid for process in executors_of(cluster))

    deleted(cluster, table, dynamic, look)
    assert seen


def test_rows_whose_shuffle_files_are_lost_are_computed_again(
    cluster: StandaloneCluster, local_folder: Path, tmp_path: Path
) -> None:
    """What the first map task of the merge's new rows has written is deleted before the tasks after it read it."""
    table, lost, over = made(str(tmp_path / "t"), {}), list[Path](), threading.Event()

    def lose_what_is_shuffled() -> None:
        while not lost and not over.wait(0.002):
            for index in local_folder.rglob("shuffle_*.index"):
                index.with_suffix(".data").unlink(missing_ok=True)
                index.unlink()
                lost.append(index)

    def begin(line: str) -> None:
        if "to delete in" in line and not loser.is_alive():
            loser.start()

    loser = threading.Thread(target=lose_what_is_shuffled, daemon=True)
    events = tmp_path / "events"
    events.mkdir()
    spec = submitted_spec(
        operation="merge",
        table_uri=table.uri,
        arguments={
            "source": {"sql": "SELECT id, DATE'2024-01-09' AS day, 'new' AS name, 2D AS amount FROM range(10, 40)"},
            "on": "pmod(t.id, 1000L) = s.id",
            "clauses": [
                {"when": "matched", "then": "update", "set": {"name": "concat(s.name, reverse(reverse(t.id)))"}},
                {"when": "not_matched", "then": "insert", "values": "*"},
            ],
        },
        spark_conf={
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{events}",
            "spark.eventLog.compress": "false",
        },
    )
    try:
        result = runner_of(cluster).run(spec, log=begin)
    finally:
        over.set()
    assert lost, "nothing was shuffled"
    logged = [json.loads(line) for path in events.rglob("events_*") for line in path.open()]
    ends = [each["Task End Reason"]["Reason"] for each in logged if each["Event"] == "SparkListenerTaskEnd"]
    assert "FetchFailed" in ends
    assert result.status == "committed", result.error
    names = {row["id"]: row["name"] for row in table.to_arrow().select(["id", "name"]).to_pylist()}
    before = {number: f"n{number}" for number in range(10)}
    assert names == before | {n: f"new{n}" for n in range(10, 20)} | dict.fromkeys(range(20, 40), "new")
    assert table.to_arrow().num_rows == 40
    assert live_files(table) <= files_on_disk(table)
