"""What DELETE and UPDATE count alike: files and bytes by delta-spark's names, and the result's counts of files.

The invariant: every figure is of this commit, whichever round or try did the work.
Source: delta-spark, DeltaOperations.
"""

from __future__ import annotations

from airflow_txlog.engine.table.files import vectors_of
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.dml.operation import Prepared, StagedWork


def file_metrics(context: JobContext, work: StagedWork) -> dict[str, int]:
    """operationMetrics of files, bytes, copied rows and times."""
    files = work.files
    return {
        "numRemovedFiles": work.removed.num_rows,
        "numRemovedBytes": sum(work.removed.column("size").to_pylist()),
        "numAddedFiles": len(files),
        "numAddedBytes": work.num_bytes,
        "numCopiedRows": work.num_copied,
        "numAddedChangeFiles": 0,
        "numDeletionVectorsAdded": 0,
        "numDeletionVectorsRemoved": len(vectors_of(work.removed)),
        "numDeletionVectorsUpdated": 0,
        "executionTimeMs": sum(context.step_ms(name) for name in ("pin", "plan", "find", "rewrite")),
        "scanTimeMs": context.step_ms("find"),
        "rewriteTimeMs": context.step_ms("rewrite"),
    }


def file_counts(prepared: Prepared, work: StagedWork) -> dict[str, int]:
    """`JobResult.files`."""
    total = prepared.snapshot.num_files
    return {
        "considered": total,
        "pruned": total - prepared.candidates.num_rows - prepared.whole.num_rows,
        "rewritten": len(work.copies),
        "added": len(work.files),
        "removed": work.removed.num_rows,
    }
