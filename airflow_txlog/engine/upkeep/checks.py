"""Findings about the health of a table, each with advice, ordered by cost.

Nothing is changed: a finding is an exceeded threshold, with the numbers. The invariant: a table that this engine can
open can be checked; an unreadable part is itself a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow.compute as pc

from airflow_txlog.engine.log.checkpoints.reading import read_checkpoint
from airflow_txlog.engine.log.names import CHECKPOINTS, LOG_DIRECTORY, parse_name
from airflow_txlog.engine.log.segment import list_segment
from airflow_txlog.engine.table.schema.properties import DAY_MS, HOUR_MS, TableProperties
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import InvalidProperty, TableError, UnsupportedFeature
from airflow_txlog.storage.base import FileInfo, Store

MAX_INTERVALS_WITHOUT_CHECKPOINT = 3
TINY_FILE_BYTES = 16 * 2**20
MIN_RETENTION_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """The most that a healthy table has."""

    applications: int = 10_000
    """Every snapshot and every checkpoint holds them all (soundness B4)."""
    tombstones: int = 100_000
    log_files: int = 10_000
    log_bytes: int = 10 * 2**30
    tiny_files: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem that needs attention."""

    code: str
    """Stable, for programs: `checkpoint_unreadable`, `too_many_tombstones`, …"""
    message: str
    advice: str
    facts: dict[str, Any] = field(default_factory=dict)
    """The numbers, JSON-able."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(store: Store, snapshot: Snapshot, healthy: Healthy = Healthy()) -> list[Finding]:
    """Return the findings about the latest version of the table; empty if it is healthy. Raises the store's errors."""
    listed = store.list(LOG_DIRECTORY)
    properties, unreadable = snapshot.table_properties.readable()
    return [
        *map(_property, unreadable),
        *_checkpoints(store, snapshot, listed, properties),
        *_log(listed, healthy, properties),
        *_state(snapshot, healthy, properties),
        *_files(snapshot, healthy),
    ]


def _property(error: InvalidProperty) -> Finding:
    return Finding(
        code="property_unreadable",
        message=f"The property {error.name} cannot be read: {error}",
        advice="Set it to a valid value, or unset it. Until then jobs that need it fail, and this check uses its "
        "default.",
        facts={"name": error.name, "value": error.value},
    )


def _checkpoints(
    store: Store, snapshot: Snapshot, listed: Sequence[FileInfo], properties: TableProperties
) -> Iterator[Finding]:
    newest = -1
    try:
        checkpoint = list_segment(store, snapshot.version).checkpoint
        if checkpoint is not None:
            newest = checkpoint.version
            # The snapshot proves that the checkpoint can be read that it was built from.
            if tuple(checkpoint.files) != snapshot.checkpoint_files:
                read_checkpoint(store, checkpoint)
    except (TableError, UnsupportedFeature, FileNotFoundError) as error:
        yield Finding(
            code="checkpoint_unreadable",
            message=f"The newest checkpoint (version {newest}) cannot be read: {error}",
            advice="Write another one (checkpoint) while the commits before it are still there; keep the log until "
            "then: switch delta.enableExpiredLogCleanup off for other engines.",
            facts={"version": newest},
        )
    empty = [info.path for info in listed if _is_checkpoint(info.path) and not info.size_bytes]
    if empty:
        yield Finding(
            code="checkpoint_torn",
            message=f"{len(empty)} checkpoint files hold no byte: {', '.join(empty[:3])}",
            advice="A writer died while it wrote them, on a store where half a file can be seen. Readers step over "
            "them; delete them by hand when no writer runs.",
            facts={"paths": empty[:10], "count": len(empty)},
        )
    interval = properties.checkpoint_interval
    commits = snapshot.version - newest
    if commits > MAX_INTERVALS_WITHOUT_CHECKPOINT * interval:
        yield Finding(
            code="checkpoint_late",
            message=f"{commits} commits follow the newest checkpoint, and delta.checkpointInterval is {interval}; "
            "every reader reads them all.",
            advice="Write a checkpoint, and see why the writers do not: they log the reason as a warning.",
            facts={"commits": commits, "interval": interval, "checkpoint": newest},
        )


def _log(listed: Sequence[FileInfo], healthy: Healthy, properties: TableProperties) -> Iterator[Finding]:
    size_bytes = sum(info.size_bytes for info in listed)
    if len(listed) > healthy.log_files or size_bytes > healthy.log_bytes:
        days = properties.log_retention_ms / DAY_MS
        kept = f"delta.logRetentionDuration keeps {days:g} days"
        if not properties.clean_expired_log:
            kept = "delta.enableExpiredLogCleanup is false, so that nothing of it ever goes"
        yield Finding(
            code="log_large",
            message=f"The log holds {len(listed):,} files of {size_bytes / 2**20:,.0f} MiB; {kept}.",
            advice="Let the log be cleaned, or keep it for a shorter time; commit less often.",
            facts={"files": len(listed), "size_bytes": size_bytes},
        )


def _state(snapshot: Snapshot, healthy: Healthy, properties: TableProperties) -> Iterator[Finding]:
    applications = len(snapshot.state.transactions)
    if applications > healthy.applications:
        yield Finding(
            code="too_many_application_transactions",
            message=f"The table remembers {applications:,} application transactions, in every snapshot and checkpoint.",
            advice="Set delta.setTransactionRetentionDuration (such as 'interval 30 days'), if no writer comes back "
            "later than that to ask whether its work is done.",
            facts={"count": applications},
        )
    tombstones = snapshot.state.tombstones.num_rows
    retention_ms = properties.deleted_file_retention_ms
    if tombstones > healthy.tombstones and tombstones > snapshot.num_files:
        yield Finding(
            code="too_many_tombstones",
            message=f"{tombstones:,} removed files are remembered beside {snapshot.num_files:,} live ones.",
            advice=f"They leave at the first checkpoint after delta.deletedFileRetentionDuration "
            f"({retention_ms / DAY_MS:g} days): write a checkpoint, shorten it, or rewrite fewer files at a time.",
            facts={"count": tombstones, "num_files": snapshot.num_files},
        )
    if retention_ms < MIN_RETENTION_MS:
        yield Finding(
            code="retention_short",
            message=f"delta.deletedFileRetentionDuration is {retention_ms / HOUR_MS:g} hours: a VACUUM takes files "
            "from under readers that started that long ago.",
            advice="Keep at least a day, or no less than the longest query runs.",
            facts={"retention_ms": retention_ms},
        )


def _files(snapshot: Snapshot, healthy: Healthy) -> Iterator[Finding]:
    tiny = pc.sum(pc.less(snapshot.files(columns=["size"]).column("size"), TINY_FILE_BYTES)).as_py() or 0
    if tiny > healthy.tiny_files and 2 * tiny > snapshot.num_files:
        yield Finding(
            code="too_many_small_files",
            message=f"{tiny:,} of {snapshot.num_files:,} files are smaller than {TINY_FILE_BYTES // 2**20} MiB.",
            advice="Compact them (OPTIMIZE), or write fewer and larger files: fewer partitions, fewer commits.",
            facts={"count": tiny, "num_files": snapshot.num_files},
        )


def _is_checkpoint(path: str) -> bool:
    name = parse_name(path)
    return name is not None and name.kind in CHECKPOINTS
