"""Hand the values of parameters to Spark: each is the value that was given, and none is part of a text.

Classic PySpark passes dates and timestamps as `java.sql` types, which go through the zone and the calendars of the
driver's machine: an instant before 1900 moves by the offsets of old clocks, one before 1582 by days, and a day that the
zone left out becomes the next one. `java.time` keeps them.

Over Spark Connect, Spark 4.1 and later write the values of `args` into the text: `7-:x` with a negative value becomes a
comment, which hides the rest of the line. The setting that forbids this in a classic session makes a Connect session
bind nothing. So nothing is passed as `args` there. The values cross as typed literals of the protocol into one variable
of the session, and a marker in the text becomes a reference to its member. The invariant: a text that goes to Spark
depends on the names and types of the parameters alone. Source: soundness A22; Spark 4.2, SparkConnectPlanner.
"""

from __future__ import annotations

import datetime as dt
import decimal
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_txlog.datafiles.codecs import plain_time
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.spark.session import is_classic
from airflow_txlog.sql.lexer import OUTSIDE, neighbours, words
from airflow_txlog.sql.sql_text import statement_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# An operand begins after one of these, so that `:name` is a parameter. Elsewhere it may be a member of the expression
# before it (`payload:name`): only Spark's parser can decide.
_BEFORE_AN_OPERAND = words(
    """
    and all between both by case distinct div else escape for from having ilike in is leading like limit not offset on
    or placing qualify regexp rlike select some then trailing values when where
    """
)
_AFTER_AN_OPERAND = (")", "]", ".", ":", "::")


class Binder:
    """Binds the parameters of one job's texts; `parameters` are all that a text may name, with their values."""

    def __init__(self, context: JobContext, parameters: Mapping[str, Any]) -> None:
        self._context = context
        self._parameters = parameters
        self.variable: str | None = None
        """The session's variable that holds the values, once a text over Spark Connect has named one."""
        self._references: dict[str, str] = {}

    def frame(self, sql: str, names: Mapping[str, Any]) -> DataFrame:
        """Return the frame of a statement with these of the parameters bound.

        Raises Spark's errors: over Spark Connect UNBOUND_SQL_PARAMETER for a marker that `with_references` leaves.
        """
        spark = self._context.spark
        if is_classic(spark):
            return spark.sql(sql, args={name: _in_java(spark, value) for name, value in names.items()} or None)
        if names and self.variable is None:
            self._declare()
        return spark.sql(with_references(sql, {name: self._references[name] for name in names}))

    def _declare(self) -> None:
        from pyspark.sql import functions as F  # noqa: PLC0415 - what of it is Connect's is decided when it is imported

        spark = self._context.spark
        # The name cannot be guessed, so that no column and no other variable has it.
        variable = f"txlog_{secrets.token_hex(8)}"
        members = {name: f"p{number}" for number, name in enumerate(self._parameters)}
        values = [_literal(self._parameters[name]).alias(member) for name, member in members.items()]
        row = spark.sql("SELECT 1").select(F.struct(*values).alias("v"))
        types = {field.name: field.dataType.simpleString() for field in row.schema[0].dataType}  # type: ignore[attr-defined]
        view = self._context.view_name()
        row.createOrReplaceTempView(view)
        self._context.variables.append(variable)
        spark.sql(f"DECLARE VARIABLE {variable} STRUCT<{', '.join(f'{name}: {kind}' for name, kind in types.items())}>")
        spark.sql(f"SET VARIABLE {variable} = (SELECT v FROM {view})")
        self._references = {name: reference(f"{variable}.{at}", types[at]) for name, at in members.items()}
        self.variable = variable


def reference(member: str, data_type: str) -> str:
    """Return the replacement of a parameter: a member of the variable, cast to its own type.

    A bare name would give its name to the member of a struct. A parenthesis first would make a call of a name before it
    (`limit:x`), after the gate has looked for calls.
    """
    return f" CAST({member} AS {data_type})"


def with_references(sql: str, references: Mapping[str, str]) -> str:
    """Return the statement with a reference instead of each parameter that has one.

    A marker stays if it may be a member of the expression before it, and if the statement cannot be cut.
    """
    statement = statement_text(sql)
    pieces: list[str] = []
    done = 0
    for (before, token, _), (start, end) in zip(neighbours(statement.tokens), statement.spans, strict=True):
        is_operand = before is OUTSIDE or before.word in _BEFORE_AN_OPERAND
        is_operand = is_operand or (before.kind == "symbol" and before.text not in _AFTER_AN_OPERAND)
        if token.kind == "parameter" and token.text in references and is_operand:
            pieces += [sql[done:start], references[token.text]]
            done = end
    return "".join([*pieces, sql[done:]])


def _in_java(spark: SparkSession, value: Any) -> Any:
    """Return the value as a classic session binds it unchanged."""
    if isinstance(value, list):
        return [_in_java(spark, each) for each in value]
    if not isinstance(value, dt.date):
        return value
    java: Any = spark._jvm
    if not isinstance(value, dt.datetime):
        return java.java.time.LocalDate.of(value.year, value.month, value.day)
    if value.tzinfo is None:
        day = java.java.time.LocalDate.of(value.year, value.month, value.day)
        nanoseconds = value.microsecond * 1000
        return day.atTime(value.hour, value.minute, value.second, nanoseconds)
    microseconds = plain_time(value)
    return java.java.time.Instant.ofEpochSecond(microseconds // 1_000_000, microseconds % 1_000_000 * 1000)


def _literal(value: Any) -> Column:
    """Return the value as a typed literal of the Connect protocol, of the type that a classic session gives it."""
    from pyspark.sql import functions as F  # noqa: PLC0415
    from pyspark.sql.connect.column import Column  # noqa: PLC0415
    from pyspark.sql.connect.expressions import LiteralExpression  # noqa: PLC0415
    from pyspark.sql.types import DecimalType, TimestampNTZType, TimestampType  # noqa: PLC0415

    if isinstance(value, list):
        return F.array(*(_literal(each) for each in value))
    if isinstance(value, dt.datetime):
        return Column(LiteralExpression(value, TimestampNTZType() if value.tzinfo is None else TimestampType()))
    if isinstance(value, decimal.Decimal):
        _, digits, exponent = value.as_tuple()
        scale = max(0, -int(exponent))
        precision = max(len(digits) + max(0, int(exponent)), scale)
        return Column(LiteralExpression(value, DecimalType(precision, scale)))
    return F.lit(value)
