"""Finding: which rows of which files an operation is about, as bitmaps of positions on the driver.

Spark evaluates the author's text over the columns that it names, and yields addresses, which the same task packs into
bitmaps; the rows themselves stay where they are. What is found is kept apart from what is done with it, so that a later
run may know which files it has looked at. The invariant: positions come from one evaluation of the condition, and
nothing evaluates it again. A plain condition, which the engine reads as a whole, is not evaluated by Spark. One on a
single column with few distinct values is evaluated once for each value, not for each row.
Source: docs/decisions/positions-not-rows.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.deletion_vectors.bitmaps import union
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.tasks.found_rows import (
    PACKED_SCHEMA,
    distinct_values,
    held_rows,
    is_too_much,
    rows_packed,
)
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, FileScan, Task
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.schema.rules import CHAR_VARCHAR_KEY
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, bins_for, scan_frame, through
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.gate import ROWS_ALIAS, SqlGate, aliased, quoted
from airflow_txlog.jobs.sql.scope import row_filter_of
from airflow_txlog.sql.expression import Call, Column, Expression, Values, any_of
from airflow_txlog.storage.limits import weight_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DOING = "find the matching rows"
# What is taken for the bytes of a value that may have any number of them.
_WIDTH_OF_TEXT, _WIDTH_OF_NESTED = 16, 64


@dataclass(frozen=True, kw_only=True)
class FoundRows:
    """Rows of the files of one plan, by the plan's row number, and the clause that acts on them.

    `clauses`: of the files in which one clause acts on all of the rows. `pairs`: of the others, packed, for each
    position the source row (null where there is none) and the clause.
    """

    positions: Mapping[int, RowPositions] = field(default_factory=dict)
    clauses: Mapping[int, int] = field(default_factory=dict)
    pairs: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return sum(positions.num_rows for positions in self.positions.values())

    def partly(self, scanned: FilePlan) -> list[int]:
        """The files in which rows were found and that keep some row; one that keeps none is removed, not copied."""
        counts = scanned.live_row_counts()
        return [number for number, positions in self.positions.items() if counts[number] != positions.num_rows]

    def plan(self, scanned: FilePlan, rows: Iterable[int] | None = None) -> FilePlan:
        """The plan of the files in which rows were found (or of `rows` among them), with their positions."""
        numbers = sorted(self.positions if rows is None else rows)
        return scanned.take(numbers).with_column("positions", [self.positions[number].data for number in numbers])

    def plan_with_clauses(self, scanned: FilePlan, rows: Iterable[int] | None = None) -> FilePlan:
        """The same with the source row and the clause of each position."""
        numbers = sorted(self.positions if rows is None else rows)
        pairs = [self.pairs.get(number) for number in numbers]
        clauses = [self.clauses.get(number) for number in numbers]
        return self.plan(scanned, numbers).with_column("pairs", pairs).with_column("clause", clauses)


def files_outside(files: pa.Table, found: Iterable[int]) -> pa.Table:
    """The files (rows of a table) whose row numbers are not among those in which something was found."""
    rows = pa.array(list(found), pa.int64())
    if not len(rows):
        return files
    numbers = pa.array(range(files.num_rows), pa.int64())
    return files.filter(pc.invert(pc.is_in(numbers, value_set=rows)))


def scan_columns(
    context: JobContext, plan: FilePlan, columns: frozenset[str] | None, row_filter: Expression | None = None
) -> DataFrame:
    """The planned files' rows with these columns (None: all) and each row's address; those that pass the filter.

    A row filter looks at nothing but these columns.
    """
    return scan_frame(context, addressed_scan(context, plan, columns, row_filter))


def addressed_scan(
    context: JobContext, plan: FilePlan, columns: frozenset[str] | None, row_filter: Expression | None = None
) -> FileScan:
    """The scan that reads what `scan_columns` gives."""
    names = [name for name in plan.schema.names if columns is None or name in columns]
    schema = pa.schema([plan.schema.field(name) for name in names])
    bins = bins_for(context, plan, in_pieces=True)
    return FileScan(bins=bins, schema=schema, with_address=True, row_filter=row_filter)


def find_rows(
    context: JobContext,
    gate: SqlGate,
    plan: FilePlan,
    condition: str,
    columns: frozenset[str] | None,
    alias: str = ROWS_ALIAS,
    read: Predicate | None = None,
) -> dict[int, RowPositions]:
    """The rows of the planned files of which the accepted condition is TRUE, by the plan's numbers of the files.

    `columns` are those that the condition may name. `read` is the condition as the engine reads it: by what it says,
    rows are dropped before they reach Spark. What the driver collects are bitmaps, made by the task that has scanned.
    """
    row_filter = None if read is None else row_filter_of(read, plan.schema.names if columns is None else columns)
    scan = addressed_scan(context, plan, columns, row_filter)
    by_value = _filter_by_value(context, gate, plan, scan, condition, alias)
    if by_value is not None:
        return _passing(context, plan, replace(scan, row_filter=by_value))
    view = context.view_name()
    scan_frame(context, scan).createOrReplaceTempView(view)
    query = f"SELECT {quoted(ADDRESS_COLUMN)} FROM {aliased(view, alias)} WHERE (\n{condition}\n)"
    return united(collect(through(gate.run(query), rows_packed, PACKED_SCHEMA), _DOING))


def united(packed: pa.Table) -> dict[int, RowPositions]:
    """A table PACKED_SCHEMA as one bitmap for each file."""
    parts: dict[int, list[RowPositions]] = {}
    columns = (packed.column(name).to_pylist() for name in PACKED_SCHEMA.names)
    for index, data in zip(*columns, strict=True):
        parts.setdefault(index, []).append(RowPositions(data, "of found rows"))
    return {
        index: of_file[0] if len(of_file) == 1 else RowPositions(union(of_file), "of found rows")
        for index, of_file in sorted(parts.items())
    }


def find_filtered(
    context: JobContext, plan: FilePlan, columns: frozenset[str] | None, row_filter: Expression
) -> dict[int, RowPositions]:
    """The same for a condition that is TRUE of exactly the rows that pass a filter: the tasks that read them decide."""
    return _passing(context, plan, addressed_scan(context, plan, columns, row_filter))


def _passing(context: JobContext, plan: FilePlan, scan: FileScan) -> dict[int, RowPositions]:
    """The rows that pass the filter of a scan of the plan's files."""
    task = Task(source=_weighed(scan, plan), steps=(rows_packed,))
    return united(context.executor.run([task], PACKED_SCHEMA, _DOING))


