"""The applications of YARN and Kubernetes: found by a name of ours, looked at and ended, in cluster mode.

Each object reads nothing before it is asked. The invariant: an answer that is not understood raises, and is never taken
for an application that has ended.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from airflow_txlog.runners.cluster import ApplicationState

# To connect, and to answer.
_TIMEOUT_S = (5, 30)
_ALIVE = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")
_ENDED = ("FINISHED", "FAILED", "KILLED")
_TAGS = "spark.yarn.tags"


class YarnApplications:
    """Applications by their tag, which YARN's ResourceManager answers for over HTTP.

    Source: Hadoop, "ResourceManager REST API's": Cluster Applications API, Cluster Application State API.
    """

    def __init__(self, address: str, hook: Any) -> None:
        """`hook`: Airflow's SparkSubmitHook, which knows how its connection identifies itself."""
        self._address = (address if "://" in address else f"http://{address}").rstrip("/")
        self._hook = hook

    def settings(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        return {
            _TAGS: ",".join(filter(None, (given.get(_TAGS), name))),
            "spark.yarn.submit.waitAppCompletion": "false",
            # Whether the work is tried again is Airflow's to decide.
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
        # Null where there is none.
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
    """Applications by the name of their driver's pod, as Airflow's own configuration reaches the cluster.

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
    """A client of the cluster, and what it raises for an answer that is an error."""
    from airflow.providers.cncf.kubernetes import kube_client

    return kube_client.get_kube_client(), kube_client.ApiException


def _ended(pod: Any) -> str | None:
    """How the driver's container ended, such as `Failed (OOMKilled, exit code 137)`; None where it has not."""
    for container in pod.status.container_statuses or ():
        ended = container.state and container.state.terminated
        if ended:
            return f"{pod.status.phase} ({ended.reason}, exit code {ended.exit_code})"
    return None
