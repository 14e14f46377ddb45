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
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from airflow_txlog.contract import JobSpec
from airflow_txlog.datafiles.tasks import error_in
from airflow_txlog.errors import InvalidInput, JobError, JobLost, TxlogError

_MESSAGE_CHARS = 2_000
# SQLSTATE class 22 is "data exception": a cast that fails, a division by zero, a value that overflows.
_DATA_EXCEPTION = "22"
# What Spark says of a process of its own that died: a Python worker, an executor, the driver's JVM while others wait.
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
    """The error of ours that Spark's exception amounts to."""
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
    message = first_lines(error)
    state = sql_state(error)
    if state is not None and state.startswith(_DATA_EXCEPTION):
        return InvalidInput(f"While Spark was to {what}: {message}")
    failed = "Could not" if isinstance(error, OSError) else "Spark failed to"
    return JobError(
        f"{failed} {what}: {type(error).__name__}: {message}",
        cause_type=condition_of(error) or type(error).__name__,
    )


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
    return _ask(error, "getCondition")


def sql_state(error: Exception) -> str | None:
    """Spark's SQLSTATE of the error."""
    return _ask(error, "getSqlState")


def first_lines(error: Exception) -> str:
    """The message without the stack of the JVM and without the plan."""
    text = re.split(r"\n(?:\s+at [\w.$]+\(|JVM stacktrace:|== SQL|'?\w+ \[|;\n)", str(error), maxsplit=1)[0]
    return text.strip()[:_MESSAGE_CHARS]


def _ask(error: BaseException, method: str) -> str | None:
    if not isinstance(error, PySparkException):
        return None
    try:
        found: Any = getattr(error, method)()
    except Exception:  # an exception of the JVM that Spark did not make has neither
        return None
    return None if found is None else str(found)
