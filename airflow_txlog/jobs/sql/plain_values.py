"""Values that an UPDATE or a clause assigns and that Spark is certain to accept, and to compute as Arrow does.

They are plain expressions (`predicate.binding`), stored in a column as Spark stores them without the author's own cast.
The invariant: Spark refuses no plain text, and its value is the one computed here, or the evaluation leaves the job to
Spark. Source: Spark 4.2, AnsiTypeCoercion; `schemas.can_store`; tests/jobs/sql/test_plain_values.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from airflow_txlog.datafiles.tasks.row_values import RowValues
from airflow_txlog.engine.table.predicate.binding import ColumnBinder, Columns, NotPlain, columns_in, plain_expression
from airflow_txlog.engine.table.schema.schema import arrow_type
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructField, StructType, walk_fields
from airflow_txlog.jobs.sql.columns import assigned_column
from airflow_txlog.sql.expression import Expression
from airflow_txlog.sql.operand_types import INTEGER_DIGITS, TEXT, holds, is_decimal, is_exact


def plain_values(
    assigned: Mapping[str, str],
    schema: StructType,
    parameters: Mapping[str, object],
    *,
    alias: str,
    is_ansi: bool,
    columns: Columns | None = None,
    may_fail: bool = True,
    time_zone: str | None = None,
) -> RowValues | str:
    """Return the value of each assigned column of `schema`, or the part of the texts that is not plain.

    `alias` may come before a column on the left side. `is_ansi`: Spark stores a number that fits in a narrower column.
    `columns` is the meaning of the names in the texts, otherwise columns of `schema`. Unless they `may_fail`, no
    evaluation of them is left to Spark. `time_zone`: of `ColumnBinder`.
    """
    values: dict[str, Expression] = {}
    binder = ColumnBinder(columns or columns_in(schema, alias or None), parameters, may_fail, time_zone)
    try:
        for name, text in assigned.items():
            field = assigned_column(name, schema.by_name, alias)
            if field is None or field.name in values or text.strip().upper() == "DEFAULT":
                raise NotPlain(f"the assigned column {name}")
            values[field.name] = plain_value(plain_expression(text), field, binder, is_ansi=is_ansi)
    except NotPlain as found:
        return str(found.args[0])
    return RowValues(values=values)


def plain_value(node: Expression, field: StructField, binder: ColumnBinder, *, is_ansi: bool) -> Expression:
    """Return the bound value for the column `field`. Raises NotPlain."""
    is_single = isinstance(field.type, Primitive | DecimalType | StructType) and field.type is not Primitive.VOID
    if field.is_collated or field.is_char or not is_single:
        raise NotPlain(f"the column {field.name}, of the type {field.type}")
    operand = binder.operand(node)
    kind = arrow_type(field.type)
    if not _can_store(operand.type, field, is_ansi=is_ansi):
        raise NotPlain(f"a value that is not of the type of the column {field.name}")
    return binder.cast(operand, kind)


def _can_store(given: pa.DataType, field: StructField, *, is_ansi: bool) -> bool:
    """Return whether Spark stores values of a type in a column, and a cast is known that does."""
    kind = arrow_type(field.type)
    if holds(kind, given):
        return True
    if isinstance(field.type, StructType):
        return _is_same_struct(kind, given) and all(each.nullable for each in walk_fields(field.type))
    if not is_ansi or not is_exact(given):
        return False
    if given in INTEGER_DIGITS:
        return is_exact(kind) or kind == TEXT
    return is_decimal(kind) and bool(kind.scale >= given.scale)


def _is_same_struct(kind: pa.DataType, given: pa.DataType) -> bool:
    """Return whether two structs have the same members in one order, however they allow nulls."""
    if not (pa.types.is_struct(kind) and pa.types.is_struct(given)):
        return bool(kind == given)
    pairs = zip(kind, given, strict=False)
    return kind.num_fields == given.num_fields and all(
        one.name == other.name and _is_same_struct(one.type, other.type) for one, other in pairs
    )
