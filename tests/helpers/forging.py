"""Saved work as an attacker forges it who writes to the table's folder and knows this package: all but the key."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_txlog.engine import Table
from airflow_txlog.exactly_once.transactions import Seal

OTHER_KEY = "a77ac" + 59 * "0"


def table_folder(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://"))


def folder_of(table: Table) -> Path:
    """The one folder of saved work of the table."""
    (found,) = table_folder(table).glob("txlog-inputs-*")
    return found


def name_of(data: bytes, seal: Seal, kind: str = "memory") -> str:
    """How a try whose seal this is would name the content."""
    signed = f"memory-{'0' * 16}-0009-{len(data)}-{hashlib.sha256(data).hexdigest()}"
    return f"{signed}-{seal.sign(kind, signed.encode())}.arrow"


def with_header(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """A saved memory whose header says something else: as it was changed in place, or the list that is returned."""
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    header = json.loads(table.schema.metadata[b"txlog"])
    changed = change(header)
    sink = pa.BufferOutputStream()
    text = json.dumps(changed if isinstance(changed, list) else header)
    table = table.replace_schema_metadata({b"txlog": text.encode()})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def put_newest(folder: Path, name: str, data: bytes) -> None:
    """Put a file beside others as the one that was written last."""
    (folder / name).write_bytes(data)
    later = time.time() + 60
    os.utime(folder / name, (later, later))
