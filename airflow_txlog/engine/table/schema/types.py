"""The types of the format as frozen values: what a column of a Delta table can be.

Holds no parsing and no Arrow: `schema` converts from and to JSON and Arrow. The invariant: a value that
exists is one the format allows, so the names within one struct differ in more than case, and a decimal fits 38 digits.
Source: protocol, "Schema Serialization Format".
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from airflow_txlog.errors import SchemaMismatch

MAX_DECIMAL_PRECISION = 38

_PHYSICAL_NAME_KEY = "delta.columnMapping.physicalName"
_COLLATIONS_KEY = "__COLLATIONS"
_CHAR_VARCHAR_KEY = "__CHAR_VARCHAR_TYPE_STRING"
_TYPE_CHANGES_KEY = "delta.typeChanges"


class Primitive(enum.Enum):
    """A type without parameters; the value is its name on the wire."""

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
    """Semi-structured data, which rows hold as two binaries: `datafiles.parquet.physical.VARIANT`.

    Source: protocol, "Variant Data Type".
    """

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
    """A named column, or a named member of a struct. `metadata` is JSON as the table has it, and is not hashed."""

    name: str
    type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def physical_name(self) -> str:
        """The name in partition values, statistics and Parquet files, in a schema made by `column_mapping`.

        Source: protocol, "Column Mapping".
        """
        return str(self.metadata.get(_PHYSICAL_NAME_KEY, self.name))

    @property
    def is_collated(self) -> bool:
        """True where some string of this column compares by a collation other than by bytes."""
        return bool(self.metadata.get(_COLLATIONS_KEY))

    @property
    def is_char(self) -> bool:
        """True for char(n), which is stored padded and compared without the padding; varchar compares plainly."""
        return str(self.metadata.get(_CHAR_VARCHAR_KEY, "")).lower().startswith("char")

    @property
    def is_widened(self) -> bool:
        """True where older files hold the column in a narrower type. Source: protocol, "Type Widening"."""
        return bool(self.metadata.get(_TYPE_CHANGES_KEY))


@dataclass(frozen=True, slots=True)
class StructType:
    """Fields in order. Names keep their case and are found without regard to it.

    Raises SchemaMismatch when two names differ in nothing but case.
    """

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
        """The names in order, in their own case."""
        return [member.name for member in self.fields]

    def find(self, name: str) -> StructField | None:
        """The field of that name in any case, or None."""
        return self.by_name.get(name.lower())

    def find_path(self, path: tuple[str, ...]) -> tuple[StructField, ...] | None:
        """The fields from the top-level column down to the one that `path` names through structs only, or None."""
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
    """Every field at any depth, outermost first: those of structs, and of structs in arrays and maps."""
    if isinstance(data_type, StructType):
        for member in data_type:
            yield member
            yield from walk_fields(member.type)
    elif isinstance(data_type, ArrayType):
        yield from walk_fields(data_type.element)
    elif isinstance(data_type, MapType):
        yield from walk_fields(data_type.key)
        yield from walk_fields(data_type.value)


def walk_types(data_type: DataType) -> Iterator[DataType]:
    """Every type at any depth, this one first."""
    yield data_type
    if isinstance(data_type, StructType):
        for member in data_type:
            yield from walk_types(member.type)
    elif isinstance(data_type, ArrayType):
        yield from walk_types(data_type.element)
    elif isinstance(data_type, MapType):
        yield from walk_types(data_type.key)
        yield from walk_types(data_type.value)


def bare_columns(schema: StructType) -> StructType:
    """The columns, every one and every member nullable, without metadata but that of collations.

    A collation is a part of the type to Spark, and metadata beside it in the format.
    """
    return StructType(
        tuple(
            StructField(
                member.name,
                bare_type(member.type),
                metadata={_COLLATIONS_KEY: member.metadata[_COLLATIONS_KEY]} if member.is_collated else {},
            )
            for member in schema
        )
    )


def bare_type(data_type: DataType) -> DataType:
    """Return the type with every member nullable and without metadata but that of collations."""
    if isinstance(data_type, StructType):
        return bare_columns(data_type)
    if isinstance(data_type, ArrayType):
        return ArrayType(bare_type(data_type.element))
    if isinstance(data_type, MapType):
        return MapType(bare_type(data_type.key), bare_type(data_type.value))
    return data_type
