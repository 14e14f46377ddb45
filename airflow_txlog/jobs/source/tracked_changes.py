"""The changes of commits that replaced files without a change data feed, by the ids of row tracking.

A row that moved has its id and its commit version in the new file; a row that changed has its id and another version.
The invariant: a row is unchanged only if both are equal. A writer that does not keep ids makes a row that moved look
like one that was deleted and one that was inserted, which changes nothing in the sum.
Source: protocol, "Row Tracking" (reader requirements).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS, packed_by_file, whole
from airflow_txlog.datafiles.row_ids import BASE_ROW_ID_CONSTANT, ROW_VERSION_CONSTANT
from airflow_txlog.datafiles.staged_files import DELETE, INSERT
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, FileScan, Task
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.table.changes.ranges import CommitFile
from airflow_txlog.errors import SourceGap
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.kept_ids import carried_ids, with_base_ids
from airflow_txlog.jobs.files.scan import bins_for, plan_files

_UPDATED = {DELETE: "update_preimage", INSERT: "update_postimage"}
_COMPARING = "compare the ids of rows"
_ORDINAL = pa.scalar((1 << POSITION_BITS) - 1, pa.int64())


def settled(
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
    return _positions(keyed, files)


def _positions(keyed: pa.Table, files: Sequence[CommitFile]) -> list[tuple[CommitFile, bytes | None]]:
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
