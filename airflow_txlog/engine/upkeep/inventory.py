"""An inventory in place of a listing: a store's own report of the files under a table.

Listing ten million objects takes long and costs money, and many stores write a daily report of them. The invariant: an
inventory only proposes names; each file is looked up before it is deleted.
Source: delta-spark, VACUUM … USING INVENTORY (path, length, isDir, modificationTime).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from airflow_txlog.datafiles.failures import text_of
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.errors import InvalidInput, SourceNotFound
from airflow_txlog.locations import is_inside
from airflow_txlog.storage import Access, FileInfo, open_named_file
from airflow_txlog.storage.base import is_about_bytes, is_about_name

# Column names by meaning: first ours, then those of delta-spark and of store reports.
_COLUMNS = {
    "path": ("path", "key", "name"),
    "size": ("size", "length", "size_bytes"),
    "modificationtime": ("modificationtime", "modification_time", "lastmodified", "last_modified_date"),
    "isdir": ("isdir", "is_dir"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The files and directories of a table that an inventory names, by paths relative to the root."""

    files: list[FileInfo]
    directories: list[str]
    """Deepest first."""
    outside: int
    """How many of its rows name nothing inside the table."""


def read_inventory(source: pa.Table | str | os.PathLike[str], root: str, access: Access) -> Inventory:
    """Return the inventory from a table, or from a Parquet or CSV file (by its ending; a path or a URI).

    Columns, in any case: `path`, relative to the table or absolute, as the store spells it (not percent-decoded);
    `modificationTime`, milliseconds since the epoch or a timestamp; `size` in bytes (may be missing); `isDir` (may be
    missing: all are files). Other columns are ignored.

    Raises SourceNotFound if there is no such file, InvalidInput if it cannot be read, a column is missing or has
    another type, or a path or a time is null.
    """
    table = source if isinstance(source, pa.Table) else _read(os.fspath(source), access)
    rows = zip(
        _column(table, "path", pa.string()),
        _column(table, "modificationtime", pa.int64()),
        _column(table, "size", pa.int64(), 0),
        _column(table, "isdir", pa.bool_(), False),
        strict=True,
    )
    files: list[FileInfo] = []
    directories: set[str] = set()
    outside = 0
    for spelled, modified_ms, size_bytes, is_directory in rows:
        # The store's spelling is not encoded, but `canonical_path` decodes, so encode it first.
        path = canonical_path(spelled.replace("%", "%25"), root)
        if not path or not is_inside(path):
            outside += 1
        elif is_directory:
            directories.add(path)
        else:
            files.append(FileInfo(path=path, size_bytes=size_bytes, modified_ms=modified_ms))
    ordered = sorted(directories, key=lambda path: (-path.count("/"), path))
    return Inventory(files=files, directories=ordered, outside=outside)


def _read(path: str, access: Access) -> pa.Table:
    ending = path.rpartition(".")[2].lower()
    if ending not in ("parquet", "csv"):
        raise InvalidInput(f"InvalidInput: the inventory {path} is neither .parquet nor .csv. Nothing was deleted.")
    try:
        with open_named_file(path, access) as file:
            return pq.read_table(file) if ending == "parquet" else pyarrow.csv.read_csv(file)
    except FileNotFoundError as error:
        raise SourceNotFound(
            f"The inventory {path} does not exist (yet). Nothing was deleted.", argument="inventory"
        ) from error
    except (OSError, pa.ArrowException, ValueError, ImportError) as error:
        if not (is_about_bytes(error) or is_about_name(error)):
            raise
        raise InvalidInput(
            f"InvalidInput: the inventory {path} cannot be read: {text_of(error)}. Nothing was deleted."
        ) from error


def _column(table: pa.Table, meaning: str, kind: pa.DataType, default: object = None) -> list[Any]:
    """Return the values of a column, found by any of its names; without it the default for each row."""
    names = {name.lower(): name for name in table.column_names}
    found = next((names[name] for name in _COLUMNS[meaning] if name in names), None)
    if found is None:
        if default is not None:
            return [default] * table.num_rows
        raise InvalidInput(
            f"InvalidInput: the inventory has no column {_COLUMNS[meaning][0]!r} among its {table.num_columns}. "
            "Nothing was deleted."
        )
    column = table.column(found)
    try:
        if pa.types.is_timestamp(column.type):
            column = pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False)
        elif kind == pa.int64() and not pa.types.is_integer(column.type):
            raise pa.ArrowInvalid(f"it is of type {column.type}")
        column = column.cast(kind)
    except pa.ArrowException as error:
        raise InvalidInput(
            f"InvalidInput: the column {found!r} of the inventory, of type {column.type}, cannot be used as {kind}. "
            "Nothing was deleted."
        ) from error
    if default is not None:
        column = pc.fill_null(column, pa.scalar(default, kind))
    elif column.null_count:
        raise InvalidInput(f"InvalidInput: the column {found!r} of the inventory holds nulls. Nothing was deleted.")
    values: list[Any] = column.to_pylist()
    return values
