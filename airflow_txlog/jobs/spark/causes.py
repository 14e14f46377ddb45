"""The causes of a Spark exception as reports show them: conditions, classes and places of its chain, and no value.

Spark's sentences quote the values of rows and parameters. The invariant: no sentence of an exception is copied. A
report has Spark's name of the condition, those of its facts that are names, types and counts (`FACTS`), the class of
the exception in the JVM, sentences that this module lists, and for a worker the report of `datafiles.failures`. The
one exception is `analysis_text`, for a text to which no value is bound.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_txlog.datafiles.failures import (
    SENTENCES,
    Misfit,
    error_in,
    is_exception,
    is_own_source,
    row_does_not_fit,
    text_of,
)
from airflow_txlog.errors import TxlogError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_MAX_CHAIN = 16
_FACT_CHARS = 300
_TEXT_CHARS = 2_000

# Facts that are names, types or counts in every condition of Spark that has them.
_NAMES = """objectName proposal relationName routineName functionName funcName className methodName parameter columnName
    colName column tableName viewName name configName confName confType"""
_TYPES = """dataType data_type requiredType inputType inputDataType left right leftType rightType srcType sourceType
    targetType toType expectedType actualType jsonType"""
_COUNTS = """actualNum expectedNum arraySize numberOfElements maxRoundedArrayLength precision scale maxPrecision
    requestedBytes receivedBytes"""
FACTS = frozenset(f"{_NAMES} {_TYPES} {_COUNTS}".split())
# Facts that are values in other conditions.
_FACTS_OF = {
    "FAILED_READ_FILE": frozenset({"path", "logicalType", "physicalType"}),
    "PATH_NOT_FOUND": frozenset({"path"}),
    "TASK_WRITE_FAILED": frozenset({"path"}),
}
_ACCESS_DENIED = "java.nio.file.AccessDeniedException"
_JAVA_CLASS = re.compile(r"(?:[a-z]\w*\.)+[A-Z][\w$]{0,99}")
_SPARK_EXCEPTIONS = ("org.apache.spark.SparkException", "java.lang.IllegalStateException")
# How Spark reports that one of its processes died: a Python worker, an executor, the driver's JVM while others wait.
_DEATH = re.compile(
    r"Python worker exited unexpectedly(?: \(crashed\))?|Python worker failed to connect back|ExecutorLostFailure"
    r"|SparkContext (?:was|has been) shut ?down|Master removed our application|All masters are unresponsive"
)
# Things that are missing on an executor, in names and numbers alone.
_NO_PYTHON = re.compile(r'Cannot run program "([^"\n]{1,300})"')
_OTHER_PYTHON = re.compile(r"Python in worker has different version: (\d+\.\d+) than that in driver: (\d+\.\d+)")
_NO_MODULE = re.compile(r"No module named '?(pyspark|pyarrow|fsspec|botocore|google|azure|airflow_txlog)\b")
_ON_HOST = re.compile(r"\(TID \d+\) \(([\w.:-]{1,255}) executor \w+\)")
# Spark puts this before the text of an exception that it could not send to the driver.
_OF_A_TASK = re.compile(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \(\S+ executor \S+\): ((?:\w+\.)+\w+)")
# How Spark Connect reports a stage's failure: one text, with the machine and the exception of its last task.
_OF_A_STAGE = re.compile(
    r"Job aborted due to stage failure: Task \d+ in stage [\d.]+ failed \d+ times, most recent failure: "
    r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \(([\w.:-]{1,255}) executor \w+\): ((?:\w+\.)+\w+)(?:: )?"
)
_NO_CONNECTOR = re.compile(r'No FileSystem for scheme "([A-Za-z][\w+.-]{0,40})"\Z')
# Java's own exception has only the file and the reason as its text; on Connect the names of methods follow.
_CLOSED = re.compile(r"(?:\(java\.nio\.file\.AccessDeniedException\) )?(/[^\n:]{1,300}): Permission denied(?:\n|\Z)")
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^((?:\w+\.)*\w+)(?::|$)(?: \[Errno (\d{1,4})\])?", re.MULTILINE)
_PLACE = re.compile(r'^  File "([^"\n]+)", line (\d+), in (\w+)$', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One exception of a chain. `words` can be shown together with its names.

    `found`: this package's error that a worker raised. `death`: the words that report the death of a process of Spark.
    `lacks`: the thing that the executor lacks, if that is why the task failed. `host`: its machine, if named.
    """

    name: str
    condition: str | None = None
    state: str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    words: str = ""
    found: TxlogError | None = None
    death: str | None = None
    lacks: str | None = None
    host: str | None = None

    def text(self) -> str:
        """Return `CAST_INVALID_INPUT (sourceType: "STRING", targetType: "INT")`."""
        shown = ", ".join(f"{name}: {value}" for name, value in self.facts.items())
        head = f"{self.condition or self.name}{f' ({shown})' if shown else ''}"
        return f"{head}: {self.words}" if self.words else head

    @property
    def says_something(self) -> bool:
        return bool(self.condition or self.words)


