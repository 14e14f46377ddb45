"""The errors of this package: what happened, and whether running the task again can help.

    TxlogError
    ├── CommitConflict                 a commit that landed first forbids ours: read the table again and repeat
    │   ├── ConcurrentAppend           it added rows that we may have read
    │   ├── ConcurrentDeleteRead       it removed a file that we read
    │   ├── ConcurrentDeleteDelete     it removed a file that we remove
    │   ├── MetadataChanged            it changed the schema or the properties
    │   ├── ProtocolChanged            it changed the protocol, or created the table
    │   ├── ConcurrentTransaction      it carries our application transaction or our domain
    │   ├── ConcurrentWrite            anything at all landed, and this operation never rebases
    │   └── ConcurrentLogCleanup       what landed was cleaned from the log before it could be checked
    ├── CommitStateUnknown             the put was not answered, and the log could not be read back
    ├── CommitContention               lost every race that the attempts allowed, without a conflict
    ├── CommitOverwritten              another writer replaced a commit that was acknowledged to us
    ├── OverwritingWriter              the table has a writer that replaces commits, and strict_writers is on
    ├── TableError
    │   ├── TableNotFound · TableAlreadyExists · TableReplaced · OutsideTable · FolderNotEmpty
    │   ├── VersionNotFound · TimestampOutOfRange · FilesMissing · CannotVacuumLite · LimitExceeded
    │   └── CorruptTable               the log or a data file is not what the protocol demands
    │       ├── CorruptCommit · CorruptCheckpoint · CorruptDataFile · CorruptDeletionVector
    │       └── LogGap                 a version of the log is missing
    ├── UnsupportedFeature · UnsupportedStore
    ├── InvalidInput                   the caller's mistake, found before anything was staged
    │   ├── InvalidPredicate           · UnknownColumn · UnsupportedPredicate
    │   ├── SchemaMismatch · PartitionMismatch · RetentionTooShort · InvalidProperty · InvalidJobSpec
    │   ├── InvalidCommit              · DuplicateActions · MetadataAbsent · RowCountMissing ·
    │   │                                SetTransactionVersionConflict
    │   ├── ConstraintViolation · AmbiguousMerge · MatchNotFound (KeysNotFound)
    │   └── AppendOnlyViolation · IdempotencyKeyReused · TransactionExpired
    ├── SourceNotFound                 what the job reads is not there, or not yet
    └── JobError                       a job that failed outside our rules
        ├── CredentialsUnavailable · SparkUnavailable    nothing has begun
        ├── OutOfMemory                in a process of Spark that lived to report it
        ├── NoExecutors                the cluster had none for it in time
        ├── UnfitExecutor              Python or a package is missing on an executor
        └── JobLost                    it ended without an answer: whether it committed is unknown
            ├── ClusterLost            the cluster is gone, or ended the application
            └── ExecutorsLost          they died more often than Spark allows

A caller branches on the class or on an attribute, never on the text. Every keyword argument becomes an attribute and
crosses the process boundary with `to_dict` and `from_dict`. Standard library only: this package travels to executors.
"""

from __future__ import annotations

from typing import ClassVar

from airflow_txlog.errors.base import TxlogError as TxlogError
from airflow_txlog.errors.base import from_dict as from_dict
from airflow_txlog.errors.failed_jobs import ClusterLost as ClusterLost
from airflow_txlog.errors.failed_jobs import CredentialsUnavailable as CredentialsUnavailable
from airflow_txlog.errors.failed_jobs import ExecutorsLost as ExecutorsLost
from airflow_txlog.errors.failed_jobs import JobError as JobError
from airflow_txlog.errors.failed_jobs import JobLost as JobLost
from airflow_txlog.errors.failed_jobs import NoExecutors as NoExecutors
from airflow_txlog.errors.failed_jobs import OutOfMemory as OutOfMemory
from airflow_txlog.errors.failed_jobs import SparkUnavailable as SparkUnavailable
from airflow_txlog.errors.failed_jobs import UnfitExecutor as UnfitExecutor

# --- losing to another commit ---------------------------------------------------------------------------------------


class CommitConflict(TxlogError):
    """A commit that landed first forbids the rebase. Nothing of ours is in the table."""

    retryable = True
    fact_names: ClassVar[tuple[str, ...]] = (
        *("table", "read_version", "winning_version", "winning_operation", "partition", "path"),
    )

    table: str | None
    read_version: int | None
    winning_version: int | None
    winning_operation: str | None
    partition: dict[str, str | None] | None
    path: str | None


