"""Stage the files of an attempt: segments in memory that still hold are kept, the rest is written at once.

A touched file is copied without the rows that leave it, or stays and gets a deletion vector. New images are staged in
segments of a few input files, so that a later attempt drops little; inserts in segments by bucket of source rows. With
a change data feed, either every change of the attempt is in change files, or none is and no staged file holds a row
that was there before: a reader derives the changes of whole files. The invariant: after `stage_work` the memory's
segments hold exactly the rows that this attempt matched. Source: soundness B2; protocol, "Add CDC File"; delta-spark,
DeleteCommand, UpdateCommand, MergeIntoCommand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.change_rows import INSERT, UPDATE_POSTIMAGE
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine.table.snapshot.files import file_keys
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, parts_of, plan_files
from airflow_txlog.jobs.files.stage import NewRows, layout_of, stage
from airflow_txlog.jobs.files.staged import unstage
from airflow_txlog.jobs.resume.memory import CHANGES, COPY, IMAGES, INSERTS, JOINED, VECTORS, Memory, Segment, log_reuse
from airflow_txlog.jobs.rows.deletion_vectors import NewVectors, stage_vectors, uses_deletion_vectors
from airflow_txlog.jobs.rows.operation import Found, P, Prepared, RowOperation, StagedWork
from airflow_txlog.jobs.rows.tiny_files import joined_files

if TYPE_CHECKING:
    pass

_CHANGE_ROWS = ", change rows"


@dataclass(frozen=True, kw_only=True)
class LeavingRows:
    """The rows that leave their files: a plan with their positions, the files (rows of a table `FILES`), their keys.

    A file that leaves as a whole has no positions.
    """

    plan: FilePlan
    files: pa.Table
    keys: list[str]


def needs_change_rows(
    operation: RowOperation[P], prepared: P, found: Found, *, copies_rows: bool, inserts_rows: bool
) -> bool:
    """Return whether the commit needs change files. `copies_rows`: a staged file holds rows that stay as they are.

    Changed rows are written with their old and new images, and deletes and inserts of one commit together, as
    delta-spark does.
    """
    if not prepared.snapshot.table_properties.change_data_feed:
        return False
    leaves = bool(found.removed.num_rows or prepared.whole.num_rows) or operation.records_inserts_alone
    return copies_rows or found.updated.num_rows > 0 or (leaves and inserts_rows)


def with_change_rows(fingerprint: str) -> str:
    """Return the fingerprint of inserts with change rows, which differ from those without."""
    return fingerprint + _CHANGE_ROWS


def without_change_rows(fingerprint: str) -> str:
    """Return the fingerprint without the suffix of `with_change_rows`."""
    return fingerprint.removesuffix(_CHANGE_ROWS)


def leaving_rows(context: JobContext, prepared: Prepared, found: Found) -> LeavingRows:
    """Return all rows that leave their files in this attempt."""
    touched = sorted(found.removed.positions)
    files = prepared.candidates.take(pa.array(touched, pa.int64()))
    tables = [found.removed.plan_with_clauses(found.plan, touched).table]
    if prepared.whole.num_rows:
        tables.append(
            plan_files(prepared.snapshot, prepared.whole, context.spec.time_zone, context.executor.instants).table
        )
        files = pa.concat_tables([files, prepared.whole])
    plan = replace(found.plan, table=pa.concat_tables(tables))
    return LeavingRows(plan=plan, files=files, keys=file_keys(files, context.root).to_pylist())


@dataclass(kw_only=True)
class _Missing:
    """The work that no segment in memory holds: plan rows to copy, groups of plan rows with new images, buckets.

    With change files, `leaving` has all rows that leave their files, and `changes` the groups of its files without
    change rows.
    """

    copies: list[int] = field(default_factory=list)
    images: list[list[int]] = field(default_factory=list)
    inserts: Mapping[int, str] = field(default_factory=dict)
    leaving: LeavingRows | None = None
    changes: list[list[int]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.copies or self.images or self.inserts or self.changes)

    @property
    def first_image(self) -> int:
        """The segment of the first group of images: buckets come before the groups."""
        return 1 + max(self.inserts, default=-1)

    @property
    def first_change(self) -> int:
        """The segment of the first group of change rows."""
        return self.first_image + len(self.images)


def stage_work(
    context: JobContext, operation: RowOperation[P], prepared: P, found: Found, memory: Memory
) -> StagedWork:
    """Stage what is missing.

    Raises PartitionMismatch for a new row outside of the scope, after deleting what was staged just now; and as
    `stage`.
    """
    # What was joined of them is counted with its parts.
    earlier = [segment for segment in memory.segments if segment.kind != JOINED]
    num_dropped = len(memory.dropped)
    numbers = sorted(found.removed.positions)
    touched = prepared.candidates.take(pa.array(numbers, pa.int64()))
    keys = dict(zip(numbers, file_keys(touched, context.root).to_pylist(), strict=True))
    copied = [] if uses_deletion_vectors(prepared.snapshot) else found.removed.partly(found.plan)
    missing = _missing(context, operation, prepared, found, memory, keys, copied)
    staged = [] if missing.is_empty else _stage(context, operation, prepared, found, missing)
    memory.add(_segments(missing, staged, keys))
    vectors = _vectors(context, prepared, found, memory)
    context.log(_summary(staged, vectors))
    log_reuse(context, memory, earlier, memory.dropped[num_dropped:])
    work = StagedWork(
        copies=_files(memory, COPY),
        images=_files(memory, IMAGES),
        inserts=_files(memory, INSERTS),
        removed=pa.concat_tables([prepared.whole, touched]),
        vectors=vectors,
        changes=[
            file for segment in memory.segments if segment.kind != JOINED for file in segment.files if file.is_change
        ],
    )
    return joined_files(context, prepared.snapshot, work, memory) if operation.joins_files else work


def _vectors(context: JobContext, prepared: Prepared, found: Found, memory: Memory) -> NewVectors:
    if not uses_deletion_vectors(prepared.snapshot):
        # It may have been switched off since the last attempt.
        memory.keep(VECTORS, ())
        return NewVectors()
    return stage_vectors(context, prepared.snapshot, prepared.candidates, found.plan, found.removed, memory)


def _missing(
    context: JobContext,
    operation: RowOperation[P],
    prepared: P,
    found: Found,
    memory: Memory,
    keys: Mapping[int, str],
    copies: Sequence[int],
) -> _Missing:
    copied = _inputs(memory.keep(COPY, {keys[row] for row in copies}))
    imaged = _inputs(memory.keep(IMAGES, {keys[row] for row in found.updated.positions}))
    new_images = [row for row in sorted(found.updated.positions) if keys[row] not in imaged]
    wanted = operation.inserts_wanted(prepared, found.matches)
    leaving = None
    if needs_change_rows(operation, prepared, found, copies_rows=bool(copies), inserts_rows=bool(wanted)):
        leaving = leaving_rows(context, prepared, found)
        wanted = {bucket: with_change_rows(fingerprint) for bucket, fingerprint in wanted.items()}
    inserted = {segment.fingerprint for segment in memory.keep(INSERTS, (), set(wanted.values()))}
    return _Missing(
        copies=[row for row in copies if keys[row] not in copied],
        images=_grouped(context, prepared, prepared.candidates, new_images),
        inserts={bucket: fingerprint for bucket, fingerprint in wanted.items() if fingerprint not in inserted},
        leaving=leaving,
        changes=_new_changes(context, prepared, memory, leaving),
    )


def _new_changes(
    context: JobContext, prepared: Prepared, memory: Memory, leaving: LeavingRows | None
) -> list[list[int]]:
    """Return groups of files (rows of `leaving`) whose change rows no segment holds."""
    known = _inputs(memory.keep(CHANGES, () if leaving is None else leaving.keys))
    if leaving is None:
        return []
    rows = [row for row, key in enumerate(leaving.keys) if key not in known]
    return _grouped(context, prepared, leaving.files, rows)


def _inputs(segments: Sequence[Segment]) -> frozenset[str]:
    return frozenset[str]().union(*(segment.inputs for segment in segments))


def _grouped(context: JobContext, prepared: Prepared, files: pa.Table, rows: Sequence[int]) -> list[list[int]]:
    """Return groups of files (numbers of rows of `files`) for one segment each.

    A group has one partition and few files, and there is at least one group for each task.
    """
    if not rows:
        return []
    # As many for each task: a segment is the work of one.
    turns = -(-len(rows) // (context.limits.segment_files * context.parallelism))
    most = -(-len(rows) // (turns * context.parallelism))
    partitions = prepared.scope.partitions.tuples_of(files.take(pa.array(rows, pa.int64())))
    groups: dict[tuple[str | None, ...], list[list[int]]] = {}
    for row, partition in zip(rows, partitions, strict=True):
        of_partition = groups.setdefault(partition, [[]])
        if len(of_partition[-1]) >= most:
            of_partition.append([])
        of_partition[-1].append(row)
    return [group for of_partition in groups.values() for group in of_partition]


def _stage(
    context: JobContext, operation: RowOperation[P], prepared: P, found: Found, missing: _Missing
) -> list[StagedFile]:
    new, copied = _new_rows(context, operation, prepared, found, missing)
    copies = [row for row in missing.copies if row not in copied]
    staged = stage(
        context,
        layout_of(context, prepared.snapshot),
        new,
        copies=found.removed.plan(found.plan, copies) if copies else None,
        leaving=_leaving_plan(missing),
        updates=prepared.updates,
    )
    try:
        prepared.scope.check_inside(file for file in staged if file.source is None)
        _check_images(missing, found, staged)
    except BaseException:
        unstage(context.store, staged)
        raise
    return staged


def _check_images(missing: _Missing, found: Found, staged: Sequence[StagedFile]) -> None:
    """Raise JobError unless each updated row has one new image: its old one leaves with the same commit."""
    counts: Counter[int] = Counter()
    for file in staged:
        if file.source is None and not file.is_change:
            counts[file.segment or 0] += file.num_records
    for number, group in enumerate(missing.images, missing.first_image):
        wanted = sum(found.updated.positions[row].num_rows for row in group)
        if counts[number] != wanted:
            raise JobError(
                f"{wanted} updated rows came back from Spark as {counts[number]} new ones, so rows would be lost or "
                "doubled. Nothing was committed, and what was staged is deleted. Report this as a bug."
            )


def _new_rows(
    context: JobContext, operation: RowOperation[P], prepared: P, found: Found, missing: _Missing
) -> tuple[list[tuple[NewRows, str | None]], frozenset[int]]:
    """Return inserts and new images, each with its change type, and the files (plan rows) that are copied with them."""
    new: list[tuple[NewRows, str | None]] = []
    copied = frozenset[int]()
    is_recorded = missing.leaving is not None
    if missing.inserts:
        inserts = operation.inserts(prepared, found.matches, list(missing.inserts))
        new.append((inserts, INSERT if is_recorded else None))
    if missing.images:
        segment_of = _numbered(missing.images, missing.first_image)
        plan = found.updated.plan_with_clauses(found.plan, segment_of)
        rows = sorted(segment_of)
        copied = _copied_with_images(context, found.plan, missing.copies, segment_of)
        plan = plan.with_column("segment", [segment_of[row] for row in rows])
        images = operation.images(prepared, plan.with_column("is_copied", [row in copied for row in rows]))
        new.append((images, UPDATE_POSTIMAGE if is_recorded else None))
        copied = copied if images.copies_files else frozenset()
    return new, copied


def _copied_with_images(
    context: JobContext, plan: FilePlan, copies: Sequence[int], imaged: Collection[int]
) -> frozenset[int]:
    """Return the files (plan rows) to copy where they are read for images; not the large ones, which several tasks
    copy.
    """
    sizes = [plan.table.column("size_bytes")[row].as_py() or 0 for row in copies]
    parts = parts_of(context.parallelism, sizes)
    return frozenset(row for row, count in zip(copies, parts, strict=True) if count == 1 and row in imaged)


def _leaving_plan(missing: _Missing) -> FilePlan | None:
    """Return the leaving rows of which no segment has change rows; None if there are none."""
    if missing.leaving is None or not missing.changes:
        return None
    segment_of = _numbered(missing.changes, missing.first_change)
    rows = sorted(segment_of)
    return missing.leaving.plan.take(rows).with_column("segment", [segment_of[row] for row in rows])


def _numbered(groups: Sequence[Sequence[int]], first: int) -> dict[int, int]:
    """Return the segment of each row of the groups."""
    return {row: first + number for number, group in enumerate(groups) for row in group}


def _segments(missing: _Missing, staged: Sequence[StagedFile], keys: Mapping[int, str]) -> list[Segment]:
    """Return the staged files as segments; also those without a file, so that they are not staged again."""
    copies: dict[int, list[StagedFile]] = {row: [] for row in missing.copies}
    new: dict[int, list[StagedFile]] = {}
    for file in staged:
        if file.source is not None:
            copies[file.source].append(file)
        else:
            new.setdefault(file.segment or 0, []).append(file)
    leaving = {} if missing.leaving is None else dict(enumerate(missing.leaving.keys))
    return [
        *(Segment(kind=COPY, inputs=frozenset({keys[row]}), files=tuple(files)) for row, files in copies.items()),
        *_segments_of(IMAGES, missing.images, keys, missing.first_image, new),
        *_segments_of(CHANGES, missing.changes, leaving, missing.first_change, new),
        *(
            Segment(kind=INSERTS, inputs=frozenset(), fingerprint=fingerprint, files=tuple(new.get(bucket, ())))
            for bucket, fingerprint in missing.inserts.items()
        ),
    ]


def _segments_of(
    kind: str, groups: Sequence[Sequence[int]], keys: Mapping[int, str], first: int, new: Mapping[int, list[StagedFile]]
) -> list[Segment]:
    """Return a segment for each group of files, with the files that were staged under its number."""
    return [
        Segment(kind=kind, inputs=frozenset(keys[row] for row in group), files=tuple(new.get(first + number, ())))
        for number, group in enumerate(groups)
    ]


def _files(memory: Memory, kind: str) -> list[StagedFile]:
    """Return the table's new files of this kind."""
    files = (file for segment in memory.segments if segment.kind == kind for file in segment.files)
    return [file for file in files if not file.is_change]


def _summary(staged: Sequence[StagedFile], vectors: NewVectors) -> str:
    rows = sum(file.num_records for file in staged)
    added = f"; {plural(len(vectors.adds), 'file')} with a new deletion vector" if vectors.adds else ""
    return f"staged {plural(len(staged), 'file')} with {plural(rows, 'row')}{added}"
