"""Column mapping: the physical names and ids of columns at every depth, and the rules for them.

`table_schema` gives `StructField.physical_name` its meaning; `arrow_schema` passes it to the readers and writers of
files (`datafiles/parquet/physical`). The invariant: in a schema made here no two columns share a physical name or an
id, and without a mode physical names mean nothing. Source: protocol, "Column Mapping".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.parquet.physical import marked
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.schema import parse_schema, to_arrow
from airflow_txlog.engine.table.schema.types import (
    PHYSICAL_NAME_KEY,
    DataType,
    StructField,
    StructType,
    parts_of,
    walk_fields,
    with_parts,
)
from airflow_txlog.errors import CorruptTable

MODE_PROPERTY = "delta.columnMapping.mode"
MAX_ID_PROPERTY = "delta.columnMapping.maxColumnId"
ID_KEY = "delta.columnMapping.id"

NO_MAPPING = "none"
MODES = (NO_MAPPING, "name", "id")

# Characters that old Parquet readers misread in names.
_FORBIDDEN = frozenset(" ,;{}()\n\t=")


def mapping_mode(configuration: Mapping[str, str], table: str) -> str:
    """Return "none", "name" or "id". Raises CorruptTable for a mode that the protocol does not know."""
    mode = configuration.get(MODE_PROPERTY, NO_MAPPING).lower()
    if mode not in MODES:
        raise CorruptTable(
            f"{table}: the table property {MODE_PROPERTY} is {configuration[MODE_PROPERTY]!r}; the protocol knows "
            f"{', '.join(MODES)}. Nothing was read.",
            table=table,
        )
    return mode


def table_schema(metadata: Metadata, table: str) -> StructType:
    """Return the schema of a metadata action; without a mode, remains of an old column mapping are dropped.

    Raises UnsupportedFeature; CorruptTable, also for a mapping that omits a column or gives a name or an id twice.
    """
    schema = parse_schema(metadata.schema_string)
    if mapping_mode(metadata.configuration, table) == NO_MAPPING:
        # The search spares most snapshots the walk.
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
    """Return the Arrow schema of the rows, with fields marked for `datafiles` if the table has a mode."""
    plain = to_arrow(schema)
    return plain if mode == NO_MAPPING else pa.schema([marked(field, mode) for field in plain])


def partition_keys(schema: StructType, partition_columns: Sequence[str]) -> list[str]:
    """Return the keys of partition values: physical names, else the names as the metadata spells them."""
    found = [(name, schema.find(name)) for name in partition_columns]
    return [name if each is None or each.physical_name == each.name else each.physical_name for name, each in found]


def without_mapping(schema: StructType) -> StructType:
    """Return the schema without ids and physical names."""

    def plain(member: StructField) -> StructField:
        if not any(key.startswith("delta.columnMapping.") for key in member.metadata):
            return member
        kept = {key: value for key, value in member.metadata.items() if not key.startswith("delta.columnMapping.")}
        return replace(member, metadata=kept)

    return with_fields(schema, plain)


def assign(schema: StructType, new_name: Callable[[], str]) -> tuple[StructType, int]:
    """Return a new table's schema with ids and names (unused ones, by `new_name`) at every depth, and the last id."""
    last = 0

    def numbered(member: StructField) -> StructField:
        nonlocal last
        last += 1
        given: dict[str, Any] = {ID_KEY: last, PHYSICAL_NAME_KEY: new_name()}
        return replace(member, metadata={**member.metadata, **given})

    return with_fields(without_mapping(schema), numbered), last


def assign_existing(schema: StructType, last: int = 0) -> tuple[StructType, int]:
    """Return the schema of a table whose files hold its columns by their names, mapped by name; and the highest id.

    `last`: the highest id that any column ever had.
    """

    def numbered(member: StructField) -> StructField:
        nonlocal last
        last += 1
        return replace(member, metadata={**member.metadata, ID_KEY: last, PHYSICAL_NAME_KEY: member.name})

    return with_fields(without_mapping(schema), numbered), last


def assign_new(schema: StructType, last: int, new_name: Callable[[int], str]) -> tuple[StructType, int]:
    """Return the mapped schema with ids above `last` and names (`new_name`) for its new columns, and the last id."""

    def numbered(member: StructField) -> StructField:
        nonlocal last
        if ID_KEY in member.metadata:
            return member
        last += 1
        return replace(member, metadata={**member.metadata, ID_KEY: last, PHYSICAL_NAME_KEY: new_name(last)})

    return with_fields(schema, numbered), last


def mapping_error(schema: StructType) -> str | None:
    """Return the error in the schema's mapping, in words, or None if every column has its own id and name."""
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
            # Names in files are found in any case, as in Spark.
            other = names.setdefault(name.lower(), column)
            if other != column:
                return f"columns {other!r} and {column!r} have one physical name, {name!r}"
            other = ids.setdefault(number, column)
            if other != column:
                return f"columns {other!r} and {column!r} have one id, {number}"
    return None


def highest_id(schema: StructType) -> int:
    """Return the highest id among the columns, 0 for none."""
    numbers = [member.metadata.get(ID_KEY) for member in walk_fields(schema)]
    return max((number for number in numbers if isinstance(number, int)), default=0)


def has_own_names(schema: StructType, configuration: Mapping[str, str]) -> bool:
    """Return whether files hold every column that the table ever had under its own name: it needs no mapping."""
    members = list(walk_fields(schema))
    is_whole = str(len(members)) == configuration.get(MAX_ID_PROPERTY)
    return is_whole and all(member.physical_name == member.name for member in members)


def forbidden_names(schema: StructType) -> list[str]:
    """Return the names, at every depth, that only a table with column mapping may have."""
    return [member.name for member in walk_fields(schema) if _FORBIDDEN & set(member.name)]


def _structs(data_type: DataType, path: str) -> Iterator[tuple[str, StructType]]:
    """Yield every struct at any depth, with the dotted path before its members."""
    if isinstance(data_type, StructType):
        yield path, data_type
    for name, part in parts_of(data_type):
        yield from _structs(part, f"{path}{name}.")


def with_fields(schema: StructType, change: Callable[[StructField], StructField]) -> StructType:
    """Return the schema with every field changed, a field before its members."""

    def within(data_type: DataType) -> DataType:
        return with_fields(data_type, change) if isinstance(data_type, StructType) else with_parts(data_type, within)

    changed = (change(member) for member in schema)
    return StructType(tuple(replace(member, type=within(member.type)) for member in changed))
