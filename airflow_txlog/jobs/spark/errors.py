"""Spark jobs run, and whose error it is when one fails: ours, the author's, and the machine's.

The invariant: an error that a worker of ours raised comes out as itself; one that Spark blames on the data or the SQL
is the author's and is not retried; a process of Spark that died is `JobLost`; whatever is left is a `JobError` that
names Spark's own class.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from airflow_txlog.contract import JobSpec
from airflow_txlog.datafiles.failures import text_of
from airflow_txlog.errors import InvalidInput, JobError, JobLost, TxlogError
from airflow_txlog.jobs.spark.causes import Cause, causes_of, describe

_SQL_CHARS = 200
# One whose end was cut off runs to the end of the text.
_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)""", re.DOTALL)
# SQLSTATE classes that blame the data: cardinality ("more than one row"), data exception (a cast that fails, a division
# by zero, a value that overflows), integrity (a map key twice), an error that the SQL itself raises.
_DATA_EXCEPTIONS = ("21", "22", "23", "P0")


def collect(frame: DataFrame, what: str) -> pa.Table:
    """The rows of a frame, evaluated once. `what` says in an error what was being done.

    Raises the TxlogError of a worker, InvalidInput for values that the SQL cannot handle, JobLost where a process of
    Spark died, JobError for the rest.
    """
    try:
        return frame.toArrow()
    except Exception as error:
        raise translate(error, what) from error


def translate(error: Exception, what: str) -> TxlogError:
    """The error of ours that an exception amounts to. Its first line names the cause, and none a value."""
    if isinstance(error, TxlogError):
        return error
    causes = causes_of(error)
    found = next((cause.found for cause in causes if cause.found is not None), None)
    if found is not None:
        return _of_worker(found, what)
    blamed = next((cause for cause in causes if (cause.state or "").startswith(_DATA_EXCEPTIONS)), None)
    if blamed is not None:
        return InvalidInput(f"While Spark was to {what}: {_data_exception(error, blamed, causes)}")
    died = _what_died(error, causes)
    if died is not None:
        return JobLost(
            f"Spark failed to {what}: {died}. Most often memory ran out: give the job more of it "
            "(spark.driver.memory), or the machine fewer jobs at once.",
            cause_type=type(error).__name__,
        )
    is_of_spark = isinstance(error, PySparkException | Py4JError)
    cause = f"Spark raised {causes[-1].name}: {describe(error)}" if is_of_spark else text_of(error)
    condition = next((each.condition for each in causes if each.condition is not None), None)
    return JobError(f"Cannot {what}: {cause}.{_advice(cause)}", cause_type=condition or type(error).__name__)


def _of_worker(found: TxlogError, what: str) -> TxlogError:
    """The error of a worker; one outside our rules says what failed."""
    if type(found) is not JobError or found.facts.get("cause_type") is None:
        return found
    return JobError(f"Cannot {what}: {found.message}.{_advice(found.message)}", **found.facts)


def _data_exception(error: Exception, blamed: Cause, causes: Sequence[Cause]) -> str:
    """What the data is blamed for, and in which SQL. Spark's own message holds the value, which may be a key."""
    if "sourceType" in blamed.facts and "targetType" in blamed.facts:
        found, wanted = (blamed.facts[name].strip('"') for name in ("sourceType", "targetType"))
        what = f"a value of type {found} cannot be cast to {wanted}"
    else:
        # The causes around it say where: the file that was read.
        shown = ": ".join(cause.text() for cause in causes if cause.says_something)
        what = f"{shown} (SQLSTATE {blamed.state})"
    sql = _sql_of(error)
    if sql is None:
        return f"{what}. The value is not shown."
    names = [f":{name}" for name in dict.fromkeys(re.findall(r"(?<!:):(\w+)", sql))]
    given = f" Give {' or '.join(names)} in parameters a value of that type." if names else ""
    return f"{what} in {sql!r}.{given} The value is not shown."


def _sql_of(error: Exception) -> str | None:
    """The part of the author's SQL that Spark blames, without literals; None where Spark names none."""
    try:
        context = error.getQueryContext()[0]  # type: ignore[attr-defined]
        fragment, summary = context.fragment(), context.summary()
    except Exception:  # there is none, or it is of the DataFrame API
        return None
    # The fragment ends before the name of a last parameter, and begins behind the left side of an IN.
    around = rf"(?:[\w.`]+\s+(?:NOT\s+)?(?=(?:IN|BETWEEN|LIKE)\b))?{re.escape(fragment)}\w*"
    found = re.search(around, summary, re.IGNORECASE)
    text = fragment if found is None else found[0]
    return " ".join(_LITERAL.sub("'…'", text).split())[:_SQL_CHARS]


def _advice(cause: str) -> str:
    """What to do about a cause, where that is plain."""
    return next((advice for marks, advice in _ADVICE.items() if any(mark in cause for mark in marks)), "")


_MORE_MEMORY = (
    " Spark's memory ran out: give the job more of it (spark.driver.memory where Spark is local, spark.executor.memory "
    "on a cluster), or run fewer tasks at a time."
)
# By what a cause says; the first that fits.
_ADVICE = {
    ("Read-only file system",): " The disk is mounted read-only on the machine that runs the job.",
    ("Permission denied: 's3:", "Permission denied: 'gs:", "Permission denied: 'abfss:"): (
        " The credentials of the process that asked do not allow it; executors on other machines have their own."
    ),
    ("Permission denied", "Operation not permitted"): " The user that runs the job has no right to it.",
    ("No space left on device",): (
        " The disk is full: the table's, or the one that spark.local.dir names, for what is shuffled and does not fit "
        "into memory."
    ),
    ("maxResultSize",): " More came back to the driver than spark.driver.maxResultSize allows: raise it.",
    (
        "OutOfMemoryError",
        "UNABLE_TO_ACQUIRE_MEMORY",
        "CANNOT_ACQUIRE_MEMORY",
        "Java heap space",
        "GC overhead limit exceeded",
        "Direct buffer memory",
        "Cannot broadcast the table",
    ): _MORE_MEMORY,
}


def failure_of(spec: JobSpec, error: Exception) -> TxlogError:
    """The error with which a job ends. A lost one knows whether its commit could be recognised."""
    found = translate(error, f"run the {spec.operation.name} job")
    if isinstance(found, JobLost):
        return JobLost(found.message, **(found.facts | {"has_application_transaction": spec.application is not None}))
    return found


def _what_died(error: Exception, causes: Sequence[Cause]) -> str | None:
    """The process of Spark whose death an exception reports; None for any other exception."""
    death = next((cause.death for cause in causes if cause.death is not None), None)
    if death is not None:
        return death
    if any(_is_of_gateway(cause) for cause in (error, error.__cause__, error.__context__)):
        return "the driver's JVM is gone"
    return None


def _is_of_gateway(error: BaseException | None) -> bool:
    """Whether it is the connection to the driver's JVM that broke, and not one to a store."""
    # By name: a Spark Connect client has no JVM, and need not have py4j.
    if type(error).__name__ == "Py4JNetworkError":
        return True
    if not isinstance(error, ConnectionError):
        return False
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name.startswith("py4j.") for name in frames)
