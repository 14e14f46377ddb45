"""The rules of a table, kept on every new row: checked, computed, padded, in one Spark expression over the rows.

A generated column is computed in a row that lacks it, and verified in a row that has it. A default fills a column that
no source names. char(n) is padded, and a text that is too long is refused. CHECK constraints and invariants must be
true, and null is not true. A row's violations travel with it (`tasks.violations`) and become an error in the writer.
The invariant: `enforce` names the rule that a row breaks, and the writer takes no other rows if a rule can be broken.
The writer checks NOT NULL. Source: protocol, "Column Invariants", "CHECK Constraints", "Generated Columns", "Identity
Columns", "Default Columns"; delta-spark, CheckDeltaInvariant; Spark, CharVarcharUtils.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NullType, StructType

from airflow_txlog.datafiles.parquet.judging import VIOLATION_COLUMN, answer_column
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema import types as delta
from airflow_txlog.engine.table.schema.column_mapping import table_schema
from airflow_txlog.engine.table.schema.rules import Check, Length, RowRules, read_rules
from airflow_txlog.errors import InvalidPredicate, UnsupportedFeature
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.spark.session import LOCAL_ONLY, is_classic
from airflow_txlog.jobs.sql.columns import columns_named
from airflow_txlog.jobs.sql.current_time import with_literal_clocks
from airflow_txlog.jobs.sql.expectations import expectations_of
from airflow_txlog.jobs.sql.gate import SqlGate, aliased, quoted
from airflow_txlog.jobs.sql.plain_checks import SHOWN_COLUMNS
from airflow_txlog.jobs.sql.schemas import as_spark_schema, fit_rows, text_literal, type_sql, without_metadata


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of one table whose every text Spark has accepted. Made by `accepted_rules`."""

    table: RowRules
    evaluated: RowRules
    """The same rules, each text with the job's current time in it (soundness A2)."""
    schema: delta.StructType
    spark_schema: StructType
    uri: str
    expectations: ExpectationsOfSpark

    @property
    def fills(self) -> frozenset[str]:
        return self.table.fills

    @property
    def must_check(self) -> bool:
        return self.table.must_check or self.expectations.texts != {}

    @property
    def enforced_columns(self) -> frozenset[str]:
        texts = [*(check.sql for check in self.table.checks), *self.table.generated.values()]
        texts += self.expectations.texts.values()
        named = (name for text in texts for name in self._named(text))
        return frozenset([*self.table.generated, *self.table.lengths, *self.table.identities, *named])

    def default_sql(self, column: str) -> str:
        """Return SQL for the value of a column in a new row if no source gives one."""
        text = self.evaluated.defaults.get(column)
        return "NULL" if text is None else f"CAST((\n{text}\n) AS {type_sql(self.spark_schema[column].dataType)})"

    def with_defaults(self, rows: DataFrame, absent: Collection[str]) -> DataFrame:
        """Return the rows with the defaults of these columns instead of their nulls."""
        filled = {name: F.expr(self.default_sql(name)) for name in self.table.defaults if name in absent}
        return rows.withColumns(filled) if filled else rows

    def with_generated(self, rows: DataFrame, absent: Mapping[str, Column | None]) -> DataFrame:
        """Return the rows with these generated columns computed: in every row, or (a condition) in those that lack
        them.
        """
        computed = {}
        for name, lacks in absent.items():
            if name in self.table.generated:
                value = F.expr(self._generated_sql(name))
                computed[name] = value if lacks is None else F.when(lacks, value).otherwise(rows[quoted(name)])
        return rows.withColumns(computed) if computed else rows

    def enforce(self, rows: DataFrame, *, are_inserts: bool = True) -> DataFrame:
        """Return the rows, texts padded or cut to their length, and VIOLATION_COLUMN if a row can break a rule.

        The answers to the expectations that only Spark evaluates are further columns.
        `rows` have at least `enforced_columns`. `are_inserts`: an identity column without a value is a violation; the
        image of an old row may hold null there.
        """
        if not self.must_check:
            return rows
        violations = [self._too_long(name, length) for name, length in self.table.lengths.items()]
        violations += [self._miscomputed(name) for name in self.table.generated]
        checks = zip(self.table.checks, self.evaluated.checks, strict=True)
        violations += [self._false(check, evaluated.sql) for check, evaluated in checks]
        if are_inserts:
            violations += [self._without_identity(name) for name in self.table.identities]
        # Lengths first, because every text fits afterwards.
        too_long, others = violations[: len(self.table.lengths)], violations[len(self.table.lengths) :]
        if too_long:
            rows = rows.withColumn(VIOLATION_COLUMN, F.coalesce(*too_long))
            rows = rows.withColumns({name: _fitted(name, length) for name, length in self.table.lengths.items()})
            others = [F.col(VIOLATION_COLUMN), *others]
        violation = F.coalesce(*others) if others else F.lit(None).cast("string")
        return self.expectations.answered(rows.withColumn(VIOLATION_COLUMN, violation))

    def _generated_sql(self, name: str) -> str:
        return f"CAST((\n{self.evaluated.generated[name]}\n) AS {type_sql(self.spark_schema[name].dataType)})"

    def _too_long(self, name: str, length: Length) -> Column:
        # Spaces beyond the limit are cut, as Spark cuts them; anything else there is too long.
        beyond = f"rtrim(substring({quoted(name)}, {length.limit + 1}))"
        return self._violation(f"{beyond} <> ''", str(length), f"{length} of column {name!r}", [name], column=name)

    def _miscomputed(self, name: str) -> Column:
        text = self.table.generated[name]
        broken = f"NOT ({quoted(name)} <=> {self._generated_sql(name)})"
        what = f"the generated column {name!r}, which must be {text}"
        return self._violation(broken, "GENERATED", what, [name, *self._named(text)], column=name)

    def _false(self, check: Check, sql: str) -> Column:
        broken = f"NOT coalesce((\n{sql}\n), FALSE)"
        return self._violation(broken, check.constraint, check.what, self._named(check.sql), column=check.column)

    def _without_identity(self, name: str) -> Column:
        what = f"the identity column {name!r}, for which every row needs a value"
        return self._violation(f"{quoted(name)} IS NULL", "IDENTITY", what, [], column=name)

    def _named(self, sql: str) -> list[str]:
        named = columns_named(sql, self.schema)
        return [name for name in self.schema.names if name in named]

    def _violation(
        self, broken: str, constraint: str, what: str, shown: Sequence[str], *, column: str | None
    ) -> Column:
        """Return SQL that gives JSON if the SQL `broken` is true, else null; see `tasks.violations`."""
        columns = list(dict.fromkeys(shown))[:SHOWN_COLUMNS]
        facts = [F.lit(constraint).alias("constraint"), F.lit(what).alias("what"), F.lit(column).alias("column")]
        facts += [F.array(*(F.lit(name) for name in columns)).alias("columns")] if columns else []
        return F.when(F.expr(broken), F.to_json(F.struct(*facts), {"ignoreNullFields": "false"}))


