"""Data files as Spark frames, and frames as data files.

`spark.range(0, n, 1, n).mapInArrow` gives exactly n balanced tasks without a shuffle, which adaptive execution would
fold into one. A frame that writes is collected exactly once, last, and never cached, counted or shuffled: only the
collected records exist. The invariant: nothing here changes which rows there are.
Source: docs/decisions/spark-computes.md; soundness B10.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.row_ids import KEPT_ID_COLUMN, RowIds
from airflow_txlog.datafiles.staged_files import CHANGE_TYPE_COLUMN
from airflow_txlog.datafiles.tasks.copies import ImageTask, SentColumns, kept_ids, out_of_order
from airflow_txlog.datafiles.tasks.in_worker import InWorker
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, RECORD_SCHEMA, FileScan, Step, Task, WriteTask
from airflow_txlog.engine.table.schema.types import CHAR_VARCHAR_KEY
from airflow_txlog.errors import TxlogError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import BinTask, TooManyRows, planned_by, run_here, work_of
from airflow_txlog.jobs.files.stage import WRITING, Staged, Work, reported
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.spark.progress import counted
from airflow_txlog.jobs.spark.session import is_classic, session_settings
from airflow_txlog.jobs.sql.gate import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

# The most bytes of a row's texts and binary values, and the rows of a batch: a batch mostly has a megabyte, and one
# of the widest rows 256 MiB. Smaller batches would cost more time than batches that Spark measures.
NARROW_BYTES = 64 * 1024
NARROW_ROWS = 4096
# The sum over more columns than this is an expression so deep that Spark's analyzer runs out of stack near a thousand.
MOST_TEXTS = 100

ROWS_SETTING, BYTES_SETTING = (
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
)
# The one value for which Spark measures nothing.
_UNBOUNDED = str(2**31 - 1)
_TOO_WIDE = "airflow_txlog: a row is too wide for batches without a bound on their bytes"

OF_FIXED_WIDTH = frozenset(
    ("boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "date", "timestamp", "timestamp_ntz")
)
"""Types (`typeName`) whose values take a few bytes each."""

_SHUFFLED_SIZE = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
# Spark assumes this size of a relation whose size it does not know, such as a table over a network (Long.MaxValue).
_UNKNOWN_BYTES = 2**62

# --- files as frames ------------------------------------------------------------------------------------------------


def scan_frame(context: JobContext, scan: FileScan) -> DataFrame:
    """Return the rows that the scan reads."""
    return _compared_as_char(over_bins(context.spark, Task(source=scan), scan.output_schema), scan)


def scan_frame_with_ids(context: JobContext, scan: FileScan, ids: RowIds) -> DataFrame:
    """Return the same rows with KEPT_ID_COLUMN. The plan has the facts of row tracking; `scan` has no addresses."""
    read = replace(scan, schema=ids.read_by(scan.schema), with_address=True)
    task = Task(source=read, steps=(partial(kept_ids, ids),))
    schema = scan.output_schema.append(pa.field(KEPT_ID_COLUMN, pa.int64()))
    return _compared_as_char(over_bins(context.spark, task, schema), scan)


def few_held(context: JobContext, scan: FileScan, what: str) -> DataFrame | None:
    """Return the rows that the scan reads as `held_frame` does, if they are few and in small files."""
    most_bytes = context.limits.sent_bytes
    return held_frame(context, scan, what, most_bytes) if scan.bins.weight <= 16 * most_bytes else None


def held_frame(context: JobContext, scan: FileScan, what: str, most_bytes: int) -> DataFrame | None:
    """Return the rows that the scan reads in a frame that holds them, so that Spark starts no Python worker.

    Returns None for rows of more than `most_bytes`, or of types that Spark could take in two ways. Raises the
    TxlogError of the scan.
    """
    from airflow_txlog.jobs.sql.schemas import spark_schema  # noqa: PLC0415 - only with Spark

    schema = scan.output_schema
    is_plain = not any(pa.types.is_nested(kind) or pa.types.is_timestamp(kind) for kind in schema.types)
    if not is_plain or not context.executor.runs_here(scan.bins.weight):
        return None
    try:
        rows = run_here(work_of([Task(source=scan)]), schema, what, context.parallelism, most_bytes)
    except TooManyRows:
        return None
    return _compared_as_char(context.spark.createDataFrame(rows, spark_schema(schema)), scan)


def _compared_as_char(frame: DataFrame, scan: FileScan) -> DataFrame:
    from airflow_txlog.jobs.sql.schemas import compared_as_char  # noqa: PLC0415 - only with Spark

    marks = {field.name: (field.metadata or {}).get(CHAR_VARCHAR_KEY.encode()) for field in scan.schema}
    return compared_as_char(frame, {name: mark.decode() for name, mark in marks.items() if mark is not None})


def over_bins(spark: SparkSession, task: BinTask, schema: pa.Schema) -> DataFrame:
    """Return a task's results for its bins, one Spark task each. If the task writes, collect the frame only once."""
    from airflow_txlog.jobs.sql.schemas import spark_schema  # noqa: PLC0415 - only with Spark

    count = len(task.bins)
    if count == 0:
        return spark.createDataFrame([], spark_schema(schema))
    return through(spark.range(0, count, 1, count), counted(spark, task), schema)


