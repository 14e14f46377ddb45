"""New values of columns, and conditions of clauses: expressions over a row of the table and the source row that it met.

The driver reads them from plain texts (`jobs/sql/plain_values`). The invariants: a value is the one that Spark computes
from the author's text, and a row for which that is not certain fails the task with `left_to_spark`. A source row is
found by its number alone, which the driver has matched. Memory is bounded by the source rows that a task holds at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import addresses, whole
from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN
from airflow_txlog.datafiles.tasks.plans import NO_ROW
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import (
    ADDRESS_COLUMN,
    CLAUSE_COLUMN,
    RESERVED_PREFIX,
    ROW_ID_COLUMN,
    gathered,
)
from airflow_txlog.errors import JobError
from airflow_txlog.sql.evaluation import passing, values_of
from airflow_txlog.sql.expression import Column, Expression, Values, columns_of
from airflow_txlog.storage.limits import USUAL

_OF_SOURCE = f"{RESERVED_PREFIX}source_"


def of_source(name: str) -> str:
    """Return the name of a source's column in a table that also has the target's columns."""
    return _OF_SOURCE + name


def named_of_source(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the source under these names; columns of this package keep theirs."""
    names = (name if name.startswith(RESERVED_PREFIX) else of_source(name) for name in rows.schema.names)
    return rows.rename_columns(list(names))


