"""Finding: which rows of which files an operation is about, as positions on the driver.

Spark evaluates the author's text over the columns that it names, and yields addresses; the rows themselves stay where
they are. What is found is kept apart from what is done with it, so that a later run may know which files it has looked
at. The invariant: positions come from one evaluation of the condition, and nothing evaluates it again.
Source: docs/decisions/positions-not-rows.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from airflow_txlog.datafiles.positions import POSITION_BITS, pack
from airflow_txlog.datafiles.sieve import Sieve
from airflow_txlog.datafiles.tasks import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN, ScanTask
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.running import collect
from airflow_txlog.jobs.scan import FilePlan, bins_for, scan_frame
from airflow_txlog.jobs.sieves import sieve_of
from airflow_txlog.jobs.sql import ROWS_ALIAS, SqlGate, aliased, quoted

_POSITION_MASK = (1 << POSITION_BITS) - 1


@dataclass(frozen=True, kw_only=True)
class FoundRows:
    """Rows of the files of one plan, by the plan's row number; positions ascending and distinct.

    `extra`: for each file, columns that belong to the positions one by one (source rows and clauses).
    """

    positions: Mapping[int, pa.Array] = field(default_factory=dict)
    extra: Mapping[int, Mapping[str, pa.Array]] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return sum(len(positions) for positions in self.positions.values())

    def partly(self, scanned: FilePlan) -> list[int]:
        """The files in which rows were found and that keep some row; one that keeps none is removed, not copied."""
        counts = scanned.live_row_counts()
        return [number for number, positions in self.positions.items() if counts[number] != len(positions)]

    def plan(self, scanned: FilePlan, rows: Iterable[int] | None = None) -> FilePlan:
        """The plan of the files in which rows were found (or of `rows` among them), with their positions."""
        numbers = sorted(self.positions if rows is None else rows)
        plan = scanned.take(numbers).with_column("positions", [pack(self.positions[number]) for number in numbers])
        if not self.extra:
            return plan
        # A row that met no source row gets an id that no source row has.
        ids = [_bytes_of(self.extra[number][ROW_ID_COLUMN].fill_null(-1), pa.int64()) for number in numbers]
        clauses = [_bytes_of(self.extra[number][CLAUSE_COLUMN], pa.uint8()) for number in numbers]
        return plan.with_column("row_ids", ids).with_column("clauses", clauses)


def files_outside(files: pa.Table, found: Iterable[int]) -> pa.Table:
    """The files (rows of a table) whose row numbers are not among those in which something was found."""
    numbers = pa.array(range(files.num_rows), pa.int64())
    return files.filter(pc.invert(pc.is_in(numbers, value_set=pa.array(list(found), pa.int64()))))


def scan_columns(
    context: JobContext, plan: FilePlan, columns: frozenset[str] | None, sieve: Sieve | None = None
) -> DataFrame:
    """The planned files' rows with these columns (None: all) and each row's address; those that pass the sieve.

    A sieve looks at nothing but these columns.
    """
    names = [name for name in plan.schema.names if columns is None or name in columns]
    schema = pa.schema([plan.schema.field(name) for name in names])
    task = ScanTask(bins=bins_for(context, plan, in_pieces=True), schema=schema, with_address=True, sieve=sieve)
    return scan_frame(context, plan, task)


def find_rows(
    context: JobContext,
    gate: SqlGate,
    plan: FilePlan,
    condition: str,
    columns: frozenset[str] | None,
    alias: str = ROWS_ALIAS,
    read: Predicate | None = None,
) -> pa.Table:
    """The addresses of the rows of the planned files of which the accepted condition is TRUE, as one int64 column.

    `columns` are those that the condition may name. `read` is the condition as the engine reads it: by what it says,
    rows are dropped before they reach Spark.
    """
    view = context.view_name()
    sieve = None if read is None else sieve_of(read, plan.schema.names if columns is None else columns)
    scan_columns(context, plan, columns, sieve).createOrReplaceTempView(view)
    query = f"SELECT {quoted(ADDRESS_COLUMN)} FROM {aliased(view, alias)} WHERE (\n{condition}\n)"
    return collect(gate.run(query), "find the matching rows")


def by_file(found: pa.Table) -> FoundRows:
    """Collected addresses, and the columns beside them, split by file and sorted by position.

    Addresses must be distinct.
    """
    ordered = found.combine_chunks().sort_by(ADDRESS_COLUMN)
    addresses = ordered.column(ADDRESS_COLUMN).combine_chunks()
    files = pc.shift_right(addresses, pa.scalar(POSITION_BITS, pa.int64()))
    positions = pc.bit_wise_and(addresses, pa.scalar(_POSITION_MASK, pa.int64()))
    extra_names = [name for name in ordered.column_names if name != ADDRESS_COLUMN]
    split: dict[int, pa.Array] = {}
    extra: dict[int, dict[str, Any]] = {}
    start = 0
    # Sorted addresses have their files in ascending runs.
    for entry in sorted(pc.value_counts(files).to_pylist(), key=lambda entry: entry["values"]):
        number, count = entry["values"], entry["counts"]
        split[number] = positions.slice(start, count)
        if extra_names:
            rows = ordered.slice(start, count)
            extra[number] = {name: rows.column(name).combine_chunks() for name in extra_names}
        start += count
    return FoundRows(positions=split, extra=extra)


def _bytes_of(values: pa.Array, kind: pa.DataType) -> bytes:
    """The values as little-endian numbers; there are no nulls among them."""
    array = pa.concat_arrays([values.cast(kind)])
    width = kind.bit_width // 8
    start = array.offset * width
    return array.buffers()[1].to_pybytes()[start : start + len(array) * width] if len(array) else b""
