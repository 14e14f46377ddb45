"""The files that bins become: compacted one by one, or sorted in Z-order, by Spark over a shuffle or in this process.

The invariants: the staged files of a bin have as many rows as the bin's files, if the log counts those. A bin is staged
whole or not at all. Row ids are kept for every row of a commit or for none, because the commit declares it for all of
them. Source: delta-spark, OptimizeExecutor; protocol, "Row Tracking"; soundness B10.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS
from airflow_txlog.datafiles.parquet.reading import BATCH_ROWS
from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.compaction import CompactTask
from airflow_txlog.datafiles.tasks.plans import pack_bins
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, RECORD_SCHEMA, FileScan, Task, WriteTask
from airflow_txlog.datafiles.tasks.zorder import Z_COLUMN, ColumnPath, ZOrder, ZOrdered, cuts, sampled, values_at
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.snapshot.files import known_sum, live_row_counts
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import collect_records, over_bins, records_of
from airflow_txlog.jobs.files.kept_ids import CARRIES_IDS, carried_ids, with_base_ids, with_ids
from airflow_txlog.jobs.files.scan import FilePlan, TooManyRows, bins_for, plan_files, run_here, sent_bins, work_of
from airflow_txlog.jobs.files.stage import layout_of, staged_of
from airflow_txlog.jobs.files.staged import unstage
from airflow_txlog.jobs.operations.optimize.bins import Bin
from airflow_txlog.jobs.resume.memory import BIN, Segment
from airflow_txlog.jobs.sql.gate import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Bins of this many bytes together are enough work for a task.
_TASK_BYTES = 64 * 1024 * 1024
# The size of the sample from which the boundaries of a Z-order are computed.
SAMPLE_ROWS = 100_000
# A Z-order in this process holds all rows, and holds them twice while sorting. They may take this multiple of a small
# job's read limit, because rows take more memory than their files.
SORTED_TIMES = 2
# The size of a row if the log does not count the rows of a file.
_ROW_BYTES_GUESSED = 64


def stage_bins(
    context: JobContext, snapshot: Snapshot, bins: Sequence[Bin], *, target_bytes: int, z_columns: Sequence[ColumnPath]
) -> list[Segment]:
    """Return a segment of kind BIN for each of the bins, in their order. Raises JobError, and as `staged_of`."""
    if not bins:
        return []
    files = pa.concat_tables([each.files for each in bins])
    numbers = [number for number, each in enumerate(bins) for _ in range(each.files.num_rows)]
    plan = plan_files(snapshot, files, context.spec.time_zone, context.executor.instants).with_column(
        "segment", numbers
    )
    ids = carried_ids(snapshot, files)
    work = _Work(
        plan=plan if ids is None else with_base_ids(plan, files),
        files=files,
        numbers=numbers,
        layout=with_ids(_layout(context, snapshot, target_bytes), ids),
    )
    if z_columns:
        staged = _sorted_files(context, work, bins, target_bytes, z_columns)
    else:
        staged = [[] for _ in bins]
        records = context.executor.run([_compaction(context, work, bins)], RECORD_SCHEMA, "compact data files")
        for file in staged_of(context, records):
            staged[file.segment or 0].append(file)
    segments, carries = [], "" if ids is None else CARRIES_IDS
    for each, found in zip(bins, staged, strict=True):
        segments.append(Segment(kind=BIN, inputs=each.keys(snapshot.uri), fingerprint=carries, files=tuple(found)))
        wanted, come = known_sum(live_row_counts(each.files)), sum(file.num_records for file in found)
        if wanted is not None and wanted != come:
            unstage(context.store, (file for files in staged for file in files))
            raise JobError(
                f"Of {wanted} rows in {each.files.num_rows} files, the first {each.files.column('path')[0]}, {come} "
                "came out of their rewriting. Nothing was committed; this is a fault of this engine, please report it."
            )
    return segments


def _layout(context: JobContext, snapshot: Snapshot, target_bytes: int) -> Layout:
    """Return the layout of rows that are in the table already: no rule judges them, and a segment is one file."""
    return replace(layout_of(context, snapshot), must_check=False, rules=(), target_bytes=8 * target_bytes)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """The planned files of all bins: `numbers` has the bin of each."""

    plan: FilePlan
    files: pa.Table
    numbers: Sequence[int]
    layout: Layout


def _compaction(context: JobContext, work: _Work, bins: Sequence[Bin]) -> CompactTask:
    """Return the task that makes one file of each bin."""
    sizes = [each.live_bytes for each in bins]
    count = max(2 * context.parallelism, sum(sizes) // _TASK_BYTES)
    rows_of: list[list[int]] = [[] for _ in bins]
    for row, number in enumerate(work.numbers):
        rows_of[number].append(row)
    packed = [[row for number in numbers for row in rows_of[number]] for numbers in pack_bins(sizes, count)]
    return CompactTask(
        bins=sent_bins(context, work.plan, packed),
        layout=work.layout,
        # An idle core can decode for a task.
        read_ahead=2 * len(packed) <= context.parallelism,
    )


def _sorted_files(
    context: JobContext, work: _Work, bins: Sequence[Bin], target_bytes: int, columns: Sequence[ColumnPath]
) -> list[list[StagedFile]]:
    """Return the sorted files of each bin: rows near each other in all of the columns are in the same file."""
    step = _z_ordered(context, work, bins, target_bytes, columns)
    scan = FileScan(bins=bins_for(context, work.plan, in_pieces=True), schema=work.layout.schema, with_address=True)
    task, schema = Task(source=scan, steps=(step,)), step.output_schema(scan.output_schema)
    executor, layout = context.executor, work.layout
    staged = None
    most_bytes = min(SORTED_TIMES * executor.bytes_allowed, context.limits.sorted_bytes)
    if executor.runs_here(task.weight):
        staged = _sorted_here(context, layout, task, schema, columns, most_bytes)
    if staged is None:
        why = f"rows of more than {most_bytes} bytes are to be sorted"
        # A task for each segment, but no more tasks than the work needs.
        most = max(2 * context.parallelism, sum(each.live_bytes for each in bins) // _TASK_BYTES)
        count = min(step.num_segments, most)
        staged = executor.by_spark(why, lambda: _sorted_by_spark(context, layout, task, schema, columns, count))
    found: list[list[StagedFile]] = [[] for _ in bins]
    for file in staged:
        found[bisect_right(step.first_segments, file.segment or 0) - 1].append(file)
    return found


def _sorted_here(
    context: JobContext, layout: Layout, task: Task, schema: pa.Schema, columns: Sequence[ColumnPath], most_bytes: int
) -> list[StagedFile] | None:
    """Return the files, sorted in this process; None if there are too many rows, and then nothing was staged."""
    try:
        rows = run_here(work_of([task]), schema, "sort", context.parallelism, most_bytes).combine_chunks()
    except TooManyRows:
        return None
    write = WriteTask(layout=layout)

    def sort_and_write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write(part for batch in batches for part in _in_order(batch, columns))

    segments = rows.column(SEGMENT_COLUMN)
    numbers = pc.unique(segments).to_pylist()
    if len(numbers) > 1:
        parts = [rows.filter(pc.equal(segments, number)).combine_chunks() for number in numbers]
    else:
        parts = [rows]
    del rows, segments
    work = [(sort_and_write, batch) for part in parts for batch in part.to_batches()]
    return staged_of(context, run_here(work, RECORD_SCHEMA, "sort", context.parallelism))


def _in_order(rows: pa.RecordBatch, columns: Sequence[ColumnPath]) -> Iterator[pa.RecordBatch]:
    """Yield the rows sorted by z-value and then by the columns, without the z-values, in batches for a file."""
    keys = [rows.column(Z_COLUMN), *(values_at(rows, path) for path in columns)]
    names = [str(number) for number in range(len(keys))]
    order = pc.sort_indices(pa.table(keys, names), [(name, "ascending") for name in names])
    in_order = rows.drop_columns([Z_COLUMN]).take(order)
    for start in range(0, in_order.num_rows, BATCH_ROWS):
        yield in_order.slice(start, BATCH_ROWS)


def _sorted_by_spark(
    context: JobContext, layout: Layout, task: Task, schema: pa.Schema, columns: Sequence[ColumnPath], count: int
) -> list[StagedFile]:
    """Return the files, sorted by Spark in `count` tasks."""
    from pyspark.sql import functions as F  # noqa: PLC0415 - a job without Spark imports no PySpark

    frame = _by_segment(over_bins(context.spark, task, schema), count)
    # Rows of one bucket are sorted too: encodings compress runs of equal values. Segments follow the order of z-values.
    # Spark sorts fast by the first column as long as it differs; by segment most rows would be equal.
    order = [F.col(".".join(map(quoted, path))) for path in columns]
    frame = frame.sortWithinPartitions(Z_COLUMN, *order).drop(Z_COLUMN)
    return collect_records(context, records_of(frame, layout), "sort").files


def _by_segment(frame: DataFrame, count: int) -> DataFrame:
    """Return the rows in `count` tasks, with the rows of a segment in one task."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    if hasattr(frame, "repartitionById"):  # Spark 4.1
        return frame.repartitionById(count, F.expr(f"pmod({SEGMENT_COLUMN}, {count})"))
    return frame.repartition(count, SEGMENT_COLUMN)


