"""A small table for tests of single rules: its schema, and files made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.predicate.tree import describe
from airflow_txlog.engine.table.schema.types import ArrayType, DecimalType, Primitive, StructField, StructType

_MEMBERS = StructType((StructField("a", Primitive.INTEGER), StructField("b", Primitive.STRING)))
SCHEMA = StructType(
    (
        StructField("day", Primitive.DATE),
        StructField("country", Primitive.STRING),
        StructField("year", Primitive.INTEGER),
        StructField("flag", Primitive.BOOLEAN),
        StructField("id", Primitive.LONG),
        StructField("i", Primitive.INTEGER),
        StructField("tiny", Primitive.BYTE),
        StructField("small", Primitive.SHORT),
        StructField("name", Primitive.STRING),
        StructField("f", Primitive.FLOAT),
        StructField("x", Primitive.DOUBLE),
        StructField("price", DecimalType(5, 2)),
        StructField("big", DecimalType(38, 18)),
        StructField("at", Primitive.TIMESTAMP),
        StructField("wall", Primitive.TIMESTAMP_NTZ),
        StructField("raw", Primitive.BINARY),
        StructField("st", _MEMBERS),
        StructField("tags", ArrayType(Primitive.STRING)),
        StructField("größe", Primitive.LONG),
        StructField("code", Primitive.STRING, True, {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}),
        StructField("short_text", Primitive.STRING, True, {"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"}),
        StructField("folded", Primitive.STRING, True, {"__COLLATIONS": {"folded": "spark.UTF8_LCASE"}}),
    )
)
PARTITIONS = ["day", "country", "year", "flag"]


def read(sql: str, **keywords: Any) -> Predicate:
    return read_predicate(sql, SCHEMA, **keywords)


def is_decided(predicate: Predicate) -> bool:
    """Whether every part lies within the closed grammar."""
    return not predicate.unknown


def told(sql: str, **keywords: Any) -> str:
    """What the engine made of a text: the tree in words, unknown parts as <reason>."""
    return describe(read(sql, **keywords).tree)


def file(
    partition: Mapping[str, str | None] | None = None,
    *,
    lower: Mapping[str, Any] | None = None,
    upper: Mapping[str, Any] | None = None,
    nulls: Mapping[str, int] | None = None,
    rows: int | None = 10,
    stats: str | None = None,
) -> Add:
    """A file; without bounds, counts or `stats` it has no statistics at all."""
    if stats is None and (lower or upper or nulls):
        known = {"numRecords": rows, "minValues": lower or {}, "maxValues": upper or {}, "nullCount": nulls or {}}
        stats = json.dumps({name: value for name, value in known.items() if value is not None}, separators=(",", ":"))
    values = {name: (partition or {}).get(name) for name in PARTITIONS}
    return Add(path="f", partition_values=values, size=1, modification_time=0, data_change=True, stats=stats)


def files(*adds: Add) -> pa.Table:
    return adds_to_table(list(adds))
