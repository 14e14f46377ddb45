"""Spark sessions for jobs: a local one, made or borrowed, and the settings that fix the meaning of a job's SQL.

A process has one Spark; a second session in it shares the cluster, the JVM and every static setting. The invariants: a
borrowed Spark is never stopped and its other sessions never changed; a static setting that cannot be honoured is an
error, because Spark would silently ignore it. Source: soundness A2.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.spark import class_archive, connect
from airflow_txlog.jobs.spark.causes import condition_of
from airflow_txlog.jobs.spark.installation import check_has_jvm_side, check_one_version
from airflow_txlog.jobs.spark.launch import (
    JARS,
    JVM_OPTIONS,
    LARGEST_RESULTS,
    LOCAL_DEFAULTS,
    QUICK,
    check_stays_closed,
    closed_settings,
    is_one_process,
    jars_in_place,
    start_jvm,
)
from airflow_txlog.process.arrow_memory import BLAS_THREADS, MEMORY_POOL
from airflow_txlog.process.private_folder import temporary_folder
from airflow_txlog.storage.local_files import stat_linked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JVM = "spark.driver.extraJavaOptions"
_JVM_DEFAULTS = "spark.driver.defaultJavaOptions"
_OF_WORKERS = "spark.executorEnv."
_WORKERS_POOL = f"{_OF_WORKERS}{MEMORY_POOL}"

_OF_SIZE = frozenset((QUICK, "spark.master", "spark.driver.memory"))

# Settings that decide how Spark reads a literal, a name or a comparison. The engine reads conditions as Spark does by
# default; a condition that the two read differently could prune a file with a matching row.
MEANING = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.legacy.charVarcharAsString": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "false",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "false",
}
# By default Spark replaces `${env:NAME}` in every text: a table's column name would read the environment of the job.
_SUBSTITUTION = {"spark.sql.variable.substitute": "false"}

# The settings of every job, in addition to its time zone. Fewer and larger batches between the JVM and Python. Spark's
# reader of CSV checks no row that a filter leaves out, and a value that it cut at a quote may be the reason.
_JOB_SETTINGS = {
    **MEANING,
    **_SUBSTITUTION,
    "spark.sql.csv.filterPushdown.enabled": "false",
    # Without its class, an error that our own expressions raise would be one of Spark.
    "spark.sql.legacy.raiseErrorWithoutErrorClass": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # A join whose small side is sent to every task keeps the order of the rows of the other.
    "spark.sql.optimizer.disableHints": "false",
}
# Bind a parameter as a value. Otherwise Spark 4.1 and later write it into the text: a timestamp as a time of the
# session's zone, a negative number after a minus as a comment. Under this setting Spark Connect binds no parameter at
# all; there `sql.bound` passes values in a variable of the session.
_BOUND_AS_VALUES = {"spark.sql.legacy.parameterSubstitution.constantsOnly": "true"}
# A Spark Connect server caches plans by numbers that each client counts from the beginning: in a session that another
# client has used, such as a copy of this task, it would return the other's rows.
_PLANNED_ANEW = {"spark.connect.session.planCache.enabled": "false"}

FILES_BY_SQL = "spark.sql.runSQLOnFiles"
"""The setting under which a relation may be a file, by its format and its path."""

OUR_SETTINGS = "spark.txlog."
"""The prefix of settings that this package reads, and Spark does not."""

# A fact of an error: a server's Spark cannot run the job, but a local Spark could. Nothing was done.
LOCAL_ONLY = {"is_local_only": True}


def local_session(spark_conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return a new session in this process's Spark, and start Spark if there is none.

    Raises InvalidJobSpec (argument `spark_conf.<name>`) for a static setting that the running Spark has otherwise, that
    lets others connect, or that names a cluster; JobError if the installed PySpark cannot work.
    """
    check_one_version()
    conf = dict(spark_conf or {})
    check_stays_closed(conf)
    running = _running_session()
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


def end_session(spark: SparkSession, spark_conf: Mapping[str, str]) -> None:
    """End a session of a process that ends, too; `spark_conf` are the settings with which `local_session` started it.

    A JVM takes two thirds of a second to stop Spark and end. Unless this machine or the job has settings of its own,
    nothing waits for that, and all files are in this process's folder, which is deleted: the JVM is killed.
    """
    jvm = getattr(spark.sparkContext._gateway, "proc", None) if is_classic(spark) else None
    if jvm is None or not _OF_SIZE.issuperset(spark_conf) or class_archive.has_given_options():
        spark.stop()
        return
    # py4j would log the calls that another thread, or the collector, is making.
    logging.disable()
    jvm.kill()
    jvm.wait()