def through(rows: DataFrame, step: Step, schema: pa.Schema) -> DataFrame:
    """Return the rows that a step makes of `rows`, with the columns of `schema`."""
    from airflow_txlog.jobs.sql.schemas import spark_schema  # noqa: PLC0415 - only with Spark

    return rows.mapInArrow(InWorker(step), spark_schema(schema))


def union_of(frames: Iterable[DataFrame]) -> DataFrame:
    """Return all rows of the frames; there is at least one frame."""
    return reduce(lambda one, other: one.union(other), frames)


# --- frames as files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FrameRows:
    """A frame of whole rows: the table's columns and types, SEGMENT_COLUMN and KEPT_ID_COLUMN if they have them. See
    `NewRows`.
    """

    rows: DataFrame
    copies_files: ClassVar[bool] = False

    def add_to(self, work: Work, change_type: str | None) -> None:
        from pyspark.sql import functions as F  # noqa: PLC0415 - a job without Spark imports no PySpark

        rows, ids = self.rows, work.layout.row_ids
        if ids is not None:
            # All frames of one work have the same columns.
            kept = rows[KEPT_ID_COLUMN] if KEPT_ID_COLUMN in rows.columns else F.lit(None).cast("long")
            rows = rows.withColumn(ids.row_id, kept).drop(KEPT_ID_COLUMN)
        if change_type is not None or work.layout.samples is not None:
            # With samples some frames of a work have a type and others none.
            rows = rows.withColumn(CHANGE_TYPE_COLUMN, F.lit(change_type).cast("string"))
        work.rows.append(rows)


@dataclass(frozen=True, kw_only=True)
class FrameImages:
    """New images whose computed columns a frame has; files have the others. See `NewRows`, `SentColumns`.

    `computed` makes the computed columns, the rows' addresses and violations of the rows that `scan` reads, and neither
    shuffles nor reorders them. `first_files`: the index of each bin's first file.
    """

    scan: FileScan
    computed: Callable[[DataFrame], DataFrame]
    first_files: tuple[int, ...]
    num_rows: int
    copies_files: ClassVar[bool] = True

    def add_to(self, work: Work, change_type: str | None) -> None:
        work.images.append((self, change_type))

    def sent(self, context: JobContext, layout: Layout, change_type: str | None) -> WritingFrame:
        """Return the computed columns as Spark sends them to the task that writes the images."""
        rows = self.computed(scan_frame(context, self.scan))
        return WritingFrame(rows=rows, task=self._task(rows, layout, change_type))

    def _task(self, rows: DataFrame, layout: Layout, change_type: str | None) -> ImageTask:
        values = SentColumns(names=tuple(rows.schema.names), first_files=self.first_files)
        return ImageTask(bins=self.scan.bins, layout=layout, values=values, change_type=change_type)

    def collected(
        self, context: JobContext, layout: Layout, change_type: str | None
    ) -> list[tuple[Step, pa.RecordBatch]] | None:
        """Return the work of each bin, with its computed columns, for `run_here`.

        Returns None if Spark is to send them: there are many, or a row is so wide that they might be many bytes.
        """
        from airflow_txlog.jobs.sql.schemas import without_not_null  # noqa: PLC0415 - only with Spark

        limits = context.limits
        if self.num_rows > limits.computed_rows or not context.executor.runs_here(self.scan.bins.weight):
            return None
        held = held_frame(context, self.scan, "read the rows that change", limits.computed_bytes)
        rows = without_not_null(self.computed(scan_frame(context, self.scan) if held is None else held))
        names, numbered = rows.schema.names, rows.toDF(*map(_column_name, range(len(rows.schema.names))))
        types = {field.name: field.dataType for field in numbered.schema}
        most_bytes = limits.computed_bytes // max(1, self.num_rows)
        narrow = of_narrow_rows(numbered, types, most_bytes, measures_nested=True)
        if narrow is None:
            return None
        try:
            computed = collect(narrow, WRITING).combine_chunks().rename_columns(names)
        except TxlogError as error:
            if not _is_too_wide(error):
                raise
            return None
        files = pc.shift_right(computed.column(ADDRESS_COLUMN), pa.scalar(POSITION_BITS, pa.int64()))
        starts = [pc.index(files, first).as_py() for first in self.first_files]
        if -1 in starts or sorted(starts)[:1] != [0]:
            raise out_of_order()
        ends = dict(itertools.pairwise([*sorted(starts), computed.num_rows]))
        parts = (computed.slice(start, ends[start] - start).combine_chunks() for start in starts)
        task = self._task(rows, layout, change_type)
        return [(task, batch) for part in parts for batch in part.to_batches()]


