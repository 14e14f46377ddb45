"""Run Spark jobs, and attribute a failure: to this package, to the author, or to the machine.

The invariant: an error that one of our workers raised is raised unchanged. One that Spark blames on the data or the SQL
is the author's and is not retried. A Spark process that died is `JobLost`. Anything else is a `JobError` that names
Spark's own class.
"""

from __future__ import annotations

import codecs
import re
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.datafiles.failures import OTHER_HEADER_TEXT, Misfit, row_does_not_fit, text_of
from airflow_txlog.datafiles.installed import unfit_executor
from airflow_txlog.errors import (
    ClusterLost,
    ExecutorsLost,
    InvalidInput,
    JobError,
    JobLost,
    OutOfMemory,
    SchemaMismatch,
    TxlogError,
)
from airflow_txlog.jobs.spark.causes import Cause, causes_of, describe
from airflow_txlog.jobs.spark.connect import status_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SQL_CHARS = 200
_EVENTS_MS, _MOST_TASKS = 2_000, 1_000
# A literal whose end was cut off runs to the end of the text.
_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)""", re.DOTALL)

# --- what a cause means: the first entry that fits ------------------------------------------------------------------

# SQLSTATE classes that blame the data: cardinality ("more than one row"), data exception (a cast that fails, a division
# by zero, a value that overflows), integrity (a map key twice), an error that the SQL itself raises.
_DATA_EXCEPTIONS = ("21", "22", "23", "P0")
# Source: Spark, CharsetProvider.
_ENCODINGS = ("US-ASCII", "ISO-8859-1", "UTF-8", "UTF-16BE", "UTF-16LE", "UTF-16", "UTF-32")
_MALFORMED = "MALFORMED_RECORD_IN_PARSING"
_OTHER_HEADER = "_LEGACY_ERROR_TEMP_3241"
_OTHER_TYPE = "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH"
# Conditions of Spark Connect: cancelled, or for a session that was released or that a new server does not know.
_ENDED = ("OPERATION_CANCELED", "INVALID_HANDLE.")
_JVM_GONE, _ENDED_APPLICATION = "the driver's JVM is gone", "its application has ended"
_DEATHS: dict[str, tuple[type[JobLost], str]] = {
    "ExecutorLostFailure": (
        ExecutorsLost,
        "Executors died in a task more often than spark.task.maxFailures. Most often memory ran out: raise "
        "spark.executor.memoryOverhead, which has Python and Arrow, or spark.executor.memory, or lower "
        "spark.executor.cores, the tasks of one executor.",
    ),
    **dict.fromkeys(
        ("Master removed our application", "All masters are unresponsive", _ENDED_APPLICATION),
        (ClusterLost, "The cluster ended the application, or is gone: its master knows why."),
    ),
    "": (
        JobLost,
        "Most often memory ran out: give the job more of it (spark.driver.memory, or on a cluster "
        "spark.executor.memoryOverhead), or the machine fewer jobs at once.",
    ),
}
_MORE_MEMORY = (
    " Spark's memory ran out: give the job more of it (spark.driver.memory where Spark is local, spark.executor.memory "
    "on a cluster), or run fewer tasks at a time."
)
_ADVICE = {
    ("Not a directory",): " A file lies where the table's folder, or one above it, must be: correct the path.",
    ("Read-only file system",): (
        " The disk is mounted read-only on the machine that runs the job: mount it read-write, or put the table on "
        "another disk."
    ),
    ("Permission denied: 's3:", "Permission denied: 'gs:", "Permission denied: 'abfss:"): (
        " The credentials of the process that asked do not allow it; executors on other machines have their own."
    ),
    (
        "Permission denied",
        "Operation not permitted",
    ): (
        " The user that runs the job has no right to it: let this user read and write the table's folder. A cluster "
        "and a Connect server have users of their own."
    ),
    ("No space left on device", "Disk quota exceeded"): (
        " The disk is full. If no file is named, it is that of spark.local.dir, where a shuffle spills. Free space on "
        "it, or enlarge it: a VACUUM deletes a table's old files."
    ),
    ("is not a Parquet file",): (
        " Name the format of the source's files (format=…), or leave this file out of its path."
    ),
    ("maxResultSize",): " More came back to the driver than spark.driver.maxResultSize allows: raise it.",
    (
        *("OutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY", "CANNOT_ACQUIRE_MEMORY", "Java heap space"),
        *("GC overhead limit exceeded", "Direct buffer memory", "Cannot broadcast the table"),
    ): _MORE_MEMORY,
}


def collect(frame: DataFrame, what: str) -> pa.Table:
    """Return the rows of a frame, evaluated once. `what` names the work in errors.

    Raises the TxlogError of a worker, InvalidInput for values, JobLost if a process of Spark died, else JobError.
    """
    try:
        return frame.toArrow()
    except Exception as error:
        raise translate(error, what) from error


def failure_of(spec: JobSpec, error: Exception) -> TxlogError:
    """Return the error with which a job ends. A lost one knows whether its commit could be recognised."""
    found = translate(error, f"run the {spec.operation.name} job")
    if isinstance(found, JobLost):
        known = found.facts | {"has_application_transaction": spec.application is not None}
        return type(found)(found.message, **known)
    return found


def translate(error: Exception, what: str) -> TxlogError:
    """Return our error for an exception. Its first line names the cause, and no value."""
    if isinstance(error, TxlogError):
        return error
    if "pyspark" not in sys.modules:
        # Spark was never started.
        return _job_error(f"Cannot {what}: {text_of(error)}", type(error).__name__)
    from py4j.protocol import Py4JError  # noqa: PLC0415 - a job without Spark imports no PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415

    causes = causes_of(error)
    found = _first(causes, "found")
    if found is not None:
        return of_worker(found, what)
    if any((cause.condition or "").startswith(_MALFORMED) for cause in causes):
        file = next((cause.facts["path"] for cause in causes if "path" in cause.facts), None)
        return row_does_not_fit(file, Misfit())
    encoding = next((cause.facts["charset"] for cause in causes if "charset" in cause.facts), None)
    if encoding is not None:
        return _other_encoding(encoding)
    # Before any other match: Spark's message about the data quotes a value, which may look like any failure.
    blamed = next((cause for cause in causes if (cause.state or "").startswith(_DATA_EXCEPTIONS)), None)
    if blamed is not None:
        fault = _data_exception(error, blamed, causes)
        # With the author's SQL in it, the message shows the place already.
        column_type = _type_of_column(blamed) if _sql_of(error) is None else None
        facts = {} if column_type is None else {"column_type": column_type}
        return InvalidInput(f"While Spark was to {what}: {fault}", **facts)
    if any(cause.condition == _OTHER_HEADER or OTHER_HEADER_TEXT in cause.words for cause in causes):
        path = next((cause.facts["path"] for cause in causes if "path" in cause.facts), "of the source")
        return SchemaMismatch(
            f"The header of the source's file {path} does not have the names of the schema's columns, in their order. "
            'Nothing was committed. If the file has no header, leave out the option "header". Otherwise write the '
            "schema with the names of the file, in its order.",
            file=path,
        )
    mismatch = next((cause.facts for cause in causes if cause.condition == _OTHER_TYPE), None)
    if mismatch is not None:
        return InvalidInput(f"Cannot {what}: {_mismatch(mismatch)}. Nothing was committed.")
    lacks = _first(causes, "lacks")
    if lacks is not None:
        return unfit_executor(_first(causes, "host") or _host_of_failed_task(), None, (lacks,))
    died = _what_died(error, causes)
    if died is not None:
        kind, advice = next(found for mark, found in _DEATHS.items() if mark in died)
        return kind(f"Spark failed to {what}: {died}. {advice}", cause_type=type(error).__name__)
    is_of_spark = isinstance(error, PySparkException | Py4JError)
    cause = f"Spark raised {causes[-1].name}: {describe(error)}" if is_of_spark else text_of(error)
    return _job_error(f"Cannot {what}: {cause}", _first(causes, "condition") or type(error).__name__)


def _other_encoding(name: str) -> InvalidInput:
    """Return the error for a source in an encoding that Spark knows by another name, or not without a setting."""
    try:
        # Spark reads a file with the mark as UTF-8.
        found = codecs.lookup(name).name.removesuffix("-sig")
    except LookupError:
        found = ""
    same = next((known for known in _ENCODINGS if codecs.lookup(known).name == found), None)
    advice = (
        "Have the files written in UTF-8, or give the job the setting spark.sql.legacy.javaCharsets=true, with which "
        "Spark reads the encodings of Java, such as windows-1252."
    )
    if same is not None:
        advice = f'Did you mean "encoding": "{same}"?'
    return InvalidInput(
        f"Spark does not know the encoding {name!r} of the source. It knows {', '.join(_ENCODINGS)}. Nothing was "
        f"committed. {advice}"
    )


def _first(causes: Sequence[Cause], name: str) -> Any:
    """Return this attribute of the outermost cause that has one."""
    return next((value for cause in causes if (value := getattr(cause, name)) is not None), None)


def of_worker(found: TxlogError, what: str) -> TxlogError:
    """Return the error of a worker; one outside our rules names the work that failed."""
    if type(found) is not JobError or found.facts.get("cause_type") is None:
        return found
    return _job_error(f"Cannot {what}: {found.message}", found.facts["cause_type"])


def _job_error(cause: str, cause_type: str) -> JobError:
    advice = next((advice for marks, advice in _ADVICE.items() if any(mark in cause for mark in marks)), "")
    return (OutOfMemory if advice == _MORE_MEMORY else JobError)(f"{cause}.{advice}", cause_type=cause_type)


# --- the data's fault -----------------------------------------------------------------------------------------------


def _data_exception(error: Exception, blamed: Cause, causes: Sequence[Cause]) -> str:
    """Return the fault of the data, and the SQL that it is in, without Spark's own message: it holds the value."""
    if "sourceType" in blamed.facts and "targetType" in blamed.facts:
        found, wanted = (blamed.facts[name].strip('"') for name in ("sourceType", "targetType"))
        what = f"a value of type {found} cannot be cast to {wanted}"
    elif (kind := _type_of_column(blamed)) is not None:
        what = f"a value does not fit {kind.upper()}"
    else:
        # The other causes of the chain show the place: the file that was read.
        shown = ": ".join(cause.text() for cause in causes if cause.says_something)
        what = f"{shown} (SQLSTATE {blamed.state})"
    sql = _sql_of(error)
    if sql is None:
        return f"{what}. The value is not shown."
    names = [f":{name}" for name in dict.fromkeys(re.findall(r"(?<!:):(\w+)", sql))]
    given = f" Give {' or '.join(names)} in parameters a value of that type." if names else ""
    return f"{what} in {sql!r}.{given} The value is not shown."


