"""The steps that an operation on rows defines for the pipeline, and the counts that such operations share.

The invariants: `prepare` checks every text and registers every read before anything is read or staged. `find` judges a
row by that row and the materialized inputs alone. Every figure is of this commit, whichever attempt or try did the
work. Source: soundness, section 0 (conditions 1, 2); delta-spark, DeltaOperations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from airflow_txlog.datafiles.row_ids import RowIds
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.log.columns import FILES
from airflow_txlog.engine.table.snapshot.files import vectors_of
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.kept_ids import carried_ids
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.files.stage import NewRows
from airflow_txlog.jobs.resume.attempts import Change
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.deletion_vectors import NewVectors
from airflow_txlog.jobs.rows.matches import FoundRows, Matches
from airflow_txlog.jobs.sql.scope import PartitionScope


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One attempt after all checks and before any scan.

    `candidates` are the files (rows of a table `FILES`) that may hold a row of interest inside the `scope`; `whole`
    those that leave by their partition values alone. The clauses `updates` give a row a new image; any other clause
    deletes it.
    """

    snapshot: Snapshot
    scope: PartitionScope
    candidates: pa.Table
    whole: pa.Table = field(default_factory=FILES.empty_table)
    updates: frozenset[int] = frozenset()

    @cached_property
    def row_ids(self) -> RowIds | None:
        """The columns in which rows that move keep their ids of row tracking; None if they do not keep them."""
        return carried_ids(self.snapshot, self.candidates)


@dataclass(frozen=True, kw_only=True)
class Found:
    """All matches of an attempt: the rows that leave their files (`removed`), and those of them with a new image
    (`updated`).
    """

    plan: FilePlan
    matches: Matches
    removed: FoundRows
    updated: FoundRows


P = TypeVar("P", bound=Prepared)


class RowOperation(ABC, Generic[P]):
    """A DELETE, UPDATE or MERGE, generic over what it prepares, which every other step gets."""

    name: ClassVar[str]
    """The operation's name in its commit, as delta-spark writes it."""

    writes_rows = True
    """Whether each of its changes has new rows. One that only removes rows may write no Parquet file, so that it also
    serves a table whose files cannot be written here."""

    joins_files = False
    """Whether tiny files of a partition with new rows are joined (`tiny_files`)."""

    records_inserts_alone = False
    """Whether inserts are written as change rows even if no row leaves: their source can be evaluated only once, and in
    the next attempt rows may leave."""

    @abstractmethod
    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> P:
        """Materialize inputs, check texts and rules, register the reads. Empty `memory` if inputs are materialized
        again.
        """

    @abstractmethod
    def find(self, prepared: P, plan: FilePlan) -> Matches:
        """Return the matches in all rows of the planned files."""

    def check(self, prepared: P, found: Found) -> None:
        """Raise an error if the matches in all live files together are forbidden."""

    def images(self, prepared: P, updated: FilePlan) -> NewRows:
        """Return new images of the rows at the plan's positions."""
        raise NotImplementedError(f"{type(self).__name__} updates nothing")

    def inserts_wanted(self, prepared: P, matches: Matches) -> Mapping[int, str]:
        """Return a fingerprint of the inserted rows for each bucket of source rows that may have some."""
        return {}

    def inserts(self, prepared: P, matches: Matches, buckets: Collection[int]) -> NewRows:
        """Return the rows that these buckets insert, with the bucket as SEGMENT_COLUMN."""
        raise NotImplementedError(f"{type(self).__name__} inserts nothing")

    def marks(self, prepared: P, matches: Matches) -> Mapping[str, int]:
        """Return the high-water marks of the identity columns for which the table gives the inserted rows values."""
        return {}

    def completed(self, tx: Transaction, prepared: P, change: Change) -> Change:
        """Return the checked change with the other records of its commit."""
        return change

    @abstractmethod
    def parameters(self, prepared: P) -> Mapping[str, Any]:
        """Return the commit's operationParameters, as delta-spark spells them."""

    @abstractmethod
    def metrics(self, prepared: P, found: Found, work: StagedWork) -> Mapping[str, int]:
        """Return the commit's operationMetrics."""