def causes_of(error: BaseException) -> list[Cause]:
    """Return the exception and its causes, outermost first, as the JVM has them if there is one."""
    name = type(error).__name__
    java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    if java is not None:
        causes: list[Cause] = []
        try:
            while java is not None and len(causes) < _MAX_CHAIN:
                causes.append(_java_cause(java))
                java = java.getCause()
        except Exception:  # the JVM is gone
            return [Cause(name=name)]
        return causes
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a job without Spark imports no PySpark

    if isinstance(error, PySparkException):
        return [_spark_cause(error)]
    return [Cause(name=name, words=text_of(error).removeprefix(name).lstrip(": "))]


def describe(error: BaseException) -> str:
    """Return the chain in one line, without empty exceptions: `FAILED_READ_FILE (path: …): JsonParseException`."""
    causes = causes_of(error)
    shown = [cause for cause in causes[:-1] if cause.says_something] + causes[-1:]
    return ": ".join(cause.text() for cause in shown)


def condition_of(error: BaseException) -> str | None:
    """Return Spark's name of the error, such as `UNRESOLVED_COLUMN.WITH_SUGGESTION`, by the outermost cause."""
    return next((cause.condition for cause in causes_of(error) if cause.condition is not None), None)


def is_denied(error: BaseException) -> bool:
    """Return whether a Spark process was not permitted to read or write."""
    return any("Permission denied" in cause.words for cause in causes_of(error))


def facts_of(error: BaseException) -> dict[str, str]:
    """Return the facts of the error's own condition that can be shown."""
    return causes_of(error)[0].facts


def analysis_text(error: PySparkException) -> str:
    """Return Spark's own message about a text without bound values, which it quotes; else the same as `describe`."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    if not isinstance(error, AnalysisException):
        return describe(error)
    # Without the stack of the JVM, the plan and the text once more.
    text = re.split(r"\n(?:\s+at [\w.$]+\(|JVM stacktrace:|== SQL|'?\w+ \[|;\n)", str(error), maxsplit=1)[0]
    return text.strip().rstrip(";.")[:_TEXT_CHARS]


# --- in the JVM -----------------------------------------------------------------------------------------------------


def _java_cause(java: Any) -> Cause:
    full = str(java.getClass().getName())
    message = str(java.getMessage() or "")
    host = _ON_HOST.search(message) if full in _SPARK_EXCEPTIONS else None
    cause = _cause_of(java, full, message)
    return dataclasses.replace(cause, lacks=_lacks(full, message), host=None if host is None else host[1])


def _lacks(full: str, message: str) -> str | None:
    """Return the missing thing without which a worker cannot start, by the text of an exception."""
    program = _NO_PYTHON.match(message) if full == "java.io.IOException" else None
    if program is not None:
        return f"there is no {program[1]}"
    if not full.startswith("org.apache.spark."):
        return None
    other, module = _OTHER_PYTHON.search(message), _NO_MODULE.search(message)
    if other is not None:
        return f"its Python is {other[1]}, and the driver's is {other[2]}"
    return None if module is None else f"{module[1]} is not installed"


def _cause_of(java: Any, full: str, message: str) -> Cause:
    name = full.rsplit(".", 1)[-1].rsplit("$", 1)[-1]
    # A SparkThrowable has these methods; py4j finds no such method in another class.
    condition = _ask(java, "getCondition")
    if condition is not None:
        raw = {str(key): str(value) for key, value in dict(_ask(java, "getMessageParameters") or {}).items()}
        return _with_condition(name, str(condition), _ask(java, "getSqlState"), raw, message)
    if _TRACEBACK in message and full.startswith("org.apache.spark."):
        return _of_worker(Cause(name=name), message)
    words = _sentences_in(message, _CLOSED.match(message) if full == _ACCESS_DENIED else None)
    connector = _NO_CONNECTOR.search(message)
    if connector is not None:
        words.append(
            f'No FileSystem for scheme "{connector[1]}". This Spark has no connector for {connector[1]}://. Give it '
            "one by the connection's spark_conf (spark.jars.packages), or use a local path."
        )
    task = _OF_A_TASK.search(message) if full in _SPARK_EXCEPTIONS and java.getCause() is None else None
    if task is not None:
        words.insert(0, task[1].rsplit(".", 1)[-1])
    death = _DEATH.search(message) if full in _SPARK_EXCEPTIONS else None
    if death is not None and (java.getCause() is None or message.startswith(death[0])):
        return Cause(name=name, words="; ".join(dict.fromkeys([death[0], *words])), death=death[0])
    return Cause(name=name, words="; ".join(words))


def _ask(error: Any, method: str) -> Any:
    try:
        return getattr(error, method)()
    except Exception:  # it has no such method, or no answer
        return None


def _sentences_in(text: str, closed: re.Match[str] | None = None) -> list[str]:
    """Return the sentences in a text that hold no value, or the path of a file that is closed to the process."""
    if closed is not None:
        return [f"Permission denied: {closed[1]!r}"]
    return [sentence for sentence in SENTENCES if sentence in text]


# --- in Python ------------------------------------------------------------------------------------------------------


def _spark_cause(error: PySparkException) -> Cause:
    """Return the cause of a PySpark exception that has none of the JVM: PySpark's own, or one of Spark Connect."""
    text = str(error)
    # On Connect the first line names the exception's class, and the texts of its causes follow.
    full, _, chain = str(_ask(error, "getStackTrace") or "").partition("\n")
    task = _OF_A_STAGE.match(text)
    lacks = _lacks(full, text) if task is None else _lacks(task[2], text[task.end() :])
    cause = _spark_cause_of(error, text, full, chain)
    return dataclasses.replace(cause, lacks=lacks, host=None if task is None else task[1])


