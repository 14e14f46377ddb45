"""Reading a checkpoint: classic, in parts, or V2 with its sidecars.

The invariant: a checkpoint is read completely or not at all. A damaged file, a sidecar that is missing or differs in
size from its top level, an action that occurs twice or not at all, or a data file that is live twice makes the
checkpoint corrupt. It never passes for a smaller or larger table.
Source: protocol, "Checkpoints", "V2 Spec", "Checkpoint Schema" and "Action Reconciliation".
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.actions import (
    DomainMetadata,
    Line,
    Metadata,
    Protocol,
    SetTransaction,
    all_of,
    check_text,
)
from airflow_txlog.engine.log.checkpoints.bounded import Decoded
from airflow_txlog.engine.log.checkpoints.rows import (
    DESCRIBING,
    FILE_ACTIONS,
    SIDECARS,
    CheckpointMetadata,
    Gathered,
    Sidecar,
    gather,
    sidecar_path,
)
from airflow_txlog.engine.log.columns import FILES, TOMBSTONES, PackedBatch, adds_to_table, removes_to_table
from airflow_txlog.engine.log.names import LogKind, parse_name
from airflow_txlog.engine.log.segment import CheckpointFiles
from airflow_txlog.errors import CorruptCheckpoint
from airflow_txlog.storage.base import FileInfo, Store, is_about_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContent:
    """The reconciled state of a version, as its checkpoint holds it."""

    protocol: Protocol
    metadata: Metadata
    transactions: dict[str, SetTransaction]
    domains: dict[str, DomainMetadata]
    files: list[PackedBatch]
    """The adds, schema FILES."""
    removes: pa.Table
    """Schema TOMBSTONES."""

    @property
    def adds(self) -> pa.Table:
        """The adds as one table."""
        return pa.Table.from_batches([each.full() for each in self.files], FILES)


def _check_top_level(store: Store, checkpoint: CheckpointFiles, found: Gathered) -> None:
    """Raise CorruptCheckpoint unless the top level has each required action once and is of its version."""
    needed = {"protocol": len(found.protocols), "metaData": len(found.metadata)}
    name = parse_name(checkpoint.path)
    # Under a classic name both kinds occur, and only one with sidecars must be a V2 checkpoint.
    if found.sidecars or found.checkpoint_metadata or (name is not None and name.kind is LogKind.V2_CHECKPOINT):
        needed["checkpointMetadata"] = len(found.checkpoint_metadata)
    for action, count in needed.items():
        if count != 1:
            why = f"it holds {count} {action} actions, and every such checkpoint holds one"
            # JSON that was cut between two lines is readable, too.
            raise _corrupt(store, checkpoint.path, why, damaged=checkpoint.path.endswith(".json"))
    for each in found.checkpoint_metadata:
        if each.version != checkpoint.version:
            raise _corrupt(store, checkpoint.path, f"its content is for version {each.version}")


def _content_of(store: Store, checkpoint: CheckpointFiles, found: Gathered) -> CheckpointContent:
    """Return the gathered actions as the state of a version. Raises CorruptCheckpoint if they cannot be one."""
    # Files of one writer cannot overlap; parts or sidecars of two writers that form one set can.
    if len(checkpoint.files) + len(found.sidecars) > 1:
        twice = _added_twice(found.files)
        if twice is not None:
            raise _corrupt(store, checkpoint.path, f"its files add {twice} more than once")
    metadata = found.metadata[0]
    if metadata.partition_columns and any(each.light.column("partition_values").null_count for each in found.files):
        raise _corrupt(store, checkpoint.path, "a file of a partitioned table has no partition values")
    return CheckpointContent(
        protocol=found.protocols[0],
        metadata=metadata,
        transactions={each.app_id: each for each in found.transactions},
        domains={each.domain: each for each in found.domains if not each.removed},
        files=found.files,
        removes=pa.Table.from_batches(found.removes, TOMBSTONES),
    )


def _added_twice(files: Sequence[PackedBatch]) -> str | None:
    """Return the path of a file (path and deletion vector) that occurs more than once; None without one."""
    if not may_hold_twice(each.with_paths().column("path") for each in files):
        return None
    seen: set[tuple[object, ...]] = set()
    for row in (row for each in files for row in each.with_paths().select(["path", "deletion_vector"]).to_pylist()):
        vector = row["deletion_vector"] or {}
        key = (row["path"], *(vector.get(name) for name in ("storage_type", "path_or_inline_dv", "offset")))
        if key in seen:
            return str(row["path"])
        seen.add(key)
    return None


def may_hold_twice(parts: Iterable[pa.Array]) -> bool:
    """Return whether a text may occur twice: always if one does, and for others once in a hundred thousand times."""
    hashes = array("q")
    for part in parts:
        hashes.extend(map(hash, part.to_pylist()))
    unsorted = pa.Array.from_buffers(pa.int64(), len(hashes), [None, pa.py_buffer(hashes)])
    ascending = unsorted.take(pc.array_sort_indices(unsorted))
    return bool(pc.any(pc.equal(ascending[1:], ascending[:-1]), min_count=0).as_py())


def _corrupt(store: Store, path: str, why: str, *, damaged: bool = True) -> CorruptCheckpoint:
    """Return the error of an unusable file; one that is not `damaged` is readable but breaks the protocol."""
    return CorruptCheckpoint(
        f"CorruptCheckpoint: {path} of {store.root} cannot be read: {why}. Nothing was changed. Where the commits "
        "before it or an older checkpoint still exist, deleting the file lets the table be read from them.",
        table=store.root,
        path=path,
        damaged=damaged,
    )


@contextmanager
def _corrupt_where_unreadable(store: Store, path: str) -> Iterator[None]:
    """Convert errors that bytes cause to CorruptCheckpoint; a missing file and errors of the store stay as they are."""
    try:
        yield
    except CorruptCheckpoint:
        raise
    except OSError as error:
        if not is_about_bytes(error):
            raise
        raise _corrupt(store, path, str(error)) from error
    # Arrow's and msgspec's errors, and Python's for a column with another shape than its action.
    except (pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise _corrupt(store, path, f"{type(error).__name__}: {error}") from error


class _Line(Line, frozen=True):
    """One line of a top level in JSON."""

    checkpointMetadata: CheckpointMetadata | None = None
    sidecar: Sidecar | None = None


_decoder = msgspec.json.Decoder(_Line)


def read_checkpoint(
    store: Store,
    checkpoint: CheckpointFiles,
    pack: Callable[[pa.RecordBatch], PackedBatch] = PackedBatch,
    contents: Mapping[FileInfo, bytes] | None = None,
) -> CheckpointContent:
    """Return the content of a checkpoint of any kind, rows in the order of its files.

    `pack` gets every batch of adds as it is read, and returns its form in memory. `contents`: bytes of listed files
    that were read before. Statistics and partition values that exist only as structs are converted to the log's form.

    Raises CorruptCheckpoint (path) for a damaged or incomplete checkpoint, LimitExceeded, FileNotFoundError if log
    cleanup took it since it was listed.
    """
    found = Gathered(pack=pack)
    decoded = Decoded(store, checkpoint.path)
    _gather_top_level(store, checkpoint, found, decoded, contents=contents or {})
    _check_top_level(store, checkpoint, found)
    for sidecar in found.sidecars:
        _read_sidecar(store, checkpoint, sidecar, found, decoded)
    return _content_of(store, checkpoint, found)


def read_metadata(store: Store, checkpoint: CheckpointFiles) -> Metadata:
    """Return the metadata of a checkpoint without its file actions. Raises CorruptCheckpoint, FileNotFoundError."""
    found = Gathered()
    _gather_top_level(store, checkpoint, found, Decoded(store, checkpoint.path), DESCRIBING)
    _check_top_level(store, checkpoint, found)
    return found.metadata[0]


def sidecars_of(store: Store, checkpoint: CheckpointFiles) -> tuple[str, ...]:
    """Return the paths, relative to the table, of the sidecars that a checkpoint refers to, from its top level alone.

    To delete sidecars, keep those of every checkpoint that stays, and delete none if this raises: CorruptCheckpoint
    (path), FileNotFoundError.
    """
    found = Gathered()
    _gather_top_level(store, checkpoint, found, Decoded(store, checkpoint.path), SIDECARS)
    with _corrupt_where_unreadable(store, checkpoint.path):
        return tuple(sidecar_path(each, store.root) for each in found.sidecars)


def _gather_top_level(
    store: Store,
    checkpoint: CheckpointFiles,
    found: Gathered,
    decoded: Decoded,
    only: Sequence[str] | None = None,
    contents: Mapping[FileInfo, bytes] = MappingProxyType({}),
) -> None:
    """Add the actions of the listed files to `found`: of JSON all, of Parquet those in the columns `only`."""
    for info in checkpoint.files:
        with _corrupt_where_unreadable(store, info.path):
            data = contents.get(info)
            if info.path.endswith(".json"):
                _gather_json(store.read(info.path) if data is None else data, info.path, found)
            else:
                with store.open_input(info.path) if data is None else pa.BufferReader(data) as source:
                    gather(source, found, decoded, only)


def _gather_json(data: bytes, path: str, found: Gathered) -> None:
    check_text(data, path)
    lines = _decoder.decode_lines(data)
    adds, removes = all_of(lines, "add"), all_of(lines, "remove")
    for batch in adds_to_table(adds).to_batches() if adds else []:
        found.add_files(batch)
    found.removes += removes_to_table(removes).to_batches() if removes else []
    found.protocols += all_of(lines, "protocol")
    found.metadata += all_of(lines, "metaData")
    found.transactions += all_of(lines, "txn")
    found.domains += all_of(lines, "domainMetadata")
    found.checkpoint_metadata += all_of(lines, "checkpointMetadata")
    found.sidecars += all_of(lines, "sidecar")


def _read_sidecar(
    store: Store, checkpoint: CheckpointFiles, sidecar: Sidecar, found: Gathered, decoded: Decoded
) -> None:
    with _corrupt_where_unreadable(store, checkpoint.path):
        path = sidecar_path(sidecar, store.root)
    try:
        with _corrupt_where_unreadable(store, path), store.open_input(path) as source:
            size = source.seek(0, io.SEEK_END)
            if size != sidecar.size_in_bytes:
                raise _corrupt(
                    store, path, f"it has {size} bytes and {checkpoint.path} says that it has {sidecar.size_in_bytes}"
                )
            source.seek(0)
            gather(source, found, decoded, FILE_ACTIONS)
    except FileNotFoundError as error:
        raise _corrupt(store, path, f"it is not there, and {checkpoint.path} refers to it") from error
