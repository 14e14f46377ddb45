"""Spark jobs run and their errors told apart: ours, the author's, and the machine's.

The invariant: an error that a worker of ours raised comes out as itself; one that Spark blames on the data or the SQL
is the author's and is not retried; whatever is left is a `JobError` that names Spark's own class.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from airflow_txlog.datafiles.tasks import error_in
from airflow_txlog.errors import InvalidInput, JobError, TxlogError

_MESSAGE_CHARS = 2_000
# SQLSTATE class 22 is "data exception": a cast that fails, a division by zero, a value that overflows.
_DATA_EXCEPTION = "22"


def collect(frame: DataFrame, what: str) -> pa.Table:
    """The rows of a frame, evaluated once. `what` says in an error what was being done.

    Raises the TxlogError of a worker, InvalidInput for values that the SQL cannot handle, JobError for the rest.
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
    message = first_lines(error)
    state = sql_state(error)
    if state is not None and state.startswith(_DATA_EXCEPTION):
        return InvalidInput(f"While Spark was to {what}: {message}")
    failed = "Could not" if isinstance(error, OSError) else "Spark failed to"
    return JobError(
        f"{failed} {what}: {type(error).__name__}: {message}",
        cause_type=condition_of(error) or type(error).__name__,
    )


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
