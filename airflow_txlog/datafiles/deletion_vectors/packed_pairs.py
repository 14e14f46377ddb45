"""Pairs of rows as they travel: for each file of the table a few bytes a pair, in the place of a row of a table.

A pair is a row of a file, by its position, and the row of a job's source that it met; beside it stands the clause that
acts on it, if one does. Positions go as the steps between them, source rows as 32-bit ordinals and the part that they
are of, all of it compressed. The invariant: what was packed comes back, in the order of positions and source rows.
Source: docs/decisions/positions-not-rows.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import MAX_POSITION, POSITION_BITS, split_by_file

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
