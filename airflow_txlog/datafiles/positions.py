"""Positions of rows in a file as they travel: sorted 32-bit numbers, and a row's address as one 64-bit number.

`address = (file index << 40) | position`, so that one int64 column says where a row lives. The invariant: packed
positions are ascending and distinct, which is what lets a reader walk a file and its positions side by side.
"""

from __future__ import annotations

import array
import sys
from bisect import bisect_left
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

POSITION_BITS = 40
MAX_POSITION = (1 << 32) - 1


def pack(positions: Iterable[int] | pa.Array) -> bytes:
    """Ascending distinct positions as little-endian unsigned 32-bit numbers."""
    if isinstance(positions, pa.Array):
        # Cast in C: a position beyond 32 bits fails instead of wrapping.
        values = positions.cast(pa.uint32())
        start = values.offset * 4
        return memoryview(values.buffers()[1])[start : start + len(values) * 4].tobytes() if len(values) else b""
    packed = array.array("I", positions)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes) -> memoryview:
    """The positions as a read-only sequence of integers."""
    if sys.byteorder == "big":
        swapped = array.array("I", packed)
        swapped.byteswap()
        return memoryview(swapped)
    return memoryview(packed).cast("I")


def addresses(file_index: int, start: int, length: int) -> pa.Array:
    """The addresses of `length` rows from position `start` on, as int64."""
    if length == 0:
        return pa.array([], pa.int64())
    base = (file_index << POSITION_BITS) | start
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), length), start=pa.scalar(base - 1, pa.int64()))


class PositionCursor:
    """Walks packed positions beside the batches of their file. Batches must come in file order."""

    def __init__(self, packed: bytes) -> None:
        self._positions = unpack(packed)
        self._next = 0

    def inside(self, start: int, length: int) -> tuple[int, int]:
        """The half-open range of indexes into the positions that fall into rows `start` to `start + length`."""
        first = bisect_left(self._positions, start, self._next)
        end = bisect_left(self._positions, start + length, first)
        self._next = end
        return first, end

    def keep(self, start: int, length: int) -> pa.BooleanArray | None:
        """Which of the `length` rows from `start` on no position names; None where all of them are kept."""
        first, end = self.inside(start, length)
        if first == end:
            return None
        keep = bytearray(b"\x01") * length
        for position in self._positions[first:end]:
            keep[position - start] = 0
        return pa.Array.from_buffers(pa.uint8(), length, [None, pa.py_buffer(keep)]).cast(pa.bool_())

    def only(self, start: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int, int]:
        """The rows of the batch that a position names, in order, and the range of their indexes (see `inside`)."""
        first, end = self.inside(start, batch.num_rows)
        indices = pa.array([position - start for position in self._positions[first:end]], pa.int64())
        return batch.take(indices), first, end
