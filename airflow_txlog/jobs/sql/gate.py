"""The author's SQL, judged by Spark before anything runs: one expression, known columns, bound parameters, one answer.

Text goes to Spark as the author wrote it, in parentheses on separate lines, so that a trailing comment ends before the
closing one. Spark's expression parser has accepted it before, so it cannot leave the parentheses, and `functions` has
accepted its calls: analysis already loads the classes that a text names. Each of our relations has an alias before
WHERE: without one Spark takes `FROM v WHERE (flag)` for a view under the alias `where` with its one column renamed, and
filters nothing.

The invariant: a text that passes here computes a value from values of one row and does nothing else. A condition is
also deterministic, by Spark's own analysis if its plans are in reach (classic), otherwise by the names in the text.
Source: soundness A2, A3, B6.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.operations import CheckedOperation, Operation
from airflow_txlog.errors import (
    InvalidJobSpec,
    InvalidPredicate,
    SourceNotFound,
    TxlogError,
    UnknownColumn,
    UnsupportedPredicate,
)
from airflow_txlog.errors.names import did_you_mean, shown_names
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.spark.causes import analysis_text, condition_of, describe, facts_of, is_denied
from airflow_txlog.jobs.spark.errors import translate
from airflow_txlog.jobs.spark.session import LOCAL_ONLY, is_classic
from airflow_txlog.jobs.sql.bound import Binder
from airflow_txlog.jobs.sql.columns import aliases_of, columns_by_side, rows_called, unknown_alias
from airflow_txlog.jobs.sql.current_time import (
    CLOCKS,
    bare_calls,
    casts_special_date,
    computes_constants,
    special_date,
    unpinned_clock,
)
from airflow_txlog.jobs.sql.functions import (
    FUNCTIONS,
    UNLISTED,
    built_into_server,
    check_analysed,
    check_named,
    check_parsed,
    unsupported,
)
from airflow_txlog.jobs.sql.query_gate import check_query, syntax_error, with_own_lines
from airflow_txlog.sql import confinement
from airflow_txlog.sql.sql_text import quoted_hint, sql_text

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_DIFFERENT_ANSWERS = "It would answer differently each time it is asked."
# Spark's conditions for a path without a readable file: it does not exist, or is an empty folder.
NO_FILES = frozenset({"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"})
# The types whose literals begin with the type's name.
_TYPED_LITERALS = ("DATE", "INTERVAL", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")
# The alias of a table's rows in a text that has no other name for them.
ROWS_ALIAS = "txlog_rows"


def quoted(name: str) -> str:
    """Return a name as Spark reads it back, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def aliased(view: str, alias: str = ROWS_ALIAS) -> str:
    """Return a view in a FROM clause; the head of this module explains the alias."""
    return f"{quoted(view)} AS {quoted(alias)}"


