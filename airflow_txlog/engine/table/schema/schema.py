"""A table's schema, read from and written to the metadata action's JSON, and converted to and from Arrow.

The invariant: `parse_schema` and `schema_to_json` are inverse, and so are `to_arrow` and `from_arrow` on the results of
`to_arrow`; field metadata survives both. Source: protocol, "Schema Serialization Format".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from airflow_txlog.datafiles.codecs import Codec, Integer, codec_of
from airflow_txlog.datafiles.parquet.physical import MODE_KEY, VARIANT, is_variant
from airflow_txlog.engine.table.schema.types import (
    MAX_DECIMAL_PRECISION,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
    VariantType,
)
from airflow_txlog.errors import CorruptTable, SchemaMismatch, UnsupportedFeature

_PRIMITIVES = {primitive.value: primitive for primitive in Primitive}
# Our code, Arrow's and Spark's recurse into types.
_MAX_DEPTH = 100
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")

# --- JSON ------------------------------------------------------------------------------------------------------------


# A job reads the schema of one table several times.
@functools.lru_cache(maxsize=16)
def parse_schema(schema_string: str | None) -> StructType:
    """Return the schema of a metadata action. A `void` column holds nothing but null.

    Raises CorruptTable, naming the column, if the text is not a schema (also if two names differ only in case);
    UnsupportedFeature for a type that this engine cannot read: geometry, geography, an interval, a user-defined type,
    or an unknown one.
    """
    if schema_string is None:
        raise CorruptTable(
            "The table's metadata states no schema (schemaString), so its rows can be neither read nor written. Its "
            "files and its history can be looked at. Have the engine that wrote it restore the schema."
        )
    try:
        parsed = type_from_json(msgspec.json.decode(schema_string))
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CorruptTable(f"The table's schema is not JSON: {error}. Nothing was read.") from error
    except RecursionError as error:
        raise _too_deep() from error
    if not isinstance(parsed, StructType):
        raise CorruptTable(f"The table's schema should be a struct at the top, and is {parsed}. Nothing was read.")
    return parsed


def schema_to_json(schema: StructType) -> str:
    """Return the schema as compact JSON, keys in the order of delta-spark."""
    return msgspec.json.encode(_type_to_json(schema)).decode()


def _too_deep() -> CorruptTable:
    return CorruptTable(
        f"The table's schema is nested too deeply: more than {_MAX_DEPTH} types within each other. Nothing was read. "
        "Have the engine that wrote it drop the column."
    )


def type_from_json(node: Any, column: str = "", depth: int = 0) -> DataType:
    """Return the type of a name or an object in the log, also in `delta.typeChanges`. Raises as `parse_schema`."""
    if depth > _MAX_DEPTH:
        raise _too_deep()
    try:
        if isinstance(node, str):
            return _named_type(node, column)
        kind = node["type"]
        if kind == "struct":
            return StructType(tuple(_field_from_json(member, column, depth + 1) for member in node["fields"]))
        if kind == "array":
            element = type_from_json(node["elementType"], f"{column}.element", depth + 1)
            return ArrayType(element, _boolean(node["containsNull"]))
        if kind == "map":
            key = type_from_json(node["keyType"], f"{column}.key", depth + 1)
            value = type_from_json(node["valueType"], f"{column}.value", depth + 1)
            return MapType(key, value, _boolean(node["valueContainsNull"]))
    except (KeyError, TypeError, SchemaMismatch) as error:
        where = f"column {column!r}" if column else "the top"
        detail = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CorruptTable(f"The table's schema is broken at {where}: {detail}. Nothing was read.") from error
    raise _unsupported(str(kind), column)


def _field_from_json(node: Any, parent: str, depth: int) -> StructField:
    name = node["name"]
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a field is {name!r}")
    metadata = node.get("metadata")
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict):
        raise TypeError(f"the metadata of field {name!r} is not an object")
    column = f"{parent}.{name}" if parent else name
    return StructField(name, type_from_json(node["type"], column, depth), _boolean(node["nullable"]), metadata)


def _named_type(name: str, column: str) -> DataType:
    primitive = _PRIMITIVES.get(name)
    if primitive is not None:
        return primitive
    if name == "variant":
        return VariantType()
    # Spark's old spelling of its default.
    if name == "decimal":
        return DecimalType(10, 0)
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        return DecimalType(int(decimal[1]), int(decimal[2]))
    raise _unsupported(name, column)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} stands where true or false should")
    return value


def _unsupported(type_name: str, column: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"Column {column!r} has the type {type_name!r}, which this engine cannot read. Nothing was read.",
        feature=type_name,
        needed_to="read",
    )


def _type_to_json(data_type: DataType) -> Any:
    match data_type:
        case Primitive() | DecimalType() | VariantType():
            return str(data_type)
        case ArrayType(element, contains_null):
            return {"type": "array", "elementType": _type_to_json(element), "containsNull": contains_null}
        case MapType(key, value, value_contains_null):
            return {
                "type": "map",
                "keyType": _type_to_json(key),
                "valueType": _type_to_json(value),
                "valueContainsNull": value_contains_null,
            }
        case StructType():
            fields = [
                {
                    "name": member.name,
                    "type": _type_to_json(member.type),
                    "nullable": member.nullable,
                    "metadata": dict(member.metadata),
                }
                for member in data_type
            ]
            return {"type": "struct", "fields": fields}
    raise TypeError(f"not a type of the format: {data_type!r}")


# --- to Arrow --------------------------------------------------------------------------------------------------------

_TO_ARROW: dict[Primitive, pa.DataType] = {
    Primitive.BOOLEAN: pa.bool_(),
    Primitive.BYTE: pa.int8(),
    Primitive.SHORT: pa.int16(),
    Primitive.INTEGER: pa.int32(),
    Primitive.LONG: pa.int64(),
    Primitive.FLOAT: pa.float32(),
    Primitive.DOUBLE: pa.float64(),
    Primitive.STRING: pa.string(),
    Primitive.BINARY: pa.binary(),
    Primitive.DATE: pa.date32(),
    Primitive.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Primitive.TIMESTAMP_NTZ: pa.timestamp("us"),
    Primitive.VOID: pa.null(),
}
_CODECS: dict[DataType, Codec | None] = {primitive: codec_of(arrow) for primitive, arrow in _TO_ARROW.items()}
INTEGERS: dict[DataType, Integer] = {
    primitive: found for primitive, found in _CODECS.items() if isinstance(found, Integer)
}
"""The types of whole numbers, the narrowest first, with their ranges."""

# Arrow's field metadata is text. This key lists the values that are JSON: the string "5" is not the number 5.
_JSON_KEYS = "txlog.json"
# Metadata that Arrow itself adds; it describes a file or an Arrow type, not the column.
_ARROW_OWN_PREFIXES = ("PARQUET:", "ARROW:")
# A new table does not inherit the column mapping of another.
_MAPPING_MARK = MODE_KEY.decode()


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the table's rows, with names, order, nullability and field metadata."""
    return pa.schema([_field_to_arrow(member) for member in schema])


