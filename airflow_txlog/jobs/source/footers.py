"""The columns of a Parquet or ORC file with the types that Spark gives them, from its footer and without Spark.

Spark's own files state their types. The invariant: a type that Spark reads in another way than Arrow, or not at all, is
refused by name.
Source: Spark, ParquetToSparkSchemaConverter and OrcUtils.toCatalystSchema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.parquet.physical import columns_of_leaf
from airflow_txlog.datafiles.parquet.reading import DataFile, calendar_of
from airflow_txlog.datafiles.tasks.rows_without_log import ORC_TYPE_KEY, reading_source
from airflow_txlog.engine.table.schema.schema import FROM_ARROW, parse_schema
from airflow_txlog.engine.table.schema.types import (
    CHAR_VARCHAR_KEY,
    MAX_DECIMAL_PRECISION,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
    VariantType,
    bare_columns,
    parts_of,
    walk_fields,
    walk_types,
    with_parts,
)
from airflow_txlog.errors import CorruptTable, InvalidJobSpec, SchemaMismatch, TxlogError, UnsupportedFeature
from airflow_txlog.storage import Store

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
# No Parquet file has the first two, and a column of nulls has no type.
_NOT_SO = frozenset((pa.float16(), pa.date64(), pa.null()))
# ORC's names of types that differ from the format's.
_ORC_NAMES: dict[DataType, str] = {
    Primitive.BYTE: "tinyint",
    Primitive.SHORT: "smallint",
    Primitive.INTEGER: "int",
    Primitive.LONG: "bigint",
}
# For any other type, known or to come, Arrow may show plain bytes or a number, and Spark a different value or none.
_KNOWN_LOGICAL_TYPES = frozenset({"NONE", "STRING", "INT", "DECIMAL", "DATE", "TIMESTAMP", "JSON", "UNKNOWN"})
# Types that neither Spark nor a Delta table has, and the type to write instead.
_INSTEAD = {"UUID": "text", "FLOAT16": "float32", "TIME": "text or a whole number", "INTERVAL": "a whole number"}
# Spark's note of the value that a column has in a file that lacks it, as SQL.
_DEFAULT = "EXISTS_DEFAULT"
_CHAR = re.compile(r"\s*char\s*\(\s*([0-9]{1,9})\s*\)\s*", re.IGNORECASE)
# A CHAR inside of another column; a VARCHAR changes no value that is read.
_CHAR_INSIDE = re.compile(r"(?<!var)char\s*\(", re.IGNORECASE)
# A line of the text of a schema: two spaces a level, and after the name the annotation of a group.
_LINE = re.compile(r"( *)(required|optional|repeated) (group )?.*?field_id=-?\d+ (.*)(?: \{|;)")


class NotSpark(Exception):
    """A type that Spark would read in another way than Arrow, or not at all."""


class NoColumnType(NotSpark):
    """A type that neither a Spark column nor a Delta table can have. `instead`: the type to write."""

    def __init__(self, path: str, kind: str, instead: str) -> None:
        super().__init__(f"column {path!r} of the type {kind}")
        self.instead = instead


@dataclass(frozen=True, slots=True)
class Notes:
    """Spark's notes on columns by their names, and whether there are any (`is_any`), even without effect on reading.

    `chars`: the n of a text `char(n)`, which Spark pads. `defaults`: the SQL of a column's value in a file without it.
    """

    chars: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    is_any: bool = False


def orc_schema(store: Store, path: str, argument: str) -> StructType:
    """Return the columns of an ORC file. Raises InvalidJobSpec (`argument`), InvalidInput."""
    file = DataFile(store=store, path=path)
    with reading_source(file.name, "ORC"), store.open_input(path) as source:
        schema = pyarrow.orc.ORCFile(source).schema
    try:
        return _struct(_column(field, is_orc=True) for field in schema)
    except NotSpark as error:
        raise unread(file.name, error, argument) from error


def without_void(columns: StructType) -> StructType:
    """Return the columns with INT for those that hold only null, as Spark reads them."""
    if all(kind is not Primitive.VOID for kind in walk_types(columns)):
        return columns
    return StructType(tuple(replace(field, type=_without_void(field.type)) for field in columns))


def _without_void(kind: DataType) -> DataType:
    if kind is Primitive.VOID:
        return Primitive.INTEGER
    return without_void(kind) if isinstance(kind, StructType) else with_parts(kind, _without_void)


def is_in_nanoseconds(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds times that Spark refuses to read."""
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "ns")
    return any(is_in_nanoseconds(kind.field(index).type) for index in range(kind.num_fields))