@dataclass(frozen=True, kw_only=True)
class ExpectationsOfSpark:
    """The expectations that only Spark evaluates: accepted texts by their numbers among all."""

    context: JobContext
    gate: SqlGate
    texts: Mapping[int, str]

    def answered(self, rows: DataFrame) -> DataFrame:
        """Return the rows in their order, with whether each of them passes (`judging.answer_column`)."""
        if not self.texts:
            return rows
        view = self.context.view_name()
        rows.createOrReplaceTempView(view)
        columns = [quoted(name) for name in rows.schema.names]
        columns += [
            f"coalesce((\n{text}\n), FALSE) AS {quoted(answer_column(number))}" for number, text in self.texts.items()
        ]
        return self.gate.run(f"SELECT {', '.join(columns)} FROM {aliased(view)}")


def accepted_expectations(
    context: JobContext, schema: delta.StructType, *, source: bool = False
) -> ExpectationsOfSpark:
    """Have Spark accept the conditions that are not plain. Raises InvalidPredicate and its kinds."""
    gate = SqlGate(context)
    found = expectations_of(context, schema, source=source)
    texts = {number: each.text for number, each in enumerate(found) if each.condition is None}
    if texts:
        relation = aliased(gate.shape(without_metadata(as_spark_schema(schema), nullable=True)))
        for text in texts.values():
            gate.condition(text, relation)
    return ExpectationsOfSpark(context=context, gate=gate, texts=texts)


def fit_new_rows(frame: DataFrame, rules: Rules, *, ansi: bool) -> DataFrame:
    """Return a source's rows as new rows of the table: its columns and types, filled in, and enforced.

    Identity columns have their values already. Raises SchemaMismatch, ConstraintViolation and UnsupportedFeature for
    rows that can never be right.
    """
    have = {name.lower() for name in frame.schema.names}
    absent = [name for name in rules.spark_schema.names if name.lower() not in have]
    rows = fit_rows(frame, rules.spark_schema, ansi=ansi, table_uri=rules.uri, filled=rules.fills)
    rows = rules.with_defaults(rows, absent)
    return rules.enforce(rules.with_generated(rows, dict.fromkeys(absent)))