def arrow_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type of a column; timestamps are in microseconds, in UTC or (ntz) without a zone."""
    match data_type:
        case Primitive():
            return _TO_ARROW[data_type]
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case VariantType():
            return VARIANT
        case ArrayType(element, contains_null):
            return pa.list_(_arrow_field("element", element, contains_null))
        case MapType(key, value, value_contains_null):
            return pa.map_(_arrow_field("key", key, False), _arrow_field("value", value, value_contains_null))
        case StructType():
            return pa.struct([_field_to_arrow(member) for member in data_type])
    raise TypeError(f"not a type of the format: {data_type!r}")


def array_of(plain: list[Any], data_type: DataType) -> pa.Array:
    """Return an array of the column's Arrow type from plain values (`codecs`)."""
    found = codec(data_type)
    return pa.array(plain, arrow_type(data_type)) if found is None else found.array(plain)


def codec(data_type: DataType) -> Codec | None:
    """Return the codec of single values, or None for void and nested types."""
    return codec_of(arrow_type(data_type)) if isinstance(data_type, DecimalType) else _CODECS.get(data_type)


def _field_to_arrow(member: StructField) -> pa.Field:
    field = _arrow_field(member.name, member.type, member.nullable)
    return field.with_metadata(_metadata_to_arrow(member.metadata)) if member.metadata else field


def _arrow_field(name: str, data_type: DataType, nullable: bool) -> pa.Field:
    # Arrow's null type is always nullable.
    return pa.field(name, arrow_type(data_type), nullable or data_type is Primitive.VOID)