@dataclass(frozen=True, kw_only=True)
class WritingFrame:
    """Rows that Spark sends to a task that writes them. Only `collect_records` may collect them, once."""

    rows: DataFrame
    task: WriteTask | ImageTask

    def records(self) -> DataFrame:
        """Return records of the files that the task makes."""
        return self._over(self._numbered())

    def narrow_records(self) -> DataFrame | None:
        """Return the same for `collect_narrow`; None if the rows may not go that way."""
        types = {_column_name(number): field.dataType for number, field in enumerate(self.rows.schema)}
        narrow = of_narrow_rows(self._numbered(), types)
        return None if narrow is None else self._over(narrow)

    def _numbered(self) -> DataFrame:
        return self.rows.toDF(*map(_column_name, range(len(self.rows.schema.names))))

    def _over(self, rows: DataFrame) -> DataFrame:
        return through(rows, self.task, RECORD_SCHEMA)


def _column_name(number: int) -> str:
    # mapInArrow resolves each name as unquoted SQL, in which a dot leads to a member: the columns travel by number.
    return f"c{number}"


def records_of(rows: DataFrame, layout: Layout, *, numbers_rows: bool = False) -> WritingFrame:
    """Return these rows with the `WriteTask` that writes them."""
    task = WriteTask(layout=layout, names=tuple(rows.schema.names), numbers_rows=numbers_rows)
    return WritingFrame(rows=rows, task=task)


def write_work(context: JobContext, work: Work) -> pa.Table:
    """Do the work of `Executor.write`; return records."""
    if len(work.images) == 1 and not work.rows:
        ((images, change_type),) = work.images
        collected = images.collected(context, work.layout, change_type)
        if collected is not None:
            return run_here([*collected, *work_of(work.tasks)], RECORD_SCHEMA, WRITING, context.parallelism)
    frames = [images.sent(context, work.layout, change_type) for images, change_type in work.images]
    if work.rows:
        rows = reduce(lambda one, other: one.unionByName(other), work.rows)
        frames = [records_of(_brought_to_tasks(context, rows, work.layout), work.layout), *frames]
    if not frames:
        return context.executor.run(work.tasks, RECORD_SCHEMA, WRITING)
    return _records(context, frames, WRITING, work.tasks)


def collect_records(context: JobContext, frame: WritingFrame, what: str) -> Staged:
    """Return the files that a frame stages, with the counts of their rows.

    Raises the first TxlogError among the records, after deleting the files; InvalidInput or JobError if Spark itself
    failed, and then the staged files are unknown and left to VACUUM.
    """
    return reported(context, _records(context, [frame], what))


def _records(context: JobContext, frames: Sequence[WritingFrame], what: str, tasks: Sequence[BinTask] = ()) -> pa.Table:
    """Return the records of frames, of which there is at least one, and of tasks, as one Spark job."""
    planned_by(tasks)
    over = [over_bins(context.spark, task, RECORD_SCHEMA) for task in tasks]
    has_own_bound = {ROWS_SETTING, BYTES_SETTING} & context.spec.spark_conf.keys()
    narrow = [] if has_own_bound else [frame.narrow_records() for frame in frames]

    def of_any_width() -> DataFrame:
        return union_of([*over, *(frame.records() for frame in frames)])

    if not narrow or None in narrow:
        return collect(of_any_width(), what)
    records = union_of([*over, *(frame for frame in narrow if frame is not None)])
    return collect_narrow(context.spark, records, of_any_width, what, context.log)


# --- the size of new files ------------------------------------------------------------------------------------------
# The rows of an unpartitioned table are not moved, and make no more tasks than their size is worth. The rows of a
# partitioned table are shuffled by partition, and adaptive execution cuts the result by the sizes that it measured: a
# large partition is spread over several tasks, and small ones share one.


