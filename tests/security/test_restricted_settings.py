"""Alone in showing that Spark settings and source options which may load code are refused, and others are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.restrictions import OPTIONS
from airflow_txlog.errors import InvalidJobSpec
from tests.helpers.jobs import error_of, run
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_options_that_spark_hands_on_to_hadoop_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("1\n")
    source = {"format": "csv", "path": str(tmp_path / "in.csv"), "options": {"io.compression.codecs": "a.Codec"}}
    in_view = {"sql": "SELECT 1", "views": {"v": source}}
    keys = {"column": "id", "source": in_view}
    for arguments in ({"source": source}, {"source": in_view}):
        with pytest.raises(InvalidJobSpec, match=r"io\.compression\.codecs is refused"):
            job_spec(operation="write", table_uri="/t", arguments=arguments)
    with pytest.raises(InvalidJobSpec, match=r"keys\.source\.views\.v\.options\.io\.compression\.codecs is refused"):
        job_spec(operation="delete", table_uri="/t", arguments={"predicate": None, "keys": keys})
    # What they would do: load the class.
    error = error_of(run(spark, "write", tmp_path / "t", source=source, unrestricted=("options",)))
    assert "ClassNotFoundException" in error["message"]


@pytest.mark.spark
def test_every_option_of_sparks_readers_is_allowed(spark: SparkSession) -> None:
    packages = "org.apache.spark.sql.catalyst.", "org.apache.spark.sql.execution.datasources."
    options = {"csv": f"{packages[0]}csv.CSV", "json": f"{packages[0]}json.JSON"}
    options |= {"parquet": f"{packages[1]}parquet.Parquet", "orc": f"{packages[1]}orc.Orc"}
    writing = {"compression", "codec", "parquet.compression", "orc.compress", "extension", "escapequotes", "quoteall"}
    writing |= {"writenonasciicharacterascodepoint", "pretty", "ignorenullfields", "sortkeys"}

    def of(name: str) -> set[str]:
        known = spark._jvm.java.lang.Class.forName(f"{name}Options$").getField("MODULE$").get(None).getAllOptions()
        return set(known.mkString(" ").lower().split())

    for format, name in options.items():
        assert (of(name) | of(f"{packages[1]}FileIndex")) - writing - OPTIONS[format] == set(), format


LOADS_CODE = {
    "spark.driver.extraJavaOptions": "-XX:OnError=true",
    "spark.executor.extraJavaOptions": "-agentpath:/in/agent.so",
    "spark.driver.defaultJavaOptions": "-javaagent:/in/agent.jar",
    "spark.driver.extraClassPath": "/in/evil.jar",
    "spark.driver.extraLibraryPath": "/in",
    "spark.executor.extraClassPath": "/in/evil.jar",
    "spark.jars": "/in/evil.jar",
    "spark.jars.packages": "org.example:evil:1",
    "spark.jars.ivySettings": "/in/ivy.xml",
    "spark.plugins": "org.example.Evil",
    "spark.extraListeners": "org.example.Evil",
    "spark.files": "/etc/passwd",
    "spark.archives": "/in/a.zip",
    "spark.submit.pyFiles": "/in/evil.py",
    "spark.pyspark.python": "/in/python",
    "spark.pyspark.driver.python": "/in/python",
    "spark.python.daemon.module": "evil",
    "spark.python.worker.module": "evil",
    "spark.executorEnv.LD_PRELOAD": "/in/evil.so",
    "spark.executorEnv.PYTHONPATH": "/in",
    "spark.executorEnv.PYTHONINSPECT": "1",
    "spark.hadoop.fs.file.impl": "org.example.Evil",
    "spark.hadoop.fs.s3a.endpoint": "http://example.org",
    "spark.hadoop.hadoop.security.group.mapping": "org.example.Evil",
    "spark.hive.metastore.uris": "thrift://example.org",
    "spark.sql.extensions": "org.example.Evil",
    "spark.sql.catalog.spark_catalog": "org.example.Evil",
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.queryExecutionListeners": "org.example.Evil",
    "spark.sql.streaming.streamingQueryListeners": "org.example.Evil",
    "spark.sql.sources.commitProtocolClass": "org.example.Evil",
    "spark.sql.parquet.output.committer.class": "org.example.Evil",
    "spark.sql.adaptive.customCostEvaluatorClass": "org.example.Evil",
    "spark.sql.cache.serializer": "org.example.Evil",
    "spark.sql.hive.metastore.jars": "maven",
    "spark.sql.hive.metastore.jars.path": "file:///in/*.jar",
    "spark.sql.warehouse.dir": "/in",
    "spark.serializer": "org.example.Evil",
    "spark.closure.serializer": "org.example.Evil",
    "spark.kryo.registrator": "org.example.Evil",
    "spark.shuffle.manager": "org.example.Evil",
    "spark.shuffle.sort.io.plugin.class": "org.example.Evil",
    "spark.memory.offHeap.size": "1g; touch /canary",
    "spark.io.compression.codec": "org.example.Evil",
    "spark.scheduler.allocation.file": "/in/pools.xml",
    "spark.metrics.conf": "/in/metrics.properties",
    "spark.redaction.regex": "(x+x+)+y",
    "spark.local.dir": "/in",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": "http://example.org",
    "spark.master": "spark://example.org:7077",
    "spark.remote": "sc://example.org",
    "spark.submit.deployMode": "cluster",
    "spark.driver.host": "0.0.0.0",
    "spark.driver.bindAddress": "0.0.0.0",
    "spark.authenticate": "false",
    "spark.io.encryption.enabled": "false",
    "spark.ui.filters": "org.example.Evil",
    "spark.a.name.of.a.newer.release": "org.example.Evil",
    "SPARK.JARS": "/in/evil.jar",
    " spark.jars": "/in/evil.jar",
    "spark.sql.shuffle.partitions\nspark.jars": "3",
}
TUNES = {
    "spark.app.name": "orders, nightly",
    "spark.master": "local[2, 4]",
    "spark.driver.memory": "4g",
    "spark.driver.maxResultSize": "0",
    "spark.executor.memory": "512m",
    "spark.default.parallelism": "8",
    "spark.memory.fraction": "0.6",
    "spark.network.timeout": "120s",
    "spark.io.compression.codec": "zstd",
    "spark.shuffle.compress": "true",
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64MB",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.files.maxPartitionBytes": "134217728b",
    "spark.sql.ansi.enabled": "False",
    "spark.sql.parquet.compression.codec": "snappy",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.session.timeZone": "Europe/Berlin",
    "spark.ui.enabled": "false",
}


def checkpoint(**more: Any) -> JobSpec:
    return job_spec(operation="checkpoint", table_uri="/t", **more)


@pytest.mark.parametrize(("name", "value"), LOADS_CODE.items())
def test_a_setting_that_may_load_code_is_refused_by_name_and_without_its_value(name: str, value: str) -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        checkpoint(spark_conf={"spark.driver.memory": "1g", name: value})
    assert caught.value.facts["argument"] == f"spark_conf.{name}"
    assert not value.startswith("/in") or value not in str(caught.value)
    allowed = checkpoint(spark_conf={name: value}, unrestricted=["spark_conf"])
    assert JobSpec.from_json(allowed.to_json()) == allowed
    # The job judges again what it is given.
    tampered = json.loads(allowed.to_json()) | {"unrestricted": []}
    with pytest.raises(InvalidJobSpec):
        JobSpec.from_json(json.dumps(tampered))


def test_settings_that_tune_are_allowed() -> None:
    assert checkpoint(spark_conf=TUNES).spark_conf == TUNES


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("query", "unrestricted"),
        (["everything"], "unrestricted"),
        ([["query"]], "unrestricted[0]"),
        (None, "unrestricted"),
        (True, "unrestricted"),
    ],
)
def test_only_what_has_a_name_can_be_left_unrestricted(given: Any, place: str) -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        checkpoint(unrestricted=given)
    assert caught.value.facts["argument"] == place


class _Ti:
    dag_id, task_id, run_id, map_index, try_number, max_tries, id = "d", "t", "r", -1, 1, 0, "an id"


@pytest.mark.airflow
def test_a_rendered_setting_is_judged_before_the_job_and_a_connections_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_txlog.operators.maintenance.checkpoint_and_vacuum import CheckpointOperator

    def operator(**more: Any) -> CheckpointOperator:
        return CheckpointOperator(task_id="x", table_uri="/lake/t", **more)

    jars = {"spark.jars": "/in/evil.jar"}
    with pytest.raises(InvalidJobSpec, match=r"spark_conf\.spark\.jars is refused"):
        operator(spark_conf=jars)
    # What a template will be is known when the task runs.
    templated = operator(spark_conf={"spark.app.name": "{{ params.name }}", "spark.jars": "{{ params.jars }}"})
    templated.spark_conf = jars
    with pytest.raises(InvalidJobSpec, match=r"spark_conf\.spark\.jars is refused"):
        templated.job_spec({"ti": _Ti()})
    assert operator(spark_conf=jars, unrestricted="spark_conf").job_spec({"ti": _Ti()}).spark_conf == jars

    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "extra": {"spark_conf": jars}}))
    spec = operator(txlog_conn_id="lake", spark_conf={"spark.driver.memory": "1g"}).job_spec({"ti": _Ti()})
    assert spec.spark_conf == {**jars, "spark.driver.memory": "1g"}
    with pytest.raises(InvalidJobSpec, match=r"spark\.plugins is refused"):
        operator(txlog_conn_id="lake", spark_conf={"spark.plugins": "org.example.Evil"})
    assert "unrestricted" not in CheckpointOperator.template_fields


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"spark.executor.memory": "2 gigs"}, "spark.executor.memory must be a number, a size such as 2g"),
        ({"spark.master": "spark://m:7077"}, 'A cluster is named by a connection: runner="submit" or'),
    ],
)
def test_a_setting_that_would_tune_with_another_value_is_refused_with_the_value_it_takes(
    settings: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        job_spec(operation="delete", table_uri="/t", arguments={"predicate": "a = 1"}, spark_conf=settings)
    assert words in caught.value.message
    assert "unrestricted" not in caught.value.message
