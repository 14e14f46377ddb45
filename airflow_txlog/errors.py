"""The errors of this package: what happened, and whether running the task again can help.

A caller branches on the class or on an attribute, never on the text. Every keyword argument becomes an attribute and
crosses the process boundary with `to_dict` and `from_dict`. Standard library only: this module travels to executors.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TxlogError(Exception):
    """Base of every error raised on purpose by this package.

    `facts` are the JSON-able keyword arguments, readable as attributes. `class Lost(TxlogError, facts="exit_code")`
    adds to the facts that an error always has: one that was not given reads as None.
    """

    retryable: bool = False
    fact_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, facts: str = "") -> None:
        super().__init_subclass__()
        cls.fact_names = (*cls.fact_names, *facts.split())

    def __init__(self, message: str, **facts: Any) -> None:
        # Tracebacks, logs and the command line put the class before the message.
        message = message.removeprefix(f"{type(self).__name__}: ")
        # A file's name may have bytes that are no characters, and a log takes characters alone.
        message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(message)
        self.message = message
        self.facts: dict[str, Any] = facts
        # Facts are set on the instance so that an attribute such as `retryable` may be overridden for one error.
        for name, value in (dict.fromkeys(self.fact_names) | facts).items():
            setattr(self, name, value)
        if "has_application_transaction" in self.fact_names:
            # The outcome is unknown: only work that carries one can find out by running again.
            self.retryable = bool(facts.get("has_application_transaction"))

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_dict, (self.to_dict(),))

    def to_dict(self) -> dict[str, Any]:
        """`{"type", "message", "retryable", "facts"}`: what a JobResult carries."""
        facts = dict(self.facts)
        return {"type": type(self).__name__, "message": self.message, "retryable": self.retryable, "facts": facts}


def from_dict(data: dict[str, Any]) -> TxlogError:
    """The error that `to_dict` described.

    A class name that this version does not know becomes a plain `JobError` that keeps the text and `retryable`.
    """
    facts = dict(data.get("facts") or {})
    cls = _classes().get(data.get("type", ""))
    if cls is None:
        facts["retryable"] = bool(data.get("retryable", False))
        return _classes()["JobError"](f"{data.get('type')}: {data.get('message')}", **facts)
    return cls(data.get("message", ""), **facts)


def _classes(root: type[TxlogError] = TxlogError) -> dict[str, type[TxlogError]]:
    below = (_classes(each) for each in root.__subclasses__())
    return {root.__name__: root, **{name: cls for found in below for name, cls in found.items()}}


# --- losing to another commit ---------------------------------------------------------------------------------------


class CommitConflict(TxlogError, facts="table read_version winning_version winning_operation partition path"):
    """A commit that landed first forbids the rebase. Nothing of ours is in the table."""

    retryable = True

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


class ConcurrentTransaction(CommitConflict, facts="app_id domain"):
    """The winner carries the application transaction (or the domain) that this one carries.

    Most often the answer is "already done": read the application transaction again before repeating anything.
    """


class ConcurrentWrite(CommitConflict):
    """Another commit landed, and this operation never rebases."""


class ConcurrentLogCleanup(CommitConflict):
    """Commits since the read version were cleaned from the log, unchecked. A plan on the newest version needs none."""


class CommitStateUnknown(TxlogError, facts="table version has_application_transaction"):
    """The put was not answered, and the log could not be read back: whether it is committed cannot be known yet.

    Retryable exactly when the commit carries an application transaction, because then a repeated run finds out.
    Every staged file is kept.
    """


class CommitContention(TxlogError, facts="table read_version attempts"):
    """Every attempt lost its race without a conflict, and the attempts are spent. Nothing of ours is in the table."""

    retryable = True


class CommitOverwritten(TxlogError, facts="table version engine_info"):
    """A commit that the store acknowledged to us is not in the log any more: another writer's put is not conditional.

    Not retryable: the same writers would do it again. `engine_info` names who overwrote, where the commit says it.
    """


class OverwritingWriter(TxlogError, facts="table engine_info"):
    """An engine that wrote the table lately replaces commits of others on this store, and the caller is strict."""


# --- the table ------------------------------------------------------------------------------------------------------


class TableError(TxlogError, facts="table"):
    """The table is not what the operation needs."""

    table: str | None


class TableNotFound(TableError):
    """No Delta table at this URI."""


class TableAlreadyExists(TableError):
    """A table exists where one was to be created. Retryable: planned afresh, the operation may find it usable."""

    retryable = True


class FolderNotEmpty(TableError, facts="examples"):
    """The folder of a table that is to be created, or vacuumed, holds files of others; `examples` are some of them."""


class TableReplaced(TableError):
    """The table was dropped and made again, or its log was rewritten, while the transaction ran."""


class VersionNotFound(TableError, facts="version earliest latest"):
    """The asked version does not exist, or can no longer be rebuilt from the log."""


class TimestampOutOfRange(TableError, facts="timestamp_ms earliest_ms latest_ms"):
    """The asked timestamp lies before the earliest version that can be rebuilt, or after the latest commit."""


class FilesMissing(TableError, facts="version count examples"):
    """Files of an earlier version are gone: it cannot be read or restored whole, or its changes not be read."""


class CannotVacuumLite(TableError, facts="needed earliest"):
    """The log no longer holds every commit since the last vacuum. A full vacuum can be run. Nothing was deleted."""


class OutsideTable(TableError, facts="path link"):
    """The log, or a symbolic link inside the table, leads out of the table's folder. What is there was not touched."""


