"""The ports of a Spark whose driver and executors are one process: no other process can connect to them.

Spark listens for executors even if it has none. A process that connects could read blocks, with the values that a
query binds, or have an object deserialized. A secret (`spark.authenticate`) refuses both, but an open port still
answers some requests first. So the ports speak TLS with an empty key store: no connection is ever made. With a key in
it every user could connect, as Spark asks none for a certificate there. A Spark in one process would connect to itself
for three things: results of tasks above 1 MB, which are handed over directly instead; jars, which it reads where they
lie (`jars_in_place`); and the artifacts of a Connect session, which has none here (`shipping`). The invariant: every
JVM that this package starts for a Spark of this machine has these settings, and no job changes them. Source: Spark 4.2,
TransportContext, SSLFactory, TaskResultGetter, SparkContext.addJar, ArtifactManager.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import quote, unquote

from airflow_txlog.errors import InvalidJobSpec

_OURS = ("spark.authenticate", "spark.ssl.rpc.")
_KEYS = "no-keys.p12"
# PKCS #12 in DER: a PFX of version 3 whose safe has no content. Java reads it without a password.
_NO_KEYS = bytes.fromhex("3016020103301106092a864886f70d010701a00404023000")

JARS = "spark.jars"
LARGEST_RESULTS = {"spark.task.maxDirectResultSize": "2047m", "spark.rpc.message.maxSize": "2047"}
"""The most that Spark takes, whatever a job asks for: Spark would fetch a larger result of a task through its port."""


def is_one_process(master: str) -> bool:
    """Whether driver and executors of a Spark on this master are one process."""
    return master == "local" or master.startswith("local[")


def closed_settings(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the settings under which no process can connect to Spark's ports.

    A file that Spark needs for its start is written into the folder.
    """
    path = os.path.join(folder, _KEYS)
    with open(path, "wb") as file:
        file.write(_NO_KEYS)
    return {
        "spark.authenticate": "true",
        "spark.ssl.rpc.enabled": "true",
        "spark.ssl.rpc.keyStore": path,
        **LARGEST_RESULTS,
    }


def jars_in_place(jars: str) -> str:
    """Return the value of `spark.jars` with which Spark reads those on this machine where they lie.

    Any other it would send to its own executor through a port that is closed.
    """
    return ",".join(_in_place(jar.strip()) for jar in jars.split(",") if jar.strip())


def _in_place(jar: str) -> str:
    scheme, colon, rest = jar.partition(":")
    if colon and scheme != "file":
        return jar
    path = unquote(rest) if colon else os.path.abspath(jar)
    # Spark takes the path out of this URI, decoded, and puts it into another as it is.
    return f"local:/{quote(quote(path.lstrip('/')))}"


def check_stays_closed(spark_conf: Mapping[str, str]) -> None:
    """Raise InvalidJobSpec (argument `spark_conf.<name>`) for settings under which others would connect to Spark: the
    master of a cluster, whose executors do, and those that decide who may.
    """
    master = spark_conf.get("spark.master", "local")
    if not is_one_process(master):
        raise InvalidJobSpec(
            f"spark_conf asks for spark.master={master}, and this job's Spark is one process on this machine. Take "
            'runner="submit", or runner="connect" and a server on that cluster. Nothing was started.',
            argument="spark_conf.spark.master",
        )
    for name, value in spark_conf.items():
        if name.startswith(_OURS) and not (name == "spark.authenticate" and value.strip().lower() == "true"):
            raise InvalidJobSpec(
                f"spark_conf has {name}, which decides who may connect to Spark's ports. No process may where Spark "
                "runs on this machine alone: its other users could read the rows and parameters of jobs there. "
                "Leave it out. Nothing was started.",
                argument=f"spark_conf.{name}",
            )
