"""Bitmaps of masked rows being written: the portable format that every reader of deletion vectors knows.

The invariants: what is written, `masks.MaskedRows` reads back to exactly the same rows; and each part of 65,536 rows
takes the smallest of the format's three forms. Memory is bounded by one part, besides the positions that were given and
the bytes that come out.
Source: protocol, "Deletion Vector Format"; the RoaringBitmap format specification (32-bit portable, 64-bit extension).
"""

from __future__ import annotations

import array
import struct
import sys
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, groupby, islice

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.masks import (
    ARRAY_MOST,
    BITMAP_BYTES,
    CONTAINER_ROWS,
    COOKIE_WITH_RUNS,
    COOKIE_WITHOUT_RUNS,
    FEWEST_WITH_OFFSETS,
    PORTABLE_MAGIC,
    MaskedRows,
)


def encode_bitmap(positions: pa.Array, also: MaskedRows | None = None) -> bytes:
    """The serialized bitmap, magic number included, of these positions and of those that `also` masks.

    `positions`: int64, ascending, distinct, without nulls; else ValueError. Raises CorruptDeletionVector for `also`.
    """
    _check(positions)
    bitmaps = [
        (key, [_Part(base >> 16 & 0xFFFF, low) for base, low in parts])
        for key, parts in groupby(_parts(positions, also), lambda part: part[0] >> 32)
    ]
    encoded = [struct.pack("<I", key) + _bitmap32(parts) for key, parts in bitmaps]
    return struct.pack("<IQ", PORTABLE_MAGIC, len(encoded)) + b"".join(encoded)


class _Part:
    """One container, in the form that takes fewest bytes."""

    def __init__(self, key: int, low: pa.UInt16Array) -> None:
        self.key = key
        self.count = len(low)
        breaks = _breaks(low)
        self.is_runs = 2 + 4 * (len(breaks) + 1) < min(2 * self.count, BITMAP_BYTES)
        if self.is_runs:
            self.body = _runs(low, breaks)
        elif self.count <= ARRAY_MOST:
            self.body = _little_endian(low)
        else:
            self.body = _bits(low)


def _parts(positions: pa.Array, also: MaskedRows | None) -> Iterator[tuple[int, pa.UInt16Array]]:
    """The base of each container that has a row, ascending, and its rows counted from there."""
    view = _view(positions)
    bases = set() if also is None else set(also.bases)
    start = 0
    while start < len(view):
        base = view[start] - view[start] % CONTAINER_ROWS
        bases.add(base)
        start = bisect_left(view, base + CONTAINER_ROWS, start)
    end = 0
    for base in sorted(bases):
        start, end = end, bisect_left(view, base + CONTAINER_ROWS, end)
        found = positions.slice(start, end - start)
        if also is not None:
            before = also.positions(base, base + CONTAINER_ROWS)
            found = _union(found, before)
        yield base, pc.subtract(found, pa.scalar(base, pa.int64())).cast(pa.uint16())


def _union(one: pa.Array, other: pa.Array) -> pa.Array:
    if not len(one) or not len(other):
        return one if len(one) else other
    values = pc.unique(pa.concat_arrays([one, other]))
    return values.take(pc.sort_indices(values))


def _bitmap32(parts: list[_Part]) -> bytes:
    """A 32-bit bitmap. Source: RoaringFormatSpec."""
    count = len(parts)
    with_runs = any(part.is_runs for part in parts)
    if with_runs:
        flags = bytearray((count + 7) // 8)
        for index, part in enumerate(parts):
            flags[index // 8] |= part.is_runs << index % 8
        header = struct.pack("<I", COOKIE_WITH_RUNS | (count - 1) << 16) + bytes(flags)
    else:
        header = struct.pack("<II", COOKIE_WITHOUT_RUNS, count)
    header += b"".join(struct.pack("<HH", part.key, part.count - 1) for part in parts)
    if not with_runs or count >= FEWEST_WITH_OFFSETS:
        at = len(header) + 4 * count
        ends = accumulate((len(part.body) for part in parts), initial=at)
        header += struct.pack(f"<{count}I", *islice(ends, count))
    return header + b"".join(part.body for part in parts)


def _breaks(low: pa.UInt16Array) -> pa.Array:
    """After which of the rows a run ends, the last one left out."""
    steps = pc.subtract(low[1:], low[:-1])
    return pc.indices_nonzero(pc.not_equal(steps, pa.scalar(1, pa.uint16())))


def _runs(low: pa.UInt16Array, breaks: pa.Array) -> bytes:
    ends = [*low.take(breaks).to_pylist(), low[-1].as_py()]
    starts = [low[0].as_py(), *low.take(pc.add(breaks, pa.scalar(1, breaks.type))).to_pylist()]
    numbers = [number for start, end in zip(starts, ends, strict=True) for number in (start, end - start)]
    return struct.pack(f"<H{len(numbers)}H", len(starts), *numbers)


def _bits(low: pa.UInt16Array) -> bytes:
    flags = pc.is_in(_ALL_ROWS, value_set=low)
    data = flags.buffers()[1].to_pybytes()
    assert flags.offset == 0
    return bytes(data[:BITMAP_BYTES])


_ALL_ROWS = pa.array(range(CONTAINER_ROWS), pa.uint16())


def _little_endian(values: pa.UInt16Array) -> bytes:
    start = values.offset * 2
    data = bytes(memoryview(values.buffers()[1])[start : start + 2 * len(values)])
    if sys.byteorder == "big":
        swapped = array.array("H", data)
        swapped.byteswap()
        data = swapped.tobytes()
    return data


def _view(positions: pa.Array) -> memoryview:
    if not len(positions):
        return memoryview(b"").cast("q")
    return memoryview(positions.buffers()[1]).cast("q")[positions.offset : positions.offset + len(positions)]


def _check(positions: pa.Array) -> None:
    ascends = pc.all(pc.less(positions[:-1], positions[1:]), min_count=0).as_py()
    if (
        positions.type != pa.int64()
        or positions.null_count
        or not ascends
        or (len(positions) and _view(positions)[0] < 0)
    ):
        raise ValueError("Positions to mask must be int64, ascending, distinct, not null and not negative.")
