"""The table of error classes, each with the ring that retries it and the reason.

The rings are the job itself, `TxlogRetryPolicy`, and Airflow's own `retries`; docs/decisions/retries.md describes them,
and docs/errors.md prints this table. The invariant: the table agrees with each class's `retryable` and with `ring_of`.
"""

from __future__ import annotations

import enum

from airflow_txlog import errors
from airflow_txlog.errors import TxlogError


class Ring(enum.StrEnum):
    """The ring that tries again after an error; documents use the value as its name."""

    JOB = "the job, then the policy"
    POLICY = "the policy"
    AIRFLOW = 'Airflow, with `otherwise="default"`'
    NONE = "none"


# Possibly transient errors, although nothing here can prove it.
_MAY_PASS = (errors.JobError, errors.SourceNotFound)


def ring_of(error: BaseException) -> Ring:
    """Return the ring outside the job that retries an error: POLICY, AIRFLOW (only `otherwise="default"`) or NONE."""
    if isinstance(error, TxlogError) and error.retryable:
        return Ring.POLICY
    if not isinstance(error, TxlogError) or isinstance(error, _MAY_PASS):
        return Ring.AIRFLOW
    return Ring.NONE


_REPLANNED = "the operation may succeed with a new plan on top of the other commit"
_AUTHOR = "the same arguments fail again on the same table"
_DAMAGED = "the table is damaged until somebody repairs it"

