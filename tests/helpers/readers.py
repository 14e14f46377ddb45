"""What other readers than ours make of a table: delta-rs, and the table's own Parquet files under a naive replay.

The naive replay knows classic checkpoints and commits, no deletion vectors and no renamed columns, and looks at the
columns in the files alone, so what it says is right wherever it says anything.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, DeltaProtocolError

from airflow_txlog.engine import Table
from tests.helpers.rows import bag


def rows_by_delta_rs(folder: str) -> pa.Table | None:
    """All rows as delta-rs reads them with its own reader, else with pyarrow; None where it reads with neither.

    Its refusals come as errors of its own; anything else, a panic in it among them, is not an answer either.
    """
    try:
        table = DeltaTable(folder)
    except (DeltaError, OSError, ValueError):
        return None
    try:
        return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t"))
    except (DeltaError, OSError, ValueError):
        pass
    try:
        return table.to_pyarrow_table()
    except (DeltaError, DeltaProtocolError, OSError, ValueError):
        return None


def rows_by_files(folder: Path, schema: pa.Schema) -> pa.Table | None:
    """The columns as the live Parquet files hold them, in the types of `schema`, without those that not all files
    hold; None if it cannot say."""
    live = live_files(folder)
    if not live:
        return None
    tables = [pq.read_table(folder / path, partitioning=None, coerce_int96_timestamp_unit="us") for path in live]
    held = [name for name in schema.names if all(name in table.column_names for table in tables)]
    if not held:
        return None
    wanted = pa.schema([schema.field(name) for name in held])
    return pa.concat_tables([table.select(held).cast(wanted) for table in tables])


def holds_int96(folder: Path) -> bool:
    """Whether a live file has a column of INT96, which delta-rs reads as nanoseconds: far times wrap (soundness A7)."""
    for path in live_files(folder) or []:
        schema = pq.ParquetFile(folder / path).schema
        if any(schema.column(index).physical_type == "INT96" for index in range(len(schema))):
            return True
    return False


def live_files(folder: Path) -> list[str] | None:
    """Paths of the live files, relative to the table; None where a naive replay could be wrong."""
    live: dict[str, dict[str, Any]] = {}
    start = 0
    log = folder / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint*.parquet"))
    if checkpoints:
        newest = [file for file in checkpoints if file.name[:20] == checkpoints[-1].name[:20]]
        start = int(checkpoints[-1].name[:20]) + 1
        for file in newest:
            table = pq.read_table(file, partitioning=None)
            if "sidecar" in table.column_names or "add" not in table.column_names:
                return None
            for action in table["add"].to_pylist():
                if action is not None:
                    live[action["path"]] = action
    for file in sorted(log.glob("????????????????????.json")):
        if int(file.name[:20]) < start:
            continue
        for line in file.read_text().splitlines():
            action = json.loads(line)
            # Removes first would be as right: one commit never adds and removes one path without deletion vectors.
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
            if "add" in action:
                live[action["add"]["path"]] = action["add"]
            if "columnMapping.mode" in json.dumps(action.get("metaData", {})):
                return None
    if any(action.get("deletionVector") for action in live.values()):
        return None
    paths = [unquote(path) for path in live]
    return None if any("://" in path or path.startswith("/") for path in paths) else paths


def rows_by_us(uri: str, version: int | None = None) -> pa.Table:
    return Table.open(uri).to_arrow(version=version)


def rows_by_deltalake(uri: str, version: int | None = None) -> pa.Table:
    """All rows as delta-rs itself reads them (its own Parquet reader, no pyarrow)."""
    return _rows_of(DeltaTable(uri, version=version))


def _rows_of(table: DeltaTable) -> pa.Table:
    return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t"))


def assert_both_read(uri: str, expected: pa.Table, version: int | None = None) -> None:
    """We and deltalake read exactly these rows, at the same version."""
    ours, theirs, wanted = Table.open(uri), DeltaTable(uri, version=version), bag(expected)
    for found in (ours.to_arrow(version=version), _rows_of(theirs)):
        assert bag(found.select(expected.column_names).cast(expected.schema)) == wanted
    if version is None:
        assert theirs.version() == ours.snapshot().version
