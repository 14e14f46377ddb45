"""A checkpoint, read in whatever shape others wrote it.

Reading is by column: a million adds become a few Arrow columns and no Python object each. The invariant: a column that
is missing is null; a checkpoint that lacks what every checkpoint holds is corrupt, and is never taken for a small
table.
Source: protocol, "Checkpoints" and "Checkpoint Schema".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.engine.log.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_txlog.engine.log.checkpoints.schema import CHECKPOINT, wire_name
from airflow_txlog.engine.log.columns import DELETION_VECTOR, FILES, TOMBSTONES
from airflow_txlog.engine.log.parsed_statistics import statistics_json
from airflow_txlog.engine.log.segment import CheckpointFiles
from airflow_txlog.engine.store.base import Store
from airflow_txlog.errors import CorruptCheckpoint, UnsupportedFeature

_BATCH_ROWS = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContent:
    """What a checkpoint holds: the reconciled state of its version."""

    protocol: Protocol
    metadata: Metadata
    transactions: dict[str, SetTransaction]
    domains: dict[str, DomainMetadata]
    adds: pa.Table
    """Schema FILES."""
    removes: pa.Table
    """Schema TOMBSTONES."""


@dataclass(slots=True)
class _Found:
    """What the files of one checkpoint hold, gathered batch by batch."""

    protocols: list[Protocol] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    transactions: list[SetTransaction] = field(default_factory=list)
    domains: list[DomainMetadata] = field(default_factory=list)
    adds: list[pa.RecordBatch] = field(default_factory=list)
    removes: list[pa.RecordBatch] = field(default_factory=list)


def read_checkpoint(store: Store, checkpoint: CheckpointFiles) -> CheckpointContent:
    """The content of a classic or multi-part checkpoint, rows in the order of its files.

    Statistics kept as a struct alone come back as JSON. Raises CorruptCheckpoint (path) for what is not Parquet, has
    wrong types, or lacks protocol, metaData, or the path or size of a file; UnsupportedFeature("v2Checkpoint") for one
    with sidecars under a classic name; FileNotFoundError where log cleanup took it since it was listed.
    """
    found = _Found()
    for info in checkpoint.files:
        try:
            for batch in _batches(store, info.path):
                _gather(batch, found)
        # Arrow's and msgspec's errors, and Python's where a column has another shape than an action.
        except (pa.ArrowException, ValueError, TypeError, OSError) as error:
            if isinstance(error, OSError) and not _is_arrows(error):
                raise
            raise _corrupt(store, info.path, str(error)) from error
        except _V2Error as error:
            raise UnsupportedFeature(
                f"UnsupportedFeature: checkpoint {info.path} of {store.root} keeps its files in sidecars (feature "
                '"v2Checkpoint"), which this engine does not read yet. Nothing was read.',
                table=store.root,
                feature="v2Checkpoint",
                needed_to="read",
            ) from error
    first = checkpoint.files[0].path
    for name, actions in (("protocol", found.protocols), ("metaData", found.metadata)):
        if len(actions) != 1:
            raise _corrupt(
                store, first, f"it holds {len(actions)} {name} actions, and every checkpoint holds exactly one"
            )
    return CheckpointContent(
        protocol=found.protocols[0],
        metadata=found.metadata[0],
        transactions={each.app_id: each for each in found.transactions},
        domains={each.domain: each for each in found.domains if not each.removed},
        adds=pa.Table.from_batches(found.adds, FILES),
        removes=pa.Table.from_batches(found.removes, TOMBSTONES),
    )


def _is_arrows(error: OSError) -> bool:
    """Whether Arrow says so of the bytes. A store that does not answer must never pass for a corrupt checkpoint: the
    message would tell people to delete it."""
    return type(error) is OSError and error.errno is None


class _V2Error(Exception):
    """The file is the top level of a V2 checkpoint."""


def _batches(store: Store, path: str) -> Iterator[pa.RecordBatch]:
    """The checkpoint in slices, of its columns only those that are used: `stats_parsed` may be most of the file."""
    with store.open_input(path) as source:
        file = pq.ParquetFile(source)
        schema = file.schema_arrow
        for known in CHECKPOINT.names:
            # Only members are asked for below: a column of another shape would read as one with no rows.
            if known in schema.names and not pa.types.is_struct(schema.field(known).type):
                raise pa.ArrowInvalid(f"column {known} is no struct")
        columns = ["protocol", "metaData", "txn", "domainMetadata", "sidecar.path"]
        columns += [f"add.{wire_name(name)}" for name in FILES.names]
        columns += [f"remove.{wire_name(name)}" for name in TOMBSTONES.names]
        if "add" in schema.names and _has_field(schema.field("add").type, "stats_parsed"):
            columns += _statistics_columns(file)
        yield from file.iter_batches(_BATCH_ROWS, columns=columns)


def _statistics_columns(file: pq.ParquetFile) -> list[str]:
    """The struct statistics, where a row group has an add without the JSON form; reading both doubles the work."""
    stats = next((i for i in range(len(file.schema)) if file.schema.column(i).path == "add.stats"), None)
    path = next((i for i in range(len(file.schema)) if file.schema.column(i).path == "add.path"), None)
    if stats is None or path is None:
        return ["add.stats_parsed"]
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        has, of = group.column(stats).statistics, group.column(path).statistics
        if has is None or of is None or has.num_values < of.num_values:
            return ["add.stats_parsed"]
    return []


def _gather(batch: pa.RecordBatch, found: _Found) -> None:
    if _valid(batch, "sidecar") is not None:
        raise _V2Error
    adds = _valid(batch, "add")
    if adds is not None:
        found.adds.append(_file_columns(adds, FILES))
    removes = _valid(batch, "remove")
    if removes is not None:
        found.removes.append(_file_columns(removes, TOMBSTONES))
    found.protocols += [_protocol(row) for row in _rows(batch, "protocol")]
    found.metadata += [_metadata(row) for row in _rows(batch, "metaData")]
    found.transactions += [msgspec.convert(row, SetTransaction) for row in _rows(batch, "txn")]
    found.domains += [msgspec.convert(row, DomainMetadata) for row in _rows(batch, "domainMetadata")]


def _valid(batch: pa.RecordBatch, name: str) -> pa.StructArray | None:
    """The rows that hold this action, or None where there is none."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    if column.null_count == len(column):
        return None
    return column if not column.null_count else column.filter(column.is_valid())


