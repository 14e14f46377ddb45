"""Copies of data files without the rows of erased subjects, which a commit adds instead of the files.

The invariant: a copy has every other row of its file that no deletion vector deletes, and the row keeps its id.
"""

from __future__ import annotations

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.datafiles.deletion_vectors.positions import pack
from airflow_txlog.datafiles.parquet.physical import is_mapped
from airflow_txlog.datafiles.parquet.reading import DataFile
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.partitioning import hive_directory
from airflow_txlog.datafiles.row_ids import BASE_ROW_ID_CONSTANT, ROW_VERSION_CONSTANT
from airflow_txlog.datafiles.tasks.copies import CopyTask
from airflow_txlog.datafiles.tasks.plans import Bins, PlannedFile
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.commit.content.clustering import clustering_columns
from airflow_txlog.engine.erasure.returns import Incoming, Returning
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.log.vectors import read_vectors
from airflow_txlog.engine.table.columns.partitions import typed_partition_columns
from airflow_txlog.engine.table.schema.column_mapping import table_schema
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.files.kept_ids import carried_ids, with_ids
from airflow_txlog.jobs.files.stage import plain_layout
from airflow_txlog.storage import StoreReference


class RowsLeftOut:
    """Writes a file of `incoming` again, in the folder of the job's table, without the rows of erased subjects."""

    def __init__(self, context: LogContext, snapshot: Snapshot | None, incoming: Incoming) -> None:
        self._context, self._incoming = context, incoming
        self._snapshot = None if snapshot is None else snapshot.with_metadata(incoming.metadata)
        self._attempt = SYSTEM_CLOCK.unique_id()
        clustering = () if snapshot is None else clustering_columns(snapshot.state.domains.values(), snapshot.uri)
        self._layout = plain_layout(
            context.store,
            None if snapshot is None else snapshot.protocol,
            incoming.metadata,
            clustering,
            context.clock.unique_id().replace("-", "")[:16],
        )

    def copy(self, number: int, found: Returning) -> Add | None:
        """Return the action of the copy of a file, the copies' `number`; None if no row is left.

        Raises the errors of a copy, CorruptDataFile among them, and CorruptDeletionVector.
        """
        incoming, add = self._incoming, found.add
        if found.is_whole:
            return None
        layout = self._layout_of(add)
        planned = PlannedFile(
            index=number,
            file=DataFile(store=incoming.store, path=canonical_path(add.path, incoming.root), size_bytes=add.size),
            directory=self._directory(add),
            partition_values=dict(add.partition_values),
            deleted=self._deleted(add),
            positions=pack(found.rows),
            is_copied=False,
            constants=self._constants(add),
        )
        task = CopyTask(bins=Bins(store=StoreReference.of(incoming.store)), layout=layout)
        staged = task.copied(planned, self._attempt, self._context.store).publish()
        if staged is None:
            return None
        return Add(
            path=staged.path,
            partition_values=staged.partition_values,
            size=staged.size_bytes,
            modification_time=staged.modification_time_ms,
            data_change=True,
            stats=staged.stats,
        )

    def _layout_of(self, add: Add) -> Layout:
        ids = None if self._snapshot is None else carried_ids(self._snapshot, adds_to_table([add]))
        return with_ids(self._layout, ids)

    def _directory(self, add: Add) -> str:
        if any(map(is_mapped, self._layout.schema)):
            return ""
        names = self._layout.partition_columns
        return hive_directory(names, [add.partition_values.get(name) for name in names])

    def _deleted(self, add: Add) -> bytes | None:
        if add.deletion_vector is None:
            return None
        (rows,) = read_vectors(self._incoming.store, [(add.deletion_vector, None)])
        return rows.data

    def _constants(self, add: Add) -> dict[str, pa.Scalar]:
        incoming = self._incoming
        columns = table_schema(incoming.metadata, incoming.root)
        files = adds_to_table([add])
        needed = [field.name for field in self._layout.materialized]
        typed = typed_partition_columns(files, columns, incoming.metadata.partition_columns, only=needed)
        return {
            **{name: values.for_rows(name)[0] for name, values in typed.items()},
            BASE_ROW_ID_CONSTANT: pa.scalar(add.base_row_id, pa.int64()),
            ROW_VERSION_CONSTANT: pa.scalar(add.default_row_commit_version, pa.int64()),
        }
