"""The expectations of a job: conditions that judge each new row of its table, or each row of its source.

A plain condition is bound to the columns once and evaluated on the rows that reach a writer
(`datafiles/parquet/judging`). Spark evaluates any other condition in the frame of the rows, and the writer counts its
answers. Conditions that drop rows judge the source. A write has no rows between its source and its table, so that they
judge its new rows. The invariant: a row passes exactly if Spark evaluates the author's text to TRUE.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_txlog.contract.operations import CheckedOperation
from airflow_txlog.datafiles.parquet.judging import Condition, Expected
from airflow_txlog.engine.table.predicate import plain_condition
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.sql.sql_text import sql_text


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One text, and its condition on certain columns; None if only Spark evaluates it, for the reason `why`."""

    name: str
    text: str
    condition: Condition
    drops: bool
    quarantines: bool
    why: str | None = None

    @property
    def expected(self) -> Expected:
        return Expected(self.condition, self.drops, self.name if self.quarantines else None)


def names_judging(context: JobContext, *, source: bool = False) -> list[str]:
    """Return the names of the expectations on new rows of the table, or on the rows of the source before it is met."""
    operation = context.operation
    if not isinstance(operation, CheckedOperation):
        return []
    if source:
        return list(operation.dropping) if context.judges_source else []
    return [name for name in operation.expectations if not context.judges_source or name not in operation.dropping]


def expectations_of(context: JobContext, schema: StructType, *, source: bool = False) -> list[Expectation]:
    """Return the job's expectations on such rows with these columns, as `names_judging` orders them."""
    operation = context.operation
    if not isinstance(operation, CheckedOperation):
        return []
    may_fail = not context.leaves_values_to_spark
    found = []
    for name in names_judging(context, source=source):
        text = operation.expectations[name]
        drops, quarantines = name in operation.dropping, name in operation.quarantining
        used = {each: context.parameters[each] for each in sql_text(text).parameters if each in context.parameters}
        bound = plain_condition(text, schema, used, may_fail=may_fail, time_zone=context.spec.time_zone)
        why = f"the expectation {name!r} is more than a plain condition: it has {bound}"
        found.append(
            Expectation(
                name=name,
                text=text,
                condition=None if isinstance(bound, str) else bound,
                drops=drops,
                quarantines=quarantines,
                why=why if isinstance(bound, str) else None,
            )
        )
    return found


def why_spark_judges(context: JobContext, schema: StructType, *, source: bool = False) -> str | None:
    """Return why such rows with these columns must pass through Spark; None if every condition is plain."""
    found = expectations_of(context, schema, source=source)
    return next((each.why for each in found if each.why is not None), None)
