"""The rows of a range of a table's versions, as the plan of a scan: those that were added, or change rows.

A range is a `TableView` with a `range`. The invariant: the rows are those of the commits after `after` up to
`version`, each once, whatever the table has become since.

Commits that replaced files without a change data feed are compared by the ids of row tracking. A row that moved has its
id and its commit version in the new file; a row that changed has its id and another version. A row is unchanged only if
both are equal. A writer that does not keep ids makes a row that moved look like one that was deleted and one that was
inserted, which changes nothing in the sum.
Source: protocol, "Row Tracking" (reader requirements).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.operations import TableView
from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS, difference, packed_by_file, whole
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.row_ids import BASE_ROW_ID_CONSTANT, ROW_VERSION_CONSTANT
from airflow_txlog.datafiles.staged_files import CHANGE_TYPE_COLUMN, DELETE, INSERT
from airflow_txlog.datafiles.tasks.plans import CONSTANT_PREFIX
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, FileScan, Task
from airflow_txlog.engine import DeltaTable, Snapshot
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.table.changes.ranges import CommitFile, appended_files, changed_files
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType, bare_columns
from airflow_txlog.errors import SchemaMismatch, SourceGap, VersionNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.kept_ids import carried_ids, with_base_ids
from airflow_txlog.jobs.files.scan import FilePlan, bins_for, plan_files

_VERSION_COLUMN, _TIME_COLUMN = "_commit_version", "_commit_timestamp"
_CHANGE_FIELDS = (
    StructField(CHANGE_TYPE_COLUMN, Primitive.STRING),
    StructField(_VERSION_COLUMN, Primitive.LONG),
    StructField(_TIME_COLUMN, Primitive.TIMESTAMP),
)
_MOMENT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, kw_only=True)
class ViewRows:
    """The rows of a view of a table: the plan of its files, its columns, and which rows count, as of `FileScan`."""

    plan: FilePlan
    columns: StructType
    rows: Literal["all", "only"] = "all"


def rows_of_view(context: JobContext, view: TableView, snapshot: Snapshot) -> ViewRows:
    """Return the rows of a view, whose table is read at this snapshot. Raises SourceGap, SchemaMismatch."""
    zone, instants = context.spec.time_zone, context.executor.instants
    columns = bare_columns(snapshot.delta_schema)
    wanted = view.range
    if wanted is None or (wanted.after is None and not wanted.changes):
        return ViewRows(plan=plan_files(snapshot, snapshot.files(), zone, instants), columns=columns)
    taken = sorted({field.name for field in _CHANGE_FIELDS if columns.find(field.name) is not None})
    if wanted.changes and taken:
        raise SchemaMismatch(
            f"{snapshot.uri} has a column {taken[0]!r}, which change rows have too, so its changes cannot be read. "
            "Nothing was processed. Rename the column.",
            table=snapshot.uri,
            columns=taken,
        )
    if wanted.after is None:
        plan = plan_files(snapshot, snapshot.files(), zone, instants)
        facts = [(INSERT, snapshot.version, snapshot.timestamp_ms)] * plan.num_files
        return ViewRows(plan=_with_changes(plan, facts), columns=_with_change_fields(columns))
    found = _settled(context, snapshot, range_files(context, view, snapshot))
    files = [file for file, _ in found]
    plan = plan_files(snapshot, adds_to_table([file.add for file in files]), zone, instants)
    if not wanted.changes:
        return ViewRows(plan=plan, columns=columns)
    plan = _with_changes(plan, [(file.kind, file.version, file.timestamp_ms) for file in files])
    positions = _positions(plan, snapshot, found)
    only = any(each is not None for each in positions)
    return ViewRows(
        plan=plan.with_column("positions", positions) if only else plan,
        columns=_with_change_fields(columns),
        rows="only" if only else "all",
    )


def range_files(context: JobContext, view: TableView, snapshot: Snapshot) -> list[CommitFile]:
    """Return the files with the rows of a range that ends at the snapshot. Raises SourceGap."""
    wanted = view.range
    assert wanted is not None
    assert wanted.after is not None
    key = snapshot.uri, wanted.after, snapshot.version
    if context.commits_read is None or context.commits_read[0] != key:
        context.commits_read = key, list(changes_since(snapshot, wanted.after))
    commits = context.commits_read[1]
    if not wanted.changes:
        return appended_files(snapshot, commits, skips_changes=wanted.skip_change_commits)
    table = DeltaTable.at(view.table, context.store.access, limits=context.limits)
    return changed_files(snapshot, commits, partial(metadata_at, table, wanted.after))


def metadata_at(table: DeltaTable, version: int) -> Metadata | None:
    """Return the metadata of a version; None if there is none, or the log no longer shows it."""
    try:
        return None if version < 0 else table.snapshot(version).metadata
    except VersionNotFound:
        return None


def _with_changes(plan: FilePlan, facts: Sequence[tuple[str | None, int, int]]) -> FilePlan:
    """Return the plan with the change type, the version and the time of each file's rows as constants."""
    kinds, versions, times = zip(*facts, strict=True) if facts else ((), (), ())
    columns = (
        (CHANGE_TYPE_COLUMN, pa.array(kinds, pa.string())),
        (_VERSION_COLUMN, pa.array(versions, pa.int64())),
        (_TIME_COLUMN, pa.array([each * 1000 for each in times], pa.int64()).cast(_MOMENT)),
    )
    table, schema = plan.table, plan.schema
    for name, values in columns:
        table = table.append_column(CONSTANT_PREFIX + name, values)
        schema = schema.append(pa.field(name, values.type))
    return replace(plan, table=table, schema=schema)


