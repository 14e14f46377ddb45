"""The connection that `spark_conn_id` names: the address of a runner's Spark, and the applications of a cluster.

The connection is the user's own, of a type of Airflow's Spark provider. It is read when a task runs, and only method
calls send requests to the cluster. Invariant: an answer that is not understood raises; it never counts as the end of an
application.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseHook

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.hooks.connections import connection_of
from airflow_txlog.runners import CONNECTION_TYPES
from airflow_txlog.runners.base import Applications, ApplicationState, Cluster, ConnectServer, SparkSubmit

# As Airflow's hook names it.
_YARN_ADDRESS = "yarn_resourcemanager_webapp_address"


def open_spark_connection(runner: str, conn_id: str | None) -> Cluster | None:
    """Return the cluster of a runner; None for a runner that starts its own Spark.

    Raises InvalidJobSpec without the connection or for another type, Airflow's error if it does not exist.
    """
    wanted = CONNECTION_TYPES[runner]
    if conn_id is None or wanted is None:
        if conn_id is not None:
            raise InvalidJobSpec(
                f"runner={runner!r} starts its own Spark, but spark_conn_id is {conn_id!r}. Leave it out, or "
                f"use a runner for a cluster: {', '.join(name for name, kind in CONNECTION_TYPES.items() if kind)}.",
                argument="spark_conn_id",
            )
        return None
    connection = connection_of("spark_conn_id", conn_id)
    found = connection.conn_type
    if found != wanted:
        raise InvalidJobSpec(
            f"spark_conn_id: the connection {conn_id!r} is of type {found!r}, and runner={runner!r} takes one of type "
            f"{wanted!r}.",
            argument="spark_conn_id",
        )
    return _connect_server(connection) if runner == "connect" else _spark_submit(conn_id)


def open_applications(conn_id: str) -> Applications:
    """Return the applications of a cluster that runs their drivers. Raises RuntimeError for one that does not."""
    cluster = open_spark_connection("submit", conn_id)
    assert isinstance(cluster, SparkSubmit)
    if cluster.applications is None:
        raise RuntimeError(f"the connection {conn_id} is not in cluster mode any more")
    return cluster.applications


def _connect_server(connection: Any) -> ConnectServer:
    """Return the server, from the Spark provider's fields; its own hook leaves a slash in a token as it is."""
    host = str(connection.host or "").removeprefix("sc://").rstrip("/")
    if not host or "/" in host or ";" in host:
        raise InvalidJobSpec(
            f"spark_conn_id: the connection {connection.conn_id!r} needs the server's name as its host, such as "
            "localhost or sc://localhost.",
            argument="spark_conn_id",
        )
    use_ssl = connection.extra_dejson.get("use_ssl")
    given = {
        "user_id": connection.login,
        "token": connection.password,
        "use_ssl": None if use_ssl is None else str(use_ssl).lower(),
    }
    parameters = ";".join(f"{name}={quote(value, safe='')}" for name, value in given.items() if value)
    return ConnectServer(url=f"sc://{host}{f':{connection.port}' if connection.port else ''}/;{parameters}".rstrip(";"))


def _spark_submit(conn_id: str) -> SparkSubmit:
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    except ImportError as error:
        raise InvalidJobSpec(
            f'runner="submit" needs Airflow\'s Spark provider where tasks run, which cannot be imported ({error}): '
            "pip install apache-airflow-providers-apache-spark, at a version whose pyspark-client is that of pyspark. "
            "Nothing was started.",
            argument="runner",
        ) from error
    # Without a name: settings reach Spark by a file alone.
    try:
        hook = SparkSubmitHook(conn_id=conn_id, name="")
    except (ImportError, NameError, RuntimeError, ValueError) as error:
        # It names its client of Kubernetes without having imported one.
        needs = "a Kubernetes master needs the package apache-airflow-providers-cncf-kubernetes"
        raise InvalidJobSpec(
            f"spark_conn_id: Airflow's SparkSubmitHook does not take the connection {conn_id!r}: "
            f"{error if isinstance(error, ValueError) else needs}.",
            argument="spark_conn_id",
        ) from error
    master, mode = hook._connection["master"], hook._connection["deploy_mode"]
    applications = _applications(conn_id, hook) if mode == "cluster" else None
    # Not by `_build_spark_submit_command`, which logs what it has built.
    command = (*hook._get_spark_binary_path(), *hook._build_spark_common_args())
    return SparkSubmit(master=master, command=command, applications=applications)


def _applications(conn_id: str, hook: Any) -> Applications:
    """Return the applications of a cluster that runs drivers itself."""
    master = hook._connection["master"]
    if master == "yarn":
        address = BaseHook.get_connection(conn_id).extra_dejson.get(_YARN_ADDRESS)
        if not address:
            raise InvalidJobSpec(
                f"spark_conn_id: in cluster mode the extra of the connection {conn_id!r} needs {_YARN_ADDRESS}, such "
                "as http://rm.example.com:8088: there YARN is asked for the job. Nothing was started.",
                argument="spark_conn_id",
            )
        return YarnApplications(str(address), hook)
    if master.startswith("k8s://"):
        return KubernetesApplications(hook._connection["namespace"] or "default")
    why = (
        "Spark runs no Python driver in the cluster mode of a standalone cluster"
        if master.startswith("spark://")
        else f"the master {master!r} has no such mode"
    )
    raise InvalidJobSpec(
        f'spark_conn_id: the connection {conn_id!r} has "deploy-mode": "cluster", and {why}. Give it '
        '"deploy-mode": "client". Nothing was started.',
        argument="spark_conn_id",
    )


