"""The ids of row tracking in data files: rows that move to another file keep them in two materialized columns.

A row without an id in its file has the file's base row id plus the row's ordinal, and the file's default commit
version. The invariants: a moved row keeps its id; an unchanged row keeps its commit version, and a changed one has a
null, which means the version of the commit that adds its file. Source: protocol, "Row Tracking" (reader and writer
requirements).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

# The column in which the id of a row travels through Spark, which needs no name of the table's properties.
KEPT_ID_COLUMN = "_txlog_kept_id"
# Columns of a plan that apply to all rows of a file: the file's facts of row tracking.
BASE_ROW_ID_CONSTANT = "_txlog_base_row_id"
ROW_VERSION_CONSTANT = "_txlog_row_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIds:
    """The columns of row tracking in the table's files, by physical name."""

    row_id: str
    row_version: str

    @property
    def fields(self) -> tuple[pa.Field, pa.Field]:
        return pa.field(self.row_id, pa.int64()), pa.field(self.row_version, pa.int64())

    def added_to(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema with both columns; those that it lacks are the last ones."""
        missing = [field for field in self.fields if field.name not in schema.names]
        return pa.schema([*schema, *missing])

    def fill(
        self, columns: list[pa.Array], schema: pa.Schema, base: pa.Scalar, version: pa.Scalar, numbers: pa.Array
    ) -> None:
        """Fill in the ids of rows that have none in their file: from the file's base and the row's ordinal.

        `columns` are those of `schema` and are changed in place; `numbers` are the ordinals in the file, int64.
        """
        ids, versions = schema.get_field_index(self.row_id), schema.get_field_index(self.row_version)
        columns[ids] = pc.coalesce(columns[ids], pc.add(numbers, base))
        columns[versions] = pc.coalesce(columns[versions], version)

    def of_copied(self, facts: Mapping[str, pa.Scalar], start: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a file, the first of which has the ordinal `start`, with the ids and versions that they have.

        `facts` are the constants of the file in its plan.
        """
        schema = self.added_to(rows.schema)
        columns = [*rows.columns, *(pa.nulls(rows.num_rows, pa.int64()) for _ in schema.names[rows.num_columns :])]
        numbers = pa.array(range(start, start + rows.num_rows), pa.int64())
        self.fill(columns, schema, facts[BASE_ROW_ID_CONSTANT], facts[ROW_VERSION_CONSTANT], numbers)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def dropped_from(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows without their ids."""
        return rows.drop_columns([field.name for field in self.fields if field.name in rows.schema.names])

    def of_changed(self, facts: Mapping[str, pa.Scalar], numbers: pa.Array, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with both columns as those of new images: they keep their ids and get the commit's version."""
        columns = rows.columns
        self.fill(columns, rows.schema, facts[BASE_ROW_ID_CONSTANT], facts[ROW_VERSION_CONSTANT], numbers)
        columns[rows.schema.get_field_index(self.row_version)] = pa.nulls(rows.num_rows, pa.int64())
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def read_by(self, schema: pa.Schema) -> pa.Schema:
        """Return a scan's schema with the columns from which `as_one_column` makes the ids of rows."""
        return pa.schema([*schema, self.fields[0], pa.field(BASE_ROW_ID_CONSTANT, pa.int64())])

    def as_one_column(self, rows: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
        """Return rows with KEPT_ID_COLUMN instead of the columns of `read_by`; `numbers` are their ordinals."""
        in_file, base = (rows.column(name) for name in (self.row_id, BASE_ROW_ID_CONSTANT))
        ids = pc.coalesce(in_file, pc.add(numbers, base))
        return rows.drop_columns([self.row_id, BASE_ROW_ID_CONSTANT]).append_column(KEPT_ID_COLUMN, ids)
