"""The clocks in a job's texts, read once: `current_date`, `now()` and their like become values bound like parameters.

A job evaluates a condition when it finds rows, when it looks again after a conflict, and when a retry resumes; the
engine evaluates it once more to judge conflicts. A clock would answer each of them differently: a row deleted by one
attempt would be too young for the next. The author's text is kept letter by letter; only the tokens that read a clock
are replaced by `:_txlog_…`, found by Spark's own rules of cutting a text. In the table's own rules, which take no
parameters, literals replace them. The invariant: a condition that is evaluated reads no clock. What cannot be replaced
(a text that our lexer cannot cut, the special date 'today') is refused by name, as Spark's analysis shows it.
Source: soundness A2.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import Sees
from airflow_txlog.contract.parameters import decode_parameter, encode_parameter
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.context import FixedTexts
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.sql.lexer import Token
from airflow_txlog.sql.sql_text import SqlText, sql_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The parameters by which a text names the instant, the day, and what the wall clock shows.
NOW = "_txlog_now"
TODAY = "_txlog_today"
WALL = "_txlog_wall"
_RESERVED = "_txlog_"

# What a call without arguments is replaced by.
_CALLS = {
    "current_timestamp": f":{NOW}",
    "now": f":{NOW}",
    "current_date": f":{TODAY}",
    "curdate": f":{TODAY}",
    "localtimestamp": f"CAST(:{WALL} AS TIMESTAMP_NTZ)",
    "unix_timestamp": f"unix_timestamp(:{NOW})",
}
# What Spark reads as a clock without parentheses too, where no column has the name.
_BARE = ("current_date", "current_timestamp")
# The last is the one that no parameter replaces, as Python has no time of it that Spark takes.
CLOCKS = (*_BARE, "current_time")
# What Spark reads of the session without parentheses too, where no column has the name.
OF_THE_SESSION = ("current_user", "session_user", "user")
# A name after one of these is a member, a type, or an alias.
_NOT_AFTER = (".", ":", "::")
_OPEN, _CLOSE, _DOT = Token("symbol", "("), Token("symbol", ")"), Token("symbol", ".")

_SPECIAL = re.compile(r"\s*(?:now|today|tomorrow|yesterday)(?:\s.*)?", re.IGNORECASE | re.DOTALL)
_TYPED_LITERALS = ("date", "timestamp", "timestamp_ltz", "timestamp_ntz")
# Keywords that call no function.
_BEFORE_BRACKETS = frozenset(("and", "or", "not", "in", "when", "then", "else", "between", "exists", "like"))
_TIMES = ("date", "timestamp", "timestamp_ntz")
# Spark's expressions that are marked as "current" and are no clock: they are the same for as long as a session lives.
_OF_THE_SESSION = frozenset({"CurrentCatalog", "CurrentDatabase", "CurrentPath", "CurrentTimeZone", "CurrentUser"})


def fix_current_time(spec: JobSpec, current_time: CurrentTime) -> FixedTexts:
    """The job's texts with the current time replaced by parameters; it is read where a text names it.

    Raises InvalidJobSpec for an author's parameter that has a name of ours.
    """
    parameters = spec.operation.bound_parameters
    taken = sorted(name for name in parameters if name.lower().startswith(_RESERVED))
    if taken:
        raise InvalidJobSpec(
            f"A parameter is named {taken[0]!r}; names that begin with {_RESERVED} are the job's own. Rename it.",
            argument=f"parameters.{taken[0]}",
        )
    used: set[str] = set()
    bare: set[str] = set()

    def fixed(text: str, sees: Sees) -> str:
        if not sees.is_evaluated_again:
            return text
        replaced, found_bare = replace_clocks(text)
        if replaced != text:
            bare.update(found_bare)
            used.update(sql_text(replaced).parameters)
        return replaced

    operation = spec.operation.with_texts(fixed)
    names = sorted(used & {NOW, TODAY, WALL})
    if not names:
        return FixedTexts(operation=spec.operation, parameters=parameters)
    values = current_time.values()
    return FixedTexts(
        operation=operation,
        parameters=parameters | {name: values[name] for name in names},
        bare=frozenset(bare),
    )


def with_literal_clocks(text: str, current_time: CurrentTime, columns: Collection[str]) -> str:
    """The text with each clock replaced by a literal of the current time, which is read where there is one.

    A name without parentheses that is one of `columns` is that column. Otherwise as `replace_clocks`.
    """
    if replace_clocks(text, columns=columns)[0] == text:
        return text
    values = current_time.values()
    literals = {
        f":{NOW}": f"TIMESTAMP_LTZ '{values[NOW].isoformat()}'",
        f":{TODAY}": f"DATE '{values[TODAY].isoformat()}'",
        f":{WALL}": f"'{values[WALL]}'",
    }
    calls = {name: _replace_each(call, literals) for name, call in _CALLS.items()}
    return replace_clocks(text, calls, columns)[0]


def _replace_each(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def replace_clocks(
    text: str, calls: Mapping[str, str] = _CALLS, columns: Collection[str] = ()
) -> tuple[str, frozenset[str]]:
    """The text with each clock replaced by what `calls` has for it, and the names that stood there without parentheses.

    Such a name is left where it is one of `columns`. A text that cannot be cut into Spark's tokens is given back as it
    is.
    """
    cut = sql_text(text)
    pieces: list[str] = []
    bare: set[str] = set()
    done = 0
    taken = {name.lower() for name in columns}
    for first, last, name in _clocks(cut):
        if first == last and name in taken:
            continue
        replacement = calls[name]
        pieces += [text[done : cut.spans[first][0]], replacement]
        done = cut.spans[last][1]
        if first == last:
            bare.add(name)
    return "".join([*pieces, text[done:]]), frozenset(bare)


def bare_calls(text: str, *, with_clocks: bool) -> list[tuple[str, bool]]:
    """The names in a text that may read the session or, after `replace_clocks`, a clock; and whether each is called.

    Spark takes one that is not called for a function where no column has the name, in backquotes too.
    """
    names = (*OF_THE_SESSION, *(CLOCKS if with_clocks else ()))
    tokens = sql_text(text).tokens
    found = []
    for index, token in enumerate(tokens):
        name = token.text.lower()
        if token.kind not in ("word", "name") or name not in names or _is_no_expression(tokens, index):
            continue
        if tokens[index + 1 : index + 2] != [_DOT]:
            found.append((name, tokens[index + 1 : index + 2] == [_OPEN]))
    return found


def special_date(text: str, parameters: Mapping[str, Any]) -> bool | None:
    """Whether the text reads a clock as a typed literal (`DATE 'today'`); None where only Spark's plan shows it.

    Such a word is a clock wherever Spark makes a date or a timestamp of it, and a plain text elsewhere.
    """
    suspects = [value for value in parameters.values() if isinstance(value, str)]
    cut = sql_text(text)
    if cut.problem is not None:
        return None if _mentions_special(text) or any(map(_SPECIAL.fullmatch, suspects)) else False
    suspects = [parameters[name] for name in cut.parameters if isinstance(parameters.get(name), str)]
    suspects += [token.text for token in cut.tokens if token.kind == "string"]
    if not any(map(_SPECIAL.fullmatch, suspects)):
        return False
    for token, following in itertools.pairwise(cut.tokens):
        is_type = token.kind == "word" and token.text.lower() in _TYPED_LITERALS
        if is_type and following.kind == "string" and _SPECIAL.fullmatch(following.text):
            return True
    return None


def computes_constants(text: str) -> bool:
    """Whether the text may make a text of others, as `concat('to', 'day')`, of which Spark makes a date."""
    tokens = sql_text(text).tokens
    return any(token.text == "||" for token in tokens) or any(
        token.kind in ("word", "name") and token.text.lower() not in _BEFORE_BRACKETS and following == _OPEN
        for token, following in itertools.pairwise(tokens)
    )


def unpinned_clock(spark: SparkSession, condition: Any) -> str | None:
    """The name of a clock that is left in an analysed condition (a classic session's), or None."""
    jvm: Any = spark._jvm
    pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    pending = [condition] if condition.containsPattern(pattern) else []
    while pending:
        node = pending.pop()
        inner = [child for child in _children(node) if child.containsPattern(pattern)]
        name = node.getClass().getSimpleName()
        if not inner and name not in _OF_THE_SESSION:
            return str(node.prettyName())
        pending += inner
    return None


def casts_special_date(spark: SparkSession, condition: Any) -> bool:
    """Whether an analysed condition (a classic session's) makes a time of a constant text such as 'today'."""
    jvm: Any = spark._jvm
    pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CAST()
    pending = [condition] if condition.containsPattern(pattern) else []
    while pending:
        node = pending.pop()
        children = _children(node)
        if node.getClass().getSimpleName() == "Cast" and node.dataType().catalogString() in _TIMES:
            # A constant whose evaluation fails is left to the query.
            with contextlib.suppress(Exception):
                if children[0].foldable() and _SPECIAL.fullmatch(str(children[0].eval(None))):
                    return True
        pending += [child for child in children if child.containsPattern(pattern)]
    return False


def _children(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(index) for index in range(children.size())]


def _mentions_special(text: str) -> bool:
    return re.search(r"now|today|tomorrow|yesterday", text, re.IGNORECASE) is not None


def _clocks(cut: SqlText) -> list[tuple[int, int, str]]:
    """First and last token of each clock, and its name."""
    found = []
    tokens = cut.tokens
    for index, token in enumerate(tokens):
        name = token.text.lower()
        if token.kind not in ("word", "name") or name not in _CALLS or _is_no_expression(tokens, index):
            continue
        if tokens[index + 1 : index + 3] == [_OPEN, _CLOSE]:
            found.append((index, index + 2, name))
        elif token.kind == "word" and name in _BARE and tokens[index + 1 : index + 2] not in ([_OPEN], [_DOT]):
            found.append((index, index, name))
    return found


def _is_no_expression(tokens: Sequence[Token], index: int) -> bool:
    if index == 0:
        return False
    before = tokens[index - 1]
    return (
        before.text in _NOT_AFTER if before.kind == "symbol" else before.kind == "word" and before.text.lower() == "as"
    )


# --- the moment -----------------------------------------------------------------------------------------------------


class CurrentTime:
    """The current time of a job: one moment for all its texts, attempts and tries.

    Read (`read`, in the job's time zone) when it is first asked for, or taken from `saved` of an earlier try.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]], saved: Mapping[str, Any] | None = None) -> None:
        self._read = read
        self._values: Mapping[str, Any] | None = {
            name: decode_parameter(value) for name, value in (saved or {}).items()
        } or None

    def values(self) -> Mapping[str, Any]:
        """By NOW the instant, by TODAY the day, by WALL the text of the wall clock."""
        if self._values is None:
            self._values = self._read()
        return self._values

    @property
    def saved(self) -> dict[str, Any]:
        """The moment for another try of the job, JSON-plain; empty where nothing has asked for it."""
        return {name: encode_parameter(value) for name, value in (self._values or {}).items()}


def now_of(spark: SparkSession) -> dict[str, Any]:
    """Return the current time in the session's zone, as `CurrentTime.values` has it."""
    row = spark.sql(
        "SELECT unix_micros(current_timestamp()), unix_date(current_date()), CAST(localtimestamp() AS STRING)"
    ).collect()[0]
    instant = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=row[0])
    return {NOW: instant, TODAY: dt.date(1970, 1, 1) + dt.timedelta(days=row[1]), WALL: row[2]}


def now_in_utc() -> dict[str, Any]:
    """Return the same in UTC, by this process's clock."""
    now = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=SYSTEM_CLOCK.now_ms())
    wall = now.replace(tzinfo=None).isoformat(" ")
    return {NOW: now, TODAY: now.date(), WALL: wall.rstrip("0") if "." in wall else wall}


def instants_of(spark: SparkSession, walls: Sequence[int]) -> list[int | None]:
    """The instants at which the clocks of the session's zone show these times, all in microseconds since 1970.

    By Spark, whose zone data decides what every query of the job makes of such a time.
    """
    times = pa.table({"wall": pa.array(walls, pa.int64()).cast(pa.timestamp("us"))})
    frame = spark.createDataFrame(times, "wall TIMESTAMP_NTZ")
    found = collect(frame.selectExpr("wall", "unix_micros(CAST(wall AS TIMESTAMP)) AS at"), "convert times of its zone")
    instant = dict(zip(found.column("wall").cast(pa.int64()).to_pylist(), found.column("at").to_pylist(), strict=True))
    return [instant.get(wall) for wall in walls]
