"""The in-process runner: one warm Spark, stopped jobs, and a session that is not ours."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec, TxlogError
from airflow_txlog.runners.in_process import InProcessRunner
from airflow_txlog.storage import Access
from tests.helpers import s3
from tests.helpers.paths import ROOT
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def write(folder: Path, sql: str, **spark_conf: str) -> JobSpec:
    return job_spec(
        operation="write",
        table_uri=str(folder / "t"),
        arguments={"source": {"sql": sql, "views": {}}},
        spark_conf=spark_conf,
    )


def test_kill_cancels_the_running_spark_job_and_leaves_no_commit(spark: SparkSession, tmp_path: Path) -> None:
    # A hundred billion pairs: nobody waits for these. (And their greatest product fits: nothing but the kill ends it.)
    endless = "SELECT max(a.id * b.id) AS x FROM range(1000000) a CROSS JOIN range(100000) b WHERE a.id % 7 <> b.id % 7"
    runner = InProcessRunner()
    ended: list[BaseException] = []

    def job() -> None:
        try:
            runner.run(write(tmp_path, endless), log=lambda line: None)
        except TxlogError as error:
            ended.append(error)

    thread = threading.Thread(target=job)
    thread.start()
    deadline = time.monotonic() + 60
    while not spark.sparkContext.statusTracker().getActiveJobsIds():
        assert time.monotonic() < deadline, "the job did not start"
        time.sleep(0.1)
    runner.kill()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert len(ended) == 1
    assert not Table.exists(str(tmp_path / "t"))


def test_a_session_that_was_there_is_neither_stopped_nor_changed(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spec = write(tmp_path, "SELECT 1 AS a").replace(time_zone="America/New_York")
    assert InProcessRunner().run(spec, log=lambda line: None).version == 0
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.range(3).count() == 3


def test_a_setting_that_only_a_start_can_change_is_refused_and_not_ignored(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidJobSpec, match=r"spark\.driver\.memory"):
        InProcessRunner().run(write(tmp_path, "SELECT 1 AS a", **{"spark.driver.memory": "7g"}), log=print)


def test_kill_without_a_running_job_does_nothing() -> None:
    InProcessRunner().kill()


def test_a_session_of_others_whose_workers_could_not_get_the_credentials_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    spec = write(tmp_path, "SELECT 1 AS a").replace(access=Access(storage_conn_id="lake"))
    with pytest.raises(InvalidJobSpec, match=r"credentials of the connection 'lake'.*Take runner="):
        InProcessRunner().run(spec, log=lambda line: None)
    assert not Table.exists(str(tmp_path / "t"))


_APPENDS = """
import os, sys
from airflow_txlog.runners.in_process import InProcessRunner
from airflow_txlog.storage.credentials import TOKEN, URL, Credentials, offer
from tests.helpers import s3
from tests.helpers.specs import job_spec

options = s3.options()
keys = {"access_key": options.pop("key"), "secret_key": options.pop("secret")}
offer("lake", lambda: Credentials(kind="aws", values=keys))
source = {"sql": "SELECT id AS user_id FROM range(10)", "views": {}}
given = {"storage_options": options, "storage_conn_id": "lake"}
spec = job_spec(operation="write", table_uri=sys.argv[1], arguments={"source": source}, **given)
result = InProcessRunner().run(spec, log=print)
assert result.status == "committed", result
assert not {URL, TOKEN} & set(os.environ)
"""


@pytest.mark.long("a process of its own with a Spark of its own; test_on_an_object_store shows the same of a child")
def test_the_workers_of_a_session_that_is_started_here_get_the_credentials() -> None:
    uri = s3.new_folder()
    subprocess.run([sys.executable, "-c", _APPENDS, uri], cwd=ROOT, check=True)
    table = Table.open(uri, storage_options=s3.options())
    assert sorted(table.to_arrow()["user_id"].to_pylist()) == list(range(10))