def is_classic(spark: SparkSession) -> bool:
    """Return whether the driver's JVM is in reach; a Spark Connect session has a server instead."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def application_or_session(spark: SparkSession) -> str:
    """Return the id of the application on a cluster, or of the session on Spark Connect."""
    return str(spark.sparkContext.applicationId if is_classic(spark) else spark.session_id)  # type: ignore[attr-defined]


def is_local(spark: SparkSession) -> bool:
    """Return whether the driver and all executors are one process on this machine."""
    return is_classic(spark) and is_one_process(str(spark.sparkContext.master))


def reads_this_disk(spark: SparkSession) -> bool:
    """Return whether `is_local` holds, and a path without a scheme is on this machine's disk."""
    return is_local(spark) and names_this_disk(spark)


def names_this_disk(spark: SparkSession) -> bool:
    """Return whether the driver is in reach, and a path without a scheme is on this machine's disk for it."""
    if not is_classic(spark):
        return False
    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    return str(hadoop.get("fs.defaultFS")).startswith("file:")


def default_parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once."""
    if is_classic(spark):
        return max(1, int(spark.sparkContext.defaultParallelism))
    # Connect shows the number of cores only by the plan of a range, which is cut into as many parts.
    plan: Any = spark.range(1)
    found = re.search(r"\bsplits=(?:Some\()?(\d+)", plan._explain_string())
    return max(1, int(found[1])) if found else 1


def check_meaning(conf: Mapping[str, str], time_zone: str) -> None:
    """Raise InvalidJobSpec (argument `spark_conf.<name>`) if a job's settings would change how Spark reads our SQL."""
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
def job_settings(
    spark: SparkSession, time_zone: str, conf: Mapping[str, str] | None = None, unrestricted: Collection[str] = ()
) -> Iterator[None]:
    """Apply the settings for a job's SQL, and restore the session's own at the end.

    `conf` are the job's own, for a session on a Spark Connect server. Raises InvalidJobSpec (argument
    `spark_conf.<name>`) for a setting that the server would ignore.
    """
    silence_query_errors()
    wanted = {**_JOB_SETTINGS, "spark.sql.session.timeZone": time_zone}
    if is_classic(spark):
        wanted |= _BOUND_AS_VALUES
    else:
        own = {name: value for name, value in (conf or {}).items() if not name.startswith(OUR_SETTINGS)}
        _check_static(spark, own)
        wanted = {**{name: value for name, value in own.items() if spark.conf.isModifiable(name)}, **wanted}
        wanted |= _PLANNED_ANEW
    if "query" not in unrestricted:
        wanted |= {FILES_BY_SQL: "false"}
    with session_settings(spark, wanted):
        yield


@contextlib.contextmanager
def session_settings(spark: SparkSession, wanted: Mapping[str, str | None]) -> Iterator[None]:
    """Apply these settings, and restore the session's own at the end. Raises InvalidJobSpec for an unknown zone."""
    before = _settings_of(spark, wanted)
    try:
        _change_settings(spark, wanted)
        yield
    finally:
        with contextlib.suppress(Exception):  # its Spark may be gone, and the cause is being raised
            _change_settings(spark, before)


def _settings_of(spark: SparkSession, names: Iterable[str]) -> dict[str, str | None]:
    if not is_classic(spark):
        return connect.settings_of(spark, names)
    return {name: spark.conf.get(name, None) for name in names}


def _change_settings(spark: SparkSession, values: Mapping[str, str | None]) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        if not is_classic(spark):
            connect.change_settings(spark, values)
            return
        for name, value in values.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
    except PySparkException as error:
        if condition_of(error) != "INVALID_CONF_VALUE.TIME_ZONE":
            raise
        zone = values.get("spark.sql.session.timeZone")
        raise InvalidJobSpec(
            f"time_zone: Spark knows no time zone {zone!r}. Write a region such as Europe/Berlin, UTC, or an offset "
            "such as +02:00. Nothing was read.",
            argument="time_zone",
        ) from error


