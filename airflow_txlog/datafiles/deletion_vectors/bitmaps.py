"""Bitmaps of rows being written, and sets of rows made of others: in the portable format of deletion vectors.

The invariants: what is written, `rows.RowPositions` reads back to exactly the same rows; each part of 65,536 rows takes
the smallest of the format's three forms, unless it is copied as it came. Memory is bounded by one part, besides what
was given and the bytes that come out.
Source: protocol, "Deletion Vector Format"; the RoaringBitmap format specification (32-bit portable, 64-bit extension).
"""

from __future__ import annotations

import array
import struct
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import accumulate, groupby, islice

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.rows import (
    ARRAY_MOST,
    BITMAP_BYTES,
    CONTAINER_ROWS,
    COOKIE_WITH_RUNS,
    COOKIE_WITHOUT_RUNS,
    FEWEST_WITH_OFFSETS,
    PORTABLE_MAGIC,
    RowPositions,
    int64_view,
    kept_by_both,
)


def encode_bitmap(positions: pa.Array) -> bytes:
    """The serialized bitmap, magic number included, of these positions.

    `positions`: int64, ascending, distinct, without nulls; else ValueError.
    """
    _check(positions)
    return _serialized(_parts(positions))


def union(bitmaps: Sequence[RowPositions]) -> bytes:
    """The serialized bitmap of the rows that any of these names. Raises CorruptDeletionVector."""
    holders: dict[int, list[RowPositions]] = {}
    for bitmap in bitmaps:
        for base in bitmap.bases:
            holders.setdefault(base, []).append(bitmap)
    return _serialized(_united(base, holders[base]) for base in sorted(holders))


def difference(rows: RowPositions, without: RowPositions) -> bytes:
    """The serialized bitmap of the rows that `rows` names and `without` does not. Raises CorruptDeletionVector."""
    others = set(without.bases)
    parts = (
        _copied(base, rows) if base not in others else _named(base, _only_in(base, rows, without))
        for base in rows.bases
    )
    return _serialized(part for part in parts if part is not None)


def covers(rows: RowPositions, some: RowPositions) -> bool:
    """Whether `rows` names every row that `some` names. Raises CorruptDeletionVector."""
    return not any(_only_in(base, some, rows).true_count for base in some.bases)


@dataclass(frozen=True, slots=True)
class _Part:
    """One container, from `base` on, serialized in one of the format's forms."""

    base: int
    count: int
    is_runs: bool
    body: bytes


def _parts(positions: pa.Array) -> Iterator[_Part]:
    """The containers that have a position, ascending."""
    view = int64_view(positions)
    start = 0
    while start < len(view):
        base = view[start] - view[start] % CONTAINER_ROWS
        end = bisect_left(view, base + CONTAINER_ROWS, start)
        low = pc.subtract(positions.slice(start, end - start), pa.scalar(base, pa.int64())).cast(pa.uint16())
        yield _part(base, low)
        start = end


def _part(base: int, low: pa.UInt16Array) -> _Part:
    """The rows `low`, counted from `base`, in the form that takes fewest bytes."""
    count = len(low)
    breaks = _breaks(low)
    if 2 + 4 * (len(breaks) + 1) < min(2 * count, BITMAP_BYTES):
        return _Part(base, count, True, _runs(low, breaks))
    return _Part(base, count, False, _little_endian(low) if count <= ARRAY_MOST else _bits(low))


def _named(base: int, flags: pa.BooleanArray) -> _Part | None:
    """The rows from `base` on that the flags name; None where there are none."""
    low = pc.indices_nonzero(flags).cast(pa.uint16())
    return _part(base, low) if len(low) else None


def _copied(base: int, rows: RowPositions) -> _Part:
    kind, count, body = rows.part(base)
    return _Part(base, count, kind == "runs", body)


def _united(base: int, bitmaps: Sequence[RowPositions]) -> _Part:
    if len(bitmaps) == 1:
        return _copied(base, bitmaps[0])
    kept = reduce(kept_by_both, (bitmap.keep(base, CONTAINER_ROWS) for bitmap in bitmaps))
    part = _named(base, pc.invert(kept))
    assert part is not None
    return part


def _only_in(base: int, rows: RowPositions, without: RowPositions) -> pa.BooleanArray:
    """Which of the rows of one container `rows` names and `without` does not; `rows` names some."""
    named = pc.invert(rows.keep(base, CONTAINER_ROWS))
    kept = without.keep(base, CONTAINER_ROWS)
    return named if kept is None else pc.and_(named, kept)


def _serialized(parts: Iterable[_Part]) -> bytes:
    """The parts, ascending, as 32-bit bitmaps, each behind the upper half of its positions."""
    encoded = [
        struct.pack("<I", key) + _bitmap32(list(of_key)) for key, of_key in groupby(parts, lambda part: part.base >> 32)
    ]
    return struct.pack("<IQ", PORTABLE_MAGIC, len(encoded)) + b"".join(encoded)


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
    header += b"".join(struct.pack("<HH", part.base >> 16 & 0xFFFF, part.count - 1) for part in parts)
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
    # Earlier releases of Arrow have the function and not its options.
    if hasattr(pc, "InversePermutationOptions"):
        # Ten times as fast: which places of the permutation are taken is a bit for each row.
        bits = pc.inverse_permutation(low.cast(pa.int32()), max_index=CONTAINER_ROWS - 1).buffers()[0]
    else:
        bits = pc.is_in(_all_rows(), value_set=low).buffers()[1]
    return bytes(bits.to_pybytes()[:BITMAP_BYTES])


@cache
def _all_rows() -> pa.UInt16Array:
    return pa.array(range(CONTAINER_ROWS), pa.uint16())


def _little_endian(values: pa.UInt16Array) -> bytes:
    start = values.offset * 2
    data = bytes(memoryview(values.buffers()[1])[start : start + 2 * len(values)])
    if sys.byteorder == "big":
        swapped = array.array("H", data)
        swapped.byteswap()
        data = swapped.tobytes()
    return data


def _check(positions: pa.Array) -> None:
    ascends = pc.all(pc.less(positions[:-1], positions[1:]), min_count=0).as_py()
    if (
        positions.type != pa.int64()
        or positions.null_count
        or not ascends
        or (len(positions) and int64_view(positions)[0] < 0)
    ):
        raise ValueError("Positions to delete must be int64, ascending, distinct, not null and not negative.")
