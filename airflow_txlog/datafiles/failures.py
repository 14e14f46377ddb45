"""Report an exception without its text: by its class, the system's words, a path and its place in the code.

The text of an exception may quote a row's value: pyarrow's conversions, codecs and `int()` do. The invariant: no text
of a foreign exception is copied. Only the name of an existing class, a number's meaning, an attribute that holds a
name, or a place in this package's code is shown.
"""

from __future__ import annotations

import builtins
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from airflow_txlog.errors import InvalidInput, TxlogError, from_dict

_PACKAGE = Path(__file__).resolve().parents[1]
_OURS = re.compile(r"airflow_txlog/((?:\w+/)*\w+\.py)\Z")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,60}\Z")
# At the margin, like the last line of a traceback: the text of another exception may hold a value that looks like it.
_MARK = re.compile(r"^(?:[\w.]*TaskFailed: )?<txlog-error>(.*)</txlog-error>$", re.MULTILINE)


OTHER_HEADER_TEXT = "CSV header does not conform to the schema"

# Sentences of the JVM and of the system that name a fault and nothing else. They are shown unchanged.
SENTENCES = (
    "Java heap space",
    "GC overhead limit exceeded",
    "Direct buffer memory",
    "Metaspace",
    "unable to create native thread",
    "Requested array size exceeds VM limit",
    "No space left on device",
    "Permission denied",
    "Operation not permitted",
    "Read-only file system",
    "Too many open files",
    "Connection refused",
    "Connection reset",
    "is bigger than spark.driver.maxResultSize",
    "Cannot broadcast the table",
    "is not a Parquet file",
    OTHER_HEADER_TEXT,
    "cancelled part of cancelled job group",
)


def text_of(error: BaseException) -> str:
    """Return one line without a value: `ArrowInvalid at datafiles/parquet/writing.py:120`.

    An error of this package keeps its message, which holds no value. An OSError keeps its number and path, and
    NoCredentials its advice.
    """
    if isinstance(error, TxlogError):
        return error.message
    name, place = type(error).__name__, _place(error.__traceback__)
    if isinstance(error, OSError) and isinstance(error.errno, int):
        from airflow_txlog.storage.base import NoCredentials  # noqa: PLC0415 - a runner shows errors without a store

        path = f": {error.filename!r}" if isinstance(error.filename, str | bytes) else ""
        words = error.strerror if isinstance(error, NoCredentials) else None
        return f"{words}{path}" if words else f"{name}: [Errno {error.errno}] {os.strerror(error.errno)}{path}"
    if isinstance(error, ImportError) and _is_identifier(error.name):
        return f"{name}: No module named {error.name!r}"
    code = _code_of(error)
    return f"{name}{f' ({code})' if code else ''}{place}"


class TaskFailed(Exception):
    """Carries a TxlogError through the text of a traceback, which is all that Spark returns from a worker."""

    def __init__(self, error: TxlogError) -> None:
        # "<" is written as an escape, so that the text cannot hold the end mark.
        data = json.dumps(error.to_dict(), default=str).replace("<", "\\u003c")
        super().__init__(f"<txlog-error>{data}</txlog-error>")


def error_in(text: str) -> TxlogError | None:
    """Return the TxlogError that a worker raised from the traceback that Spark returns, or None."""
    found = _MARK.findall(text)
    return from_dict(json.loads(found[-1])) if found else None


def trace_of(error: BaseException) -> list[str]:
    """Return the lines of a traceback and its causes that hold only places and classes."""
    lines: list[str] = []
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        lines.append(f"{'Traceback' if not lines else 'caused by'} of {text_of(found)}")
        lines += [f"  {path}:{number}" for path, number in _places(found.__traceback__)]
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return lines


def is_own_source(filename: str) -> str | None:
    """Return the path inside this package of one of its source files in a traceback, else None."""
    found = _OURS.search(filename)
    # Looked up, to reject a text that only resembles one of our paths. In an executor the package is in a zip.
    return found[1] if found is not None and ((_PACKAGE / found[1]).is_file() or ".zip" in str(_PACKAGE)) else None


