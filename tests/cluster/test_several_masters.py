"""A standalone cluster whose address names two masters: one of them runs, or the second takes over from the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.airflow.racing import PLANNED
from tests.helpers.depth import by_hand
from tests.helpers.rows import make_table
from tests.helpers.submitting import executors_of, runner_of, submitted_spec
from tools.standalone_cluster import StandaloneCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("a Spark cluster of its own"),
    pytest.mark.long("a cluster of its own, and one application on it each"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path / "cluster", workers=1, standby=True) as started:
        yield started


def deleted(cluster: StandaloneCluster, folder: Path, also: object = None) -> tuple[Table, list[str]]:
    """A table of a hundred rows of which the job has deleted two, and the lines that it logged."""
    parts = [pa.table({"user_id": pa.array(range(start, start + 50), pa.int64())}) for start in (0, 50)]
    table, lines = make_table(folder, *parts), list[str]()

    def log(line: str) -> None:
        lines.append(line)
        if callable(also):
            also(line)

    spec = submitted_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "pmod(user_id, 50) = 42"})
    result = runner_of(cluster).run(spec, log=log)
    assert result.status == "committed", result.error
    assert sorted(table.to_arrow().column("user_id").to_pylist()) == [n for n in range(100) if n % 50 != 42]
    return table, lines


def applications(cluster: StandaloneCluster) -> list[str]:
    """Those that the master has seen to their end."""
    return [each["id"] for each in cluster.state()["completedapps"] if each["state"] == "FINISHED"]


@pytest.mark.parametrize("live", [pytest.param("first", marks=by_hand("the same, of the other master")), "second"])
def test_a_job_runs_on_the_one_master_that_listens(cluster: StandaloneCluster, tmp_path: Path, live: str) -> None:
    first, second = cluster.master.removeprefix("spark://").split(",")
    if live == "second":
        cluster.master = f"spark://{second},{first}"
    _, lines = deleted(cluster, tmp_path / "t")
    (application,) = applications(cluster)
    assert f"Spark application {application} on {cluster.master}" in lines


@by_hand("a cluster whose master is killed")
def test_a_job_whose_master_dies_goes_on_with_the_next_one(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """The executors die with it: those that the job ends with, the second master has started."""
    before, killed = cluster.pids[0], list[int]()

    def fail_over(line: str) -> None:
        if PLANNED in line and cluster.pids[0] == before:
            cluster.kill_master()
            for process in executors_of(cluster):
                process.kill()
                killed.append(process.pid)
            cluster.start_standby()

    deleted(cluster, tmp_path / "t", fail_over)
    assert killed
    assert cluster.pids[0] != before
    assert len(applications(cluster)) == 1
    # An address of which the first master is dead.
    deleted(cluster, tmp_path / "t2")
    assert len(applications(cluster)) == 2
