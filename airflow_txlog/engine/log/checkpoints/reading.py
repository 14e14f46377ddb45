"""A checkpoint, read: classic, in parts, or V2 with its sidecars.

The invariant: all of it is read or none. A file that is damaged, or a sidecar that is missing or has another size
than its top level says, makes the checkpoint corrupt; it is never taken for a small table.
Source: protocol, "Checkpoints", "V2 Spec" and "Checkpoint Schema".
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.actions import Add, DomainMetadata, Metadata, Protocol, Remove, SetTransaction
from airflow_txlog.engine.log.checkpoints.bounded import Decoded
from airflow_txlog.engine.log.checkpoints.rows import Gathered, gather, gather_files, gather_metadata, gather_sidecars
from airflow_txlog.engine.log.checkpoints.schema import CheckpointMetadata, Sidecar, sidecar_path
from airflow_txlog.engine.log.columns import FILES, TOMBSTONES, adds_to_table, removes_to_table
from airflow_txlog.engine.log.names import LogKind, parse_name
from airflow_txlog.engine.log.segment import CheckpointFiles
from airflow_txlog.errors import CorruptCheckpoint
from airflow_txlog.storage.base import Store, is_about_bytes
from airflow_txlog.storage.limits import LOG_LINE


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


def check_top_level(store: Store, checkpoint: CheckpointFiles, found: Gathered) -> None:
    """Raises CorruptCheckpoint unless the top level has each action that it must have, once, and is of its version."""
    needed = {"protocol": len(found.protocols), "metaData": len(found.metadata)}
    name = parse_name(checkpoint.path)
    # Under a classic name both kinds occur, and only one with sidecars must be a V2 checkpoint.
    if found.sidecars or found.checkpoint_metadata or (name is not None and name.kind is LogKind.V2_CHECKPOINT):
        needed["checkpointMetadata"] = len(found.checkpoint_metadata)
    for action, count in needed.items():
        if count != 1:
            why = f"it holds {count} {action} actions, and every such checkpoint holds one"
            # JSON that was cut between two lines reads well too.
            raise corrupt(store, checkpoint.path, why, damaged=checkpoint.path.endswith(".json"))
    for each in found.checkpoint_metadata:
        if each.version != checkpoint.version:
            raise corrupt(store, checkpoint.path, f"it says that it is of version {each.version}")


def content_of(store: Store, checkpoint: CheckpointFiles, found: Gathered) -> CheckpointContent:
    """What was found, as the state of a version. Raises CorruptCheckpoint where it can be none."""
    adds = pa.Table.from_batches(found.adds, FILES)
    # Files of one writer cannot overlap; parts or sidecars of two that were taken for one set can.
    if len(checkpoint.files) + len(found.sidecars) > 1:
        twice = _added_twice(adds)
        if twice is not None:
            raise corrupt(store, checkpoint.path, f"its files add {twice} more than once")
    metadata = found.metadata[0]
    if metadata.partition_columns and adds.column("partition_values").null_count:
        raise corrupt(store, checkpoint.path, "a file of a partitioned table has no partition values")
    return CheckpointContent(
        protocol=found.protocols[0],
        metadata=metadata,
        transactions={each.app_id: each for each in found.transactions},
        domains={each.domain: each for each in found.domains if not each.removed},
        adds=adds,
        removes=pa.Table.from_batches(found.removes, TOMBSTONES),
    )


def _added_twice(adds: pa.Table) -> str | None:
    """The path of a file, known by path and deletion vector, that is there more than once; None where each is once."""
    paths = adds.column("path")
    if pc.count_distinct(paths).as_py() == len(paths):
        return None
    seen: set[tuple[object, ...]] = set()
    for row in adds.select(["path", "deletion_vector"]).to_pylist():
        vector = row["deletion_vector"] or {}
        key = (row["path"], *(vector.get(name) for name in ("storage_type", "path_or_inline_dv", "offset")))
        if key in seen:
            return str(row["path"])
        seen.add(key)
    return None


def corrupt(store: Store, path: str, why: str, *, damaged: bool = True) -> CorruptCheckpoint:
    """The error of one unusable file of a checkpoint; `damaged=False` where it reads well and breaks the protocol."""
    return CorruptCheckpoint(
        f"CorruptCheckpoint: {path} of {store.root} cannot be read: {why}. Nothing was changed. Where the commits "
        "before it or an older checkpoint still exist, deleting the file lets the table be read from them.",
        table=store.root,
        path=path,
        damaged=damaged,
    )


@contextmanager
def corrupt_where_unreadable(store: Store, path: str) -> Iterator[None]:
    """What reading bytes that are no checkpoint raises becomes CorruptCheckpoint.

    A file that is gone, and an error of the store itself, stay what they are: another attempt may succeed.
    """
    try:
        yield
    except CorruptCheckpoint:
        raise
    except OSError as error:
        if not is_about_bytes(error):
            raise
        raise corrupt(store, path, str(error)) from error
    # Arrow's and msgspec's errors, and Python's where a column has another shape than an action.
    except (pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise corrupt(store, path, f"{type(error).__name__}: {error}") from error


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
