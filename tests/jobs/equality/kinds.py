"""Types, and the values that break things: null, NaN, minus zero, empty text, quotes, the ends of every range.

A value has one spelling in SQL, which Spark reads back as that very value; the pools are small, so that keys meet.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

UTC = dt.UTC


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A column type: its name in SQL, its Arrow type, the values that tests draw, and how SQL says one."""

    sql: str
    arrow: pa.DataType
    values: tuple[Any, ...]
    say: Callable[[Any], str]
    is_ordered: bool = True
    may_partition: bool = True

    def literal(self, value: Any) -> str:
        """SQL for the value; a null has the type too."""
        return f"CAST(NULL AS {self.sql})" if value is None else self.say(value)


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _float(suffix: str, name: str) -> Callable[[float], str]:
    def say(value: float) -> str:
        if math.isnan(value):
            return f"{name}('NaN')"
        if math.isinf(value):
            return f"{name}('{'-' if value < 0 else ''}Infinity')"
        return f"{value!r}{suffix}"

    return say


def _struct(value: dict[str, Any]) -> str:
    x = "CAST(NULL AS INT)" if value["x"] is None else str(value["x"])
    y = "CAST(NULL AS STRING)" if value["y"] is None else _text(value["y"])
    return f"named_struct('x', {x}, 'y', {y})"


def _array(value: list[int | None]) -> str:
    if not value:
        return "CAST(array() AS ARRAY<INT>)"
    return "array(" + ", ".join("CAST(NULL AS INT)" if one is None else str(one) for one in value) + ")"


def _map(value: list[tuple[str, int]]) -> str:
    if not value:
        return "CAST(map() AS MAP<STRING,INT>)"
    return "map(" + ", ".join(f"{_text(key)}, {one}" for key, one in value) + ")"


KINDS: dict[str, Kind] = {
    "boolean": Kind(sql="BOOLEAN", arrow=pa.bool_(), values=(True, False), say=lambda v: str(v).upper()),
    "byte": Kind(sql="TINYINT", arrow=pa.int8(), values=(0, 1, 2, -128, 127), say=lambda v: f"CAST({v} AS TINYINT)"),
    "short": Kind(
        sql="SMALLINT", arrow=pa.int16(), values=(0, 1, 2, 300, -32768), say=lambda v: f"CAST({v} AS SMALLINT)"
    ),
    "int": Kind(sql="INT", arrow=pa.int32(), values=(0, 1, 2, 3, -1, 2147483647), say=str),
    "long": Kind(
        sql="BIGINT",
        arrow=pa.int64(),
        values=(0, 1, 2, 3, 9007199254740993, -(2**63) + 1),
        say=lambda v: f"{v}L",
    ),
    "float": Kind(
        sql="FLOAT",
        arrow=pa.float32(),
        values=(0.0, -0.0, 1.5, math.nan, math.inf, -2.25),
        say=_float("F", "float"),
        may_partition=False,
    ),
    "double": Kind(
        sql="DOUBLE",
        arrow=pa.float64(),
        values=(0.0, -0.0, 0.1, math.nan, -math.inf, 1e300),
        say=_float("D", "double"),
        may_partition=False,
    ),
    "decimal": Kind(
        sql="DECIMAL(10,2)",
        arrow=pa.decimal128(10, 2),
        values=tuple(map(Decimal, ("0.00", "1.50", "-1.50", "99999999.99"))),
        say=lambda v: f"CAST('{v}' AS DECIMAL(10,2))",
    ),
    "wide_decimal": Kind(
        sql="DECIMAL(38,18)",
        arrow=pa.decimal128(38, 18),
        values=tuple(map(Decimal, ("0.000000000000000000", "12345678901234567.890000000000000001"))),
        say=lambda v: f"CAST('{v}' AS DECIMAL(38,18))",
    ),
    "string": Kind(
        sql="STRING",
        arrow=pa.string(),
        values=("", "a", "b", "O'Brien", "ä %", "a=1/b", "\\", "x" * 40, "10", "\U0001f600"),
        say=_text,
    ),
    "binary": Kind(
        sql="BINARY",
        arrow=pa.binary(),
        values=(b"", b"\x00\xff", b"a"),
        say=lambda v: f"X'{v.hex()}'",
        may_partition=False,
    ),
    "date": Kind(
        sql="DATE",
        arrow=pa.date32(),
        values=(dt.date(2024, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31)),
        say=lambda v: f"DATE'{v.isoformat()}'",
    ),
    "timestamp": Kind(
        sql="TIMESTAMP",
        arrow=pa.timestamp("us", "UTC"),
        # The hour that New York has twice, a microsecond, and an open end.
        values=(
            dt.datetime(2024, 11, 3, 5, 30, tzinfo=UTC),
            dt.datetime(2024, 11, 3, 6, 30, tzinfo=UTC),
            dt.datetime(2024, 1, 1, 0, 0, 0, 123999, tzinfo=UTC),
            dt.datetime(9999, 12, 31, 12, tzinfo=UTC),
        ),
        say=lambda v: f"TIMESTAMP'{v.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f')} UTC'",
    ),
    "timestamp_ntz": Kind(
        sql="TIMESTAMP_NTZ",
        arrow=pa.timestamp("us"),
        values=(dt.datetime(2024, 3, 10, 2, 30), dt.datetime(1900, 1, 1, 0, 0, 0, 1), dt.datetime(2024, 1, 1)),
        say=lambda v: f"TIMESTAMP_NTZ'{v.strftime('%Y-%m-%d %H:%M:%S.%f')}'",
    ),
    "struct": Kind(
        sql="STRUCT<x:INT,y:STRING>",
        arrow=pa.struct([("x", pa.int32()), ("y", pa.string())]),
        values=({"x": 1, "y": "a"}, {"x": None, "y": None}, {"x": 2, "y": "O'Brien"}),
        say=_struct,
        may_partition=False,
    ),
    "array": Kind(
        sql="ARRAY<INT>",
        arrow=pa.list_(pa.int32()),
        values=([], [1], [1, None, 2]),
        say=_array,
        may_partition=False,
    ),
    "map": Kind(
        sql="MAP<STRING,INT>",
        arrow=pa.map_(pa.string(), pa.int32()),
        values=([], [("a", 1)], [("a", 2), ("b", 0)]),
        say=_map,
        is_ordered=False,
        may_partition=False,
    ),
}

# What a merge may be asked to join on: types of which equality is not a matter of opinion between engines.
KEYS = ("int", "long", "string", "date", "short", "decimal", "double", "timestamp")
PARTITIONS = tuple(name for name, kind in KINDS.items() if kind.may_partition)
