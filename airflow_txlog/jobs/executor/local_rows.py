"""The rows of a source that this process reads: Parquet files, or one of our tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from airflow_txlog.contract.operations import Write
from airflow_txlog.datafiles.parquet.output import StagedFile
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.scan_and_write import Task
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.column_mapping import table_schema
from airflow_txlog.engine.table.schema.rules import RowRules, keeps_as_they_are, read_rules
from airflow_txlog.engine.table.schema.schema import schema_to_json
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.stage import stage
from airflow_txlog.jobs.source.materialized import MaterializedSource, materialize_scan
from airflow_txlog.jobs.source.rows_here import RowsHere, rows_here

if TYPE_CHECKING:
    from airflow_txlog.jobs.sql.schema_evolution import SchemaJson


@dataclass(frozen=True)
class FoundHere:
    """A source of Parquet files, or one of our tables. See `FoundSource`."""

    _context: JobContext
    _found: RowsHere

    @property
    def reads_target(self) -> bool:
        return self._found.reads_target

    @property
    def columns(self) -> StructType:
        return self._found.columns

    def values_of(self, choose: Callable[[Sequence[str]], str], what: str) -> pa.ChunkedArray:
        scan = self._found.scan(self._context)
        name = choose(self.columns.names)
        only = replace(scan, schema=pa.schema([scan.schema.field(name)]))
        return self._context.executor.run([Task(source=only)], only.output_schema, what).column(0)

    def materialize(self, parameters: Collection[str]) -> MaterializedSource:
        context, found = self._context, self._found
        scan = found.scan(context)
        return materialize_scan(context, scan, found.columns, parameters, reads_target=found.reads_target)


class PlainRows:
    """Rows of Parquet files that have the table's columns and types, for a table without rules in SQL.

    See `NewRows`. What is not certain of them needs Spark.
    """

    reads_target = False

    def __init__(self, context: JobContext, refuse: Callable[[str], NoReturn]) -> None:
        self._context = context
        self._refuse = refuse
        self._files: RowsHere | None = None
        self._target: tuple[StructType, RowRules] | None = None

    def build(self, target: Snapshot | None) -> SchemaJson:
        """The columns by the files' footers. Raises NeedsSpark, and what `rows_here` raises."""
        rows = rows_here(self._context, self._context.record(Write).source, "source", target)
        if not isinstance(rows, RowsHere):
            self._refuse(rows.why)
        self._files = rows
        columns: SchemaJson = json.loads(schema_to_json(rows.columns))
        return columns

    def accept(self, metadata: Metadata) -> StructType:
        """The table's columns. Raises NeedsSpark where a rule of the table is SQL, or changes values."""
        schema = table_schema(metadata, self._context.root)
        rules = read_rules(metadata, schema, self._context.root)
        if rules.must_check or rules.defaults:
            self._refuse("the table has constraints, generated or identity columns, defaults or lengths of text")
        self._target = schema, rules
        return schema

    def stage(self, layout: Layout, inside: str | None) -> list[StagedFile]:
        """Copy the files' rows. Raises NeedsSpark where their columns are not the table's."""
        assert self._files is not None
        assert self._target is not None
        (schema, rules), given = self._target, self._files.columns
        lacks = [field.name for field in schema if not field.nullable and given.find(field.name) is None]
        unknown = [field.name for field in given if schema.find(field.name) is None]
        if inside is not None or lacks or unknown or not keeps_as_they_are(rules, schema, given):
            self._refuse("the source's columns are not those of the table, in the same types")
        # One task gives one file for each partition, where each of several would write one of its own.
        scan = self._files.scan(self._context, in_one=bool(layout.partition_columns))
        return stage(self._context, layout, copies=None, rows=Task(source=scan))
