"""CHECK constraints that are plain: the tasks that write new rows judge them, without Spark.

The invariant: a row passes exactly if Spark evaluates the table's text to TRUE, and the error is the same. A text that
is not plain, and any other kind of rule, is left to Spark (`table_rules`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from airflow_txlog.datafiles.parquet.judging import Rule
from airflow_txlog.engine.table.predicate import plain_condition
from airflow_txlog.engine.table.schema.rules import Check, RowRules
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.sql.columns import columns_named

SHOWN_COLUMNS = 5
"""The most columns of a rule that an error names. Their values are not shown (soundness C8)."""


def plain_rules(context: JobContext, schema: StructType, constraints: Iterable[Check]) -> tuple[Rule, ...]:
    """Return those of the CHECK constraints that the tasks judge."""
    found = (_plain(context, schema, check) for check in constraints)
    return tuple(rule for rule in found if rule is not None)


def rules_of_spark(context: JobContext, schema: StructType, rules: RowRules) -> RowRules:
    """Return the rules without the constraints that the tasks judge."""
    checks = (each for each in rules.checks if each.kind != "CHECK" or _plain(context, schema, each) is None)
    return replace(rules, checks=tuple(checks))


def _plain(context: JobContext, schema: StructType, check: Check) -> Rule | None:
    may_fail, zone = not context.leaves_values_to_spark, context.spec.time_zone
    condition = plain_condition(check.sql, schema, {}, may_fail=may_fail, time_zone=zone)
    if isinstance(condition, str):
        return None
    named = columns_named(check.sql, schema)
    facts = {
        "constraint": check.constraint,
        "what": check.what,
        "column": None,
        "columns": [name for name in schema.names if name in named][:SHOWN_COLUMNS],
    }
    return Rule(condition, json.dumps(facts))
