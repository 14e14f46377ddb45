"""Rows of files as they travel: a bitmap of positions for each file, or a few bytes for each pair of rows.

Bitmaps are in the portable format of deletion vectors. Each part of 65,536 rows takes the smallest of the format's
three forms, unless it is copied as it came. `rows.RowPositions` reads back exactly the rows that were written.

`address = (file index << 40) | position`, so one int64 column locates a row. A pair is a row of a file, by its
position, and the row of a job's source that it met, with the clause that acts on it, if one does. Pairs travel
compressed: as the steps between positions, the parts and 32-bit ordinals of source rows, and clauses. They are unpacked
in the order of positions and source rows. Memory is bounded by the bitmaps and one batch, however many rows they name.
Source: protocol, "Deletion Vector Format"; the RoaringBitmap format specification (32-bit portable, 64-bit extension);
docs/decisions/positions-not-rows.md.
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

POSITION_BITS = 40
MAX_POSITION = (1 << 32) - 1
_BITS = pa.scalar(POSITION_BITS, pa.int64())
_ALL_BITS = pa.scalar((1 << POSITION_BITS) - 1, pa.int64())
# The rows of a usual batch.
_COUNTED_ONCE = 131_072

# --- bitmaps --------------------------------------------------------------------------------------------------------


def pack(positions: Iterable[int] | pa.Array) -> bytes:
    """Return ascending distinct positions as a serialized bitmap. Raises ValueError for one beyond 32 bits."""
    array = positions if isinstance(positions, pa.Array) else pa.array(positions, pa.int64())
    if len(array) and array[-1].as_py() > MAX_POSITION:
        raise ValueError(f"A file has no row {array[-1].as_py()}: positions have 32 bits.")
    return encode_bitmap(array)


def unpack(packed: bytes | None) -> RowPositions:
    """Return the rows that a plan names; no rows for None."""
    return RowPositions(packed or _no_rows(), "of the plan")


def encode_bitmap(positions: pa.Array) -> bytes:
    """Return the serialized bitmap, magic number included, of these positions.

    Raises ValueError unless they are int64, ascending, distinct, not null and not negative.
    """
    view = int64_view(positions) if positions.type == pa.int64() and not positions.null_count else None
    if view is None or not _ascend(positions) or (len(view) and view[0] < 0):
        raise ValueError("Positions to delete must be int64, ascending, distinct, not null and not negative.")
    return _serialized(_parts(positions, view))


def union(bitmaps: Sequence[RowPositions]) -> bytes:
    """Return the bitmap of the rows that any of these names. Raises CorruptDeletionVector."""
    holders: dict[int, list[RowPositions]] = {}
    for bitmap in bitmaps:
        for base in bitmap.bases:
            holders.setdefault(base, []).append(bitmap)
    return _serialized(_united(base, holders[base]) for base in sorted(holders))


def difference(rows: RowPositions, without: RowPositions) -> bytes:
    """Return the bitmap of the rows that `rows` names and `without` does not. Raises CorruptDeletionVector."""
    others = set(without.bases)
    parts = (
        _named(base, _only_in(base, rows, without)) if base in others else _copied(base, rows) for base in rows.bases
    )
    return _serialized(part for part in parts if part is not None)


def covers(rows: RowPositions, some: RowPositions) -> bool:
    """Return whether `rows` names every row that `some` names. Raises CorruptDeletionVector."""
    return not any(_only_in(base, some, rows).true_count for base in some.bases)


def named_rows(rows: RowPositions, start: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int, int]:
    """Return the named rows of a batch that begins at position `start`, in order.

    Their numbers among all named rows are the half-open range that follows.
    """
    first, end = rows.num_before(start), rows.num_before(start + batch.num_rows)
    if end - first == batch.num_rows:
        return batch, first, end
    keep = rows.keep(start, batch.num_rows)
    return batch.slice(0, 0) if keep is None else batch.filter(pc.invert(keep)), first, end


@cache
def _no_rows() -> bytes:
    return pack([])


@dataclass(frozen=True, slots=True)
class _Part:
    """One container, from `base` on, serialized in one of the format's forms."""

    base: int
    count: int
    is_runs: bool
    body: bytes


def _parts(positions: pa.Array, view: memoryview) -> Iterator[_Part]:
    start = 0
    while start < len(view):
        base = view[start] - view[start] % CONTAINER_ROWS
        end = bisect_left(view, base + CONTAINER_ROWS, start)
        low = pc.subtract(positions.slice(start, end - start), pa.scalar(base, pa.int64())).cast(pa.uint16())
        yield _part(base, low)
        start = end


def _part(base: int, low: pa.UInt16Array) -> _Part:
    """Return the rows `low`, counted from `base`, in the form that takes fewest bytes."""
    count = len(low)
    steps = pc.subtract(low[1:], low[:-1])
    # The rows after which a run ends, without the last one.
    breaks = pc.indices_nonzero(pc.not_equal(steps, pa.scalar(1, pa.uint16())))
    if 2 + 4 * (len(breaks) + 1) < min(2 * count, BITMAP_BYTES):
        return _Part(base, count, True, _runs(low, breaks))
    return _Part(base, count, False, _little_endian(low) if count <= ARRAY_MOST else _bits(low))