class ConcurrentAppend(CommitConflict):
    """The winner added a file that may hold rows of what this transaction read."""


class ConcurrentDeleteRead(CommitConflict):
    """The winner removed a file that this transaction read."""


class ConcurrentDeleteDelete(CommitConflict):
    """The winner removed a file that this transaction removes too."""


class MetadataChanged(CommitConflict):
    """The winner changed the table's metadata."""


class ProtocolChanged(CommitConflict):
    """The winner changed the table's protocol, or created the table."""


class ConcurrentTransaction(CommitConflict):
    """The winner carries the application transaction (or the domain) that this one carries.

    Most often the answer is "already done": read the application transaction again before repeating anything.
    """

    fact_names: ClassVar[tuple[str, ...]] = (*CommitConflict.fact_names, "app_id", "domain")


class ConcurrentWrite(CommitConflict):
    """Another commit landed, and this operation never rebases."""


class ConcurrentLogCleanup(CommitConflict):
    """Commits since the read version were cleaned from the log, unchecked. A plan on the newest version needs none."""


class CommitStateUnknown(TxlogError):
    """The put was not answered, and the log could not be read back: whether it is committed cannot be known yet.

    Retryable exactly when the commit carries an application transaction, because then a repeated run finds out.
    Every staged file is kept.
    """

    fact_names: ClassVar[tuple[str, ...]] = ("table", "version", "has_application_transaction")


class CommitContention(TxlogError):
    """Every attempt lost its race without a conflict, and the attempts are spent. Nothing of ours is in the table."""

    retryable = True
    fact_names: ClassVar[tuple[str, ...]] = ("table", "read_version", "attempts")


class CommitOverwritten(TxlogError):
    """A commit that the store acknowledged to us is not in the log any more: another writer's put is not conditional.

    Not retryable: the same writers would do it again. `engine_info` names who overwrote, where the commit says it.
    """

    fact_names: ClassVar[tuple[str, ...]] = ("table", "version", "engine_info")


class OverwritingWriter(TxlogError):
    """An engine that wrote the table lately replaces commits of others on this store, and the caller is strict."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "engine_info")


# --- the table ------------------------------------------------------------------------------------------------------


class TableError(TxlogError):
    """The table is not what the operation needs."""

    fact_names: ClassVar[tuple[str, ...]] = ("table",)

    table: str | None


class TableNotFound(TableError):
    """No Delta table at this URI."""


class TableAlreadyExists(TableError):
    """A table exists where one was to be created. Retryable: planned afresh, the operation may find it usable."""

    retryable = True


class FolderNotEmpty(TableError):
    """The folder of a table that is to be created, or vacuumed, holds files of others; `examples` are some of them."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "examples")


class TableReplaced(TableError):
    """The table was dropped and made again, or its log was rewritten, while the transaction ran."""


class VersionNotFound(TableError):
    """The asked version does not exist, or can no longer be rebuilt from the log."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "version", "earliest", "latest")


class TimestampOutOfRange(TableError):
    """The asked timestamp lies before the earliest version that can be rebuilt, or after the latest commit."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "timestamp_ms", "earliest_ms", "latest_ms")


class FilesMissing(TableError):
    """Files of an earlier version are gone: it cannot be read or restored whole, or its changes not be read."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "version", "count", "examples")


class CannotVacuumLite(TableError):
    """The log no longer holds every commit since the last vacuum. A full vacuum can be run. Nothing was deleted."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "needed", "earliest")


class OutsideTable(TableError):
    """The log, or a symbolic link inside the table, leads out of the table's folder. What is there was not touched."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "path", "link")


class LimitExceeded(TableError):
    """A part of the table is larger than this process may read; the environment variable `setting` raises the limit."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "path", "found", "allowed", "setting")


class CorruptTable(TableError):
    """The log or a data file breaks the protocol; `is_missing`: the file is not there at all. Nothing was changed."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "path")
    path: str | None
    is_missing: bool = False


class CorruptCommit(CorruptTable):
    """A commit file cannot be read as the protocol's actions."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "path", "line")


class CorruptCheckpoint(CorruptTable):
    """A checkpoint cannot be read, or lacks what every checkpoint holds.

    `damaged` is False for one that reads well and breaks the protocol: its writer is at fault, and no other file of
    the log is believed in its place.
    """

    damaged: bool = True


