"""The columns of a Parquet or ORC file with the types that Spark gives them, from its footer.

Spark's own files say their types; those of others are taken from the file's. The invariant: a type that Spark reads in
another way than Arrow, or not at all, is refused by name.
Source: Spark, ParquetToSparkSchemaConverter and OrcUtils.toCatalystSchema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from airflow_txlog.datafiles.parquet.calendars import calendar_of
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.tasks.rows_without_log import ORC_TYPE_KEY, reading_source
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.sql.schemas import schema_of_json, without_metadata
from airflow_txlog.storage import Store

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_PLAIN: tuple[tuple[pa.DataType, type[DataType]], ...] = (
    (pa.bool_(), BooleanType),
    (pa.int8(), ByteType),
    (pa.int16(), ShortType),
    (pa.int32(), IntegerType),
    (pa.int64(), LongType),
    (pa.uint8(), ShortType),
    (pa.uint16(), IntegerType),
    (pa.uint32(), LongType),
    (pa.float32(), FloatType),
    (pa.float64(), DoubleType),
    (pa.string(), StringType),
    (pa.binary(), BinaryType),
    (pa.date32(), DateType),
)
_LEAVES = (*{kind for _, kind in _PLAIN}, DecimalType, TimestampType, TimestampNTZType)
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
        return StructType([_column(field, is_orc=True) for field in schema])
    except NotSpark as error:
        raise _refused(file.name, str(error), argument) from error


def schema_of_footer(parquet: pq.ParquetFile) -> StructType:
    """The columns of an open Parquet file. Raises NotSpark."""
    written = (parquet.metadata.metadata or {}).get(_SPARK_SCHEMA)
    if written is not None:
        try:
            found = without_metadata(schema_of_json(json.loads(written)), nullable=True)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NotSpark("a schema that cannot be read") from error
        _check(found)
        return found
    for index in range(parquet.metadata.num_columns):
        leaf = parquet.schema.column(index)
        if leaf.logical_type.type in _OTHER_LOGICAL_TYPES:
            raise NotSpark(f"column {leaf.path!r} of the type {leaf.logical_type.type}")
    int96 = calendar_of(parquet).int96_columns
    return StructType([_column(field, is_int96=field.name in int96, is_orc=False) for field in parquet.schema_arrow])


def _column(field: pa.Field, *, is_orc: bool, is_int96: bool = False) -> StructField:
    if is_int96 and not pa.types.is_timestamp(field.type):
        raise NotSpark(f"column {field.name!r} with INT96 inside")
    kind = TimestampType() if is_int96 else _type(field, is_orc=is_orc)
    if is_orc and (field.metadata or {}).get(ORC_TYPE_KEY) == b"timestamp_ntz":
        kind = TimestampNTZType()
    return StructField(field.name, kind)


def _type(field: pa.Field, *, is_orc: bool) -> DataType:
    kind, is_a = field.type, pa.types
    marked = (field.metadata or {}).get(ORC_TYPE_KEY, b"").decode()
    if is_a.is_dictionary(kind):
        return _type(field.with_type(kind.value_type), is_orc=is_orc)
    if is_a.is_large_string(kind) or is_a.is_string_view(kind):
        return StringType()
    if is_a.is_large_binary(kind) or is_a.is_binary_view(kind) or is_a.is_fixed_size_binary(kind):
        return BinaryType()
    for plain, spark in _PLAIN:
        if kind == plain and not (marked and marked != "timestamp_ntz" and marked != spark().simpleString()):
            return spark()
    if is_a.is_uint64(kind):
        return DecimalType(20, 0)
    if is_a.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return DecimalType(kind.precision, kind.scale)
    if is_a.is_timestamp(kind) and kind.unit in ("ms", "us") and not is_orc:
        return TimestampNTZType() if kind.tz is None else TimestampType()
    if is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
        return ArrayType(_inner(kind.value_field, is_orc))
    if is_a.is_map(kind):
        return MapType(_inner(kind.key_field, is_orc), _inner(kind.item_field, is_orc))
    if is_a.is_struct(kind) and kind.num_fields:
        return StructType([StructField(each.name, _inner(each, is_orc)) for each in kind])
    raise NotSpark(f"column {field.name!r} of the type {marked or kind}")


def _inner(field: pa.Field, is_orc: bool) -> DataType:
    if (field.metadata or {}).get(ORC_TYPE_KEY) == b"timestamp_ntz":
        raise NotSpark(f"{field.name!r} of the type timestamp_ntz inside another column")
    return _type(field, is_orc=is_orc)


def _check(kind: DataType) -> None:
    """Raises NotSpark for a type that no plain column has."""
    inner: Sequence[DataType] = ()
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    elif type(kind) not in _LEAVES or (isinstance(kind, StringType) and kind != StringType()):
        raise NotSpark(f"a column of the type {kind.simpleString()}")
    for each in inner:
        _check(each)


def _refused(name: str, what: str, argument: str) -> InvalidJobSpec:
    return InvalidJobSpec(
        f"{argument}: the file {name} has {what}, and this package does not know how Spark reads it. Give the columns "
        "that you need as schema, or have the file written with other types. Nothing was read.",
        argument=argument,
    )