def _named(base: int, flags: pa.BooleanArray) -> _Part | None:
    """Return the rows from `base` on that the flags name, or None."""
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
    """Return which rows of one container `rows` names and `without` does not; `rows` names some."""
    named = pc.invert(rows.keep(base, CONTAINER_ROWS))
    kept = without.keep(base, CONTAINER_ROWS)
    return named if kept is None else pc.and_(named, kept)


def _serialized(parts: Iterable[_Part]) -> bytes:
    """Return ascending parts as 32-bit bitmaps, each behind the upper half of its positions."""
    encoded = [
        struct.pack("<I", key) + _bitmap32(list(of_key)) for key, of_key in groupby(parts, lambda part: part.base >> 32)
    ]
    return struct.pack("<IQ", PORTABLE_MAGIC, len(encoded)) + b"".join(encoded)


def _bitmap32(parts: list[_Part]) -> bytes:
    """Return a 32-bit bitmap. Source: RoaringFormatSpec."""
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
        ends = accumulate((len(part.body) for part in parts), initial=len(header) + 4 * count)
        header += struct.pack(f"<{count}I", *islice(ends, count))
    return header + b"".join(part.body for part in parts)


def _runs(low: pa.UInt16Array, breaks: pa.Array) -> bytes:
    ends = [*low.take(breaks).to_pylist(), low[-1].as_py()]
    starts = [low[0].as_py(), *low.take(pc.add(breaks, pa.scalar(1, breaks.type))).to_pylist()]
    numbers = [number for start, end in zip(starts, ends, strict=True) for number in (start, end - start)]
    return struct.pack(f"<H{len(numbers)}H", len(starts), *numbers)


def _bits(low: pa.UInt16Array) -> bytes:
    bits = occurring(low.cast(pa.int32()), CONTAINER_ROWS).buffers()[1]
    return bytes(bits.to_pybytes()[:BITMAP_BYTES])


def _little_endian(values: pa.UInt16Array) -> bytes:
    start = values.offset * 2
    data = bytes(memoryview(values.buffers()[1])[start : start + 2 * len(values)])
    if sys.byteorder == "big":
        swapped = array.array("H", data)
        swapped.byteswap()
        data = swapped.tobytes()
    return data


# --- addresses ------------------------------------------------------------------------------------------------------


def addresses(file_index: int, start: int, length: int) -> pa.Array:
    """Return the addresses (int64) of `length` rows from position `start` on."""
    if length == 0:
        return pa.array([], pa.int64())
    # A sum takes a sixth of the time of a count.
    ordinals = _counted(length) if length > _COUNTED_ONCE else _first_ordinals()[:length]
    return pc.add(ordinals, pa.scalar((file_index << POSITION_BITS) | start, pa.int64()))


@cache
def _first_ordinals() -> pa.Int64Array:
    return _counted(_COUNTED_ONCE)


def _counted(length: int) -> pa.Int64Array:
    """Return the numbers from 0 on."""
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), length), start=pa.scalar(-1, pa.int64()))


def addresses_of(file_index: int, positions: pa.Array) -> pa.Array:
    """Return the addresses of the rows at these positions (int64)."""
    return pc.add(positions, pa.scalar(file_index << POSITION_BITS, pa.int64()))


def addresses_in_files(file_indexes: Sequence[int], counts: Sequence[int]) -> pa.Array:
    """Return the addresses (int64) of all rows of neighbouring files, which have these numbers of rows."""
    total = sum(counts)
    starts = [0, *accumulate(counts)]
    ordinals = addresses(0, 0, total)
    parents = pc.list_parent_indices(pa.ListArray.from_arrays(pa.array(starts, pa.int32()), ordinals))
    firsts = [(index << POSITION_BITS) - start for index, start in zip(file_indexes, starts, strict=False)]
    return pc.add(pa.array(firsts, pa.int64()).take(parents), ordinals)


def packed_by_file(found: pa.Array) -> Iterator[tuple[int, bytes]]:
    """Yield the index of each file among distinct addresses, ascending, and the bitmap of its positions."""
    if not _ascend(found):
        found = found.sort()
    for index, start, end in _split_by_file(found):
        yield index, pack(pc.bit_wise_and(found[start:end], _ALL_BITS))


def _split_by_file(ascending: pa.Int64Array) -> Iterator[tuple[int, int, int]]:
    """Yield the index of each file that ascending addresses name, and the half-open range of its addresses."""
    view, start = int64_view(ascending), 0
    while start < len(view):
        index = view[start] >> POSITION_BITS
        end = bisect_left(view, (index + 1) << POSITION_BITS, start)
        yield index, start, end
        start = end


# --- pairs ----------------------------------------------------------------------------------------------------------

POSITION = "position"
SOURCE_ROW = "source_row"
CLAUSE = "clause"

# The pairs of one file: the row's ordinal in the file; the source row that it met, null if a clause acts on the row
# without one; the clause that acts on the row, null if none does.
PAIRS = pa.schema(
    [pa.field(POSITION, pa.int64(), nullable=False), pa.field(SOURCE_ROW, pa.int64()), pa.field(CLAUSE, pa.int32())]
)

