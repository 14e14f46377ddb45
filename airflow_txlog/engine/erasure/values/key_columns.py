"""The column that identifies subjects: one of single values, which are compared character by character."""

from __future__ import annotations

from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructField
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import InvalidInput, UnknownColumn, UnsupportedFeature
from airflow_txlog.errors.names import did_you_mean, shown_names


def key_path(snapshot: Snapshot, column: str) -> tuple[StructField, ...]:
    """Return the fields that lead to the column of subjects, or to a member of a struct.

    Raises UnknownColumn; InvalidInput for a column of nested values; UnsupportedFeature for a collation.
    """
    uri, names = snapshot.uri, snapshot.delta_schema.names
    found = snapshot.delta_schema.find_path((column,)) or snapshot.delta_schema.find_path(tuple(column.split(".")))
    if found is None:
        raise UnknownColumn(
            f"{uri} has no column {column!r}.{did_you_mean(column, names)} It has: {shown_names(names)}.",
            column=column,
            columns=names,
        )
    if not isinstance(found[-1].type, Primitive | DecimalType):
        raise InvalidInput(
            f"{uri}: the column {column!r} is {found[-1].type}. Subjects are found by a column of single values. "
            "Name such a column, or a member of the struct as `struct.member`."
        )
    if found[-1].is_collated:
        raise UnsupportedFeature(
            f"{uri}: the column {column!r} has a collation, so that different texts are equal. Subjects are "
            "compared character by character. Nothing was searched. Name another column.",
            table=uri,
            feature="subjects by a column with a collation",
            needed_to="find subjects",
        )
    return found
