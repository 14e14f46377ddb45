"""Jobs in processes of their own, and executors in others still: code and data reach them, and they die with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from airflow_txlog.contract import JobSpec, read_result, write_document
from airflow_txlog.engine import Table
from tests.jobs.tables import files_on_disk, ids, live_files, make_table, rows

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
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
    return JobSpec(
        operation="delete",
        table_uri=table.uri,
        arguments={"predicate": predicate},
        result_uri=str(folder / "result.json"),
        spark_conf=QUIET,
    )


@pytest.mark.spark
def test_a_child_process_runs_a_job_and_leaves_a_result(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    process = start(tmp_path, delete_spec(table, tmp_path, "id = 4"))
    output = finish(process)
    assert process.returncode == 0, output
    result = read_result(str(tmp_path / "result.json"))
    assert result is not None
    assert (result.status, result.version) == ("committed", 2)
    assert "1 row deleted -> version 2" in output
    assert ids(table) == [k for k in range(10) if k != 4]


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
    spec = JobSpec(operation="checkpoint", table_uri=table.uri, result_uri=str(tmp_path / "result.json"))
    process = start(tmp_path, spec, JAVA_HOME="/nowhere", PATH="/nowhere")
    output = finish(process)
    assert process.returncode == 0, output
    result = read_result(str(tmp_path / "result.json"))
    assert result is not None
    assert result.version == 1


@pytest.mark.spark
@pytest.mark.parametrize("how", ["end of standard input", "SIGTERM"])
def test_a_job_dies_with_its_parent(tmp_path: Path, how: str) -> None:
    table = make_table(tmp_path / "t", rows(10))
    # Long enough to be still at it: a row takes a millisecond, and there are many.
    slow = "length(repeat(name, 1000000)) > 0 AND aggregate(sequence(1, 200000000), 0L, (a, x) -> a + x) < 0"
    process = start(tmp_path, delete_spec(table, tmp_path, slow))
    assert process.stdout is not None
    for line in process.stdout:
        if "to scan" in line:
            break
    time.sleep(1)
    began_s = time.monotonic()
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        assert process.stdin is not None
        process.stdin.close()
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert time.monotonic() - began_s < 15
    assert read_result(str(tmp_path / "result.json")) is None
    assert table.snapshot().version == 1
    assert files_on_disk(table) >= live_files(table)


@pytest.mark.spark
def test_code_and_data_reach_separate_executors(tmp_path: Path) -> None:
    """On `local-cluster`: two executor processes whose Python workers find our code in the zip alone."""
    table = make_table(tmp_path / "t", rows(20), rows(20, start=20))
    # A copy of the package that executors cannot see: the driver's path is not theirs.
    script = tmp_path / "driver.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys

            sys.path.insert(0, {str(ROOT)!r})
            from airflow_txlog.contract import JobSpec
            from airflow_txlog.jobs.run import run_job
            from airflow_txlog.jobs.session import local_session

            spark = local_session({{
                "spark.master": "local-cluster[2,1,1024]",
                "spark.ui.enabled": "false",
                "spark.executor.memory": "1g",
                "spark.deploy.maxExecutorRetries": "-1",
            }})

            def where(batches):
                import pyarrow as pa
                import airflow_txlog.datafiles.tasks as tasks
                for batch in batches:
                    yield pa.record_batch({{"file": [tasks.__file__] * batch.num_rows}})

            uri = {table.uri!r}
            jobs = [
                ("delete", {{"predicate": "id % 10 = 3"}}),
                ("merge", {{
                    "source": {{"sql": "SELECT id * 7 AS id, 'new' AS name FROM range(8)"}},
                    "on": "t.id = s.id",
                    "clauses": [
                        {{"when": "matched", "then": "update", "set": {{"name": "s.name"}}}},
                        {{"when": "not_matched", "then": "insert", "values": {{"id": "s.id", "name": "s.name"}}}},
                    ],
                }}),
            ]
            for operation, arguments in jobs:
                result = run_job(JobSpec(operation=operation, table_uri=uri, arguments=arguments), spark)
                assert result.status == "committed", result.error
            files = {{row.file for row in spark.range(0, 4, 1, 4).mapInArrow(where, "file string").collect()}}
            print("LOADED FROM", files)
            spark.stop()
        """)
    )
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=clean, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOADED FROM")]
    assert "airflow_txlog-" in line
    assert ".zip/airflow_txlog/datafiles/tasks.py" in line
    expected = {k for k in range(40) if k % 10 != 3} | {k * 7 for k in range(8)}
    assert ids(table) == sorted(expected)