@dataclass(frozen=True, kw_only=True)
class StagedWork:
    """All files that are staged for this attempt's commit, by kind, and the files that leave for it.

    `removed` (rows of a table `FILES`) includes those that are added again with one of the new `vectors`.
    `num_rewritten` of them are replaced by copies of their other rows. `changes` are files of change rows, which are no
    files of the table. `joined` are committed instead of the files at the paths `parts`. `keeps_row_ids`: every moved
    row has its id of row tracking in its new file.
    """

    copies: Sequence[StagedFile]
    images: Sequence[StagedFile]
    inserts: Sequence[StagedFile]
    removed: pa.Table
    num_rewritten: int
    vectors: NewVectors
    changes: Sequence[StagedFile] = ()
    joined: Sequence[StagedFile] = ()
    parts: frozenset[str] = frozenset()
    keeps_row_ids: bool = False

    @property
    def files(self) -> list[StagedFile]:
        """The new files of the table."""
        staged = (*self.copies, *self.images, *self.inserts)
        return [*(file for file in staged if file.path not in self.parts), *self.joined]

    @property
    def staged(self) -> list[StagedFile]:
        return [*self.files, *self.changes]

    @property
    def num_copied(self) -> int:
        return sum(file.num_records for file in self.copies) + sum(file.num_kept or 0 for file in self.images)

    @property
    def num_inserted(self) -> int:
        return sum(file.num_records for file in self.inserts)

    @property
    def num_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def num_removed(self) -> int:
        """The number of files that leave for good."""
        return int(self.removed.num_rows) - len(self.vectors.adds)

    @property
    def num_removed_bytes(self) -> int:
        removed: list[int] = self.removed.column("size").to_pylist()
        return sum(removed) - sum(add.size for add in self.vectors.adds)


def file_metrics(context: JobContext, work: StagedWork) -> dict[str, int]:
    """Return the operationMetrics of files, bytes, copied rows and times."""
    files = work.files
    return {
        "numRemovedFiles": work.num_removed,
        "numRemovedBytes": work.num_removed_bytes,
        "numAddedFiles": len(files),
        "numAddedBytes": work.num_bytes,
        "numCopiedRows": work.num_copied,
        "numAddedChangeFiles": len(work.changes),
        **vector_metrics("num", work),
        "executionTimeMs": sum(context.step_ms(name) for name in ("materialize", "plan", "find", "rewrite")),
        "scanTimeMs": context.step_ms("find"),
        "rewriteTimeMs": context.step_ms("rewrite"),
    }


def overwrite_metrics(context: JobContext, found: Found, work: StagedWork) -> dict[str, int]:
    """Return the operationMetrics of an overwrite that reads the rows that leave."""
    return file_metrics(context, work) | {
        "numFiles": len(work.files),
        "numOutputRows": work.num_inserted,
        "numOutputBytes": work.num_bytes,
        "numDeletedRows": found.removed.num_rows,
    }


def vector_metrics(prefix: str, work: StagedWork) -> dict[str, int]:
    """Return the numbers of files with a new vector, of files whose vector left, and of files that are both."""
    return {
        f"{prefix}DeletionVectorsAdded": len(work.vectors.adds),
        f"{prefix}DeletionVectorsRemoved": len(vectors_of(work.removed)),
        f"{prefix}DeletionVectorsUpdated": work.vectors.num_updated,
    }


def file_counts(prepared: Prepared, work: StagedWork) -> dict[str, int]:
    """Return `JobResult.files`."""
    total = prepared.snapshot.num_files
    with_vectors = len(work.vectors.adds)
    return {
        "considered": total,
        "pruned": total - prepared.candidates.num_rows - prepared.whole.num_rows,
        "rewritten": work.num_rewritten,
        **({"deletion_vectors": with_vectors} if with_vectors else {}),
        "added": len(work.files),
        "removed": work.num_removed,
    }