_PACKED = pa.schema(
    [
        pa.field("step", pa.uint32(), nullable=False),
        pa.field("part", pa.uint32()),
        pa.field("row", pa.uint32()),
        pa.field("clause", pa.uint16()),
    ]
)
# Four short columns: to wake a thread for each of them takes longer than the work.
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


def pack_pairs(pairs: pa.Table) -> bytes:
    """Return a table PAIRS of one file, in any order, as bytes; b"" if it is empty.

    Raises ValueError for a number beyond 32 bits.
    """
    if not pairs.num_rows:
        return b""
    ordered = pairs.combine_chunks()
    if not _ascend(whole(ordered.column(POSITION))):
        ordered = ordered.sort_by([(POSITION, "ascending"), (SOURCE_ROW, "ascending")]).combine_chunks()
    positions, rows, clauses = (whole(ordered.column(name)) for name in PAIRS.names)
    ordinals = pc.bit_wise_and(rows, _ALL_BITS)
    if max(positions[-1].as_py(), pc.max(ordinals).as_py() or 0) > MAX_POSITION:
        raise ValueError("A file has no such row: positions have 32 bits.")
    steps = pa.concat_arrays([positions[:1], pc.subtract(positions[1:], positions[:-1])])
    columns = [steps, pc.shift_right(rows, _BITS), ordinals, clauses]
    batch = pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, _PACKED, strict=True)], schema=_PACKED
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _PACKED, options=_OPTIONS) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpack_pairs(data: bytes) -> pa.Table:
    """Return the table PAIRS of these bytes, ascending. Raises ArrowException or ValueError for other bytes."""
    if not data:
        return PAIRS.empty_table()
    packed = pa.ipc.open_stream(pa.py_buffer(data), options=_READ_OPTIONS).read_all()
    if packed.schema != _PACKED:
        raise ValueError("These are no packed pairs.")
    packed.validate(full=True)
    steps, parts, rows, clauses = (whole(packed.column(name)) for name in _PACKED.names)
    numbers = pc.bit_wise_or(pc.shift_left(parts.cast(pa.int64()), _BITS), rows.cast(pa.int64()))
    return pa.table([pc.cumulative_sum(steps.cast(pa.int64())), numbers, clauses.cast(pa.int32())], schema=PAIRS)


def pairs_by_file(addresses: pa.Array, rows: pa.Array, clauses: pa.Array) -> Iterator[tuple[int, bytes]]:
    """Yield the index of each file among addresses in any order, and its pairs, packed."""
    if not _ascend(addresses):
        order = pc.sort_indices(addresses)
        addresses, rows, clauses = (column.take(order) for column in (addresses, rows, clauses))
    for index, start, end in _split_by_file(addresses):
        positions = pc.bit_wise_and(addresses[start:end], _ALL_BITS)
        yield index, pack_pairs(pa.table([positions, rows[start:end], clauses[start:end]], schema=PAIRS))


def _ascend(numbers: pa.Int64Array) -> bool:
    """Return whether each number is greater than the one before."""
    return bool(pc.all(pc.less(numbers[:-1], numbers[1:]), min_count=0).as_py())


def united_pairs(parts: list[bytes]) -> bytes:
    """Return the pairs of one file that several tasks have packed."""
    return parts[0] if len(parts) == 1 else pack_pairs(pa.concat_tables([unpack_pairs(part) for part in parts]))


def occurring(numbers: pa.Array, count: int) -> pa.BooleanArray:
    """Return for each number below `count` whether it is among the numbers, of which none is larger or negative."""
    found = places_of(numbers, count)
    return pc.is_in(addresses(0, 0, count), value_set=numbers.cast(pa.int64())) if found is None else found.is_valid()


def places_of(numbers: pa.Array, count: int) -> pa.Int32Array | None:
    """Return for each number below `count` a place that it has among the numbers, null if it has none.

    None of them is larger or negative. Returns None if this release of Arrow has no function that is fast.
    """
    # Earlier releases have the function and not its options.
    if not count or not hasattr(pc, "InversePermutationOptions"):
        return None
    return pc.inverse_permutation(numbers, max_index=count - 1, output_type=pa.int32())


def places_of_different(values: pa.Array, most: int) -> tuple[pa.Int32Array, int] | None:
    """Return the places of whole numbers among `values`, for each number from the least one on, and the least one.

    Returns None if two of the values are equal, if they lie apart by `most` or more, or if they are no whole numbers.
    """
    if not pa.types.is_signed_integer(values.type):
        return None
    least, greatest = (bound.as_py() for bound in pc.min_max(values).values())
    if least is None or greatest - least >= most:
        return None
    found = places_of(pc.subtract(values.cast(pa.int64()), pa.scalar(least, pa.int64())), greatest - least + 1)
    if found is None or len(found) - found.null_count < len(values) - values.null_count:
        return None
    return found, least


def whole(values: pa.ChunkedArray) -> pa.Array:
    """Return the values in one array."""
    if values.num_chunks == 1:
        return values.chunk(0)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