def _type_of_column(blamed: Cause) -> str | None:
    """Return the type into which a value did not fit, as a column has it; None if no type is named."""
    if blamed.facts.keys() >= {"precision", "scale"}:
        return f"decimal({blamed.facts['precision']},{blamed.facts['scale']})"
    wanted = blamed.facts.get("targetType")
    return None if wanted is None else wanted.strip('"').lower()


def _sql_of(error: Exception) -> str | None:
    """Return the part of the author's SQL that Spark blames, without literals; None if Spark names none."""
    try:
        context = error.getQueryContext()[0]  # type: ignore[attr-defined]
        fragment, summary = context.fragment(), context.summary()
    except Exception:  # there is none, or it comes from the DataFrame API
        return None
    if fragment == "cast":
        # The name of the method of a DataFrame by which we fit values to columns.
        return None
    # The fragment ends before the name of a last parameter, and begins after the left side of an IN.
    around = rf"(?:[\w.`]+\s+(?:NOT\s+)?(?=(?:IN|BETWEEN|LIKE)\b))?{re.escape(fragment)}\w*"
    found = re.search(around, summary, re.IGNORECASE)
    text = fragment if found is None else found[0]
    return " ".join(_LITERAL.sub("'…'", text).split())[:_SQL_CHARS]


def _mismatch(facts: dict[str, str]) -> str:
    return (
        f"the file {facts.get('path')} of the source has column {facts.get('column')} as {facts.get('physicalType')}, "
        f"and it is read as {facts.get('logicalType')}. Have the files written with one type, leave the column out, or "
        "read the files of each type by a path of their own"
    )


