"""Column mapping: which physical name and id each column has, at every depth, and the rules that they must keep.

Everything that must know a column in data files, partition values or statistics asks here or asks a schema made here:
`table_schema` gives `StructField.physical_name` its meaning, `arrow_schema` carries it to what reads and writes
files (`datafiles/parquet/physical`). The invariant: in a schema made here two columns never share a physical name or an
id, and without a mode a physical name means nothing. Source: protocol, "Column Mapping".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.parquet.physical import marked
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.schema import parse_schema, to_arrow
from airflow_txlog.engine.table.schema.types import ArrayType, DataType, MapType, StructField, StructType
from airflow_txlog.errors import CorruptTable

MODE_PROPERTY = "delta.columnMapping.mode"
MAX_ID_PROPERTY = "delta.columnMapping.maxColumnId"
PHYSICAL_NAME_KEY = "delta.columnMapping.physicalName"
ID_KEY = "delta.columnMapping.id"

NO_MAPPING = "none"
MODES = (NO_MAPPING, "name", "id")

# What names in a table without column mapping may not hold: old Parquet readers take them for something else.
_FORBIDDEN = frozenset(" ,;{}()\n\t=")


def mapping_mode(configuration: Mapping[str, str], table: str) -> str:
    """ "none", "name" or "id". Raises CorruptTable for a mode that the protocol does not know."""
    mode = configuration.get(MODE_PROPERTY, NO_MAPPING).lower()
    if mode not in MODES:
        raise CorruptTable(
            f"{table}: the table property {MODE_PROPERTY} is {configuration[MODE_PROPERTY]!r}; the protocol knows "
            f"{', '.join(MODES)}. Nothing was read.",
            table=table,
        )
    return mode


def table_schema(metadata: Metadata, table: str) -> StructType:
    """The schema of a metadata action. Without a mode, what is left of an old column mapping in it is dropped.

    Raises CorruptTable, also for a mapping that leaves out a column or gives a name or an id twice, and
    UnsupportedFeature, as `parse_schema` does.
    """
    schema = parse_schema(metadata.schema_string)
    if mapping_mode(metadata.configuration, table) == NO_MAPPING:
        # Most tables have nothing to drop, and every snapshot asks.
        return without_mapping(schema) if "delta.columnMapping." in (metadata.schema_string or "") else schema
    found = mapping_error(schema)
    if found is not None:
        raise CorruptTable(
            f"{table}: {found}, though {MODE_PROPERTY} is set. Which values belong to which column is unknown, and "
            "nothing was read. Repair the table's metadata with the engine that changed its columns.",
            table=table,
        )
    return schema


def arrow_schema(schema: StructType, mode: str) -> pa.Schema:
    """The Arrow schema of the rows, its fields marked for `datafiles` where the table has a mode."""
    plain = to_arrow(schema)
    return plain if mode == NO_MAPPING else pa.schema([marked(field, mode) for field in plain])


def partition_keys(schema: StructType, partition_columns: Sequence[str]) -> list[str]:
    """What partition columns are called in partition values: their physical names, else as the metadata spells them."""
    return [_partition_key(schema.find(name), name) for name in partition_columns]


def _partition_key(member: StructField | None, spelled: str) -> str:
    return spelled if member is None or member.physical_name == member.name else member.physical_name


def without_mapping(schema: StructType) -> StructType:
    """The schema without ids and physical names."""

    def plain(member: StructField) -> StructField:
        if not any(key.startswith("delta.columnMapping.") for key in member.metadata):
            return member
        kept = {key: value for key, value in member.metadata.items() if not key.startswith("delta.columnMapping.")}
        return replace(member, metadata=kept)

    return _changed(schema, plain)


def assign(schema: StructType, new_name: Callable[[], str]) -> tuple[StructType, int]:
    """The schema of a new table with fresh ids and physical names at every depth, and the highest id.

    `new_name` gives a name that no other column ever had.
    """
    last = 0

    def numbered(member: StructField) -> StructField:
        nonlocal last
        last += 1
        given: dict[str, Any] = {ID_KEY: last, PHYSICAL_NAME_KEY: new_name()}
        return replace(member, metadata={**member.metadata, **given})

    return _changed(without_mapping(schema), numbered), last


def assign_new(schema: StructType, last: int, new_name: Callable[[int], str]) -> tuple[StructType, int]:
    """The schema of a mapped table whose new columns, at every depth, have no id yet; and the highest id then.

    `last` is the highest id that any column ever had; `new_name` makes an id into a name that no other column ever had.
    """

    def numbered(member: StructField) -> StructField:
        nonlocal last
        if ID_KEY in member.metadata:
            return member
        last += 1
        return replace(member, metadata={**member.metadata, ID_KEY: last, PHYSICAL_NAME_KEY: new_name(last)})

    return _changed(schema, numbered), last


def mapping_error(schema: StructType) -> str | None:
    """What is wrong with the schema's mapping, in words; None where every column has its own id and name."""
    ids: dict[int, str] = {}
    for path, members in _structs(schema, ""):
        names: dict[str, str] = {}
        for member in members:
            column = f"{path}{member.name}"
            name, number = member.metadata.get(PHYSICAL_NAME_KEY), member.metadata.get(ID_KEY)
            if not isinstance(name, str) or not name:
                return f"column {column!r} has no physical name"
            if not isinstance(number, int) or isinstance(number, bool):
                return f"column {column!r} has no id"
            # Files are searched without regard to case, as Spark does.
            other = names.setdefault(name.lower(), column)
            if other != column:
                return f"columns {other!r} and {column!r} have one physical name, {name!r}"
            other = ids.setdefault(number, column)
            if other != column:
                return f"columns {other!r} and {column!r} have one id, {number}"
    return None


def highest_id(schema: StructType) -> int:
    """The highest id among the columns; 0 where there is none."""
    numbers = [member.metadata.get(ID_KEY) for _, members in _structs(schema, "") for member in members]
    return max((number for number in numbers if isinstance(number, int)), default=0)


def forbidden_names(schema: StructType) -> list[str]:
    """The names that only a table with column mapping may have, at every depth."""
    return [member.name for _, members in _structs(schema, "") for member in members if _FORBIDDEN & set(member.name)]


def _structs(data_type: DataType, path: str) -> Iterator[tuple[str, StructType]]:
    """Every struct at any depth, with the dotted path of its members up to them."""
    if isinstance(data_type, StructType):
        yield path, data_type
        for member in data_type:
            yield from _structs(member.type, f"{path}{member.name}.")
    elif isinstance(data_type, ArrayType):
        yield from _structs(data_type.element, f"{path}element.")
    elif isinstance(data_type, MapType):
        yield from _structs(data_type.key, f"{path}key.")
        yield from _structs(data_type.value, f"{path}value.")


def _changed(schema: StructType, change: Callable[[StructField], StructField]) -> StructType:
    """The schema with every field changed, a field before its members."""

    def within(data_type: DataType) -> DataType:
        if isinstance(data_type, StructType):
            return _changed(data_type, change)
        if isinstance(data_type, ArrayType):
            return replace(data_type, element=within(data_type.element))
        if isinstance(data_type, MapType):
            return replace(data_type, key=within(data_type.key), value=within(data_type.value))
        return data_type

    fields = []
    for member in schema:
        changed = change(member)
        fields.append(replace(changed, type=within(changed.type)))
    return StructType(tuple(fields))