class SqlGate:
    """Checks the texts of one job against empty frames, and remembers which parameters they used.

    `parameters` are the names that the texts may use: by default the job's, including its current time.
    """

    def __init__(self, context: JobContext, parameters: Mapping[str, Any] | None = None) -> None:
        self._context = context
        self._parameters = dict(context.parameters if parameters is None else parameters)
        self._binder = Binder(context, self._parameters)
        self.used: set[str] = set()
        """The parameters that some text has used so far."""
        self._shapes: dict[str, str] = {}
        self._accepted: dict[tuple[str, str], dict[str, Any]] = {}

    @property
    def _spark(self) -> SparkSession:
        return self._context.spark

    def shape(self, schema: StructType) -> str:
        """Return the name of an empty view with these columns; one name for equal columns."""
        key = schema.json()
        if key not in self._shapes:
            self._shapes[key] = self._context.view_name()
            self._spark.createDataFrame([], schema).createOrReplaceTempView(self._shapes[key])
        return self._shapes[key]

    def condition(self, text: str, relation: str) -> dict[str, Any]:
        """Accept a condition on the rows of `relation`, a FROM clause of names that `shape` gave; return its
        parameters.

        Spark analyses a text once for each relation. Raises InvalidPredicate (also UnknownColumn,
        UnsupportedPredicate).
        """
        if (text, relation) in self._accepted:
            return dict(self._accepted[text, relation])
        if sql_text(text).problem is None:  # else Spark's parser decides alone
            confinement.check_tokens(sql_text(text))
        refuse_star(text)
        self._parse(text)
        frame, used = self._analyse(f"SELECT 1 FROM {relation} WHERE (\n{text}\n)", text, relation)
        self._check_clocks(text, relation)
        self._inspect(frame, text, must_be_deterministic=True)
        self._check_bare_calls(text, relation, with_clocks=True)
        self._accepted[text, relation] = used
        return dict(used)

    def value(self, text: str, relation: str) -> DataType:
        """Accept an expression over one row of `relation` and return its type. It need not be deterministic.

        Raises as `condition` does.
        """
        refuse_star(text)
        self._parse(text)
        # Under WHERE, Spark refuses aggregates, windows and generators, which SELECT would let through.
        frame, _ = self._analyse(f"SELECT 1 FROM {relation} WHERE (\n{text}\n) IS NULL", text, relation)
        self._check_clocks(text, relation)
        self._inspect(frame, text, must_be_deterministic=False)
        self._check_bare_calls(text, relation, with_clocks=False)
        frame, _ = self._analyse(f"SELECT (\n{text}\n) AS value FROM {relation}", text, relation)
        return frame.schema[0].dataType

    def query(self, text: str) -> DataFrame:
        """Return the frame of a source's query, not evaluated yet. Raises InvalidJobSpec, SourceNotFound.

        `query_gate` judges the query, unless the operator leaves it unrestricted.
        """
        # A FROM clause accepts only a query: a command would have run at once.
        from pyspark.errors import PySparkException  # noqa: PLC0415 - a job without Spark imports no PySpark

        statement = f"SELECT * FROM (\n{text}\n)"
        try:
            if "query" not in self._context.spec.unrestricted:
                check_query(self._spark, statement, self._parameters, self._context.views)
            frame, _ = self._bound(statement, text)
        except PySparkException as error:
            if is_denied(error):
                raise translate(error, "read what the source's SQL names") from error
            condition = condition_of(error) or ""
            refusal = SourceNotFound if condition in NO_FILES else InvalidJobSpec
            is_syntax = condition.startswith("PARSE")
            reason = syntax_error(self._spark, error, text) if is_syntax else self._reason(error)
            raise refusal(
                f"The source's SQL is not a query that Spark can run: {reason}.{_advice(text)} Nothing was read.",
                argument="source",
            ) from error
        if self._binder.variable is not None and self._binder.variable in frame.schema.json():
            raise InvalidJobSpec(
                "The source's SQL has a column without a name that is an expression with a parameter. Spark Connect "
                'would name it otherwise than a classic Spark does. Write "… AS name". Nothing was read.',
                argument="source",
                **LOCAL_ONLY,
            )
        return frame

    def run(self, sql: str) -> DataFrame:
        """Return the frame of one of our statements that holds accepted texts, parameters bound."""
        return self._binder.frame(sql, self._parameters)

    def check_clocks(self, text: str, columns: Collection[str]) -> None:
        """Refuse a name that the job took for a clock and that is also a column: its author may mean either."""
        bare = self._context.texts.bare if ":_txlog_" in text else frozenset[str]()
        if not bare:
            return
        for name in sorted(bare & {column.lower() for column in columns}):
            raise unsupported(
                text,
                f"the name {name}",
                f"It is a column and a clock: write `{name}` for the column, {name}() for now.",
            )

    def check_all_used(self) -> None:
        """Raise InvalidPredicate for a parameter that no text of the job used: a misspelt one would go unseen."""
        operation = self._context.operation
        judged = operation.expectations.values() if isinstance(operation, CheckedOperation) else ()
        check_none_spare(self._context.spec.operation, self.used.union(*(sql_text(text).parameters for text in judged)))

    def _parse(self, text: str) -> None:
        """Accept one expression, by Spark's own parser, that only computes a value."""
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql import functions as F  # noqa: PLC0415

        if text.endswith("\\"):
            # Spark continues a comment that ends so in the next line, which is ours.
            raise no_expression(text, "it ends with a backslash")
        try:
            if is_classic(self._spark):
                check_parsed(self._spark, text, self._parameters)
                return
            check_named(text, built_into_server(self._spark, FUNCTIONS))
            _ = self._spark.range(0).select(F.expr(text)).schema
        except PySparkException as error:
            # A server's parser does not know columns and parameters; the analysis that follows judges them.
            if is_classic(self._spark) or (condition_of(error) or "").startswith("PARSE"):
                raise no_expression(text, analysis_text(error)) from error

    def _analyse(self, sql: str, text: str, relation: str) -> tuple[DataFrame, dict[str, Any]]:
        from pyspark.errors import PySparkException  # noqa: PLC0415

        try:
            return self._bound(sql, text)
        except PySparkException as error:
            raise self._refusal(error, text, relation) from error

    def _bound(self, sql: str, text: str) -> tuple[DataFrame, dict[str, Any]]:
        """Return the analysed frame and the parameters that Spark requires, which alone are bound."""
        from pyspark.errors import PySparkException  # noqa: PLC0415

        bound = self.parameters_in(text)
        while True:
            try:
                frame = self._binder.frame(sql, bound)
                check_types(frame, "source")
                _ = frame.schema
                self.used |= set(bound)
                return frame, bound
            except PySparkException as error:
                is_unbound = condition_of(error) == "UNBOUND_SQL_PARAMETER"
                name = (error.getMessageParameters() or {}).get("name") if is_unbound else None
                if name is None or (name in bound and is_classic(self._spark)):
                    raise
                if name not in self._parameters:
                    raise missing_value(text, name, self._parameters) from error
                if not is_classic(self._spark):
                    raise _unplaced(text, name) from error
                bound[name] = self._parameters[name]

    def parameters_in(self, text: str) -> dict[str, Any]:
        """Return the given parameters that the text seems to name. Spark reports others, one failed analysis each."""
        return {name: self._parameters[name] for name in sql_text(text).parameters if name in self._parameters}

    def _refusal(self, error: PySparkException, text: str, relation: str) -> TxlogError:
        condition, aliases = condition_of(error) or "", aliases_of(self._context.spec.operation.acting)
        if condition.startswith(("UNRESOLVED_COLUMN", "UNRESOLVED_FIELD", "FIELD_NOT_FOUND")):
            column = facts_of(error).get("objectName", "").replace("`", "")
            columns, sides = self._columns(relation), self._sides(relation)
            alias, dot, _ = column.partition(".")
            called = rows_called(self._context.spec.operation.acting)
            if dot and alias.lower() not in {each.lower() for each in (*columns, *called)}:
                return unknown_alias(text, column, sides or [("the rows", columns)], aliases)
            listed = columns_by_side(sides) if len(sides) > 1 else f" The columns are: {shown_names(columns)}."
            near = did_you_mean(column.rpartition(".")[2], columns)
            return UnknownColumn(
                f"The text {text!r} names {column or 'a column'}, which is not there.{near}{_advice(text)}{aliases}"
                f"{listed} Nothing was read.",
                predicate=text,
                column=column or None,
                columns=list(dict.fromkeys(columns)),
            )
        return InvalidPredicate(
            f"Spark does not accept the text {text!r} here: {self._reason(error)}.{_advice(text)}"
            f"{aliases if condition == 'AMBIGUOUS_REFERENCE' else ''} Nothing was read.",
            predicate=text,
        )

    def _reason(self, error: PySparkException) -> str:
        """Return Spark's message; if parameters are bound, only the part without expressions, which show values."""
        if not self._parameters:
            return with_own_lines(analysis_text(error))
        return f"{describe(error)}. Expressions are not shown, because parameters are bound"

    def _columns(self, relation: str) -> list[str]:
        names: list[str] = self._spark.sql(f"SELECT * FROM {relation}").schema.names
        return names

    def _sides(self, relation: str) -> list[tuple[str, list[str]]]:
        """Return the columns of the relation by their owner; nothing if its rows have no name in the texts."""
        return [
            (whose, self._spark.sql(f"SELECT {quoted(alias)}.* FROM {relation}").schema.names)
            for alias, whose in rows_called(self._context.spec.operation.acting).items()
            if f"AS {quoted(alias)}" in relation
        ]

    def _check_clocks(self, text: str, relation: str) -> None:
        if self._context.texts.bare and ":_txlog_" in text:
            self.check_clocks(text, self._columns(relation))

    def _check_bare_calls(self, text: str, relation: str, *, with_clocks: bool) -> None:
        """Refuse by name a clock or a function of the session that is no column, if no plan shows it (Connect)."""
        found = [] if is_classic(self._spark) else bare_calls(text, with_clocks=with_clocks)
        columns = {name.lower() for name in self._columns(relation)} if found else ()
        for name, is_called in found:
            if is_called or name not in columns:
                if name in CLOCKS:
                    raise _left_clock(text, name, **LOCAL_ONLY)
                raise unsupported(text, f"the function {name}()", UNLISTED, **LOCAL_ONLY)

    def _inspect(self, frame: DataFrame, text: str, *, must_be_deterministic: bool) -> None:
        """Refuse faults that only the analysed plan shows: names with a forbidden meaning and nondeterminism.

        On Connect the plan is on the server, and the names in the text have decided.
        """
        special = special_date(text, self._parameters) if must_be_deterministic else False
        if not is_classic(self._spark):
            if special is not False:
                raise _special(text, **LOCAL_ONLY)
            return
        node: Any = frame._jdf.queryExecution().analyzed()
        while node.nodeName() != "Filter":
            node = node.children().head()
        check_analysed(self._spark, node, text)
        condition = node.condition()
        if not must_be_deterministic:
            return
        if not condition.deterministic():
            raise unsupported(text, "a non-deterministic function", _DIFFERENT_ANSWERS)
        clock = unpinned_clock(self._spark, condition)
        if clock is not None:
            raise _left_clock(text, clock)
        may_cast = special is None or computes_constants(text)
        if special or (may_cast and casts_special_date(self._spark, condition)):
            raise _special(text)


