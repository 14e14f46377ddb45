"""What a checkpoint holds, and how what its files say comes together.

The invariant: what every checkpoint holds exactly once is there exactly once, and no data file is live twice. A
checkpoint that breaks this is corrupt; it is never taken for a smaller or a larger table.
Source: protocol, "Checkpoints" and "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_txlog.engine.log.checkpoints.sidecar import CheckpointMetadata, Sidecar
from airflow_txlog.engine.log.columns import FILES, TOMBSTONES
from airflow_txlog.engine.log.listing import CheckpointFiles
from airflow_txlog.engine.log.names import LogKind, parse_name
from airflow_txlog.errors import CorruptCheckpoint
from airflow_txlog.storage.base import Store
from airflow_txlog.storage.faults import is_about_bytes


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
class Gathered:
    """What the files of one checkpoint hold, gathered file by file."""

    protocols: list[Protocol] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    transactions: list[SetTransaction] = field(default_factory=list)
    domains: list[DomainMetadata] = field(default_factory=list)
    checkpoint_metadata: list[CheckpointMetadata] = field(default_factory=list)
    sidecars: list[Sidecar] = field(default_factory=list)
    adds: list[pa.RecordBatch] = field(default_factory=list)
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    """What to keep of a batch of adds, where that is not all of it."""
    removes: list[pa.RecordBatch] = field(default_factory=list)

    def add_files(self, batch: pa.RecordBatch) -> None:
        """A batch of adds, schema FILES."""
        self.adds.append(batch if self.keep is None else self.keep(batch))


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
