"""Other users of the machine are served nothing on any port that the processes of a job listen on."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.runners.child_process import ChildProcessRunner
from airflow_txlog.runners.in_process import InProcessRunner
from airflow_txlog.runners.warm.runner import WarmRunner
from airflow_txlog.runners.warm.server import lease_session, stop_all
from tests.conftest import REPORTED
from tests.helpers.jobs import rows
from tests.helpers.neighbour import USERS, attacked, listening
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

# A job with a parameter that is its own secret, in this process; then it holds the result of a query that nobody reads.
JOB = """
import json, os, sys
from airflow_txlog.jobs.spark.session import local_session
from airflow_txlog.runners.in_process import InProcessRunner
from tests.helpers.specs import job_spec

conf = {"spark.driver.memory": "1g", "spark.master": "local[2]", "spark.jars": sys.argv[2]}
# Spark takes more than that, whatever a job asks for.
conf["spark.rpc.message.maxSize"] = "512"
spec = job_spec(
    operation="delete",
    table_uri=sys.argv[1],
    arguments={"predicate": "name = concat(:who, '') AND pmod(id, 7) >= 0", "parameters": {"who": "n3"}},
    spark_conf=conf,
    unrestricted=("spark_conf",),
)
status = InProcessRunner().run(spec, log=lambda line: None).status
spark = local_session(conf)
assert spark.range(0, 10**6, 1, 1).toArrow().num_rows == 10**6, "a large result of one task"
unread = spark.range(3)._jdf.collectToPython()
assert spark.range(3).mapInArrow(lambda batches: batches, "id long").count() == 3, "a worker"
print(json.dumps({"status": status, "application": spark.sparkContext.applicationId}), flush=True)
sys.stdin.read()
os._exit(0)
"""

# A Spark that no job has started. It holds a broadcast variable for as long as its query is referenced.
PLAIN_SPARK = """
import json, os, sys
from pyspark.sql import SparkSession

conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
kept = spark.sparkContext.broadcast([1])
spark.range(3).collect()
print(json.dumps({"application": spark.sparkContext.applicationId}), flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.fixture
def jar(tmp_path: Path) -> str:
    """A jar for a job's Spark, whose path is no URI."""
    (tmp_path / "of others").mkdir()
    path = tmp_path / "of others" / "50%.jar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return str(path)


@pytest.mark.spark
@pytest.mark.long("the attack that the next test shows to fail")
def test_a_spark_that_asks_no_secret_serves_its_blocks_and_takes_objects() -> None:
    """The attack that the next test shows to fail is one: this Spark has the settings that Spark has by itself."""
    plain = subprocess.Popen(
        [sys.executable, "-c", PLAIN_SPARK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert plain.stdout is not None
        told = json.loads(plain.stdout.readline())
        cases = attacked(listening([plain.pid]), user=USERS[0], application=told["application"])
    finally:
        plain.communicate("")
    assert {name for _, name, is_served in cases if is_served} == {
        "broadcast",
        "object in a block",
        "object in a message",
    }


@pytest.mark.spark
@pytest.mark.long("a Spark that is started as a job starts it")
def test_other_users_are_served_nothing_by_a_job(tmp_path: Path, jar: str, record_property: Any) -> None:
    table = make_table(tmp_path / "t", rows(10))
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, table.uri, jar], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert job.stdout is not None
        told = json.loads(job.stdout.readline())
        assert told["status"] == "committed"
        ports = listening([job.pid])
        # Spark's two, the gateway, an unread result; the accumulators' and the credentials'; the workers'.
        assert len(ports) >= 7, ports
        cases = [case for user in USERS for case in attacked(ports, user=user, application=told["application"])]
    finally:
        job.communicate("")
    assert [case for case in cases if case[2]] == []
    record_property(REPORTED, f"other users: {len(cases)} attempts, {len(ports)} ports of a job × {len(USERS)} users")


@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.long("a Spark Connect server, and two jobs on it at once")
def test_other_users_are_served_nothing_by_a_warm_server(
    tmp_path: Path, jar: str, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.setenv("TXLOG_WARM_FOLDER", str(tmp_path / "warm"))
    conf = {"spark.driver.memory": "1g", "spark.jars": jar}
    tables = [make_table(tmp_path / name, rows(10)) for name in ("s", "t")]

    def deleted(table: Table) -> str:
        arguments = {"predicate": "name = concat(:who, '') AND pmod(id, 7) >= 0", "parameters": {"who": "n3"}}
        spec = job_spec(
            operation="delete",
            table_uri=table.uri,
            arguments=arguments,
            spark_conf=conf,
            unrestricted=("spark_conf",),
        )
        return WarmRunner().run(spec, log=print).status

    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(deleted, tables)) == ["committed", "committed"]
        lease = lease_session(conf, print)
        lease.end(is_well=True)
        ports = listening([lease.server.keeper.pid])
        # Spark's two, the gateway, Connect's; the accumulators' and the workers' where they have one.
        assert len(ports) >= 4, ports
        assert lease.server.port in ports
        # No id of an application is asked for.
        cases = [case for user in USERS for case in attacked(ports, user=user, application="local-1")]
    finally:
        stop_all()
    assert [case for case in cases if case[2]] == []
    record_property(REPORTED, f"other users: {len(cases)} attempts, {len(ports)} ports of a warm server")


@pytest.mark.parametrize("runner", [ChildProcessRunner, InProcessRunner, WarmRunner])
@pytest.mark.parametrize(
    ("name", "value"),
    {
        "spark.authenticate": "false",
        "spark.authenticate.secret": "shared",
        "spark.ssl.rpc.enabled": "false",
        "spark.ssl.rpc.keyStore": "/etc/keys.p12",
        "spark.master": "local-cluster[2,1,768]",
    }.items(),
)
def test_a_setting_that_would_let_others_connect_is_refused_by_name(
    tmp_path: Path, runner: Any, name: str, value: str
) -> None:
    spec = job_spec(
        operation="delete",
        table_uri=str(tmp_path / "t"),
        arguments={"predicate": "pmod(id, 1000) = 1"},
        spark_conf={name: value},
        unrestricted=("spark_conf",),
    )
    with pytest.raises(InvalidJobSpec, match="Nothing was started") as caught:
        runner().run(spec, log=print)
    assert caught.value.facts["argument"] == f"spark_conf.{name}"
    assert value == "false" or name == "spark.master" or value not in str(caught.value)


@pytest.mark.spark
@pytest.mark.long("a Spark that is started as a job starts it")
def test_the_machines_defaults_turn_on_no_event_log_which_would_keep_bound_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("conf", "events"):
        (tmp_path / name).mkdir()
    defaults = f"spark.eventLog.enabled true\nspark.eventLog.dir file://{tmp_path}/events\n"
    (tmp_path / "conf" / "spark-defaults.conf").write_text(defaults)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    spec = job_spec(
        operation="delete",
        table_uri=make_table(tmp_path / "t", rows(10)).uri,
        arguments={"predicate": "name = concat(:who, '') AND pmod(id, 7) >= 0", "parameters": {"who": "n3"}},
    )
    assert ChildProcessRunner().run(spec, log=print).status == "committed"
    assert list((tmp_path / "events").iterdir()) == []
