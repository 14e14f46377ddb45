"""The clocks in a job's texts, read once: `current_date`, `now()` and the like become values bound like parameters.

A job evaluates a condition when it finds rows, after a conflict, and when a retry resumes; the engine evaluates it once
more to judge conflicts. A clock would answer each of them differently: a row that one attempt deleted would be too
young for the next. Only the tokens that read a clock are replaced by `:_txlog_…`; the rest of the author's text stays
letter by letter. In the table's own rules, which take no parameters, literals replace them. The invariant: a condition
that is evaluated reads no clock. A clock that cannot be replaced (in a text that our lexer cannot cut, the special date
'today') is refused by name, as Spark's analysis shows it. Source: soundness A2.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import Sees
from airflow_txlog.contract.parameters import decode_parameter, encode_parameter
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.context import FixedTexts
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.sql.lexer import CLOSE, DOT, OPEN, Token, neighbours
from airflow_txlog.sql.sql_text import SqlText, sql_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The parameters for the instant, the day, and the time on the wall clock.
NOW = "_txlog_now"
TODAY = "_txlog_today"
WALL = "_txlog_wall"
_RESERVED = "_txlog_"

# The replacements of calls without arguments.
_CALLS = {
    "current_timestamp": f":{NOW}",
    "now": f":{NOW}",
    "current_date": f":{TODAY}",
    "curdate": f":{TODAY}",
    "localtimestamp": f"CAST(:{WALL} AS TIMESTAMP_NTZ)",
    "unix_timestamp": f"unix_timestamp(:{NOW})",
}
# Names that Spark also reads as clocks without parentheses, unless a column has the name.
_BARE = ("current_date", "current_timestamp")
# No parameter replaces the last one, because Python has no time of day that Spark accepts.
CLOCKS = (*_BARE, "current_time")
# Facts of the session that Spark also reads without parentheses, unless a column has the name.
OF_THE_SESSION = ("current_user", "session_user", "user")

_SPECIAL = re.compile(r"\s*(?:now|today|tomorrow|yesterday)(?:\s.*)?", re.IGNORECASE | re.DOTALL)
_TYPED_LITERALS = ("date", "timestamp", "timestamp_ltz", "timestamp_ntz")
# Keywords that call no function.
_BEFORE_BRACKETS = frozenset(("and", "or", "not", "in", "when", "then", "else", "between", "exists", "like"))
_TIMES = ("date", "timestamp", "timestamp_ntz")
# Spark's expressions that are marked as "current" and are no clock: they are constant within a session.
_OF_THE_SESSION = frozenset({"CurrentCatalog", "CurrentDatabase", "CurrentPath", "CurrentTimeZone", "CurrentUser"})


def fix_current_time(spec: JobSpec, current_time: CurrentTime) -> FixedTexts:
    """Return the job's texts with parameters for the current time, which is read only if a text names it.

    Raises InvalidJobSpec for an author's parameter that has a reserved name.
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

    for _, text, sees in spec.operation.texts():
        fixed(text, sees)
    names = sorted(used & {NOW, TODAY, WALL})
    if not names:
        return FixedTexts(operation=spec.operation, parameters=parameters)
    operation = spec.operation.with_texts(fixed)
    values = current_time.values()
    parameters = parameters | {name: values[name] for name in names}
    return FixedTexts(operation=operation, parameters=parameters, bare=frozenset(bare))


def with_literal_clocks(text: str, current_time: CurrentTime, columns: Collection[str]) -> str:
    """Return the text with a literal of the current time for each clock.

    A name without parentheses that is one of `columns` is that column. Otherwise see `replace_clocks`.
    """
    if replace_clocks(text, columns=columns)[0] == text:
        return text
    values = current_time.values()
    now, today = f"TIMESTAMP_LTZ '{values[NOW].isoformat()}'", f"DATE '{values[TODAY].isoformat()}'"
    literals = {f":{NOW}": now, f":{TODAY}": today, f":{WALL}": f"'{values[WALL]}'"}
    marker = re.compile("|".join(literals))
    calls = {name: marker.sub(lambda found: literals[found[0]], call) for name, call in _CALLS.items()}
    return replace_clocks(text, calls, columns)[0]


def replace_clocks(
    text: str, calls: Mapping[str, str] = _CALLS, columns: Collection[str] = ()
) -> tuple[str, frozenset[str]]:
    """Return the text with each clock replaced by its entry in `calls`, and the clocks that had no parentheses.

    A clock without parentheses stays if it is one of `columns`. A text that cannot be cut into tokens is unchanged.
    """
    cut = sql_text(text)
    pieces: list[str] = []
    bare: set[str] = set()
    done = 0
    taken = {name.lower() for name in columns}
    for first, last, name in _clocks(cut):
        if first == last:
            if name in taken:
                continue
            bare.add(name)
        pieces += [text[done : cut.spans[first][0]], calls[name]]
        done = cut.spans[last][1]
    return "".join([*pieces, text[done:]]), frozenset(bare)


def _clocks(cut: SqlText) -> Iterator[tuple[int, int, str]]:
    for index, (before, token, after) in enumerate(neighbours(cut.tokens)):
        name = token.text.lower()
        if not token.is_name or name not in _CALLS or _ends_expression(before):
            continue
        if [after, *cut.tokens[index + 2 : index + 3]] == [OPEN, CLOSE]:
            yield index, index + 2, name
        elif token.word in _BARE and after not in (OPEN, DOT):
            yield index, index, name