def check_none_spare(operation: Operation, used: Collection[str]) -> None:
    """Raise InvalidPredicate for a parameter with a value that none of the texts uses."""
    spare = sorted(set(operation.bound_parameters) - set(used))
    if spare:
        hint = quoted_hint((text for _, text, _ in operation.texts()), spare[0])
        raise InvalidPredicate(
            f"No SQL of this job has a parameter :{spare[0]}, for which a value was given.{hint} A misspelt parameter "
            "is refused rather than ignored. Nothing was read."
        )


def missing_value(text: str, name: str, given: Collection[str]) -> InvalidPredicate:
    """Return the error for a parameter of a text that has no value."""
    return InvalidPredicate(
        f"The text {text!r} needs a value for its parameter :{name}, and none was given. Given: "
        f"{', '.join(sorted(given)) or 'none'}. Nothing was read.",
        predicate=text,
    )


def no_expression(text: str, what: str) -> InvalidPredicate:
    """Return the error for a text that is not exactly one expression."""
    return InvalidPredicate(
        f"The text {text!r} is not one SQL expression: {what}. Values belong in the parameters.{_advice(text)} "
        "Nothing was read.",
        predicate=text,
    )


def check_types(frame: DataFrame, argument: str) -> None:
    """Refuse user-defined types, by the schema in the JVM.

    Python would import, or unpickle, the class that the footer of a file, or a type within a text, names. Raises
    JobError if a Connect server may not read the files; a Spark of this process has raised before.
    """
    if not is_classic(frame.sparkSession):
        from pyspark.errors import PySparkException  # noqa: PLC0415

        try:
            _ = frame.schema
        except PySparkException as error:
            if is_denied(error):
                raise translate(error, f"read the files of {argument}") from error
            raise
    elif '"type":"udt"' in frame._jdf.schema().json():
        raise InvalidJobSpec(
            f"{argument}: a class is named for the type of a column, and would be loaded to read it. Give the columns' "
            "plain types as schema. Nothing was read.",
            argument=argument,
        )


