"""Rows of a source made to fit the table: columns by name, types by those casts of Spark that lose nothing silently.

Implicit casts keep every value, or fail on a value that they cannot keep (a narrowing cast raises in Spark's ANSI
mode). A cast that would round, cut or guess is refused, and the author writes it. The invariant: a frame made here has
exactly the table's columns, in its order and its types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from airflow_txlog.engine.table.schema import types as delta
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json
from airflow_txlog.engine.table.schema.types import CHAR_VARCHAR_KEY
from airflow_txlog.errors import SchemaMismatch, TxlogError, UnsupportedFeature
from airflow_txlog.jobs.sql.columns import check_distinct, no_such_column, rows_do_not_fit, without_not_null_column
from airflow_txlog.jobs.sql.gate import quoted

_INTEGERS: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
_FLOATS: tuple[type[DataType], ...] = (FloatType, DoubleType)
_NUMBERS = (*_INTEGERS, DecimalType, *_FLOATS)
_TIMES: tuple[type[DataType], ...] = (TimestampType, TimestampNTZType)
_CONTAINERS = (ArrayType, MapType, StructType)
_WITHOUT_TEXT = (BinaryType, *_CONTAINERS)
# The treatment of a struct's member that the new value lacks: it is null, it keeps the row's value, or the new value is
# refused.
Lacking: TypeAlias = Literal["null", "kept", "refused"]

# The name of a type without members: words, and numbers in parentheses.
_PLAIN_TYPE = re.compile(r"\w+(?: \w+)*(?:\(\d+(?:, ?\d+)?\))?", re.ASCII)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark types of an Arrow schema: a zone makes a TIMESTAMP, none a TIMESTAMP_NTZ; all nullable."""
    found = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    for field in found:
        field.nullable = True
    return found


def compared_as_char(frame: DataFrame, marks: Mapping[str, str]) -> DataFrame:
    """Return the frame with these columns marked as `char(n)`, so that Spark compares them as in its own tables.

    A char is stored padded, and yet `= 'ab'` is true of it (soundness A4). Source: Spark, ApplyCharTypePadding, which
    follows this mark of a column.
    """
    if not any(mark.lower().startswith("char") for mark in marks.values()):
        return frame
    return frame.select(
        *(
            frame[quoted(name)].alias(name, metadata={CHAR_VARCHAR_KEY: marks[name]})
            if name in marks
            else frame[quoted(name)]
            for name in frame.schema.names
        )
    )


def as_spark_schema(schema: delta.StructType) -> StructType:
    """Return a table's columns as Spark's, NOT NULL included and field metadata left out.

    The log's schema is Spark's own JSON, but Spark only gets the engine's schema, which has the protocol's types alone.
    """
    return without_metadata(schema_of_json(json.loads(schema_to_json(schema))))


def engine_schema(schema: StructType) -> delta.StructType:
    """Return a frame's columns as the engine's: all of them nullable, without metadata.

    Raises CorruptTable and UnsupportedFeature for columns that no table can have.
    """
    return parse_schema(without_metadata(schema, nullable=True).json())


def engine_type(found: DataType) -> delta.StructField | None:
    """Return a column of this type as the engine has it, under any name; None for a type that no table can have."""
    try:
        (field,) = engine_schema(StructType([StructField("value", found)]))
    except TxlogError:
        return None
    return field


def schema_of_json(schema: Any) -> StructType:
    """Return Spark's schema from its JSON form. The only place that gives Spark such a form to read.

    Raises ValueError for a user-defined type, because Spark imports the class that it names, and one of ValueError,
    TypeError, KeyError or AttributeError for JSON that is no schema.
    """
    if _has_user_defined_type(schema):
        raise ValueError("a column's type is user-defined")
    return StructType.fromJson(schema)


def without_metadata(schema: StructType, *, nullable: bool = False) -> StructType:
    """Return the columns without field metadata; with `nullable`, every column and member may be null."""
    found = _remade(schema, nullable=nullable)
    assert isinstance(found, StructType)
    return found


def nullable_columns(schema: StructType) -> StructType:
    """Return the columns, each of them and all of their members nullable; their metadata stays."""
    found = _nullable(schema)
    assert isinstance(found, StructType)
    return found


def _nullable(kind: DataType) -> DataType:
    return _remade(kind, nullable=True, metadata=True)


