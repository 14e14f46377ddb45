"""Positions of rows in a file as they travel: a bitmap for each file, and a row's address as one 64-bit number.

`address = (file index << 40) | position`, so that one int64 column says where a row lives. The invariant: memory is
bounded by the bitmaps and by one batch, however many rows they name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.bitmaps import encode_bitmap
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions, int64_view

POSITION_BITS = 40
MAX_POSITION = (1 << 32) - 1


def pack(positions: Iterable[int] | pa.Array) -> bytes:
    """Ascending distinct positions as a bitmap, as `rows.RowPositions` reads it; ValueError for one beyond 32 bits."""
    array = positions if isinstance(positions, pa.Array) else pa.array(positions, pa.int64())
    if len(array) and array[-1].as_py() > MAX_POSITION:
        raise ValueError(f"A file has no row {array[-1].as_py()}: positions have 32 bits.")
    return encode_bitmap(array)


def unpack(packed: bytes | None) -> RowPositions:
    """The rows that a plan names; no row for None."""
    return RowPositions(packed or _NO_ROWS, "of the plan")


_NO_ROWS = pack([])


def addresses(file_index: int, start: int, length: int) -> pa.Array:
    """The addresses of `length` rows from position `start` on, as int64."""
    if length == 0:
        return pa.array([], pa.int64())
    base = (file_index << POSITION_BITS) | start
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), length), start=pa.scalar(base - 1, pa.int64()))


def addresses_of(file_index: int, positions: pa.Array) -> pa.Array:
    """The addresses of the rows at these positions (int64)."""
    return pc.add(positions, pa.scalar(file_index << POSITION_BITS, pa.int64()))


def packed_by_file(found: pa.Array) -> Iterator[tuple[int, bytes]]:
    """Distinct addresses, in any order, as the index of each file and the bitmap of its positions; files ascend."""
    if len(found) > 1 and not pc.all(pc.less(found[:-1], found[1:])).as_py():
        found = found.sort()
    for index, start, end in split_by_file(found):
        yield index, pack(pc.subtract(found[start:end], pa.scalar(index << POSITION_BITS, pa.int64())))


def split_by_file(ascending: pa.Int64Array) -> Iterator[tuple[int, int, int]]:
    """The index of each file that ascending addresses name, and where its addresses begin and end."""
    start = 0
    while start < len(ascending):
        index = ascending[start].as_py() >> POSITION_BITS
        end = start + num_below(ascending[start:], (index + 1) << POSITION_BITS)
        yield index, start, end
        start = end


def num_below(ascending: pa.Int64Array, limit: int) -> int:
    """How many of the numbers lie below the limit."""
    return bisect_left(int64_view(ascending), limit)


def named_rows(rows: RowPositions, start: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int, int]:
    """The rows of the batch, which begins at position `start`, that are named, in order.

    And the half-open range of their numbers among all that are named.
    """
    first, end = rows.num_before(start), rows.num_before(start + batch.num_rows)
    if end - first == batch.num_rows:
        return batch, first, end
    keep = rows.keep(start, batch.num_rows)
    return batch.slice(0, 0) if keep is None else batch.filter(pc.invert(keep)), first, end