def _metadata_to_arrow(metadata: Mapping[str, Any]) -> dict[str, str]:
    encoded = [key for key, value in metadata.items() if not isinstance(value, str)]
    text = {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode() for key, value in metadata.items()
    }
    return {**text, _JSON_KEYS: msgspec.json.encode(encoded).decode()} if encoded else text


# --- from Arrow ------------------------------------------------------------------------------------------------------


def from_arrow(schema: pa.Schema) -> StructType:
    """Return the schema of a table that can hold such rows without loss.

    Unsigned integers take the next wider type (uint64: decimal(20,0)), as Spark reads them from Parquet; dictionaries
    and run-ends take their value type; large, view and fixed-size forms the plain one. Timestamps become microseconds:
    nanoseconds fit exactly or fail the safe cast when written. Raises SchemaMismatch, naming the column, for a type
    that no column can hold (time, duration, interval, union, extension, decimals over 38 digits) and for names that
    differ only in case.
    """
    return StructType(tuple(_field_from_arrow(member, "") for member in schema))


def delta_type(arrow: pa.DataType, column: str) -> DataType:
    """Return the type that holds values of `arrow`; `column` is for the message. Raises as `from_arrow`."""
    is_a = pa.types
    if is_a.is_dictionary(arrow) or is_a.is_run_end_encoded(arrow):
        return delta_type(arrow.value_type, column)
    if is_variant(arrow):
        return VariantType()
    if is_a.is_struct(arrow):
        return StructType(tuple(_field_from_arrow(member, column) for member in arrow))
    if is_a.is_map(arrow):
        key, value = delta_type(arrow.key_type, f"{column}.key"), delta_type(arrow.item_type, f"{column}.value")
        return MapType(key, value, arrow.item_field.nullable)
    if (
        is_a.is_list(arrow)
        or is_a.is_large_list(arrow)
        or is_a.is_fixed_size_list(arrow)
        or is_a.is_list_view(arrow)
        or is_a.is_large_list_view(arrow)
    ):
        return ArrayType(delta_type(arrow.value_type, f"{column}.element"), arrow.value_field.nullable)
    if is_a.is_decimal(arrow):
        # A negative scale counts zeros before the point.
        precision, scale = arrow.precision - min(arrow.scale, 0), max(arrow.scale, 0)
        if precision <= MAX_DECIMAL_PRECISION and scale <= precision:
            return DecimalType(precision, scale)
    if is_a.is_timestamp(arrow):
        return Primitive.TIMESTAMP_NTZ if arrow.tz is None else Primitive.TIMESTAMP
    if is_a.is_fixed_size_binary(arrow):
        return Primitive.BINARY
    found = FROM_ARROW.get(arrow)
    if found is None:
        raise SchemaMismatch(
            f"Column {column!r} has the Arrow type {arrow}, which no type of the format holds without loss. "
            "Convert it to one that does.",
            columns=[column],
        )
    return found


FROM_ARROW: dict[pa.DataType, DataType] = {
    **{arrow: primitive for primitive, arrow in _TO_ARROW.items()},
    pa.uint8(): Primitive.SHORT,
    pa.uint16(): Primitive.INTEGER,
    pa.uint32(): Primitive.LONG,
    pa.uint64(): DecimalType(20, 0),
    pa.float16(): Primitive.FLOAT,
    pa.large_string(): Primitive.STRING,
    pa.string_view(): Primitive.STRING,
    pa.large_binary(): Primitive.BINARY,
    pa.binary_view(): Primitive.BINARY,
    pa.date64(): Primitive.DATE,
}


def _field_from_arrow(member: pa.Field, parent: str) -> StructField:
    column = f"{parent}.{member.name}" if parent else member.name
    return StructField(
        member.name, delta_type(member.type, column), member.nullable, _metadata_from_arrow(member.metadata)
    )


def _metadata_from_arrow(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    text = {key.decode(): value.decode() for key, value in (metadata or {}).items()}
    encoded = set(msgspec.json.decode(text.pop(_JSON_KEYS, "[]")))
    return {
        key: msgspec.json.decode(value) if key in encoded else value
        for key, value in text.items()
        if key != _MAPPING_MARK and not key.startswith(_ARROW_OWN_PREFIXES)
    }