def _with_change_fields(columns: StructType) -> StructType:
    return StructType((*columns, *_CHANGE_FIELDS))


def _positions(
    plan: FilePlan, snapshot: Snapshot, found: Sequence[tuple[CommitFile, bytes | None]]
) -> list[bytes | None]:
    """Return the positions of the rows of each file that count; None for all that its own vector leaves."""
    positions = [given for _, given in found]
    vectors = [(number, file.among) for number, (file, _) in enumerate(found) if file.among is not None]
    others = snapshot.deleted_rows(adds_to_table([among for _, among in vectors]))
    own = plan.table.column("deleted").to_pylist()
    for (number, _), other in zip(vectors, others, strict=True):
        assert other is not None
        gone = own[number]
        positions[number] = other.data if gone is None else difference(other, RowPositions(gone, "of the range"))
    return positions


_UPDATED = {DELETE: "update_preimage", INSERT: "update_postimage"}
_COMPARING = "compare the ids of rows"
_ORDINAL = pa.scalar((1 << POSITION_BITS) - 1, pa.int64())


def _settled(
    context: JobContext, snapshot: Snapshot, files: Sequence[CommitFile]
) -> list[tuple[CommitFile, bytes | None]]:
    """Return the files with the positions of the rows that count in each; None for all that its vector leaves.

    A file in which rows moved occurs once for each type of change that it shows. Raises SourceGap.
    """
    found: list[tuple[CommitFile, bytes | None]] = [(file, None) for file in files if not file.is_moved]
    for version in sorted({file.version for file in files if file.is_moved}):
        found += _of_commit(context, snapshot, [file for file in files if file.is_moved and file.version == version])
    return found


def _of_commit(
    context: JobContext, snapshot: Snapshot, files: Sequence[CommitFile]
) -> list[tuple[CommitFile, bytes | None]]:
    table = adds_to_table([file.add for file in files])
    ids = carried_ids(snapshot, table)
    if ids is None:
        raise SourceGap(
            f"version {files[0].version} of {snapshot.uri} replaces files by others without a change data feed, and "
            "the ids of their rows cannot be read. Nothing was processed. Start the consumer again after that version.",
            table=snapshot.uri,
            version=files[0].version,
        )
    plan = with_base_ids(plan_files(snapshot, table, context.spec.time_zone, context.executor.instants), table)
    bases = [pa.field(name, pa.int64()) for name in (BASE_ROW_ID_CONSTANT, ROW_VERSION_CONSTANT)]
    scan = FileScan(bins=bins_for(context, plan), schema=pa.schema([*ids.fields, *bases]), with_address=True)
    rows = context.executor.run([Task(source=scan)], scan.output_schema, _COMPARING)
    addresses = rows.column(ADDRESS_COLUMN)
    numbers = pc.add(rows.column(BASE_ROW_ID_CONSTANT), pc.bit_wise_and(addresses, _ORDINAL))
    is_removed = pa.array([file.kind == DELETE for file in files])
    keyed = pa.table(
        {
            "id": pc.coalesce(rows.column(ids.row_id), numbers),
            "version": pc.coalesce(rows.column(ids.row_version), rows.column(ROW_VERSION_CONSTANT)),
            "address": addresses,
            "removed": is_removed.take(pc.shift_right(addresses, POSITION_BITS)),
        }
    )
    return _changed_positions(keyed, files)


def _changed_positions(keyed: pa.Table, files: Sequence[CommitFile]) -> list[tuple[CommitFile, bytes | None]]:
    """Return the positions of the changed rows of each file by the type of their change."""
    found: list[tuple[CommitFile, bytes | None]] = []
    removed, added = keyed.filter(keyed.column("removed")), keyed.filter(pc.invert(keyed.column("removed")))
    for kind, side, other in ((DELETE, removed, added), (INSERT, added, removed)):
        others = other.select(["id", "version"]).rename_columns(["id", "other"])
        joined = side.join(others, "id", join_type="left outer")
        is_alone = pc.is_null(joined.column("other"))
        is_changed = pc.fill_null(pc.not_equal(joined.column("version"), joined.column("other")), False)
        for change, chosen in ((kind, is_alone), (_UPDATED[kind], is_changed)):
            addresses = whole(joined.filter(chosen).column("address"))
            for index, positions in packed_by_file(addresses):
                found.append((replace(files[index], kind=change, is_moved=False), positions))
    return found
