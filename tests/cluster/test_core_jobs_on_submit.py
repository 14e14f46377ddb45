"""The core of the job suite on a cluster by the runner `submit` leaves the rows that it leaves on a local Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import JobResult
from tests.airflow.racing import PLANNED
from tests.cluster.core_jobs import CORE, leave_equal_rows
from tests.helpers import s3
from tests.helpers.depth import WHOLE, by_hand
from tests.helpers.jobs import by_id, delete, insert, live_files, update
from tests.helpers.submitting import executors_of, runner_of, submitted_spec
from tests.jobs.stores.test_jobs_on_s3 import VECTORS, made
from tools.standalone_cluster import StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long("an application on the cluster for each of a dozen jobs")]


def submitted(
    cluster: StandaloneCluster, operation: str, uri: str, arguments: dict[str, Any], **more: Any
) -> JobResult:
    spec = submitted_spec(operation=operation, table_uri=uri, arguments=arguments, **more)
    return runner_of(cluster).run(spec, log=print)


@by_hand("six applications on the cluster; the next test has a merge")
@pytest.mark.parametrize("properties", [{}, VECTORS], ids=["plain", "vectors and change feed"])
def test_every_core_job_leaves_equal_rows_and_equal_changes(
    cluster: StandaloneCluster, spark: SparkSession, tmp_path: Path, properties: dict[str, str]
) -> None:
    there, here = made(str(tmp_path / "there"), properties), made(str(tmp_path / "here"), properties)

    def do(operation: str, arguments: dict[str, Any]) -> JobResult:
        return submitted(cluster, operation, there.uri, arguments)

    leave_equal_rows(do, there, here, spark, CORE)


@by_hand("two jobs more, on another kind of store")
def test_on_a_store_the_driver_has_the_connections_identity_and_executors_their_own(
    cluster: StandaloneCluster, spark: SparkSession, tmp_path: Path, connection: str
) -> None:
    """Without Hadoop's connectors. The workers of the cluster have keys in their environment; the driver has none."""
    properties = VECTORS if WHOLE else {}
    there, here = made(s3.new_folder(), properties), made(str(tmp_path / "here"), properties)
    given = {"storage_options": s3.plain_options(), "storage_conn_id": connection}

    def do(operation: str, arguments: dict[str, Any]) -> JobResult:
        return submitted(cluster, operation, there.uri, arguments, **given)

    leave_equal_rows(do, there, here, spark, CORE if WHOLE else [CORE[4]])


MOMENTS = {"source": "the source has", "find": PLANNED, "rewrite": "to delete in", "commit": "staged "}
"""What a merge says before it matches, while it does, before it rewrites, and before it commits."""


@pytest.mark.parametrize(
    ("when", "after_s"),
    [
        *(pytest.param(when, 0.0, marks=by_hand("another moment")) for when in ("source", "find", "commit")),
        pytest.param("find", 0.5, marks=by_hand("another moment")),
        ("rewrite", 0.0),
    ],
)
def test_an_executor_that_is_killed_costs_no_row_and_leaves_no_orphan_in_the_log(
    cluster: StandaloneCluster, tmp_path: Path, when: str, after_s: float
) -> None:
    table = made(str(tmp_path / "t"), {})
    killed: list[int] = []

    def kill_executors(line: str) -> None:
        if not killed and MOMENTS[when] in line:
            time.sleep(after_s)
            for process in executors_of(cluster):
                process.kill()
                killed.append(process.pid)

    arguments = {
        # A condition that Spark joins by, with a shuffle, and new values that it computes.
        "source": {"sql": "SELECT id * 2 AS id, concat('s', id) AS name FROM range(12)"},
        "on": "t.id = s.id AND reverse(t.name) <> s.name",
        "clauses": [
            delete(condition="pmod(t.id, 4) = 0"),
            update({"name": "reverse(concat('!', reverse(s.name)))"}),
            insert({"id": "s.id", "name": "s.name"}),
        ],
    }
    spec = submitted_spec(
        operation="merge",
        table_uri=table.uri,
        arguments=arguments,
        spark_conf={"spark.sql.autoBroadcastJoinThreshold": "-1"},
    )
    result = runner_of(cluster).run(spec, log=kill_executors)
    assert killed
    assert result.status == "committed"
    kept = {number: f"n{number}" for number in range(20) if number % 2}
    changed = {number: f"s{number // 2}!" for number in range(2, 20, 4)}
    assert by_id(table) == kept | changed | {20: "s10", 22: "s11"}
    assert all((tmp_path / "t" / path).is_file() for path in live_files(table))
    assert table.latest_version() == 3
