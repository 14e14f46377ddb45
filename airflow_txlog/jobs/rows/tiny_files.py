"""Tiny staged files of one partition become few: those of a write, and those of a change and its change files.

The number of rows that a task will write is known only after it ran. If the result was many tiny files, a second job
reads them again, which costs little. The files of an attempt stay in segments by their inputs, so that the next attempt
keeps the valid ones. A joined file is made of segments for one commit, and is kept only for the very same parts. The
invariants: joined files hold exactly the rows of their parts, and either a part or the joined file is in the commit.
Source: soundness A17, B2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.compaction import CompactTask
from airflow_txlog.datafiles.tasks.plans import Bins, pack_bins, plan_rows, plan_table
from airflow_txlog.datafiles.tasks.scan_and_write import RECORD_SCHEMA
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema.features import writer_features
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import task_count
from airflow_txlog.jobs.files.stage import staged_of
from airflow_txlog.jobs.files.staged import unstage
from airflow_txlog.jobs.resume.memory import JOINED, Memory, Segment
from airflow_txlog.jobs.rows.operation import StagedWork
from airflow_txlog.storage.limits import weight_of

# A file below an eighth of its target is tiny, and so is none above this.
TINY_BYTES = 8 * 1024 * 1024


def joined(context: JobContext, layout: Layout, staged: Sequence[StagedFile]) -> list[StagedFile]:
    """Return the staged files of new rows, with many tiny ones joined if that is worth a job.

    Raises as `staged_of` does, and then every file is deleted.
    """
    of_table = [file for file in staged if not file.is_change]
    bins = bins_of(of_table, layout.target_bytes, lambda file: (partition_of(file), file.segment))
    before = sum(map(len, bins))
    if before - len(bins) < context.limits.joined_files_fewer or context.is_dry_run:
        return list(staged)
    try:
        made = joined_bins(context, layout, bins)
    except BaseException:
        unstage(context.store, staged)
        raise
    parts = [file for files in bins for file in files]
    gone = {file.path for file in parts}
    unstage(context.store, parts)
    context.log(f"{plural(before, 'tiny file')} joined into {len(made)}")
    return [*(file for file in staged if file.path not in gone), *made]


def partition_of(file: StagedFile) -> Hashable:
    return frozenset(file.partition_values.items())


def bins_of(
    staged: Sequence[StagedFile], target_bytes: int, key: Callable[[StagedFile], Hashable]
) -> list[list[StagedFile]]:
    """Return groups of two or more tiny files that may become one: of one key, up to the target size together."""
    tiny_bytes = min(TINY_BYTES, target_bytes // 8)
    bins: list[list[StagedFile]] = []
    last: dict[Hashable, tuple[int, list[StagedFile]]] = {}
    for file in staged:
        if file.size_bytes >= tiny_bytes:
            continue
        place = key(file)
        size, files = last.get(place, (target_bytes, []))
        if size + file.size_bytes > target_bytes:
            size, files = 0, []
            bins.append(files)
        files.append(file)
        last[place] = (size + file.size_bytes, files)
    return [files for files in bins if len(files) > 1]


def joined_bins(context: JobContext, layout: Layout, bins: Sequence[Sequence[StagedFile]]) -> list[StagedFile]:
    """Write one file for each bin, of the segment of its first file, in the order of the bins. The parts stay.

    Raises as `staged_of` does, and then no file is made.
    """
    sizes = [sum(file.size_bytes for file in files) for files in bins]
    order = pack_bins(sizes, task_count(context.parallelism, sizes))
    plan = _plan([(file, number) for number, files in enumerate(bins) for file in files])
    first = [sum(len(files) for files in bins[:number]) for number in range(len(bins))]
    rows = [
        [row for number in numbers for row in range(first[number], first[number] + len(bins[number]))]
        for numbers in order
    ]
    weight = weight_of(plan.column("size_bytes").to_pylist(), is_remote=context.store.is_remote)
    packed = Bins(store=layout.store, inline=tuple(plan_rows(plan, each) for each in rows), weight=weight)
    task = CompactTask(bins=packed, layout=layout)
    made = staged_of(context, context.executor.run([task], RECORD_SCHEMA, "join tiny files"))
    found, wanted = sum(file.num_records for file in made), sum(plan.column("num_records").to_pylist())
    if found != wanted or len(made) != len(bins):
        unstage(context.store, made)
        raise JobError(
            f"Of {wanted} rows in {plan.num_rows} tiny files {found} came out when they were joined. Nothing was "
            "committed; this is a fault of this engine, please report it."
        )
    # A task numbers its files by the bin; the rows' own segments are unchanged.
    made.sort(key=lambda file: file.segment or 0)
    return [
        replace(file, segment=files[0].segment, is_change=layout.is_change)
        for file, files in zip(made, bins, strict=True)
    ]


def _plan(files: Sequence[tuple[StagedFile, int]]) -> pa.Table:
    """Return a plan of staged files, each with the number of its bin as the segment."""
    return plan_table(
        {
            "index": range(len(files)),
            "path": [file.store_path for file, _ in files],
            "size_bytes": [file.size_bytes for file, _ in files],
            "num_records": [file.num_records for file, _ in files],
            "directory": [file.store_path.rpartition("/")[0] for file, _ in files],
            "partition_values": [list(file.partition_values.items()) for file, _ in files],
            "segment": [segment for _, segment in files],
        }
    )


# The most bytes that are read and written once more for a commit: about 10 ms a mebibyte. A larger bound slows down a
# change that takes a few tenths of a second by half.
MOST_BYTES = 4 * 1024 * 1024


def joined_files(
    context: JobContext, snapshot: Snapshot, layout_of_new: Callable[[], Layout], work: StagedWork, memory: Memory
) -> StagedWork:
    """Return the work with the tiny files joined in each partition that has new rows, and its change files too.

    `layout_of_new` returns the layout of the table's new files, and refuses a table in which none can be written: it is
    called only if there are new rows. Raises as `joined_bins` does, and then nothing is joined: what was staged is in
    the memory.
    """
    bins = _bins(snapshot, layout_of_new, work)
    wanted = {_fingerprint(files): (layout, files) for layout, files in bins}
    known = {segment.fingerprint: segment for segment in memory.keep(JOINED, (), set(wanted))}
    for kind in {each.is_change: each for each, _ in bins}.values():
        missing = {
            fingerprint: files
            for fingerprint, (each, files) in wanted.items()
            if each.is_change == kind.is_change and fingerprint not in known
        }
        if missing:
            made = joined_bins(context, kind, list(missing.values()))
            segments = [
                Segment(kind=JOINED, inputs=frozenset(), fingerprint=fingerprint, files=(file,))
                for fingerprint, file in zip(missing, made, strict=True)
            ]
            memory.add(segments)
            known |= {segment.fingerprint: segment for segment in segments}
    memory.parts = [file for _, files in bins for file in files]
    if bins:
        context.log(f"{plural(len(memory.parts), 'tiny file')} joined into {len(bins)}")
    parts = frozenset(file.path for file in memory.parts)
    joined = [file for segment in known.values() for file in segment.files]
    changes = [file for file in work.changes if file.path not in parts]
    return replace(
        work,
        joined=[file for file in joined if not file.is_change],
        changes=[*changes, *(file for file in joined if file.is_change)],
        parts=parts,
    )


def _bins(
    snapshot: Snapshot, layout_of_new: Callable[[], Layout], work: StagedWork
) -> list[tuple[Layout, list[StagedFile]]]:
    """Return the files to join, and how the joined file is written; the smallest first, up to MOST_BYTES."""
    new = {file.path for file in (*work.images, *work.inserts)}
    # Rows of a copy have ids that a joined file would lose.
    if not (new or work.changes) or "rowTracking" in writer_features(snapshot.protocol):
        return []
    layout = layout_of_new()
    found = [
        (layout, files)
        for files in bins_of(work.files, layout.target_bytes, partition_of)
        if any(file.path in new for file in files)
    ]
    changes = layout.for_changes() if work.changes else layout
    found += [(changes, files) for files in bins_of(work.changes, layout.target_bytes, partition_of)]
    chosen, left = [], MOST_BYTES
    for each, files in sorted(found, key=lambda one: _bytes(one[1])):
        left -= _bytes(files)
        if left < 0:
            break
        chosen.append((each, files))
    return chosen


def _bytes(files: Sequence[StagedFile]) -> int:
    return sum(file.size_bytes for file in files)


def _fingerprint(files: Sequence[StagedFile]) -> str:
    """Return a digest of the paths; no two files ever share one."""
    return hashlib.sha256("\n".join(sorted(file.path for file in files)).encode()).hexdigest()
