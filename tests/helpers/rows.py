"""Rows into tables and out of them, without Spark: real files with real statistics, through our own writer."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.log.actions import Add, Cdc
from airflow_txlog.storage import StoreReference


def stage(table: Table, rows: pa.Table, *, tx: Transaction | None = None) -> list[Add]:
    """Write the rows as new data files of the table, one a partition, and return their adds. Commits nothing."""
    snapshot = tx.snapshot if tx is not None and tx.snapshot is not None else table.snapshot()
    layout = Layout(
        store=StoreReference.of(table.store),
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


def append(
    table: Table,
    rows: pa.Table | Sequence[dict[str, Any]],
    *,
    application: tuple[str, int] | None = None,
    **commit: Any,
) -> int:
    """Append rows in one commit, with an application transaction where one is given, and return its version."""
    if not isinstance(rows, pa.Table):
        rows = pa.Table.from_pylist(list(rows), schema=table.snapshot().schema)
    tx = table.begin()
    if application is not None:
        tx.set_application(*application)
    tx.add(stage(table, rows, tx=tx))
    return tx.commit("WRITE", {"mode": "Append"}, **commit)


def overwrite(table: Table, rows: pa.Table) -> int:
    """Replace every row of the table in one commit; its version."""
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.add(stage(table, rows, tx=tx))
    return tx.commit("WRITE", {"mode": "Overwrite"})


def sorted_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows in an order that does not depend on the files they came from."""
    return sorted(rows.to_pylist(), key=repr)


def stage_changes(table: Table, rows: Sequence[dict[str, Any]]) -> list[Cdc]:
    """Write change rows (the table's columns and `_change_type`) as change files, one a partition. Commits nothing."""
    snapshot = table.snapshot()
    layout = Layout(
        store=StoreReference.of(table.store),
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


def make_table(
    folder: Path,
    *files: pa.Table,
    schema: pa.Schema | None = None,
    partition_by: Sequence[str] = (),
    properties: dict[str, str] | None = None,
) -> Table:
    """A table with one commit for each of `files` (one file for each partition in it)."""
    if schema is None:
        schema = files[0].schema
    table = Table.create(str(folder), schema, partition_by, properties)
    for rows in files:
        append(table, rows)
    return table


def bag(found: Table | pa.Table, *columns: str) -> Counter[str]:
    """The rows as a bag; as text, because NaN is not equal to itself, columns by name, every moment in UTC."""
    table = found.to_arrow() if isinstance(found, Table) else found
    names = sorted(columns or table.column_names)
    rows = table.select(names).to_pylist()
    return Counter(repr({name: _plain(value) for name, value in row.items()}) for row in rows)


def _plain(value: Any) -> Any:
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value
