"""Rows and schemas as plain JSON values, so that what two engines read can be kept in a file and compared.

A value's type is told by the schema that lies beside the rows, so every value has one spelling here: numbers and
booleans as they are, everything else as text, a struct as an object, a list as a list, a map as a list of pairs.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

MOST_ROWS = 500

UTC = dt.timezone.utc  # noqa: UP017 - the generator may run on an older Python than the suite


def plain_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Every row, in an order that does not depend on the files they came from."""
    return sorted((plain(row) for row in rows.to_pylist()), key=lambda row: json.dumps(row, sort_keys=True))


def kept_rows(rows: pa.Table) -> Any:
    """The rows, or their number and a digest of them where they are too many for a file that people look at."""
    found = plain_rows(rows)
    if len(found) <= MOST_ROWS:
        return found
    digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
    return {"count": len(found), "sha256": digest}


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dt.datetime):
        return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def plain_type(node: Any) -> Any:
    """A type in the schema's own JSON, without the metadata of its fields: engines keep different ones at hand."""
    if not isinstance(node, Mapping):
        return node
    if node["type"] == "struct":
        fields: Iterable[Any] = node["fields"]
        return {"struct": [[f["name"], plain_type(f["type"]), f["nullable"]] for f in fields]}
    if node["type"] == "array":
        return {"array": plain_type(node["elementType"]), "containsNull": node["containsNull"]}
    if node["type"] == "map":
        kinds = [plain_type(node["keyType"]), plain_type(node["valueType"])]
        return {"map": kinds, "valueContainsNull": node["valueContainsNull"]}
    return node["type"]
