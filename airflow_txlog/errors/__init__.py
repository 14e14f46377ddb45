"""The errors of this package: the cause, and whether running the task again can help.

A caller branches on the class or on an attribute, never on the text. Every keyword argument becomes an attribute and
crosses the process boundary with `to_dict` and `from_dict`. Standard library only: this folder travels to executors.
"""

from __future__ import annotations

from airflow_txlog.errors.base import TxlogError as TxlogError
from airflow_txlog.errors.base import from_dict as from_dict

# --- losing to another commit ---------------------------------------------------------------------------------------


class CommitConflict(TxlogError, facts="table read_version winning_version winning_operation partition path"):
    """Another commit came first, and a conflict with it prevents the rebase. This transaction changed nothing."""

    retryable = True

    table: str | None
    read_version: int | None
    winning_version: int | None
    winning_operation: str | None
    partition: dict[str, str | None] | None
    path: str | None


class ConcurrentAppend(CommitConflict):
    """The winner added a file that may contain rows that this transaction would have read."""


class ConcurrentDeleteRead(CommitConflict):
    """The winner removed a file that this transaction read."""


class ConcurrentDeleteDelete(CommitConflict):
    """The winner removed a file that this transaction removes too."""


class MetadataChanged(CommitConflict):
    """The winner changed the table's metadata."""


class ProtocolChanged(CommitConflict):
    """The winner changed the table's protocol, or created the table."""


class ConcurrentTransaction(CommitConflict, facts="app_id domain"):
    """The winner carries the same application transaction (or the same domain) as this commit.

    In most cases the work is already done. Read the application transaction again before you repeat anything.
    """


class ConcurrentWrite(CommitConflict):
    """Another commit came first, and this operation never rebases."""


class ConcurrentLogCleanup(CommitConflict):
    """Commits since the read version were cleaned from the log unchecked. Plan again on the newest version."""


class CommitStateUnknown(TxlogError, facts="table version has_application_transaction"):
    """The put got no response, and the log could not be read back, so the outcome is still unknown.

    Retryable only if the commit carries an application transaction, because a repeated run can then find the commit.
    Every staged file is kept.
    """


class CommitContention(TxlogError, facts="table read_version attempts"):
    """Every attempt lost its race without a conflict, and no attempt is left. This transaction changed nothing."""

    retryable = True


class CommitOverwritten(TxlogError, facts="table version engine_info"):
    """A commit that the store acknowledged is no longer in the log, because another writer's put is not conditional.

    Not retryable, because the same writer would do it again. `engine_info` belongs to the other writer's commit, if it
    has one.
    """


class OverwritingWriter(TxlogError, facts="table engine_info"):
    """An engine that recently wrote the table may replace other commits on this store, and `strict_writers` is set."""


# --- the table ------------------------------------------------------------------------------------------------------


class TableError(TxlogError, facts="table"):
    """The table is not in the state that the operation needs."""

    table: str | None


class TableNotFound(TableError):
    """There is no Delta table at this URI."""


class TableAlreadyExists(TableError):
    """The table to create already exists. Retryable: a new attempt may find it usable."""

    retryable = True


class FolderNotEmpty(TableError, facts="examples"):
    """The folder of a table to create or vacuum contains other files; `examples` are some of them."""


class FolderChanged(TableError, facts="path"):
    """Another process changed the folder while it was converted to a table. Nothing was committed."""

    retryable = True


class TableReplaced(TableError):
    """The table was dropped and recreated, or its log was rewritten, while the transaction ran."""


class VersionNotFound(TableError, facts="version earliest latest"):
    """The requested version does not exist, or can no longer be rebuilt from the log."""


class TimestampOutOfRange(TableError, facts="timestamp_ms earliest_ms latest_ms"):
    """The requested timestamp lies before the earliest version that can be rebuilt, or after the latest commit."""


class FilesMissing(TableError, facts="version count examples"):
    """Files of an earlier version are missing, so the version or its changes cannot be fully read or restored."""


class CannotVacuumLite(TableError, facts="needed earliest"):
    """The log no longer holds every commit since the last vacuum; run a full vacuum. Nothing was deleted."""


class WatermarkLost(TableError, facts="consumer version restored_version"):
    """A table no longer holds the rows up to the watermark of a consumer, or may not. Nothing was processed.

    `version`: the watermark's, of the source. `restored_version`: the table's, if a RESTORE to it is the reason.
    """


class SourceGap(TableError, facts="version"):
    """The changes of a source after a consumer's watermark cannot be read: `version` is the first such commit.

    The log was cleaned, files were vacuumed, the table was recreated, or a commit changed rows without a record of it.
    """