def _ends_expression(before: Token) -> bool:
    """Return whether a name after this token is a member, a type or an alias."""
    return before.symbol in (".", ":", "::") or before.word == "as"


def bare_calls(text: str, *, with_clocks: bool) -> list[tuple[str, bool]]:
    """Return the names in a text that may read the session or a clock, and whether each is called.

    Spark takes a name without a call for a function if no column has the name, in backquotes too.
    """
    names = (*OF_THE_SESSION, *(CLOCKS if with_clocks else ()))
    return [
        (token.text.lower(), after == OPEN)
        for before, token, after in neighbours(sql_text(text).tokens)
        if token.is_name and token.text.lower() in names and after != DOT and not _ends_expression(before)
    ]


def special_date(text: str, parameters: Mapping[str, Any]) -> bool | None:
    """Return whether the text reads a clock as a typed literal (`DATE 'today'`); None if only Spark's plan shows it.

    Such a word is a clock if Spark converts it to a date or a timestamp, and otherwise a plain text.
    """
    cut = sql_text(text)
    if cut.problem is not None:
        suspects = [value for value in parameters.values() if isinstance(value, str)]
        is_mentioned = re.search(r"now|today|tomorrow|yesterday", text, re.IGNORECASE) is not None
        return None if is_mentioned or any(map(_SPECIAL.fullmatch, suspects)) else False
    suspects = [parameters[name] for name in cut.parameters if isinstance(parameters.get(name), str)]
    suspects += [token.text for token in cut.tokens if token.kind == "string"]
    if not any(map(_SPECIAL.fullmatch, suspects)):
        return False
    for token, following in itertools.pairwise(cut.tokens):
        if token.word in _TYPED_LITERALS and following.kind == "string" and _SPECIAL.fullmatch(following.text):
            return True
    return None


def computes_constants(text: str) -> bool:
    """Return whether the text may join texts into one, as `concat('to', 'day')`, which Spark converts to a date."""
    return any(
        token.text == "||" or (token.is_name and token.text.lower() not in _BEFORE_BRACKETS and after == OPEN)
        for _, token, after in neighbours(sql_text(text).tokens)
    )


def unpinned_clock(spark: SparkSession, condition: Any) -> str | None:
    """Return the name of a clock that is left in an analysed condition of a classic session."""
    for node, inner in _with_pattern(spark, condition, "CURRENT_LIKE"):
        if not inner and node.getClass().getSimpleName() not in _OF_THE_SESSION:
            return str(node.prettyName())
    return None


def casts_special_date(spark: SparkSession, condition: Any) -> bool:
    """Return whether an analysed condition of a classic session converts a constant text such as 'today' to a time."""
    for node, _ in _with_pattern(spark, condition, "CAST"):
        if node.getClass().getSimpleName() == "Cast" and node.dataType().catalogString() in _TIMES:
            # A constant whose evaluation fails is left to the query.
            with contextlib.suppress(Exception):
                operand = node.children().apply(0)
                if operand.foldable() and _SPECIAL.fullmatch(str(operand.eval(None))):
                    return True
    return False


def _with_pattern(spark: SparkSession, condition: Any, name: str) -> Iterator[tuple[Any, list[Any]]]:
    jvm: Any = spark._jvm
    pattern = getattr(jvm.org.apache.spark.sql.catalyst.trees.TreePattern, name)()
    pending = [condition] if condition.containsPattern(pattern) else []
    while pending:
        node = pending.pop()
        children = node.children()
        each = [children.apply(index) for index in range(children.size())]
        inner = [child for child in each if child.containsPattern(pattern)]
        yield node, inner
        pending += inner


# --- the moment -----------------------------------------------------------------------------------------------------


class CurrentTime:
    """The current time of a job: one moment for all its texts, attempts and tries.

    Read (`read`, in the job's time zone) when it is first needed, or taken from `saved` of an earlier try.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]], saved: Mapping[str, Any] | None = None) -> None:
        self._read = read
        self._values: Mapping[str, Any] | None = {
            name: decode_parameter(value) for name, value in (saved or {}).items()
        } or None

    def values(self) -> Mapping[str, Any]:
        """Return the instant by NOW, the day by TODAY, and the text of the wall clock by WALL."""
        if self._values is None:
            self._values = self._read()
        return self._values

    @property
    def saved(self) -> dict[str, Any]:
        """The moment for another try of the job, JSON-plain; empty if nothing has needed it."""
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
    """Return the instants at which clocks of the session's zone show these times, all in microseconds since 1970.

    Spark computes them, because its zone data decides how every query of the job reads such a time.
    """
    times = pa.table({"wall": pa.array(walls, pa.int64()).cast(pa.timestamp("us"))})
    frame = spark.createDataFrame(times, "wall TIMESTAMP_NTZ")
    found = collect(frame.selectExpr("wall", "unix_micros(CAST(wall AS TIMESTAMP)) AS at"), "convert times of its zone")
    instant = dict(zip(found.column("wall").cast(pa.int64()).to_pylist(), found.column("at").to_pylist(), strict=True))
    return [instant.get(wall) for wall in walls]