def refuse_star(text: str) -> None:
    """Refuse `*` for all columns: it would include the columns that the job adds."""
    cut = sql_text(text)
    if cut.has_star() or (cut.problem is not None and "*" in text):
        raise unsupported(text, "a star", "Name the columns that are meant.")


def _advice(text: str) -> str:
    """Return the advice for a parameter that follows the name of a type, where only a literal may."""
    for word, following in itertools.pairwise(sql_text(text).tokens):
        kind = word.word.upper()
        if following.kind == "parameter" and kind in _TYPED_LITERALS:
            parameter = f":{following.text}"
            instead = f"{parameter} * INTERVAL 1 DAY" if kind == "INTERVAL" else f"CAST({parameter} AS {kind})"
            return f" A parameter is a value and no part of a literal: for {kind} {parameter} write {instead}."
    return ""


def _unplaced(text: str, name: str) -> InvalidPredicate:
    return InvalidPredicate(
        f"The text {text!r} has the parameter :{name} where Spark Connect cannot be given its value: it may also be a "
        f"member of the expression before it.{_advice(text)} Write (:{name}), or run the job with a Spark of its own "
        '(runner="child"). Nothing was read.',
        predicate=text,
        **LOCAL_ONLY,
    )


def _left_clock(text: str, clock: str, **facts: Any) -> UnsupportedPredicate:
    return unsupported(text, f"the clock {clock}()", f"{_DIFFERENT_ANSWERS} Bind the time as a parameter.", **facts)


def _special(text: str, **facts: Any) -> UnsupportedPredicate:
    why = f"{_DIFFERENT_ANSWERS} Write current_date() or now()."
    return unsupported(text, "a special date such as 'today'", why, **facts)
