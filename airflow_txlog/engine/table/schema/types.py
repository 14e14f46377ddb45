"""The types of the format as frozen values: the possible types of a Delta table's columns, and the columns' paths.

Parsing and Arrow are in `schema`. The invariant: a value that exists is allowed by the format, so names within one
struct differ in more than case and a decimal has at most 38 digits. Source: protocol, "Schema Serialization Format".
"""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from airflow_txlog.errors import SchemaMismatch

MAX_DECIMAL_PRECISION = 38

PHYSICAL_NAME_KEY = "delta.columnMapping.physicalName"
_COLLATIONS_KEY = "__COLLATIONS"
CHAR_VARCHAR_KEY = "__CHAR_VARCHAR_TYPE_STRING"
TYPE_CHANGES_KEY = "delta.typeChanges"


class Primitive(enum.Enum):
    """A type without parameters; the value is its name in the log."""

    BOOLEAN = "boolean"
    BYTE = "byte"
    SHORT = "short"
    INTEGER = "integer"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    VOID = "void"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class DecimalType:
    """A decimal of `precision` digits, `scale` of them after the point. Raises SchemaMismatch outside 1..38, 0..p."""

    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= MAX_DECIMAL_PRECISION and 0 <= self.scale <= self.precision):
            raise SchemaMismatch(
                f"decimal({self.precision},{self.scale}) is not a type of the format: it needs a precision of 1 to "
                f"{MAX_DECIMAL_PRECISION} and a scale of 0 to the precision."
            )

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class VariantType:
    """Semi-structured data, two binaries in rows (`physical.VARIANT`). Source: protocol, "Variant Data Type"."""

    def __str__(self) -> str:
        return "variant"


@dataclass(frozen=True, slots=True)
class ArrayType:
    """A list of one element type."""

    element: DataType
    contains_null: bool = True

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapType:
    """Keys, never null, to values."""

    key: DataType
    value: DataType
    value_contains_null: bool = True

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True, slots=True)
class StructField:
    """A column, or a member of a struct. `metadata` is the table's JSON and is not hashed."""

    name: str
    type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def physical_name(self) -> str:
        """The name in partition values, statistics and Parquet files, in a schema made by `column_mapping`."""
        return str(self.metadata.get(PHYSICAL_NAME_KEY, self.name))

    @property
    def is_collated(self) -> bool:
        """Whether some string of this column does not compare by bytes."""
        return bool(self.metadata.get(_COLLATIONS_KEY))

    @property
    def is_char(self) -> bool:
        """Whether this is char(n), which is stored with padding and compared without; varchar compares plainly."""
        return str(self.metadata.get(CHAR_VARCHAR_KEY, "")).lower().startswith("char")

    @property
    def is_widened(self) -> bool:
        """Whether older files hold the column in a narrower type. Source: protocol, "Type Widening"."""
        return bool(self.metadata.get(TYPE_CHANGES_KEY))


@dataclass(frozen=True, slots=True)
class StructType:
    """Fields in order; names keep their case and are found in any. Raises SchemaMismatch if two differ only in case."""

    fields: tuple[StructField, ...]
    # By name in lower case.
    by_name: Mapping[str, StructField] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, StructField] = {}
        for member in self.fields:
            name = member.name.lower()
            if name in by_name:
                first = by_name[name].name
                raise SchemaMismatch(
                    f"Columns {first!r} and {member.name!r} have the same name: names of the format are distinguished "
                    "without regard to case. Rename one of them.",
                    columns=[first, member.name],
                )
            by_name[name] = member
        object.__setattr__(self, "by_name", by_name)

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __str__(self) -> str:
        return "struct<" + ",".join(f"{member.name}:{member.type}" for member in self.fields) + ">"

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.fields]

    def find(self, name: str) -> StructField | None:
        """Return the field of that name in any case, or None."""
        return self.by_name.get(name.lower())

    def find_path(self, path: tuple[str, ...]) -> tuple[StructField, ...] | None:
        """Return the fields from the top-level column to the one that `path` names through structs, or None."""
        found: list[StructField] = []
        here: DataType = self
        for name in path:
            member = here.find(name) if isinstance(here, StructType) else None
            if member is None:
                return None
            found.append(member)
            here = member.type
        return tuple(found) or None


DataType: TypeAlias = Primitive | DecimalType | VariantType | ArrayType | MapType | StructType