@dataclass(frozen=True, kw_only=True)
class RowValues:
    """The new value of each assigned column. All of them are computed from the old row."""

    values: Mapping[str, Expression]
    most_bytes: int = 64 * 1024 * 1024
    """The most memory that the constants of a batch of new rows take."""

    @property
    def columns_read(self) -> frozenset[str]:
        """The columns from which the new values are computed."""
        return frozenset[str]().union(*map(columns_of, self.values.values()))

    @property
    def constant_bytes(self) -> int:
        """The bytes of the constants of a row."""
        return sum(each.array.nbytes for each in self.values.values() if isinstance(each, Values))

    def assigned(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the table's columns with the assigned ones replaced, in batches of a bounded size.

        `rows` have `columns_read`, and at least one column.
        """
        unwanted = (CLAUSE_COLUMN, *(name for name in rows.schema.names if name.startswith(_OF_SOURCE)))
        for part, new in self._new(rows):
            kept = {name: part.column(name) for name in part.schema.names if name not in new and name not in unwanted}
            yield pa.RecordBatch.from_pydict(new | kept)

    def alone(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the assigned columns alone, of which there is at least one, in such batches."""
        return (pa.RecordBatch.from_pydict(new) for _, new in self._new(rows))

    def _new(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, dict[str, pa.Array]]]:
        at_once = max(1, self.most_bytes // max(1, self.constant_bytes))
        for start in range(0, rows.num_rows, at_once):
            part = rows.slice(start, at_once)
            yield part, {name: values_of(value, part) for name, value in self.values.items()}


@dataclass(frozen=True, kw_only=True)
class NewImages:
    """The new values of rows by the number of the clause that acts on them, at least one clause.

    The values are expressions over the row, and over the row of the `source` that it met: `of_source` names its
    columns, which are null for a row that met none. Without a source no value reads one.
    """

    clauses: Mapping[int, RowValues]
    source: SourceRows | None = None

    @property
    def replaced(self) -> frozenset[str]:
        """The columns of which no image needs the old value."""
        of_all = frozenset.intersection(*(frozenset(each.values) for each in self.clauses.values()))
        return of_all.difference(*(each.columns_read for each in self.clauses.values()))

    @property
    def has_clauses(self) -> bool:
        """Whether `of` needs CLAUSE_COLUMN."""
        return len(self.clauses) > 1

    def of(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the images of rows with all columns that are kept or read, in batches of a bounded size."""
        if not self.has_clauses:
            (values,) = self.clauses.values()
            yield from values.assigned(rows)
            return
        for number, values in self.clauses.items():
            chosen = rows.filter(pc.equal(rows.column(CLAUSE_COLUMN), number))
            if chosen.num_rows:
                yield from values.assigned(chosen)


@dataclass(frozen=True, kw_only=True)
class ActingClauses:
    """Clauses of one kind: their numbers, in the order in which they are tried, and conditions. None is TRUE."""

    conditions: Mapping[int, Expression | None] = field(default_factory=dict)

    @property
    def columns_read(self) -> frozenset[str]:
        given = [condition for condition in self.conditions.values() if condition is not None]
        return frozenset[str]().union(*map(columns_of, given))

    def on(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the number of the first clause whose condition is TRUE for each row, null for none.

        As in Spark, a condition is evaluated on the rows on which no earlier clause acts, and on no others.
        """
        found = pa.nulls(rows.num_rows, pa.int32())
        for number, condition in self.conditions.items():
            if condition is None:
                return pc.fill_null(found, number)
            is_open = found.is_null()
            if not is_open.true_count:
                break
            left = rows.filter(is_open) if is_open.false_count else rows
            numbers = pc.if_else(passing(condition, left), pa.scalar(number, pa.int32()), None)
            found = pc.replace_with_mask(found, is_open, numbers)
        return found


def inserted_rows(
    clauses: ActingClauses, values: Mapping[int, RowValues], rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that the clauses make of rows of the source, with the segment; a step of a task.

    All clauses assign the same columns.
    """
    for batch in map(named_of_source, rows):
        numbers = clauses.on(batch)
        for number, of_clause in values.items():
            new = replace(of_clause, values={**of_clause.values, SEGMENT_COLUMN: Column(SEGMENT_COLUMN)})
            yield from new.alone(batch.filter(pc.equal(numbers, number)))


# The most memory of the values taken at once: many rows of the table may take the values of one row of the source.
_MOST_BYTES = 64 * 1024 * 1024
# Nested values that take so few bytes are not measured one by one.
_SMALL_BYTES = 16 * 1024
_OFFSET_BYTES = 8
_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
_one_reads = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class SourceRows:
    """Rows of a source, from which new values are computed. The bins that one process works on share them.

    `scan` reads the columns that the values need, at least one, and ROW_ID_COLUMN: `size_bytes` in `num_rows` rows.
    """

    scan: MaterializedScan
    num_rows: int
    size_bytes: int

    def beside(self, met: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the source rows whose numbers `met` has, in that order, with the addresses; nulls for no number.

        `met` has ROW_ID_COLUMN and ADDRESS_COLUMN. The batches are of a bounded size. A source that fits in memory is
        read once, a larger one for each part of `met`. Raises JobError.
        """
        limits = self.scan.bins.store.limits
        held_bytes = limits.held_source_bytes
        is_held = self.size_bytes <= held_bytes
        at_once = max(limits.taken_source_rows, self.num_rows * held_bytes // max(1, self.size_bytes))
        held: SourceTable | None = None
        for rows in gathered(met, at_once):
            numbers, places = (whole(rows.column(name)) for name in (ROW_ID_COLUMN, ADDRESS_COLUMN))
            if held is None or not is_held:
                held = None
                held = self._shared() if is_held else self.read(pc.unique(numbers).sort())
            start = 0
            for taken in held.take(numbers):
                yield named_of_source(taken).append_column(ADDRESS_COLUMN, places.slice(start, taken.num_rows))
                start += taken.num_rows

    def _shared(self) -> SourceTable:
        with _one_reads:
            return self._all

    @cached_property
    def _all(self) -> SourceTable:
        return self.read()

    def read(self, only: pa.Array | None = None) -> SourceTable:
        """Return all rows, or those with the ascending numbers. Raises JobError, retryable."""
        scan = replace(self.scan, only=only)
        rows = pa.Table.from_batches(scan.all_rows(), scan.output_schema)
        return SourceTable(rows, self.scan.bins.store.limits.taken_source_rows)


class SourceTable:
    """The rows of a source by their numbers."""

    def __init__(self, rows: pa.Table, most_rows: int = USUAL.taken_source_rows) -> None:
        columns = {}
        for name in rows.column_names:
            columns[name] = whole(rows.column(name))
            # No column is held twice for longer than it takes to copy it.
            rows = rows.drop_columns([name])
        self._numbers = columns.pop(ROW_ID_COLUMN)
        first = self._numbers[0].as_py() if len(self._numbers) else 0
        # The rows of one part of a source have consecutive numbers, which need not be looked up.
        self._first = first if self._numbers.equals(addresses(0, first, len(self._numbers))) else None
        self._rows = pa.RecordBatch.from_pydict(columns)
        enough = _MOST_BYTES // most_rows
        most_bytes = _bytes_at_most(self._rows)
        if most_bytes > enough:
            most_bytes = bytes_of_largest(self._rows)
        self._at_once = max(1, min(most_rows, _MOST_BYTES // max(1, most_bytes)))

    def take(self, numbers: pa.Array) -> Iterator[pa.RecordBatch]:
        """Yield the rows with these numbers, in their order, in batches of a bounded size; nulls for NO_ROW.

        Raises JobError if one is missing.
        """
        places = self._places(numbers)
        missing = places.null_count and places.null_count - (pc.sum(pc.equal(numbers, NO_ROW)).as_py() or 0)
        if missing:
            raise JobError(
                f"{missing} matched rows are not in the source that this job has written down. Nothing was "
                "committed. Report this as a bug."
            )
        for start in range(0, len(places), self._at_once):
            yield self._rows.take(places.slice(start, self._at_once))

    def _places(self, numbers: pa.Array) -> pa.Array:
        if self._first is None:
            return pc.index_in(numbers, value_set=self._numbers)
        places = pc.subtract(numbers, self._first)
        is_held = pc.and_(pc.greater_equal(places, 0), pc.less(places, len(self._numbers)))
        return pc.if_else(is_held, places, None)


def _bytes_at_most(rows: pa.RecordBatch) -> int:
    """Return a number of bytes that no row exceeds: for nested values, quickly and maybe far too many."""
    return sum(map(_bytes_of_any, rows.columns))


def _bytes_of_any(values: pa.Array) -> int:
    if pa.types.is_struct(values.type):
        return 1 + sum(map(_bytes_of_any, values.flatten()))
    if pa.types.is_list(values.type):
        longest = int(pc.max(pc.list_value_length(values)).as_py() or 0)
        return _OFFSET_BYTES + longest * _bytes_of_any(values.values)
    return _bytes_of_largest_value(values, 0)


def bytes_of_largest(rows: pa.RecordBatch) -> int:
    """Return a number of bytes that no row exceeds: the largest value of each column, added up."""
    small = _SMALL_BYTES // max(1, rows.num_columns)
    return sum(_bytes_of_largest_value(column, small) for column in rows.columns)


def _bytes_of_largest_value(values: pa.Array, small: int) -> int:
    """Return a number of bytes that no value exceeds; at most `small` more than the largest one if they are nested."""
    kind = values.type
    if any(is_text(kind) for is_text in _TEXTS):
        return int(pc.max(pc.binary_length(values)).as_py() or 0) + _OFFSET_BYTES
    # Arrow does not count decimals and fixed-size binaries among the primitive types.
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return -(-int(kind.bit_width) // 8)
    size_bytes = int(values.nbytes)
    if len(values) <= 1 or size_bytes <= small:
        return size_bytes
    half = len(values) // 2
    parts = (values.slice(0, half), values.slice(half))
    return max(_bytes_of_largest_value(part, small) for part in parts)
