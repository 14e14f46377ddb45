"""The connection of a runner's cluster: what is refused, by name, and what the runner gets.

YARN's and Kubernetes' answers about an application have the shapes that their documents give; neither runs here.
Source: Hadoop, "ResourceManager REST API's" (Cluster Applications API, Cluster Application State API); Kubernetes,
"Pod Lifecycle", with the client's objects as Airflow's own hook reads them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.hooks.spark_connection import KubernetesApplications, YarnApplications, open_spark_connection
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.runners.base import ConnectServer, SparkSubmit
from airflow_txlog.runners.child_process import ChildProcessRunner
from airflow_txlog.runners.cluster_mode import ClusterModeRunner

pytestmark = pytest.mark.airflow

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
        ("child", "server", "runner='child' starts its own Spark, but spark_conn_id is 'server'"),
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


NAME = "txlog-0123456789ab-89abcdef"


def application(state: str, final: str = "UNDEFINED", number: int = 1) -> dict[str, Any]:
    """One element of `apps.app`, with the fields that bear on us."""
    return {
        "id": f"application_1476912658570_000{number}",
        "user": "jobs",
        "name": "airflow_txlog merge",
        "queue": "default",
        "state": state,
        "finalStatus": final,
        "progress": 100,
        "trackingUI": "History",
        "trackingUrl": f"http://rm:8088/proxy/application_1476912658570_000{number}/",
        "diagnostics": "User application exited with status 1: canary-of-a-row",
        "applicationType": "SPARK",
        "applicationTags": NAME,
    }


class ResourceManager:
    """What `requests` gets: the status and the body of each answer in turn, and what was asked for."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    def request(self, method: str, url: str, **given: Any) -> Any:
        assert given.pop("timeout")
        assert given.pop("auth") == "kerberos"
        self.asked.append((method, url, given))
        status, body = self.answers.pop(0)
        return SimpleNamespace(status_code=status, json=lambda: body)


@pytest.fixture
def yarn(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[YarnApplications, ResourceManager]]:
    def make(*answers: tuple[int, Any]) -> tuple[YarnApplications, ResourceManager]:
        manager = ResourceManager(*answers)
        monkeypatch.setattr("requests.request", manager.request)
        return YarnApplications("rm:8088/", SimpleNamespace(_resolved_yarn_rm_auth="kerberos")), manager

    return make


Yarn = Callable[..., tuple[YarnApplications, ResourceManager]]


@pytest.mark.parametrize(
    ("listed", "is_alive", "text"),
    [
        ({"apps": None}, False, "YARN knows no such application"),
        ({"apps": {}}, False, "YARN knows no such application"),
        ({"apps": {"app": [application("ACCEPTED")]}}, True, "application_1476912658570_0001 is ACCEPTED"),
        ({"apps": {"app": [application("RUNNING")]}}, True, "application_1476912658570_0001 is RUNNING"),
        (
            {"apps": {"app": [application("FINISHED", "SUCCEEDED")]}},
            False,
            "application_1476912658570_0001 is FINISHED, SUCCEEDED",
        ),
        (
            {"apps": {"app": [application("FINISHED", "FAILED"), application("RUNNING", number=2)]}},
            True,
            "application_1476912658570_0002 is RUNNING",
        ),
        (
            {"apps": {"app": [application("KILLED", "KILLED")]}},
            False,
            "application_1476912658570_0001 is KILLED, KILLED",
        ),
    ],
)
def test_an_application_of_yarn_is_found_by_its_tag(yarn: Yarn, listed: Any, is_alive: bool, text: str) -> None:
    applications, manager = yarn((200, listed))
    found = applications.look(NAME)
    assert (found.is_alive, found.text) == (is_alive, text)
    assert manager.asked == [("GET", "http://rm:8088/ws/v1/cluster/apps", {"params": {"applicationTags": NAME}})]
    assert "canary" not in repr(found)
    assert found.ui is None or found.ui.startswith("http://rm:8088/proxy/application_")


@pytest.mark.parametrize(
    "answer",
    [(503, {}), (200, {"error": "x"}), (200, {"apps": {"app": [{**application("RUNNING"), "state": "RESTING"}]}})],
)
def test_an_answer_of_yarn_that_is_not_understood_is_no_end_of_a_job(yarn: Yarn, answer: tuple[int, Any]) -> None:
    with pytest.raises((RuntimeError, KeyError)):
        yarn(answer)[0].look(NAME)


def test_an_application_of_yarn_that_runs_is_killed_over_http(yarn: Yarn) -> None:
    listed = {"apps": {"app": [application("FAILED", "FAILED"), application("RUNNING", number=2)]}}
    applications, manager = yarn((200, listed), (202, {"state": "KILLED"}))
    applications.cancel(NAME)
    url = "http://rm:8088/ws/v1/cluster/apps/application_1476912658570_0002/state"
    assert manager.asked[1:] == [("PUT", url, {"json": {"state": "KILLED"}})]