def _remade(kind: DataType, *, nullable: bool, metadata: bool = False, lower: bool = False) -> DataType:
    """Return the type without metadata unless that is kept; `nullable` makes all members so, `lower` their names."""

    def again(inner: DataType) -> DataType:
        return _remade(inner, nullable=nullable, metadata=metadata, lower=lower)

    if isinstance(kind, StructType):
        fields = [
            StructField(
                field.name.lower() if lower else field.name,
                again(field.dataType),
                nullable or field.nullable,
                field.metadata if metadata else None,
            )
            for field in kind
        ]
        return StructType(fields)
    if isinstance(kind, ArrayType):
        return ArrayType(again(kind.elementType), nullable or kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(again(kind.keyType), again(kind.valueType), nullable or kind.valueContainsNull)
    return kind


def _same(found: DataType, wanted: DataType) -> bool:
    """Return whether types differ at most in the case of names, nullability and metadata."""
    return _remade(found, nullable=True, lower=True) == _remade(wanted, nullable=True, lower=True)


def without_not_null(frame: DataFrame) -> DataFrame:
    """Return the same rows in columns whose members may all be null.

    PySpark collects no null member that is NOT NULL, even one in a null struct.
    """
    columns = []
    for field in frame.schema:
        kind = _nullable(field.dataType)
        column = frame[quoted(field.name)]
        columns.append(column if kind == field.dataType else column.cast(kind).alias(field.name))
    return frame.select(*columns)


def can_store(found: DataType, wanted: DataType, *, ansi: bool, lacking: Lacking = "null") -> bool:
    """Return whether values of type `found` may be stored as `wanted` without the author's own cast.

    - Anything as itself; nothing (void) as anything; whole numbers as decimals, floats and doubles; decimals as wider
      decimals (no fewer digits after the point), floats and doubles; float as double; date as either timestamp, and
      either timestamp as the other (by the session's zone).
    - With `ansi`, also casts that fail on a value that does not fit: whole numbers and decimals into narrower ones.
    - Any single value but bytes as text. Never text as something else, a double as a decimal or a whole number, a
      timestamp as a date, or one kind of container as another.
    - Arrays, maps and structs where their contents may be stored so, members of structs by name. `lacking` decides on a
      member that `found` lacks (in arrays and maps it is null); one that `wanted` lacks is refused.
    """
    if _same(found, wanted) or isinstance(found, NullType):
        return True
    if isinstance(wanted, StringType):
        return not isinstance(found, _WITHOUT_TEXT)
    if isinstance(found, _CONTAINERS):
        return _can_store_within(found, wanted, ansi=ansi, lacking=lacking)
    if isinstance(found, _INTEGERS):
        if isinstance(wanted, _INTEGERS):
            return ansi or _INTEGERS.index(type(found)) <= _INTEGERS.index(type(wanted))
        return isinstance(wanted, _FLOATS) or (isinstance(wanted, DecimalType) and ansi)
    if isinstance(found, DecimalType):
        if isinstance(wanted, DecimalType):
            is_wider = wanted.precision - wanted.scale >= found.precision - found.scale
            return wanted.scale >= found.scale and (is_wider or ansi)
        return isinstance(wanted, _FLOATS)
    if isinstance(found, FloatType):
        return isinstance(wanted, DoubleType)
    if isinstance(found, DateType):
        return isinstance(wanted, _TIMES)
    return isinstance(found, _TIMES) and isinstance(wanted, _TIMES)


def fit_rows(
    frame: DataFrame, table: StructType, *, ansi: bool, table_uri: str, filled: Collection[str] = ()
) -> DataFrame:
    """Return the frame with exactly the table's columns and types. A nullable column that it lacks is null.

    So is one of `filled`, which the table gives a value later. Raises SchemaMismatch, showing both schemas side by
    side, and ConstraintViolation for any other NOT NULL column that the frame lacks.
    """
    check_distinct(frame.schema.names)
    have = {field.name.lower(): field for field in frame.schema}
    wanted = {field.name.lower() for field in table}
    problems = [no_such_column(field.name) for field in frame.schema if field.name.lower() not in wanted]
    columns = []
    for field in table:
        found = have.get(field.name.lower())
        if found is None:
            if not field.nullable and field.name not in filled:
                raise without_not_null_column(table_uri, field.name)
            columns.append(F.lit(None).cast(_nullable(field.dataType)).alias(field.name))
        elif not can_store(found.dataType, field.dataType, ansi=ansi):
            problems.append(f"{field.name}: {found.dataType.simpleString()} is not {field.dataType.simpleString()}")
        else:
            value = F.expr(stored_sql(quoted(found.name), found.dataType, field.dataType))
            columns.append(as_column_type(value, found.dataType, field.dataType).alias(field.name))
    if problems:
        raise mismatch(problems, frame.schema, table, table_uri)
    return frame.select(*columns)


def mismatch(problems: Sequence[str], found: StructType, table: StructType, table_uri: str) -> SchemaMismatch:
    """Return the error that names every column that does not fit, and shows both schemas side by side."""
    source = [(field.name, field.dataType.simpleString()) for field in found]
    own = [(field.name, field.dataType.simpleString() + ("" if field.nullable else " not null")) for field in table]
    return rows_do_not_fit(problems, source, own, table_uri)


def lacking_member(found: DataType, wanted: DataType) -> str | None:
    """Return the dotted name of the first member that a struct of `wanted` has and `found` lacks, at any depth.

    Steps into arrays and maps are called `element`, `key` and `value`.
    """
    pairs: list[tuple[str, DataType, DataType]] = []
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        have = {field.name.lower(): field for field in found}
        for field in wanted:
            if field.name.lower() not in have:
                return field.name
            pairs.append((field.name, have[field.name.lower()].dataType, field.dataType))
    elif isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        pairs = [("element", found.elementType, wanted.elementType)]
    elif isinstance(found, MapType) and isinstance(wanted, MapType):
        pairs = [("key", found.keyType, wanted.keyType), ("value", found.valueType, wanted.valueType)]
    for name, one, other in pairs:
        below = lacking_member(one, other)
        if below is not None:
            return f"{name}.{below}"
    return None


def stored_sql(sql: str, found: DataType, wanted: DataType, depth: int = 0, kept: str | None = None) -> str:
    """Return SQL for the value of `sql` as `wanted`, for types that `can_store` accepts.

    A member that a struct lacks is an untyped NULL, which the caller casts to the column's type. With `kept`, SQL for
    the row's value, it keeps that value instead; such a struct is null only if both values are. Source: delta-spark
    4.4, `merge.preserveNullSourceStructs.updateStar`.
    """
    # Equal types need no cast, and NULL takes any type without one, even a type whose name SQL cannot express.
    if _same(found, wanted) or isinstance(found, NullType):
        return sql
    one = f"txlog_{depth}"
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        have = {field.name.lower(): field for field in found}
        kept = kept if _lacks_kept_member(found, wanted) else None
        members = []
        for field in wanted:
            other = have.get(field.name.lower())
            own = None if kept is None else f"({kept}).{quoted(field.name)}"
            value = own or "NULL"
            if other is not None:
                value = stored_sql(f"({sql}).{quoted(other.name)}", other.dataType, field.dataType, depth, own)
            members += [text_literal(field.name), value]
        is_null = f"({sql}) IS NULL" if kept is None else f"({sql}) IS NULL AND ({kept}) IS NULL"
        return f"IF({is_null}, NULL, named_struct({', '.join(members)}))"
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        element = stored_sql(one, found.elementType, wanted.elementType, depth + 1)
        return f"transform({sql}, {one} -> {element})"
    if isinstance(found, MapType) and isinstance(wanted, MapType):
        key = stored_sql(f"{one}.key", found.keyType, wanted.keyType, depth + 1)
        value = stored_sql(f"{one}.value", found.valueType, wanted.valueType, depth + 1)
        return f"map_from_entries(transform(map_entries({sql}), {one} -> struct({key} AS key, {value} AS value)))"
    return f"CAST({sql} AS {type_sql(wanted)})"


def type_sql(kind: DataType) -> str:
    """Return a type as SQL reads it back, whatever its members are called. Raises UnsupportedFeature if SQL cannot
    express it.
    """
    if isinstance(kind, StructType):
        members = ", ".join(f"{quoted(field.name)}: {type_sql(field.dataType)}" for field in kind)
        return f"STRUCT<{members}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{type_sql(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{type_sql(kind.keyType)}, {type_sql(kind.valueType)}>"
    name = kind.simpleString()
    if _PLAIN_TYPE.fullmatch(name) is None:
        raise UnsupportedFeature(
            f"The type {name!r} cannot be written in SQL. Nothing was staged.", feature=name, needed_to="write"
        )
    return name


def as_column_type(column: Column, found: DataType, wanted: DataType) -> Column:
    """Return the result of `stored_sql`, with the types that its untyped NULLs left open."""
    # Spark casts no nullable value to a NOT NULL type. The writer checks whether there is a null.
    return column if _same(found, wanted) else column.cast(_nullable(wanted))


def _has_user_defined_type(node: Any) -> bool:
    if isinstance(node, list):
        return any(_has_user_defined_type(member) for member in node)
    if not isinstance(node, dict):
        return False
    members = [member for key, member in node.items() if key != "metadata"]
    return node.get("type") == "udt" or _has_user_defined_type(members)


def text_literal(text: str) -> str:
    """Return the SQL literal of a text."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _lacks_kept_member(found: DataType, wanted: DataType) -> bool:
    """Return whether a struct of the row has a member to keep: its own, or one of a struct within it."""
    if not (isinstance(found, StructType) and isinstance(wanted, StructType)):
        return False
    have = {field.name.lower(): field.dataType for field in found}
    lacks = [field.name.lower() not in have for field in wanted]
    return any(lacks) or any(_lacks_kept_member(have[field.name.lower()], field.dataType) for field in wanted)


def _can_store_within(found: DataType, wanted: DataType, *, ansi: bool, lacking: Lacking) -> bool:
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        have = {field.name.lower(): field for field in found}
        names = {field.name.lower() for field in wanted}
        return have.keys() <= names and all(
            lacking == "kept" or (lacking == "null" and field.nullable)
            if field.name.lower() not in have
            else can_store(have[field.name.lower()].dataType, field.dataType, ansi=ansi, lacking=lacking)
            for field in wanted
        )
    lacking = "null" if lacking == "kept" else lacking
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        return can_store(found.elementType, wanted.elementType, ansi=ansi, lacking=lacking)
    if isinstance(found, MapType) and isinstance(wanted, MapType):
        return can_store(found.keyType, wanted.keyType, ansi=ansi, lacking=lacking) and can_store(
            found.valueType, wanted.valueType, ansi=ansi, lacking=lacking
        )
    return False
