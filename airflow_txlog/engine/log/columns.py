"""The Arrow form of file actions, for snapshots and checkpoints of a million files.

The columns are the wire's fields as written: paths stay encoded, partition values stay strings, statistics stay JSON.
Typed forms are derived elsewhere, on demand, so that the next checkpoint or remove repeats the log without loss
(soundness B8). Conversions go column by column: never a dict per row. Statistics of a large table are most of its
memory and few questions need them, so they can be packed; unpacked they are the same to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain, pairwise, repeat
from operator import attrgetter
from typing import Any

import pyarrow as pa

from airflow_txlog.engine.log.actions import Add, DeletionVector, Remove
from airflow_txlog.storage.limits import USUAL, Limits

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


@cache
def no_files() -> pa.Table:
    """Return a table FILES without rows. Arrow takes most of a millisecond to make one."""
    return FILES.empty_table()


def adds_to_table(adds: Sequence[Add]) -> pa.Table:
    """Return the adds as a table of schema FILES, in the same order, without `dataChange`: it belongs to a commit."""
    return _table(adds, FILES)


def removes_to_table(removes: Sequence[Remove]) -> pa.Table:
    """Return the removes as a table of schema TOMBSTONES, in the same order."""
    return _table(removes, TOMBSTONES)


def _table(actions: Sequence[Add] | Sequence[Remove], schema: pa.Schema) -> pa.Table:
    return pa.table([_array(list(map(attrgetter(each.name), actions)), each.type) for each in schema], schema=schema)


def table_to_adds(files: pa.Table, data_change: bool) -> list[Add]:
    """Return the rows of a FILES table as add actions of one commit, in the same order."""
    return [
        Add(
            path=path,
            partition_values=partition or {},
            size=size,
            modification_time=modified,
            data_change=data_change,
            stats=stats,
            tags=tags,
            deletion_vector=vector,
            base_row_id=row_id,
            default_row_commit_version=version,
            clustering_provider=provider,
        )
        for path, partition, size, modified, stats, tags, vector, row_id, version, provider in _rows(files, FILES.names)
    ]


def table_to_removes(files: pa.Table, deletion_timestamp: int, data_change: bool) -> list[Remove]:
    """Return the actions that remove the rows of a FILES table, in the same order, stamped in epoch milliseconds."""
    kept = [name for name in FILES.names if name not in ("modification_time", "stats", "clustering_provider")]
    return [
        Remove(
            path=path,
            data_change=data_change,
            deletion_timestamp=deletion_timestamp,
            extended_file_metadata=True,
            partition_values=partition or {},
            size=size,
            tags=tags,
            deletion_vector=vector,
            base_row_id=row_id,
            default_row_commit_version=version,
        )
        for path, partition, size, tags, vector, row_id, version in _rows(files, kept)
    ]


def nulls(count: int, data_type: pa.DataType) -> pa.Array:
    """Return an array of nulls. Up to 131,072 share one block of memory: most tables leave half the columns empty."""
    return _null_block(data_type).slice(0, count) if count <= _NULL_BLOCK else pa.nulls(count, data_type)


_NULL_BLOCK = 131_072


@cache
def _null_block(data_type: pa.DataType) -> pa.Array:
    return pa.nulls(_NULL_BLOCK, data_type)


# --- Python values to columns ---------------------------------------------------------------------------------------


def _array(values: list[Any], data_type: pa.DataType) -> pa.Array:
    if values.count(None) == len(values):
        return nulls(len(values), data_type)
    if data_type == STRING_MAP:
        return _map_array(values)
    if data_type == DELETION_VECTOR:
        names = [each.name for each in DELETION_VECTOR]
        values = [value and {name: getattr(value, name) for name in names} for value in values]
    return pa.array(values, data_type)


def _map_array(maps: list[_StringMap] | list[_StringMap | None]) -> pa.Array:
    if not any(maps) and None not in maps:
        return pa.MapArray.from_arrays([0] * (len(maps) + 1), pa.array([], pa.string()), pa.array([], pa.string()))
    ends: list[int | None] = list(accumulate([len(entry) if entry else 0 for entry in maps], initial=0))
    if None in maps:
        # A null offset makes its row null; the last offset belongs to no row.
        ends = [None if entry is None else start for entry, start in zip(maps, ends[:-1], strict=True)] + ends[-1:]
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.array(list(chain.from_iterable(entry for entry in maps if entry)), pa.string()),
        pa.array(list(chain.from_iterable(entry.values() for entry in maps if entry)), pa.string()),
    )


# --- columns to Python values ---------------------------------------------------------------------------------------


def _rows(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(_values(table.column(name)) for name in names), strict=True)


def _values(column: pa.ChunkedArray) -> Iterable[Any]:
    if column.null_count == len(column):
        return repeat(None, len(column))
    if column.type == STRING_MAP:
        return chain.from_iterable(map(_chunk_maps, column.chunks))
    values: list[Any] = column.to_pylist()
    if column.type == DELETION_VECTOR:
        return [value and DeletionVector(**value) for value in values]
    return values


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


# --- compressed columns: of a large table they are most of the memory ------------------------------------------------

_PATHS_AND_STATISTICS = ("path", "stats")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PackedBatch:
    """Rows of a FILES table with packed statistics and maybe paths, or of any table as it is. Equal only to itself."""

    light: pa.RecordBatch
    """All columns; but null where they are packed."""
    packed: pa.Buffer | None = None
    """The packed columns as a compressed Arrow stream; None if `light` has all."""

    def with_paths(self) -> pa.RecordBatch:
        """Return all columns but packed statistics."""
        return self._with(["path"]) if self.light.column(0).null_count else self.light

    def full(self) -> pa.RecordBatch:
        """Return all columns, the statistics included, to the byte as they were packed."""
        return self.light if self.packed is None else self._with(_PATHS_AND_STATISTICS)

    def _with(self, names: Sequence[str]) -> pa.RecordBatch:
        with pa.ipc.open_stream(self.packed) as reader:
            wanted = [number for number, name in enumerate(reader.schema.names) if name in names]
        options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
        with pa.ipc.open_stream(self.packed, options=options) as reader:
            unpacked = reader.read_next_batch()
        return _with_columns(self.light, dict(zip(unpacked.schema.names, unpacked.columns, strict=True)))


def pack(batch: pa.RecordBatch, least_bytes: int = USUAL.packed_bytes, *, packs_paths: bool = False) -> PackedBatch:
    """Return the batch, with its statistics compressed if they have `least_bytes`, and with them its paths if asked."""
    if batch.schema is not FILES and batch.schema != FILES:
        return PackedBatch(batch)
    if batch.column("stats").nbytes < least_bytes or not pa.Codec.is_available("zstd"):
        return PackedBatch(batch)
    columns = batch.select(list(_PATHS_AND_STATISTICS if packs_paths else _PATHS_AND_STATISTICS[1:]))
    sink = pa.BufferOutputStream()
    # At this level it takes as long as lz4, and half of the memory. One thread: a process that opens many tables uses
    # the other cores.
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
    with pa.ipc.new_stream(sink, columns.schema, options=options) as writer:
        writer.write_batch(columns)
    # The stream's own memory is up to twice as large as its content.
    packed = pa.py_buffer(sink.getvalue().to_pybytes())
    empty = {name: nulls(batch.num_rows, pa.string()) for name in columns.schema.names}
    return PackedBatch(_with_columns(batch, empty), packed)


class Packing:
    """Packs the batches of one table in turn: their statistics, and the paths beyond the first `plain_paths` files."""

    def __init__(self, limits: Limits = USUAL, num_files: int = 0) -> None:
        self._limits = limits
        self.num_files = num_files
        """How many files the table has so far."""

    def __call__(self, batch: pa.RecordBatch) -> PackedBatch:
        self.num_files += batch.num_rows
        packs_paths = self.num_files > self._limits.plain_paths
        return pack(batch, self._limits.packed_bytes, packs_paths=packs_paths)


def _with_columns(batch: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    return pa.record_batch([columns.get(field.name, batch.column(field.name)) for field in FILES], schema=FILES)
