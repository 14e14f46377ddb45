"""Rows that tasks make of materialized sources, key by key, and the sources that hold such rows.

The rows are read and written as those of any materialized source, so their readers do not know of the fold. One fold
keeps the first row of each key in the author's order (`deduplicated`). The source is materialized before, so that the
rows which are left out are the same ones in every attempt and try; if there are any, the other rows are materialized
again. Expectations on the source have judged the rows before. The invariant: keys and orders are compared as Spark
compares them; a column for which that is not certain is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from airflow_txlog.contract.operations import SourceOperation
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.folded_rows import Fold, FoldedScan, Input, rows_after_first
from airflow_txlog.datafiles.tasks.found_rows import PACKED_SCHEMA, united
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN, FileScan, Task
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.schema.schema import schema_to_json, to_arrow
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructType
from airflow_txlog.errors import InvalidJobSpec, UnsupportedFeature
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import bins_for, plan_files, plan_of, sent_bins
from airflow_txlog.jobs.files.stage import Staged, input_layout, load
from airflow_txlog.jobs.source.materialized import (
    WRITING_SOURCE,
    MaterializedSource,
    input_scan,
    read_again,
    unmatched_plan,
    with_row_id,
)
from airflow_txlog.jobs.sql.columns import check_has_columns
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.scope import PLAIN_TYPES, partition_scope

_COMPARED_ALIKE = PLAIN_TYPES - {Primitive.BOOLEAN}
FOLDING = "bring together the source's rows of each key"


def folded(
    context: JobContext,
    inputs: Sequence[Input],
    fold: Fold,
    columns: StructType,
    *,
    size_bytes: int,
    needs_all: bool = False,
) -> MaterializedSource:
    """Return a source with these columns, whose rows `fold` makes of those of the inputs.

    `size_bytes`: about the memory that all rows of the inputs take. `needs_all`: see `FoldedScan`.
    """
    stored = to_arrow(columns)
    files = _written(context, inputs, fold, stored, size_bytes, needs_all=needs_all)
    described = json.loads(schema_to_json(columns))
    return MaterializedSource(files=files, store=context.store, described=described, stored=stored)


def rows_in_scope(
    context: JobContext, gate: SqlGate, tx: Transaction, snapshot: Snapshot, names: Sequence[str], condition: Predicate
) -> FileScan:
    """Return the scan of these columns of the rows in the job's scope for which the condition may be true.

    A commit that changes such rows conflicts from now on. The columns are spelled as the table spells them.
    """
    files = partition_scope(context, gate, snapshot).read_files(tx, condition)
    plan = plan_files(snapshot, files, context.spec.time_zone, context.executor.instants)
    schema = pa.schema([snapshot.schema.field(name) for name in names])
    return FileScan(bins=bins_for(context, plan), schema=schema)


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


def folded_scan(
    context: JobContext,
    inputs: Sequence[Input],
    fold: Fold,
    schema: pa.Schema,
    size_bytes: int,
    *,
    needs_all: bool = False,
) -> Task:
    """Return the task that yields the rows of the fold, in bins of a part of the keys that a task can hold.

    `size_bytes`: about the memory that all rows of the inputs take.
    """
    parts = 1 + size_bytes // context.limits.held_source_bytes
    plan = plan_of(context.store, schema, ["part"] * parts, [0] * parts)
    bins = sent_bins(context, plan, [[number] for number in range(parts)])
    scan = FoldedScan(bins=bins, schema=schema, inputs=tuple(inputs), fold=fold, parts=parts, needs_all=needs_all)
    # Each bin reads all inputs.
    return Task(source=scan, more_weight=sum(each.bins.weight for each, _ in inputs))


def _written(
    context: JobContext, inputs: Sequence[Input], fold: Fold, stored: pa.Schema, size_bytes: int, *, needs_all: bool
) -> tuple[StagedFile, ...]:
    task = folded_scan(context, inputs, fold, stored, size_bytes, needs_all=needs_all)
    layout = input_layout(context, with_row_id(stored))
    return tuple(load(context, replace(task, layout=layout, numbers_rows=True), FOLDING).files)


_NEEDED_TO = "choose one row of each key"
_DIRECTION = re.compile(r"\s+(asc|desc)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class FirstRow:
    """Which rows share a key, and which of them is kept: columns of a source, as it spells them.

    `order`: columns with a direction, "ascending" or "descending"; null comes last.
    """

    keys: tuple[str, ...]
    order: tuple[tuple[str, str], ...]


def first_row_wanted(context: JobContext, columns: StructType) -> FirstRow | None:
    """Return the job's `deduplicate_by` and `deduplicate_order_by` for a source with these columns.

    Raises UnknownColumn; UnsupportedFeature for a column whose values engines compare in several ways.
    """
    operation = context.operation
    if not isinstance(operation, SourceOperation) or operation.deduplicate_by is None:
        return None
    ordered, root = list(map(_direction_of, operation.deduplicate_order_by or ())), context.root
    keys = check_compared("deduplicate_by", operation.deduplicate_by, columns, root, _NEEDED_TO)
    for name, _ in ordered:
        if " " in name and columns.find(name) is None and columns.find(name.split()[0]) is not None:
            raise InvalidJobSpec(
                f"deduplicate_order_by must be columns, each with ASC or DESC; found {name!r}. Nothing was changed.",
                argument="deduplicate_order_by",
            )
    names = check_compared("deduplicate_order_by", [name for name, _ in ordered], columns, root, _NEEDED_TO)
    order: dict[str, str] = {}
    for name, (_, direction) in zip(names, ordered, strict=True):
        order.setdefault(name, direction)
    # A key has one value in all rows that share it.
    useful = tuple((name, direction) for name, direction in order.items() if name not in keys)
    return FirstRow(keys=tuple(dict.fromkeys(keys)), order=useful)


def _direction_of(text: str) -> tuple[str, str]:
    found = _DIRECTION.search(text)
    is_descending = found is not None and found[1].lower() == "desc"
    return _DIRECTION.sub("", text).strip(), "descending" if is_descending else "ascending"


def deduplicated(context: JobContext, source: MaterializedSource) -> MaterializedSource:
    """Return the job's source with one row of each key, if the job is to deduplicate it and has not done so."""
    wanted, saved = first_row_wanted(context, source.columns), context.saved_inputs.source
    if wanted is None or saved is None or saved.num_duplicates is not None:
        return source
    with context.step("deduplicate"):
        later = rows_after(context, source, wanted)
        num_later = sum(rows.num_rows for rows in later.values())
        if num_later:
            saved = replace(saved, files=tuple(_without(context, source, later).files))
        context.saved_inputs.source = replace(saved, num_duplicates=num_later)
    context.log(
        f"{plural(num_later, 'row')} of {source.num_rows} left out: another has the same {', '.join(wanted.keys)}"
    )
    return replace(read_again(context, saved, source.stored), reads_target=source.reads_target)