def columns_of_footer(parquet: pq.ParquetFile) -> StructType:
    """Return the columns of an open Parquet file, void for those that hold only null. Raises NotSpark."""
    schema = parquet.schema
    for index in range(len(schema)):
        leaf = schema.column(index)
        kind = leaf.logical_type.type
        if kind in _INSTEAD:
            raise NoColumnType(leaf.path, kind, _INSTEAD[kind])
        if kind == "DECIMAL" and leaf.precision > MAX_DECIMAL_PRECISION:
            digits = f"DECIMAL({leaf.precision},{leaf.scale})"
            raise NoColumnType(leaf.path, digits, f"a decimal of at most {MAX_DECIMAL_PRECISION} digits")
        if kind not in _KNOWN_LOGICAL_TYPES:
            raise NotSpark(f"column {leaf.path!r} of the type {kind}")
        # Spark alone reads the longer ones; Arrow alone reads a small one in bytes of any length.
        is_small = leaf.physical_type == "BYTE_ARRAY" and leaf.precision <= 18
        if kind == "DECIMAL" and (is_small or leaf.length > 16):
            raise NotSpark(f"column {leaf.path!r}, a decimal as {leaf.physical_type}")
    _check_groups(schema)
    int96 = calendar_of(parquet).int96_columns
    names = set(parquet.schema_arrow.names)
    # By a leaf's path alone, `a.b` may be a member of column `a` or a column with that name.
    for index in range(len(schema)) if int96 else ():
        leaf = schema.column(index)
        if leaf.physical_type != "INT96":
            continue
        if len(names & columns_of_leaf(leaf.path)) > 1:
            raise NotSpark(f"column {leaf.path!r} of INT96, whose name is that of another column's member")
    written = (parquet.metadata.metadata or {}).get(_SPARK_SCHEMA)
    if written is None:
        return _struct(_column(field, is_int96=field.name in int96, is_orc=False) for field in parquet.schema_arrow)
    stated = _written_by_spark(written)
    held = _struct(StructField(field.name, _type(field, is_orc=False)) for field in parquet.schema_arrow)
    for each in stated:
        other = held.find(each.name)
        if other is not None and not _is_held(each.type, other.type, has_int96=other.name in int96):
            raise NotSpark(f"column {each.name!r} in another type than the one that Spark noted for it")
    return stated


def notes_of(parquet: pq.ParquetFile) -> Notes:
    """Return the notes in a file that Spark follows. Raises NotSpark for those that only Spark can follow."""
    written = (parquet.metadata.metadata or {}).get(_SPARK_SCHEMA)
    if written is None:
        return Notes()
    columns = _noted(written)
    is_any = any(field.metadata for field in walk_fields(columns))
    return replace(notes_in({field.name: field.metadata for field in columns}), is_any=is_any)


def notes_in(metadata: Mapping[str, Mapping[str, Any]]) -> Notes:
    """Return the same from the metadata of columns, by their names. Raises NotSpark."""
    chars, defaults = {}, {}
    for name, noted in metadata.items():
        mark = str(noted.get(CHAR_VARCHAR_KEY, ""))
        found = _CHAR.fullmatch(mark)
        if found is not None:
            chars[name] = int(found[1])
        elif _CHAR_INSIDE.search(mark):
            raise NotSpark(f"column {name!r} of the type {mark}")
        if _DEFAULT in noted:
            defaults[name] = str(noted[_DEFAULT])
    return Notes(chars, defaults)


