"""Real drivers that outlive the task which submitted them, on a standalone cluster: the same code as in cluster mode.

`spark-submit` starts them detached, in client mode, as no cluster here runs Python drivers itself. The description of
the job and its result travel through the table's folder, on a local disk and on an object store.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidPredicate, JobLost
from tests.cluster.test_cluster_mode import KEY, Waiting, killed_worker
from tests.helpers import s3
from tests.helpers.depth import by_hand
from tests.helpers.driver_elsewhere import DetachedCluster
from tests.helpers.paths import ROOT
from tests.helpers.rows import append, make_table
from tests.helpers.submitting import eventually, submitted_spec
from tools.standalone_cluster import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.long("an application on the cluster for each driver")]

USERS = pa.table({"user_id": pa.array(range(100), pa.int64())})
LEFT = [n for n in range(100) if n != 42]
# An application takes minutes to begin on a busy machine.
SECONDS = 240.0


@pytest.fixture(params=[pytest.param("local", marks=by_hand("the same on a disk")), "s3"])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    if request.param == "local":
        return make_table(tmp_path / "users", USERS)
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    made = Table.create(s3.new_folder(), USERS.schema, storage_options=s3.plain_options())
    append(made, USERS)
    return made


@pytest.fixture
def elsewhere(cluster: StandaloneCluster, tmp_path: Path) -> Iterator[DetachedCluster]:
    played = DetachedCluster(tmp_path / "cluster", master=cluster.master, environment=s3.environment())
    yield played
    played.end()


def spec_of(table: Table, predicate: str = "pmod(user_id, 100) = 42", **given: Any) -> JobSpec:
    return submitted_spec(
        operation="delete",
        table_uri=table.uri,
        arguments={"predicate": predicate},
        application=ApplicationTransaction(app_id="test/elsewhere", version=1),
        saved_work_key=KEY,
        storage_options=dict(table.store.access.storage_options),
        **given,
    )


def logged(elsewhere: DetachedCluster, number: int, line: str) -> bool:
    homes = list(elsewhere.homes().values())
    return len(homes) > number and line in (homes[number] / "log").read_text(errors="replace")


def has_saved(table: Table) -> bool:
    """Whether a job has written down, to the last byte, what it has staged. Its name says how long it is."""
    found = Path(table.uri.removeprefix("file://")).glob("*/memory-*.arrow")
    return any(path.stat().st_size == int(path.name.rsplit("-", 3)[1]) for path in found)


def test_a_job_whose_worker_is_killed_goes_on_and_its_retry_gets_the_result(
    elsewhere: DetachedCluster, cluster: StandaloneCluster, table: Table, tmp_path: Path
) -> None:
    folder, master = str(elsewhere.folder), cluster.master
    environment = dict(s3.environment())
    code = f"DetachedCluster(Path({folder!r}), master={master!r}, environment={environment!r})"
    killed_worker(elsewhere, spec_of(table), tmp_path, "Spark application app-", code)
    lines: list[str] = []
    result = elsewhere.runner().run(spec_of(table), log=lines.append)
    assert (result.status, result.version) == ("committed", 2)
    assert any("an earlier try has submitted" in line for line in lines)
    assert len(elsewhere.homes()) == 1
    assert sorted(table.to_arrow().column("user_id").to_pylist()) == LEFT


@by_hand("another application on the cluster; a task's retry after its worker was killed is run")
@pytest.mark.parametrize("table", ["local"], indirect=True)
def test_the_retry_of_a_lost_driver_goes_on_from_what_it_had_saved(elsewhere: DetachedCluster, table: Table) -> None:
    task = Waiting(elsewhere, spec_of(table))
    eventually(lambda: has_saved(table) or table.latest_version() == 2, "its work is saved", SECONDS)
    elsewhere.kill(*elsewhere.homes())
    task.over()
    if table.latest_version() == 1:
        assert isinstance(task.error, JobLost)
        assert task.error.retryable
    result = elsewhere.runner().run(spec_of(table), log=print)
    assert result.status in ("committed", "already_done")
    if result.status == "committed":
        assert logged(elsewhere, 1, "resuming an earlier try")
    assert sorted(table.to_arrow().column("user_id").to_pylist()) == LEFT


@by_hand("two more applications on the cluster")
@pytest.mark.parametrize("table", ["local"], indirect=True)
def test_a_cancelled_driver_ends_and_commits_nothing_and_a_failure_keeps_its_class(
    elsewhere: DetachedCluster, table: Table
) -> None:
    task = Waiting(elsewhere, spec_of(table))
    task.until("Spark application app-", SECONDS)
    task.runner.kill()
    task.over()
    assert isinstance(task.error, JobLost)
    assert "was cancelled" in str(task.error)
    assert table.latest_version() == 1
    with pytest.raises(InvalidPredicate):
        elsewhere.runner().run(spec_of(table, "user_id = 1)"), log=print)


def test_a_driver_without_settings_of_a_task_does_nothing(tmp_path: Path) -> None:
    from airflow_txlog.jobs import cluster_main

    program = Path(sys.executable).with_name("spark-submit")
    words = [str(program), "--master", "local[1]", cluster_main.__file__]
    done = subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "it was not submitted by a task. Nothing was done." in done.stdout
