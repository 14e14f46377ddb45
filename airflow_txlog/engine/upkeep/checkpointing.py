"""When a checkpoint is due, and what of a version goes into it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.clock import Clock
from airflow_txlog.engine.log.actions import SetTransaction
from airflow_txlog.engine.log.checkpoints import write_checkpoint
from airflow_txlog.engine.store.base import Store
from airflow_txlog.engine.table.snapshot import Snapshot


def is_due(version: int, interval: int) -> bool:
    """Source: delta-spark writes one after version n where n > 0 and n is a multiple of delta.checkpointInterval."""
    return version > 0 and version % interval == 0


def checkpoint(store: Store, snapshot: Snapshot, clock: Clock) -> None:
    """Write the classic checkpoint of this version.

    Left out: tombstones past delta.deletedFileRetentionDuration, which no VACUUM needs any more, and application
    transactions past delta.setTransactionRetentionDuration.
    """
    now_ms = clock.now_ms()
    state = snapshot.state
    write_checkpoint(
        store,
        version=snapshot.version,
        protocol=state.protocol,
        metadata=state.metadata,
        transactions=_kept_transactions(snapshot, now_ms),
        domains=dict(state.domains),
        adds=state.live,
        removes=kept_tombstones(state.tombstones, now_ms - snapshot.table_properties.deleted_file_retention_ms),
    )


def kept_tombstones(tombstones: pa.Table, delete_before_ms: int) -> pa.Table:
    """Tombstones younger than the moment; one without a deletion timestamp counts as removed at the epoch."""
    removed_ms = pc.fill_null(tombstones.column("deletion_timestamp"), 0)
    return tombstones.filter(pc.greater(removed_ms, delete_before_ms))


def _kept_transactions(snapshot: Snapshot, now_ms: int) -> dict[str, SetTransaction]:
    retention_ms = snapshot.table_properties.set_transaction_retention_ms
    if retention_ms is None:
        return dict(snapshot.state.transactions)
    oldest_ms = now_ms - retention_ms
    return {
        app_id: transaction
        for app_id, transaction in snapshot.state.transactions.items()
        if transaction.last_updated is not None and transaction.last_updated >= oldest_ms
    }
