"""Rows of a file as they travel: a bitmap of positions for each file, or a few bytes for each pair of rows.

`address = (file index << 40) | position`, so that one int64 column says where a row lives. A pair is a row of a file,
by its position, and the row of a job's source that it met; beside it stands the clause that acts on it, if one does.
Positions of pairs go as the steps between them, source rows as 32-bit ordinals and the part that they are of, all of
it compressed. The invariants: memory is bounded by the bitmaps and by one batch, however many rows they name; pairs
that were packed come back, in the order of positions and source rows. Source: docs/decisions/positions-not-rows.md.
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


# --- pairs ----------------------------------------------------------------------------------------------------------

POSITION = "position"
SOURCE_ROW = "source_row"
CLAUSE = "clause"

# The pairs of one file: the row's ordinal in the file; the source row that it met, null where a clause acts on it
# without one; the clause that acts on the row, null where none does.
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
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
_BITS = pa.scalar(POSITION_BITS, pa.int64())
_ALL_BITS = pa.scalar((1 << POSITION_BITS) - 1, pa.int64())


def pack_pairs(pairs: pa.Table) -> bytes:
    """A table PAIRS of one file, in any order, as bytes; none for no pair. ValueError for a number beyond 32 bits."""
    if not pairs.num_rows:
        return b""
    ordered = pairs.sort_by([(POSITION, "ascending"), (SOURCE_ROW, "ascending")]).combine_chunks()
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
    """The table PAIRS of which these are the bytes, ascending. Raises ArrowException or ValueError for other bytes."""
    if not data:
        return PAIRS.empty_table()
    packed = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    if packed.schema != _PACKED:
        raise ValueError("These are no packed pairs.")
    packed.validate(full=True)
    steps, parts, rows, clauses = (whole(packed.column(name)) for name in _PACKED.names)
    numbers = pc.bit_wise_or(pc.shift_left(parts.cast(pa.int64()), _BITS), rows.cast(pa.int64()))
    return pa.table([pc.cumulative_sum(steps.cast(pa.int64())), numbers, clauses.cast(pa.int32())], schema=PAIRS)


def pairs_by_file(addresses: pa.Array, rows: pa.Array, clauses: pa.Array) -> Iterator[tuple[int, bytes]]:
    """Pairs, whose rows of the table are addresses in any order, as the index of each file and its pairs, packed."""
    order = pc.sort_indices(addresses)
    addresses, rows, clauses = (column.take(order) for column in (addresses, rows, clauses))
    for index, start, end in split_by_file(addresses):
        positions = pc.bit_wise_and(addresses[start:end], _ALL_BITS)
        yield index, pack_pairs(pa.table([positions, rows[start:end], clauses[start:end]], schema=PAIRS))


def united_pairs(parts: list[bytes]) -> bytes:
    """The pairs of one file that several tasks have packed."""
    return parts[0] if len(parts) == 1 else pack_pairs(pa.concat_tables([unpack_pairs(part) for part in parts]))


def whole(values: pa.ChunkedArray) -> pa.Array:
    """The values in one array."""
    if values.num_chunks == 1:
        return values.chunk(0)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
