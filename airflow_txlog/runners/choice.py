"""Runners by name, each imported when it is asked for: the in-process one brings Spark."""

from __future__ import annotations

import importlib

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.runners.base import Runner
from airflow_txlog.runners.cluster import Cluster, SparkSubmit

CONNECTION_TYPES = {"child": None, "in_process": None, "warm": None, "connect": "spark_connect", "submit": "spark"}
"""The runners, each with the type of the connection (spark_conn_id) that names its cluster; None: it takes none."""

_RUNNERS = "airflow_txlog.runners"
_MADE_BY = {
    "child": f"{_RUNNERS}.child_process:ChildProcessRunner",
    "in_process": f"{_RUNNERS}.in_process:InProcessRunner",
    "warm": f"{_RUNNERS}.warm.runner:WarmRunner",
    "connect": f"{_RUNNERS}.connect:ConnectRunner",
    "submit": f"{_RUNNERS}.submit:SubmitRunner",
    "submit, in cluster mode": f"{_RUNNERS}.cluster_mode:ClusterModeRunner",
}


def make_runner(name: str, cluster: Cluster | None = None) -> Runner:
    """A fresh runner: "child" (a child process), "in_process" (a Spark session shared by this process), "warm" (a
    Spark that the tasks of this machine share), "connect" (a child process whose Spark is that server), "submit"
    (`spark-submit`, whose Spark is that cluster).
    """
    check_runner(name)
    if cluster is None:
        check_cluster_named(name)
    is_in_cluster_mode = isinstance(cluster, SparkSubmit) and cluster.applications is not None
    module, _, runner = _MADE_BY["submit, in cluster mode" if is_in_cluster_mode else name].partition(":")
    made: Runner = getattr(importlib.import_module(module), runner)(*() if cluster is None else (cluster,))
    return made


def check_runner(runner: str | Runner) -> None:
    """Raise InvalidJobSpec for a name that no runner has, and for what is no runner."""
    if runner not in CONNECTION_TYPES if isinstance(runner, str) else not callable(getattr(runner, "run", None)):
        # An object may hold the options of a cluster.
        found = repr(runner) if isinstance(runner, str) else type(runner).__name__
        raise InvalidJobSpec(
            f"runner must be one of {tuple(CONNECTION_TYPES)} or a Runner; found {found}.", argument="runner"
        )


def check_cluster_named(name: str) -> None:
    """Raise InvalidJobSpec for a runner that needs a cluster, of which no connection is named."""
    if CONNECTION_TYPES[name] is not None:
        raise InvalidJobSpec(
            f"runner={name!r} needs the address of its cluster: give spark_conn_id, the name of a connection of type "
            f"{CONNECTION_TYPES[name]!r}.",
            argument="spark_conn_id",
        )


def not_deferrable(runner: str) -> InvalidJobSpec:
    """The refusal of deferrable=True for a runner whose job no other process could wait for."""
    return InvalidJobSpec(
        'deferrable=True waits in the triggerer for a job whose driver a cluster runs: runner="submit" with a '
        f'connection (spark_conn_id) in cluster mode, {{"deploy-mode": "cluster"}}. The runner is {runner}, whose job '
        "ends with its task. Nothing was started.",
        argument="deferrable",
    )
