"""Materialized rows with Spark's answers to a condition that is more than a plain one."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import functions as F

from airflow_txlog.datafiles.parquet.judging import answer_column
from airflow_txlog.datafiles.tasks.scan_and_write import PART_COLUMN, ROW_ID_COLUMN
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import collect_records, records_of
from airflow_txlog.jobs.files.stage import input_layout
from airflow_txlog.jobs.source.frames import frame_of
from airflow_txlog.jobs.source.materialized import WRITING_SOURCE, MaterializedSource, with_row_id
from airflow_txlog.jobs.sql.gate import SqlGate, aliased
from airflow_txlog.jobs.sql.schemas import without_metadata
from airflow_txlog.jobs.sql.table_rules import ExpectationsOfSpark


def answered(
    context: JobContext, gate: SqlGate, source: MaterializedSource, text: str, name: str
) -> MaterializedSource:
    """Return the rows of the source with whether the condition is TRUE, in a column `name`. Raises InvalidPredicate."""
    rows = frame_of(context, source, source.stored.names).drop(ROW_ID_COLUMN)
    gate.condition(text, aliased(gate.shape(without_metadata(rows.schema, nullable=True))))
    rows = ExpectationsOfSpark(context=context, gate=gate, texts={0: text}).answered(rows)
    rows = rows.withColumnRenamed(answer_column(0), name)
    # As in `materialize`: the task's number is part of its rows' numbers.
    rows = rows.coalesce(2 * context.parallelism).withColumn(PART_COLUMN, F.spark_partition_id())
    stored = source.stored.append(pa.field(name, pa.bool_()))
    layout = input_layout(context, with_row_id(stored))
    staged = collect_records(context, records_of(rows, layout, numbers_rows=True), WRITING_SOURCE)
    return replace(source, files=tuple(staged.files), stored=stored)