@dataclass(frozen=True, slots=True)
class _Node:
    """A field of a schema: its path with a dot behind it, its annotation, and whether each of its members repeats."""

    path: str
    kind: str
    is_repeated: bool
    members: list[bool] = field(default_factory=list)


def _check_groups(schema: pq.ParquetSchema) -> None:
    """Raise NotSpark for groups that Spark and Arrow take for other types.

    Only the text of a schema shows the annotations of groups; the paths of the leaves show which are names.
    Source: parquet-format, LogicalTypes, "Backward-compatibility rules"; Arrow follows later ones than Spark.
    """
    paths = [schema.column(index).path for index in range(len(schema))]
    if not any("." in path or "\n" in path for path in paths):
        return  # no groups
    leaves = iter(paths)
    leaf = next(leaves, None)
    above: list[_Node] = []
    for line in str(schema).split("\n")[1:]:
        if line.strip() in ("", "}"):
            continue
        found = _LINE.fullmatch(line)
        if found is None or leaf is None:
            raise NotSpark("a column whose name breaks a line")
        depth, is_repeated, named = len(found[1]) // 2, found[2] == "repeated", found[4]
        _close(above, depth)
        if not above:
            above.append(_Node("", "", is_repeated))
            continue
        above[-1].members.append(is_repeated)
        if not found[3]:
            above.append(_Node("", "", is_repeated))
            leaf = next(leaves, None)
            continue
        name, kind = named, ""
        if not leaf.startswith(f"{above[-1].path}{name}."):
            name, _, note = named.rpartition(" (")
            kind = note.removesuffix(")")
        if not leaf.startswith(f"{above[-1].path}{name}."):
            raise NotSpark("a column whose name is not that of its values")
        if kind not in ("", "List", "Map"):
            raise NotSpark(f"a group of the type {kind}")
        above.append(_Node(f"{above[-1].path}{name}.", kind, is_repeated))
    _close(above, 0)


def _close(above: list[_Node], depth: int) -> None:
    """Leave the fields from this depth on, whose members are all known now. Raises NotSpark."""
    while len(above) > depth:
        node = above.pop()
        around = above[-1].kind if above else ""
        if around == "List" and node.is_repeated and node.members == [True]:
            raise NotSpark("a list whose elements are lists or maps without a group of their own")
        if around == "Map" and node.is_repeated and node.members != [False, False]:
            raise NotSpark("a map whose entries are no key and value")


def _is_held(stated: DataType, held: DataType, *, has_int96: bool) -> bool:
    """Return whether a file holds the types in Spark's schema, or fewer: a later writer may have copied the schema."""
    for one, other in pairs_of(stated, held):
        # INT96 is an instant to Spark; Arrow shows it as a time without a zone. A column of nulls has no type.
        is_int96 = has_int96 and one is Primitive.TIMESTAMP and other is Primitive.TIMESTAMP_NTZ
        is_same_kind = isinstance(one, StructType | ArrayType | MapType) and type(one) is type(other)
        if not (is_int96 or is_same_kind or other is Primitive.VOID or one == other):
            return False
    return True


def pairs_of(wanted: DataType, held: DataType) -> Iterator[tuple[DataType, DataType]]:
    """Yield the two types, and the types inside of them that have the same place."""
    yield wanted, held
    if type(wanted) is type(held):
        inside = {name.lower(): part for name, part in parts_of(held)}
        for name, part in parts_of(wanted):
            if name.lower() in inside:
                yield from pairs_of(part, inside[name.lower()])


def _noted(text: bytes) -> StructType:
    try:
        return parse_schema(text.decode())
    except (CorruptTable, UnsupportedFeature, UnicodeDecodeError) as error:
        raise NotSpark("a schema that cannot be read") from error


