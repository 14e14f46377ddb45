"""New rows as the table's columns: their types, and NOT NULL at every depth. Source: protocol, "Column Invariants"."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, convert_columns, map_entries
from airflow_txlog.datafiles.parquet.physical import FileFields, inner_fields
from airflow_txlog.errors import ConstraintViolation, SchemaMismatch


def conforming(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns and types of the table's schema, checked against NOT NULL.

    Raises SchemaMismatch for a column that does not fit or that the table lacks, ConstraintViolation for a null in a
    NOT NULL column.
    """
    columns_of_table = FileFields(schema)
    unknown = [name for name in batch.schema.names if columns_of_table.find_name(name) is None]
    if unknown:
        raise SchemaMismatch(f"The rows have columns that the table does not have: {unknown}.", columns=unknown)
    try:
        columns = convert_columns(batch, schema)
    except ColumnMismatch as error:
        raise unfit_rows(error) from error
    for column, field in zip(columns, schema, strict=True):
        _check_not_null(column, field, field.name)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def unfit_rows(error: ColumnMismatch) -> SchemaMismatch:
    """Return the error for rows that the table cannot hold."""
    return SchemaMismatch(f"The rows do not fit the table: {error}.", columns=[error.column])


def _check_not_null(array: pa.Array, field: pa.Field, name: str, below: pa.Array | None = None) -> None:
    """Raise ConstraintViolation for a null that the field forbids; `below` marks values of the level above."""
    if not field.nullable and array.null_count:
        nulls = array.is_null() if below is None else pc.and_(array.is_null(), below)
        if pc.any(nulls, min_count=0).as_py():
            raise null_in(name, "" if below is None else ", in a struct that is not null")
    kind = field.type
    if not forbids_null(kind):
        return
    if pa.types.is_struct(kind):
        for child, child_field in zip(array.flatten(), kind, strict=True):
            _check_not_null(child, child_field, f"{name}.{child_field.name}", array.is_valid())
    elif pa.types.is_map(kind):
        _, items = map_entries(array)
        _check_not_null(items, kind.item_field, f"{name}.value")
    elif pa.types.is_list(kind):
        _check_not_null(array.flatten(), kind.value_field, f"{name}.element")


def forbids_null(kind: pa.DataType) -> bool:
    """Return whether a level inside the type is NOT NULL; a map's keys always are, and do not count."""
    fields = [kind.item_field] if pa.types.is_map(kind) else inner_fields(kind)
    return any(not field.nullable or forbids_null(field.type) for field in fields)


def null_in(name: str, where: str) -> ConstraintViolation:
    """Return the error for a null in a NOT NULL column."""
    return ConstraintViolation(
        f"Column {name!r} is NOT NULL, and a row has no value for it{where}. Nothing was committed. Correct such rows, "
        "or leave them out, in the SQL that makes them.",
        constraint="NOT NULL",
        column=name,
    )