def walk_fields(data_type: DataType) -> Iterator[StructField]:
    """Yield every field at any depth, outermost first, also of structs in arrays and maps."""
    members = data_type.fields if isinstance(data_type, StructType) else ()
    for member in members:
        yield member
        # Most members have nothing inside.
        if not isinstance(member.type, Primitive):
            yield from walk_fields(member.type)
    if not members:
        for _, part in parts_of(data_type):
            yield from walk_fields(part)


def walk_types(data_type: DataType) -> Iterator[DataType]:
    """Yield every type at any depth, this one first."""
    yield data_type
    for _, part in parts_of(data_type):
        if isinstance(part, Primitive):
            yield part
        else:
            yield from walk_types(part)


def parts_of(data_type: DataType) -> list[tuple[str, DataType]]:
    """Return the types directly inside, by the name of the field, `element`, or `key` and `value`."""
    match data_type:
        case StructType(fields):
            return [(member.name, member.type) for member in fields]
        case ArrayType(element):
            return [("element", element)]
        case MapType(key, value):
            return [("key", key), ("value", value)]
    return []


def bare_columns(schema: StructType) -> StructType:
    """Return the columns, all members nullable and without metadata but collations, which are part of Spark's types."""

    def bare(member: StructField) -> StructField:
        kept = {_COLLATIONS_KEY: member.metadata[_COLLATIONS_KEY]} if member.is_collated else {}
        return StructField(member.name, bare_type(member.type), metadata=kept)

    # Most columns are bare.
    found = [each if _is_bare(each) else bare(each) for each in schema.fields]
    return schema if all(map(operator.is_, found, schema.fields)) else StructType(tuple(found))


def _is_bare(member: StructField) -> bool:
    return member.nullable and not member.metadata and isinstance(member.type, Primitive | DecimalType)


def bare_type(data_type: DataType) -> DataType:
    """Return the type with every member nullable and without metadata but collations."""
    return bare_columns(data_type) if isinstance(data_type, StructType) else nullable_inside(data_type, bare_type)


def with_parts(data_type: DataType, change: Callable[[DataType], DataType]) -> DataType:
    """Return an array or a map with its parts changed; other types as they are."""
    match data_type:
        case ArrayType(element):
            return replace(data_type, element=change(element))
        case MapType(key, value):
            return replace(data_type, key=change(key), value=change(value))
    return data_type


def nullable_inside(data_type: DataType, change: Callable[[DataType], DataType]) -> DataType:
    """Return an array or a map with its parts changed and nullable; other types as they are."""
    match data_type:
        case ArrayType(element):
            return ArrayType(change(element))
        case MapType(key, value):
            return MapType(change(key), change(value))
    return data_type


# --- paths of columns -------------------------------------------------------------------------------------------------

Path: TypeAlias = tuple[str, ...]
"""The parts of a column's name: `address.city`, and `items.element.price` inside an array.

In its text, backquotes enclose a part that has a dot, a comma or a backquote; a backquote inside is doubled. A path
that is read from its own text is the same path. Source: Spark, SqlBaseParser.g4 (`multipartIdentifierList`)."""

_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
_LISTED = re.compile(r"(?:`(?:[^`]|``)+`|[^`,])+")
_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def parse_path(text: str) -> Path:
    """Return the parts of a column's name. Raises ValueError."""
    parts: list[str] = []
    at = 0
    while found := _PART.match(text, at):
        parts.append(found[2] or found[1].replace("``", "`"))
        at = found.end()
        if at == len(text):
            return tuple(parts)
        if text[at] != ".":
            break
        at += 1
    raise ValueError(f"{text!r} names no column")


def parse_paths(text: str) -> list[Path]:
    """Return the paths in a list with commas; blanks around them do not count. Raises ValueError."""
    listed = [each.strip() for each in _LISTED.findall(text)]
    if _LISTED.sub("", text).strip(","):
        raise ValueError("expected names of columns, and a backquote has no partner")
    return [parse_path(each) for each in listed if each]


def path_text(path: Path) -> str:
    """Return the text of a path, with backquotes around parts that are more than letters, digits and underscores."""
    return ".".join(part if _PLAIN.fullmatch(part) else f"`{part.replace('`', '``')}`" for part in path)


def is_below(path: Path, other: Path) -> bool:
    """Return whether a path is the other one, or inside of it; names are the same in any case."""
    return [part.lower() for part in path[: len(other)]] == [part.lower() for part in other]