class LimitExceeded(TableError, facts="path found allowed setting"):
    """A part of the table is larger than this process may read; the environment variable `setting` raises the limit."""


class CorruptTable(TableError, facts="path"):
    """The log or a data file breaks the protocol; `is_missing`: the file is not there at all. Nothing was changed."""

    path: str | None
    is_missing: bool = False


class CorruptCommit(CorruptTable, facts="line"):
    """A commit file cannot be read as the protocol's actions."""


class CorruptCheckpoint(CorruptTable):
    """A checkpoint cannot be read, or lacks what every checkpoint holds.

    `damaged` is False for one that reads well and breaks the protocol: its writer is at fault, and no other file of
    the log is believed in its place.
    """

    damaged: bool = True


class CorruptDataFile(CorruptTable):
    """A data file is missing, has another size or row count than its add action says, or is not Parquet."""


class CorruptDeletionVector(CorruptTable, facts="vector"):
    """A deletion vector is missing, or is not what its descriptor says: which rows are deleted cannot be known."""


class LogGap(CorruptTable, facts="version"):
    """A version of the log is missing between two that exist, or the log was cut before a usable checkpoint."""


# --- what we refuse -------------------------------------------------------------------------------------------------


class UnsupportedFeature(TxlogError, facts="table feature needed_to"):
    """The table needs a feature that this engine cannot honour. Nothing was read or staged."""


class UnsupportedStore(TxlogError, facts="uri filesystem"):
    """The file system has no atomic put-if-absent that this engine can prove."""


# --- the caller's mistakes ------------------------------------------------------------------------------------------


class InvalidInput(TxlogError):
    """A mistake in what the caller gave, found before anything was staged."""


class InvalidPredicate(InvalidInput, facts="predicate"):
    """The text is not one boolean SQL expression, or a parameter of it is missing or unused."""


class UnknownColumn(InvalidPredicate, facts="column columns"):
    """A predicate names a column that the schema does not have."""


class UnsupportedPredicate(InvalidPredicate, facts="construct"):
    """A predicate is valid SQL, but holds what may not stand here: a subquery, a non-deterministic function, …"""


class SchemaMismatch(InvalidInput, facts="table columns"):
    """Rows do not fit the table's schema."""


