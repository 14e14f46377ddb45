"""Rows that break a rule of the table, as Spark reports them beside the rows: the first one becomes an error.

Spark evaluates the rules and puts JSON into one more column, null where a row breaks none; here it is looked at and
taken away. An error that Spark raised itself would kill the task, be tried again and leave its files behind; one that
is found here is returned as a record, and every file of the job goes. The invariant: rows of a table whose rules can be
broken are never written without that column. Source: jobs/rules; soundness C8, A17.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.errors import ConstraintViolation, JobError

VIOLATION_COLUMN = "_txlog_violation"


def without_violations(batch: pa.RecordBatch, *, must_check: bool) -> pa.RecordBatch:
    """The batch without the column of violations. Raises ConstraintViolation for the first row that breaks a rule.

    Raises JobError where the column is owed (`must_check`) and not there: a mistake of ours, not of the rows.
    """
    index = batch.schema.get_field_index(VIOLATION_COLUMN)
    if index < 0:
        if must_check:
            raise JobError("New rows reached the writer without a check of the table's rules. Nothing was committed.")
        return batch
    column = batch.column(index)
    if column.null_count < len(column):
        broken = column.drop_null()
        first = broken[0]
        raise _violation(first.as_py(), pc.sum(pc.equal(broken, first)).as_py())
    return batch.remove_column(index)


def _violation(text: str, count: int) -> ConstraintViolation:
    """The error that names the rule, the columns that it reads, and how many rows break it; never what is in them.

    `text`: `{"constraint", "column", "what", "columns": [names]}`; `count`: the rows of one batch.
    """
    violation = json.loads(text)
    columns = ", ".join(violation.get("columns") or [])
    return ConstraintViolation(
        f"{f'{count} rows or more break' if count > 1 else 'A row breaks'} {violation['what']}"
        f"{f' (it reads {columns})' if columns else ''}. Nothing was committed. Correct such rows, or leave them out, "
        "in the SQL that makes them.",
        constraint=violation["constraint"],
        column=violation.get("column"),
    )
