"""A Delta table as every operation needs it: open, snapshots, transactions, and the checkpoint after a commit.

`table_api.Table` adds what people call in Python. A table keeps the newest snapshot that it has read
(`table/snapshot/cache.py`), so that a refresh costs one listing. Any number of threads may use one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.engine import checkpointing
from airflow_txlog.engine.commit.content.attempt import Guard
from airflow_txlog.engine.commit.creation import holds_files_of_others, new_table
from airflow_txlog.engine.commit.loop import CommitPolicy, Landed
from airflow_txlog.engine.commit.transaction import Transaction
from airflow_txlog.engine.commit.writers import check_writers, handed_contents
from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.log.segment import list_segment
from airflow_txlog.engine.table.schema.properties import SHARED_FOLDER, TableProperties
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.cache import RecentTable
from airflow_txlog.engine.table.snapshot.commit_times import Moment, version_at
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import FolderNotEmpty, InvalidInput, TableNotFound, TimestampOutOfRange, VersionNotFound
from airflow_txlog.locations import local_path
from airflow_txlog.storage import Access, Store, open_store
from airflow_txlog.storage.limits import USUAL, Limits
from airflow_txlog.storage.local_files import real_path

log = logging.getLogger(__name__)

Uri = str | os.PathLike[str] | Store


class DeltaTable:
    """A Delta table at a URI, which may or may not exist yet. Made by `at`."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock = SYSTEM_CLOCK,
        policy: CommitPolicy | None = None,
        strict_writers: bool = False,
    ) -> None:
        self.store = store
        self.clock = clock
        self.guard: Guard | None = None
        """Decides which rows the transactions that begin from now on may bring into the table."""
        self._policy = policy
        self._strict_writers = strict_writers
        self._writers_are_known = False
        self._recent = RecentTable(store, partial(handed_contents, store))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @property
    def uri(self) -> str:
        """The canonical URI of the table, without a trailing slash."""
        return self.store.root

    @property
    def place(self) -> str:
        """Return the URI, of a local table the path without links: two names of one place become equal."""
        path = local_path(self.uri)
        return self.uri if path is None else real_path(path)

    @classmethod
    def at(
        cls,
        uri: Uri,
        access: Access,
        *,
        clock: Clock = SYSTEM_CLOCK,
        policy: CommitPolicy | None = None,
        strict_writers: bool = False,
        limits: Limits = USUAL,
    ) -> Self:
        """Return the table at `uri` without looking for it: nothing is read before a method is called.

        With `strict_writers` a transaction or a checkpoint raises OverwritingWriter, instead of logging a warning, if
        an engine that wrote the table lately would replace our commits on this store (docs/writers.md).

        Raises UnsupportedStore.
        """
        return cls(open_store(uri, access, limits), clock=clock, policy=policy, strict_writers=strict_writers)

    # --- reading ----------------------------------------------------------------------------------------------------

    def is_there(self) -> bool:
        """Return whether a Delta table exists, readable here or not."""
        try:
            list_segment(self.store)
        except TableNotFound:
            return False
        return True

    def snapshot(self, version: int | None = None, timestamp: Moment | None = None) -> Snapshot:
        """Return the table as of a version or a moment, or now.

        `timestamp`: milliseconds since the epoch, ISO-8601 text or a datetime, in UTC unless it names a zone. It
        selects the last version committed at or before it. Raises TableNotFound, VersionNotFound, TimestampOutOfRange,
        CorruptTable, UnsupportedFeature.
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
        """Return the latest version without a replay, in one listing. Raises TableNotFound, CorruptTable."""
        return self._recent.latest_version()

    # --- changing ---------------------------------------------------------------------------------------------------

    def begin(self, version: int | None = None) -> Transaction:
        """Return a transaction on top of a version, by default the latest.

        Raises UnsupportedFeature if this engine may not write to the table, CommitOverwritten if an acknowledged commit
        is gone, OverwritingWriter under `strict_writers`.
        """
        snapshot = self.snapshot(version)
        self._check_writers(snapshot)
        return self._transaction(snapshot)

    def begin_create(
        self,
        schema: pa.Schema | StructType,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        *,
        cluster_by: Sequence[str] = (),
        name: str | None = None,
        description: str | None = None,
        allow_non_empty: bool = False,
        holds_others: bool | None = None,
    ) -> Transaction:
        """Return a transaction whose commit creates the table, with the rows added to the transaction.

        `cluster_by`: clustering columns, `a` or `a.b`, of a table without partition columns. `allow_non_empty`: also in
        a folder with files of no table, which SHARED_FOLDER protects from a VACUUM. `holds_others`: whether it has such
        files, if the caller knows and allows them. Raises SchemaMismatch, PartitionMismatch, InvalidProperty,
        UnsupportedFeature, FolderNotEmpty. Its commit raises ProtocolChanged if another writer creates the table first.
        """
        if holds_others is None:
            holds_others = self.check_folder(partition_by, allow_non_empty=allow_non_empty)
        if holds_others:
            properties = {**(properties or {}), SHARED_FOLDER: "true"}
        protocol, metadata, domains = new_table(
            self.uri,
            schema,
            partition_by,
            {**(properties or {}), **self.store.required_properties},
            cluster_by=cluster_by,
            name=name,
            description=description,
            clock=self.clock,
        )
        tx = self.begin_as(protocol, metadata)
        for domain in domains:
            tx.set_domain(domain.domain, domain.configuration)
        return tx

    def begin_as(self, protocol: Protocol, metadata: Metadata) -> Transaction:
        """Return a transaction whose commit creates the table with this protocol and metadata, which are valid."""
        tx = self._transaction(None)
        tx.set_protocol(protocol)
        tx.set_metadata(metadata)
        return tx

    def check_folder(self, partition_by: Sequence[str] = (), *, allow_non_empty: bool = False) -> bool:
        """Return whether the new table's folder holds other files; raise FolderNotEmpty unless that is allowed."""
        try:
            return holds_files_of_others(self.store, partition_by, self.clock, allow_non_empty=allow_non_empty)
        except FolderNotEmpty:
            # Another writer has just created the table: the files are its own, and the commit will lose to it.
            if self.is_there():
                return False
            raise

    def _transaction(self, snapshot: Snapshot | None) -> Transaction:
        tx = Transaction(self.store, snapshot, clock=self.clock, policy=self._policy, on_committed=self._after_commit)
        tx.guard = self.guard
        return tx

    def _check_writers(self, snapshot: Snapshot) -> None:
        """Look once, before the first write, whether another engine could replace our commits."""
        if not self._writers_are_known:
            check_writers(snapshot, strict=self._strict_writers)
            self._writers_are_known = True

    def _after_commit(self, read: Snapshot | None, landed: Landed) -> None:
        metadata = landed.attempt.new_metadata or landed.attempt.current_metadata
        assert metadata is not None
        self._recent.remember(landed.own, metadata.id, landed.contents)
        self._checkpoint_if_due(read, landed.version, metadata)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def checkpoint(self, version: int | None = None) -> int:
        """Write a checkpoint of the version, by default the latest, and return that version.

        A checkpoint of the latest version is followed by a log cleanup unless delta.enableExpiredLogCleanup is false.
        A cleanup that fails is logged and fails nothing. Raises OverwritingWriter under `strict_writers`.
        """
        snapshot = self.snapshot(version)
        self._check_writers(snapshot)
        checkpointing.checkpoint(self.store, snapshot, self.clock)
        if version is None:
            checkpointing.clean_after_checkpoint(self.store, snapshot, self.clock)
        return snapshot.version

    def _checkpoint_if_due(self, read: Snapshot | None, version: int, metadata: Metadata) -> None:
        """Write the checkpoint that a commit makes due. It only saves readers time, so no failure fails the commit."""
        try:
            if checkpointing.is_due(version, TableProperties(metadata.configuration, self.uri).checkpoint_interval):
                committed = self._recent.at(version, since=read)
                checkpointing.checkpoint(self.store, committed, self.clock)
                checkpointing.clean_after_checkpoint(self.store, committed, self.clock)
        except Exception as error:
            log.warning("%s: the checkpoint of version %d was not written: %s", self.uri, version, error)
