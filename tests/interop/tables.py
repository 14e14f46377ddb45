"""What the interop tests share: rows into a table of ours by the engine alone, and rows out of it by either side.

Data files are written here as any writer without Spark would: one file a partition, named by a uuid, with the
statistics and the escaping of `datafiles`. What a side reads is compared as a bag of rows, every value by its repr.
"""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from airflow_txlog.datafiles.partitioning import encode_add_path, hive_directory, partition_string
from airflow_txlog.datafiles.statistics import file_statistics
from airflow_txlog.engine import Table


def stage(table: Table, rows: pa.Table) -> list[dict[str, Any]]:
    """Write the rows as data files of the table, one for each partition among them: the arguments of `tx.add`."""
    columns = table.snapshot().partition_columns
    strings = [partition_string(rows[column]) for column in columns]
    keys = list(zip(*strings, strict=True)) if columns else [()] * rows.num_rows
    staged = []
    for key in dict.fromkeys(keys):
        chosen = rows.filter(pa.array([other == key for other in keys])).drop_columns(columns)
        name = "/".join(filter(None, [hive_directory(columns, key), f"part-{uuid.uuid4()}.parquet"]))
        with table.store.open_output(name) as output:
            pq.write_table(chosen, output, store_schema=False)
        info = table.store.stat(name)
        assert info is not None
        staged.append(
            {
                "path": encode_add_path(name),
                "partition_values": dict(zip(columns, key, strict=True)),
                "size": info.size_bytes,
                "modification_time": info.modified_ms,
                "stats": file_statistics(chosen),
            }
        )
    return staged


def append(table: Table, rows: pa.Table, *, application: tuple[str, int] | None = None, **commit: Any) -> int:
    """Append the rows in one commit, with an application transaction where one is given; its version."""
    transaction = table.begin()
    if application is not None:
        transaction.set_application(*application)
    for file in stage(table, rows):
        transaction.add(**file)
    return transaction.commit("WRITE", {"mode": "Append"}, **commit)


def overwrite(table: Table, rows: pa.Table) -> int:
    """Replace every row of the table in one commit; its version."""
    transaction = table.begin()
    transaction.remove(transaction.read_whole_table())
    for file in stage(table, rows):
        transaction.add(**file)
    return transaction.commit("WRITE", {"mode": "Overwrite"})


def rows_by_us(uri: str, version: int | None = None) -> pa.Table:
    return Table.open(uri).to_arrow(version=version)


def rows_by_deltalake(uri: str, version: int | None = None) -> pa.Table:
    """All rows as delta-rs itself reads them (its own Parquet reader, no pyarrow)."""
    table = DeltaTable(uri, version=version)
    return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t"))


def bag(rows: pa.Table, schema: pa.Schema | None = None) -> list[str]:
    """The rows in an order of their own, comparable across readers: columns by name, in the types of `schema`."""
    if schema is not None:
        rows = rows.select(schema.names).cast(schema)
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))


def assert_both_read(uri: str, expected: pa.Table, version: int | None = None) -> None:
    """Both sides read exactly these rows, at the same version."""
    wanted = bag(expected)
    assert bag(rows_by_us(uri, version), expected.schema) == wanted
    assert bag(rows_by_deltalake(uri, version), expected.schema) == wanted
    if version is None:
        assert DeltaTable(uri).version() == Table.open(uri).snapshot().version
