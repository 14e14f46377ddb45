"""OPTIMIZE: small files become large ones, or rows are clustered, sorted in Z-order or purged of deleted rows.

No row changes, so no action has `dataChange`, no commit carries an application transaction, and each batch of bins is a
commit: a job that is killed has done what it has committed, and running it again does the rest. A winner that appends
is no conflict. One that removes an input of a staged bin affects only that bin: the others are committed, and the bin's
remaining files are planned again. The invariant: every removed file is live, by path and deletion vector, in the
version against which the commit was checked, and its rows are in the added files. Source: delta-spark,
OptimizeTableCommand; soundness section 0 (OPTIMIZE), A18, B3, B5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Optimize
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.parquet.writing import TARGET_BYTES_DEFAULT
from airflow_txlog.engine import DeltaTable, Snapshot, Transaction
from airflow_txlog.engine.table.columns.partitions import typed_partition_columns
from airflow_txlog.engine.table.schema.features import check_maintained_here
from airflow_txlog.engine.table.snapshot.files import file_keys, path_of_key, vectors_of
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.executor.base import NeedsSpark
from airflow_txlog.jobs.files.kept_ids import CARRIES_IDS
from airflow_txlog.jobs.operations.optimize.bins import (
    Bin,
    batches_of,
    compaction_bins,
    partition_bins,
    purge_bins,
    size_metrics,
)
from airflow_txlog.jobs.operations.optimize.cubes import cluster_bins, cube_fields, kept_fields
from airflow_txlog.jobs.operations.optimize.order import RowOrder, order_of
from airflow_txlog.jobs.operations.optimize.staging import stage_bins
from airflow_txlog.jobs.resume.attempts import Change, predicate_parameter, run_attempts
from airflow_txlog.jobs.resume.memory import BIN, Memory, Segment, rules_at
from airflow_txlog.jobs.sql.columns import check_names_are_free
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.scope import partition_scope

# The metrics of a commit that are added up.
_SUMMED = ("numAddedFiles", "numAddedBytes", "numRemovedFiles", "numRemovedBytes", "numDeletionVectorsRemoved")


@dataclass(kw_only=True)
class Budget:
    """How much may be rewritten yet, and until when; None: without a limit."""

    most_bytes: int | None = None
    until_ms: int | None = None
    clock: Clock = SYSTEM_CLOCK
    used_bytes: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self.until_ms is not None and self.clock.now_ms() >= self.until_ms

    @property
    def bytes_left(self) -> int | None:
        return None if self.most_bytes is None else max(0, self.most_bytes - self.used_bytes)

    def chosen(self, bins: list[Bin]) -> list[Bin]:
        """Return the bins that fit into the bytes that are left, those that join most files for their bytes first."""
        left = self.bytes_left
        if left is None:
            return bins
        kept = []
        for each in sorted(bins, key=lambda each: each.size_bytes / each.files.num_rows):
            if each.size_bytes <= left:
                kept.append(each)
                left -= each.size_bytes
        return kept


def bins_of(files: pa.Table, optimize: Optimize, order: RowOrder, target_bytes: int, budget: Budget) -> list[Bin]:
    """Return the bins of the files to rewrite."""
    if optimize.purge:
        return purge_bins(files, target_bytes)
    if order.is_clustering:
        return cluster_bins(files, order.columns, full=optimize.full, most_bytes=budget.bytes_left)
    return partition_bins(files) if order.columns else compaction_bins(files, target_bytes)


def optimize(context: JobContext, clock: Clock = SYSTEM_CLOCK, budget: Budget | None = None) -> JobResult:
    """Run the job of `context.spec`, or as much of it as the budget allows; raises TxlogError."""
    return _Optimizing(context, clock, budget or Budget()).run()


class _Optimizing:
    def __init__(self, context: JobContext, clock: Clock, budget: Budget) -> None:
        self._context = context
        self._budget = budget
        self._clock = clock
        self._optimize = context.record(Optimize)
        self._gate = SqlGate(context)
        self._target_bytes = TARGET_BYTES_DEFAULT
        self._order = RowOrder()
        self._committed: list[JobResult] = []
        self._added_sizes: list[int] = []
        self._left: set[str] = set()
        """Paths of files whose bin was dropped, because another commit removed one of its inputs."""
        self._deadline_ms: int | None = None

    def run(self) -> JobResult:
        context = self._context
        table = context.table
        check_maintained_here(context.store, "OPTIMIZE")
        with context.step("plan"):
            # Anything that forbids a write is found here, before anything is staged.
            snapshot = table.begin().snapshot
            assert snapshot is not None
            files = self._files(snapshot)
            bins = self._budget.chosen(self._bins(files))
            context.executor.foresee(lambda: self._why_spark(snapshot, bins))
        considered = snapshot.num_files
        self._log_plan(considered, files.num_rows, bins)
        while bins:
            try:
                for batch in batches_of(bins, self._optimize.batch_bytes):
                    if not self._budget.is_over:
                        self._budget.used_bytes += sum(each.size_bytes for each in batch)
                        self._commit(batch)
            except NeedsSpark as needed:
                if not self._committed:
                    raise
                # Only files that another commit has changed are left here; with Spark all work would start anew.
                context.log(f"what other commits have changed meanwhile is left for another time: {needed}")
                break
            bins = self._budget.chosen(self._again(table))
        return self._result(considered, snapshot.version)

    # --- what is to be done -----------------------------------------------------------------------------------------

    def _files(self, snapshot: Snapshot) -> pa.Table:
        """Return the files in scope, after all checks."""
        optimize = self._optimize
        self._target_bytes = optimize.target_bytes or target_of(snapshot)
        self._order = self._order_of(snapshot)
        scope = partition_scope(self._context, self._gate, snapshot)
        self._gate.check_all_used()
        return scope.files_inside(snapshot.files(scope.read))

    def _order_of(self, snapshot: Snapshot) -> RowOrder:
        """Return the order of the rows. Raises as `order_of` and `check_names_are_free`."""
        order = order_of(snapshot, self._optimize)
        if order.columns:
            # The rows are sorted with columns of such names.
            check_names_are_free(snapshot.schema.names, f"Table {snapshot.uri}")
        return order

    def _bins(self, files: pa.Table) -> list[Bin]:
        return bins_of(files, self._optimize, self._order, self._target_bytes, self._budget)

    def _why_spark(self, snapshot: Snapshot, bins: Sequence[Bin]) -> str | None:
        """Return why some bin needs Spark, if one does. Raises NeedsSpark."""
        context, files = self._context, [each.files for each in bins]
        if not files:
            return None
        together = pa.concat_tables(files)
        context.executor.admit(together.column("size").to_pylist(), context.store)
        if self._order.columns and len(list(batches_of(bins, self._optimize.batch_bytes))) > 1:
            # The memory that rows take is known only after reading them.
            return "rows are to be sorted in several commits"
        # Some partition values only Spark can read.
        typed_partition_columns(
            together,
            snapshot.delta_schema,
            snapshot.partition_columns,
            time_zone=context.spec.time_zone,
            instants=context.executor.instants,
        )
        return None

    def _again(self, table: DeltaTable) -> list[Bin]:
        """Return bins of the files that dropped bins left. Raises JobError if a purge has run out of time."""
        if not self._left:
            return []
        if self._deadline_ms is None:
            # The deadline counts from the first loss: the work before it may have taken hours.
            self._deadline_ms = self._clock.now_ms() + self._context.spec.conflict_deadline_s * 1000
        is_late = self._clock.now_ms() > self._deadline_ms
        left, self._left = self._left, set()
        if is_late and self._optimize.purge:
            raise JobError(
                f"{plural(len(left), 'file')}, the first {min(left)}, kept being changed by other commits for "
                f"{self._context.spec.conflict_deadline_s} s and may still hold deleted rows. What was committed "
                "before stays. Run the job again.",
                retryable=True,
            )
        if is_late:
            self._context.log(f"{plural(len(left), 'file')} left for another time: other commits go on changing them")
            return []
        snapshot = table.snapshot()
        # The winner may have changed the table's columns, or clustered it.
        self._order = self._order_of(snapshot)
        bins = self._bins(snapshot.state.files.at_paths(left))
        self._context.log(f"{plural(len(bins), 'bin')} of {plural(len(left), 'file')} that other commits left over")
        return bins

    def _log_plan(self, considered: int, inside: int, bins: Sequence[Bin]) -> None:
        count = sum(each.files.num_rows for each in bins)
        size = sum(each.size_bytes for each in bins)
        self._context.log(
            f"{plural(considered, 'file')} considered, {considered - inside} outside of the scope; "
            f"{plural(count, 'file')} ({_megabytes(size)}) to rewrite in {plural(len(bins), 'bin')}"
        )

    # --- doing it ---------------------------------------------------------------------------------------------------

    def _commit(self, batch: Sequence[Bin]) -> None:
        """Stage the bins and commit those that still hold; the files of the others are planned again."""
        memory = Memory()
        started = False

        def plan(tx: Transaction) -> Change:
            nonlocal started
            snapshot = tx.snapshot
            assert snapshot is not None
            holds = memory.begin(rules_at(snapshot))
            if not started:
                # Bins come from an earlier version; files that are gone since then are not worth staging.
                keys = [each.keys(snapshot.uri) for each in batch]
                live = live_keys(snapshot, keys)
                bins = [each for each, wanted in zip(batch, keys, strict=True) if wanted <= live]
                memory.add(self._staged(snapshot, bins))
                started = True
            elif not holds:
                self._context.log("the table's rules changed: what was staged is dropped")
            live = live_keys(snapshot, [segment.inputs for segment in memory.segments])
            kept = memory.keep(BIN, live, ("", CARRIES_IDS))
            return self._change(tx, snapshot, kept)

        result = run_attempts(self._context, plan, memory=memory, clock=self._clock)
        committed = {path_of_key(key) for segment in memory.segments for key in segment.inputs}
        root = self._context.root
        self._left |= {path_of_key(key) for each in batch for key in each.keys(root)} - committed
        if result.status == "committed":
            self._committed.append(result)
            self._added_sizes += [file.size_bytes for segment in memory.segments for file in segment.files]
            added, removed = (self._sums()[name] for name in ("numAddedFiles", "numRemovedFiles"))
            self._context.log(f"version {result.version}: {removed} files have become {added} so far")

    def _sums(self) -> dict[str, int]:
        """Return the metrics of all commits so far."""
        return {name: sum(result.metrics[name] for result in self._committed) for name in _SUMMED}

    def _staged(self, snapshot: Snapshot, bins: Sequence[Bin]) -> list[Segment]:
        with self._context.step("rewrite"):
            segments = stage_bins(
                self._context, snapshot, bins, target_bytes=self._target_bytes, z_columns=self._order.columns
            )
        files = [file for segment in segments for file in segment.files]
        self._context.log(
            f"{plural(sum(each.files.num_rows for each in bins), 'file')} rewritten as {len(files)} "
            f"({plural(sum(file.num_records for file in files), 'row')}, "
            f"{_megabytes(sum(file.size_bytes for file in files))})"
        )
        return segments

    def _change(self, tx: Transaction, snapshot: Snapshot, kept: Sequence[Segment]) -> Change:
        keys = frozenset[str]().union(*(segment.inputs for segment in kept))
        live = snapshot.state.files.at_paths({path_of_key(key) for key in keys})
        removed = live.filter(pc.is_in(file_keys(live, snapshot.uri), value_set=pa.array(sorted(keys), pa.string())))
        tx.read_files(removed)
        if all(segment.fingerprint == CARRIES_IDS for segment in kept):
            tx.keep_row_ids()
        staged = [file for segment in kept for file in segment.files]
        added_bytes, removed_bytes = sum(file.size_bytes for file in staged), sum(removed.column("size").to_pylist())
        counts = (len(staged), added_bytes, removed.num_rows, removed_bytes, len(vectors_of(removed)))
        metrics = dict(zip(_SUMMED, counts, strict=True))
        return Change(
            operation="REORG" if self._optimize.purge else "OPTIMIZE",
            parameters=self._parameters(),
            staged=staged,
            removed=removed,
            metrics={**metrics, **size_metrics([file.size_bytes for file in staged])},
            add_fields=self._add_fields(kept, removed, snapshot.uri),
            data_change=False,
        )

    def _add_fields(self, kept: Sequence[Segment], removed: pa.Table, root: str) -> dict[str, Mapping[str, Any]]:
        """Return the fields of add actions, by path, that name the cubes of files."""
        if self._order.is_clustering:
            cubes = [(segment, cube_fields(self._order.columns, self._clock.unique_id())) for segment in kept]
        elif self._optimize.purge:
            clustered = removed.filter(pc.is_valid(removed.column("clustering_provider")))
            source_of = dict(zip(file_keys(clustered, root).to_pylist(), clustered.to_pylist(), strict=True))
            # A clustered file is in a bin of its own.
            cubes = [(each, kept_fields(source_of[key])) for each in kept for key in each.inputs if key in source_of]
        else:
            return {}
        return {file.path: fields for segment, fields in cubes for file in segment.files}

    def _parameters(self) -> dict[str, Any]:
        scope = self._optimize.partition_predicate
        predicate = predicate_parameter([] if scope is None else [scope])
        if self._optimize.purge:
            return {"predicate": predicate, "applyPurge": True}
        full = {"isFull": self._optimize.full} if self._order.is_clustering else {}
        return {"predicate": predicate, "auto": False, **self._order.parameters(), **full}

    def _result(self, considered: int, version: int) -> JobResult:
        sums, last = self._sums(), self._committed[-1] if self._committed else None
        return self._context.result(
            is_committed=last is not None,
            version=version if last is None else last.version,
            read_version=version if last is None else last.read_version,
            metrics={**sums, **size_metrics(self._added_sizes)},
            files={
                "considered": considered,
                "pruned": considered - sums["numRemovedFiles"],
                "rewritten": sums["numRemovedFiles"],
                "added": sums["numAddedFiles"],
                "removed": sums["numRemovedFiles"],
            },
            attempts=1 + sum(result.attempts - 1 for result in self._committed),
        )


def target_of(snapshot: Snapshot) -> int:
    """Return the target size of the table's files: its property delta.targetFileSize, otherwise 256 MiB."""
    return snapshot.table_properties.target_file_bytes or TARGET_BYTES_DEFAULT


def live_keys(snapshot: Snapshot, keys: Iterable[frozenset[str]]) -> set[str]:
    """Return those of the keys whose files are live with this deletion vector."""
    wanted = frozenset[str]().union(*keys)
    live = snapshot.state.files.at_paths({path_of_key(key) for key in wanted})
    return set(wanted.intersection(file_keys(live, snapshot.uri).to_pylist()))


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1_000_000:,.1f} MB"
