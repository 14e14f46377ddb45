"""The rows of a write's source as new rows of the table: made by Spark (`spark_rows`), or files that are these rows
already, which no Spark need read.

The invariant: both ways give the same rows, and refuse the same. What `PlainRows` is not certain of needs Spark.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from airflow_txlog.contract.operations import FileView, Write
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.scan_and_write import ScanTask
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.column_mapping import table_schema
from airflow_txlog.engine.table.schema.rules import RowRules, keeps_as_they_are, read_rules
from airflow_txlog.engine.table.schema.schema import StructType, schema_to_json
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.source.rows_here import PlainFiles, plain_source
from airflow_txlog.jobs.spark.needed import NeedsSpark
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.schema_evolution import SchemaJson

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class NewRows(Protocol):
    """The calls in their order: `build` where no rows are staged yet, `accept`, and `rows` after both."""

    @property
    def reads_target(self) -> bool:
        """Whether a row of the source that was built may be the target's."""

    def build(self, target: Snapshot | None) -> SchemaJson:
        """Find the source, and return its columns. `target`: the table's version that a source reading it sees."""

    def accept(self, metadata: Metadata) -> StructType:
        """The columns of a table with this metadata, whose rules are accepted."""

    def rows(self, layout: Layout, inside: str | None) -> DataFrame | ScanTask:
        """The rows, as `stage` takes them. `inside`: a condition that each of them must satisfy."""


def new_rows(context: JobContext, gate: SqlGate) -> NewRows:
    """The rows of the job's source, by Spark where the job has one."""
    if context.session is None:
        return PlainRows(context)
    from airflow_txlog.jobs.operations.write.spark_rows import SparkRows  # noqa: PLC0415 - only with Spark

    return SparkRows(context, gate)


class PlainRows:
    """Rows of Parquet files that have the table's columns and types, for a table without rules in SQL."""

    reads_target = False

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._files: PlainFiles | None = None
        self._target: tuple[StructType, RowRules] | None = None

    def build(self, target: Snapshot | None) -> SchemaJson:
        """The columns by the files' footers. Raises NeedsSpark, and what `plain_source` raises."""
        view = self._context.record(Write).source
        assert isinstance(view, FileView)
        self._files = plain_source(self._context, view, "source")
        self._context.lineage |= {"views": {"": self._files.columns.names}, "sizes": {"": self._files.plan.size}}
        columns: SchemaJson = json.loads(schema_to_json(self._files.columns))
        return columns

    def accept(self, metadata: Metadata) -> StructType:
        """The table's columns. Raises NeedsSpark where a rule of the table is SQL, or changes values."""
        schema = table_schema(metadata, self._context.root)
        rules = read_rules(metadata, schema, self._context.root)
        if rules.must_check or rules.defaults:
            raise NeedsSpark("the table has constraints, generated or identity columns, defaults or lengths of text")
        self._target = schema, rules
        return schema

    def rows(self, layout: Layout, inside: str | None) -> ScanTask:
        """A scan of the files. Raises NeedsSpark where their columns are not the table's."""
        assert self._files is not None
        assert self._target is not None
        (schema, rules), given = self._target, self._files.columns
        lacks = [field.name for field in schema if not field.nullable and given.find(field.name) is None]
        unknown = [field.name for field in given if schema.find(field.name) is None]
        if inside is not None or lacks or unknown or not keeps_as_they_are(rules, schema, given):
            raise NeedsSpark("the source's columns are not those of the table, in the same types")
        # One task gives one file for each partition, where each of several would write one of its own.
        return self._files.scan(self._context, in_one=bool(layout.partition_columns))
