"""When a checkpoint is due, and what of a version goes into it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.clock import Clock
from airflow_txlog.datafiles.parquet.output import DEFAULT_FORMAT, ParquetFormat
from airflow_txlog.engine.log.actions import SetTransaction
from airflow_txlog.engine.log.checkpoints import (
    AddForm,
    CheckpointState,
    write_checkpoint,
    write_v2_checkpoint,
)
from airflow_txlog.engine.table.columns.typed_columns import TypedColumns
from airflow_txlog.engine.table.schema.features import reader_features
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import InvalidProperty
from airflow_txlog.storage.base import Store


def is_due(version: int, interval: int) -> bool:
    """Source: delta-spark writes one after version n where n > 0 and n is a multiple of delta.checkpointInterval."""
    return version > 0 and version % interval == 0


def checkpoint(store: Store, snapshot: Snapshot, clock: Clock) -> None:
    """Write a checkpoint of this version: V2 where delta.checkpointPolicy asks for it and the protocol allows it.

    Statistics go in as delta.checkpoint.writeStatsAsJson and delta.checkpoint.writeStatsAsStruct say. Left out are
    tombstones past delta.deletedFileRetentionDuration, which no VACUUM needs any more, and application transactions
    past delta.setTransactionRetentionDuration.
    """
    state = state_of(snapshot, clock.now_ms())
    if snapshot.table_properties.wants_v2_checkpoints and "v2Checkpoint" in reader_features(snapshot.protocol):
        write_v2_checkpoint(store, state, clock.unique_id, _form_of(snapshot))
    else:
        write_checkpoint(store, state, _form_of(snapshot))


def state_of(snapshot: Snapshot, now_ms: int) -> CheckpointState:
    """What of this version is still to be kept at the moment `now_ms`."""
    return CheckpointState(
        version=snapshot.version,
        protocol=snapshot.protocol,
        metadata=snapshot.metadata,
        transactions=_kept_transactions(snapshot, now_ms),
        domains=snapshot.state.domains,
        adds=snapshot.state.live,
        removes=kept_tombstones(
            snapshot.state.tombstones, now_ms - snapshot.table_properties.deleted_file_retention_ms
        ),
        parquet=_format_of(snapshot),
    )


def _format_of(snapshot: Snapshot) -> ParquetFormat:
    """How the table wants its Parquet files; the usual one where it wants what this engine cannot write.

    A checkpoint is read the same whatever its codec is, and a table must not go without one for it.
    """
    try:
        return snapshot.table_properties.parquet
    except InvalidProperty:
        return DEFAULT_FORMAT


def _form_of(snapshot: Snapshot) -> AddForm:
    properties = snapshot.table_properties
    if not properties.checkpoint_statistics_as_struct:
        return AddForm(with_json_statistics=properties.checkpoint_statistics_as_json)
    typed = TypedColumns(
        snapshot.delta_schema,
        snapshot.partition_columns,
        indexed_columns=properties.stats_columns,
        num_indexed_columns=properties.num_indexed_columns,
    )
    # A value without a typed form would read as null where the structs are believed: then the log's own form it is.
    if not typed.knows(snapshot.state.live):
        return AddForm()
    return AddForm(
        with_json_statistics=properties.checkpoint_statistics_as_json, parsed=typed.fields, parse=typed.values
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