def _start(conf: Mapping[str, str]) -> SparkSession:
    check_has_jvm_side()
    # A worker must be the interpreter of the driver, or it misses pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # For the JVM that builds Spark's command line.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", class_archive.QUICK_COMPILER)
    folder = temporary_folder()
    # Not at a name that another user of the machine could take first.
    defaults = {**LOCAL_DEFAULTS, "spark.sql.warehouse.dir": os.path.join(folder, "warehouse")}
    defaults[f"{_OF_WORKERS}{BLAS_THREADS}"] = os.environ.get(BLAS_THREADS) or "1"
    if "jemalloc" in pa.supported_memory_backends():
        # As in a job's own process: it asks the kernel less often for pages, which the kernel clears.
        defaults[_WORKERS_POOL] = os.environ.get(MEMORY_POOL) or "jemalloc"
    settings = {**defaults, **conf, **closed_settings(folder)}
    _start_jvm(settings)
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    jvm: Any = SparkContext._jvm
    # Including those that `spark-submit` has found for spark.jars.packages.
    jars = jvm.java.lang.System.getProperty(JARS) or settings.get(JARS)
    if jars:
        settings[JARS] = jars_in_place(jars)
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    # Spark's log of a failed task quotes values. The job's own error names the failure.
    spark.sparkContext.setLogLevel(conf.get("spark.log.level", "OFF"))
    silence_query_errors()
    return spark


def _start_jvm(settings: dict[str, str]) -> None:
    """Start the JVM, with the archive of Spark's classes if that works, and add its options to the settings."""
    asked = settings.get(_JVM, "")
    if settings.get(QUICK) == "true":
        asked = f"{class_archive.QUICK_COMPILER} {asked}".strip()
    if class_archive.is_chosen_in(f"{settings.get(_JVM_DEFAULTS, '')} {asked}"):
        class_archive.give_up()
    settings[_JVM] = _with_ours(asked)
    try:
        start_jvm(settings)
    except Exception:
        archive = class_archive.give_up()
        if archive is None:
            raise
        settings[_JVM] = _with_ours(asked)
        start_jvm(settings)
        class_archive.remove(archive)


def silence_query_errors() -> None:
    """Keep Spark's Python side from printing each failed analysis, SQL text and values included."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def has_session() -> bool:
    """Return whether this process has a Spark that `local_session` would use."""
    check_one_version()
    return _running_session() is not None


def _running_session() -> SparkSession | None:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a job without Spark imports no PySpark

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # In a thread without an active session: the session that this process started first.
    found: SparkSession | None = getattr(SparkSession, "_instantiatedSession", None)
    is_stopped = found is not None and is_classic(found) and found.sparkContext._jsc is None
    return None if is_stopped else found


def _with_ours(jvm_options: str) -> str:
    # Spark spills to this folder unless spark.local.dir names another. A JVM ignores TMPDIR, and one that is killed
    # deletes nothing.
    ours = (JVM_OPTIONS, f'"-Djava.io.tmpdir={temporary_folder()}"', class_archive.jvm_options())
    return " ".join(filter(None, (*ours, jvm_options)))


def _is_as_wanted(name: str, found: str | None, wanted: str) -> bool:
    if name == JARS and found is not None and found != wanted:
        # Those of spark.jars.packages are there too.
        return set(jars_in_place(wanted).split(",")) <= set(found.split(","))
    if name in LARGEST_RESULTS and found == LARGEST_RESULTS[name]:
        return True
    return found == wanted or (name == _JVM and found == _with_ours(wanted))


def _check_static(running: SparkSession, conf: Mapping[str, str]) -> None:
    for name, wanted in conf.items():
        if running.conf.isModifiable(name):
            continue
        found = running.conf.get(name, None)
        if not _is_as_wanted(name, found, wanted):
            raise InvalidJobSpec(
                f"spark_conf asks for {name}, and the Spark that runs already has "
                f"{'no such setting' if found is None else 'another value'}; only a start can change it. Run the job "
                "in a child process, or leave the setting out.",
                argument=f"spark_conf.{name}",
            )


def has_settings_of_its_own() -> bool:
    """Return whether there may be a file of settings that a local Spark would read at its start."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    return bool(folder) and stat_linked(os.path.join(str(folder), "spark-defaults.conf")) is not None