class OutsideTable(TableError, facts="path link"):
    """The log, or a symbolic link inside the table, points outside of the table's folder. The target was not opened."""


class LimitExceeded(TableError, facts="path found allowed setting"):
    """A part of the table is larger than this process may read; the environment variable `setting` raises the limit."""


class CorruptTable(TableError, facts="path"):
    """The log or a data file violates the protocol. `is_missing`: the file does not exist. Nothing was changed."""

    path: str | None
    is_missing: bool = False


class CorruptCommit(CorruptTable, facts="line"):
    """A commit file cannot be read as the protocol's actions."""


class CorruptCheckpoint(CorruptTable):
    """A checkpoint cannot be read, or lacks a required action.

    `damaged` is False for a readable checkpoint that breaks the protocol: its writer is at fault, and no other file of
    the log replaces it.
    """

    damaged: bool = True


class CorruptDataFile(CorruptTable):
    """A data file is missing, is not Parquet, or differs in size or row count from its add action."""


class CorruptDeletionVector(CorruptTable, facts="vector"):
    """A deletion vector is missing or does not match its descriptor, so the deleted rows are unknown."""


class LogGap(CorruptTable, facts="version"):
    """The log lacks a version between two existing ones, or was truncated before a usable checkpoint."""


# --- catalogs -------------------------------------------------------------------------------------------------------


class CatalogError(TxlogError, facts="connection name"):
    """A catalog does not resolve a name to a Delta table. `connection`: of the catalog. Nothing was read or written."""


class TableNotInCatalog(CatalogError):
    """The catalog contains no table of this name, or does not show it to this identity."""


class NotADeltaTable(CatalogError, facts="format"):
    """The catalog has a view, or a table of another format, by this name."""


class UnusablePlace(CatalogError, facts="location"):
    """The catalog gives the table no place, or one that is not a table's: `location` is what it gives."""


class WrongTableId(CatalogError, facts="expected found"):
    """The table at the catalog's place has another id than the catalog records: it was replaced there."""


class TableMoved(CatalogError, facts="expected found"):
    """The name leads to another place than in an earlier try of the task, which may have done its work there."""


class CatalogUnavailable(CatalogError):
    """The catalog does not answer, or failed. Nothing was read or written."""

    retryable = True


class CatalogRefused(CatalogError, facts="status"):
    """The catalog refuses the request: an identity, a permission, or an argument. `status`: its own name for that."""


# --- what we refuse -------------------------------------------------------------------------------------------------


class UnsupportedFeature(TxlogError, facts="table feature needed_to"):
    """The table needs a feature that this engine does not support. Nothing was read or staged."""


class UnsupportedStore(TxlogError, facts="uri filesystem"):
    """The file system is not known to have an atomic put-if-absent."""


# --- the caller's mistakes ------------------------------------------------------------------------------------------


class InvalidInput(TxlogError):
    """The caller's input is invalid. Nothing was staged."""


class InvalidPredicate(InvalidInput, facts="predicate"):
    """The text is not one boolean SQL expression, or a parameter of it is missing or unused."""


class UnknownColumn(InvalidPredicate, facts="column columns"):
    """A predicate names a column that the schema does not have."""


class UnsupportedPredicate(InvalidPredicate, facts="construct"):
    """A predicate is valid SQL, but contains a forbidden construct: a subquery, a non-deterministic function, …"""


class SchemaMismatch(InvalidInput, facts="table columns"):
    """Rows do not match the table's schema."""


class PartitionMismatch(InvalidInput, facts="table partition"):
    """Rows or files are outside of the allowed partitions, or a job names other partition or clustering columns."""


class RetentionTooShort(InvalidInput, facts="table asked_ms required_ms"):
    """A VACUUM would delete files that readers and time travel may still need."""


class InvalidProperty(InvalidInput, facts="table name value"):
    """A table property has a value that the protocol does not allow."""

    name: str
    value: str


class InvalidJobSpec(InvalidInput, facts="argument"):
    """A job description is invalid: an unknown operation, a missing or unknown argument."""

    argument: str | None


class InvalidCommit(InvalidInput, facts="table"):
    """The actions of a commit contradict the protocol or each other."""


class DuplicateActions(InvalidCommit, facts="path winning_version"):
    """One commit contains a file (path and deletion vector) twice, or adds a live file (by `winning_version`)."""


class RowCountMissing(InvalidCommit, facts="path"):
    """An added file's statistics lack numRecords, which the protocol or row tracking requires."""


