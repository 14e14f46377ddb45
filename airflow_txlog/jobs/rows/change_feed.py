"""A commit's change data feed: which rows left their files, and which new rows are inserts or new images.

A reader derives the changes of whole files by itself, so nothing is written where files only come and go. The
invariant: either every change of the attempt stands in change files, or none does, and then no staged file holds a row
that was there before. Source: protocol, "Add CDC File"; delta-spark, DeleteCommand, UpdateCommand, MergeIntoCommand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_txlog.datafiles.change_rows import CHANGE_TYPE_COLUMN
from airflow_txlog.engine.table.snapshot.files import file_keys
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, plan_files
from airflow_txlog.jobs.rows.operation import Found, P, Prepared, RowOperation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGE_ROWS = ", change rows"


@dataclass(frozen=True, kw_only=True)
class LeavingRows:
    """The rows that leave their files: a plan with their positions, the files (rows of a table `FILES`), their keys.

    A file that goes as a whole has no positions.
    """

    plan: FilePlan
    files: pa.Table
    keys: list[str]


def needs_change_rows(
    operation: RowOperation[P], prepared: P, found: Found, *, copies_rows: bool, inserts_rows: bool
) -> bool:
    """Whether the attempt's commit needs change files; `copies_rows`: a staged file holds rows that stay as they are.

    Rows that come back changed are written as what they were and became. Deletes and inserts of one commit are
    written together, as delta-spark does.
    """
    if not prepared.snapshot.table_properties.change_data_feed:
        return False
    leaves = bool(found.removed.num_rows or prepared.whole.num_rows) or operation.records_inserts_alone
    return copies_rows or found.updated.num_rows > 0 or (leaves and inserts_rows)


def with_change_rows(fingerprint: str) -> str:
    """The fingerprint of inserts that have change rows: those that were staged without are others."""
    return fingerprint + _CHANGE_ROWS


def without_change_rows(fingerprint: str) -> str:
    """The fingerprint of inserts without what `with_change_rows` has put behind it."""
    return fingerprint.removesuffix(_CHANGE_ROWS)


def leaving_rows(context: JobContext, prepared: Prepared, found: Found) -> LeavingRows:
    """All rows that leave their files in this attempt."""
    touched = sorted(found.removed.positions)
    files = prepared.candidates.take(pa.array(touched, pa.int64()))
    tables = [found.removed.plan_with_clauses(found.plan, touched).table]
    if prepared.whole.num_rows:
        tables.append(
            plan_files(prepared.snapshot, prepared.whole, context.spec.time_zone, context.executor.instants).table
        )
        files = pa.concat_tables([files, prepared.whole])
    plan = replace(found.plan, table=pa.concat_tables(tables))
    return LeavingRows(plan=plan, files=files, keys=file_keys(files, context.root).to_pylist())


def with_change_type(rows: DataFrame, kind: str) -> DataFrame:
    """The rows with this change type: the stage then writes them as change rows too."""
    from pyspark.sql import functions as F  # noqa: PLC0415 - a job without Spark imports no PySpark

    return rows.withColumn(CHANGE_TYPE_COLUMN, F.lit(kind))
