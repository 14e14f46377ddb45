"""An overwrite of the rows that share the values of some columns with a row of the source.

If the columns are partition columns, whole partitions leave unread, as in `job`. Otherwise it is a merge that deletes
matched rows and inserts every row of the source; a row is found by the distinct values of the source, because each
may occur in many rows on both sides. The invariant: null equals nothing, so a row with a null in one of the columns is
written and replaces no row. Source: Databricks, INSERT … REPLACE USING; delta-spark 4.3, `replaceUsing`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_txlog.contract.operations import DeleteClause, InsertClause, Merge, Write
from airflow_txlog.datafiles.tasks.found_rows import PAIRS_SCHEMA, pairs_packed
from airflow_txlog.datafiles.tasks.key_rows import Acting, HeldKeys, pairs_of_keys, without_source_rows
from airflow_txlog.datafiles.tasks.row_values import ActingClauses
from airflow_txlog.datafiles.tasks.scan_and_write import Task
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema.rules import read_rules
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, addressed_scan
from airflow_txlog.jobs.operations.merge.job import MergeRows, PreparedMerge
from airflow_txlog.jobs.operations.merge.keys import (
    MATCHING,
    NOT_AS_THEY_ARE,
    SOURCE_ALIAS,
    TARGET_ALIAS,
    equal_columns,
    key_columns,
    source_values,
)
from airflow_txlog.jobs.rows.matches import Matches, SourceRowSet
from airflow_txlog.jobs.rows.operation import Found, StagedWork, overwrite_metrics
from airflow_txlog.jobs.source.materialized import MaterializedSource, scan_of
from airflow_txlog.jobs.sql.columns import check_fits_by_name, check_has_columns


def as_merge(write: Write, columns: Sequence[str]) -> Merge:
    """Return the merge that does the same for a source with these columns. Its texts are quoted names alone."""
    return Merge(
        source=write.source,
        schema_evolution=write.schema_evolution,
        partition_predicate=write.partition_predicate,
        parameters=write.parameters,
        target_alias=TARGET_ALIAS,
        source_alias=SOURCE_ALIAS,
        on=equal_columns(write.replace_using or ()),
        clauses=(DeleteClause(when="matched"), InsertClause(values=source_values(columns))),
    )


class ReplaceUsing(MergeRows):
    """The pipeline's view of this overwrite. See `MergeRows`."""

    name = "WRITE"
    keys_not_plain = "the columns of replace_using are not of one plain type in the table and in the source"
    clauses_not_plain = NOT_AS_THEY_ARE

    def __init__(self, context: JobContext) -> None:
        self._write = context.record(Write)
        super().__init__(context, as_merge(self._write, self._write.replace_using or ()))

    def meet(self, snapshot: Snapshot, columns: StructType) -> None:
        """Take the columns of the source, which have no `*`: a write may lack columns of the table."""
        check_has_columns("replace_using", self._write.replace_using or (), columns.names, "The source")
        if not self._write.schema_evolution:
            fills = read_rules(snapshot.metadata, snapshot.delta_schema, snapshot.uri).fills
            check_fits_by_name(columns, snapshot.delta_schema, fills, self._context.root)
        self._merge = as_merge(self._write, columns.names)

    def find(self, prepared: PreparedMerge, plan: FilePlan) -> Matches:
        """Return every row that has the values of a row of the source, to be deleted."""
        context, source = self._context, prepared.source
        if plan.num_files == 0 or source.num_rows == 0:
            return Matches()
        columns = key_columns(context, self._merge, prepared.pair)
        keys = distinct_rows(context, source, list(columns.values())) if columns else None
        if not columns or keys is None or keys.num_rows > context.executor.most_sent_rows:
            judged = prepared.judged("the values of replace_using are more than one task may hold")
            return judged.rows_that_match(plan, prepared.pair)
        scan = addressed_scan(context, plan, frozenset(columns))
        held = HeldKeys(
            columns=tuple(
                keys.column(name).combine_chunks().cast(field.type)
                for name, field in zip(columns.values(), scan.schema, strict=True)
            ),
            numbers=pa.array(range(keys.num_rows), pa.int64()),
        )
        acting = Acting(matched=ActingClauses(conditions={0: None}))
        task = Task(source=scan, steps=(partial(pairs_of_keys, held, acting), without_source_rows, pairs_packed))
        return Matches.of_packed(context.executor.run([task], PAIRS_SCHEMA, MATCHING))

    def inserts_nothing(self, matches: Matches) -> SourceRowSet:
        """Return no row: every row of the source is written, whatever was found."""
        return SourceRowSet()

    def parameters(self, prepared: PreparedMerge) -> dict[str, Any]:
        return {
            "mode": "Overwrite",
            "partitionBy": json.dumps(list(prepared.snapshot.partition_columns)),
            "replaceUsing": json.dumps(list(self._write.replace_using or ())),
        }

    def metrics(self, prepared: PreparedMerge, found: Found, work: StagedWork) -> dict[str, int]:
        return overwrite_metrics(self._context, found, work)


def distinct_rows(context: JobContext, source: MaterializedSource, columns: list[str]) -> pa.Table | None:
    """Return the distinct values of these columns in rows without a null; None if they are too many for a task."""
    scan, found = scan_of(context, source, columns), None
    # By number: Arrow would take a name that begins with a dot for a path.
    numbered = [f"c{number}" for number in range(len(columns))]
    for batch in scan.all_rows():
        rows = pa.Table.from_batches([batch]).select(columns).rename_columns(numbered).drop_null()
        rows = rows.group_by(numbered).aggregate([])
        found = rows if found is None else pa.concat_tables([found, rows]).group_by(numbered).aggregate([])
        if found.nbytes > context.limits.merge_key_bytes:
            return None
    return None if found is None else found.select(numbered).rename_columns(columns)
