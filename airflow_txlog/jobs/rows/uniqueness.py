"""The rows of an operation's scope that share their values in some columns, as the commit would leave them.

The files of the scope after the commit are read for these columns alone: live files that stay, and the staged ones. The
scope is registered as read: a commit that adds rows to it during the operation is a conflict, and the next attempt
looks again. The invariant: a row with a null in one of the columns equals no row, as in SQL's UNIQUE.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.operations import CheckedOperation
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.table.predicate.names import did_you_mean
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.files import file_keys
from airflow_txlog.engine.table.snapshot.replay import TableState
from airflow_txlog.errors import ExpectationFailed, UnknownColumn
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import bins_for, plan_files
from airflow_txlog.jobs.resume.attempts import added
from airflow_txlog.jobs.sql.scope import PartitionScope


def unique_columns(context: JobContext, schema: StructType) -> list[str]:
    """Return the columns of `unique` as a table with this schema spells them; none without it. Raises UnknownColumn."""
    operation = context.operation
    given = (operation.unique or ()) if isinstance(operation, CheckedOperation) else ()
    found = []
    for name in given:
        field = schema.find(name)
        if field is None:
            raise UnknownColumn(
                f"unique names {name!r}, and {context.root} has no such column.{did_you_mean(name, schema.names)} "
                "Nothing was staged.",
                column=name,
                columns=schema.names,
            )
        found.append(field.name)
    return found


def check_unique(
    context: JobContext,
    tx: Transaction,
    scope: PartitionScope,
    *,
    removed: pa.Table,
    staged: Iterable[StagedFile],
    adds: Sequence[Add] = (),
) -> dict[str, dict[str, int]]:
    """Return how many rows of the scope passed and failed, by the name of the check; nothing without `unique`.

    `removed` (a table `FILES`) leave, `staged` files are new, and `adds` are live files with new deletion vectors.
    Raises ExpectationFailed for rows that share their values.
    """
    snapshot = _after(context, tx)
    columns = unique_columns(context, snapshot.delta_schema)
    if not columns:
        return {}
    live = scope.files_inside(tx.read(scope.read))
    gone = pc.is_in(file_keys(live, context.root), value_set=file_keys(removed, context.root))
    new = adds_to_table([*map(added, staged), *adds])
    counts = _counted(context, snapshot, pa.concat_tables([live.filter(pc.invert(gone)), new]), columns)
    name = f"unique({', '.join(columns)})"
    if counts["failed"]:
        raise ExpectationFailed(
            f"{context.root}: after the {context.operation.name}, {plural(counts['failed'], 'row')} of "
            f"{sum(counts.values())} would share their values of {', '.join(columns)} with another row, and unique "
            "forbids that. Nothing was committed. Correct the rows at their origin, or delete the rows that are in the "
            "way.",
            table=context.root,
            expectations={name: counts},
        )
    return {name: counts}


def _after(context: JobContext, tx: Transaction) -> Snapshot:
    """Return the snapshot with the metadata that the transaction leaves; an empty one of a table that it creates."""
    protocol, metadata = tx.protocol, tx.metadata
    assert protocol is not None
    assert metadata is not None
    if tx.snapshot is not None:
        return tx.snapshot.with_metadata(metadata)
    return Snapshot(
        context.store, TableState(version=-1, protocol=protocol, metadata=metadata, in_commit_ms=None), None
    )


def _counted(context: JobContext, snapshot: Snapshot, files: pa.Table, columns: list[str]) -> dict[str, int]:
    plan = plan_files(snapshot, files, context.spec.time_zone, context.executor.instants)
    scan = FileScan(bins=bins_for(context, plan), schema=pa.schema([snapshot.schema.field(name) for name in columns]))
    fields = StructType(tuple(snapshot.delta_schema.by_name[name.lower()] for name in columns))
    rows, shared = context.executor.rows_sharing_values(context, scan, fields)
    return {"passed": rows - shared, "failed": shared}
