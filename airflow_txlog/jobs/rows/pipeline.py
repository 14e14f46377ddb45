"""One attempt of DELETE, UPDATE or MERGE, over the memory of the attempts before it.

New files are scanned; the matches of files that an earlier attempt has scanned are recalled. All matches together
decide which rows leave, change and are inserted; only the missing part is staged. The invariant: the change of
an attempt is that of a run from the start on its snapshot, with the same materialized inputs. Source: soundness,
section 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic

import pyarrow as pa

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.wording import files_text, plural, size_text
from airflow_txlog.engine import Transaction
from airflow_txlog.engine.table.snapshot.files import file_keys, path_of_key, vector_of_key
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, plan_files
from airflow_txlog.jobs.files.stage import layout_of
from airflow_txlog.jobs.resume.attempts import Change, run_attempts
from airflow_txlog.jobs.resume.memory import NOTHING, FileMatches, LiveFile, Memory, rules_at
from airflow_txlog.jobs.resume.saved_work import SavedWork
from airflow_txlog.jobs.rows.checked_change import check_arguments, check_old_rows, checked
from airflow_txlog.jobs.rows.matches import Matches, files_outside
from airflow_txlog.jobs.rows.operation import Found, P, Prepared, RowOperation, StagedWork, file_counts
from airflow_txlog.jobs.rows.other_table import begin_samples
from airflow_txlog.jobs.rows.staging import stage_work
from airflow_txlog.jobs.sql.columns import check_names_are_free

_FILES_AT_ONCE = 16_384
# Reading more bytes than this takes long enough to be announced.
_MANY_BYTES = 100 * 1024 * 1024


def run_row_operation(context: JobContext, make: Callable[[JobContext], RowOperation[P]]) -> JobResult:
    """Run the operation in attempts until it lands; raises TxlogError.

    `make` is called once the inputs of an earlier try are known.
    """
    saved_work = SavedWork(context)
    memory = saved_work.load()
    attempts = RowAttempts(context, make(context), memory, saved_work)
    return run_attempts(context, attempts.plan, memory=memory, saved_work=saved_work)


class RowAttempts(Generic[P]):
    """The attempts of one operation, over a memory that others may share. Used by one thread."""

    def __init__(self, context: JobContext, operation: RowOperation[P], memory: Memory, saved_work: SavedWork) -> None:
        self._context = context
        self._operation = operation
        self._memory = memory
        self._saved_work = saved_work

    def plan(self, tx: Transaction) -> Change:
        """Find and stage; return the change to commit."""
        context, memory, snapshot = self._context, self._memory, tx.snapshot
        assert snapshot is not None
        # A scan adds columns with such names to the table's.
        check_names_are_free(snapshot.schema.names, f"Table {context.root}")
        if self._operation.writes_rows:
            # A table whose files cannot be written here is refused before the source's rows are staged.
            layout_of(context, snapshot)
        begin_samples(context, memory)
        sizes = [file.size_bytes for segment in memory.segments for file in segment.files]
        if not memory.begin(rules_at(snapshot)):
            context.log(
                f"the table's rules have changed: nothing that was found or staged before is used ({files_text(sizes)})"
            )
        prepared = self._operation.prepare(tx, snapshot, memory)
        check_arguments(context, tx, prepared.snapshot.delta_schema)
        _log_candidates(context, prepared)
        with context.step("find"):
            found = self._find(prepared)
            # A compaction of files that have no row of interest, and that lands first, does not concern us.
            read = prepared.candidates.select(["path", "stats", "deletion_vector"])
            outside = files_outside(read, found.matches.matched_files())
            tx.read_files(outside, matched=False)
        self._operation.check(prepared, found)
        check_old_rows(
            context,
            snapshot,
            prepared.scope,
            whole=prepared.whole,
            rows=found.removed.num_rows,
            updated=found.updated.num_rows,
            files=prepared.whole.num_rows + len(found.removed.positions),
        )
        context.log(
            f"{plural(found.updated.num_rows, 'row')} to update, {found.removed.num_rows - found.updated.num_rows} to "
            f"delete in {plural(len(found.removed.positions), 'file')}"
        )
        with context.step("rewrite"):
            work = stage_work(context, self._operation, prepared, found, memory)
        change = self._checked(tx, prepared, found, work)
        change = self._operation.completed(tx, prepared, change)
        if work.keeps_row_ids:
            tx.keep_row_ids()
        marks = self._operation.marks(prepared, found.matches) if work.num_inserted else {}
        if marks:
            tx.move_marks(marks)
        # Saved after it is checked: another try may know of the files from here on.
        self._saved_work.save(memory)
        return change

    def _checked(self, tx: Transaction, prepared: P, found: Found, work: StagedWork) -> Change:
        """Return the change with the results of all checks. Raises as `checked` does."""
        # In the order of the removed files.
        leaving = [found.removed.positions[row].num_rows for row in sorted(found.removed.positions)]
        return checked(
            self._context,
            tx,
            prepared.scope,
            Change(
                operation=self._operation.name,
                parameters=self._operation.parameters(prepared),
                staged=work.staged,
                removed=work.removed,
                adds=work.vectors.adds,
                vector_files=work.vectors.files,
                metrics=self._operation.metrics(prepared, found, work),
                files=file_counts(prepared, work),
            ),
            self._memory,
            new=[*work.images, *work.inserts],
            num_inserted=work.num_inserted,
            leaving=dict(enumerate(leaving, prepared.whole.num_rows)),
        )

    def _find(self, prepared: P) -> Found:
        """Return the matches in all candidates: recalled, or found by a scan."""
        context, memory = self._context, self._memory
        plan = plan_files(prepared.snapshot, prepared.candidates, context.spec.time_zone, context.executor.instants)
        matches: dict[int, FileMatches] = {}
        unknown: list[int] = []
        for number, file in _live_files(context, plan, prepared.candidates):
            rows = memory.recall(file)
            if rows is None:
                unknown.append(number)
            elif rows is not NOTHING:
                matches[number] = rows
        memory.num_recalled, memory.num_scanned = plan.num_files - len(unknown), len(unknown)
        if len(unknown) < plan.num_files:
            context.log(f"{plural(plan.num_files - len(unknown), 'file')} remembered, {len(unknown)} to look at")
        if unknown:
            to_look = plan if len(unknown) == plan.num_files else plan.take(unknown)
            looked = self._operation.find(prepared, to_look).files
            is_unknown = set(unknown)
            for number, file in _live_files(context, plan, prepared.candidates):
                if number in is_unknown:
                    memory.remember(file, looked.get(number, NOTHING))
            matches |= looked
        together = Matches(files=matches)
        removed, updates = together.acted(), prepared.updates
        updated = removed if removed.acting <= updates else together.acted(updates)
        return Found(plan=plan, matches=together, removed=removed, updated=updated)


def _live_files(context: JobContext, plan: FilePlan, files: pa.Table) -> Iterator[tuple[int, LiveFile]]:
    """Yield the planned files with their numbers."""
    for start in range(0, files.num_rows, _FILES_AT_ONCE):
        keys = file_keys(files.slice(start, _FILES_AT_ONCE), context.root).to_pylist()
        vectors = plan.table.column("deleted").slice(start, _FILES_AT_ONCE).to_pylist()
        for number, (key, deleted) in enumerate(zip(keys, vectors, strict=True), start):
            yield number, LiveFile(path=path_of_key(key), vector=vector_of_key(key), deleted=deleted)


def _log_candidates(context: JobContext, prepared: Prepared) -> None:
    total, whole, to_scan = prepared.snapshot.num_files, prepared.whole.num_rows, prepared.candidates.num_rows
    without_reading = f"{whole} removed without reading, " if whole else ""
    to_read = sum(prepared.candidates.column("size").to_pylist()) if to_scan else 0
    size = f" ({size_text(to_read)})" if to_read >= _MANY_BYTES else ""
    pruned = total - whole - to_scan
    context.log(f"{plural(total, 'file')} considered, {pruned} pruned, {without_reading}{to_scan} to scan{size}")
