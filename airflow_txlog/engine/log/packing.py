"""A batch of file actions with its statistics compressed: of a large table they are most of the memory.

Statistics are asked for by few questions, and then for some files only; everything else of a file is at hand. The
invariant: `full` gives back what was packed, to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.engine.log.columns import FILES, nulls
from airflow_txlog.storage.limits import USUAL

_STATS = FILES.get_field_index("stats")
_SCHEMA = pa.schema([FILES.field(_STATS)])


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PackedBatch:
    """Rows of a FILES table, or of another one, which has nothing to pack. Equal to itself alone."""

    light: pa.RecordBatch
    """All columns; but null for the statistics where these are packed."""
    packed: pa.Buffer | None = None
    """The statistics as a compressed Arrow stream; None where `light` has them."""

    def full(self) -> pa.RecordBatch:
        """All columns, the statistics among them."""
        if self.packed is None:
            return self.light
        with pa.ipc.open_stream(self.packed) as reader:
            stats = reader.read_next_batch().column(0)
        return with_statistics(self.light, stats)


def pack(batch: pa.RecordBatch, least_bytes: int = USUAL.packed_bytes) -> PackedBatch:
    """Return the batch, with its statistics compressed if they have so many bytes."""
    if batch.schema is not FILES and batch.schema != FILES:
        return PackedBatch(batch)
    stats = batch.column(_STATS)
    if stats.nbytes < least_bytes or not pa.Codec.is_available("lz4"):
        return PackedBatch(batch)
    sink = pa.BufferOutputStream()
    # One thread: a process that opens many tables uses the others.
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, _SCHEMA, options=options) as writer:
        writer.write_batch(pa.record_batch([stats], schema=_SCHEMA))
    return PackedBatch(with_statistics(batch, nulls(batch.num_rows, pa.string())), sink.getvalue())


def with_statistics(batch: pa.RecordBatch, stats: pa.Array) -> pa.RecordBatch:
    """The batch of schema FILES with another column of statistics."""
    columns = list(batch.columns)
    columns[_STATS] = stats
    return pa.record_batch(columns, schema=FILES)
