"""Spark sessions for jobs: a local one, made or borrowed, and the settings under which a job's SQL means one thing.

A process has one Spark; a second session in it shares the cluster, the JVM and every static setting. The invariants: a
borrowed Spark is never stopped and its other sessions never changed; a static setting that cannot be honoured is an
error, because Spark itself would ignore it silently. Source: soundness A2.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.spark.installation import check_has_jvm_side, check_one_version
from airflow_txlog.jobs.spark.launch import start_jvm

# What a local Spark starts with unless the job's own settings say otherwise.
_LOCAL_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.app.name": "airflow_txlog",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # The bar is drawn over the lines of the task's log.
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # Where the UI or the event log is turned on: settings so named are not shown there. Spark's own default is shorter.
    "spark.redaction.regex": "(?i)secret|passw|token|credential|access[.]?key|account[.]?key|api[.]?key|sas|signature",
}

# A thread of Spark's that ends for want of memory leaves Python waiting for its answer for ever. A JVM that ends is a
# lost job, which is known at once.
_JVM, _JVM_OPTIONS = "spark.driver.extraJavaOptions", "-XX:+ExitOnOutOfMemoryError"

# What decides how Spark reads a literal, a name or a comparison. The engine reads conditions as Spark does by default,
# and a condition that the two read differently would prune a file that holds a matching row.
MEANING = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.legacy.charVarcharAsString": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "false",
}
# Spark replaces `${env:NAME}` in every text by default: a table's column name would read the environment of the job.
_SUBSTITUTION = {"spark.sql.variable.substitute": "false"}

# What every job runs under, besides its time zone. Fewer and larger batches between the JVM and Python.
_JOB_SETTINGS = {
    **MEANING,
    **_SUBSTITUTION,
    # A parameter is bound as a value. Spark 4.1 and later would else write it into the text, a timestamp as a time of
    # the session's zone: an instant in the hour that a clock repeats becomes the one an hour before.
    "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}


def local_session(spark_conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session of its own in this process's Spark, which is started when there is none.

    Temporary views and runtime settings are the session's alone. Raises InvalidJobSpec (argument `spark_conf.<name>`)
    for a setting that only a start can change, where Spark runs already and has another value, and JobError where the
    installed PySpark cannot work.
    """
    check_one_version()
    conf = dict(spark_conf or {})
    running = SparkSession.getActiveSession() or _default_session()
    if running is None:
        return _start(conf)
    if not is_classic(running):
        return running
    _check_static(running, conf)
    session = running.newSession()
    for name, value in conf.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def is_classic(spark: SparkSession) -> bool:
    """Whether the driver's JVM is in reach; a Spark Connect session has a server instead."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def default_parallelism(spark: SparkSession) -> int:
    """How many tasks run at once."""
    if is_classic(spark):
        return max(1, int(spark.sparkContext.defaultParallelism))
    # A range is cut into as many partitions as there are cores; Connect has no other way to ask.
    tasks = spark.range(0, 1_000_000).selectExpr("spark_partition_id() AS part").distinct().count()
    return max(1, int(tasks))


def check_meaning(conf: Mapping[str, str], time_zone: str) -> None:
    """Raises InvalidJobSpec (argument `spark_conf.<name>`) where a job wants its SQL read in another way than ours."""
    for name, ours in {**MEANING, **_SUBSTITUTION, "spark.sql.session.timeZone": time_zone}.items():
        asked = conf.get(name)
        if asked is not None and asked.lower() != ours.lower():
            hint = "Give the time zone as time_zone." if name == "spark.sql.session.timeZone" else "Leave it out."
            raise InvalidJobSpec(
                f"spark_conf asks for {name}={asked}, and a job reads its SQL with {ours}: a condition must mean the "
                f"same when files are pruned, when rows are found and when commits are compared. {hint}",
                argument=f"spark_conf.{name}",
            )


@contextlib.contextmanager
def job_settings(spark: SparkSession, time_zone: str) -> Iterator[None]:
    """The settings that a job's SQL is evaluated under; what the session had is put back at the end."""
    silence_query_errors()
    wanted = {**_JOB_SETTINGS, "spark.sql.session.timeZone": time_zone}
    before = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            _set(spark, name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def _set(spark: SparkSession, name: str, value: str) -> None:
    try:
        spark.conf.set(name, value)
    except Exception as error:
        if name == "spark.sql.session.timeZone":
            raise InvalidJobSpec(f"time_zone: Spark knows no time zone {value!r}.", argument="time_zone") from error
        raise


def _start(conf: Mapping[str, str]) -> SparkSession:
    check_has_jvm_side()
    # A worker must be the interpreter of the driver, or it misses pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    defaults = {**_LOCAL_DEFAULTS, "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "spark-warehouse")}
    settings = {**defaults, **conf}
    settings[_JVM] = _with_ours(settings.get(_JVM, ""))
    start_jvm(settings)
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    # What Spark logs of a failed task quotes values. The job's own error says what failed.
    spark.sparkContext.setLogLevel(conf.get("spark.log.level", "OFF"))
    silence_query_errors()
    return spark


def silence_query_errors() -> None:
    """Keep Spark's Python side from printing each failed analysis, SQL text and values included."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _default_session() -> SparkSession | None:
    """The session that this process started first, also from a thread where none is active."""
    found: SparkSession | None = getattr(SparkSession, "_instantiatedSession", None)
    if found is not None and is_classic(found) and found.sparkContext._jsc is None:
        return None  # it was stopped
    return found


def _with_ours(jvm_options: str) -> str:
    return f"{_JVM_OPTIONS} {jvm_options}".strip()


def _check_static(running: SparkSession, conf: Mapping[str, str]) -> None:
    for name, wanted in conf.items():
        if running.conf.isModifiable(name):
            continue
        found = running.conf.get(name, None)
        if found != wanted and not (name == _JVM and found == _with_ours(wanted)):
            raise InvalidJobSpec(
                f"spark_conf asks for {name}, and the Spark that runs in this process has "
                f"{'no such setting' if found is None else 'another value'}; only a start can change it. Run the job "
                "in a child process, or leave the setting out.",
                argument=f"spark_conf.{name}",
            )
