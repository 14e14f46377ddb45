"""A checkpoint, read: classic, in parts, or V2 with its sidecars.

The invariant: all of it is read or none. A file that is damaged, or a sidecar that is missing or has another size
than its top level says, makes the checkpoint corrupt; it is never taken for a small table.
Source: protocol, "Checkpoints", "V2 Spec" and "Checkpoint Schema".
"""

from __future__ import annotations

import io
from collections.abc import Callable

import msgspec
import pyarrow as pa

from airflow_txlog.engine.log.actions import Add, DomainMetadata, Metadata, Protocol, Remove, SetTransaction
from airflow_txlog.engine.log.checkpoints.bounded import Decoded
from airflow_txlog.engine.log.checkpoints.content import (
    CheckpointContent,
    Gathered,
    check_top_level,
    content_of,
    corrupt,
    corrupt_where_unreadable,
)
from airflow_txlog.engine.log.checkpoints.rows import gather, gather_files, gather_metadata, gather_sidecars
from airflow_txlog.engine.log.checkpoints.sidecar import CheckpointMetadata, Sidecar, sidecar_path
from airflow_txlog.engine.log.columns import adds_to_table, removes_to_table
from airflow_txlog.engine.log.listing import CheckpointFiles
from airflow_txlog.storage.base import Store
from airflow_txlog.storage.limits import LOG_LINE


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One line of a top level in JSON: one of these is set, or none where the action is unknown."""

    add: Add | None = None
    remove: Remove | None = None
    metaData: Metadata | None = None
    protocol: Protocol | None = None
    txn: SetTransaction | None = None
    domainMetadata: DomainMetadata | None = None
    checkpointMetadata: CheckpointMetadata | None = None
    sidecar: Sidecar | None = None


_decoder = msgspec.json.Decoder(_Line)


def read_checkpoint(
    store: Store, checkpoint: CheckpointFiles, keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
) -> CheckpointContent:
    """The content of a checkpoint of any kind, rows in the order of its files.

    `keep` is given every batch of adds as it is read, and returns what shall stay of it in memory.

    Statistics and partition values kept as structs alone come back as the log writes them. Raises CorruptCheckpoint
    (path) for what is neither Parquet nor JSON, has wrong types, lacks protocol, metaData, or the path or size of a
    file, is of another version than its name, names a sidecar that is not there or not as long as it says, or whose
    parts hold one file twice; LimitExceeded; FileNotFoundError where log cleanup took it since it was listed.
    """
    found = Gathered(keep=keep)
    decoded = Decoded(checkpoint.path, store.root, store.is_remote)
    _gather_top_level(store, checkpoint, found, decoded, gather)
    check_top_level(store, checkpoint, found)
    for sidecar in found.sidecars:
        _read_sidecar(store, checkpoint, sidecar, found, decoded)
    return content_of(store, checkpoint, found)


def read_metadata(store: Store, checkpoint: CheckpointFiles) -> Metadata:
    """The metadata that a checkpoint holds, without its files: of Parquet only the columns that describe the table.

    Raises CorruptCheckpoint (path) for what cannot be read or lacks an action that every checkpoint has,
    FileNotFoundError where it is gone.
    """
    found = Gathered()
    _gather_top_level(store, checkpoint, found, Decoded(checkpoint.path, store.root, store.is_remote), gather_metadata)
    check_top_level(store, checkpoint, found)
    return found.metadata[0]


def sidecars_of(store: Store, checkpoint: CheckpointFiles) -> tuple[str, ...]:
    """Paths, relative to the table, of the sidecars that a checkpoint refers to; none for a classic one.

    Reads the top level only, and of Parquet only the columns that name sidecars. What deletes sidecars must keep
    those of every checkpoint that stays, and must delete none where this raises: CorruptCheckpoint (path) for what
    cannot be read, FileNotFoundError where the checkpoint is gone.
    """
    found = Gathered()
    _gather_top_level(store, checkpoint, found, Decoded(checkpoint.path, store.root, store.is_remote), gather_sidecars)
    with corrupt_where_unreadable(store, checkpoint.path):
        return tuple(sidecar_path(each, store.root) for each in found.sidecars)


def _gather_top_level(
    store: Store,
    checkpoint: CheckpointFiles,
    found: Gathered,
    decoded: Decoded,
    gather_parquet: Callable[[pa.NativeFile, Gathered, Decoded], None],
) -> None:
    """Add to `found` what the files that listing gave hold: all of JSON, of Parquet what `gather_parquet` reads."""
    for info in checkpoint.files:
        with corrupt_where_unreadable(store, info.path):
            if info.path.endswith(".json"):
                _gather_json(store.read(info.path), info.path, found)
            else:
                with store.open_input(info.path) as source:
                    gather_parquet(source, found, decoded)


def _gather_json(data: bytes, path: str, found: Gathered) -> None:
    LOG_LINE.check_lines(data, path)
    # The decoder does not look into the strings that it skips; a file that is not UTF-8 is corrupt all the same.
    if not data.isascii():
        data.decode("utf-8")
    lines = _decoder.decode_lines(data)
    adds = [line.add for line in lines if line.add is not None]
    removes = [line.remove for line in lines if line.remove is not None]
    for batch in adds_to_table(adds).to_batches() if adds else []:
        found.add_files(batch)
    found.removes += removes_to_table(removes).to_batches() if removes else []
    found.protocols += [line.protocol for line in lines if line.protocol is not None]
    found.metadata += [line.metaData for line in lines if line.metaData is not None]
    found.transactions += [line.txn for line in lines if line.txn is not None]
    found.domains += [line.domainMetadata for line in lines if line.domainMetadata is not None]
    found.checkpoint_metadata += [line.checkpointMetadata for line in lines if line.checkpointMetadata is not None]
    found.sidecars += [line.sidecar for line in lines if line.sidecar is not None]


def _read_sidecar(
    store: Store, checkpoint: CheckpointFiles, sidecar: Sidecar, found: Gathered, decoded: Decoded
) -> None:
    with corrupt_where_unreadable(store, checkpoint.path):
        path = sidecar_path(sidecar, store.root)
    try:
        with corrupt_where_unreadable(store, path), store.open_input(path) as source:
            size = source.seek(0, io.SEEK_END)
            if size != sidecar.size_in_bytes:
                raise corrupt(
                    store, path, f"it has {size} bytes and {checkpoint.path} says that it has {sidecar.size_in_bytes}"
                )
            source.seek(0)
            gather_files(source, found, decoded)
    except FileNotFoundError as error:
        raise corrupt(store, path, f"it is not there, and {checkpoint.path} refers to it") from error
