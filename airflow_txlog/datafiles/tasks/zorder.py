"""Z-order: a number for each row that is close for rows which are close in several columns at once.

The values of each column become numbers of buckets, by boundaries that cut a sample into equal parts, and the bits of
the buckets are interleaved. Rows sorted by that number give files with narrow bounds in all of the columns. The
invariant: equal values have equal buckets and greater ones never smaller; nulls are the greatest. Source: G. M. Morton,
"A Computer Oriented Geodetic Data Base", 1966; delta-spark, ZOrder for equal parts of a sample.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS, whole
from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN
from airflow_txlog.datafiles.row_ids import RowIds
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN

Z_COLUMN = "_txlog_z"
# Buckets of a column, 2 to this power; fewer if the bits of many columns would not fit 63.
MAX_BITS = 10

_GOLDEN_RATIO = pa.scalar(0x9E3779B97F4A7C15, pa.uint64())

ColumnPath: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ZOrder:
    """How z-values are computed: `boundaries` of each of the `columns` (paths of names), ascending and without null.

    A z-value has `bits` bits of each column.
    """

    columns: tuple[ColumnPath, ...]
    boundaries: tuple[pa.Array, ...]
    bits: int

    @classmethod
    def of_sample(cls, columns: Sequence[ColumnPath], sample: pa.Table, groups: int = 1) -> ZOrder:
        """Return the order for `groups` groups of rows. Its buckets cut the sample's values into equal parts."""
        bits = bits_for(len(columns), groups)
        boundaries = [cuts(values_at(sample, path), 2**bits) for path in columns]
        return cls(columns=tuple(columns), boundaries=tuple(boundaries), bits=bits)

    def in_group(self, values: pa.Array, group: int) -> pa.Array:
        """Return z-values of rows of this group, greater than those of all groups before it."""
        return pc.add(values, group << self.bits * len(self.columns))

    def values(self, rows: pa.Table | pa.RecordBatch) -> pa.Array:
        """Return the z-value of each row, as int64 from 0 on."""
        bits = self.bits
        found = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
        for index, (path, boundaries) in enumerate(zip(self.columns, self.boundaries, strict=True)):
            spread = _spread(bits, index, len(self.columns))
            found = pc.bit_wise_or(found, spread.take(buckets(values_at(rows, path), boundaries)))
        return found


def bits_for(columns: int, groups: int = 1) -> int:
    """Return how many bits of each column fit in a z-value together with the number of the row's group."""
    return min(MAX_BITS, (63 - (groups - 1).bit_length()) // columns)


def cuts(values: pa.Array, count: int) -> pa.Array:
    """Return at most `count` - 1 distinct values that cut these into equal parts; ascending, without null."""
    ordered = values.drop_null()
    ordered = ordered.take(pc.sort_indices(ordered))
    places = sorted({len(ordered) * number // count for number in range(1, count)}) if len(ordered) else []
    return pc.unique(ordered.take(pa.array(places, pa.int64())))


def buckets(values: pa.Array, boundaries: pa.Array) -> pa.Array:
    """Return for each value how many boundaries are not above it, as int64; all of them for a null."""
    both = pa.concat_arrays([boundaries, values.cast(boundaries.type)])
    # A stable sort: a boundary comes before the values that equal it. Nulls come last.
    order = pc.sort_indices(both).cast(pa.int64())
    passed = pc.cumulative_sum(pc.less(order, len(boundaries)).cast(pa.int64()))
    return passed.take(pc.sort_indices(order)).slice(len(boundaries))


def values_at(rows: pa.Table | pa.RecordBatch, path: ColumnPath) -> pa.Array:
    """Return the values of a column, or of a member of structs, as one array."""
    column = rows.column(rows.schema.get_field_index(path[0]))
    if isinstance(column, pa.ChunkedArray):
        column = whole(column)
    for name in path[1:]:
        # A list, because a text that begins with a dot is taken for a path.
        column = pc.struct_field(column, [name])
    return column


def sampled(one_in: int, most: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield about one in `one_in` of the rows, which have addresses, with the first row of each file.

    The sample is even but not periodic, because a file's rows may have a period too: it uses the fractions of multiples
    of the golden ratio. A task stops reading at `most` rows, because the row counts of a log may be wrong. Source: D.
    E. Knuth, The Art of Computer Programming, 6.4 (Fibonacci hashing).
    """
    count = 0
    for batch in rows:
        ordinals = pc.bit_wise_and(batch.column(ADDRESS_COLUMN), (1 << POSITION_BITS) - 1).cast(pa.uint64())
        fractions = pc.multiply(ordinals, _GOLDEN_RATIO)  # of 2**64, at which the product wraps
        chosen = batch.filter(pc.less_equal(fractions, pa.scalar((2**64 - 1) // one_in, pa.uint64())))
        yield chosen.slice(0, most - count)
        count += chosen.num_rows
        if count >= most:
            return


@dataclass(frozen=True, kw_only=True)
class ZOrdered:
    """The step that replaces each row's address with its segment and z-value.

    `groups` has each file's group, by the file's index in its plan. A group's z-values are cut by its `splits` (int64)
    into the segments from `first_segments` on. `bases` and `versions` are the files' default row ids and commit
    versions.
    """

    order: ZOrder
    groups: pa.Array
    splits: tuple[pa.Array, ...]
    first_segments: tuple[int, ...]
    row_ids: RowIds | None = None
    bases: pa.Array | None = None
    versions: pa.Array | None = None

    @property
    def num_segments(self) -> int:
        return self.first_segments[-1] + len(self.splits[-1]) + 1

    def output_schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns without the address, then the segment (int32) and the z-value (int64).

        The z-value of a group is above those before it, so that it also orders by segment.
        """
        schema = rows.remove(rows.get_field_index(ADDRESS_COLUMN))
        return schema.append(pa.field(SEGMENT_COLUMN, pa.int32())).append(pa.field(Z_COLUMN, pa.int64()))

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (self._ordered(batch) for batch in rows if batch.num_rows)

    def _ordered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        place = batch.schema.get_field_index(ADDRESS_COLUMN)
        addresses = batch.column(place)
        # A batch never crosses from one partition to another, nor, with row ids, from one file to another.
        file = addresses[0].as_py() >> POSITION_BITS
        group = self.groups[file].as_py()
        z = self.order.values(batch)
        segments = pc.add(buckets(z, self.splits[group]), self.first_segments[group]).cast(pa.int32())
        schema = self.output_schema(batch.schema)
        columns = [column for index, column in enumerate(batch.columns) if index != place]
        if self.row_ids is not None:
            assert self.bases is not None
            assert self.versions is not None
            numbers = pc.subtract(addresses, file << POSITION_BITS)
            self.row_ids.fill(columns, schema, self.bases[file], self.versions[file], numbers)
        return pa.RecordBatch.from_arrays([*columns, segments, self.order.in_group(z, group)], schema=schema)


@functools.cache
def _spread(bits: int, index: int, columns: int) -> pa.Array:
    """Return for each bucket its bits at every `columns`-th place, the first column's highest."""
    shift = columns - 1 - index
    return pa.array(
        [sum((bucket >> bit & 1) << (bit * columns + shift) for bit in range(bits)) for bucket in range(2**bits)],
        pa.int64(),
    )