def _brought_to_tasks(context: JobContext, rows: DataFrame, layout: Layout) -> DataFrame:
    """Return the same rows, distributed to the tasks that will write them."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    if not layout.partition_columns:
        most = _tasks_worth(context, rows, layout.target_bytes)
        # Never more tasks than now, and no shuffle: neighbours are read by one task.
        return rows if most is None else rows.coalesce(most)
    columns = [F.col(quoted(name)) for name in layout.partition_columns]
    if context.spark.conf.get("spark.sql.adaptive.enabled", "true") == "true":
        return rows.hint("rebalance", *columns)
    # Without adaptive execution nothing is measured: each partition becomes one task, and so one file.
    return rows.repartition(2 * context.parallelism, *columns)


def _tasks_worth(context: JobContext, rows: DataFrame, target_bytes: int) -> int | None:
    """Return how many tasks the rows are worth at most; None if their size is unknown (Connect).

    Spark's estimate is mostly too high, above all for a filter, and then the tasks are unchanged. Two tasks a core
    always remain: few rows may be much work.
    """
    if not is_classic(context.spark):
        return None
    plan: Any = rows._jdf.queryExecution().optimizedPlan()
    size_bytes = int(str(plan.stats().sizeInBytes()))
    if size_bytes >= _UNKNOWN_BYTES:
        return None
    # Some columns of a relation of unknown size have a part of that size: more tasks than an INT of Java can count.
    return min(max(2 * context.parallelism, math.ceil(size_bytes / target_bytes)), 2**31 - 1)


@contextlib.contextmanager
def shuffled_towards(context: JobContext, target_bytes: int) -> Iterator[None]:
    """Cut shuffled rows that are evaluated inside into tasks of the target size.

    Shuffled rows weigh about as much as their files. A size in the job's own settings stays.
    """
    own = _SHUFFLED_SIZE in context.spec.spark_conf
    with session_settings(context.spark, {} if own else {_SHUFFLED_SIZE: str(target_bytes)}):
        yield


# --- batches between the JVM and Python -------------------------------------------------------------------------------
# Spark bounds the bytes of a batch by measuring all of it before each of its rows, which takes half of the time that
# the rows take on their way. Rows that are known to be narrow need no such bound: the number of rows in a batch is one.
# A text that is too long is known only when it is there, so it ends the evaluation, which is then repeated under
# Spark's own bound. The invariant: only a whole evaluation counts, so a frame that writes leaves at most files that no
# commit names. Source: soundness B10.


def of_narrow_rows(
    rows: DataFrame, types: Mapping[str, DataType], most_bytes: int = NARROW_BYTES, *, measures_nested: bool = False
) -> DataFrame | None:
    """Return the same rows; evaluating one that is wider than `most_bytes` fails.

    Returns None if the types do not bound the width, or if there are very many texts. `types` are those of the columns,
    whose names need no quotes. `measures_nested`: the rows are so few that a nested value is measured by its text.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415 - a job without Spark imports no PySpark

    texts: dict[str, Column] = {}
    for name, kind in types.items():
        # Spark does not know the width of a nested value without reading all of it.
        if kind.simpleString() in ("string", "binary"):
            texts[name] = F.col(name)
        elif measures_nested and kind.typeName() in ("array", "map", "struct", "variant"):
            texts[name] = F.col(name).cast("string")
        elif kind.typeName() not in OF_FIXED_WIDTH:
            return None
    if not texts:
        return rows
    if len(texts) > MOST_TEXTS:
        return None
    widths = (F.coalesce(F.octet_length(text), F.lit(0)).cast("long") for text in texts.values())
    is_narrow = reduce(lambda one, other: one + other, widths) <= most_bytes
    last = next(reversed(texts))
    return rows.withColumn(last, F.when(is_narrow, F.col(last)).otherwise(F.raise_error(F.lit(_TOO_WIDE))))


def _is_too_wide(error: TxlogError) -> bool:
    return _TOO_WIDE in str(error.__cause__)


def collect_narrow(
    spark: SparkSession, narrow: DataFrame, any_width: Callable[[], DataFrame], what: str, log: Callable[[str], None]
) -> pa.Table:
    """Return the rows of `narrow`, made by `of_narrow_rows`; those of `any_width()` if a row is too wide.

    Raises as `collect` does.
    """
    try:
        with session_settings(spark, {ROWS_SETTING: str(NARROW_ROWS), BYTES_SETTING: _UNBOUNDED}):
            return collect(narrow, what)
    except TxlogError as error:
        if not _is_too_wide(error):
            raise
    log(
        f"a row has more than {NARROW_BYTES // 1024} KiB of text: the query is evaluated once more, in batches of "
        f"bounded bytes. A spark_conf with {BYTES_SETTING}=64m goes that way at once"
    )
    return collect(any_width(), what)