def _filter_by_value(
    context: JobContext, gate: SqlGate, plan: FilePlan, addressed: FileScan, condition: str, alias: str
) -> Expression | None:
    """Return the filter that passes exactly the rows of which the condition is TRUE, by the values of the one column
    that `addressed` scans.

    Spark evaluates the condition once for each distinct value: a condition is deterministic and depends on one row
    alone. Returns None where several columns are scanned, where there are few rows or many values, or where two values
    of the column's type may be equal and yet differ (`-0.0` and `0.0`).
    """
    num_rows = pc.sum(plan.table.column("num_records")).as_py() or 0
    if num_rows < context.limits.many_rows or len(addressed.schema) != 1:
        return None
    field = addressed.schema.field(0)
    if not _is_one_value_where_equal(field):
        return None
    name, scan = field.name, replace(addressed, with_address=False)
    limits = context.limits.distinct_values, context.limits.distinct_value_bytes
    task = Task(source=_weighed(scan, plan), steps=(partial(distinct_values, *limits),))
    values = pc.unique(context.executor.run([task], scan.output_schema, _DOING).column(0).combine_chunks())
    if is_too_much(values, *limits):
        return None
    view = context.view_name()
    held = partial(held_rows, pa.RecordBatch.from_arrays([values], schema=scan.output_schema))
    through(context.spark.range(0, 1, 1, 1), held, scan.output_schema).createOrReplaceTempView(view)
    query = f"SELECT {quoted(name)} FROM {aliased(view, alias)} WHERE (\n{condition}\n)"
    found = collect(gate.run(query), _DOING).column(0).cast(field.type).combine_chunks()
    context.log(f"the predicate was evaluated for each of {plural(len(values), 'value')} of {name}")
    wanted = Call("in", (Column(name), Values(found.drop_null())))
    return any_of([wanted, Call("is null", (Column(name),))]) if found.null_count else wanted


def _is_one_value_where_equal(field: pa.Field) -> bool:
    """Whether equal values of the column are always the same value, and Spark compares them as they are stored."""
    kind = field.type
    is_plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind)
    is_padded = CHAR_VARCHAR_KEY.encode() in (field.metadata or {})
    return (is_plain or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)) and not is_padded


def _weighed(scan: FileScan, plan: FilePlan) -> FileScan:
    """The scan of some columns of the planned files, with about what it costs to read these as its weight."""
    share = _width(scan.schema) / max(1, _width(plan.schema))
    weight = weight_of(int((size or 0) * share) for size in plan.table.column("size_bytes").to_pylist())
    return replace(scan, bins=replace(scan.bins, weight=weight))


def _width(schema: pa.Schema) -> int:
    """About how many bytes of a row these columns are."""
    return sum(_WIDTH_OF_NESTED if pa.types.is_nested(each) else _width_of_value(each) for each in schema.types)


def _width_of_value(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _WIDTH_OF_TEXT
