"""A job as a process: exit codes, work that needs no Java, and its end with the end of its standard input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import JobSpec, read_result, write_document
from airflow_txlog.engine import Table
from tests.helpers.jobs import files_on_disk, live_files, rows
from tests.helpers.paths import ROOT
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

QUIET = {"spark.ui.enabled": "false", "spark.master": "local[2]"}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def start(folder: Path, spec: JobSpec, **variables: str) -> subprocess.Popen[str]:
    """A job in a child process, its standard input held open by us."""
    write_document(str(folder / "spec.json"), spec.to_json())
    return subprocess.Popen(
        [sys.executable, "-m", "airflow_txlog.jobs", str(folder / "spec.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment() | variables,
        cwd=folder,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """The output of a process that ends by itself; its standard input stays open until then."""
    assert process.stdout is not None
    output = process.stdout.read()
    process.wait(timeout=180)
    return output


def delete_spec(table: Table, folder: Path, predicate: str) -> JobSpec:
    return job_spec(
        operation="delete",
        table_uri=table.uri,
        arguments={"predicate": predicate},
        result_uri=str(folder / "result.json"),
        spark_conf=QUIET,
    )


def test_a_spec_that_cannot_be_read_is_exit_code_1(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "airflow_txlog.jobs", str(tmp_path / "none.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    output = finish(process)
    assert process.returncode == 1
    assert "InvalidJobSpec" in output


def test_upkeep_runs_without_java(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    spec = job_spec(operation="checkpoint", table_uri=table.uri, result_uri=str(tmp_path / "result.json"))
    process = start(tmp_path, spec, JAVA_HOME="/nowhere", PATH="/nowhere")
    output = finish(process)
    assert process.returncode == 0, output
    result = read_result(str(tmp_path / "result.json"))
    assert result is not None
    assert result.version == 1


@pytest.mark.parametrize("has_reader", [False, True])
def test_a_job_prints_its_result_where_it_is_put_nowhere(tmp_path: Path, has_reader: bool) -> None:
    table = make_table(tmp_path / "t", rows(3))
    result_uri = str(tmp_path / "result.json") if has_reader else None
    spec = job_spec(operation="checkpoint", table_uri=table.uri, result_uri=result_uri)
    output = finish(start(tmp_path, spec))
    assert output.count(f"checkpoint {table.uri}: version 1 -> version 1; ") == (0 if has_reader else 1), output


def test_a_job_dies_when_its_standard_input_ends(tmp_path: Path) -> None:
    """As it does when its parent is killed: wherever it is, here where it waits for its spec."""
    os.mkfifo(tmp_path / "spec.json")
    process = subprocess.Popen(
        [sys.executable, "-m", "airflow_txlog.jobs", str(tmp_path / "spec.json")],
        stdin=subprocess.PIPE,
        env=environment(),
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=120) == 128 + signal.SIGTERM


@pytest.mark.spark
@pytest.mark.long("the child starts a Spark of its own")
def test_a_job_dies_when_its_standard_input_ends_in_the_middle_of_a_spark_job(tmp_path: Path) -> None:
    """What SIGTERM does is in tests/airflow/runners/test_real_children.py."""
    table = make_table(tmp_path / "t", rows(10))
    # Long enough to be still at it: a row takes a millisecond, and there are many.
    slow = "length(repeat(name, 1000000)) > 0 AND aggregate(sequence(1, 200000000), 0L, (a, x) -> a + x) < 0"
    process = start(tmp_path, delete_spec(table, tmp_path, slow))
    assert process.stdout is not None
    for line in process.stdout:
        if "to scan" in line:
            break
    time.sleep(1)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert read_result(str(tmp_path / "result.json")) is None
    assert table.snapshot().version == 1
    assert files_on_disk(table) >= live_files(table)


@pytest.mark.spark
@pytest.mark.long("two children, each with a Spark of its own")
def test_a_spark_with_settings_of_its_own_is_stopped_in_order_and_another_one_is_killed(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": [1, 2, 3]}))
    logs, temporary = tmp_path / "events", tmp_path / "temporary"
    logs.mkdir()
    temporary.mkdir()
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": logs.as_uri()}
    for number, spark_conf in enumerate([{}, conf], 1):
        spec = delete_spec(table, tmp_path, f"pmod(id, 1000) = {number}")
        spec = spec.replace(spark_conf=spark_conf, unrestricted=("query", "spark_conf"))
        process = start(tmp_path, spec, TMPDIR=str(temporary))
        assert "1 to delete" in finish(process)
        assert process.returncode == 0
        # Whichever way its JVM has ended, its files are gone.
        assert not list(temporary.glob("airflow-txlog-process-*"))
    names = [path.name for path in logs.rglob("*") if path.is_file()]
    assert names
    assert not [name for name in names if name.endswith(".inprogress")]
    assert Table.open(table.uri).to_arrow().column("id").to_pylist() == [3]
