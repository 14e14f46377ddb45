"""Spark jobs run and their errors told apart: ours, the author's, and the machine's.

The invariant: an error that a worker of ours raised comes out as itself; one that Spark blames on the data or the SQL
is the author's and is not retried; a process of Spark that died is `JobLost`; whatever is left is a `JobError` that
names Spark's own class.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from airflow_txlog.contract import JobSpec
from airflow_txlog.datafiles.tasks import error_in
from airflow_txlog.errors import InvalidInput, JobError, JobLost, TxlogError

_MESSAGE_CHARS = 2_000
_SQL_CHARS = 200
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'")
_NO_CONNECTOR = re.compile(r'No FileSystem for scheme "([^"]+)"')
# SQLSTATE class 22 is "data exception": a cast that fails, a division by zero, a value that overflows.
_DATA_EXCEPTION = "22"
# How Spark reports a process of its own that died: a Python worker, an executor, the driver's JVM while others wait.
_DEATH = re.compile(
    r"Python worker exited unexpectedly[^.\n]*|Python worker failed to connect back|ExecutorLostFailure[^\n]*"
    r"|SparkContext (?:was|has been) shut ?down"
)


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
    found = error_in(str(error))
    if found is not None:
        return found
    died = _what_died(error)
    if died is not None:
        return JobLost(
            f"Spark failed to {what}: {died}. Most often memory ran out: give the job more of it "
            "(spark.driver.memory), or the machine fewer jobs at once.",
            cause_type=type(error).__name__,
        )
    state = sql_state(error)
    if state is not None and state.startswith(_DATA_EXCEPTION):
        return InvalidInput(f"While Spark was to {what}: {_data_exception(error)}")
    if isinstance(error, OSError):
        name, cause = type(error).__name__, _os_error(type(error).__name__, str(error))
    elif (raised := _raised_in_worker(error)) is not None:
        name, cause = raised
    else:
        name = type(error).__name__
        raiser = "Spark raised " if isinstance(error, PySparkException | Py4JError) else ""
        cause = f"{raiser}{name}: {first_lines(error)}"
    return JobError(f"Cannot {what}: {cause}", cause_type=condition_of(error) or name)


def _data_exception(error: Exception) -> str:
    """What of SQLSTATE class 22 happened, and in which SQL. Spark's own message holds the value, which may be a key."""
    facts = _ask(error, "getMessageParameters") or {}
    if "sourceType" in facts and "targetType" in facts:
        found, wanted = (str(facts[name]).strip('"') for name in ("sourceType", "targetType"))
        what = f"a value of type {found} cannot be cast to {wanted}"
    else:
        what = f"{condition_of(error)} (SQLSTATE {sql_state(error)})"
    sql = _sql_of(error)
    if sql is None:
        return f"{what}. The value is not shown."
    names = [f":{name}" for name in dict.fromkeys(re.findall(r"(?<!:):(\w+)", sql))]
    given = f" Give {' or '.join(names)} in parameters a value of that type." if names else ""
    return f"{what} in {sql!r}.{given} The value is not shown."


def _sql_of(error: Exception) -> str | None:
    """The part of the author's SQL that Spark blames, without literals; None where Spark names none."""
    contexts = _ask(error, "getQueryContext") or []
    try:
        fragment, summary = contexts[0].fragment(), contexts[0].summary()
    except Exception:  # there is none, or it is of the DataFrame API
        return None
    # The fragment ends before the name of a last parameter, and begins behind the left side of an IN.
    around = rf"(?:[\w.`]+\s+(?:NOT\s+)?(?=(?:IN|BETWEEN|LIKE)\b))?{re.escape(fragment)}\w*"
    found = re.search(around, summary, re.IGNORECASE)
    text = fragment if found is None else found[0]
    return " ".join(_LITERAL.sub("'…'", text).split())[:_SQL_CHARS]


def _raised_in_worker(error: Exception) -> tuple[str, str] | None:
    """The class and the text of what a Python worker raised; None where it was no worker."""
    if "Traceback (most recent call last)" not in str(error):
        return None
    # The line that closes the traceback stands at the margin, as no other of it does.
    raised = re.findall(r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt)): (.*)$", str(error), re.MULTILINE)
    raised = [(name, text) for name, text in raised if not name.startswith(("org.", "java."))]
    if not raised:
        return None
    name, text = raised[-1]
    name = name.rsplit(".", 1)[-1]
    return name, _os_error(name, text)


def _os_error(name: str, text: str) -> str:
    """A cause in the system's words, the place, and what to do about it where that is plain."""
    advice = next((advice for mark, advice in _OS_ADVICE.items() if mark in text), "")
    return f"{name}: {text.rstrip('.')[:_MESSAGE_CHARS]}.{advice}"


_OS_ADVICE = {
    "Read-only file system": " The disk is mounted read-only on the machine that runs the job.",
    "Permission denied": " The user that runs the job has no right to it.",
    "Operation not permitted": " The user that runs the job has no right to it.",
    "No space left on device": " The disk is full.",
}


def failure_of(spec: JobSpec, error: Exception) -> TxlogError:
    """The error with which a job ends. A lost one knows whether its commit could be recognised."""
    found = translate(error, f"run the {spec.operation} job")
    if isinstance(found, JobLost):
        return JobLost(found.message, **(found.facts | {"has_application_transaction": spec.application is not None}))
    return found


def _what_died(error: Exception) -> str | None:
    """The process of Spark whose death an exception reports; None for any other exception."""
    found = _DEATH.search(str(error))
    if found is not None:
        return found[0]
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


def condition_of(error: BaseException) -> str | None:
    """Spark's name of the error, such as `UNRESOLVED_COLUMN.WITH_SUGGESTION`."""
    found = _ask(error, "getCondition")
    return None if found is None else str(found)


def sql_state(error: Exception) -> str | None:
    """Spark's SQLSTATE of the error."""
    found = _ask(error, "getSqlState")
    return None if found is None else str(found)


def first_lines(error: Exception) -> str:
    """The message without the stack of the JVM and without the plan."""
    text = re.split(r"\n(?:\s+at [\w.$]+\(|JVM stacktrace:|== SQL|'?\w+ \[|;\n)", str(error), maxsplit=1)[0]
    # What Py4J puts before an exception of the JVM says nothing about its cause.
    text = re.sub(r"^An error occurred while calling \S+\n: (?:[\w$]+\.)*", "", text)
    missing = _NO_CONNECTOR.search(text)
    if missing is not None:
        text += (
            f". This Spark has no connector for {missing[1]}://. Give it one by spark_conf (spark.jars.packages), or "
            "use a local path."
        )
    return text.strip()[:_MESSAGE_CHARS]


def _ask(error: BaseException, method: str) -> Any:
    if not isinstance(error, PySparkException):
        return None
    try:
        return getattr(error, method)()
    except Exception:  # an exception of the JVM that Spark did not make has none
        return None
