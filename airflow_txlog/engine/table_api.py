"""`Table`, the front door for Python code: a Delta table with all of its operations.

Each method combines parts of the engine and makes no decisions. Jobs use `DeltaTable` and call the required functions
of `upkeep` themselves, so that a task imports only these.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.engine.checkpointing import LogCleanup, clean_log
from airflow_txlog.engine.commit.content.watermarks import watermarks_of
from airflow_txlog.engine.commit.loop import CommitPolicy
from airflow_txlog.engine.commit.transaction import Transaction
from airflow_txlog.engine.delta_table import DeltaTable, Uri
from airflow_txlog.engine.erasure.files_elsewhere import files_elsewhere, tables_of
from airflow_txlog.engine.erasure.former_names import with_former_names
from airflow_txlog.engine.erasure.object_verdicts import ObjectVerdict, verify
from airflow_txlog.engine.erasure.removal import Removal, remove_traces
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.many_files import PARALLELISM
from airflow_txlog.engine.staged_changes import staged_snapshot
from airflow_txlog.engine.table.changes.versions import change_rows
from airflow_txlog.engine.table.schema.properties import ORPHAN_RETENTION_MS
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.commit_times import Moment, moment_text, parse_moment
from airflow_txlog.engine.table.snapshot.scan import read_rows
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, is_missing_from, vacuumed
from airflow_txlog.engine.upkeep.checks import Finding, check
from airflow_txlog.engine.upkeep.history import history
from airflow_txlog.engine.upkeep.restore import restore
from airflow_txlog.engine.upkeep.vacuum import OnProgress, VacuumResult, vacuum_table
from airflow_txlog.engine.upkeep.vacuum_plan import InventorySource, VacuumMode, VacuumRequest, milliseconds
from airflow_txlog.errors import CorruptTable, InvalidInput, ProtocolChanged, TableAlreadyExists
from airflow_txlog.locations import is_absolute
from airflow_txlog.storage import Access

log = logging.getLogger(__name__)


class Table(DeltaTable):
    """A Delta table at a URI. Returned by `open`, `at` or `create`."""

    @classmethod
    def open(
        cls,
        uri: Uri,
        storage_options: Mapping[str, Any] | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        policy: CommitPolicy | None = None,
        strict_writers: bool = False,
        allow_absolute_paths: bool = False,
    ) -> Self:
        """Return the table at `uri`, which must exist and be readable here.

        `strict_writers`: see `at`. `allow_absolute_paths`: allow reading rows of files outside of the table, which a
        shallow clone references; without it they raise OutsideTable. A `Store` has its own setting.

        Raises TableNotFound, UnsupportedStore, UnsupportedFeature, CorruptTable.
        """
        access = Access(storage_options=storage_options or {}, allow_absolute_paths=allow_absolute_paths)
        table = cls.at(uri, access, clock=clock, policy=policy, strict_writers=strict_writers)
        table.snapshot()
        return table

    def with_staged(self, id: str, digest: str) -> Table:
        """Return the table with a staged change applied, for reading only. Raises StagedChangeGone."""
        return _StagedTable(self, staged_snapshot(self, id, digest))

    def at_version(self, version: int) -> Table:
        """Return the table as it was at a version, for reading only. Raises the errors of `snapshot`."""
        return _TableAtVersion(self, self.snapshot(version))

    @staticmethod
    def exists(uri: Uri, storage_options: Mapping[str, Any] | None = None) -> bool:
        """Return whether a Delta table exists, readable here or not."""
        return DeltaTable.at(uri, Access(storage_options=storage_options or {})).is_there()

    @classmethod
    def create(
        cls,
        uri: Uri,
        schema: pa.Schema | StructType,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        *,
        cluster_by: Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        name: str | None = None,
        description: str | None = None,
        allow_non_empty: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        policy: CommitPolicy | None = None,
    ) -> Self:
        """Create an empty table, at version 0, and return it.

        Raises TableAlreadyExists (also if another writer creates it at the same moment), UnsupportedStore, and the
        errors of `begin_create`.
        """
        table = cls.at(uri, Access(storage_options=storage_options or {}), clock=clock, policy=policy)
        there = TableAlreadyExists(
            f"{table.uri} holds a Delta table already, so none was created. Open it with Table.open.", table=table.uri
        )
        if table.is_there():
            raise there
        tx = table.begin_create(
            schema,
            partition_by,
            properties,
            cluster_by=cluster_by,
            name=name,
            description=description,
            allow_non_empty=allow_non_empty,
        )
        parameters: dict[str, Any] = {"partitionBy": list(partition_by), "properties": dict(properties or {})}
        if cluster_by:
            parameters["clusterBy"] = list(cluster_by)
        try:
            tx.commit("CREATE TABLE", parameters)
        except ProtocolChanged as race:
            raise there from race
        return table

    # --- reading ----------------------------------------------------------------------------------------------------

    def to_arrow(
        self,
        predicate: str | None = None,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        *,
        timestamp: Moment | None = None,
        parameters: Mapping[str, object] | None = None,
        time_zone: str = "UTC",
    ) -> pa.Table:
        """Return the rows that satisfy the predicate, with these columns, in any order, read in this process.

        Without version and timestamp, if files are removed and vacuumed during the read, the version that removed them
        is read instead.

        Raises the errors of `snapshot`, InvalidPredicate, UnsupportedPredicate (outside the engine's closed grammar),
        UnknownColumn, CorruptDataFile, OutsideTable; FilesMissing if a VACUUM has deleted files of the requested
        version.
        """
        snapshot = self.snapshot(version, timestamp)
        while True:
            read = None
            if predicate is not None:
                read = snapshot.read_predicate(predicate, parameters=parameters, time_zone=time_zone)
            try:
                return read_rows(snapshot, read, columns)
            except CorruptTable as error:
                newest = self.snapshot()
                if not is_missing_from(snapshot, error) or is_missing_from(newest, error):
                    raise
                if version is not None or timestamp is not None:
                    raise vacuumed(snapshot, newest, error) from error
                snapshot = newest

    def changes(self, start: int, end: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows that versions `start` to `end` (inclusive; None: the latest) inserted, deleted and updated.

        The result has the table's columns (or the given ones) as of `end`, then `_change_type` (insert, delete,
        update_preimage, update_postimage), `_commit_version` and `_commit_timestamp` (UTC). Versions are ascending, and
        the rows are read in this process. Raises the errors of `change_rows`, and VersionNotFound or LogGap if the
        versions are no longer in the log.
        """
        return change_rows(self.uri, self.snapshot, start, end, columns)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the commits in the log, newest first; see `upkeep.history`."""
        return history(self.store, limit)

    def check(self) -> list[Finding]:
        """Return the findings about the table's health, each with advice; see `upkeep.checks`."""
        return check(self.store, self.snapshot())

    def find_traces(self, column: str, values: Sequence[Any]) -> Iterator[ObjectVerdict]:
        """Yield a verdict on every object below the table: does it hold one of these values of a column, in any form?

        `column` may be a member of a struct, as `customer.email`. Opens each object, also files that no version names;
        needs the right to list and to read alone. See `erasure.object_verdicts`. Raises UnknownColumn; InvalidInput
        without values, and for one that the column cannot hold.
        """
        snapshot = self.snapshot()
        return verify(snapshot, with_former_names(self, Forms.of(snapshot, column, values)))

    def reads_of(self, uris: Collection[str]) -> list[str]:
        """Return the tables among these that this one visibly reads, by increments or as a shallow clone.

        The URIs are canonical.
        """
        sources = {each.source for each in watermarks_of(self.snapshot().state.domains).values()}
        cloned = self.clone_of(uris)
        return [uri for uri in uris if uri in sources or uri in cloned]

    def clone_of(self, uris: Collection[str]) -> list[str]:
        """Return those of these tables that this one is a shallow clone of. The URIs are canonical."""
        paths = canonical_paths(self.snapshot().files(columns=["path"]).column("path"), self.uri).to_pylist()
        return tables_of(filter(is_absolute, paths), uris)

    def may_be_clone_of(self, uris: Collection[str]) -> list[str]:
        """Return those of these tables whose files the log still names, even if no version can be read.

        Returns all of them if a part of the log cannot be read. The URIs are canonical. Raises the errors of the store.
        """
        elsewhere = files_elsewhere(self.store)
        return list(uris) if elsewhere is None else tables_of(elsewhere, uris)

    def remove_traces(
        self, column: str, values: Sequence[Any], *, writer_hours: float = 24, cut_log: bool = True
    ) -> Removal:
        """Delete the objects that hold one of these values of a column and that the latest version does not need.

        Delete the rows and purge deletion vectors first. Retention does not count: time travel to versions that need
        the deleted files ends, and with `cut_log` the log begins at a new checkpoint if it held a value. A file that no
        commit names stays for `writer_hours`, the longest time that a writer takes from its first read to its commit;
        so does a commit that the cut would delete. 0: nothing else writes now. The result names what has to wait.

        Raises the errors of `find_traces`, UnsupportedFeature, and the store's errors.
        """
        forms = with_former_names(self, Forms.of(self.snapshot(), column, values))
        return remove_traces(self, forms, writer_ms=milliseconds(writer_hours), cuts_log=cut_log, say=log.info)

    # --- upkeep -----------------------------------------------------------------------------------------------------

    def restore(
        self, version: int | None = None, timestamp: Moment | None = None, *, ignore_missing: bool = False
    ) -> int:
        """Restore the content and metadata of an earlier version or time as a new version; see `upkeep.restore`.

        Returns the new version, or the current one if the table is already at that version. Raises the errors of
        `snapshot` for the version or time, FilesMissing, UnsupportedFeature, and ConcurrentWrite if another commit
        comes first, because a restore is never rebased. Logs the watermarks of increments that go back.
        """
        if version is None and timestamp is None:
            raise InvalidInput(f"{self.uri}: restore needs a version or a timestamp. Nothing was changed.")
        tx = self.begin()
        target = self.snapshot(version, timestamp)
        asked = None if timestamp is None else moment_text(parse_moment(timestamp))
        restored = restore(tx, target, self.store, timestamp=asked, ignore_missing=ignore_missing)
        for line in restored.rewound:
            log.warning("%s: %s", self.uri, line)
        return restored.version

    def clean_log(self) -> LogCleanup:
        """Delete the commits and checkpoints that are past delta.logRetentionDuration; see `checkpointing`.

        The log is truncated only at a complete checkpoint that was read back. The cleanup makes no commit. Raises
        UnsupportedFeature if this engine may not write the table, and the store's errors for a delete.
        """
        snapshot = self.begin().snapshot
        assert snapshot is not None
        return clean_log(self.store, snapshot, self.clock)

    def vacuum(
        self,
        retention: timedelta | float | None = None,
        dry_run: bool = False,
        *,
        check_retention: bool = True,
        orphan_retention: timedelta | float = timedelta(milliseconds=ORPHAN_RETENTION_MS),
        mode: VacuumMode = "full",
        inventory: InventorySource | None = None,
        parallelism: int = PARALLELISM,
        include_foreign: bool = False,
        on_progress: OnProgress | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> VacuumResult:
        """Delete the files under the table that no version inside the retention needs; `dry_run` only lists them.

        There are two retention times. A file that the log has removed is deleted once its tombstone is older than
        `retention` (a timedelta, or hours; None: delta.deletedFileRetentionDuration). A file that no action references
        may be staged by a running job, so it is deleted only if it is older than `orphan_retention`, which is never
        less than 24 hours. The vacuum is recorded as VACUUM START and VACUUM END.

        With `mode` "lite" no folder is listed, and only files that the log has removed since the last vacuum are
        deleted. `inventory` (a table, or a Parquet or CSV file, with path, modificationTime, size, isDir) replaces the
        listing; each of its files is checked before it is deleted. `parallelism` is the number of concurrent deletes,
        and `on_progress` is called at intervals. Both commits contain `tags`. `include_foreign`: also delete unrelated
        files in a table whose folder contains such files.

        Raises FolderNotEmpty for such a table without `include_foreign`, RetentionTooShort if `retention` is below the
        table's and `check_retention` is on, InvalidInput for invalid values, CannotVacuumLite if commits since the last
        vacuum are missing in the log, UnsupportedFeature if this engine may not write the table, and the store's error
        for a delete, after the other deletes.
        """
        request = VacuumRequest(
            retention_ms=None if retention is None else milliseconds(retention),
            check_retention=check_retention,
            orphan_retention_ms=milliseconds(orphan_retention),
            dry_run=dry_run,
            mode=mode,
            inventory=inventory,
            parallelism=parallelism,
            include_foreign=include_foreign,
        )
        return vacuum_table(self, request, on_progress=on_progress, tags=tags)


class _TableAtVersion(Table):
    """A table whose latest version is a given one."""

    def __init__(self, table: Table, named: Snapshot) -> None:
        super().__init__(table.store, clock=table.clock)
        self._named = named

    def snapshot(self, version: int | None = None, timestamp: Moment | None = None) -> Snapshot:
        """Return the named version, or another one as it is."""
        return self._named if version is None and timestamp is None else super().snapshot(version, timestamp)

    def to_arrow(self, *args: Any, **kwargs: Any) -> pa.Table:
        """Return the rows of the named version. Raises as `Table.to_arrow` does; FilesMissing after a VACUUM."""
        try:
            return super().to_arrow(*args, **kwargs)
        except CorruptTable as error:
            newest = DeltaTable.snapshot(self)
            if not is_missing_from(self._named, error) or is_missing_from(newest, error):
                raise
            raise vacuumed(self._named, newest, error) from error

    def begin(self, version: int | None = None) -> Transaction:
        """Raise InvalidInput, because a change must be made on the latest version, and this is not the latest one."""
        raise InvalidInput(f"{self.uri} was opened at version {self._named.version}, which is for reading only.")


class _StagedTable(Table):
    """A table whose latest version is the one that a staged change would create."""

    def __init__(self, table: Table, staged: Snapshot) -> None:
        super().__init__(table.store, clock=table.clock)
        self._staged = staged

    def snapshot(self, version: int | None = None, timestamp: Moment | None = None) -> Snapshot:
        """Return the staged state, or an earlier version as it is."""
        return self._staged if version is None and timestamp is None else super().snapshot(version, timestamp)

    def begin(self, version: int | None = None) -> Transaction:
        """Raise InvalidInput, because only DeltaPublishOperator publishes a staged change."""
        raise InvalidInput(f"{self.uri} was opened as a staged change would leave it, which is for reading only.")