# To connect, and to answer.
_TIMEOUT_S = (5, 30)
_ALIVE = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")
_ENDED = ("FINISHED", "FAILED", "KILLED")
_TAGS = "spark.yarn.tags"


class YarnApplications:
    """Applications by their tag, as YARN's ResourceManager reports them over HTTP.

    Source: Hadoop, "ResourceManager REST API's": Cluster Applications API, Cluster Application State API.
    """

    def __init__(self, address: str, hook: Any) -> None:
        """`hook`: Airflow's SparkSubmitHook, which knows how its connection authenticates."""
        self._address = (address if "://" in address else f"http://{address}").rstrip("/")
        self._hook = hook

    def settings(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        return {
            _TAGS: ",".join(filter(None, (given.get(_TAGS), name))),
            "spark.yarn.submit.waitAppCompletion": "false",
            # Airflow decides about another try of the work.
            "spark.yarn.maxAppAttempts": "1",
        }

    def look(self, name: str) -> ApplicationState:
        applications = self._with_tag(name)
        if not applications:
            return ApplicationState(is_alive=False, text="YARN knows no such application")
        # Of several, as YARN itself never starts them, those that run count.
        application = next((each for each in applications if each["state"] in _ALIVE), applications[0])
        state = str(application["state"])
        if state not in (*_ALIVE, *_ENDED):
            raise RuntimeError(f"YARN reports an application in a state that is not known: {state}")
        final = application.get("finalStatus")
        text = state if state in _ALIVE or final is None else f"{state}, {final}"
        return ApplicationState(
            is_alive=state in _ALIVE,
            text=f"{application['id']} is {text}",
            ui=application.get("trackingUrl") or None,
        )

    def cancel(self, name: str) -> None:
        for application in self._with_tag(name):
            if application["state"] in _ALIVE:
                self._kill(str(application["id"]))

    def _with_tag(self, name: str) -> list[dict[str, Any]]:
        answer = self._request("GET", "apps", params={"applicationTags": name})
        if answer.status_code != 200:
            raise RuntimeError(f"YARN's ResourceManager answers with HTTP status {answer.status_code}")
        # Null if there is none.
        return [dict(each) for each in (answer.json()["apps"] or {}).get("app", ())]

    def _kill(self, application_id: str) -> None:
        answer = self._request("PUT", f"apps/{application_id}/state", json={"state": "KILLED"})
        if answer.status_code in (200, 202):
            return
        # Over HTTP it ends an application only for a user that it has identified.
        yarn = shutil.which("yarn")
        if yarn is None:
            raise RuntimeError(f"YARN's ResourceManager answers with HTTP status {answer.status_code}")
        done = subprocess.run([yarn, "application", "-kill", application_id], capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"`yarn application -kill {application_id}` ended with exit code {done.returncode}")

    def _request(self, method: str, path: str, **given: Any) -> Any:
        import requests

        url = f"{self._address}/ws/v1/cluster/{path}"
        return requests.request(method, url, auth=self._hook._resolved_yarn_rm_auth, timeout=_TIMEOUT_S, **given)


class KubernetesApplications:
    """Applications by the name of their driver's pod, on the cluster of Airflow's own configuration.

    Source: Spark, "Running Spark on Kubernetes"; Kubernetes, "Pod Lifecycle".
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def settings(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        # A second pod of the name is refused, so that one submission is one driver.
        return {
            "spark.kubernetes.namespace": self._namespace,
            "spark.kubernetes.driver.pod.name": name,
            "spark.kubernetes.submission.waitAppCompletion": "false",
        }

    def look(self, name: str) -> ApplicationState:
        client, no_answer = _kubernetes()
        try:
            pod = client.read_namespaced_pod(name, self._namespace)
        except no_answer as error:
            if error.status == 404:
                return ApplicationState(is_alive=False, text=f"there is no pod {name}")
            raise RuntimeError(f"Kubernetes answers with HTTP status {error.status}") from None
        phase = pod.status.phase or "Pending"
        if phase not in ("Pending", "Running", "Unknown", "Succeeded", "Failed"):
            raise RuntimeError(f"Kubernetes reports a pod in a phase that is not known: {phase}")
        # Unknown: its machine does not answer, and it may run on.
        return ApplicationState(
            is_alive=phase not in ("Succeeded", "Failed"), text=f"the pod {name} is {_ended(pod) or phase}"
        )

    def cancel(self, name: str) -> None:
        client, no_answer = _kubernetes()
        try:
            # Executors end with the driver's pod, which owns theirs.
            client.delete_namespaced_pod(name, self._namespace)
        except no_answer as error:
            if error.status != 404:
                raise RuntimeError(f"Kubernetes answers with HTTP status {error.status}") from None


def _kubernetes() -> tuple[Any, type[Any]]:
    """Return a client of the cluster, and the class of its errors."""
    from airflow.providers.cncf.kubernetes import kube_client

    return kube_client.get_kube_client(), kube_client.ApiException


def _ended(pod: Any) -> str | None:
    """Return how the driver's container ended, such as `Failed (OOMKilled, exit code 137)`; None if it has not."""
    for container in pod.status.container_statuses or ():
        ended = container.state and container.state.terminated
        if ended:
            return f"{pod.status.phase} ({ended.reason}, exit code {ended.exit_code})"
    return None