def _z_ordered(
    context: JobContext, work: _Work, bins: Sequence[Bin], target_bytes: int, columns: Sequence[ColumnPath]
) -> ZOrdered:
    """Return the step that numbers the rows, by the values in a sample of them."""
    sample = _sample(context, work, columns)
    order = ZOrder.of_sample(columns, sample, len(bins))
    z, index = order.values(sample), sample.column(ADDRESS_COLUMN).to_pylist()
    z_of: list[list[int]] = [[] for _ in bins]
    for value, address in zip(z.to_pylist(), index, strict=True):
        z_of[work.numbers[address >> POSITION_BITS]].append(value)
    tasks = context.parallelism // len(bins)
    splits = [
        cuts(pa.array(values, pa.int64()), _sorted_file_count(each, target_bytes, tasks))
        for values, each in zip(z_of, bins, strict=True)
    ]
    first = [0]
    for split in splits[:-1]:
        first.append(first[-1] + len(split) + 1)
    ids = work.layout.row_ids
    base, version = (work.files.column(name) for name in ("base_row_id", "default_row_commit_version"))
    return ZOrdered(
        order=order,
        groups=pa.array(work.numbers, pa.int32()),
        splits=tuple(splits),
        first_segments=tuple(first),
        row_ids=ids,
        bases=None if ids is None else base.combine_chunks(),
        versions=None if ids is None else version.combine_chunks(),
    )


def _sorted_file_count(source: Bin, target_bytes: int, tasks: int) -> int:
    """Return how many files a bin becomes: of the target size, or down to half of it if tasks would be idle."""
    return max(1, round(source.live_bytes / target_bytes), min(tasks, 2 * source.live_bytes // target_bytes))


def _sample(context: JobContext, work: _Work, columns: Sequence[ColumnPath]) -> pa.Table:
    """Return about SAMPLE_ROWS rows, from all files alike: the columns of the order, and the address."""
    sizes = work.plan.table.column("size_bytes").to_pylist()
    counts = work.plan.live_row_counts()
    rows = sum(size // _ROW_BYTES_GUESSED if n is None else n for n, size in zip(counts, sizes, strict=True))
    names = dict.fromkeys(path[0] for path in columns)
    schema = pa.schema([work.layout.schema.field(name) for name in names])
    scan = FileScan(bins=bins_for(context, work.plan, in_pieces=True), schema=schema, with_address=True)
    task = Task(source=scan, steps=(partial(sampled, max(1, rows // SAMPLE_ROWS), 4 * SAMPLE_ROWS),))
    return context.executor.run([task], scan.output_schema, "sample the columns of the Z-order")