class MetadataAbsent(InvalidCommit):
    """The first commit of a table contains no metadata."""


class SetTransactionVersionConflict(InvalidCommit, facts="app_id"):
    """One commit sets two different versions for one application id."""


class AppendOnlyViolation(InvalidInput, facts="table path"):
    """The table is append-only, and the commit would remove rows."""


class ConstraintViolation(InvalidInput, facts="table constraint column"):
    """A row breaks a rule of the table, such as NOT NULL."""


class AmbiguousMerge(InvalidInput, facts="table path row"):
    """More than one source row of a merge matches a target row, or two source rows of an upsert have the same key."""


class ExpectationFailed(InvalidInput, facts="table name found allowed expectations"):
    """Rows fail an expectation, or an operation changes more or fewer rows or files than its limits allow.

    `name` is the name of the limit, and `found` and `allowed` are its numbers. `expectations` has {"passed", "failed"}
    for each failed expectation by its name. Nothing was committed.
    """

    table: str | None


class MatchNotFound(InvalidInput, facts="table given matched"):
    """A predicate or a merge's source row matches no row, although `require_match` is set."""


class KeysNotFound(MatchNotFound, facts="column"):
    """No row has a key that a delete must find (`require_match`). `given` and `matched` count the keys."""


class IdempotencyKeyReused(InvalidInput, facts="table app_id version"):
    """The idempotency key identifies different work that was already done."""


class TransactionExpired(InvalidInput, facts="table app_id version first_tried_ms retention_ms"):
    """The first try is so old that the table may no longer record a completed run of this work. Nothing was changed."""


class SubjectReturns(InvalidInput, facts="table requests column rows files"):
    """Rows of erased subjects would return. `requests`: which erased them, as the ledger shows. Nothing was committed.

    `rows` and `files`: how many would bring them back.
    """

    requests: list[str]


class LedgerKeyMissing(InvalidInput, facts="ledger key_ids"):
    """The ledger of erased subjects has digests by keys that were not given, so nothing can be compared with it."""


class AuditFailed(TxlogError, facts="table id failed"):
    """A staged change does not pass its audits. `failed`: their names, with the number of rows if known."""


class ErasureIncomplete(TxlogError, facts="request_id report left requests"):
    """Objects of a table still hold a subject, or could not be read. `left`: how many, by table. See the report.

    Of several requests, `requests` has the `report` and `left` of each that is not complete, by its id.
    """

    left: dict[str, int] | None
    requests: dict[str, dict[str, object]] | None


class CannotRollBack(TxlogError, facts="in_the_way"):
    """Later commits may have built on those to undo. `in_the_way`: their versions by table. Nothing was changed."""

    in_the_way: dict[str, list[int]] | None


class StagedChangeGone(TxlogError, facts="table id"):
    """A staged change can no longer be published: it was discarded, has expired, or had a conflict. Stage it again."""


# --- possibly transient ---------------------------------------------------------------------------------------------


class SourceNotFound(TxlogError, facts="argument"):
    """A file, a folder with files, or a table that the job reads does not exist. This run changed nothing."""


class JobError(TxlogError, facts="cause_type log_tail"):
    """A job failed for a reason outside this package: Spark, Java, memory, the machine, permissions."""


class CredentialsUnavailable(JobError, PermissionError, facts="connection"):
    """A store's connection (`storage_conn_id`) yields no credentials. The request was not sent. Holds no secret."""

    errno = 13  # EACCES


class JobLost(JobError, facts="exit_code has_application_transaction"):
    """The job ended without a result because its process, its JVM or a Python worker died. Its commit was not found.

    Retryable only if the work carries an application transaction, because a repeated run can then find the commit.
    """


class OutOfMemory(JobError):
    """A process of Spark ran out of memory and survived to report it. Nothing was changed."""


class SparkUnavailable(JobError, facts="master"):
    """The job's Spark does not respond, or refuses the job. This try has started no work."""

    retryable = True


class NoExecutors(JobError, facts="master waited_s"):
    """The cluster gave the job no executor in time: its machines are busy, or smaller than the job needs.

    Nothing was done.
    """

    retryable = True


class UnfitExecutor(JobError, facts="host missing"):
    """An executor cannot run the job's tasks: Python or a package is missing, or has the wrong version."""


class ClusterLost(JobLost):
    """The cluster ended the application while it ran, or the driver lost the cluster. Its commit was not found."""


class ExecutorsLost(JobLost):
    """Executors died more often than Spark allows, often because memory ran out. The commit was not found."""
