"""Convert the keys of a delete to the exact type of the table's column, or refuse them: see `exact_values`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_txlog.engine.table.schema.exact_values import NotExact, are_compared, exact_values
from airflow_txlog.engine.table.schema.types import StructField
from airflow_txlog.errors import SchemaMismatch, UnsupportedFeature


def convert_keys(given: pa.Array | pa.ChunkedArray | Sequence[Any], field: StructField, table: str) -> pa.Array:
    """Return the given keys as distinct values of the column `field` of `table`, in order.

    `given` is an Arrow column, or Python values. Raises SchemaMismatch for the first key that is null or not exactly a
    value of the column's type, by its place; UnsupportedFeature for a column with which no key can be compared by
    value.
    """
    check_key_column(field, table)
    try:
        return exact_values(given, field.type)
    except NotExact as problem:
        which = "A key" if problem.place is None else f"Key number {problem.place + 1}"
        raise SchemaMismatch(
            f"{which} is a {problem.found}, and the column {field.name!r} of {table} is {field.type}: "
            f"{problem.reason}. Converted, it could match no row, or another subject's. Give the "
            "keys in the column's own type: cast them in a query, give the file a schema, or filter them. Nothing was "
            "read.",
            table=table,
            columns=[field.name],
        ) from None


def check_key_column(field: StructField, table: str) -> None:
    """Raise UnsupportedFeature if equal values of the column may belong to different subjects."""
    what = None
    if field.is_collated:
        what = "has a collation, so that different texts are equal"
    elif field.is_char:
        what = f"is {field.metadata['__CHAR_VARCHAR_TYPE_STRING']}, which is stored padded"
    elif not are_compared(field.type):
        what = f"is {field.type}, and only single values can be keys"
    if what is not None:
        raise UnsupportedFeature(
            f"{table}: rows cannot be deleted by keys of the column {field.name!r}: it {what}. Use a predicate. "
            "Nothing was read.",
            table=table,
            feature="keys of this column",
            needed_to="delete by keys",
        )