def rows_after(context: JobContext, source: MaterializedSource, wanted: FirstRow) -> Mapping[int, RowPositions]:
    """Return the rows that are not the first ones of their keys, by part of the source."""
    names = [*wanted.keys, *(name for name, _ in wanted.order)]
    scan = input_scan(context, source.files, with_row_id(pa.schema([source.stored.field(name) for name in names])))
    order, directions = zip(*wanted.order, strict=True) if wanted.order else ((), ())
    fold = partial(rows_after_first, wanted.keys, order, directions)
    size_bytes = source.bytes_of([*names, ROW_ID_COLUMN])
    task = folded_scan(context, [(scan, wanted.keys)], fold, PACKED_SCHEMA, size_bytes)
    return united(context.executor.run([task], PACKED_SCHEMA, FOLDING))


def _without(context: JobContext, source: MaterializedSource, later: Mapping[int, RowPositions]) -> Staged:
    """Materialize the rows of the source that are not among `later`."""
    plan = unmatched_plan(context, source, source.names, later, range(source.num_buckets))
    scan = MaterializedScan(bins=bins_for(context, plan), schema=plan.schema)
    layout = input_layout(context, with_row_id(source.stored))
    return load(context, Task(source=scan, layout=layout, numbers_rows=True), WRITING_SOURCE)
