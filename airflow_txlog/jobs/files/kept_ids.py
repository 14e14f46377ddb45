"""The ids of row tracking that moved rows keep: whether a job keeps them, and the settings of its tasks for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from airflow_txlog.datafiles.parquet.physical import is_variant, physical_name
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.row_ids import BASE_ROW_ID_CONSTANT, ROW_VERSION_CONSTANT, RowIds
from airflow_txlog.datafiles.staged_files import CHANGE_TYPE_COLUMN
from airflow_txlog.datafiles.tasks.plans import CONSTANT_PREFIX
from airflow_txlog.datafiles.tasks.scan_and_write import RESERVED_PREFIX
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.commit.content.row_tracking import MATERIALIZED_COLUMNS
from airflow_txlog.jobs.files.scan import FilePlan

# The fingerprint of a segment whose rows have their ids in it.
CARRIES_IDS = "carries row ids"


def carried_ids(snapshot: Snapshot, files: pa.Table) -> RowIds | None:
    """Return the columns in which rows of these files (a table `FILES`) keep their ids; None if ids are not kept.

    They are kept if the table tracks rows and names both columns as no other column, and every file has its ids. Files
    have both without a field id: readers find them by name, even if the table's own columns are mapped by id.
    """
    if not snapshot.table_properties.row_tracking:
        return None
    if any(files.column(name).null_count for name in ("base_row_id", "default_row_commit_version")):
        return None
    row_id, row_version = (snapshot.properties.get(name) for name in MATERIALIZED_COLUMNS)
    if row_id is None or row_version is None:
        return None
    # The two names are properties of the table, so any of its writers may have chosen them.
    taken = {name.lower() for field in snapshot.schema for name in (field.name, physical_name(field))}
    own = {row_id.lower(), row_version.lower()}
    has_reserved = any(name.startswith(RESERVED_PREFIX) for name in own | taken)
    if has_reserved or len(own) < 2 or own & {*taken, CHANGE_TYPE_COLUMN}:
        return None
    return RowIds(row_id=row_id, row_version=row_version)


def with_ids(layout: Layout, ids: RowIds | None) -> Layout:
    """Return the layout with the columns of the ids last; they get no statistics."""
    if ids is None:
        return layout
    count = sum(map(_leaf_count, layout.data_schema))
    indexed = layout.num_indexed_columns
    return replace(
        layout,
        schema=ids.added_to(layout.schema),
        row_ids=ids,
        num_indexed_columns=count if indexed < 0 else min(indexed, count),
    )


def with_base_ids(plan: FilePlan, files: pa.Table) -> FilePlan:
    """Return the plan with the ids that the log has for the rows of each file; `files` are those of the whole plan."""
    table = plan.table
    files = files.select(["base_row_id", "default_row_commit_version"]).take(table.column("index"))
    columns = {BASE_ROW_ID_CONSTANT: "base_row_id", ROW_VERSION_CONSTANT: "default_row_commit_version"}
    for name, source in columns.items():
        table = table.append_column(CONSTANT_PREFIX + name, files.column(source))
    return replace(plan, table=table)


def _leaf_count(field: pa.Field) -> int:
    return _leaves(field.type) if pa.types.is_struct(field.type) and not is_variant(field.type) else 1


def _leaves(fields: Iterable[pa.Field]) -> int:
    return sum(map(_leaf_count, fields))
