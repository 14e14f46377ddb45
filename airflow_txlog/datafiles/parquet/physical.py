"""How a table's column stands in its data files: under its own name, under a physical name, or by field id.

A table with column mapping marks its Arrow fields, at every depth (`marked`); a field without a mark stands under its
own name. The invariant: a marked field is never looked for by its logical name, so a column that was dropped and added
again under the same name never shows the old values. Source: protocol, "Column Mapping"; soundness A18.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

# What the log says of a field, as `Snapshot.schema` carries it into Arrow.
PHYSICAL_NAME_KEY = b"delta.columnMapping.physicalName"
FIELD_ID_KEY = b"delta.columnMapping.id"
# Ours: the table's mode, "name" or "id". Only where it stands do the two above mean anything.
MODE_KEY = b"txlog.columnMapping.mode"
# What Arrow reads from and writes to a Parquet file's field ids.
PARQUET_ID_KEY = b"PARQUET:field_id"


def is_mapped(field: pa.Field) -> bool:
    """Whether the field stands in files under a physical name or by its id."""
    return MODE_KEY in (field.metadata or {})


def holds_mapped(kind: pa.DataType) -> bool:
    """Whether a struct inside the type has mapped members."""
    if pa.types.is_struct(kind):
        return any(is_mapped(field) or holds_mapped(field.type) for field in kind)
    if pa.types.is_map(kind):
        return holds_mapped(kind.key_type) or holds_mapped(kind.item_type)
    return pa.types.is_list(kind) and holds_mapped(kind.value_type)


def physical_name(field: pa.Field) -> str:
    """The name in partition values, in statistics and in files that we write."""
    return str(field.metadata[PHYSICAL_NAME_KEY].decode()) if is_mapped(field) else str(field.name)


def field_id(field: pa.Field) -> int | None:
    """The id that a file column of this field has; None for an unmapped field."""
    return int(field.metadata[FIELD_ID_KEY]) if is_mapped(field) else None


def is_found_by_id(field: pa.Field) -> bool:
    """Whether files hold the field under whatever name, with its id."""
    return (field.metadata or {}).get(MODE_KEY) == b"id"


class FileFields:
    """The fields of a file, or of one struct in it, to find the table's fields among."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        found = list(fields)
        names = [str(field.name) for field in found]
        # Of equal names the first one counts, as everywhere.
        self._names = {name: index for index, name in reversed(list(enumerate(names)))}
        self._lowered = {name.lower(): index for index, name in reversed(list(enumerate(names)))}
        self._ids = {(field.metadata or {}).get(PARQUET_ID_KEY): index for index, field in enumerate(found)}

    def find(self, wanted: pa.Field) -> int | None:
        """The index of the field that holds the table's field `wanted`, None where the file lacks it."""
        if is_found_by_id(wanted):
            return self._ids.get(wanted.metadata[FIELD_ID_KEY])
        return self.find_name(physical_name(wanted))

    def find_name(self, wanted: str) -> int | None:
        """The index of a name: as it is spelt, else without regard to case; None where there is none."""
        return self._names.get(wanted, self._lowered.get(wanted.lower()))


def columns_of_leaf(path: str) -> set[str]:
    """Return the names that the top-level column of the leaf at a Parquet path may have: names may hold dots too."""
    parts = path.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def has_field_ids(kind: pa.Schema | pa.DataType) -> bool:
    """Whether any field at any depth of a file's schema has a field id."""
    fields: Iterable[pa.Field]
    if isinstance(kind, pa.Schema) or pa.types.is_struct(kind):
        fields = kind
    elif pa.types.is_map(kind):
        fields = (kind.key_field, kind.item_field)
    elif pa.types.is_list(kind):
        fields = (kind.value_field,)
    else:
        return False
    return any(PARQUET_ID_KEY in (field.metadata or {}) or has_field_ids(field.type) for field in fields)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type without struct members that have no type (void): a file leaves them out, and they read as null.

    Source: protocol, "Primitive Types" (void).
    """
    if pa.types.is_struct(kind):
        held = [field.with_type(stored_type(field.type)) for field in kind if not pa.types.is_null(field.type)]
        # No table has a struct of nothing else (see `check_files_writable`); rows on their way to one may.
        return pa.struct(held) if held else kind
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(stored_type(kind.key_type))
        return pa.map_(key, kind.item_field.with_type(stored_type(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(stored_type(kind.value_type)))
    return kind


def physical_field(field: pa.Field) -> pa.Field:
    """The field as a file of ours holds it: physical names and field ids at every depth, and no other metadata."""
    found = pa.field(physical_name(field), _physical_type(field.type), field.nullable)
    number = field_id(field)
    return found if number is None else found.with_metadata({PARQUET_ID_KEY: str(number).encode()})


def physical_schema(fields: Iterable[pa.Field]) -> pa.Schema:
    """The schema of a file of ours with these columns of the table."""
    return pa.schema([physical_field(field) for field in fields])


def marked(field: pa.Field, mode: str) -> pa.Field:
    """The field, whose metadata is the log's, with the mode's mark at every depth that has a physical name."""
    found = field.with_type(marked_type(field.type, mode))
    metadata = field.metadata or {}
    return found.with_metadata({**metadata, MODE_KEY: mode.encode()}) if PHYSICAL_NAME_KEY in metadata else found


def marked_type(kind: pa.DataType, mode: str) -> pa.DataType:
    """The type with its members marked; see `marked`."""
    if pa.types.is_struct(kind):
        return pa.struct([marked(field, mode) for field in kind])
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(marked_type(kind.key_type, mode))
        return pa.map_(key, kind.item_field.with_type(marked_type(kind.item_type, mode)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(marked_type(kind.value_type, mode)))
    return kind


def _physical_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([physical_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_physical_type(kind.key_type)),
            kind.item_field.with_type(_physical_type(kind.item_type)),
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_physical_type(kind.value_type)))
    return kind
