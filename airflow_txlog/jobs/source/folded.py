"""Rows that tasks make of materialized sources, key by key, and the sources that hold such rows.

The rows are read and written as those of any materialized source, so their readers do not know of the fold. The
invariant: keys and orders are compared as Spark compares them; a column for which that is not certain is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.folded_rows import Fold, FoldedScan, Input
from airflow_txlog.datafiles.tasks.scan_and_write import Task
from airflow_txlog.engine.table.schema.schema import schema_to_json, to_arrow
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructType
from airflow_txlog.errors import UnsupportedFeature
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import plan_of, sent_bins
from airflow_txlog.jobs.files.stage import input_layout, load
from airflow_txlog.jobs.source.materialized import MaterializedSource, with_row_id
from airflow_txlog.jobs.sql.columns import check_has_columns
from airflow_txlog.jobs.sql.scope import PLAIN_TYPES

_COMPARED_ALIKE = PLAIN_TYPES - {Primitive.BOOLEAN}
FOLDING = "bring together the source's rows of each key"


def folded(
    context: JobContext,
    inputs: Sequence[Input],
    fold: Fold,
    columns: StructType,
    *,
    size_bytes: int,
) -> MaterializedSource:
    """Return a source with these columns, whose rows `fold` makes of those of the inputs.

    `size_bytes`: about the memory that all rows of the inputs take.
    """
    stored = to_arrow(columns)
    files = _written(context, inputs, fold, stored, size_bytes)
    described = json.loads(schema_to_json(columns))
    return MaterializedSource(files=files, store=context.store, described=described, stored=stored)


def check_compared(
    argument: str,
    names: Sequence[str],
    columns: StructType,
    root: str,
    needed_to: str,
    owner: str = "The source",
) -> list[str]:
    """Return the columns that an argument names, as their owner, the source or the table, spells them.

    Raises UnknownColumn; UnsupportedFeature for a column whose values engines may compare differently.
    """
    check_has_columns(argument, names, columns.names, owner)
    found = [columns.by_name[name.lower()] for name in names]
    for field in found:
        is_plain = field.type in _COMPARED_ALIKE or isinstance(field.type, DecimalType)
        if not is_plain or field.is_char or field.is_collated:
            raise UnsupportedFeature(
                f"{root}: {argument} names the column {field.name!r}, which is {field.type} or has a "
                f"collation. To {needed_to}, it must be a whole number, a decimal, a date, a timestamp or a text. "
                "Cast it in the source's SQL. Nothing was changed.",
                table=root,
                feature="comparing this column",
                needed_to=needed_to,
            )
    return [field.name for field in found]


def folded_scan(context: JobContext, inputs: Sequence[Input], fold: Fold, schema: pa.Schema, size_bytes: int) -> Task:
    """Return the task that yields the rows of the fold, in bins of a part of the keys that a task can hold.

    `size_bytes`: about the memory that all rows of the inputs take.
    """
    parts = 1 + size_bytes // context.limits.held_source_bytes
    plan = plan_of(context.store, schema, ["part"] * parts, [0] * parts)
    bins = sent_bins(context, plan, [[number] for number in range(parts)])
    scan = FoldedScan(bins=bins, schema=schema, inputs=tuple(inputs), fold=fold, parts=parts)
    # Each bin reads all inputs.
    return Task(source=scan, more_weight=sum(each.bins.weight for each, _ in inputs))


def _written(
    context: JobContext, inputs: Sequence[Input], fold: Fold, stored: pa.Schema, size_bytes: int
) -> tuple[StagedFile, ...]:
    task = folded_scan(context, inputs, fold, stored, size_bytes)
    layout = input_layout(context, with_row_id(stored))
    return tuple(load(context, replace(task, layout=layout, numbers_rows=True), FOLDING).files)
