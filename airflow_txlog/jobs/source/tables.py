"""A source that is one of our tables: which version of it a job reads."""

from __future__ import annotations

from airflow_txlog.contract.operations import TableView
from airflow_txlog.engine import Snapshot, Table
from airflow_txlog.errors import InvalidJobSpec, SourceNotFound, TableNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.source.places import canonical


def snapshot_of_view(context: JobContext, view: TableView, target: Snapshot | None) -> tuple[Snapshot, bool]:
    """The version of a source's table that the job reads, and whether its rows may be the target's.

    `target` is the version of the job's table that a source reading it sees. Raises SourceNotFound, and InvalidJobSpec
    for a source that reads what the job is to create.
    """
    try:
        table = Table.at(view.table, context.store.access)
        table.snapshot()
    except TableNotFound as error:
        raise _not_there(view) from error
    version = view.version
    is_target = canonical(table.uri) == canonical(context.root)
    if is_target and version is None:
        if target is None:
            raise InvalidJobSpec(
                f"The source reads {view.table}, which this job is to create.", argument="source.table"
            )
        snapshot = target
    else:
        snapshot = table.snapshot(version)
        if version is None:
            context.tables_read.append((table, snapshot))
    if version is None:
        seen = context.lineage.versions
        seen[view.table] = snapshot.version if seen.get(view.table, snapshot.version) == snapshot.version else None
    # A version that was named is the same for ever: reading it is no reading of what may change.
    return snapshot, is_target and version is None


def check_table_is_there(context: JobContext, view: TableView, target: Snapshot | None) -> None:
    """Raises SourceNotFound for a source's table that is not there; its log is listed, and not read.

    `target`: the job's table, which a source may read. None: the job is to make it.
    """
    table = Table.at(view.table, context.store.access)
    if target is None and canonical(table.uri) == canonical(context.root):
        return
    try:
        table.latest_version()
    except TableNotFound as error:
        raise _not_there(view) from error


def _not_there(view: TableView) -> SourceNotFound:
    return SourceNotFound(
        f"The source table {view.table} does not exist (yet). Nothing was changed.", argument="source.table"
    )
