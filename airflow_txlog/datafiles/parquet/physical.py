"""The representation of a table's data in Parquet files: the format, and each column's name.

A column is stored under its own name, under a physical name, or by field id. A table with column mapping marks its
Arrow fields, at every depth (`marked`). The invariant: a marked field is never looked up by its logical name, so a
column that was dropped and added again never shows its old values. Source: protocol, "Column Mapping"; soundness A18.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

# The log's facts about a field, as `Snapshot.schema` carries them into Arrow.
PHYSICAL_NAME_KEY = b"delta.columnMapping.physicalName"
FIELD_ID_KEY = b"delta.columnMapping.id"
# Our own key: the table's mode, "name" or "id". Without it, the two keys above mean nothing.
MODE_KEY = b"txlog.columnMapping.mode"
# Arrow reads a Parquet file's field ids into this key, and writes them from it.
PARQUET_ID_KEY = b"PARQUET:field_id"


# A variant column in rows, and in a file that does not shred it, in the order and with the mark by which Spark takes it
# for one. Source: protocol, "Variant data in Parquet"; PySpark, `to_arrow_type`.
_VARIANT_MARK = {b"variant": b"true"}
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata=_VARIANT_MARK),
    ]
)


def is_variant(kind: pa.DataType) -> bool:
    """Return whether the type is that of a variant, and not of a struct with the same members."""
    return pa.types.is_struct(kind) and any((field.metadata or {}).items() >= _VARIANT_MARK.items() for field in kind)


# The protocol's choice for a table without delta.parquet.compression.codec.
DEFAULT_CODEC = "ZSTD"
SMALL_CODEC = "SNAPPY"
"""That of a small file: to begin a page in zstd costs more time than to write a small page."""
_SMALL_COLUMN_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFormat:
    """The format of a table's new Parquet files. Source: protocol, "Table Properties".

    `codec` is a name of Arrow's writer, None if the table has no property; `data_page_version` is "1.0" or "2.0".
    """

    codec: str | None = None
    data_page_version: str = "1.0"
    with_dictionaries: bool = True

    def options(self, codec: str | dict[str, str] = DEFAULT_CODEC) -> dict[str, Any]:
        """Return options of `ParquetWriter`, with `codec` if the table names none."""
        chosen = {"compression": self.codec or codec, "data_page_version": self.data_page_version}
        return chosen if self.with_dictionaries else {**chosen, "use_dictionary": False}


DEFAULT_FORMAT = ParquetFormat()


def codec_for(num_columns: int, size_bytes: int | None) -> str:
    """Return the codec of a new file whose rows take `size_bytes` in memory (None: unknown), if the table has none."""
    is_small = size_bytes is not None and size_bytes < num_columns * _SMALL_COLUMN_BYTES
    return SMALL_CODEC if is_small else DEFAULT_CODEC


def file_suffix(codec: str | dict[str, str]) -> str:
    """Return the file name's suffix, which shows its codec to people."""
    name = codec.lower() if isinstance(codec, str) else "mixed"
    return ".parquet" if name == "none" else f".{name}.parquet"


def inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields directly inside a type: a struct's members, a map's key and value, a list's element."""
    if not kind.num_fields:
        return []
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return list(kind) if pa.types.is_struct(kind) else [kind.value_field] if pa.types.is_list(kind) else []


