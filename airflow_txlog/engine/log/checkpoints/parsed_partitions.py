"""Partition values that a checkpoint keeps as a struct alone (`partitionValues_parsed`), back as the map of the log.

The invariant: what comes out is the string that the protocol demands of the typed value; null and a member that the
struct of a row lacks are null. A struct that is null itself gives a null map: such a file has no partition values.
Source: protocol, "Partition Value Serialization" and "Checkpoint Schema".
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from airflow_txlog.datafiles.partitioning import partition_string
from airflow_txlog.engine.log.columns import STRING_MAP
from airflow_txlog.errors import SchemaMismatch


def partition_maps(parsed: pa.StructArray, instants: Collection[str] = ()) -> pa.Array:
    """One map a row. Raises ValueError for a member whose type cannot partition a table.

    `instants` are members that hold instants although their type names no zone.
    """
    names = [field.name for field in parsed.type]
    try:
        columns = [partition_string(_member(parsed, name, name in instants)) for name in names]
    except SchemaMismatch as error:
        raise ValueError(f"partitionValues_parsed: {error}") from error
    rows = [list(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] or [[]] * len(parsed)
    valid = parsed.is_valid().to_pylist()
    return pa.array([row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)], STRING_MAP)


def _member(parsed: pa.StructArray, name: str, is_instant: bool) -> pa.Array:
    values = parsed.field(name)
    return values.cast(pa.timestamp(values.type.unit, "UTC")) if is_instant else values
