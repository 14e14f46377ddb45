"""The connection of a runner's cluster: what is refused, by name, and what the runner gets."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.hooks.spark_connection import KubernetesApplications, YarnApplications, open_spark_connection
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.runners.base import ConnectServer, SparkSubmit
from airflow_txlog.runners.child_process import ChildProcessRunner
from airflow_txlog.runners.cluster_mode import ClusterModeRunner

TOKEN = "canary-of-the-token"


CLUSTERS: dict[str, dict[str, Any]] = {
    "standalone": {"host": "spark://master-1:7077,master-2:7077", "extra": {"deploy-mode": "client"}},
    "standalone_by_parts": {"host": "spark://master-1", "port": 7077},
    "yarn": {"host": "yarn", "extra": {"queue": "night", "principal": "jobs@REALM", "spark-binary": "spark3-submit"}},
    "kubernetes": {"host": "k8s://https://api:6443", "extra": {"namespace": "lake"}},
    "standalone_cluster_mode": {"host": "spark://master-1:7077", "extra": {"deploy-mode": "cluster"}},
    "old_binary": {"host": "yarn", "extra": {"spark-binary": "my-submit"}},
    "yarn_cluster_mode": {
        "host": "yarn",
        "extra": {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "rm:8088"},
    },
    "kubernetes_cluster_mode": {"host": "k8s://https://api:6443", "extra": {"deploy-mode": "cluster"}},
    "yarn_without_address": {"host": "yarn", "extra": {"deploy-mode": "cluster"}},
    "local_cluster_mode": {"host": "local[2]", "extra": {"deploy-mode": "cluster"}},
}


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    server = {"conn_type": "spark_connect", "host": "localhost", "port": 15002, "password": TOKEN, "login": "jobs"}
    monkeypatch.setenv("AIRFLOW_CONN_SERVER", json.dumps(server))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "http", "host": "localhost"}))
    for name, given in CLUSTERS.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "spark", **given}))
    lake = {"conn_type": "txlog", "extra": {"spark_conn_id": "server"}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))


def test_a_connect_server_is_the_one_of_the_connection_and_its_token_is_in_no_repr() -> None:
    found = open_spark_connection("connect", "server")

    assert found == ConnectServer(url=f"sc://localhost:15002/;user_id=jobs;token={TOKEN}")
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("runner", "conn_id", "said"),
    [
        ("connect", None, "runner='connect' needs the address of its cluster"),
        ("connect", "other", "is of type 'http', and runner='connect' takes one of type 'spark_connect'"),
        ("child", "server", "runner='child' starts a Spark of its own, and spark_conn_id is 'server'"),
        ("elsewhere", "server", "runner must be one of"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(runner: str, conn_id: str | None, said: str) -> None:
    with pytest.raises(InvalidJobSpec, match=said):
        TxlogHook(spark_conn_id=conn_id).make_runner(runner)


@pytest.mark.parametrize("runner", ["connect", "child"])
def test_the_cluster_of_a_tables_connection_is_for_the_runners_that_have_one(runner: str) -> None:
    assert isinstance(TxlogHook("lake").make_runner(runner), ChildProcessRunner)


@pytest.mark.parametrize(
    ("conn_id", "command"),
    [
        (
            "standalone",
            "spark-submit --master spark://master-1:7077,master-2:7077 --deploy-mode client",
        ),
        ("standalone_by_parts", "spark-submit --master spark://master-1:7077"),
        ("yarn", "spark3-submit --master yarn --principal jobs@REALM --queue night"),
        ("kubernetes", "spark-submit --master k8s://https://api:6443 --conf spark.kubernetes.namespace=lake"),
    ],
)
def test_the_command_of_a_cluster_is_what_airflows_own_hook_builds(
    conn_id: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.apache.spark.hooks import spark_submit

    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    found = open_spark_connection("submit", conn_id)
    assert isinstance(found, SparkSubmit)
    assert " ".join(found.command) == command
    assert found.master in command
    assert found.applications is None


@pytest.mark.parametrize(
    ("conn_id", "command", "applications"),
    [
        ("yarn_cluster_mode", "spark-submit --master yarn --deploy-mode cluster", YarnApplications),
        (
            "kubernetes_cluster_mode",
            "spark-submit --master k8s://https://api:6443 --deploy-mode cluster",
            KubernetesApplications,
        ),
    ],
)
def test_a_cluster_that_runs_drivers_itself_can_be_asked_for_its_applications(
    conn_id: str, command: str, applications: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.apache.spark.hooks import spark_submit

    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    found = open_spark_connection("submit", conn_id)
    assert isinstance(found, SparkSubmit)
    assert " ".join(found.command) == command
    assert isinstance(found.applications, applications)
    assert isinstance(TxlogHook(spark_conn_id=conn_id).make_runner("submit"), ClusterModeRunner)


@pytest.mark.parametrize(
    ("conn_id", "said"),
    [
        ("standalone_cluster_mode", "Spark runs no Python driver in the cluster mode of a standalone cluster"),
        ("yarn_without_address", "needs yarn_resourcemanager_webapp_address"),
        ("local_cluster_mode", "the master 'local\\[2\\]' has no such mode"),
    ],
)
def test_a_driver_elsewhere_is_refused_by_name(conn_id: str, said: str) -> None:
    with pytest.raises(InvalidJobSpec, match=said) as caught:
        open_spark_connection("submit", conn_id)
    assert conn_id in str(caught.value)


def test_a_connection_that_the_hook_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.apache.spark.hooks import spark_submit

    monkeypatch.delattr(spark_submit, "kube_client", raising=False)
    with pytest.raises(InvalidJobSpec, match="needs the package apache-airflow-providers-cncf-kubernetes"):
        open_spark_connection("submit", "kubernetes")
    with pytest.raises(InvalidJobSpec, match="'old_binary': The spark-binary extra can be one of"):
        open_spark_connection("submit", "old_binary")


def test_airflows_spark_provider_is_asked_for_by_name_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark.hooks.spark_submit", None)
    with pytest.raises(InvalidJobSpec, match="pip install apache-airflow-providers-apache-spark"):
        open_spark_connection("submit", "kubernetes")


def test_a_cluster_that_does_not_exist_is_an_error_and_no_yarn() -> None:
    with pytest.raises(Exception, match="nowhere"):
        open_spark_connection("submit", "nowhere")


def test_nothing_of_a_connection_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        open_spark_connection("submit", "yarn")
    assert "night" not in caplog.text
