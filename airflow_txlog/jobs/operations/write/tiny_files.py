"""Tiny files joined after a write: what many tasks with few rows each left behind.

How many rows a task will have is not known before it ran: of a filter over ten thousand files each task may keep a few.
So what was written is looked at, and where it is many tiny files, those of each partition become few, in a second job
that reads them again: it costs what they weigh, which is little. The invariant: the files that come out hold exactly
the rows of those that went in, and whatever is not reported any more is deleted: no commit has named it (soundness
A17).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_txlog.datafiles.parquet.output import StagedFile
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.compaction import CompactTask
from airflow_txlog.datafiles.tasks.plans import PLAN_FIELDS, Bins, encode_bins, pack_bins
from airflow_txlog.datafiles.tasks.scan_and_write import RECORD_SCHEMA
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import collected, task_count
from airflow_txlog.jobs.files.stage import staged_of, unstage
from airflow_txlog.limits import weight_of
from airflow_txlog.wording import plural

# A file below an eighth of its target is tiny, and so is none above this.
TINY_BYTES = 8 * 1024 * 1024
# A second job is worth so many files fewer.
FILES_FEWER = 16


def joined(context: JobContext, layout: Layout, staged: Sequence[StagedFile]) -> list[StagedFile]:
    """The staged files of new rows, many tiny ones joined; the same files where that is not worth a job.

    Raises as `staged_of` does, and then every file is deleted.
    """
    bins = _bins(staged, layout.target_bytes)
    before = sum(map(len, bins))
    if before - len(bins) < FILES_FEWER:
        return list(staged)
    try:
        made = _compacted(context, layout, staged, bins)
    except BaseException:
        unstage(context.store, staged)
        raise
    gone = {number for files in bins for number in files}
    unstage(context.store, (staged[number] for number in gone))
    context.log(f"{plural(before, 'tiny file')} joined into {len(made)}")
    return [*(file for number, file in enumerate(staged) if number not in gone), *made]


def _bins(staged: Sequence[StagedFile], target_bytes: int) -> list[list[int]]:
    """Tiny files, by their numbers, that become one: of one partition and segment, up to the target size together."""
    tiny_bytes = min(TINY_BYTES, target_bytes // 8)
    bins: list[list[int]] = []
    last: dict[tuple[str, int | None], tuple[int, list[int]]] = {}
    for number, file in enumerate(staged):
        if file.size_bytes >= tiny_bytes or file.is_change:
            continue
        key = (json.dumps(file.partition_values, sort_keys=True), file.segment)
        size, files = last.get(key, (target_bytes, []))
        if size + file.size_bytes > target_bytes:
            size, files = 0, []
            bins.append(files)
        files.append(number)
        last[key] = (size + file.size_bytes, files)
    return [files for files in bins if len(files) > 1]


def _compacted(
    context: JobContext, layout: Layout, staged: Sequence[StagedFile], bins: Sequence[Sequence[int]]
) -> list[StagedFile]:
    sizes = [sum(staged[number].size_bytes for number in files) for files in bins]
    order = pack_bins(sizes, task_count(context.parallelism, sizes))
    plan = _plan([(staged[number], segment) for segment, files in enumerate(bins) for number in files])
    first = [sum(len(files) for files in bins[:segment]) for segment in range(len(bins))]
    rows = [
        [row for segment in segments for row in range(first[segment], first[segment] + len(bins[segment]))]
        for segments in order
    ]
    weight = weight_of(plan.column("size_bytes").to_pylist())
    packed = Bins(store=layout.store, inline=tuple(encode_bins(plan, rows)), weight=weight)
    task = CompactTask(bins=packed, layout=layout)
    made = staged_of(context, collected(context, [task], RECORD_SCHEMA, "join tiny files"))
    found, wanted = sum(file.num_records for file in made), sum(plan.column("num_records").to_pylist())
    if found != wanted:
        unstage(context.store, made)
        raise JobError(
            f"Of {wanted} rows in {plan.num_rows} tiny files {found} came out when they were joined. Nothing was "
            "committed; this is a fault of this engine, please report it."
        )
    # A task numbers its files by the bin; what the rows belong to is as it was.
    return [replace(file, segment=staged[bins[file.segment or 0][0]].segment) for file in made]


def _plan(files: Sequence[tuple[StagedFile, int]]) -> pa.Table:
    """A plan of staged files and the number of what each becomes a part of, as `plans` describes it."""
    rows = [
        {
            "index": index,
            "path": file.store_path,
            "size_bytes": file.size_bytes,
            "num_records": file.num_records,
            "directory": file.store_path.rpartition("/")[0],
            "partition_values": list(file.partition_values.items()),
            "segment": segment,
        }
        for index, (file, segment) in enumerate(files)
    ]
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in PLAN_FIELDS]
    return pa.table(arrays, schema=pa.schema(PLAN_FIELDS))
