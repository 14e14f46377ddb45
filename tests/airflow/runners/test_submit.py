"""The runner `submit` with a `spark-submit` that only writes down how it was called (tests/cluster has a real one)."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec, JobLost, SparkUnavailable
from airflow_txlog.jobs import __main__ as job_main
from airflow_txlog.jobs.spark.submitted import GATEWAY, submitted_session
from airflow_txlog.runners.base import SparkSubmit, make_runner, run_unless_done
from airflow_txlog.runners.submit import SubmitRunner
from airflow_txlog.storage.limits import SMALL_JOB
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

CANARY = "canary-2c90"
NOTES = """#!{python}
import json, os, sys
at = sys.argv.index("--properties-file") + 1
notes = dict(arguments=sys.argv, spec=open(sys.argv[-1]).read(), properties=open(sys.argv[at]).read(), **{{
    "again": open(sys.argv[at]).read(), "python": os.environ.get("PYSPARK_PYTHON")}})
open({folder!r} + "/notes.json", "w").write(json.dumps(notes))
print("Exception in thread: " + {canary!r}, file=sys.stderr)
print("Could not reserve enough space", file=sys.stderr)
sys.exit(1)
"""


@pytest.fixture
def users(tmp_path: Path) -> Table:
    return make_table(tmp_path / "users", pa.table({"user_id": pa.array(range(9), pa.int64())}))


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SubmitRunner:
    program = tmp_path / "spark-submit"
    program.write_text(NOTES.format(python=sys.executable, folder=str(tmp_path), canary=CANARY))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = make_runner("submit", SparkSubmit(master="yarn", command=("spark-submit", "--master", "yarn")))
    assert isinstance(found, SubmitRunner)
    return found


def notes_of(runner: SubmitRunner, tmp_path: Path, users: Table, **given: Any) -> dict[str, Any]:
    """How a job was submitted; its settings as a mapping."""
    spec = job_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": f"reverse('{CANARY}') = 'x'"},
        **given,
    )
    lines: list[str] = []
    with pytest.raises(
        SparkUnavailable, match=r"spark-submit ended before the delete job began \(exit code 1\)"
    ) as found:
        runner.run(spec, log=lines.append)
    assert lines[0] == f"starting Spark: spark-submit --master {runner._cluster.master}"
    assert "Could not reserve enough space" in str(found.value)
    assert CANARY not in str(found.value)
    assert not found.value.retryable
    notes = dict(json.loads((tmp_path / "notes.json").read_text()))
    assert notes["properties"] == notes["again"], "Spark reads the file twice"
    plain = re.sub(r"\\u([0-9a-f]{4})", lambda code: chr(int(code[1], 16)), notes["properties"])
    return notes | {"settings": dict(line.split("=", 1) for line in plain.splitlines())}


def test_settings_and_secrets_are_in_a_file_and_nothing_of_the_job_in_the_command_line(
    runner: SubmitRunner, tmp_path: Path, users: Table
) -> None:
    conf = {"spark.my.setting": CANARY, "spark.executor.memory": "3g"}
    notes = notes_of(runner, tmp_path, users, spark_conf=conf, unrestricted=("spark_conf",))
    words = notes["arguments"]
    assert words[1:3] == ["--master", "yarn"]
    assert [word for word in words[3:] if not word.startswith("/dev/fd/")] == [
        "--properties-file",
        "--load-spark-defaults",
        str(Path(job_main.__file__).with_name("submitted_main.py")),
    ]
    assert conf.items() <= notes["settings"].items()
    assert notes["settings"]["spark.txlog.master"] == "yarn"
    assert notes["settings"]["spark.app.name"] == "airflow_txlog delete"
    assert {"spark.master", "spark.driver.host"}.isdisjoint(notes["settings"]), "defaults of a local Spark"
    assert CANARY in notes["spec"]


def test_executors_have_another_python_than_the_driver_where_one_is_named(
    runner: SubmitRunner, tmp_path: Path, users: Table
) -> None:
    conf = {"spark.pyspark.python": "./env/bin/python"}
    settings = notes_of(runner, tmp_path, users, spark_conf=conf, unrestricted=("spark_conf",))["settings"]
    assert settings["spark.pyspark.python"] == "./env/bin/python"
    assert settings["spark.pyspark.driver.python"] == sys.executable


@pytest.mark.parametrize(
    ("master", "more", "is_closed"),
    [("local[2]", (), True), ("local[2]", ("--conf", "spark.jars=/a.jar"), False), ("yarn", (), False)],
)
def test_the_ports_of_a_spark_in_one_process_are_closed_unless_it_fetches_jars_by_them(
    runner: SubmitRunner, tmp_path: Path, users: Table, master: str, more: tuple[str, ...], is_closed: bool
) -> None:
    local = SubmitRunner(SparkSubmit(master=master, command=("spark-submit", "--master", master, *more)))
    settings = notes_of(local, tmp_path, users)["settings"]
    assert (settings.get("spark.ssl.rpc.enabled"), settings.get("spark.authenticate")) == (
        ("true", "true") if is_closed else (None, None)
    )


@pytest.mark.parametrize("connection", [None, "lake"])
def test_executors_are_to_have_an_identity_of_their_own_where_a_job_names_a_connection(
    runner: SubmitRunner, tmp_path: Path, users: Table, connection: str | None
) -> None:
    settings = notes_of(runner, tmp_path, users, storage_conn_id=connection)["settings"]
    assert settings.get("spark.executorEnv.TXLOG_CREDENTIALS") == (connection and "own")


@pytest.mark.parametrize("name", ["spark.master", "spark.submit.deployMode"])
def test_a_setting_that_the_connection_decides_is_refused(runner: SubmitRunner, users: Table, name: str) -> None:
    spec = job_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "user_id = 1"},
        spark_conf={name: "local"},
        unrestricted=("spark_conf",),
    )
    with pytest.raises(InvalidJobSpec, match="the connection decides") as caught:
        runner.run(spec, log=print)
    assert caught.value.argument == f"spark_conf.{name}"


def test_a_program_that_is_not_there_is_an_error_with_advice(users: Table) -> None:
    runner = SubmitRunner(SparkSubmit(master="yarn", command=("spark9-submit", "--master", "yarn")))
    spec = job_spec(operation="delete", table_uri=users.uri, arguments={"predicate": "pmod(user_id, 1000) = 1"})
    with pytest.raises(SparkUnavailable, match=r"There is no spark9-submit on the PATH.*pip install"):
        runner.run(spec, log=print)


def test_the_next_start_of_spark_waits_for_the_driver_and_not_for_its_job(
    users: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    monkeypatch.setenv("TXLOG_SPARK_STARTS", "1")
    monkeypatch.setenv("TXLOG_SPARK_STARTS_FOLDER", str(starts))
    # On a local master no line names an application.
    words = f"print('begins', flush=True); print('delete {users.uri}', flush=True); print('works', flush=True)"
    runner = SubmitRunner(SparkSubmit(master="local[1]", command=(sys.executable, "-c", words)))
    held: dict[str, int] = {}

    def log(line: str) -> None:
        held[line] = len([path for path in starts.iterdir() if path.name.isdecimal()])

    spec = job_spec(operation="delete", table_uri=users.uri, arguments={"predicate": "reverse('a') = 'x'"})
    with pytest.raises(SparkUnavailable):
        runner.run(spec, log=log)
    assert (held["begins"], held["works"]) == (1, 0)


def test_a_job_without_sql_needs_no_cluster(users: Table) -> None:
    runner = SubmitRunner(SparkSubmit(master="spark://127.0.0.1:1", command=("none",)))
    spec = job_spec(operation="truncate", table_uri=users.uri, arguments={})
    assert runner.run(spec, log=print).status == "committed"
    assert users.to_arrow().num_rows == 0


def test_a_small_delete_by_keys_needs_no_cluster_and_a_larger_one_does(
    users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = SubmitRunner(SparkSubmit(master="spark://127.0.0.1:1", command=("spark9-submit",)))
    keys = {"predicate": None, "keys": {"column": "user_id", "values": [2]}}
    spec = job_spec(operation="delete", table_uri=users.uri, arguments=keys)
    assert runner.run(spec, log=print).metrics["numDeletedRows"] == 1
    monkeypatch.setenv(SMALL_JOB.setting, "1")
    lines: list[str] = []
    with pytest.raises(SparkUnavailable, match="There is no spark9-submit"):
        runner.run(spec, log=lines.append)
    assert any(line.startswith("The job needs Spark: 1 file of") for line in lines)


def test_what_a_job_logs_before_it_needs_spark_is_logged_once_unless_it_comes_to_it_again(
    runner: SubmitRunner, users: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SMALL_JOB.setting, "1")
    keys = {"predicate": None, "keys": {"column": "user_id", "values": [2]}}
    spec = job_spec(operation="delete", table_uri=users.uri, arguments=keys)
    first, started = f"delete {users.uri}", "Spark application app-1 on yarn"
    # The driver begins anew, comes to a line of the try once more, and ends without a result.
    driver = [first, started, first]
    (tmp_path / "spark-submit").write_text(f"#!{sys.executable}\nprint({chr(10).join(driver)!r})\n")
    lines: list[str] = []
    with pytest.raises(JobLost):
        runner.run(spec, log=lines.append)
    needed = next(line for line in lines if line.startswith("The job needs Spark: 1 file of"))
    assert lines == [first, needed, "starting Spark: spark-submit --master yarn", started, first]


@pytest.mark.parametrize("try_number", [1, 2])
def test_a_retry_of_work_that_is_done_needs_no_cluster(users: Table, try_number: int) -> None:
    spec = job_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 1000) = 1"},
        application=ApplicationTransaction(app_id="a", version=1),
        annotations={"try_number": try_number},
    )
    tx = users.begin()
    tx.add(path="a.parquet", partition_values={}, size=1, modification_time=1, stats=None)
    tx.set_application("a", 1)
    version = tx.commit("DELETE", {}, {}, tags=spec.commit_tags())
    runner = SubmitRunner(SparkSubmit(master="spark://127.0.0.1:1", command=("spark-submit",)))
    if try_number == 1:
        # Only the job itself can know: a first try is not looked up.
        with pytest.raises(SparkUnavailable):
            run_unless_done(runner, spec, log=print)
    else:
        result = run_unless_done(runner, spec, log=print)
        assert (result.status, result.version) == ("already_done", version)


# --- the driver -----------------------------------------------------------------------------------------------------


def test_a_driver_that_spark_submit_did_not_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GATEWAY, raising=False)
    with pytest.raises(InvalidJobSpec, match="spark-submit did not start its process"):
        submitted_session({})


def test_under_spark_submit_the_usual_session_is_the_submitted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m airflow_txlog.jobs` by hand: a local Spark of ours would not be on the cluster that was asked for."""
    monkeypatch.delenv(GATEWAY, raising=False)
    assert job_main._usual_session() == "local"
    monkeypatch.setenv(GATEWAY, "1")
    assert job_main._usual_session() == "submitted"