def _file_columns(rows: pa.StructArray, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [_column(rows, target) for target in schema]
    if schema is FILES:
        position = schema.get_field_index("stats")
        arrays[position] = _statistics(rows, arrays[position])
    batch = pa.record_batch(arrays, schema=schema)
    for name in ("path", *(("size",) if schema is FILES else ())):
        if batch.column(name).null_count:
            raise pa.ArrowInvalid(f"a file action has no {name}")
    return batch


def _column(rows: pa.StructArray, target: pa.Field) -> pa.Array:
    name = wire_name(target.name)
    if not _has_field(rows.type, name):
        return pa.nulls(len(rows), target.type)
    column = rows.field(name)
    if target.type == DELETION_VECTOR:
        children = [_column(column, each) for each in DELETION_VECTOR]
        return pa.StructArray.from_arrays(children, fields=list(DELETION_VECTOR), mask=column.is_null())
    return column if column.type == target.type else column.cast(target.type)


def _statistics(rows: pa.StructArray, stats: pa.Array) -> pa.Array:
    if not stats.null_count or not _has_field(rows.type, "stats_parsed"):
        return stats
    return pc.coalesce(stats, statistics_json(rows.field("stats_parsed")))


def _has_field(struct: pa.DataType, name: str) -> bool:
    return bool(struct.get_field_index(name) >= 0)


def _rows(batch: pa.RecordBatch, name: str) -> list[dict[str, Any]]:
    """The few rows of an action that is no file's, as plain dicts, without what is null."""
    found = _valid(batch, name)
    if found is None:
        return []
    return [{key: value for key, value in row.items() if value is not None} for row in found.to_pylist()]


def _protocol(row: dict[str, Any]) -> Protocol:
    protocol = msgspec.convert(row, Protocol)
    # Some writers put an empty list where the protocol demands null.
    reader = protocol.reader_features if protocol.min_reader_version >= 3 else None
    writer = protocol.writer_features if protocol.min_writer_version >= 7 else None
    return msgspec.structs.replace(protocol, reader_features=reader, writer_features=writer)


def _metadata(row: dict[str, Any]) -> Metadata:
    row["configuration"] = dict(row.get("configuration") or ())
    kind = row.get("format") or {}
    row["format"] = {"provider": kind.get("provider") or "parquet", "options": dict(kind.get("options") or ())}
    return msgspec.convert(row, Metadata)


def _corrupt(store: Store, path: str, why: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"CorruptCheckpoint: {path} of {store.root} cannot be read: {why}. Nothing was changed. Where the commits "
        "before it or an older checkpoint still exist, deleting the file lets the table be read from them.",
        table=store.root,
        path=path,
    )
