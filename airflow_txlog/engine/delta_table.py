"""A Delta table: the engine's front door.

Everything here puts the parts below together and decides nothing itself. A `Table` remembers the newest snapshot that
it has seen (`engine/table/snapshot/cache.py`), so that looking again costs one listing; any number of threads may use
one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.engine import checkpointing
from airflow_txlog.engine.checkpointing import LogCleanup, clean_after_checkpoint, clean_log
from airflow_txlog.engine.commit.creation import holds_files_of_others, new_table
from airflow_txlog.engine.commit.loop import CommitPolicy, Landed
from airflow_txlog.engine.commit.transaction import Transaction
from airflow_txlog.engine.commit.writers import check_writers
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.log.segment import list_segment
from airflow_txlog.engine.many_files import PARALLELISM
from airflow_txlog.engine.table.changes.versions import change_rows
from airflow_txlog.engine.table.schema.properties import SHARED_FOLDER, TableProperties
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.cache import RecentTable
from airflow_txlog.engine.table.snapshot.commit_times import Moment, moment_text, parse_moment, version_at
from airflow_txlog.engine.table.snapshot.scan import read_rows
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, is_missing_from
from airflow_txlog.engine.upkeep.checks import Finding, check
from airflow_txlog.engine.upkeep.history import history
from airflow_txlog.engine.upkeep.restore import restore
from airflow_txlog.engine.upkeep.vacuum import OnProgress, VacuumResult, vacuum
from airflow_txlog.engine.upkeep.vacuum_plan import (
    ORPHAN_RETENTION_MS,
    InventorySource,
    VacuumMode,
    VacuumRequest,
    VacuumState,
)
from airflow_txlog.errors import (
    CorruptTable,
    FilesMissing,
    FolderNotEmpty,
    InvalidInput,
    ProtocolChanged,
    TableAlreadyExists,
    TableNotFound,
    TimestampOutOfRange,
    VersionNotFound,
)
from airflow_txlog.storage import Access, Store, open_store
from airflow_txlog.storage.limits import USUAL, Limits

log = logging.getLogger(__name__)

Uri = str | os.PathLike[str] | Store


class Table:
    """A Delta table at a URI. Made by `open`, `at` or `create`."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock = SYSTEM_CLOCK,
        policy: CommitPolicy | None = None,
        strict_writers: bool = False,
    ) -> None:
        self.store = store
        self._clock = clock
        self._policy = policy
        self._strict_writers = strict_writers
        self._writers_are_known = False
        self._recent = RecentTable(store)

    def __repr__(self) -> str:
        return f"Table({self.uri!r})"

    @property
    def uri(self) -> str:
        return self.store.root

    @staticmethod
    def open(
        uri: Uri,
        storage_options: Mapping[str, Any] | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        policy: CommitPolicy | None = None,
        strict_writers: bool = False,
        allow_absolute_paths: bool = False,
    ) -> Table:
        """The table at `uri`, which must hold one that can be read here.

        `strict_writers`: a transaction or a checkpoint is refused (OverwritingWriter), and not only warned about, where
        an engine that wrote the table lately would replace our commits on this store (docs/writers.md).
        `allow_absolute_paths`: rows of files outside of the table, which a shallow clone names, can be read; without
        it they are refused (OutsideTable). A `Store` has its own.

        Raises TableNotFound, UnsupportedStore, UnsupportedFeature, CorruptTable.
        """
        access = Access(storage_options=storage_options or {}, allow_absolute_paths=allow_absolute_paths)
        table = Table.at(uri, access, clock=clock, policy=policy, strict_writers=strict_writers)
        table.snapshot()
        return table

    @staticmethod
    def at(
        uri: Uri,
        access: Access,
        *,
        clock: Clock = SYSTEM_CLOCK,
        policy: CommitPolicy | None = None,
        strict_writers: bool = False,
        limits: Limits = USUAL,
    ) -> Table:
        """The same without looking whether there is one: nothing is read before a method is called.

        Raises UnsupportedStore.
        """
        return Table(open_store(uri, access, limits), clock=clock, policy=policy, strict_writers=strict_writers)

    @staticmethod
    def exists(uri: Uri, storage_options: Mapping[str, Any] | None = None) -> bool:
        """Whether a Delta table is there, readable here or not."""
        return _exists(open_store(uri, Access(storage_options=storage_options or {})))

    @staticmethod
    def create(
        uri: Uri,
        schema: pa.Schema | StructType,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        name: str | None = None,
        description: str | None = None,
        allow_non_empty: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        policy: CommitPolicy | None = None,
    ) -> Table:
        """A new table, empty, at version 0.

        Raises TableAlreadyExists (also where another writer creates it at the same moment), UnsupportedStore, and what
        `begin_create` raises.
        """
        table = Table.at(uri, Access(storage_options=storage_options or {}), clock=clock, policy=policy)
        if _exists(table.store):
            raise _already_exists(table.uri)
        tx = table.begin_create(
            schema, partition_by, properties, name=name, description=description, allow_non_empty=allow_non_empty
        )
        try:
            tx.commit("CREATE TABLE", {"partitionBy": list(partition_by), "properties": dict(properties or {})})
        except ProtocolChanged as race:
            raise _already_exists(table.uri) from race
        return table

    # --- reading ----------------------------------------------------------------------------------------------------

    def snapshot(self, version: int | None = None, timestamp: Moment | None = None) -> Snapshot:
        """The table as of a version or a moment, or now.

        `timestamp`: milliseconds since the epoch, ISO-8601 text or a datetime, UTC where it names no zone; the last
        version committed at or before it. Raises TableNotFound, VersionNotFound, TimestampOutOfRange, CorruptTable,
        UnsupportedFeature.
        """
        if version is not None and timestamp is not None:
            raise InvalidInput("a snapshot is asked for by version or by timestamp, not by both.")
        if timestamp is None:
            return self._recent.latest() if version is None else self._recent.at(version)
        head = self._recent.latest()
        found = version_at(self.store, head, timestamp)
        try:
            return self._recent.at(found)
        except VersionNotFound as error:
            raise TimestampOutOfRange(
                f"{self.uri}: version {found} was current at {timestamp}, but the log was cleaned and it can no longer "
                f"be rebuilt. {error}",
                table=self.uri,
            ) from error

    def latest_version(self) -> int:
        """The number of the latest version; nothing is replayed. One listing, once the table is known.

        Raises TableNotFound, CorruptTable.
        """
        return self._recent.latest_version()

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
        """The rows that satisfy the predicate, with these columns, in no order, read in this process.

        Where neither version nor timestamp is given, and files of the version are removed and vacuumed while they are
        read, the version that removed them is read.

        Raises what `snapshot` raises, InvalidPredicate, UnsupportedPredicate (outside the engine's closed grammar),
        UnknownColumn, CorruptDataFile, OutsideTable; FilesMissing where a VACUUM has taken files of the version that
        was asked for.
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
                    raise FilesMissing(
                        f"FilesMissing: version {snapshot.version} of {self.uri} cannot be read any more: {error.path} "
                        f"is not there. A later version removed it and a VACUUM has deleted it; the latest version is "
                        f"{newest.version}.",
                        table=self.uri,
                        version=snapshot.version,
                        count=1,
                        examples=[str(error.path)],
                    ) from error
                snapshot = newest

    def changes(self, start: int, end: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows that the versions `start` to `end` (both inclusive; None: the latest) changed.

        They have the columns of `end` (or these), then `_change_type` (insert, delete, update_preimage,
        update_postimage), `_commit_version` and `_commit_timestamp` (UTC); versions ascend. Raises as `change_rows`.
        """
        return change_rows(self.uri, self.snapshot, start, end, columns)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The commits that the log still holds, newest first; see `engine.upkeep.history`."""
        return history(self.store, limit)

    def check(self) -> list[Finding]:
        """What is unhealthy about the table, each with advice; empty where nothing is. See `engine.upkeep.checks`."""
        return check(self.store, self.snapshot())

    # --- changing ---------------------------------------------------------------------------------------------------

    def begin(self, version: int | None = None) -> Transaction:
        """A transaction on top of a version, the latest where none is named.

        Raises UnsupportedFeature, before anything is staged, where this engine may not write to the table;
        CommitOverwritten where a commit that was acknowledged to this table is not there any more; OverwritingWriter
        under `strict_writers`.
        """
        return self._transaction(self.snapshot(version))

    def begin_create(
        self,
        schema: pa.Schema | StructType,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        allow_non_empty: bool = False,
    ) -> Transaction:
        """A transaction whose commit creates the table, with the rows that are added to it.

        `allow_non_empty`: also beside files that belong to no table; SHARED_FOLDER then keeps a VACUUM from them.
        Raises SchemaMismatch, InvalidProperty, UnsupportedFeature, FolderNotEmpty. Its commit raises ProtocolChanged
        where another writer creates the table first.
        """
        if self.check_folder(partition_by, allow_non_empty=allow_non_empty):
            properties = {**(properties or {}), SHARED_FOLDER: "true"}
        protocol, metadata = new_table(
            self.uri, schema, partition_by, properties, name=name, description=description, clock=self._clock
        )
        tx = self._transaction(None)
        tx.set_protocol(protocol)
        tx.set_metadata(metadata)
        return tx

    def check_folder(self, partition_by: Sequence[str] = (), *, allow_non_empty: bool = False) -> bool:
        """Return whether files of others lie where the table is to be created; FolderNotEmpty unless they may."""
        try:
            return holds_files_of_others(self.store, partition_by, self._clock, allow_non_empty=allow_non_empty)
        except FolderNotEmpty:
            # Another writer has created the table meanwhile: the files are its own, and the commit loses to it.
            if _exists(self.store):
                return False
            raise

    def restore(
        self, version: int | None = None, timestamp: Moment | None = None, *, ignore_missing: bool = False
    ) -> int:
        """Make the content and the metadata of an earlier version, or moment, the latest version again; see
        `engine.upkeep.restore`. Returns the new version, or the present one where the table stands there already.

        Raises what `snapshot` raises for the version or moment, FilesMissing, UnsupportedFeature, and ConcurrentWrite
        where any commit lands first: a restore is never rebased.
        """
        if version is None and timestamp is None:
            raise InvalidInput(f"{self.uri}: restore needs a version or a timestamp. Nothing was changed.")
        tx = self.begin()
        target = self.snapshot(version, timestamp)
        asked = None if timestamp is None else moment_text(parse_moment(timestamp))
        return restore(tx, target, self.store, timestamp=asked, ignore_missing=ignore_missing).version

    def _transaction(self, snapshot: Snapshot | None) -> Transaction:
        if snapshot is not None:
            self._check_writers(snapshot)
        return Transaction(
            self.store, snapshot, clock=self._clock, policy=self._policy, on_committed=self._after_commit
        )

    def _check_writers(self, snapshot: Snapshot) -> None:
        """Once, before the first write: see `commit.writers`."""
        if not self._writers_are_known:
            check_writers(self.store, snapshot.version, strict=self._strict_writers)
            self._writers_are_known = True

    def _after_commit(self, read: Snapshot | None, landed: Landed) -> None:
        metadata = landed.attempt.new_metadata or landed.attempt.current_metadata
        assert metadata is not None
        self._recent.remember(landed.own, metadata.id, landed.contents)
        self._checkpoint_if_due(read, landed.version, metadata)

    # --- upkeep -----------------------------------------------------------------------------------------------------

    def checkpoint(self, version: int | None = None) -> int:
        """Write a checkpoint of the version, the latest where none is named, and return that version.

        One of the latest version is followed by a log cleanup (see `clean_log`) unless delta.enableExpiredLogCleanup
        is false; that it failed is logged and fails nothing. Raises OverwritingWriter under `strict_writers`.
        """
        snapshot = self.snapshot(version)
        self._check_writers(snapshot)
        checkpointing.checkpoint(self.store, snapshot, self._clock)
        if version is None:
            clean_after_checkpoint(self.store, snapshot, self._clock)
        return snapshot.version

    def clean_log(self) -> LogCleanup:
        """Delete the commits and checkpoints that delta.logRetentionDuration has given up; see `upkeep.log_cleanup`.

        The log is cut at a whole checkpoint that was read back, and only there. Nothing of it is recorded as a commit.
        Raises UnsupportedFeature where the table may not be written here, and what the store raises at a delete.
        """
        snapshot = self.begin().snapshot
        assert snapshot is not None
        return clean_log(self.store, snapshot, self._clock)

    def _checkpoint_if_due(self, read: Snapshot | None, version: int, metadata: Metadata) -> None:
        """After a commit. A checkpoint only saves readers time, so its failure must not fail the commit."""
        try:
            if checkpointing.is_due(version, TableProperties(metadata.configuration, self.uri).checkpoint_interval):
                committed = self._recent.at(version, since=read)
                checkpointing.checkpoint(self.store, committed, self._clock)
                clean_after_checkpoint(self.store, committed, self._clock)
        except Exception as error:
            log.warning("%s: the checkpoint of version %d was not written: %s", self.uri, version, error)

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
        """Delete the files under the table that no version inside the retention needs; `dry_run` only names them.

        Two clocks: a file that the log removed goes once its tombstone is older than `retention` (a timedelta, or
        hours; None: delta.deletedFileRetentionDuration); a file that no action names may be one being staged, and goes
        only when it is older than `orphan_retention`, never under 24 hours. Recorded as VACUUM START and VACUUM END.

        `mode` "lite" lists nothing: it deletes what the log removed since the last vacuum. `inventory` (a table, or a
        Parquet or CSV file, of path, modificationTime, size, isDir) proposes files in place of a listing; each is
        looked up before it goes. `parallelism` deletes run at once; `on_progress` hears of them now and then. Both
        commits carry `tags`. `include_foreign`: in a table that was created beside files of others, those may go too.

        Raises FolderNotEmpty for such a table without it, RetentionTooShort where `retention` is below the table's and
        `check_retention` is on, InvalidInput for what cannot be meant, CannotVacuumLite where the log lacks commits
        since the last vacuum, UnsupportedFeature where the table may not be written here, and what the store raises at
        a delete: the others go on.
        """
        # What is only read need not be writable here.
        snapshot = self.snapshot() if dry_run else self.begin().snapshot
        assert snapshot is not None
        return vacuum(
            self.store,
            VacuumState.of(snapshot),
            VacuumRequest(
                retention_ms=None if retention is None else _milliseconds(retention),
                check_retention=check_retention,
                orphan_retention_ms=_milliseconds(orphan_retention),
                dry_run=dry_run,
                mode=mode,
                inventory=inventory,
                parallelism=parallelism,
                include_foreign=include_foreign,
            ),
            clock=self._clock,
            on_progress=on_progress,
            # Commits without a file: they only record in the history what was done.
            on_start=lambda parameters, metrics: self.begin().commit("VACUUM START", parameters, metrics, tags=tags),
            on_end=lambda parameters, metrics: self.begin().commit("VACUUM END", parameters, metrics, tags=tags),
        )


def _milliseconds(duration: timedelta | float) -> int:
    """A plain number is hours, as in VACUUM … RETAIN 168 HOURS. Raises InvalidInput for one that is no time."""
    try:
        whole = duration if isinstance(duration, timedelta) else timedelta(hours=duration)
    except (OverflowError, ValueError) as error:
        raise InvalidInput(f"A retention of {duration} hours is no length of time. Nothing was deleted.") from error
    return whole // timedelta(milliseconds=1)


def _exists(store: Store) -> bool:
    try:
        list_segment(store)
    except TableNotFound:
        return False
    return True


def _already_exists(uri: str) -> TableAlreadyExists:
    return TableAlreadyExists(
        f"{uri} holds a Delta table already, so none was created. Open it with Table.open.", table=uri
    )
