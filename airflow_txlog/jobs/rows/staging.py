"""Stage the files of an attempt: segments in memory that still hold are kept, the rest is written at once.

A touched file is copied without the rows that leave it, or stays and gets a deletion vector. New images are staged in
segments of a few input files, so that a later attempt drops little; inserts in segments by bucket of source rows. With
a change data feed, either every change of the attempt is in change files, or none is and no staged file holds a row
that was in the table before: a reader derives the changes of whole files. The invariant: after `stage_work` the
memory's segments hold exactly the rows that this attempt matched. Source: soundness B2; protocol, "Add CDC File";
delta-spark, DeleteCommand, UpdateCommand, MergeIntoCommand.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic

import pyarrow as pa

from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.parquet.reading import SMALL_BYTES
from airflow_txlog.datafiles.parquet.writing import TARGET_BYTES_DEFAULT, Layout
from airflow_txlog.datafiles.staged_files import INSERT, UPDATE_POSTIMAGE, StagedFile
from airflow_txlog.engine.table.schema.features import writer_features
from airflow_txlog.engine.table.snapshot.files import file_keys
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.kept_ids import CARRIES_IDS, with_base_ids, with_ids
from airflow_txlog.jobs.files.scan import FilePlan, parts_of, plan_files
from airflow_txlog.jobs.files.stage import MOST_SAMPLES, NewRows, Staged, layout_of, stage
from airflow_txlog.jobs.files.staged import unstage
from airflow_txlog.jobs.resume.memory import CHANGES, COPY, IMAGES, INSERTS, JOINED, VECTORS, Memory, Segment, log_reuse
from airflow_txlog.jobs.rows.deletion_vectors import NewVectors, stage_vectors, uses_deletion_vectors
from airflow_txlog.jobs.rows.missing_work import LeavingRows, MissingWork
from airflow_txlog.jobs.rows.operation import Found, P, RowOperation, StagedWork
from airflow_txlog.jobs.rows.tiny_files import joined_files

_CHANGE_ROWS = ", change rows"
# A segment of images with the other rows of their file, which has no copy then.
_IN_PLACE = ", in place"


def without_change_rows(fingerprint: str) -> str:
    """Return the fingerprint of inserts, whether they are written with change rows or without."""
    return fingerprint.removesuffix(_CHANGE_ROWS)


def stage_work(
    context: JobContext, operation: RowOperation[P], prepared: P, found: Found, memory: Memory
) -> StagedWork:
    """Stage the missing files.

    Raises PartitionMismatch for a new row outside of the scope, after deleting the files that it has just staged; and
    as `stage`.
    """
    return _Staging(context, operation, prepared, found, memory).run()


class _Staging(Generic[P]):
    """The staging of one attempt."""

    def __init__(
        self, context: JobContext, operation: RowOperation[P], prepared: P, found: Found, memory: Memory
    ) -> None:
        self._context, self._operation, self._prepared = context, operation, prepared
        self._found, self._memory = found, memory
        self._rows = sorted(found.removed.positions)
        """The touched files, as rows of the plan."""
        self._touched = prepared.candidates.take(pa.array(self._rows, pa.int64()))
        self._row_ids = prepared.row_ids
        # Files that were staged for a table whose rows kept no ids are staged again.
        self._carries = "" if self._row_ids is None else CARRIES_IDS
        self._in_place = self._carries + _IN_PLACE
        self._keys = dict(zip(self._rows, file_keys(self._touched, context.root).to_pylist(), strict=True))

    def run(self) -> StagedWork:
        context, prepared, memory = self._context, self._prepared, self._memory
        # The parts of a joined file are counted, and not the file.
        earlier = [segment for segment in memory.segments if segment.kind != JOINED]
        num_dropped = len(memory.dropped)
        missing = self._missing()
        staged, judged, elsewhere = Staged([], []) if missing.is_empty else self._stage(missing)
        if elsewhere:
            context.saved_inputs.elsewhere = tuple(elsewhere)
        memory.add(missing.segments(staged, judged, self._keys, self._carries, self._in_place))
        if context.takes_samples:
            context.saved_inputs.elsewhere += tuple(self._samples())
        vectors = self._vectors()
        rows, added = sum(file.num_records for file in staged), len(vectors.adds)
        with_vector = f"; {plural(added, 'file')} with a new deletion vector" if added else ""
        context.log(f"staged {plural(len(staged), 'file')} with {plural(rows, 'row')}{with_vector}")
        log_reuse(context, memory, earlier, memory.dropped[num_dropped:])
        held = [(segment.kind, file) for segment in memory.segments if segment.kind != JOINED for file in segment.files]
        copies, images, inserts = (
            [file for kind, file in held if kind == wanted and not file.is_change] for wanted in (COPY, IMAGES, INSERTS)
        )
        work = StagedWork(
            copies=copies,
            images=images,
            inserts=inserts,
            removed=pa.concat_tables([prepared.whole, self._touched]),
            num_rewritten=sum(len(each.inputs) for each in memory.segments if each.kind == COPY and each.files)
            + sum(file.num_kept is not None for file in images),
            vectors=vectors,
            changes=[file for _, file in held if file.is_change],
            keeps_row_ids=self._row_ids is not None,
        )
        joins = self._operation.joins_files and not context.is_dry_run
        return joined_files(context, prepared.snapshot, lambda: self._layout, work, memory) if joins else work

    @functools.cached_property
    def _layout(self) -> Layout:
        return layout_of(self._context, self._prepared.snapshot)

    def _vectors(self) -> NewVectors:
        prepared, found = self._prepared, self._found
        if not uses_deletion_vectors(prepared.snapshot):
            # It may have been switched off since the last attempt.
            self._memory.keep(VECTORS, ())
            return NewVectors()
        return stage_vectors(
            self._context, prepared.snapshot, prepared.candidates, found.plan, found.removed, self._memory
        )

    def _missing(self) -> MissingWork:
        prepared, found, memory, keys = self._prepared, self._found, self._memory, self._keys
        copies = [] if uses_deletion_vectors(prepared.snapshot) else found.removed.partly(found.plan)
        copied = _inputs(memory.keep(COPY, {keys[row] for row in copies}, {self._carries}))
        # A deletion vector hides rows of a file that stays, so no other file may hold those that it does not hide.
        imaging = {self._carries} if uses_deletion_vectors(prepared.snapshot) else {self._carries, self._in_place}
        images = memory.keep(IMAGES, {keys[row] for row in found.updated.positions}, imaging)
        imaged = _inputs(images)
        copied |= _inputs([segment for segment in images if segment.fingerprint == self._in_place])
        wanted = self._operation.inserts_wanted(prepared, found.matches)
        leaving = None
        if self._needs_change_rows(copies_rows=bool(copies), inserts_rows=bool(wanted)):
            leaving = self._leaving_rows()
            # Inserts with change rows differ from those without.
            wanted = {bucket: fingerprint + _CHANGE_ROWS for bucket, fingerprint in wanted.items()}
        inserted = {segment.fingerprint for segment in memory.keep(INSERTS, (), set(wanted.values()))}
        changed = _inputs(memory.keep(CHANGES, () if leaving is None else leaving.keys))
        changes = [] if leaving is None else [row for row, key in enumerate(leaving.keys) if key not in changed]
        new_images = [row for row in sorted(found.updated.positions) if keys[row] not in imaged]
        alone = [row for row in copies if keys[row] not in copied]
        joint = self._joint(alone)
        are_joint = frozenset(itertools.chain.from_iterable(joint))
        return MissingWork(
            copies=[row for row in alone if row not in are_joint],
            joint=joint,
            images=self._grouped(prepared.candidates, new_images),
            inserts={bucket: fingerprint for bucket, fingerprint in wanted.items() if fingerprint not in inserted},
            leaving=leaving,
            changes=[] if leaving is None else self._grouped(leaving.files, changes),
        )

    def _needs_change_rows(self, *, copies_rows: bool, inserts_rows: bool) -> bool:
        """Return whether the commit needs change files. `copies_rows`: a staged file holds unchanged rows.

        Changed rows are written with their old and new images, and deletes and inserts of one commit together, as
        delta-spark does.
        """
        prepared, found = self._prepared, self._found
        if not prepared.snapshot.table_properties.change_data_feed or self._context.takes_samples:
            return False
        leaves = bool(found.removed.num_rows or prepared.whole.num_rows) or self._operation.records_inserts_alone
        return copies_rows or found.updated.num_rows > 0 or (leaves and inserts_rows)

    def _samples(self) -> Sequence[StagedFile]:
        """Return files with the first rows that leave and change, before and after, for a dry run with samples."""
        prepared, found = self._prepared, self._found
        few = found.matches.first(MOST_SAMPLES, prepared.updates)
        first = Found(plan=found.plan, matches=few, removed=few.acted(), updated=few.acted(prepared.updates))
        part = replace(prepared, whole=prepared.whole.slice(0, 0))
        return _Staging(self._context, self._operation, part, first, self._memory)._staged_samples()

    def _staged_samples(self) -> Sequence[StagedFile]:
        leaving, prepared = self._leaving_rows(), self._prepared
        missing = MissingWork(
            copies=[],
            images=self._grouped(prepared.candidates, sorted(self._found.updated.positions)),
            inserts={},
            leaving=leaving,
            changes=self._grouped(leaving.files, range(len(leaving.keys))),
        )
        new, _ = self._new_rows(missing)
        layout = with_ids(self._layout, self._row_ids)
        return stage(self._context, layout, new, leaving=missing.leaving_plan(), updates=prepared.updates).elsewhere

    def _leaving_rows(self) -> LeavingRows:
        context, prepared, found = self._context, self._prepared, self._found
        files = self._touched
        tables = [found.removed.plan_with_clauses(found.plan, self._rows).table]
        if prepared.whole.num_rows:
            whole = plan_files(prepared.snapshot, prepared.whole, context.spec.time_zone, context.executor.instants)
            tables.append(whole.table)
            files = pa.concat_tables([files, prepared.whole])
        plan = replace(found.plan, table=pa.concat_tables(tables, promote_options="default"))
        return LeavingRows(plan=plan, files=files, keys=file_keys(files, context.root).to_pylist())

    def _joint(self, copies: Sequence[int]) -> list[list[int]]:
        """Return groups of tiny files (plan rows) that are better copied into one file each; none if they are few."""
        context, limits = self._context, self._context.limits
        # Rows of a copy have ids that a joined file would lose.
        keeps_files = "rowTracking" in writer_features(self._prepared.snapshot.protocol) or context.is_dry_run
        target_bytes = self._prepared.snapshot.table_properties.target_file_bytes or TARGET_BYTES_DEFAULT
        most = min(limits.copied_together, target_bytes // SMALL_BYTES)
        if keeps_files or most < 2:
            return []
        sizes = self._found.plan.table.column("size_bytes")
        tiny = [row for row in copies if 0 < (sizes[row].as_py() or 0) <= SMALL_BYTES]
        groups = self._grouped(self._prepared.candidates, tiny, most)
        return groups if len(tiny) - len(groups) >= limits.joined_files_fewer else []

    def _grouped(self, files: pa.Table, rows: Sequence[int], most_files: int | None = None) -> list[list[int]]:
        """Return groups of files (numbers of rows of `files`) for one segment each.

        A group has one partition and few files, by default as many as images, and there is at least one group for each
        task.
        """
        if not rows:
            return []
        # As many groups for each task, because a segment is the work of one.
        parallelism = self._context.parallelism
        turns = -(-len(rows) // ((most_files or self._context.limits.segment_files) * parallelism))
        most = -(-len(rows) // (turns * parallelism))
        partitions = self._prepared.scope.partitions.tuples_of(files.take(pa.array(rows, pa.int64())))
        groups: dict[tuple[str | None, ...], list[list[int]]] = {}
        for row, partition in zip(rows, partitions, strict=True):
            of_partition = groups.setdefault(partition, [[]])
            if len(of_partition[-1]) >= most:
                of_partition.append([])
            of_partition[-1].append(row)
        return [group for of_partition in groups.values() for group in of_partition]

    def _stage(self, missing: MissingWork) -> Staged:
        context, found = self._context, self._found
        new, copied = self._new_rows(missing)
        copies = [row for row in missing.copies if row not in copied]
        segment_of = missing.segment_of_joint
        numbers = [segment_of[row] for row in sorted(segment_of)]
        joint = found.removed.plan(found.plan, segment_of).with_column("segment", numbers)
        staged = stage(
            context,
            with_ids(self._layout, self._row_ids),
            new,
            copies=self._with_base_ids(found.removed.plan(found.plan, copies)) if copies else None,
            joint=joint,
            leaving=missing.leaving_plan(),
            updates=self._prepared.updates,
        )
        try:
            new_files = [f for f in staged.files if f.source is None and (f.segment or 0) < missing.first_joint]
            self._prepared.scope.check_inside(new_files)
            self._check_images(missing, staged.files)
            _check_joint(joint, staged.files)
        except BaseException:
            unstage(context.store, staged.files)
            raise
        return staged

    def _check_images(self, missing: MissingWork, staged: Sequence[StagedFile]) -> None:
        """Raise JobError unless each updated row has one new image: its old one leaves with the same commit."""
        counts: Counter[int] = Counter()
        for file in staged:
            if (file.source is None or file.num_kept is not None) and not file.is_change:
                counts[file.segment or 0] += file.num_records - (file.num_kept or 0)
        for number, group in enumerate(missing.images, missing.first_image):
            wanted = sum(self._found.updated.positions[row].num_rows for row in group)
            if counts[number] != wanted:
                raise JobError(
                    f"{wanted} updated rows came back from Spark as {counts[number]} new ones, so rows would be lost "
                    "or doubled. Nothing was committed, and what was staged is deleted. Report this as a bug."
                )

    def _new_rows(self, missing: MissingWork) -> tuple[list[tuple[NewRows, str | None]], frozenset[int]]:
        """Return inserts and images, each with its change type, and the files (plan rows) that are copied with them."""
        prepared, found, operation = self._prepared, self._found, self._operation
        new: list[tuple[NewRows, str | None]] = []
        copied = frozenset[int]()
        is_recorded = missing.leaving is not None
        if missing.inserts:
            inserts = operation.inserts(prepared, found.matches, list(missing.inserts))
            new.append((inserts, INSERT if is_recorded or self._context.takes_samples else None))
        if missing.images:
            segment_of = missing.segment_of_images
            rows = sorted(segment_of)
            # Large files are copied by several tasks, and therefore not by the one that reads them for images.
            sizes = [found.plan.table.column("size_bytes")[row].as_py() or 0 for row in missing.copies]
            parts = zip(missing.copies, parts_of(self._context.parallelism, sizes), strict=True)
            copied = frozenset(row for row, count in parts if count == 1 and row in segment_of)
            plan = found.updated.plan_with_clauses(found.plan, rows)
            plan = plan.with_column("segment", [segment_of[row] for row in rows])
            # Other clauses may delete rows of the same files.
            removed, updated = found.removed.positions, found.updated.positions
            differ = [removed[row].num_rows != updated[row].num_rows for row in rows]
            leaving = [removed[row].data if more else None for row, more in zip(rows, differ, strict=True)]
            plan = plan.with_column("leaving", leaving)
            plan = plan.with_column("is_copied", [row in copied for row in rows])
            images = operation.images(prepared, self._with_base_ids(plan))
            new.append((images, UPDATE_POSTIMAGE if is_recorded else None))
            copied = copied if images.copies_files else frozenset()
        return new, copied

    def _with_base_ids(self, plan: FilePlan) -> FilePlan:
        return plan if self._row_ids is None else with_base_ids(plan, self._prepared.candidates)


def _inputs(segments: Sequence[Segment]) -> frozenset[str]:
    return frozenset[str]().union(*(segment.inputs for segment in segments))


def _check_joint(plan: FilePlan, staged: Sequence[StagedFile]) -> None:
    """Raise JobError unless the files of each segment whose rows the log counts have all of its other rows."""
    wanted: dict[int, int | None] = {}
    for segment, count in zip(plan.table.column("segment").to_pylist(), plan.staying_row_counts(), strict=True):
        before = wanted.get(segment, 0)
        wanted[segment] = None if before is None or count is None else before + count
    found: Counter[int | None] = Counter()
    for file in staged:
        found[file.segment] += file.num_records if file.source is None else 0
    for segment, count in wanted.items():
        if count is not None and found[segment] != count:
            raise JobError(
                f"Of {count} rows that stay, {found[segment]} came out when tiny files were copied into one. Nothing "
                "was committed, and what was staged is deleted. Report this as a bug."
            )