# --- processes of Spark ---------------------------------------------------------------------------------------------


def _what_died(error: Exception, causes: Sequence[Cause]) -> str | None:
    """Return the process of Spark whose death an exception reports; None for any other exception."""
    death: str | None = _first(causes, "death")
    if death is not None:
        return death
    chain = [each for each in (error, error.__cause__, error.__context__) if each is not None]
    if any(map(_is_of_gateway, chain)):
        return _JVM_GONE
    if any(status_of(each) == "UNAVAILABLE" for each in chain):
        return "the Spark Connect server is gone"
    if any((cause.condition or "").startswith(_ENDED) for cause in causes):
        return "its session on the Spark Connect server was ended, as a later try of the same work does"
    return _end_of_driver()


def _is_of_gateway(error: BaseException) -> bool:
    """Return whether the connection to the driver's JVM broke, and not one to a store."""
    # By name: a Spark Connect client has no JVM, and need not have py4j.
    if type(error).__name__ == "Py4JNetworkError":
        return True
    if not isinstance(error, ConnectionError):
        return False
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name.startswith("py4j.") for name in frames)


def _end_of_driver() -> str | None:
    """Return how this process's own Spark ended, if it has: the exception of a call to it does not show it."""
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark import SparkContext  # noqa: PLC0415

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return None
    try:
        gateway.jvm.java.lang.System.nanoTime()
        context: Any = SparkContext._active_spark_context
        ended = context is not None and context._jsc.sc().isStopped()
    except (Py4JError, ConnectionError):
        return _JVM_GONE
    # Only its own process stops a local one.
    return _ENDED_APPLICATION if ended and not context.master.startswith("local[") else None


def _host_of_failed_task() -> str | None:
    """Return the machine of a failed task of the last failed stage, if this process's Spark knows it."""
    from pyspark import SparkContext  # noqa: PLC0415

    context: Any = SparkContext._active_spark_context
    try:
        spark = context._jsc.sc()
        # Events reach the store through this queue.
        spark.listenerBus().waitUntilEmpty(_EVENTS_MS)
        store, no_quantiles = spark.statusStore(), context._gateway.new_array(context._jvm.double, 0)
        stages = store.stageList(None, False, False, no_quantiles, context._jvm.java.util.ArrayList())
        failed = next(stage for stage in map(stages.apply, range(stages.size())) if stage.status().name() == "FAILED")
        tasks = store.taskList(failed.stageId(), failed.attemptId(), _MOST_TASKS)
        return next(str(task.host()) for task in map(tasks.apply, range(tasks.size())) if task.status() == "FAILED")
    except Exception:  # there is no such Spark, or it has ended
        return None