def is_exception(name: str) -> bool:
    """Return whether an exception of this name exists: any other name may be part of a value."""
    module, _, last = name.rpartition(".")
    found = getattr(sys.modules.get(module) if module else builtins, last, None)
    return isinstance(found, type) and issubclass(found, BaseException)


def _place(trace: TracebackType | None) -> str:
    """Return ` at datafiles/parquet/writing.py:120`, the innermost place in this package, or ""."""
    frames = ((is_own_source(frame.f_code.co_filename), number) for frame, number in traceback.walk_tb(trace))
    own = [f" at {path}:{number}" for path, number in frames if path is not None]
    return own[-1] if own else ""


def _places(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    """Yield the files of loaded modules in a traceback, and the lines.

    PySpark makes frames from anything in a message that looks like a traceback, even from a value: so files of no
    module, and names of functions, are left out.
    """
    known = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for frame, number in traceback.walk_tb(trace):
        if frame.f_code.co_filename in known:
            yield frame.f_code.co_filename, number


def _code_of(error: BaseException) -> str | None:
    """Return the code of a store's answer, such as `AccessDenied` or 403."""
    response: Any = getattr(error, "response", None)
    details = response.get("Error") if isinstance(response, dict) else None
    code = details.get("Code") if isinstance(details, dict) else getattr(error, "code", None)
    if isinstance(code, int):
        return str(code)
    return str(code) if _is_identifier(code) else None


def _is_identifier(value: object) -> bool:
    return isinstance(value, str) and _IDENTIFIER.match(value) is not None


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """Why a row of a CSV or JSON file does not fit, if known: at most one of `kind`, `quote` and `is_replaced`.

    `kind`: the column's type, which the value does not have. `has_blanks`: the value has spaces before or after it.
    `quote`: "doubled" if a value in quotes holds a doubled quote, and the escape is Spark's default; "unclear" if
    Spark's values do not show whether one does; "open" if a line ends inside of quotes. `separator`: the character that
    cuts the line into the right number of values, or the value of the only column into several. `is_replaced`: a text
    holds U+FFFD, with which Spark replaces bytes that are not UTF-8. `is_folder`: the value is in the name of a folder.
    """

    column: str | None = None
    kind: str = ""
    quote: Literal["doubled", "unclear", "open"] | None = None
    separator: str | None = None
    is_replaced: bool = False
    has_blanks: bool = False
    is_folder: bool = False


def separator_of(line: str, given: str, count: int | None = None) -> str | None:
    """Return a usual separator, not the given one, that cuts a line into two or more values: `count`, if not None."""
    counts = ((mark, line.count(mark) + 1) for mark in (";", "\t", "|", ",") if mark != given)
    return next((mark for mark, found in counts if found > 1 and count in (None, found)), None)


def set_separator(mark: str) -> str:
    """Return the advice to name the separator of a file."""
    shown = "\\t" if mark == "\t" else mark
    return f'If "{shown}" separates its values, set the option "sep": "{shown}".'


def row_does_not_fit(file: str | None, misfit: Misfit, *, line: int | None = None) -> InvalidInput:
    """Return the error for a row of a CSV or JSON file, with the known parts of its place. It shows no value."""
    where = "A file of the source" if file is None else f"The source's file {file}"
    at = "" if line is None else f" in line {line}"
    what, advice = _misread_text(misfit) if misfit.quote or misfit.is_replaced else _unfit_value(misfit, line)
    return InvalidInput(
        f"{where} has{at} {what}. Nothing was committed, and the value is not shown. {advice}",
        file=file,
        line=line,
        column=misfit.column,
    )


def adjacent_objects(file: str, *, is_whole: bool) -> InvalidInput:
    """Return the error for a JSON file with several objects where Spark reads one. `is_whole`: it is one document."""
    place, advice = "in one line", "Have it written with one object in each line."
    if is_whole:
        place = "one after another"
        advice = 'If each is in a line of its own, leave out the option "multiLine". Otherwise have an array written.'
    return InvalidInput(
        f"The source's file {file} has several JSON objects {place}, and Spark would read only the first of them. "
        f"Nothing was committed. {advice} With the option mode=PERMISSIVE the others are ignored, and a value that "
        "does not fit is NULL.",
        file=file,
    )


def _misread_text(misfit: Misfit) -> tuple[str, str]:
    """Return what is wrong, and the advice."""
    place = "" if misfit.column is None else f" in column {misfit.column!r}"
    if misfit.is_replaced:
        return (
            f"a text that is not UTF-8{place}: Spark replaces its bytes with the character U+FFFD, which was found",
            'Set the option "encoding" to that of the file, such as "ISO-8859-1". If the file is UTF-8 and has this '
            'character itself, or if replaced characters are good enough, set "encoding": "UTF-8".',
        )
    if misfit.quote == "doubled":
        return (
            f'a value with a doubled quote (""){place}, which '
            "Spark's default escape, the backslash, would not read as one",
            "If the file writes a quote inside of quotes twice (RFC 4180: pandas, Excel, PostgreSQL), set the option "
            '"escape": "\\"". If it writes a backslash before it, set "escape": "\\\\": doubled quotes then stay '
            "doubled.",
        )
    if misfit.quote == "unclear":
        return (
            f"a quote{place} that Spark may have misread",
            'Write each text that has a quote in quotes, and set the option "escape": "\\"" if a quote in it is '
            'written twice (RFC 4180: pandas, Excel, PostgreSQL), or "\\\\" if it has a backslash before it. If quotes '
            'mean nothing in the file, set "quote": "".',
        )
    return (
        f"a quote that does not end in its line{place}",
        "If the value has a line break, put the file on a disk that Spark's workers share, and set the options "
        '"multiLine": "true" and "escape": "\\"" if a quote in a text is written twice, or "\\\\" if it has a '
        "backslash before it. Otherwise correct the file.",
    )


def _unfit_value(misfit: Misfit, line: int | None) -> tuple[str, str]:
    """Return what is wrong, and the advice."""
    if misfit.is_folder:
        what = f"a folder for column {misfit.column!r} whose name has no {misfit.kind}"
        return what, "Rename the folder, or give the column the type STRING and convert it in a query."
    advice = "Correct the file, or give the column the type STRING and convert it in a query."
    if misfit.separator is not None:
        # A text would be the whole line.
        advice = "Correct the file."
    if misfit.column is None:
        what = "a row that does not fit the columns: a value of another type, or more or fewer values"
        advice += (
            ' In CSV, a line break inside of quotes needs multiLine=true, a doubled quote "escape": "\\"", a header '
            '"header": "true", and another separator than a comma the option "sep".'
        )
    else:
        how = ""
        if misfit.kind.startswith("DECIMAL"):
            how = " (digits and a point, with no more decimals than the type, no thousands separator and no exponent)"
        elif misfit.kind == "DATE":
            how = " (year-month-day, without a time of day)"
        what = f"a value of column {misfit.column!r} that is no {misfit.kind}{how}"
    if misfit.has_blanks:
        what += ", and has spaces around it"
        advice = (
            'To read all values without the spaces around them, set the options "ignoreLeadingWhiteSpace": "true" and '
            f'"ignoreTrailingWhiteSpace": "true". Otherwise {advice[0].lower()}{advice[1:]}'
        )
    if misfit.separator is not None:
        # Not alone: one row may lack values.
        advice += f" {set_separator(misfit.separator)}"
    if line == 1:
        # With the option, the first line is no row. With PERMISSIVE it would become a row of NULL.
        advice = f'If the first line is a header, set the option "header": "true". {advice}'
    elif misfit.kind.startswith(("DECIMAL", "DATE")):
        advice += (
            " In another mode than FAILFAST Spark drops commas, decimals beyond those of the type, and the time of day."
        )
    elif misfit.separator is None:
        advice += (
            " With the option mode=PERMISSIVE Spark reads what it can, and NULL for the rest; DROPMALFORMED leaves "
            "such rows out."
        )
    return what, advice
