"""The Arrow form of file actions: what a snapshot and a checkpoint hold of a million files.

The columns are the wire's fields as written: paths stay encoded, partition values stay strings, statistics stay JSON.
Whatever is typed is derived elsewhere, on demand, so that nothing the log said is lost on the way to the next
checkpoint or remove (soundness B8). Conversions walk column by column: never a dict a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain, pairwise, repeat
from typing import Any

import pyarrow as pa

from airflow_txlog.engine.log.actions import Add, DeletionVector, Remove
from airflow_txlog.storage.limits import USUAL

STRING_MAP = pa.map_(pa.string(), pa.string())

DELETION_VECTOR = pa.struct(
    [
        ("storage_type", pa.string()),
        ("path_or_inline_dv", pa.string()),
        ("offset", pa.int32()),
        ("size_in_bytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)

FILES = pa.schema(
    [
        ("path", pa.string()),
        ("partition_values", STRING_MAP),
        ("size", pa.int64()),
        ("modification_time", pa.int64()),
        ("stats", pa.string()),
        ("tags", STRING_MAP),
        ("deletion_vector", DELETION_VECTOR),
        ("base_row_id", pa.int64()),
        ("default_row_commit_version", pa.int64()),
        ("clustering_provider", pa.string()),
    ]
)

TOMBSTONES = pa.schema(
    [
        ("path", pa.string()),
        ("deletion_timestamp", pa.int64()),
        ("data_change", pa.bool_()),
        ("extended_file_metadata", pa.bool_()),
        ("partition_values", STRING_MAP),
        ("size", pa.int64()),
        ("deletion_vector", DELETION_VECTOR),
        ("base_row_id", pa.int64()),
        ("default_row_commit_version", pa.int64()),
    ]
)

_StringMap = dict[str, str | None]


def adds_to_table(adds: Sequence[Add]) -> pa.Table:
    """The adds as a table of schema FILES, in the same order. `data_change` is left behind: it belongs to a commit."""
    return pa.table(
        [
            pa.array([add.path for add in adds], pa.string()),
            _map_array([add.partition_values for add in adds]),
            pa.array([add.size for add in adds], pa.int64()),
            pa.array([add.modification_time for add in adds], pa.int64()),
            pa.array([add.stats for add in adds], pa.string()),
            _map_array([add.tags for add in adds]),
            _vector_array([add.deletion_vector for add in adds]),
            _often_absent([add.base_row_id for add in adds], pa.int64()),
            _often_absent([add.default_row_commit_version for add in adds], pa.int64()),
            _often_absent([add.clustering_provider for add in adds], pa.string()),
        ],
        schema=FILES,
    )


def removes_to_table(removes: Sequence[Remove]) -> pa.Table:
    """The removes as a table of schema TOMBSTONES, in the same order."""
    return pa.table(
        [
            pa.array([remove.path for remove in removes], pa.string()),
            pa.array([remove.deletion_timestamp for remove in removes], pa.int64()),
            pa.array([remove.data_change for remove in removes], pa.bool_()),
            pa.array([remove.extended_file_metadata for remove in removes], pa.bool_()),
            _map_array([remove.partition_values for remove in removes]),
            pa.array([remove.size for remove in removes], pa.int64()),
            _vector_array([remove.deletion_vector for remove in removes]),
            _often_absent([remove.base_row_id for remove in removes], pa.int64()),
            _often_absent([remove.default_row_commit_version for remove in removes], pa.int64()),
        ],
        schema=TOMBSTONES,
    )


def table_to_adds(files: pa.Table, data_change: bool) -> list[Add]:
    """The rows of a FILES table as add actions of one commit, in the same order."""
    rows = zip(
        _values(files, "path"),
        _maps(files, "partition_values"),
        _values(files, "size"),
        _values(files, "modification_time"),
        _values(files, "stats"),
        _maps(files, "tags"),
        _vectors(files),
        _values(files, "base_row_id"),
        _values(files, "default_row_commit_version"),
        _values(files, "clustering_provider"),
        strict=True,
    )
    return [
        Add(
            path=path,
            partition_values=partition_values or {},
            size=size,
            modification_time=modification_time,
            data_change=data_change,
            stats=stats,
            tags=tags,
            deletion_vector=vector,
            base_row_id=base_row_id,
            default_row_commit_version=row_commit_version,
            clustering_provider=clustering_provider,
        )
        for (
            path,
            partition_values,
            size,
            modification_time,
            stats,
            tags,
            vector,
            base_row_id,
            row_commit_version,
            clustering_provider,
        ) in rows
    ]


def table_to_removes(files: pa.Table, deletion_timestamp: int, data_change: bool) -> list[Remove]:
    """What removes the rows of a FILES table, in the same order: everything that a tombstone may know of its file.

    `deletion_timestamp` is in milliseconds since the epoch, one for the whole commit.
    """
    rows = zip(
        _values(files, "path"),
        _maps(files, "partition_values"),
        _values(files, "size"),
        _maps(files, "tags"),
        _vectors(files),
        _values(files, "base_row_id"),
        _values(files, "default_row_commit_version"),
        strict=True,
    )
    return [
        Remove(
            path=path,
            data_change=data_change,
            deletion_timestamp=deletion_timestamp,
            extended_file_metadata=True,
            partition_values=partition_values or {},
            size=size,
            tags=tags,
            deletion_vector=vector,
            base_row_id=base_row_id,
            default_row_commit_version=row_commit_version,
        )
        for path, partition_values, size, tags, vector, base_row_id, row_commit_version in rows
    ]


def nulls(count: int, data_type: pa.DataType) -> pa.Array:
    """So many nulls. Up to 131,072 of them share one block of memory: most tables leave half of the columns empty."""
    return _null_block(data_type).slice(0, count) if count <= _NULL_BLOCK else pa.nulls(count, data_type)


_NULL_BLOCK = 131_072


@cache
def _null_block(data_type: pa.DataType) -> pa.Array:
    return pa.nulls(_NULL_BLOCK, data_type)


# --- Python values to columns ---------------------------------------------------------------------------------------


def _all_absent(values: Sequence[Any]) -> bool:
    return values.count(None) == len(values)


def _often_absent(values: list[Any], data_type: pa.DataType) -> pa.Array:
    return nulls(len(values), data_type) if _all_absent(values) else pa.array(values, data_type)


def _map_array(maps: list[_StringMap] | list[_StringMap | None]) -> pa.Array:
    if not any(maps) and None not in maps:
        return pa.MapArray.from_arrays([0] * (len(maps) + 1), pa.array([], pa.string()), pa.array([], pa.string()))
    if _all_absent(maps):
        return nulls(len(maps), STRING_MAP)
    ends: list[int | None] = list(accumulate([len(entry) if entry else 0 for entry in maps], initial=0))
    if None in maps:
        # A null where a row's offset should stand makes the row null; the last offset belongs to no row.
        ends = [None if entry is None else start for entry, start in zip(maps, ends[:-1], strict=True)] + ends[-1:]
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.array(list(chain.from_iterable(entry for entry in maps if entry)), pa.string()),
        pa.array(list(chain.from_iterable(entry.values() for entry in maps if entry)), pa.string()),
    )


def _vector_array(vectors: list[DeletionVector | None]) -> pa.Array:
    if _all_absent(vectors):
        return nulls(len(vectors), DELETION_VECTOR)
    fields = [field.name for field in DELETION_VECTOR]
    return pa.array(
        [None if vector is None else {name: getattr(vector, name) for name in fields} for vector in vectors],
        DELETION_VECTOR,
    )


# --- columns to Python values ---------------------------------------------------------------------------------------


def _values(table: pa.Table, name: str) -> list[Any]:
    values: list[Any] = table.column(name).to_pylist()
    return values


def _maps(table: pa.Table, name: str) -> Iterator[_StringMap | None]:
    column = table.column(name)
    if column.null_count == len(column):
        return repeat(None, len(column))
    return chain.from_iterable(map(_chunk_maps, column.chunks))


def _chunk_maps(chunk: pa.MapArray) -> list[_StringMap | None]:
    # `to_pylist` of a map makes a list of tuples a row, ten times slower than slicing two flat lists. The offsets of a
    # slice point into the whole children.
    offsets = chunk.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    keys = chunk.keys.slice(first, last - first).to_pylist()
    items = chunk.items.slice(first, last - first).to_pylist()
    return [
        dict(zip(keys[start - first : end - first], items[start - first : end - first], strict=True))
        if is_valid
        else None
        for (start, end), is_valid in zip(pairwise(offsets), chunk.is_valid().to_pylist(), strict=True)
    ]


def _vectors(table: pa.Table) -> Iterator[DeletionVector | None]:
    column = table.column("deletion_vector")
    if column.null_count == len(column):
        return repeat(None, len(column))
    return (None if value is None else DeletionVector(**value) for value in column.to_pylist())


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
