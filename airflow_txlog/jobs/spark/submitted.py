"""The session of a driver that `spark-submit` has started: Spark's defaults and the submitted settings, without
settings of this package.

The invariant: it is on the requested master. Without one Spark would silently take `local[*]`, and the job
would run on one machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from airflow_txlog.errors import InvalidJobSpec, SparkUnavailable
from airflow_txlog.jobs.spark.causes import condition_of, describe
from airflow_txlog.jobs.spark.installation import check_one_version
from airflow_txlog.jobs.spark.session import silence_query_errors

ASKED_MASTER = "spark.txlog.master"
"""The setting in which the runner records the master that it has requested."""
GATEWAY = "PYSPARK_GATEWAY_PORT"
"""The variable in which `spark-submit` gives Python the port of its JVM."""


def submitted_session(spark_conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session on the cluster. Raises InvalidJobSpec without a cluster, SparkUnavailable for another one."""
    check_one_version()
    if GATEWAY not in os.environ:
        raise InvalidJobSpec(
            "This job is to run on a cluster, and spark-submit did not start its process. Run: spark-submit --master "
            "MASTER airflow_txlog/jobs/submitted_main.py SPEC_FILE. Nothing was read.",
            argument="session",
        )
    builder: Any = SparkSession.builder
    for name, value in (spark_conf or {}).items():
        builder = builder.config(name, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except Exception as error:
        raise SparkUnavailable(
            f"The cluster did not start the application: {describe(error)}. Its master and the settings in the "
            "connection's spark_conf decide that. Nothing was read.",
            cause_type=condition_of(error) or type(error).__name__,
            # The cause is most often a setting.
            retryable=False,
        ) from error
    if "spark.log.level" not in (spark_conf or {}):
        # Not through the context: an executor that starts with a level loses it, and then accepts no other.
        log4j: Any = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        log4j.core.config.Configurator.setRootLevel(log4j.Level.OFF)
    silence_query_errors()
    _check_master(spark)
    return spark


def _check_master(spark: SparkSession) -> None:
    found = str(spark.sparkContext.master)
    asked = spark.sparkContext.getConf().get(ASKED_MASTER)
    if asked is None and found.startswith("local"):
        raise InvalidJobSpec(
            f"Spark is on the master {found!r}, which is no cluster: spark-submit was given no --master. Name one. "
            "Nothing was read.",
            argument="session",
        )
    # Spark adds the protocol to a Kubernetes master that lacks it.
    is_kubernetes = found.startswith("k8s://") and str(asked).startswith("k8s://")
    if asked not in (None, found) and not is_kubernetes:
        raise SparkUnavailable(
            f"The job is for the Spark master {asked!r}, and its session is on {found!r}. Nothing was read.",
            master=asked,
        )
