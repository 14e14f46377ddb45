"""The facts of a Delta table that a catalog records: its place, columns in Hive's types, properties, id and version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_txlog.catalogs.base import TABLE_ID, VERSION, CatalogColumn, Description, Entry
from airflow_txlog.catalogs.places import table_place
from airflow_txlog.engine.table.schema.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
    VariantType,
)

if TYPE_CHECKING:
    from airflow_txlog.engine import Snapshot

# Properties of an entry that describe its last update.
_OURS = frozenset({VERSION, "delta.lastCommitTimestamp"})
_HIVE_NAMES = {
    Primitive.BYTE: "tinyint",
    Primitive.SHORT: "smallint",
    Primitive.INTEGER: "int",
    Primitive.LONG: "bigint",
    # Hive's timestamp has no zone, so both are the same type there.
    Primitive.TIMESTAMP_NTZ: "timestamp",
}


def describe(name: str, snapshot: Snapshot) -> Description:
    """Return the description of one version of a table.

    Raises UnsupportedFeature, CorruptTable; UnusablePlace for a table in memory.
    """
    metadata = snapshot.metadata
    return Description(
        name=name,
        uri=table_place("", name, snapshot.uri),
        table_id=metadata.id,
        version=snapshot.version,
        columns=tuple(map(column_of, snapshot.delta_schema.fields)),
        partition_columns=tuple(snapshot.partition_columns),
        properties=dict(snapshot.properties),
        schema_json=metadata.schema_string or "",
        comment=metadata.description,
    )


def column_of(field: StructField) -> CatalogColumn:
    """Return a column as catalogs list it."""
    return CatalogColumn(
        name=field.name,
        type_text=hive_type(field.type),
        comment=field.metadata.get("comment") or None,
        is_odd=_is_odd(field.type),
    )


def _is_odd(kind: DataType) -> bool:
    """Return whether a type has a field whose name the text of a type cannot hold: Spark would read no such entry."""
    if isinstance(kind, ArrayType):
        return _is_odd(kind.element)
    if isinstance(kind, MapType):
        return _is_odd(kind.key) or _is_odd(kind.value)
    if isinstance(kind, StructType):
        return any(not re.fullmatch(r"\w+", field.name) or _is_odd(field.type) for field in kind.fields)
    return False


def hive_type(kind: DataType) -> str:
    """Return Hive's name of a type. A variant is the struct of two binaries that its files have."""
    if isinstance(kind, ArrayType):
        return f"array<{hive_type(kind.element)}>"
    if isinstance(kind, MapType):
        return f"map<{hive_type(kind.key)},{hive_type(kind.value)}>"
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{field.name}:{hive_type(field.type)}' for field in kind.fields)}>"
    if isinstance(kind, VariantType):
        return "struct<metadata:binary,value:binary>"
    if isinstance(kind, DecimalType):
        return str(kind)
    return _HIVE_NAMES.get(kind, kind.value)


def differences(entry: Entry, table: Description) -> list[dict[str, Any]]:
    """Return what an entry has otherwise than the table: `[{"what", "catalog", "log"}]`, values as texts.

    An entry without our marks says nothing of columns and properties, which every engine then reads from the log.
    """
    found: dict[str, tuple[Any, Any]] = {}
    table_id = entry.properties.get(TABLE_ID)
    if table_id is not None:
        found["table id"] = (table_id, table.table_id)
        names = (*entry.properties, *table.properties)
        for name in sorted({name for name in names if name in table.properties or name.startswith("delta.")} - _OURS):
            found[name] = (entry.properties.get(name), table.properties.get(name))
        listed = {each.name.lower(): each.type_text for each in entry.columns}
        for column in table.columns:
            found[f"column {column.name}"] = (listed.pop(column.name.lower(), None), column.type_text)
        found |= {f"column {name}": (kind, None) for name, kind in listed.items()}
    return [{"what": what, "catalog": there, "log": here} for what, (there, here) in found.items() if there != here]