class PartitionMismatch(InvalidInput, facts="table partition"):
    """Rows or files lie outside the partitions that they may belong to."""


class RetentionTooShort(InvalidInput, facts="table asked_ms required_ms"):
    """VACUUM was asked to delete files that readers and time travel may still need."""


class InvalidProperty(InvalidInput, facts="table name value"):
    """A table property has a value that the protocol does not allow."""


class InvalidJobSpec(InvalidInput, facts="argument"):
    """A job was described wrongly: an unknown operation, a missing or an unknown argument."""

    argument: str | None


class InvalidCommit(InvalidInput, facts="table"):
    """The actions of a commit contradict the protocol or each other."""


class DuplicateActions(InvalidCommit, facts="path winning_version"):
    """One commit names a file (path and deletion vector) twice, or adds one that is live (by `winning_version`)."""


class RowCountMissing(InvalidCommit, facts="path"):
    """A file that is added has statistics without numRecords, where the protocol or row tracking demands it."""


class MetadataAbsent(InvalidCommit):
    """The first commit of a table holds no metadata."""


class SetTransactionVersionConflict(InvalidCommit, facts="app_id"):
    """One commit sets two different versions for one application id."""


class AppendOnlyViolation(InvalidInput, facts="table path"):
    """The table is append-only, and the commit would remove rows."""


class ConstraintViolation(InvalidInput, facts="table constraint column"):
    """A row breaks a rule of the table, such as NOT NULL."""


class AmbiguousMerge(InvalidInput, facts="table path row"):
    """A target row is matched by more than one row of a merge's source, or two rows of an upsert's have one key."""


class MatchNotFound(InvalidInput, facts="table given matched"):
    """A predicate, or a row of a merge's source, that was asked to match a row (`require_match`) matches none."""


class KeysNotFound(MatchNotFound, facts="column"):
    """A key that a delete was asked to find is in no row. The facts say how many keys were given and matched."""


class IdempotencyKeyReused(InvalidInput, facts="table app_id version"):
    """The idempotency key names work that was already done, and it is not this work."""


class TransactionExpired(InvalidInput, facts="table app_id version first_tried_ms retention_ms"):
    """The work was first tried so long ago that the table may have forgotten that it was done. Nothing was done now."""


# --- what may pass by itself ----------------------------------------------------------------------------------------


class SourceNotFound(TxlogError, facts="argument"):
    """A file, a folder with files in it, or a table that the job was to read is not there. Nothing was changed."""


class JobError(TxlogError, facts="cause_type log_tail"):
    """A job failed for a reason outside this package: Spark, Java, memory, the machine, permissions."""


class CredentialsUnavailable(JobError, PermissionError, facts="connection"):
    """A store's connection (`storage_conn_id`) gives no credentials: the request was not sent. Never holds a secret."""

    errno = 13  # EACCES


class JobLost(JobError, facts="exit_code has_application_transaction"):
    """The job ended without an answer: its process, its JVM or a Python worker died. Its commit was not found.

    Retryable exactly when the work carries an application transaction: a repeated run then finds what has landed.
    """


class OutOfMemory(JobError):
    """Memory ran out in a process of Spark, which lived to report it. Nothing was changed."""


class SparkUnavailable(JobError, facts="master"):
    """The Spark that the job was to run on does not answer, or refuses it. This try has begun nothing."""

    retryable = True


class NoExecutors(JobError, facts="master waited_s"):
    """The cluster gave the job no executor in time: others hold its machines, or the job asks for larger ones.

    Nothing was done.
    """

    retryable = True


class UnfitExecutor(JobError, facts="host missing"):
    """An executor cannot run the job's tasks: Python or a package is missing there, or is of the wrong version."""


class ClusterLost(JobLost):
    """The cluster ended the application while it ran, or the driver lost the cluster. Its commit was not found."""


class ExecutorsLost(JobLost):
    """Executors died more often than Spark allows, such as for want of memory. The job's commit was not found."""