def rebuilt(
    kind: pa.DataType,
    members: Callable[[pa.StructType], Iterable[pa.Field]],
    inner: Callable[[pa.DataType], pa.DataType],
) -> pa.DataType:
    """Return the type with a struct's fields replaced by `members`, and types in a map or list by `inner`."""
    if not kind.num_fields:
        return kind
    if pa.types.is_struct(kind):
        return pa.struct(members(kind))
    if pa.types.is_map(kind):
        key, item = (field.with_type(inner(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    return pa.list_(kind.value_field.with_type(inner(kind.value_type))) if pa.types.is_list(kind) else kind


def is_mapped(field: pa.Field) -> bool:
    """Return whether files hold the field under a physical name or by its id."""
    return MODE_KEY in (field.metadata or {})


def holds_mapped(kind: pa.DataType) -> bool:
    """Return whether a struct inside the type has mapped members."""
    fields = inner_fields(kind)
    return any((pa.types.is_struct(kind) and is_mapped(field)) or holds_mapped(field.type) for field in fields)


def physical_name(field: pa.Field) -> str:
    """Return the name in partition values, in statistics and in files that we write."""
    return str(field.metadata[PHYSICAL_NAME_KEY].decode()) if is_mapped(field) else str(field.name)


def is_found_by_id(field: pa.Field) -> bool:
    """Return whether files hold the field with its id, under any name."""
    return (field.metadata or {}).get(MODE_KEY) == b"id"


class FileFields:
    """The fields of a file, or of one struct in it, among which the table's fields are found."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self._fields = list(fields)
        # Of equal names the first one counts, as everywhere.
        self._names = {str(field.name): index for index, field in reversed(list(enumerate(self._fields)))}

    @cached_property
    def _lowered(self) -> dict[str, int]:
        return {str(field.name).lower(): index for index, field in reversed(list(enumerate(self._fields)))}

    @cached_property
    def _ids(self) -> dict[bytes | None, int]:
        return {(field.metadata or {}).get(PARQUET_ID_KEY): index for index, field in enumerate(self._fields)}

    def find(self, wanted: pa.Field) -> int | None:
        """Return the index of the table's field `wanted`, or None if the file lacks it."""
        if wanted.metadata is None:
            return self.find_name(wanted.name)
        if is_found_by_id(wanted):
            return self._ids.get(wanted.metadata[FIELD_ID_KEY])
        return self.find_name(physical_name(wanted))

    def find_name(self, wanted: str) -> int | None:
        """Return the index of the name in this spelling, else in any case; None if there is none."""
        found = self._names.get(wanted)
        return self._lowered.get(wanted.lower()) if found is None else found


def is_as_held(field: pa.Field, held: pa.Field) -> bool:
    """Return whether the file's column has the name, under which statistics are found, and the type of the field."""
    has_id = not is_found_by_id(field) or (held.metadata or {}).get(PARQUET_ID_KEY) == field.metadata[FIELD_ID_KEY]
    return has_id and physical_name(field) == held.name and _is_same(field.type, held.type)


def _is_same(kind: pa.DataType, held: pa.DataType) -> bool:
    """Return whether the types differ at most in nullability and in the names of a list's or map's values."""
    inner, others = inner_fields(kind), inner_fields(held)
    if not inner or len(inner) != len(others) or kind.id != held.id:
        return bool(kind == held)
    if pa.types.is_struct(kind):
        return all(map(is_as_held, inner, others))
    return all(_is_same(field.type, each.type) for field, each in zip(inner, others, strict=True))


def columns_of_leaf(path: str) -> set[str]:
    """Return the possible names of the top-level column of the leaf at a Parquet path: names may hold dots too."""
    parts = path.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def has_field_ids(fields: Iterable[pa.Field]) -> bool:
    """Return whether a field at any depth of a file's schema has a field id."""
    return any(PARQUET_ID_KEY in (field.metadata or {}) or has_field_ids(inner_fields(field.type)) for field in fields)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without void struct members, which no file holds and which read as null.

    Source: protocol, "Primitive Types" (void).
    """
    if pa.types.is_struct(kind) and all(pa.types.is_null(field.type) for field in kind):
        # No table has a struct that contains only such members (see `check_rows_have_place`); rows staged for one may.
        return kind
    return rebuilt(kind, _stored_members, stored_type)


def _stored_members(kind: pa.StructType) -> list[pa.Field]:
    return [field.with_type(stored_type(field.type)) for field in kind if not pa.types.is_null(field.type)]


def physical_field(field: pa.Field) -> pa.Field:
    """Return the field as we write it: physical names and field ids at every depth, and no other metadata."""
    found = pa.field(physical_name(field), _physical_type(field.type), field.nullable)
    return found.with_metadata({PARQUET_ID_KEY: field.metadata[FIELD_ID_KEY]}) if is_mapped(field) else found


def physical_schema(fields: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema of a file that we write with these columns of the table."""
    return pa.schema([physical_field(field) for field in fields])


def marked(field: pa.Field, mode: str) -> pa.Field:
    """Return the field, whose metadata is the log's, with the mode's mark wherever there is a physical name."""
    found = field.with_type(marked_type(field.type, mode))
    metadata = field.metadata or {}
    return found.with_metadata({**metadata, MODE_KEY: mode.encode()}) if PHYSICAL_NAME_KEY in metadata else found


def marked_type(kind: pa.DataType, mode: str) -> pa.DataType:
    """Return the type with its members marked; see `marked`."""
    return rebuilt(kind, lambda struct: [marked(field, mode) for field in struct], lambda each: marked_type(each, mode))


def _physical_type(kind: pa.DataType) -> pa.DataType:
    return rebuilt(kind, lambda struct: map(physical_field, struct), _physical_type)
