"""Type widening: which changes of a column's type the protocol lets a table make under files that it has already.

The files are read in the current type by `datafiles/parquet/conversion`, which allows the same changes. The invariant:
a schema that passed `check_type_changes` names no change that this engine would not make exactly, value for value.
Source: protocol, "Type Widening".
"""

from __future__ import annotations

from typing import Any

from airflow_txlog.engine.table.schema.schema import INTEGERS, type_from_json
from airflow_txlog.engine.table.schema.types import (
    DataType,
    DecimalType,
    Primitive,
    StructField,
    StructType,
    walk_fields,
)
from airflow_txlog.errors import CorruptTable, UnsupportedFeature

TYPE_CHANGES_KEY = "delta.typeChanges"

# Digits before the point that hold every value.
_LONG_DIGITS, _OTHER_DIGITS = 20, 10


def check_type_changes(schema: StructType, table: str) -> None:
    """Raises UnsupportedFeature for a change that the protocol does not list, CorruptTable for what is no change."""
    for member in walk_fields(schema):
        for change in _changes(member):
            try:
                before, after = type_from_json(change["fromType"]), type_from_json(change["toType"])
            except (KeyError, TypeError) as error:
                raise CorruptTable(
                    f"{table}: {TYPE_CHANGES_KEY} of column {member.name!r} holds {change!r}, which is no change of a "
                    "type. Nothing was read.",
                    table=table,
                ) from error
            if not is_widening(before, after):
                raise UnsupportedFeature(
                    f"{table}: column {member.name!r} was changed from {before} to {after} (typeWidening), which this "
                    "engine does not know how to read in older files. Nothing was read.",
                    table=table,
                    feature="typeWidening",
                    needed_to="read",
                )


def is_widening(before: DataType, after: DataType) -> bool:
    """Whether the protocol lets a column of one type become the other."""
    if before in INTEGERS and after in INTEGERS:
        return INTEGERS[before].greatest <= INTEGERS[after].greatest
    if before in INTEGERS and isinstance(after, DecimalType):
        return after.precision - after.scale >= (_LONG_DIGITS if before is Primitive.LONG else _OTHER_DIGITS)
    if after is Primitive.DOUBLE:
        return before is Primitive.FLOAT or (before in INTEGERS and before is not Primitive.LONG)
    if isinstance(before, DecimalType) and isinstance(after, DecimalType):
        more_after_point = after.scale - before.scale
        return 0 <= more_after_point <= after.precision - before.precision
    return before is Primitive.DATE and after is Primitive.TIMESTAMP_NTZ


def _changes(member: StructField) -> list[Any]:
    changes = member.metadata.get(TYPE_CHANGES_KEY, [])
    return changes if isinstance(changes, list) else [changes]
