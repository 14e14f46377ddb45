"""CHECKPOINT and VACUUM: work on the log and on dead files, which needs no Spark.

Neither carries an application transaction: both are idempotent by nature (soundness B5).
"""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from airflow_txlog.contract import JobResult, JobSpec
from airflow_txlog.engine import Table

PATHS_SHOWN = 20


def checkpoint(spec: JobSpec) -> JobResult:
    """Write a checkpoint of the latest version."""
    start = time.perf_counter()
    version = Table.open(spec.table_uri, strict_writers=spec.strict_writers).checkpoint()
    return JobResult(
        status="committed",
        operation=spec.operation,
        table_uri=spec.table_uri,
        version=version,
        read_version=version,
        steps=_steps(spec, start),
    )


def vacuum(spec: JobSpec) -> JobResult:
    """Delete the files that no version inside the retention needs, or only count them in a dry run.

    `details.files` are the first of them. Raises RetentionTooShort, CannotVacuumLite.
    """
    start = time.perf_counter()
    table = Table.open(spec.table_uri, strict_writers=spec.strict_writers)
    before = table.snapshot().version
    hours = spec.arguments["retention_hours"]
    done = table.vacuum(
        None if hours is None else dt.timedelta(hours=hours),
        dry_run=spec.arguments["dry_run"],
        check_retention=spec.arguments["check_retention"],
        mode=spec.arguments["mode"],
        inventory=spec.arguments["inventory"],
        parallelism=spec.arguments["parallelism"],
    )
    metrics = {"numFilesToDelete": len(done.files), "sizeOfDataToDelete": done.size_bytes}
    if not done.dry_run:
        metrics |= {"numDeletedFiles": done.deleted_files, "numVacuumedDirectories": done.deleted_directories}
    return JobResult(
        status="nothing_to_do" if done.dry_run else "committed",
        operation=spec.operation,
        table_uri=spec.table_uri,
        version=before if done.dry_run else table.snapshot().version,
        read_version=before,
        metrics=metrics,
        files={"removed": 0 if done.dry_run else done.deleted_files},
        steps=_steps(spec, start),
        details={"files": sorted(done.files)[:PATHS_SHOWN], "dry_run": done.dry_run, "mode": done.mode},
    )


def _steps(spec: JobSpec, start: float) -> list[dict[str, Any]]:
    return [{"name": spec.operation, "seconds": round(time.perf_counter() - start, 3)}]
