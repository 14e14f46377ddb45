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
    AIRFLOW = "Airflow"
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


_REPLANNED = "planned again on what the other commit left, it may fit"
_AUTHOR = "the same arguments on the same table fail again"
_DAMAGED = "the table stays as it is until someone repairs it"

RETRIED: dict[type[TxlogError], tuple[Ring, str]] = {
    errors.ConcurrentAppend: (Ring.JOB, _REPLANNED),
    errors.ConcurrentDeleteRead: (Ring.JOB, _REPLANNED),
    errors.ConcurrentDeleteDelete: (Ring.JOB, _REPLANNED),
    errors.MetadataChanged: (Ring.JOB, _REPLANNED),
    errors.ProtocolChanged: (Ring.JOB, _REPLANNED),
    errors.ConcurrentTransaction: (Ring.JOB, "the other commit may be this work's own: the next attempt finds out"),
    errors.ConcurrentWrite: (Ring.JOB, f"{_REPLANNED}; never where the job must not rebase (`on_conflict`, restore)"),
    errors.ConcurrentLogCleanup: (Ring.JOB, "the newest version needs none of the commits that are gone"),
    errors.CommitContention: (Ring.JOB, "nothing is in the way but other writers' speed"),
    errors.TableAlreadyExists: (Ring.JOB, "the table that another writer made may serve"),
    errors.CommitStateUnknown: (
        Ring.POLICY,
        "the next try finds the application transaction, or not; never for work without one, which could be done twice",
    ),
    errors.JobLost: (
        Ring.POLICY,
        "a process died; the next try finds the application transaction, or goes on with what was saved. "
        'Work without one is left to Airflow with `otherwise="default"`',
    ),
    errors.ClusterLost: (
        Ring.POLICY,
        "as `JobLost`: the cluster may be back, and the next try finds the transaction, the job that still runs, or "
        "what was saved",
    ),
    errors.ExecutorsLost: (
        Ring.POLICY,
        "as `JobLost`: other machines may live longer, and the next try goes on with what was saved",
    ),
    errors.SparkUnavailable: (
        Ring.POLICY,
        "this try has begun nothing; the cluster or the server may answer again, and a warm one is started anew",
    ),
    errors.NoExecutors: (Ring.POLICY, "nothing was done, and a busy cluster may have room later"),
    errors.JobError: (
        Ring.AIRFLOW,
        "Spark or the machine: a full disk, a permission, a store that does not answer, Spark that does not start",
    ),
    errors.CredentialsUnavailable: (Ring.AIRFLOW, "a secrets backend or a token service may answer again"),
    errors.UnfitExecutor: (Ring.AIRFLOW, "another machine may have what is missing on this one"),
    errors.OutOfMemory: (Ring.AIRFLOW, "the next try has no more memory, but may have less beside it"),
    errors.SourceNotFound: (Ring.AIRFLOW, "the file or the table may arrive"),
    errors.CommitOverwritten: (Ring.NONE, "the same writer would overwrite the next commit too"),
    errors.OverwritingWriter: (Ring.NONE, "the same writer would overwrite our commits"),
    errors.TableNotFound: (Ring.NONE, "a wrong name, or a table that another task has to make first"),
    errors.WatermarkLost: (Ring.NONE, "the table does not show how far its rows go: a person must look"),
    errors.SourceGap: (Ring.NONE, "the changes of the source are gone, or were never recorded"),
    errors.OutsideTable: (
        Ring.NONE,
        "the log, or a link in the table's folder, leads out of it: remove it, or see `allow_absolute_paths`",
    ),
    errors.FolderChanged: (Ring.POLICY, "the writer of the folder may have finished by then"),
    errors.TableReplaced: (Ring.NONE, "it is another table now: whether the work is meant for it is not known"),
    errors.VersionNotFound: (Ring.NONE, _AUTHOR),
    errors.TimestampOutOfRange: (Ring.NONE, _AUTHOR),
    errors.FilesMissing: (Ring.NONE, "a vacuum has deleted the files for good"),
    errors.FolderNotEmpty: (Ring.NONE, "the files of others are still there: choose another folder, or allow them"),
    errors.CannotVacuumLite: (Ring.NONE, "the log does not come back; a full vacuum can run"),
    errors.LimitExceeded: (Ring.NONE, "the table stays as large as it is, or a person raises [the limit](#limits)"),
    errors.CorruptTable: (Ring.NONE, _DAMAGED),
    errors.CorruptCommit: (Ring.NONE, _DAMAGED),
    errors.CorruptCheckpoint: (Ring.NONE, _DAMAGED),
    errors.CorruptDataFile: (Ring.NONE, _DAMAGED),
    errors.CorruptDeletionVector: (Ring.NONE, _DAMAGED),
    errors.LogGap: (Ring.NONE, _DAMAGED),
    errors.UnsupportedFeature: (Ring.NONE, "the table needs what this release cannot do"),
    errors.UnsupportedStore: (Ring.NONE, "the store needs what this release cannot do"),
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
    errors.AppendOnlyViolation: (Ring.NONE, "the table forbids what the operation is for"),
    errors.ConstraintViolation: (Ring.NONE, "the same rows break the same rule again"),
    errors.AmbiguousMerge: (Ring.NONE, "the same source rows match the same target row again"),
    errors.ExpectationFailed: (Ring.NONE, "the same rows fail the same check again"),
    errors.MatchNotFound: (Ring.NONE, "what was asked to match is missing again"),
    errors.KeysNotFound: (Ring.NONE, "the same keys are missing again"),
    errors.IdempotencyKeyReused: (Ring.NONE, "the key belongs to other work, or may: a person must look"),
    errors.AuditFailed: (Ring.NONE, "the same staged rows fail the same audits again"),
    errors.StagedChangeGone: (Ring.NONE, "the change must be staged again: clear the task that staged it"),
    errors.TransactionExpired: (Ring.NONE, "the table has forgotten whether the work was done: a person must look"),
}


def markdown() -> str:
    """The table as documents have it."""
    rows = [f"| `{error.__name__}` | {ring} | {why} |" for error, (ring, why) in RETRIED.items()]
    return "\n".join(["| class | retried by | why |", "|---|---|---|", *rows]) + "\n"
