"""What was found, packed by the task that found it: rows of a file as a bitmap in the place of their addresses.

Callables for `mapInArrow`, as those of `scan_and_write`. The invariants: memory is bounded by a million addresses; what
the driver collects grows with files and the bits of their rows, not with 64-bit addresses; every row comes out once, as
an address or in one bitmap. Bitmaps of one file and clause, from whatever tasks, are to be united. Source:
docs/decisions/positions-not-rows.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import packed_by_file
from airflow_txlog.datafiles.tasks.scan_and_write import (
    ADDRESS_COLUMN,
    CLAUSE_COLUMN,
    ROW_ID_COLUMN,
    ScanTask,
    use_one_thread,
    without_values,
)

FILE_COLUMN = "_txlog_file"
POSITIONS_COLUMN = "_txlog_positions"

# The index of a file, and the bitmap of positions in it.
PACKED_SCHEMA = pa.schema([pa.field(FILE_COLUMN, pa.int64()), pa.field(POSITIONS_COLUMN, pa.binary())])
# A pair as Spark found it; or, without an address, a file, a clause and the rows on which it acts without a source row.
PAIRS_SCHEMA = pa.schema(
    [
        pa.field(ADDRESS_COLUMN, pa.int64()),
        pa.field(ROW_ID_COLUMN, pa.int64()),
        pa.field(CLAUSE_COLUMN, pa.int32()),
        *PACKED_SCHEMA,
    ]
)
_AT_ONCE = 1_000_000


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
    """The rows of a scan with addresses, by its row filter alone, as rows of PACKED_SCHEMA."""

    scan: ScanTask

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As PackTask; raises TaskFailed."""
        yield from PackTask()(batch.select([ADDRESS_COLUMN]) for batch in self.scan(batches))


class PackPairsTask:
    """Rows of address, source row and clause as rows of PAIRS_SCHEMA: those without a source row are packed."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pairs as they came, and a row for each clause and file of each million of the others."""
        use_one_thread()
        waiting: dict[int, _Waiting] = {}
        for batch in batches:
            alone = batch.column(1).is_null()
            pairs = batch.filter(pc.invert(alone)) if alone.true_count else batch
            if pairs.num_rows:
                yield _as_pairs(pairs.num_rows, pairs.columns)
            rest = batch.filter(alone)
            for number in pc.unique(rest.column(2)).to_pylist():
                of_clause = waiting.setdefault(number, _Waiting())
                if of_clause.add(rest.column(0).filter(pc.equal(rest.column(2), number))):
                    yield _as_packed(of_clause.packed(), number)
        for number, of_clause in waiting.items():
            if of_clause.count:
                yield _as_packed(of_clause.packed(), number)


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


def _as_pairs(count: int, columns: list[pa.Array]) -> pa.RecordBatch:
    # A clause that is null in all of them has no type yet.
    typed = [column.cast(kind) for column, kind in zip(columns, PAIRS_SCHEMA.types, strict=False)]
    nothing = [pa.nulls(count, kind) for kind in PACKED_SCHEMA.types]
    return pa.RecordBatch.from_arrays([*typed, *nothing], schema=PAIRS_SCHEMA)


def _as_packed(packed: pa.RecordBatch, clause: int) -> pa.RecordBatch:
    none = pa.nulls(packed.num_rows, pa.int64())
    clauses = pa.repeat(pa.scalar(clause, pa.int32()), packed.num_rows)
    return pa.RecordBatch.from_arrays([none, none, clauses, *packed.columns], schema=PAIRS_SCHEMA)