class CorruptDataFile(CorruptTable):
    """A data file is missing, has another size or row count than its add action says, or is not Parquet."""


class CorruptDeletionVector(CorruptTable):
    """A deletion vector is missing, or is not what its descriptor says: which rows are deleted cannot be known."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "path", "vector")


class LogGap(CorruptTable):
    """A version of the log is missing between two that exist, or the log was cut before a usable checkpoint."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "path", "version")


# --- what we refuse -------------------------------------------------------------------------------------------------


class UnsupportedFeature(TxlogError):
    """The table needs a feature that this engine cannot honour. Nothing was read or staged."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "feature", "needed_to")


class UnsupportedStore(TxlogError):
    """The file system has no atomic put-if-absent that this engine can prove."""

    fact_names: ClassVar[tuple[str, ...]] = ("uri", "filesystem")


class InvalidInput(TxlogError):
    """A mistake in what the caller gave, found before anything was staged."""


class InvalidPredicate(InvalidInput):
    """The text is not one boolean SQL expression, or a parameter of it is missing or unused."""

    fact_names: ClassVar[tuple[str, ...]] = ("predicate",)


class UnknownColumn(InvalidPredicate):
    """A predicate names a column that the schema does not have."""

    fact_names: ClassVar[tuple[str, ...]] = ("predicate", "column", "columns")


class UnsupportedPredicate(InvalidPredicate):
    """A predicate is valid SQL, but holds what may not stand here: a subquery, a non-deterministic function, …"""

    fact_names: ClassVar[tuple[str, ...]] = ("predicate", "construct")


class SchemaMismatch(InvalidInput):
    """Rows do not fit the table's schema."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "columns")


class PartitionMismatch(InvalidInput):
    """Rows or files lie outside the partitions that they may belong to."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "partition")


class RetentionTooShort(InvalidInput):
    """VACUUM was asked to delete files that readers and time travel may still need."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "asked_ms", "required_ms")


class InvalidProperty(InvalidInput):
    """A table property has a value that the protocol does not allow."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "name", "value")


class InvalidJobSpec(InvalidInput):
    """A job was described wrongly: an unknown operation, a missing or an unknown argument."""

    fact_names: ClassVar[tuple[str, ...]] = ("argument",)

    argument: str | None


class InvalidCommit(InvalidInput):
    """The actions of a commit contradict the protocol or each other."""

    fact_names: ClassVar[tuple[str, ...]] = ("table",)


class DuplicateActions(InvalidCommit):
    """One commit names a file (path and deletion vector) twice, or adds one that is live (by `winning_version`)."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "path", "winning_version")


class RowCountMissing(InvalidCommit):
    """A file that is added has statistics without numRecords, where the protocol or row tracking demands it."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "path")


class MetadataAbsent(InvalidCommit):
    """The first commit of a table holds no metadata."""


class SetTransactionVersionConflict(InvalidCommit):
    """One commit sets two different versions for one application id."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "app_id")


class AppendOnlyViolation(InvalidInput):
    """The table is append-only, and the commit would remove rows."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "path")


class ConstraintViolation(InvalidInput):
    """A row breaks a rule of the table, such as NOT NULL."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "constraint", "column")


class AmbiguousMerge(InvalidInput):
    """A target row is matched by more than one row of a merge's source, or two rows of an upsert's have one key."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "path", "row")


class MatchNotFound(InvalidInput):
    """A predicate, or a row of a merge's source, that was asked to match a row (`require_match`) matches none."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "given", "matched")


class KeysNotFound(MatchNotFound):
    """A key that a delete was asked to find is in no row. The facts say how many keys were given and matched."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "column", "given", "matched")


class IdempotencyKeyReused(InvalidInput):
    """The idempotency key names work that was already done, and it is not this work."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "app_id", "version")


class TransactionExpired(InvalidInput):
    """The work was first tried so long ago that the table may have forgotten that it was done. Nothing was done now."""

    fact_names: ClassVar[tuple[str, ...]] = ("table", "app_id", "version", "first_tried_ms", "retention_ms")


class SourceNotFound(TxlogError):
    """A file, a folder with files in it, or a table that the job was to read is not there. Nothing was changed."""

    fact_names: ClassVar[tuple[str, ...]] = ("argument",)
