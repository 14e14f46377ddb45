"""Rows for the engine's tests: real Parquet files with real statistics, written beside a table and added to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.writing import Layout, PartitionedWriter
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.log.actions import Add, Cdc


def stage(table: Table, rows: pa.Table, *, tx: Transaction | None = None) -> list[Add]:
    """Write the rows as new data files of the table, one a partition, and return their adds. Commits nothing."""
    snapshot = tx.snapshot if tx is not None and tx.snapshot is not None else table.snapshot()
    layout = Layout(
        root=table.uri.removeprefix("file://"),
        schema=snapshot.schema,
        partition_columns=tuple(snapshot.partition_columns),
        job_id="test",
    )
    writer = PartitionedWriter(layout)
    for batch in rows.cast(snapshot.schema).to_batches():
        writer.write(batch)
    return [
        Add(
            path=file.path,
            partition_values=file.partition_values,
            size=file.size_bytes,
            modification_time=file.modification_time_ms,
            data_change=True,
            stats=file.stats,
        )
        for file in writer.finish()
    ]


def append(table: Table, rows: pa.Table | Sequence[dict[str, Any]]) -> int:
    """Append rows in one commit and return its version."""
    if not isinstance(rows, pa.Table):
        rows = pa.Table.from_pylist(list(rows), schema=table.snapshot().schema)
    tx = table.begin()
    tx.add(stage(table, rows, tx=tx))
    return tx.commit("WRITE", {"mode": "Append"})


def sorted_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows in an order that does not depend on the files they came from."""
    return sorted(rows.to_pylist(), key=repr)


def stage_changes(table: Table, rows: Sequence[dict[str, Any]]) -> list[Cdc]:
    """Write change rows (the table's columns and `_change_type`) as change files, one a partition. Commits nothing."""
    snapshot = table.snapshot()
    layout = Layout(
        root=table.uri.removeprefix("file://"),
        schema=snapshot.schema,
        partition_columns=tuple(snapshot.partition_columns),
        job_id="test",
    ).for_changes()
    writer = PartitionedWriter(layout)
    writer.write(pa.RecordBatch.from_pylist(list(rows), schema=layout.schema))
    return [
        Cdc(path=file.path, partition_values=file.partition_values, size=file.size_bytes, data_change=False)
        for file in writer.finish()
    ]
