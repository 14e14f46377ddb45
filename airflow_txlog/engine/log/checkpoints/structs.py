"""What a checkpoint keeps as structs alone (`stats_parsed`, `partitionValues_parsed`), back as the texts of the log.

Only tables with `delta.checkpoint.writeStatsAsJson=false` have statistics like this. The invariant: what comes out
means what the struct says, or of statistics less. A value that JSON cannot state exactly (NaN, infinity, bytes) is left
out, which costs pruning and never a row; a partition value is the string that the protocol demands of the typed value.
Source: protocol, "Per-file Statistics", "Partition Value Serialization" and "Checkpoint Schema".
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import pyarrow as pa

from airflow_txlog.datafiles.partitioning import partition_string
from airflow_txlog.datafiles.text import SECOND_US, date_text, timestamp_text
from airflow_txlog.engine.log.columns import STRING_MAP
from airflow_txlog.errors import SchemaMismatch

_encoder = msgspec.json.Encoder(decimal_format="number")
_UNITS_A_SECOND = {"s": 1, "ms": 1000, "us": SECOND_US, "ns": 1000 * SECOND_US}


def statistics_json(parsed: pa.StructArray, instants: Collection[str] = ()) -> pa.Array:
    """Return one JSON string a row, null where the struct is null; timestamps in UTC, to the microsecond below.

    `instants` are members (`minValues.t`) that hold instants although their type names no zone.
    """
    rows = _with_texts(parsed, "", instants).to_pylist()
    return pa.array([None if row is None else _encoder.encode(_plain(row)).decode() for row in rows], pa.string())


def _with_texts(array: pa.Array, path: str, instants: Collection[str]) -> pa.Array:
    """Return the array with its dates and timestamps as texts: Python's know the years 1 to 9999 alone."""
    kind = array.type
    if pa.types.is_struct(kind):
        below = f"{path}." if path else ""
        members = [_with_texts(array.field(index), below + kind[index].name, instants) for index in range(len(kind))]
        return pa.StructArray.from_arrays(members, [field.name for field in kind], mask=array.is_null())
    if pa.types.is_date32(kind):
        return _texts(array.cast(pa.int32()), date_text)
    if pa.types.is_timestamp(kind):
        units = _UNITS_A_SECOND[kind.unit]
        zone = "Z" if kind.tz is not None or path in instants else ""
        return _texts(array.cast(pa.int64()), lambda value: _moment(value * SECOND_US // units) + zone)
    return array


def _moment(microseconds: int) -> str:
    return timestamp_text(microseconds, fraction_digits=6 if microseconds % SECOND_US else 0)


def _texts(numbers: pa.Array, text_of: Callable[[int], str]) -> pa.Array:
    return pa.array([None if value is None else text_of(value) for value in numbers.to_pylist()], pa.string())


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    found = ((name, _value(value)) for name, value in row.items())
    return {name: value for name, value in found if value is not None}


def _value(value: Any) -> Any:
    match value:
        case dict():
            return _plain(value) or None
        case float():
            return value if math.isfinite(value) else None
        case decimal.Decimal():
            return value if value.is_finite() else None
        case bool() | int() | str():
            return value
        case _:
            return None


def partition_maps(parsed: pa.StructArray, instants: Collection[str] = ()) -> pa.Array:
    """Return one map a row, null where the struct is null. Raises ValueError for a type that cannot partition a table.

    Null and a member that the struct of a row lacks are null. `instants` are members that hold instants although their
    type names no zone.
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
