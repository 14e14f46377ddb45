"""One row of the source for each key: the first one in the author's order.

The source is materialized first, so that the rows which are left out are the same ones in every attempt and try. If
there are any, the other rows are materialized again. Expectations on the source have judged the rows before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from airflow_txlog.contract.operations import SourceOperation
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.tasks.first_rows import rows_after_first
from airflow_txlog.datafiles.tasks.found_rows import PACKED_SCHEMA, united
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import Task
from airflow_txlog.engine.table.schema.types import DecimalType, StructType
from airflow_txlog.errors import UnsupportedFeature
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import bins_for
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
from airflow_txlog.jobs.sql.scope import PLAIN_TYPES

_LOOKING = "look for rows of the source that share a key"
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
    keys, ordered = operation.deduplicate_by, list(map(_direction_of, operation.deduplicate_order_by or ()))
    _check(context, "deduplicate_by", keys, columns)
    _check(context, "deduplicate_order_by", [name for name, _ in ordered], columns)
    spelled = {field.name.lower(): field.name for field in columns}
    # A key has one value in all rows that share it.
    order = {spelled[name.lower()]: direction for name, direction in reversed(ordered)}
    chosen = dict.fromkeys(spelled[key.lower()] for key in keys)
    return FirstRow(
        keys=tuple(chosen), order=tuple((name, way) for name, way in reversed(order.items()) if name not in chosen)
    )


def _direction_of(text: str) -> tuple[str, str]:
    found = _DIRECTION.search(text)
    is_descending = found is not None and found[1].lower() == "desc"
    return _DIRECTION.sub("", text).strip(), "descending" if is_descending else "ascending"


def _check(context: JobContext, argument: str, names: Sequence[str], columns: StructType) -> None:
    check_has_columns(argument, names, columns.names, "The source")
    for field in filter(None, map(columns.find, names)):
        is_plain = field.type in PLAIN_TYPES or isinstance(field.type, DecimalType)
        if not is_plain or field.is_collated or field.is_char:
            raise UnsupportedFeature(
                f"{context.root}: {argument} names the column {field.name!r}, whose values do not compare alike in all "
                "engines. Name a column of whole numbers, decimals, texts without a collation, dates or times, or cast "
                "it in the source's SQL. Nothing was changed.",
                table=context.root,
                feature="deduplication by this column",
                needed_to="deduplicate the source",
            )


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
    schema = with_row_id(pa.schema([source.stored.field(name) for name in names]))
    scan = input_scan(context, source.files, schema)
    step = partial(rows_after_first, len(wanted.keys), [direction for _, direction in wanted.order])
    return united(context.executor.run_by_keys(context, scan, wanted.keys, step, PACKED_SCHEMA, _LOOKING))


def _without(context: JobContext, source: MaterializedSource, later: Mapping[int, RowPositions]) -> Staged:
    """Materialize the rows of the source that are not among `later`."""
    plan = unmatched_plan(context, source, source.names, later, range(source.num_buckets))
    scan = MaterializedScan(bins=bins_for(context, plan), schema=plan.schema)
    layout = input_layout(context, with_row_id(source.stored))
    return load(context, Task(source=scan, layout=layout, numbers_rows=True), WRITING_SOURCE)