def _spark_cause_of(error: PySparkException, text: str, full: str, chain: str) -> Cause:
    name = type(error).__name__
    condition = _ask(error, "getCondition")
    if condition is not None:
        facts = {str(key): str(value) for key, value in (_ask(error, "getMessageParameters") or {}).items()}
        cause = _with_condition(name, str(condition), _ask(error, "getSqlState"), facts, text)
        return cause if cause.words else dataclasses.replace(cause, words="; ".join(_sentences_in(chain)))
    if _TRACEBACK in text:
        return _of_worker(Cause(name=name), text)
    death = _DEATH.search(text)
    words = _sentences_in(f"{text}\n{chain}", _CLOSED.match(text) if full == _ACCESS_DENIED else None)
    if _JAVA_CLASS.fullmatch(full):
        name = re.split(r"[.$]", full)[-1]
    if death is None:
        return Cause(name=name, words="; ".join(words))
    return Cause(name=name, words="; ".join([death[0], *words]), death=death[0])


def _with_condition(name: str, condition: str, state: Any, raw: dict[str, str], message: str) -> Cause:
    allowed = FACTS | _FACTS_OF.get(condition.split(".")[0], frozenset())
    if condition == OTHER_ENCODING and raw.get("functionName", "").strip("`").startswith(_FILE_OPTIONS):
        # The author's own option. A function of SQL may take its encoding from a row.
        allowed |= {"charset"}
    facts = {key: " ".join(value.split())[:_FACT_CHARS] for key, value in raw.items() if key in allowed}
    cause = Cause(name=name, condition=condition, state=None if state is None else str(state), facts=facts)
    trace = raw.get("traceback") or (message if _TRACEBACK in message else "")
    if condition == _RAISED_BY_SQL:
        return dataclasses.replace(cause, found=_refused_value(raw.get("errorMessage", "")))
    return _of_worker(cause, trace) if condition.startswith("PYTHON_EXCEPTION") else cause


OTHER_ENCODING = "INVALID_PARAMETER_VALUE.CHARSET"
_FILE_OPTIONS = ("CSVOptions", "JSONOptions")

# Columns whose values our own expressions refuse, by marks that no other text has.
_SECRET = secrets.token_bytes(16)
_MARKED: dict[str, Misfit] = {}
_RAISED_BY_SQL = "USER_RAISED_EXCEPTION"


def mark_of(misfit: Misfit) -> str:
    """Return a text that an expression raises, followed by a blank and a file, for a row with this misfit."""
    mark = hashlib.sha256(_SECRET + repr(misfit).encode()).hexdigest()
    _MARKED[mark] = misfit
    return mark


def _refused_value(raised: str) -> TxlogError | None:
    mark, _, file = raised.partition(" ")
    found = _MARKED.get(mark)
    # Spark's `_metadata` has another form of a local URI than its other functions.
    file = re.sub(r"^file:/(?!/)", "file:///", file)
    return None if found is None else row_does_not_fit(file or None, found)


def _of_worker(cause: Cause, message: str) -> Cause:
    """Return the cause with the error in a message that contains the traceback of a Python worker."""
    trace = message[message.find(_TRACEBACK) :]
    found = error_in(trace)
    return dataclasses.replace(cause, facts={}, words=_raised(trace) if found is None else found.message, found=found)


def _raised(trace: str) -> str:
    """Return the class of the exception that closes a traceback, and the place in this package that raised it."""
    named = [match for match in _RAISED.finditer(trace) if is_exception(match[1])]
    words = named[-1][1].rsplit(".", 1)[-1] if named else "an exception"
    if named and named[-1][2] is not None:
        words += f": {os.strerror(int(named[-1][2]))}"
    places = [(path, match[2]) for match in _PLACE.finditer(trace) if (path := is_own_source(match[1])) is not None]
    return f"{words} in a Python worker{f' at {places[-1][0]}:{places[-1][1]}' if places else ''}"