def test_yarns_own_program_kills_what_http_does_not_allow(
    yarn: Yarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"apps": {"app": [application("RUNNING")]}}
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(RuntimeError, match="HTTP status 401"):
        yarn((200, listed), (401, None))[0].cancel(NAME)
    program = tmp_path / "yarn"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    yarn((200, listed), (401, None))[0].cancel(NAME)
    assert (tmp_path / "words").read_text() == "application -kill application_1476912658570_0001\n"


def test_an_application_of_yarn_gets_its_name_as_a_tag_beside_its_own(yarn: Yarn) -> None:
    settings = yarn()[0].settings(NAME, {"spark.yarn.tags": "night"})
    assert settings == {
        "spark.yarn.tags": f"night,{NAME}",
        "spark.yarn.submit.waitAppCompletion": "false",
        "spark.yarn.maxAppAttempts": "1",
    }


class ApiException(Exception):
    """As the client of Kubernetes raises."""

    def __init__(self, status: int) -> None:
        super().__init__("canary of an answer")
        self.status = status


class Pods:
    """The client of Kubernetes, with one pod in one phase; or an answer that is an error."""

    def __init__(self, phase: str | None = None, ended: Any = None, status: int | None = None) -> None:
        states = [SimpleNamespace(state=SimpleNamespace(terminated=ended))] if ended else None
        self.pod = SimpleNamespace(status=SimpleNamespace(phase=phase, container_statuses=states))
        self.status = status
        self.deleted: list[tuple[str, str]] = []

    def read_namespaced_pod(self, name: str, namespace: str) -> Any:
        assert (name, namespace) == (NAME, "lake")
        if self.status is not None:
            raise ApiException(self.status)
        return self.pod

    def delete_namespaced_pod(self, name: str, namespace: str) -> None:
        if self.status is not None:
            raise ApiException(self.status)
        self.deleted.append((name, namespace))


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pods], KubernetesApplications]:
    def make(pods: Pods) -> KubernetesApplications:
        client = ModuleType("kube_client")
        client.get_kube_client = lambda: pods  # type: ignore[attr-defined]
        client.ApiException = ApiException  # type: ignore[attr-defined]
        package = ModuleType("airflow.providers.cncf.kubernetes")
        package.kube_client = client  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "airflow.providers.cncf", ModuleType("airflow.providers.cncf"))
        monkeypatch.setitem(sys.modules, package.__name__, package)
        return KubernetesApplications("lake")

    return make


KILLED = SimpleNamespace(exit_code=137, reason="OOMKilled")


@pytest.mark.parametrize(
    ("pods", "is_alive", "text"),
    [
        (Pods("Pending"), True, f"the pod {NAME} is Pending"),
        (Pods(None), True, f"the pod {NAME} is Pending"),
        (Pods("Running"), True, f"the pod {NAME} is Running"),
        (Pods("Unknown"), True, f"the pod {NAME} is Unknown"),
        (Pods("Succeeded"), False, f"the pod {NAME} is Succeeded"),
        (Pods("Failed", KILLED), False, f"the pod {NAME} is Failed (OOMKilled, exit code 137)"),
        (Pods(status=404), False, f"there is no pod {NAME}"),
    ],
)
def test_an_application_on_kubernetes_is_its_drivers_pod(
    kubernetes: Callable[[Pods], KubernetesApplications], pods: Pods, is_alive: bool, text: str
) -> None:
    found = kubernetes(pods).look(NAME)
    assert (found.is_alive, found.text) == (is_alive, text)


@pytest.mark.parametrize("pods", [Pods(status=403), Pods("Resting")])
def test_an_answer_of_kubernetes_that_is_not_understood_is_no_end_of_a_job(
    kubernetes: Callable[[Pods], KubernetesApplications], pods: Pods
) -> None:
    with pytest.raises(RuntimeError) as caught:
        kubernetes(pods).look(NAME)
    assert "canary" not in str(caught.value)


def test_an_application_on_kubernetes_ends_with_its_drivers_pod(
    kubernetes: Callable[[Pods], KubernetesApplications],
) -> None:
    pods = Pods("Running")
    kubernetes(pods).cancel(NAME)
    assert pods.deleted == [(NAME, "lake")]
    kubernetes(Pods(status=404)).cancel(NAME)
    with pytest.raises(RuntimeError, match="HTTP status 403"):
        kubernetes(Pods(status=403)).cancel(NAME)


def test_an_application_on_kubernetes_gets_its_name_as_that_of_its_pod(
    kubernetes: Callable[[Pods], KubernetesApplications],
) -> None:
    assert kubernetes(Pods()).settings(NAME, {}) == {
        "spark.kubernetes.namespace": "lake",
        "spark.kubernetes.driver.pod.name": NAME,
        "spark.kubernetes.submission.waitAppCompletion": "false",
    }
