"""The connection that `spark_conn_id` names: where the Spark of a runner is.

It is the user's own, of the type that Airflow's Spark provider defines, and is read when a task runs.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseHook

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.hooks.spark_applications import KubernetesApplications, YarnApplications
from airflow_txlog.runners import CONNECTION_TYPES
from airflow_txlog.runners.cluster import Applications, Cluster, ConnectServer, SparkSubmit

# As Airflow's hook names it.
_YARN_ADDRESS = "yarn_resourcemanager_webapp_address"


def open_spark_connection(runner: str, conn_id: str | None) -> Cluster | None:
    """The cluster of a runner; None for one that starts its own Spark.

    Raises InvalidJobSpec where the connection is missing in the arguments, or of another type than the runner takes;
    and what Airflow raises for one that does not exist.
    """
    wanted = CONNECTION_TYPES[runner]
    if conn_id is None or wanted is None:
        if conn_id is not None:
            raise InvalidJobSpec(
                f"runner={runner!r} starts a Spark of its own, and spark_conn_id is {conn_id!r}. Leave that out, or "
                f"take a runner for a cluster: {', '.join(name for name, kind in CONNECTION_TYPES.items() if kind)}.",
                argument="spark_conn_id",
            )
        return None
    connection = BaseHook.get_connection(conn_id)
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
    """The server, from the fields that the Spark provider's hook reads. Not by that hook: it leaves a slash in a token
    as it is, and PySpark would refuse the URL with a message that quotes it.
    """
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
    """Those of a cluster that runs drivers itself."""
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
