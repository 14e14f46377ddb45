"""The rows of a write's source, as Spark makes them new rows of the table.

The invariant: whatever is written of them has passed the table's rules.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.scan_and_write import ScanTask
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.rules import keeps_as_they_are
from airflow_txlog.engine.table.schema.schema import StructType, from_arrow
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.operations.write.replace_rows import only_inside
from airflow_txlog.jobs.source.frames import Source, build_source
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.schema_evolution import SchemaJson
from airflow_txlog.jobs.sql.table_rules import Rules, accepted_rules, fit_new_rows


class SparkRows:
    """See `new_rows.NewRows`."""

    def __init__(self, context: JobContext, gate: SqlGate) -> None:
        self._context = context
        self._gate = gate
        self._source: Source | None = None
        self._rules: Rules | None = None

    @property
    def reads_target(self) -> bool:
        """Whether a row of the source that was built may be the target's."""
        return self._source is not None and self._source.reads_target

    def build(self, target: Snapshot | None) -> SchemaJson:
        """The columns of the source. Raises what `build_source` raises."""
        self._source = build_source(self._context, self._gate, target)
        columns: SchemaJson = self._source.frame.schema.jsonValue()
        return columns

    def accept(self, metadata: Metadata) -> StructType:
        """The table's columns. Raises what `accepted_rules` raises."""
        self._rules = accepted_rules(self._context, metadata)
        return self._rules.schema

    def rows(self, layout: Layout, inside: str | None) -> DataFrame | ScanTask:
        """A frame, or the scan that gives the same rows without it. Raises what `fit_new_rows` raises."""
        context, source, rules = self._context, self._source, self._rules
        assert source is not None
        assert rules is not None
        rows = fit_new_rows(source.frame, rules, ansi=context.is_ansi)
        if inside is not None:
            return only_inside(self._gate, context.view_name(), rows, inside)
        if rules.must_check or layout.partition_columns:
            return rows
        scan = source.scan()
        if scan is None or not keeps_as_they_are(rules.table, rules.schema, from_arrow(scan.schema)):
            return rows
        return scan
