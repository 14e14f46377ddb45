"""UPKEEP: only the maintenance that a table needs now, by the jobs of OPTIMIZE, CHECKPOINT and VACUUM.

The due steps follow from the latest version and its log alone. So a step that was done is no longer due: a killed job
that runs again does the rest, and no application transaction is needed. The invariant: each step is the existing job,
with its checks and its commits; this module only decides whether it runs, and on how many files. Source: soundness B5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.contract.job import Details, JobResult
from airflow_txlog.contract.operations import Checkpoint, Operation, Optimize, Upkeep, Vacuum
from airflow_txlog.contract.wording import plural, size_text
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.checkpointing import clean_log
from airflow_txlog.engine.log.segment import list_segment
from airflow_txlog.engine.table.schema.features import check_maintained_here
from airflow_txlog.engine.table.snapshot.files import stated_count, vectors_of
from airflow_txlog.engine.upkeep.removed_files import write_last_vacuum
from airflow_txlog.engine.upkeep.vacuum import vacuum_table
from airflow_txlog.engine.upkeep.vacuum_plan import VacuumMode, VacuumRequest, milliseconds
from airflow_txlog.errors import CannotVacuumLite
from airflow_txlog.jobs.context import FixedTexts, JobContext
from airflow_txlog.jobs.operations.maintenance import checkpoint, vacuum
from airflow_txlog.jobs.operations.optimize.bins import Bin, purge_bins
from airflow_txlog.jobs.operations.optimize.job import Budget, bins_of, optimize, target_of
from airflow_txlog.jobs.operations.optimize.order import order_of

# Two small files of a partition are no reason to rewrite one of them each night.
_FEW_FILES = 2
# Under a limit of time, a commit rewrites no more than this, so that the job can stop between two.
_TIMED_BATCH_BYTES = 1024**3


def upkeep(context: JobContext, clock: Clock = SYSTEM_CLOCK) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    return _Upkeep(context, clock).run()


def is_worth_it(bins: Sequence[Bin]) -> bool:
    """Return whether some bin joins more than a few files, or rewrites a worn one."""
    return any(each.is_worn or each.files.num_rows > _FEW_FILES for each in bins)


def deleted_share(snapshot: Snapshot) -> float:
    """Return the share of rows that deletion vectors delete, in the live files whose rows are counted."""
    files = snapshot.files()
    vectors = vectors_of(files)
    if not vectors:
        return 0.0
    counts = [stated_count(stats) for stats in files.column("stats").to_pylist()]
    deleted = sum(vector.cardinality for row, vector in vectors.items() if counts[row])
    return deleted / max(1, sum(count or 0 for count in counts))


class _Upkeep:
    def __init__(self, context: JobContext, clock: Clock) -> None:
        self._context, self._clock = context, clock
        self._described = context.record(Upkeep)
        minutes = self._described.max_minutes
        until_ms = None if minutes is None else clock.now_ms() + int(60_000 * minutes)
        self._budget = Budget(most_bytes=self._described.max_bytes, until_ms=until_ms, clock=clock)
        self._report: list[dict[str, Any]] = []
        self._results: list[JobResult] = []

    def run(self) -> JobResult:
        context, table = self._context, self._context.table
        check_maintained_here(context.store, "upkeep")
        # A table that may not be written here is refused before anything is rewritten; a dry run only reads.
        snapshot = table.snapshot() if self._described.dry_run else table.begin().snapshot
        assert snapshot is not None
        first = snapshot.version
        self._purge(snapshot)
        self._compact(table.snapshot())
        if self._described.checkpoint:
            self._checkpoint(table.snapshot())
        # A lite vacuum needs the commits that the cleaning deletes.
        self._vacuum()
        if self._described.checkpoint:
            self._clean_log(table.snapshot())
        result = context.result(
            is_committed=any(result.status == "committed" for result in self._results),
            version=table.snapshot().version,
            read_version=first,
            metrics=_sums(result.metrics for result in self._results),
            files=_sums(result.files for result in self._results),
        )
        return dataclasses.replace(result, details=Details(upkeep=self._report, dry_run=self._described.dry_run))

    # --- rewriting --------------------------------------------------------------------------------------------------

    def _purge(self, snapshot: Snapshot) -> None:
        above = self._described.purge_above
        share = None if above is None else deleted_share(snapshot)
        if share is None or above is None or not share > above:
            return
        bins = purge_bins(snapshot.files(), self._target(snapshot))
        self._rewrite("purge", bins, f"{share:.1%} of the rows are deleted by vectors", purge=True)

    def _compact(self, snapshot: Snapshot) -> None:
        if not self._described.compact:
            return
        operation = Optimize()
        order = order_of(snapshot, operation)
        bins = bins_of(snapshot.files(), operation, order, self._target(snapshot), self._budget)
        if is_worth_it(bins):
            count = f"{plural(sum(each.files.num_rows for each in bins), 'file')} of {snapshot.num_files}"
            if order.is_clustering:
                self._rewrite("cluster", bins, f"{count} are not clustered, or clustered in small pieces")
            else:
                self._rewrite("compact", bins, f"{count} are small or worn")

    def _rewrite(self, step: str, bins: Sequence[Bin], why: str, *, purge: bool = False) -> None:
        if not self._described.dry_run:
            # Before anything is done: the job would begin anew with Spark.
            self._context.executor.admit([each.size_bytes for each in bins], self._context.store)
        facts = {
            "files": sum(each.files.num_rows for each in bins),
            "bytes": sum(each.size_bytes for each in bins),
        }
        if not self._begins(step, why, facts, fits=bool(self._budget.chosen(list(bins)))):
            return
        batch_bytes = _TIMED_BATCH_BYTES if self._budget.until_ms is not None else 32 * 1024**3
        operation = Optimize(purge=purge, target_bytes=self._described.target_bytes, batch_bytes=batch_bytes)
        result = optimize(self._as(operation), self._clock, self._budget)
        self._ends(result, rewritten=result.metrics["numRemovedFiles"], added=result.metrics["numAddedFiles"])

    def _target(self, snapshot: Snapshot) -> int:
        return self._described.target_bytes or target_of(snapshot)

    # --- the log and the files that nothing needs -------------------------------------------------------------------

    def _checkpoint(self, snapshot: Snapshot) -> None:
        found = list_segment(self._context.store, snapshot.version).checkpoint
        commits = snapshot.version - (-1 if found is None else found.version)
        if commits <= snapshot.table_properties.checkpoint_interval:
            return
        if self._begins("checkpoint", f"{commits} commits follow the newest checkpoint", {"commits": commits}):
            self._ends(checkpoint(self._as(Checkpoint())))

    def _clean_log(self, snapshot: Snapshot) -> None:
        """Clean the log. Whether there is something to delete is known only while it is done."""
        if self._described.dry_run or not snapshot.table_properties.clean_expired_log or self._budget.is_over:
            return
        done = clean_log(self._context.store, snapshot, self._clock)
        if done.deleted_files:
            self._begins("clean_log", f"the log before version {done.cut} is past its retention", {})
            counts = {"numDeletedLogFiles": done.deleted_files}
            self._ends(
                self._context.result(
                    is_committed=True, version=snapshot.version, read_version=snapshot.version, metrics=counts
                ),
                deleted=done.deleted_files,
            )

    def _vacuum(self) -> None:
        described, table = self._described, self._context.table
        if described.vacuum is None:
            return
        shares_folder = table.snapshot().table_properties.shares_folder
        hours = described.retention_hours
        mode: VacuumMode = "lite" if shares_folder else described.vacuum
        if mode != described.vacuum:
            self._context.log("vacuumed by the log alone: the folder has files of others")
        request = VacuumRequest(
            retention_ms=None if hours is None else milliseconds(hours), dry_run=True, check_retention=True, mode=mode
        )
        with self._context.step("vacuum"):
            try:
                found = vacuum_table(table, request)
            except CannotVacuumLite:
                if shares_folder:
                    self._context.log("not vacuumed: the log does not reach back, and the folder has files of others")
                    return
                mode = "full"
                found = vacuum_table(table, dataclasses.replace(request, mode=mode))
        if not found.files:
            if not described.dry_run:
                # The next lite vacuum need not read these commits again, and the log may be cleaned of them.
                write_last_vacuum(table.store, found.through)
            return
        facts = {"files": len(found.files), "bytes": found.size_bytes, "mode": mode}
        if self._begins("vacuum", f"no kept version needs {plural(len(found.files), 'file')}", facts):
            result = vacuum(self._as(Vacuum(retention_hours=hours, mode=mode)))
            self._ends(result, deleted=result.metrics["numDeletedFiles"])

    # --- the report -------------------------------------------------------------------------------------------------

    def _begins(self, step: str, why: str, facts: dict[str, Any], *, fits: bool = True) -> bool:
        """Add a step that is due to the report; return whether it is done now. `fits`: the budget allows it."""
        left = None
        if self._described.dry_run:
            left = "dry run"
        elif self._budget.is_over:
            left = "the time is over"
        elif not fits:
            left = "no bin fits into the bytes that are left"
        self._report.append({"step": step, "why": why, "done": left is None, **facts})
        size = f" ({size_text(facts['bytes'])})" if "bytes" in facts else ""
        self._context.log(f"{step} is due: {why}{size}{'' if left is None else f'; left undone: {left}'}")
        return left is None

    def _ends(self, result: JobResult, **facts: int) -> None:
        self._results.append(result)
        self._report[-1] |= facts

    def _as(self, operation: Operation) -> JobContext:
        """Return this job as that of one step: it commits, logs and measures as the step's own."""
        spec = self._context.spec.replace(operation=operation)
        step = dataclasses.replace(self._context, spec=spec, texts=FixedTexts(operation=operation, parameters={}))
        # Its plans lie in the folder that is deleted after this job.
        step.job_id = self._context.job_id
        return step


def _sums(counts: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return {name: count for name, count in found.items() if not name.endswith("FileSize")}
