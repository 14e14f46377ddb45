"""The columns of a Parquet or ORC file with the types that Spark gives them, from its footer, without asking Spark.

Spark's own files say their types; those of others are taken from the file's. The invariant: a type that Spark reads in
another way than Arrow, or not at all, is refused by name.
Source: Spark, ParquetToSparkSchemaConverter and OrcUtils.toCatalystSchema.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.parquet.calendars import calendar_of
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.tasks.rows_without_log import ORC_TYPE_KEY, reading_source
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
    VariantType,
    bare_columns,
    walk_fields,
    walk_types,
)
from airflow_txlog.errors import CorruptTable, InvalidJobSpec, SchemaMismatch, UnsupportedFeature
from airflow_txlog.storage import Store

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_PLAIN: tuple[tuple[pa.DataType, Primitive], ...] = (
    (pa.bool_(), Primitive.BOOLEAN),
    (pa.int8(), Primitive.BYTE),
    (pa.int16(), Primitive.SHORT),
    (pa.int32(), Primitive.INTEGER),
    (pa.int64(), Primitive.LONG),
    (pa.uint8(), Primitive.SHORT),
    (pa.uint16(), Primitive.INTEGER),
    (pa.uint32(), Primitive.LONG),
    (pa.float32(), Primitive.FLOAT),
    (pa.float64(), Primitive.DOUBLE),
    (pa.string(), Primitive.STRING),
    (pa.binary(), Primitive.BINARY),
    (pa.date32(), Primitive.DATE),
)
# What ORC keeps of a column's type, where that is not the type's name in the format.
_SIMPLE_NAMES = {
    Primitive.BYTE: "tinyint",
    Primitive.SHORT: "smallint",
    Primitive.INTEGER: "int",
    Primitive.LONG: "bigint",
}
# What Arrow shows as plain bytes or another number, and Spark as something else or not at all.
_OTHER_LOGICAL_TYPES = frozenset({"ENUM", "BSON", "UUID", "INTERVAL", "FLOAT16", "TIME", "VARIANT", "GEOMETRY"})


class NotSpark(Exception):
    """A type that Spark would read in another way than Arrow, or not at all."""


def parquet_schema(store: Store, path: str, argument: str) -> StructType:
    """The columns of a Parquet file. Raises InvalidJobSpec (`argument`), InvalidInput, UnsupportedFeature."""
    file = DataFile(store=store, path=path)
    with reading_source(file.name, "Parquet"), open_data_file(file) as parquet:
        try:
            return schema_of_footer(parquet)
        except NotSpark as error:
            raise _refused(file.name, str(error), argument) from error


def orc_schema(store: Store, path: str, argument: str) -> StructType:
    """The columns of an ORC file. Raises InvalidJobSpec (`argument`), InvalidInput."""
    file = DataFile(store=store, path=path)
    with reading_source(file.name, "ORC"), store.open_input(path) as source:
        schema = pyarrow.orc.ORCFile(source).schema
    try:
        return _struct(_column(field, is_orc=True) for field in schema)
    except NotSpark as error:
        raise _refused(file.name, str(error), argument) from error


def schema_of_footer(parquet: pq.ParquetFile) -> StructType:
    """The columns of an open Parquet file. Raises NotSpark."""
    written = (parquet.metadata.metadata or {}).get(_SPARK_SCHEMA)
    if written is not None:
        return _written_by_spark(written)
    for index in range(parquet.metadata.num_columns):
        leaf = parquet.schema.column(index)
        if leaf.logical_type.type in _OTHER_LOGICAL_TYPES:
            raise NotSpark(f"column {leaf.path!r} of the type {leaf.logical_type.type}")
    int96 = calendar_of(parquet).int96_columns
    return _struct(_column(field, is_int96=field.name in int96, is_orc=False) for field in parquet.schema_arrow)


def _written_by_spark(text: bytes) -> StructType:
    """The columns that Spark has written down in a file of its own."""
    try:
        found = parse_schema(text.decode())
    except (CorruptTable, UnsupportedFeature, UnicodeDecodeError) as error:
        raise NotSpark("a schema that cannot be read") from error
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
    if is_a.is_dictionary(kind):
        return _type(field.with_type(kind.value_type), is_orc=is_orc)
    if is_a.is_large_string(kind) or is_a.is_string_view(kind):
        return Primitive.STRING
    if is_a.is_large_binary(kind) or is_a.is_binary_view(kind) or is_a.is_fixed_size_binary(kind):
        return Primitive.BINARY
    for plain, found in _PLAIN:
        name = _SIMPLE_NAMES.get(found, found.value)
        if kind == plain and not (marked and marked != "timestamp_ntz" and marked != name):
            return found
    if is_a.is_uint64(kind):
        return DecimalType(20, 0)
    if is_a.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return DecimalType(kind.precision, kind.scale)
    if is_a.is_timestamp(kind) and kind.unit in ("ms", "us") and not is_orc:
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


def _refused(name: str, what: str, argument: str) -> InvalidJobSpec:
    return InvalidJobSpec(
        f"{argument}: the file {name} has {what}, and this package does not know how Spark reads it. Give the columns "
        "that you need as schema, or have the file written with other types. Nothing was read.",
        argument=argument,
    )
