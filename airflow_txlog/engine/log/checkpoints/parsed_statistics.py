"""Statistics that a checkpoint keeps as a struct alone (`stats_parsed` without `stats`), back as the JSON of the log.

Only tables with `delta.checkpoint.writeStatsAsJson=false` come this way. The invariant: what comes out means what the
struct says or says less. A value that JSON cannot state exactly (NaN, infinity, bytes) is left out, which costs
pruning and never a row.
Source: protocol, "Per-file Statistics" and "Checkpoint Schema".
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Collection
from typing import Any

import msgspec
import pyarrow as pa

_encoder = msgspec.json.Encoder(decimal_format="number")


def statistics_json(parsed: pa.StructArray, instants: Collection[str] = ()) -> pa.Array:
    """One JSON string a row, null where the struct is null; timestamps in UTC, with what precision they had.

    `instants` are members (`minValues.t`) that hold instants although their type names no zone.
    """
    texts = [None if row is None else _encoder.encode(_plain(row, "", instants)).decode() for row in parsed.to_pylist()]
    return pa.array(texts, pa.string())


def _plain(row: dict[str, Any], prefix: str, instants: Collection[str]) -> dict[str, Any]:
    found = ((name, _value(value, prefix + name, instants)) for name, value in row.items())
    return {name: value for name, value in found if value is not None}


def _value(value: Any, path: str, instants: Collection[str]) -> Any:
    match value:
        case dict():
            return _plain(value, f"{path}.", instants) or None
        case float():
            return value if math.isfinite(value) else None
        case decimal.Decimal():
            return value if value.is_finite() else None
        case datetime.datetime():
            if value.tzinfo is None and path not in instants:
                return value.isoformat()
            utc = value.astimezone(datetime.UTC) if value.tzinfo else value
            return utc.replace(tzinfo=None).isoformat() + "Z"
        case datetime.date():
            return value.isoformat()
        case bool() | int() | str():
            return value
        case _:
            return None
