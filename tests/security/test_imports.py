"""Alone in showing that a job imports no module that a file names, or that lies where its task happens to run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.runners.child_process import ChildProcessRunner
from tests.helpers.jobs import error_of, run
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_a_files_footer_imports_no_python_module(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "txlog_canary_of_a_footer"
    (tmp_path / f"{module}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"type": "udt", "pyClass": f"{module}.Type", "serializedClass": "", "sqlType": "long"}
    fields = [{"name": "id", "type": named, "nullable": True, "metadata": {}}]
    metadata = {"org.apache.spark.sql.parquet.row.metadata": json.dumps({"type": "struct", "fields": fields})}
    pq.write_table(pa.table({"id": [1, 2]}).replace_schema_metadata(metadata), tmp_path / "in.parquet")
    source: dict[str, Any] = {"format": "parquet", "path": str(tmp_path / "in.parquet")}
    error = error_of(run(spark, "write", tmp_path / "t", source=source))
    assert module not in sys.modules
    assert error["type"] == "InvalidJobSpec"


@pytest.mark.airflow
def test_a_job_imports_nothing_from_the_directory_that_its_task_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": [1]}))
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for module in ("msgspec", "pyarrow", "fsspec"):
        (hostile / f"{module}.py").write_text(f"open({str(hostile / 'canary')!r}, 'w')\n")
    monkeypatch.chdir(hostile)
    spec = job_spec(operation="checkpoint", table_uri=table.uri)
    assert ChildProcessRunner().run(spec, log=print).status in ("committed", "nothing_to_do")
    assert not (hostile / "canary").exists()


@pytest.mark.spark
@pytest.mark.parametrize("function", ["from_xml", "from_json", "from_csv"])
def test_a_type_in_a_querys_text_imports_no_python_module(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    module = f"txlog_canary_of_{function}"
    (tmp_path / f"{module}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"type": "udt", "pyClass": f"{module}.Type", "serializedClass": "", "sqlType": "string"}
    kind = json.dumps({"type": "struct", "fields": [{"name": "a", "type": named, "nullable": True, "metadata": {}}]})
    error = error_of(run(spark, "write", tmp_path / "t", source={"sql": f"SELECT {function}('<a/>', '{kind}') AS x"}))
    assert module not in sys.modules
    assert error["type"] == "InvalidJobSpec"
