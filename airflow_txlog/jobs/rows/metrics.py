"""What DELETE and UPDATE count alike: files and bytes by delta-spark's names, and the result's counts of files.

The invariant: every figure is of this commit, whichever attempt or try did the work.
Source: delta-spark, DeltaOperations.
"""

from __future__ import annotations

from airflow_txlog.engine.table.snapshot.files import vectors_of
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.rows.operation import Prepared, StagedWork


def file_metrics(context: JobContext, work: StagedWork) -> dict[str, int]:
    """operationMetrics of files, bytes, copied rows and times."""
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


def vector_metrics(prefix: str, work: StagedWork) -> dict[str, int]:
    """Files that have a new vector, files whose vector went, and files that are both, which "updated" counts again."""
    return {
        f"{prefix}DeletionVectorsAdded": len(work.vectors.adds),
        f"{prefix}DeletionVectorsRemoved": len(vectors_of(work.removed)),
        f"{prefix}DeletionVectorsUpdated": work.vectors.num_updated,
    }


def file_counts(prepared: Prepared, work: StagedWork) -> dict[str, int]:
    """`JobResult.files`."""
    total = prepared.snapshot.num_files
    with_vectors = len(work.vectors.adds)
    return {
        "considered": total,
        "pruned": total - prepared.candidates.num_rows - prepared.whole.num_rows,
        "rewritten": len(work.copies),
        **({"deletion_vectors": with_vectors} if with_vectors else {}),
        "added": len(work.files),
        "removed": work.num_removed,
    }
