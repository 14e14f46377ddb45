"""Sessions: made or borrowed, isolated, never stopped by a borrower; and the code that travels to workers."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.spark import session
from airflow_txlog.jobs.spark.session import (
    MEANING,
    check_meaning,
    default_parallelism,
    job_settings,
    local_session,
    session_settings,
)
from airflow_txlog.jobs.spark.shipping import executor_zip
from tests.helpers.paths import ROOT
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_a_running_spark_is_borrowed_in_a_session_of_its_own(spark: SparkSession) -> None:
    spark.sql("SELECT 1 AS x").createOrReplaceTempView("seen_by_its_owner_only")
    borrowed = local_session({"spark.sql.shuffle.partitions": "7"})
    assert borrowed is not spark
    assert borrowed.sparkContext is spark.sparkContext
    assert borrowed.conf.get("spark.sql.shuffle.partitions") == "7"
    assert spark.conf.get("spark.sql.shuffle.partitions") != "7"
    assert not borrowed.catalog.tableExists("seen_by_its_owner_only")
    spark.catalog.dropTempView("seen_by_its_owner_only")


@pytest.mark.spark
def test_a_static_setting_that_cannot_be_honoured_is_an_error(spark: SparkSession) -> None:
    running = spark.conf.get("spark.driver.memory")
    assert local_session({"spark.driver.memory": str(running)})
    with pytest.raises(InvalidJobSpec, match="child process") as caught:
        local_session({"spark.driver.memory": "77g"})
    assert caught.value.argument == "spark_conf.spark.driver.memory"


@pytest.mark.spark
def test_what_we_add_to_the_jvms_options_is_not_asked_of_the_next_job(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the first of the options that this Spark has were ours, and the others the job's.
    ours, asked = str(spark.conf.get("spark.driver.extraJavaOptions")).split(" ", 1)
    monkeypatch.setattr(session, "_with_ours", lambda options: f"{ours} {options}".strip())
    assert local_session({"spark.driver.extraJavaOptions": asked})
    with pytest.raises(InvalidJobSpec, match="child process"):
        local_session({"spark.driver.extraJavaOptions": f"{asked} -Dother=1"})


@pytest.mark.spark
def test_the_jobs_settings_are_put_back(spark: SparkSession) -> None:
    names = ("spark.sql.session.timeZone", "spark.sql.caseSensitive", "spark.sql.execution.arrow.maxRecordsPerBatch")
    before = {name: spark.conf.get(name) for name in names}
    spark.conf.set("spark.sql.caseSensitive", "true")
    with job_settings(spark, "Asia/Tokyo"):
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert spark.conf.get("spark.sql.caseSensitive") == "false"
    assert spark.conf.get("spark.sql.caseSensitive") == "true"
    spark.conf.set("spark.sql.caseSensitive", before["spark.sql.caseSensitive"])
    assert {name: spark.conf.get(name) for name in names} == before


@pytest.mark.spark
def test_jobs_obey_their_hints_whatever_the_session_says(spark: SparkSession) -> None:
    with session_settings(spark, {"spark.sql.optimizer.disableHints": "true"}), job_settings(spark, "UTC"):
        joined = spark.sql("SELECT /*+ MERGE(b) */ * FROM range(9) AS a JOIN range(9) AS b ON a.id = b.id")
        assert "SortMergeJoin" in joined._jdf.queryExecution().executedPlan().toString()


@pytest.mark.spark
def test_as_many_tasks_run_as_there_are_cores(spark: SparkSession) -> None:
    assert default_parallelism(spark) == spark.sparkContext.defaultParallelism


_POOL_OF_WORKER = """
    import pyarrow as pa
    from airflow_txlog.jobs.spark.session import local_session

    def pool(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pool": [pa.default_memory_pool().backend_name]})

    print(local_session({}).range(0, 1, 1, 1).mapInArrow(pool, "pool string").collect()[0][0])
"""


@pytest.mark.spark
@pytest.mark.long("two Sparks of their own")
@pytest.mark.parametrize(("chosen", "found"), [("", "jemalloc"), ("system", "system")])
def test_the_workers_of_our_spark_take_arrows_memory_as_a_job_does(chosen: str, found: str) -> None:
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": chosen}
    command = [sys.executable, "-c", textwrap.dedent(_POOL_OF_WORKER)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == found


# --- the zip --------------------------------------------------------------------------------------------------------


def test_the_zip_is_named_by_its_content_and_equal_each_time() -> None:
    name, content = executor_zip()
    assert executor_zip() == (name, content)
    assert name.startswith("airflow_txlog-")
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert {
        "airflow_txlog/__init__.py",
        "airflow_txlog/clock.py",
        "airflow_txlog/errors/__init__.py",
        "airflow_txlog/datafiles/tasks/scan_and_write.py",
    } <= set(names)
    folders = tuple(f"airflow_txlog/{name}/" for name in ("datafiles", "errors", "sql", "storage"))
    others = [name for name in names if not name.startswith(folders)]
    assert len(others) == 3


def test_b9_the_zip_imports_where_there_is_only_pyarrow_and_fsspec(tmp_path: Path) -> None:
    name, content = executor_zip()
    (tmp_path / name).write_bytes(content)
    code = """
        import importlib, importlib.abc, pkgutil, sys

        allowed = {"airflow_txlog", "pyarrow", "fsspec"}

        class OnlyThose(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                top = name.split(".")[0]
                if top not in allowed and top not in sys.stdlib_module_names and not top.startswith("_sysconfigdata"):
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, OnlyThose())
        sys.path.insert(0, sys.argv[1])
        import airflow_txlog.datafiles as package

        assert ".zip" in package.__file__, package.__file__
        for module in pkgutil.walk_packages(package.__path__, "airflow_txlog.datafiles."):
            importlib.import_module(module.name)
        loaded = {name.split(".")[0] for name in sys.modules}
        assert not loaded & {"numpy", "pandas", "msgspec", "pyspark", "airflow", "sqlglot"}, loaded
        print(len([name for name in sys.modules if name.startswith("airflow_txlog.datafiles.")]))
    """
    # -I: neither this folder nor PYTHONPATH is searched, so that the package can only come from the zip.
    done = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(code), str(tmp_path / name)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
        ("spark.sql.parser.escapedStringLiterals", "true"),
        ("spark.sql.legacy.decimal.retainFractionDigitsOnTruncate", "true"),
        ("spark.sql.legacy.exponentLiteralAsDecimal.enabled", "true"),
        ("spark.sql.session.timeZone", "Asia/Tokyo"),
        ("spark.sql.variable.substitute", "true"),
    ],
)
def test_a_setting_that_changes_what_a_condition_means_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        check_meaning({name: value}, "UTC")
    assert caught.value.argument == f"spark_conf.{name}"


@pytest.mark.spark
def test_a_session_that_reads_conditions_otherwise_is_set_right_for_the_job(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.parser.escapedStringLiterals", "true")
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    query = r"SELECT '\\' AS text, TIMESTAMP '2024-01-01 00:00:00' AS moment"
    assert session.sql(query).schema["moment"].dataType.simpleString() == "timestamp_ntz"
    with job_settings(session, "UTC"):
        row = session.sql(query).first()
        assert row is not None
        assert row["text"] == "\\"
        assert session.sql(query).schema["moment"].dataType.simpleString() == "timestamp"
    assert session.conf.get("spark.sql.timestampType") == "TIMESTAMP_NTZ"
    # Names and defaults as this Spark has them: a setting that it renamed would no longer be held.
    check_meaning({name: str(spark.conf.get(name)) for name in MEANING}, "UTC")


@pytest.mark.spark
def test_a_job_that_asks_for_another_meaning_of_its_sql_changes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    spec = job_spec(
        operation="write",
        table_uri=str(tmp_path / "t"),
        arguments={"source": {"sql": "SELECT 1L AS id"}},
        spark_conf={"spark.sql.caseSensitive": "true"},
    )
    result = run_job(spec, spark)
    assert result.error is not None
    assert result.error["facts"]["argument"] == "spark_conf.spark.sql.caseSensitive"
    assert not (tmp_path / "t").exists()
