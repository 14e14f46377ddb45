"""CHECKPOINT and VACUUM. Both are idempotent, so neither carries an application transaction (soundness B5)."""

from __future__ import annotations

import dataclasses

from airflow_txlog.contract.job import Details, JobResult
from airflow_txlog.contract.operations import Vacuum
from airflow_txlog.engine.upkeep.vacuum import vacuum_table
from airflow_txlog.engine.upkeep.vacuum_plan import VacuumRequest, milliseconds
from airflow_txlog.jobs.context import LogContext

PATHS_SHOWN = 20


def checkpoint(context: LogContext) -> JobResult:
    """Write a checkpoint of the latest version."""
    with context.step(context.spec.operation.name):
        version = context.table.checkpoint()
    return context.result(is_committed=True, version=version, read_version=version)


def vacuum(context: LogContext) -> JobResult:
    """Delete the files that no version inside the retention needs, or count them in a dry run.

    `details.files` are the first of them. Raises RetentionTooShort, CannotVacuumLite, FolderNotEmpty.
    """
    table, described = context.table, context.record(Vacuum)
    with context.step(context.spec.operation.name):
        before = table.snapshot().version
        request = VacuumRequest(
            retention_ms=None if described.retention_hours is None else milliseconds(described.retention_hours),
            dry_run=described.dry_run,
            check_retention=described.check_retention,
            mode=described.mode,
            inventory=described.inventory,
            include_foreign=described.include_foreign,
            parallelism=described.parallelism,
        )
        done = vacuum_table(table, request, tags=context.spec.commit_tags())
        after = before if done.dry_run else table.snapshot().version
    metrics = {"numFilesToDelete": len(done.files), "sizeOfDataToDelete": done.size_bytes}
    if not done.dry_run:
        metrics |= {"numDeletedFiles": done.deleted_files, "numVacuumedDirectories": done.deleted_directories}
    result = context.result(
        is_committed=not done.dry_run,
        version=after,
        read_version=before,
        metrics=metrics,
        files={"removed": 0 if done.dry_run else done.deleted_files},
    )
    details = Details(files=sorted(done.files)[:PATHS_SHOWN], dry_run=done.dry_run, mode=done.mode)
    return dataclasses.replace(result, details=details)
