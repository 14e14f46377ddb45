"""Found rows, packed by the task that found them: rows of a file as a bitmap, pairs as in `positions`.

The functions are steps of tasks, and callables for `mapInArrow` over what Spark has found. The invariants: a task holds
at most a million addresses. The driver collects a value for each file, not a row for each match. Every match is yielded
once, among pairs or in a bitmap. The caller unites the values of one file, or of one file and clause. Source:
docs/decisions/positions-not-rows.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import packed_by_file, pairs_by_file, union, whole
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.tasks.scan_and_write import CLAUSE_COLUMN, gathered, use_one_thread

FILE_COLUMN = "_txlog_file"
POSITIONS_COLUMN = "_txlog_positions"
PAIRS_COLUMN = "_txlog_pairs"

# The index of a file, and the bitmap of positions in it.
PACKED_SCHEMA = pa.schema([pa.field(FILE_COLUMN, pa.int64()), pa.field(POSITIONS_COLUMN, pa.binary())])
# The index of a file, and either a clause and the bitmap of the rows on which it acts without a source row, or pairs.
PAIRS_SCHEMA = pa.schema(
    [
        pa.field(FILE_COLUMN, pa.int64()),
        pa.field(CLAUSE_COLUMN, pa.int32()),
        pa.field(POSITIONS_COLUMN, pa.binary()),
        pa.field(PAIRS_COLUMN, pa.binary()),
    ]
)
_AT_ONCE = 1_000_000
_PAIR_TYPES = (pa.int64(), pa.int64(), pa.int32())


def rows_packed(batches: Iterator[pa.RecordBatch], at_once: int = _AT_ONCE) -> Iterator[pa.RecordBatch]:
    """Yield distinct addresses, the last column of the batches, as PACKED_SCHEMA: a row for each file of `at_once`
    addresses.
    """
    use_one_thread()
    addresses = (batch.select([batch.num_columns - 1]) for batch in batches)
    for rows in gathered(addresses, at_once):
        yield packed_rows(whole(rows.column(0)))


def pairs_packed(batches: Iterator[pa.RecordBatch], at_once: int = _AT_ONCE) -> Iterator[pa.RecordBatch]:
    """Yield rows of address, source row or null, and clause or null, as PAIRS_SCHEMA.

    There is a row for each file of each `at_once` pairs, and for each clause and file of each `at_once` other rows.
    """
    use_one_thread()
    pairs = _Waiting(at_once)
    by_clause: dict[int, _Waiting] = {}
    for batch in batches:
        alone = batch.column(1).is_null()
        if pairs.add(_typed(batch.filter(pc.invert(alone)) if alone.true_count else batch)):
            yield packed_pairs(*pairs.taken())
        rest = batch.filter(alone)
        for number in pc.unique(rest.column(2)).to_pylist():
            of_clause = by_clause.setdefault(number, _Waiting(at_once))
            if of_clause.add(rest.select([0]).filter(pc.equal(rest.column(2), number))):
                yield _of_clause(number, *of_clause.taken())
    if pairs.count:
        yield packed_pairs(*pairs.taken())
    for number, of_clause in by_clause.items():
        if of_clause.count:
            yield _of_clause(number, *of_clause.taken())


def _typed(pairs: pa.RecordBatch) -> pa.RecordBatch:
    # A clause that is null in all of them has no type yet.
    columns = [column.cast(kind) for column, kind in zip(pairs.columns, _PAIR_TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=["address", "row", "clause"])


def distinct_values(most: int, most_bytes: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the distinct values of the only column, null included, in no order, as one batch.

    Stops reading as soon as the values exceed a limit: then `is_too_much` is true of those that it yields.
    """
    values = None
    for batch in batches:
        column = batch.column(0)
        values = pc.unique(column if values is None else pa.concat_arrays([values, column]))
        if is_too_much(values, most, most_bytes):
            break
    if values is not None:
        yield pa.RecordBatch.from_arrays([values], schema=batch.schema)


def is_too_much(values: pa.Array, most: int, most_bytes: int) -> bool:
    return len(values) > most or values.nbytes > most_bytes


def held_rows(rows: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows once for each incoming batch: exactly once over `spark.range(0, 1, 1, 1)`."""
    for _ in batches:
        yield rows


def packed_rows(addresses: pa.Array) -> pa.RecordBatch:
    """Return distinct addresses as PACKED_SCHEMA."""
    found = list(packed_by_file(addresses))
    columns = [pa.array([entry[at] for entry in found], each.type) for at, each in enumerate(PACKED_SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED_SCHEMA)


def united(packed: pa.Table) -> dict[int, RowPositions]:
    """Return one bitmap for each file of a table PACKED_SCHEMA."""
    parts: dict[int, list[RowPositions]] = {}
    columns = (packed.column(name).to_pylist() for name in PACKED_SCHEMA.names)
    for index, data in zip(*columns, strict=True):
        parts.setdefault(index, []).append(RowPositions(data, "of found rows"))
    return {
        index: of_file[0] if len(of_file) == 1 else RowPositions(union(of_file), "of found rows")
        for index, of_file in sorted(parts.items())
    }


def packed_pairs(addresses: pa.Array, rows: pa.Array, clauses: pa.Array) -> pa.RecordBatch:
    """Return pairs as PAIRS_SCHEMA."""
    found = list(pairs_by_file(addresses, rows, clauses))
    files = pa.array([index for index, _ in found], pa.int64())
    nothing = [pa.nulls(len(found), PAIRS_SCHEMA.field(name).type) for name in (CLAUSE_COLUMN, POSITIONS_COLUMN)]
    packed = pa.array([pairs for _, pairs in found], pa.binary())
    return pa.RecordBatch.from_arrays([files, *nothing, packed], schema=PAIRS_SCHEMA)


def _of_clause(number: int, addresses: pa.Array) -> pa.RecordBatch:
    """Return the addresses of rows on which a clause acts without a source row, as PAIRS_SCHEMA."""
    packed = packed_rows(addresses)
    clauses = pa.repeat(pa.scalar(number, pa.int32()), packed.num_rows)
    nothing = pa.nulls(packed.num_rows, pa.binary())
    return pa.RecordBatch.from_arrays([packed.column(0), clauses, packed.column(1), nothing], schema=PAIRS_SCHEMA)


@dataclass
class _Waiting:
    """Batches that are not packed yet."""

    at_once: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    count: int = 0

    def add(self, rows: pa.RecordBatch) -> bool:
        """Add rows; return whether there are enough to be packed."""
        self.batches.append(rows)
        self.count += rows.num_rows
        return self.count >= self.at_once

    def taken(self) -> list[pa.Array]:
        """Return the columns of all rows, which are no longer waiting."""
        waiting = pa.Table.from_batches(self.batches)
        self.batches, self.count = [], 0
        return [whole(column) for column in waiting.columns]