def only_inside(gate: SqlGate, view: str, rows: DataFrame, condition: str) -> DataFrame:
    """Return the rows, with a violation (`tasks.violations`) if the accepted condition is not true."""
    violation: dict[str, Any] = {
        "constraint": "replace_where",
        "column": None,
        "what": f"replace_where ({condition})",
        "values": {},
    }
    rows.createOrReplaceTempView(view)
    broken = f"CASE WHEN coalesce((\n{condition}\n), FALSE) THEN NULL ELSE {text_literal(json.dumps(violation))} END"
    names = [name for name in rows.schema.names if name != VIOLATION_COLUMN]
    columns = [quoted(name) for name in names]
    if VIOLATION_COLUMN in rows.schema.names:
        # A broken rule of the table is reported first.
        broken = f"coalesce({VIOLATION_COLUMN}, {broken})"
    return gate.run(f"SELECT {', '.join(columns)}, {broken} AS {VIOLATION_COLUMN} FROM {quoted(view)}")


def accepted_rules(context: JobContext, metadata: Metadata) -> Rules:
    """Return the rules in the metadata, every text of them judged by Spark before anything is read or staged.

    Raises UnsupportedFeature, naming the rule, for a text that Spark does not accept as one expression over the columns
    of one row; and the errors of `read_rules`.
    """
    schema = table_schema(metadata, context.root)
    table = read_rules(metadata, schema, context.root)
    rules = Rules(
        table=table,
        evaluated=_with_literal_clocks(context, table, schema.names),
        schema=schema,
        spark_schema=as_spark_schema(schema),
        uri=context.root,
        expectations=accepted_expectations(context, schema),
    )
    if rules.table.must_check or rules.table.defaults:
        _check_texts(context, rules)
    return rules


def _with_literal_clocks(context: JobContext, rules: RowRules, columns: Collection[str]) -> RowRules:

    def at_one_time(sql: str) -> str:
        return with_literal_clocks(sql, context.current_time, columns)

    return replace(
        rules,
        checks=tuple(replace(check, sql=at_one_time(check.sql)) for check in rules.checks),
        generated={name: at_one_time(sql) for name, sql in rules.generated.items()},
        # A default names no column.
        defaults={name: with_literal_clocks(sql, context.current_time, ()) for name, sql in rules.defaults.items()},
    )


def _check_texts(context: JobContext, rules: Rules) -> None:
    has_sql = bool(rules.table.checks or rules.table.generated or rules.table.defaults)
    if has_sql and not is_classic(context.spark):
        raise UnsupportedFeature(
            f"{rules.uri}: the table has rules in SQL (constraints, generated columns or defaults), and what they call "
            "can be checked only if Spark's plans are in reach, which Spark Connect does not give. Run the job in a "
            "local Spark. Nothing was staged.",
            table=rules.uri,
            feature="rules of the table",
            needed_to="write",
            **LOCAL_ONLY,
        )
    gate = SqlGate(context, {})
    relation = aliased(gate.shape(without_metadata(rules.spark_schema, nullable=True)))
    no_columns = aliased(gate.shape(StructType([])))
    # The judged texts are the evaluated ones, letter by letter.
    evaluated = rules.evaluated
    for check, judged in zip(rules.table.checks, evaluated.checks, strict=True):
        feature = "checkConstraints" if check.kind == "CHECK" else "invariants"
        _accept(rules, feature, check.name, check.sql, judged.sql, lambda sql: _accept_boolean(gate, sql, relation))
    for name, text in rules.table.generated.items():
        _accept(rules, "generatedColumns", name, text, evaluated.generated[name], lambda sql: gate.value(sql, relation))
    for name, text in rules.table.defaults.items():
        # It is evaluated with rows of a source, whose columns it must not mean.
        sql = evaluated.defaults[name]
        _accept(rules, "allowColumnDefaults", name, text, sql, lambda sql: gate.value(sql, no_columns))


def _accept_boolean(gate: SqlGate, text: str, relation: str) -> None:
    # Judged once for each row, in the stage that writes it: a random value in it does no harm.
    found = gate.value(text, relation)
    if not isinstance(found, BooleanType | NullType):
        raise InvalidPredicate(f"The text {text!r} is {found.simpleString()} and not BOOLEAN.", predicate=text)


def _accept(rules: Rules, feature: str, name: str, text: str, sql: str, judge: Callable[[str], object]) -> None:
    """Have `judge` accept `sql`, the evaluated form of the table's own `text`. Raises UnsupportedFeature."""
    try:
        judge(sql)
    except InvalidPredicate as error:
        raise UnsupportedFeature(
            f'{rules.uri}: the rule {name!r} ({text}) needs the feature "{feature}" in a way that this engine cannot '
            f"keep: {error.message} Rows can be deleted. Nothing was staged.",
            table=rules.uri,
            feature=feature,
            needed_to="write",
        ) from error


def _fitted(name: str, length: Length) -> Column:
    """Return a text as char(n) or varchar(n) holds it; one that is too long is cut, and its row has a violation."""
    cut = f"substring({quoted(name)}, 1, {length.limit})"
    if length.is_padded:
        return F.expr(f"rpad({cut}, {length.limit}, ' ')")
    return F.expr(cut)
