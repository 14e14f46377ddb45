"""Values that an UPDATE assigns and that Spark is certain to accept, and to compute as Arrow does.

A closed grammar, similar to that of plain conditions (`predicate.plain`): a constant of the column's own kind, NULL,
another column of the same type, and operations of the `KNOWN` table. The invariant: Spark refuses no plain text, fails
on no value of it, and computes the same value. So nothing here can overflow, and no type is one that a cast would
change. Source: Spark 4.2, AnsiTypeCoercion, Decimal.toDouble; tests/jobs/sql/test_plain_values.py.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping

import pyarrow as pa

from airflow_txlog.datafiles.codecs import parse_date, plain_date, plain_time
from airflow_txlog.datafiles.tasks.row_values import RowValues
from airflow_txlog.engine.table.predicate.plain import EXACT_NUMBER, NotPlain, fits_plainly, plain_column, tree_of
from airflow_txlog.engine.table.schema.schema import INTEGERS, array_of
from airflow_txlog.engine.table.schema.types import DataType, DecimalType, Primitive, StructField, StructType
from airflow_txlog.jobs.sql.columns import assigned_column
from airflow_txlog.sql.evaluation import known_as
from airflow_txlog.sql.expression import (
    Call,
    Cast,
    Column,
    Expression,
    Literal,
    Name,
    Opaque,
    Parameter,
    Values,
    columns_of,
    described,
)


def plain_values(
    assigned: Mapping[str, str],
    schema: StructType,
    parameters: Mapping[str, object],
    *,
    alias: str,
    is_ansi: bool,
) -> RowValues | str:
    """Return the value of each assigned column of `schema`, or the part of the texts that is not plain.

    `alias` may come before a column on the left side. `is_ansi`: Spark stores a number that fits in a narrower column.
    """
    values: dict[str, Expression] = {}
    try:
        for name, text in assigned.items():
            field = assigned_column(name, schema.by_name, alias)
            if field is None or field.name in values:
                raise NotPlain(f"the assigned column {name}")
            values[field.name] = _value(text, field, schema, parameters, is_ansi=is_ansi)
    except NotPlain as found:
        return str(found.args[0])
    return RowValues(values=values)


def _value(
    text: str, field: StructField, schema: StructType, parameters: Mapping[str, object], *, is_ansi: bool
) -> Expression:
    if text.strip().upper() == "DEFAULT":
        raise NotPlain("another value")
    return plain_value(tree_of(text), field, schema, parameters, is_ansi=is_ansi)


def plain_value(
    node: Expression, field: StructField, schema: StructType, parameters: Mapping[str, object], *, is_ansi: bool
) -> Expression:
    """Return the bound tree of a value for the column `field`. Raises NotPlain."""
    if field.is_collated or field.is_char:
        raise NotPlain(f"the column {field.name}, of the type {field.type}")
    return _computed(node, field, schema, parameters, is_ansi=is_ansi)


def _computed(
    node: Expression, field: StructField, schema: StructType, parameters: Mapping[str, object], *, is_ansi: bool
) -> Expression:
    known = known_as(node)
    if known is None or not isinstance(node, Call):
        return _alone(node, field, schema, parameters, is_ansi=is_ansi)
    kind = str(field.type)
    if kind not in known.types or kind != known.result:
        raise NotPlain(f"a calculation for the column {field.name}, of the type {field.type}")
    found = Call(
        node.operator,
        tuple(_computed(each, field, schema, parameters, is_ansi=is_ansi) for each in node.operands),
    )
    if not columns_of(found):
        # Spark would compute decimals, not doubles.
        raise NotPlain("a calculation of constants")
    return found


def _of_column(name: Name, field: StructField, schema: StructType) -> Column:
    found = plain_column(name, schema)
    is_single = isinstance(found.type, Primitive | DecimalType) and found.type is not Primitive.VOID
    if found.type != field.type or not is_single or found.is_collated or found.is_char:
        raise NotPlain(f"the column {found.name}, which is not of the type of the column {field.name}")
    return Column(found.name)


def _alone(
    node: Expression, field: StructField, schema: StructType, parameters: Mapping[str, object], *, is_ansi: bool
) -> Values | Column:
    match node:
        case Literal("null") if isinstance(field.type, Primitive | DecimalType) and field.type is not Primitive.VOID:
            return Values(array_of([None], field.type))
        case Name():
            return _of_column(node, field, schema)
        case _ if field.type is Primitive.DOUBLE:
            return Values(_double(node, field, parameters))
    return Values(array_of([_constant(node, field, parameters, is_ansi=is_ansi)], field.type))


def _constant(
    node: Expression, field: StructField, parameters: Mapping[str, object], *, is_ansi: bool
) -> bool | int | str:
    """Return a constant in the column's own type, as `array_of` takes it. Raises NotPlain."""
    value = _given(node, field, parameters)
    if isinstance(value, bool):
        if field.type is Primitive.BOOLEAN:
            return value
    elif field.type in INTEGERS:
        if isinstance(value, int) and _fits_whole(value, field.type, is_ansi=is_ansi):
            return value
    elif field.type is Primitive.STRING:
        if isinstance(value, str):
            return value
    elif field.type is Primitive.DATE:
        # Only a cast stores a text in a date.
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return plain_date(value)
    elif field.type is Primitive.TIMESTAMP and isinstance(value, dt.datetime) and value.tzinfo is not None:
        return plain_time(value)
    raise _other(node, field)


def _other(node: Expression, field: StructField) -> NotPlain:
    if isinstance(node, Call | Opaque):
        return NotPlain(described(node))
    return NotPlain(f"a value that is not of the type of the column {field.name}")


def _given(node: Expression, field: StructField, parameters: Mapping[str, object]) -> object:
    match node:
        case Parameter(name):
            return parameters.get(name)
        case Literal("string", text):
            return text
        case Literal("boolean", text):
            return text == "true"
        case Literal("number", text) if re.fullmatch("-?[0-9]{1,18}", text, re.ASCII):
            return int(text)
        case Cast(Literal("string", text), "date") if field.type is Primitive.DATE and fits_plainly(text, field):
            days = parse_date(text)
            return None if days is None else _date_of(days)
    return None


def _date_of(days: int) -> dt.date | None:
    try:
        return dt.date(1970, 1, 1) + dt.timedelta(days=days)
    except OverflowError:
        return None


def _fits_whole(value: int, kind: DataType, *, is_ansi: bool) -> bool:
    """Return whether a literal, an INT if it fits in one and else a BIGINT, is stored in a column of this kind."""
    is_int = abs(value) <= INTEGERS[Primitive.INTEGER].greatest
    is_widened = kind is Primitive.LONG or (kind is Primitive.INTEGER and is_int)
    return (is_widened or is_ansi) and INTEGERS[kind].held(value) is not None


def _double(node: Expression, field: StructField, parameters: Mapping[str, object]) -> pa.Array:
    """Return a number as a double, which it is exactly or is rounded to by all engines alike. Raises NotPlain."""
    value: float | None = None
    match node:
        case Parameter(name):
            given = parameters.get(name)
            is_whole = isinstance(given, int) and not isinstance(given, bool) and abs(given) < 10**15
            value = float(given) if isinstance(given, float) or (is_whole and isinstance(given, int)) else None
        case Literal("number", text) if EXACT_NUMBER.fullmatch(text.removeprefix("-")):
            # Minus zero is a whole number's, or a decimal's: 0.
            value = float(text) + 0.0
    if value is None:
        raise _other(node, field)
    return pa.array([value], pa.float64())