RETRIED: dict[type[TxlogError], tuple[Ring, str]] = {
    errors.ConcurrentAppend: (Ring.JOB, _REPLANNED),
    errors.ConcurrentDeleteRead: (Ring.JOB, _REPLANNED),
    errors.ConcurrentDeleteDelete: (Ring.JOB, _REPLANNED),
    errors.MetadataChanged: (Ring.JOB, _REPLANNED),
    errors.ProtocolChanged: (Ring.JOB, _REPLANNED),
    errors.ConcurrentTransaction: (Ring.JOB, "the other commit may be the same work; the next attempt finds it"),
    errors.ConcurrentWrite: (
        Ring.JOB,
        f"{_REPLANNED}; not retried if the job must not rebase (`on_conflict`, restore)",
    ),
    errors.ConcurrentLogCleanup: (Ring.JOB, "the newest version does not need the deleted commits"),
    errors.CommitContention: (Ring.JOB, "the commit only lost races against faster writers"),
    errors.TableAlreadyExists: (Ring.JOB, "the table that another writer created may be suitable"),
    errors.CommitStateUnknown: (
        Ring.POLICY,
        "the next try finds the application transaction, or does the work. Work without one is not retried, because it "
        "could be done twice",
    ),
    errors.JobLost: (
        Ring.POLICY,
        "a process died. The next try finds the application transaction, or continues from the saved work. "
        'Work without one is left to Airflow with `otherwise="default"`',
    ),
    errors.ClusterLost: (
        Ring.POLICY,
        "as `JobLost`: the cluster may be available again, and the next try finds the transaction, the running job, or "
        "the saved work",
    ),
    errors.ExecutorsLost: (
        Ring.POLICY,
        "as `JobLost`: other machines may survive, and the next try continues from the saved work",
    ),
    errors.SparkUnavailable: (
        Ring.POLICY,
        "this try has started no work. The cluster or the server may respond again, and a warm server is restarted",
    ),
    errors.NoExecutors: (Ring.POLICY, "nothing was done, and a busy cluster may have capacity later"),
    errors.JobError: (
        Ring.AIRFLOW,
        "Spark or the machine failed: a full disk, a permission, an unavailable store, a failed start of Spark",
    ),
    errors.CredentialsUnavailable: (Ring.AIRFLOW, "a secrets backend or a token service may respond again"),
    errors.UnfitExecutor: (Ring.AIRFLOW, "another machine may have the missing package"),
    errors.OutOfMemory: (Ring.AIRFLOW, "the next try has the same memory, but other processes may use less"),
    errors.SourceNotFound: (Ring.AIRFLOW, "the file or the table may appear later"),
    errors.CommitOverwritten: (Ring.NONE, "the same writer would overwrite the next commit too"),
    errors.OverwritingWriter: (Ring.NONE, "the same writer would overwrite our commits"),
    errors.TableNotFound: (Ring.NONE, "the name is wrong, or another task must create the table first"),
    errors.WatermarkLost: (Ring.NONE, "the table does not show which rows it already has. Check this yourself"),
    errors.SourceGap: (Ring.NONE, "the changes of the source were deleted, or were never recorded"),
    errors.OutsideTable: (
        Ring.NONE,
        "the log or a link leads out of the table's folder. Remove it, or see `allow_absolute_paths`",
    ),
    errors.FolderChanged: (Ring.POLICY, "the writer of the folder may have finished by the next try"),
    errors.TableReplaced: (Ring.NONE, "it is a different table now, and the work may not be meant for it"),
    errors.VersionNotFound: (Ring.NONE, _AUTHOR),
    errors.TimestampOutOfRange: (Ring.NONE, _AUTHOR),
    errors.FilesMissing: (Ring.NONE, "a vacuum has permanently deleted the files"),
    errors.FolderNotEmpty: (Ring.NONE, "the folder still contains other files. Choose another folder, or allow them"),
    errors.CannotVacuumLite: (Ring.NONE, "the deleted commits are not coming back. Run a full vacuum"),
    errors.LimitExceeded: (Ring.NONE, "the table stays too large unless you raise [the limit](#limits)"),
    errors.CorruptTable: (Ring.NONE, _DAMAGED),
    errors.CorruptCommit: (Ring.NONE, _DAMAGED),
    errors.CorruptCheckpoint: (Ring.NONE, _DAMAGED),
    errors.CorruptDataFile: (Ring.NONE, _DAMAGED),
    errors.CorruptDeletionVector: (Ring.NONE, _DAMAGED),
    errors.LogGap: (Ring.NONE, _DAMAGED),
    errors.CatalogError: (Ring.NONE, "the catalog gives the same answer again"),
    errors.TableNotInCatalog: (Ring.NONE, "the name is wrong, or another task must register the table first"),
    errors.NotADeltaTable: (Ring.NONE, "the name belongs to a view, or to a table of another format"),
    errors.UnusablePlace: (Ring.NONE, "the entry of the catalog has no usable location. Correct the entry"),
    errors.WrongTableId: (Ring.NONE, "the catalog and the log name different tables. Check this yourself"),
    errors.TableMoved: (
        Ring.NONE,
        "the name leads elsewhere than in an earlier try, which may have done the work there. Check this yourself",
    ),
    errors.CatalogUnavailable: (Ring.POLICY, "nothing was read or written, and the catalog may respond again"),
    errors.CatalogRefused: (Ring.NONE, "the catalog refuses the same request again"),
    errors.UnsupportedFeature: (Ring.NONE, "this release does not support a feature that the table needs"),
    errors.UnsupportedStore: (Ring.NONE, "this release does not support the store"),
    errors.InvalidInput: (Ring.NONE, _AUTHOR),
    errors.InvalidPredicate: (Ring.NONE, _AUTHOR),
    errors.UnknownColumn: (Ring.NONE, _AUTHOR),
    errors.UnsupportedPredicate: (Ring.NONE, _AUTHOR),
    errors.SchemaMismatch: (Ring.NONE, _AUTHOR),
    errors.PartitionMismatch: (Ring.NONE, _AUTHOR),
    errors.RetentionTooShort: (Ring.NONE, _AUTHOR),
    errors.InvalidProperty: (Ring.NONE, _AUTHOR),
    errors.InvalidJobSpec: (Ring.NONE, _AUTHOR),
    errors.InvalidCommit: (Ring.NONE, _AUTHOR),
    errors.DuplicateActions: (Ring.NONE, _AUTHOR),
    errors.MetadataAbsent: (Ring.NONE, _AUTHOR),
    errors.RowCountMissing: (Ring.NONE, _AUTHOR),
    errors.SetTransactionVersionConflict: (Ring.NONE, _AUTHOR),
    errors.AppendOnlyViolation: (Ring.NONE, "the table forbids the operation"),
    errors.ConstraintViolation: (Ring.NONE, "the same rows break the same rule again"),
    errors.AmbiguousMerge: (Ring.NONE, "the same source rows match the same target row again"),
    errors.ExpectationFailed: (Ring.NONE, "the same rows fail the same check again"),
    errors.MatchNotFound: (Ring.NONE, "the required match is missing again"),
    errors.KeysNotFound: (Ring.NONE, "the same keys are missing again"),
    errors.IdempotencyKeyReused: (Ring.NONE, "the key belongs, or may belong, to other work. Check this yourself"),
    errors.SubjectReturns: (Ring.NONE, "the same files bring the same subjects back again"),
    errors.LedgerKeyMissing: (Ring.NONE, "the key is still missing. Add it to the connection of the ledger"),
    errors.AuditFailed: (Ring.NONE, "the same staged rows fail the same audits again"),
    errors.StagedChangeGone: (
        Ring.NONE,
        "the change must be staged again. Clear the task that staged it; if it has an idempotency_key, change that",
    ),
    errors.ErasureIncomplete: (Ring.NONE, "the same objects still hold the subjects. Erase them, and verify again"),
    errors.CannotRollBack: (Ring.NONE, "the later commits are still there. Check this yourself"),
    errors.TransactionExpired: (
        Ring.NONE,
        "the table no longer records whether the work was done. Check this yourself",
    ),
}


def markdown() -> str:
    """Return the table as Markdown, as docs/errors.md contains it."""
    rows = [f"| `{error.__name__}` | {ring} | {why} |" for error, (ring, why) in RETRIED.items()]
    return "\n".join(["| class | retried by | why |", "|---|---|---|", *rows]) + "\n"