def _written_by_spark(text: bytes) -> StructType:
    found = _noted(text)
    if any(field.is_collated for field in walk_fields(found)):
        raise NotSpark("a column of text with a collation")
    for kind in walk_types(found):
        if kind is Primitive.VOID or isinstance(kind, VariantType):
            raise NotSpark(f"a column of the type {kind}")
    return bare_columns(found)


def _struct(fields: Iterable[StructField]) -> StructType:
    try:
        return StructType(tuple(fields))
    except SchemaMismatch as error:
        raise NotSpark("columns whose names differ in nothing but case") from error


def _column(field: pa.Field, *, is_orc: bool, is_int96: bool = False) -> StructField:
    if is_int96 and not pa.types.is_timestamp(field.type):
        raise NotSpark(f"column {field.name!r} with INT96 inside")
    kind: DataType = Primitive.TIMESTAMP if is_int96 else _type(field, is_orc=is_orc)
    if is_orc and (field.metadata or {}).get(ORC_TYPE_KEY) == b"timestamp_ntz":
        kind = Primitive.TIMESTAMP_NTZ
    return StructField(field.name, kind)


def _type(field: pa.Field, *, is_orc: bool) -> DataType:
    kind, is_a = field.type, pa.types
    marked = (field.metadata or {}).get(ORC_TYPE_KEY, b"").decode()
    # Most columns are of these types.
    found = None if is_a.is_timestamp(kind) or kind in _NOT_SO else FROM_ARROW.get(kind)
    if found is not None and marked in ("", "timestamp_ntz", _ORC_NAMES.get(found, getattr(found, "value", None))):
        return found
    if is_a.is_dictionary(kind):
        return _type(field.with_type(kind.value_type), is_orc=is_orc)
    if is_a.is_fixed_size_binary(kind):
        return Primitive.BINARY
    if is_a.is_decimal(kind) and kind.precision <= MAX_DECIMAL_PRECISION and 0 <= kind.scale <= kind.precision:
        return DecimalType(kind.precision, kind.scale)
    if is_a.is_null(kind) and not is_orc:
        return Primitive.VOID
    if is_a.is_timestamp(kind) and kind.unit in ("ms", "us", "ns") and not is_orc:
        return Primitive.TIMESTAMP_NTZ if kind.tz is None else Primitive.TIMESTAMP
    if is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
        return ArrayType(_inner(kind.value_field, is_orc))
    if is_a.is_map(kind):
        return MapType(_inner(kind.key_field, is_orc), _inner(kind.item_field, is_orc))
    if is_a.is_struct(kind) and kind.num_fields:
        return _struct(StructField(each.name, _inner(each, is_orc)) for each in kind)
    raise NotSpark(f"column {field.name!r} of the type {marked or kind}")


def _inner(field: pa.Field, is_orc: bool) -> DataType:
    if (field.metadata or {}).get(ORC_TYPE_KEY) == b"timestamp_ntz":
        raise NotSpark(f"{field.name!r} of the type timestamp_ntz inside another column")
    return _type(field, is_orc=is_orc)


def unread(name: str, error: Exception, argument: str) -> TxlogError:
    """Return the error for a file of a source whose footer raised `error`."""
    if isinstance(error, NoColumnType):
        return InvalidJobSpec(
            f"{argument}: the file {name} has {error}, which neither Spark nor a Delta table has. Have the column "
            f"written as {error.instead}, or name the columns that you need as schema. Nothing was read.",
            argument=argument,
        )
    if isinstance(error, NotSpark):
        return InvalidJobSpec(
            f"{argument}: the file {name} has {error}, and this package does not know how Spark reads it. Give the "
            "columns that you need as schema, or have the file written with other types. Nothing was read.",
            argument=argument,
        )
    try:
        with reading_source(name, "Parquet"):
            raise error
    except TxlogError as found:
        return found
