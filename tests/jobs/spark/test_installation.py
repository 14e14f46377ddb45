"""A PySpark that cannot work fails a job before Spark starts, and the error names the package to install."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_txlog.contract.job import read_result, write_document
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.spark import installation
from airflow_txlog.jobs.spark.connect import ConnectTarget
from tests.helpers.paths import ROOT
from tests.helpers.specs import job_spec


def error_beside(folder: Path, tmp_path: Path, target: ConnectTarget | None = None) -> dict[str, object]:
    """The error of a job in a child process that finds `folder` before everything installed; `target`: over Connect."""
    result_uri = str(tmp_path / "result.json")
    arguments = {"source": {"sql": "SELECT 1 AS id"}}
    spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments=arguments, result_uri=result_uri)
    write_document(str(tmp_path / "spec.json"), spec.to_json())
    # Its standard input stays open: the child ends with it.
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "airflow_txlog.jobs",
            str(tmp_path / "spec.json"),
            *(["--session", "connect"] * bool(target)),
        ],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", **(target.environment() if target else {})},
        stdin=subprocess.PIPE,
    )
    assert child.wait(timeout=120) == 1
    result = read_result(result_uri)
    assert result is not None
    assert result.error is not None
    assert not (tmp_path / "t").exists()
    return result.error


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_two_versions_of_one_spark_are_refused_before_it_starts(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "pyspark", "4.3.0")
    install(site, "pyspark-client", "4.2.0")
    error = error_beside(site, tmp_path)
    assert error["type"] == "JobError"
    message = str(error["message"])
    assert message.startswith("pyspark 4.3.0 and pyspark-client 4.2.0 are both installed.")
    assert "'pyspark==4.2.0' 'pyspark-client==4.2.0'" in message


def test_a_client_without_a_spark_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    found = {"pyspark-client": "4.2.0"}
    monkeypatch.setattr(installation, "_version", found.get)
    with pytest.raises(JobError, match="without pyspark"):
        installation.check_has_jvm_side()
    found["pyspark"] = "4.2.0"
    installation.check_has_jvm_side()


def test_a_spark_that_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    absent = tmp_path / "site" / "pyspark"
    absent.mkdir(parents=True)
    (absent / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n")
    message = str(error_beside(tmp_path / "site", tmp_path)["message"])
    # The reason may be a mistake of the author's.
    assert message.startswith("The job needs Spark: the job evaluates SQL")
    assert "PySpark cannot be imported (ModuleNotFoundError: No module named 'pyspark')" in message
    assert "pip install 'airflow-provider-txlog[spark]'" in message


def test_a_client_that_lacks_a_package_is_named_with_the_extra_that_brings_it(tmp_path: Path) -> None:
    absent = tmp_path / "site" / "grpc"
    absent.mkdir(parents=True)
    (absent / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'grpc'\", name='grpc')\n")
    # Nothing listens there, and nothing is sent.
    error = error_beside(tmp_path / "site", tmp_path, ConnectTarget(url="sc://localhost:9", session_id="s"))
    assert error["type"] == "JobError"
    assert "pip install 'airflow-provider-txlog[connect]'" in str(error["message"])
    assert "[spark]" not in str(error["message"])


@pytest.mark.parametrize("absent", ["pyspark", "grpc", "grpc_status"])
def test_no_warm_spark_is_started_for_a_client_that_lacks_a_package(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_txlog.runners.warm import server

    monkeypatch.setattr(installation, "find_spec", lambda name: None if name == absent else object())
    monkeypatch.setattr(server, "_started", lambda *given: pytest.fail("a Spark was started"))
    with pytest.raises(JobError, match=rf"No module named '{absent}'.*airflow-provider-txlog\[connect\]"):
        server.lease_session({}, lambda line: None)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_room_is_named_as_the_reason_why_spark_does_not_start(number: int) -> None:
    assert "TMPDIR" in installation.start_advice(f"java.io.IOException: {os.strerror(number)}")
