"""What was found, packed by the task that found it: rows of a file as a bitmap, and pairs as `packed_pairs` has them.

Callables for `mapInArrow`, as those of `scan_and_write`. The invariants: memory is bounded by a million addresses; what
the driver collects is a value for each file, not a row for each match; every match comes out once, among pairs or in a
bitmap. What belongs to one file, or to one file and clause, from whatever tasks, is to be united. Source:
docs/decisions/positions-not-rows.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.packed_pairs import pairs_by_file
from airflow_txlog.datafiles.deletion_vectors.positions import packed_by_file
from airflow_txlog.datafiles.tasks.scan_and_write import (
    ADDRESS_COLUMN,
    CLAUSE_COLUMN,
    ScanTask,
    use_one_thread,
    without_values,
)

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


class PackTask:
    """Rows of one column, distinct addresses, as rows of PACKED_SCHEMA."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A row for each file of each million addresses."""
        use_one_thread()
        waiting = _Waiting()
        for batch in batches:
            if waiting.add(batch.column(0)):
                yield waiting.packed()
        if waiting.count:
            yield waiting.packed()


@dataclass(frozen=True, kw_only=True)
class FilterRowsTask:
    """The rows of a scan with addresses, by its row filter alone, as rows of PACKED_SCHEMA.

    `weight` is about what the scan costs, as of Bins.
    """

    scan: ScanTask
    weight: int

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As PackTask; raises TaskFailed."""
        yield from PackTask()(batch.select([ADDRESS_COLUMN]) for batch in self.scan(batches))


@dataclass(frozen=True, kw_only=True)
class DistinctTask:
    """The distinct values of a scan's only column in each bin, in no order; null is one of them.

    A task stops reading once it has more than `most` values, or more than `most_bytes` of them, and returns these:
    `is_too_much` is then true of its result. `weight` is as of FilterRowsTask.
    """

    scan: ScanTask
    most: int
    most_bytes: int
    weight: int

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One batch; raises TaskFailed."""
        schema = self.scan.output_schema
        found = pa.array([], schema.field(0).type)
        for batch in self.scan(batches):
            found = pc.unique(pa.concat_arrays([found, batch.column(0)]))
            if self.is_too_much(found):
                break
        yield pa.RecordBatch.from_arrays([found], schema=schema)

    def is_too_much(self, values: pa.Array) -> bool:
        """Whether these values exceed either limit."""
        return len(values) > self.most or values.nbytes > self.most_bytes


@dataclass(frozen=True)
class HeldRowsTask:
    """A batch that the driver sends along with the task, as rows of a frame."""

    rows: pa.RecordBatch

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batch once for each incoming batch: over `spark.range(0, 1, 1, 1)` exactly once."""
        for _ in batches:
            yield self.rows


class PackPairsTask:
    """Rows of address, source row or null, and clause or null, as rows of PAIRS_SCHEMA."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A row for each file of each million pairs, and for each clause and file of each million of the others."""
        use_one_thread()
        pairs = _WaitingPairs()
        waiting: dict[int, _Waiting] = {}
        for batch in batches:
            alone = batch.column(1).is_null()
            if pairs.add(batch.filter(pc.invert(alone)) if alone.true_count else batch):
                yield pairs.packed()
            rest = batch.filter(alone)
            for number in pc.unique(rest.column(2)).to_pylist():
                of_clause = waiting.setdefault(number, _Waiting())
                if of_clause.add(rest.column(0).filter(pc.equal(rest.column(2), number))):
                    yield _as_packed(of_clause.packed(), number)
        if pairs.count:
            yield pairs.packed()
        for number, of_clause in waiting.items():
            if of_clause.count:
                yield _as_packed(of_clause.packed(), number)


def packed_pairs(addresses: pa.Array, rows: pa.Array, clauses: pa.Array) -> pa.RecordBatch:
    """Pairs as rows of PAIRS_SCHEMA."""
    found = list(pairs_by_file(addresses, rows, clauses))
    files = pa.array([index for index, _ in found], pa.int64())
    nothing = [pa.nulls(len(found), PAIRS_SCHEMA.field(name).type) for name in (CLAUSE_COLUMN, POSITIONS_COLUMN)]
    packed = pa.array([pairs for _, pairs in found], pa.binary())
    return pa.RecordBatch.from_arrays([files, *nothing, packed], schema=PAIRS_SCHEMA)


@dataclass
class _Waiting:
    """Addresses that are not packed yet."""

    arrays: list[pa.Array] = field(default_factory=list)
    count: int = 0

    def add(self, addresses: pa.Array) -> bool:
        """Whether there are so many now that they should be packed."""
        self.arrays.append(addresses)
        self.count += len(addresses)
        return self.count >= _AT_ONCE

    def packed(self) -> pa.RecordBatch:
        """All of them, which are waiting no longer, as rows of PACKED_SCHEMA."""
        found = list(packed_by_file(pa.concat_arrays(self.arrays)))
        self.arrays, self.count = [], 0
        columns = [pa.array([entry[number] for entry in found], PACKED_SCHEMA.field(number).type) for number in (0, 1)]
        return pa.RecordBatch.from_arrays(columns, schema=PACKED_SCHEMA)


@dataclass
class _WaitingPairs:
    """Pairs that are not packed yet: batches of address, source row and clause."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    count: int = 0

    def add(self, pairs: pa.RecordBatch) -> bool:
        """Whether there are so many now that they should be packed."""
        # A clause that is null in all of them has no type yet.
        columns = [column.cast(kind) for column, kind in zip(pairs.columns, _PAIR_TYPES, strict=True)]
        self.batches.append(pa.RecordBatch.from_arrays(columns, names=["address", "row", "clause"]))
        self.count += pairs.num_rows
        return self.count >= _AT_ONCE

    def packed(self) -> pa.RecordBatch:
        """All of them, which are waiting no longer, as rows of PAIRS_SCHEMA."""
        waiting = pa.Table.from_batches(self.batches)
        self.batches, self.count = [], 0
        return packed_pairs(*(pa.concat_arrays(column.chunks) for column in waiting.columns))


def _as_packed(packed: pa.RecordBatch, clause: int) -> pa.RecordBatch:
    clauses = pa.repeat(pa.scalar(clause, pa.int32()), packed.num_rows)
    nothing = pa.nulls(packed.num_rows, pa.binary())
    return pa.RecordBatch.from_arrays([packed.column(0), clauses, packed.column(1), nothing], schema=PAIRS_SCHEMA)
