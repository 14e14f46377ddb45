"""Staging: data files written by Spark's workers, that no commit names yet.

The frame that writes is collected exactly once, last, and never cached, counted or shuffled: only the collected rows
exist, and a lost executor or a second attempt leaves an orphan, never a row. The invariant: when an error comes out of
here, every file that was reported is deleted again, because no commit of this process can have named it.
Source: soundness A17, B10.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS
from airflow_txlog.datafiles.parquet.writing import TARGET_BYTES_DEFAULT, Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.copies import CopyTask, ImageTask, SentColumns, leaving_task, out_of_order
from airflow_txlog.datafiles.tasks.plans import Bins
from airflow_txlog.datafiles.tasks.row_values import RowValues, SourceRows
from airflow_txlog.datafiles.tasks.scan_and_write import (
    ADDRESS_COLUMN,
    RECORD_COLUMN,
    RECORD_SCHEMA,
    Step,
    Task,
    WriteTask,
    staged_or_error,
)
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.table.schema.column_mapping import arrow_schema, mapping_mode, table_schema
from airflow_txlog.engine.table.schema.features import check_files_writable, check_rows_have_place
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.rules import may_break_rules
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.errors import TxlogError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.here import bin_number, run_here
from airflow_txlog.jobs.files.scan import BinTask, FilePlan, bins_for, over_bins, through, union_of, work_of
from airflow_txlog.jobs.files.sizes import brought_to_tasks
from airflow_txlog.jobs.files.staged import unstage
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.spark.session import session_settings
from airflow_txlog.storage import StoreReference
from airflow_txlog.storage.limits import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType


_WRITING = "write the data files"

# The most bytes of a row's texts and binary values, and so many rows: a megabyte in a batch as rows mostly are, 256 MiB
# where each row is as wide as may be. Fewer rows in a batch cost more time than a measured batch does.
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


def layout_of(context: JobContext, snapshot: Snapshot) -> Layout:
    """How new files of the snapshot's table are written."""
    return layout_for(context, snapshot.protocol, snapshot.metadata)


def layout_for(context: JobContext, protocol: Protocol, metadata: Metadata) -> Layout:
    """How new files of a table with this protocol and metadata are written, also of one that is about to get them.

    Raises InvalidProperty where the table asks for files that this engine does not write, UnsupportedFeature where no
    file can hold its rows.
    """
    properties = TableProperties(metadata.configuration, context.root)
    schema = table_schema(metadata, context.root)
    check_files_writable(protocol, schema, metadata.partition_columns, context.root)
    check_rows_have_place(schema, metadata.partition_columns, context.root)
    columns = properties.stats_columns
    return Layout(
        store=StoreReference.of(context.store),
        schema=arrow_schema(schema, mapping_mode(metadata.configuration, context.root)),
        partition_columns=_spelled(metadata, schema),
        job_id=context.job_id,
        indexed_columns=None if columns is None else tuple(columns),
        num_indexed_columns=properties.num_indexed_columns,
        must_check=may_break_rules(metadata, schema),
        target_bytes=properties.target_file_bytes or TARGET_BYTES_DEFAULT,
        parquet=properties.parquet,
    )


def _spelled(metadata: Metadata, schema: StructType) -> tuple[str, ...]:
    """The partition columns by the schema's spelling; the metadata may have another case."""
    found = ((schema.find(name), name) for name in metadata.partition_columns)
    return tuple(name if field is None else field.name for field, name in found)


@dataclass(frozen=True, kw_only=True)
class ComputedColumns:
    """New images of rows, of which some columns are computed and the files hold the others: see `ImageTask`.

    `values`: the computed columns, the rows' addresses and violations, as a frame made from a scan of `bins`, neither
    shuffled nor reordered; or, with no need of Spark, the source's rows of which they are columns, or what each of them
    becomes. `copied`: the files
    (by the plan's index) whose other rows are copied where they are read: in these no row leaves without a new image.
    """

    values: DataFrame | SourceRows | RowValues
    bins: Bins
    first_files: tuple[int, ...]
    num_rows: int
    copied: frozenset[int] = frozenset()
    change_type: str | None = None


def stage(
    context: JobContext,
    layout: Layout,
    *,
    copies: FilePlan | None,
    rows: DataFrame | Task | None,
    images: ComputedColumns | None = None,
    leaving: FilePlan | None = None,
    updates: frozenset[int] = frozenset(),
) -> list[StagedFile]:
    """Copies of the planned files without their positions, and files of new rows, in one Spark job or in this process.

    `rows` must have exactly the columns and types of `layout.schema`, and may have a segment and a change type; those
    of a task may lack some of the columns, which are null then. `leaving`: change
    rows are written of the rows at its positions; `updates` are the clauses that update a row. Raises the first error
    of a task, after deleting whatever was staged.
    """
    tasks: list[BinTask] = []
    frames: list[WritingFrame] = []
    if copies is not None and copies.num_files:
        tasks.append(CopyTask(bins=bins_for(context, copies, in_pieces=True), layout=layout))
    if isinstance(rows, Task):
        tasks.append(replace(rows, layout=layout))
    elif rows is not None:
        brought = brought_to_tasks(context, rows, layout.partition_columns, layout.target_bytes)
        frames.append(records_of(brought, layout))
    if leaving is not None and leaving.num_files:
        bins = bins_for(context, leaving, in_pieces=True)
        tasks.append(leaving_task(bins, layout, updates))
    if images is not None:
        task, values = _images_task(layout, images), images.values
        if isinstance(values, SourceRows | RowValues):
            tasks.append(task)
        elif (
            frames
            or images.num_rows > _most_computed(values, context.limits)
            or not context.executor.runs_here(images.bins.weight)
        ):
            frames.append(WritingFrame(rows=values, task=task))
        else:
            work = [*_images_work(task, values, images.first_files), *work_of(tasks)]
            return staged_of(context, run_here(work, RECORD_SCHEMA, _WRITING, context.parallelism))
    if not (tasks or frames):
        return []
    if frames:
        return collect_records(context, frames, _WRITING, tasks)
    return staged_of(context, context.executor.run(tasks, RECORD_SCHEMA, _WRITING))


@dataclass(frozen=True, kw_only=True)
class WritingFrame:
    """Rows that Spark brings to a task that writes them. To be collected once, and nothing else (`collect_records`)."""

    rows: DataFrame
    task: WriteTask | ImageTask

    def records(self) -> DataFrame:
        """Records of the files that the task makes."""
        return self._over(self._numbered())

    def narrow_records(self) -> DataFrame | None:
        """The same for `collect_narrow`; None where the rows may not go that way."""
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
    """The files that `WriteTask` makes of these rows."""
    task = WriteTask(layout=layout, names=tuple(rows.schema.names), numbers_rows=numbers_rows)
    return WritingFrame(rows=rows, task=task)


def _images_task(layout: Layout, images: ComputedColumns) -> ImageTask:
    values: SentColumns | SourceRows | RowValues
    if isinstance(images.values, SourceRows | RowValues):
        values = images.values
    else:
        values = SentColumns(names=tuple(images.values.schema.names), first_files=images.first_files)
    return ImageTask(bins=images.bins, layout=layout, values=values, change_type=images.change_type)


def _most_computed(frame: DataFrame, limits: Limits) -> int:
    names = {field.dataType.typeName() for field in frame.schema}
    return limits.computed_rows if names <= OF_FIXED_WIDTH else limits.computed_texts


def _images_work(task: ImageTask, frame: DataFrame, first_files: Sequence[int]) -> list[tuple[Step, pa.RecordBatch]]:
    """The task's work for `run_here`: the computed columns, which are collected here, as the work of each bin."""
    from airflow_txlog.jobs.sql.schemas import without_not_null  # noqa: PLC0415 - only with Spark

    computed = collect(without_not_null(frame), _WRITING).combine_chunks()
    files = pc.shift_right(computed.column(ADDRESS_COLUMN), pa.scalar(POSITION_BITS, pa.int64()))
    starts = [pc.index(files, first).as_py() for first in first_files]
    if -1 in starts or sorted(starts)[:1] != [0]:
        raise out_of_order()
    ends = dict(itertools.pairwise([*sorted(starts), computed.num_rows]))
    parts = (computed.slice(start, ends[start] - start).combine_chunks() for start in starts)
    return [(task, batch) for part in parts for batch in part.to_batches()]


def collect_records(
    context: JobContext, frames: Sequence[WritingFrame], what: str, tasks: Sequence[BinTask] = ()
) -> list[StagedFile]:
    """The files that frames, of which there is one at least, and tasks stage, all in one Spark job.

    Raises the first TxlogError among the records, after deleting the files of the others; InvalidInput or JobError
    where Spark itself failed, and then what other tasks staged is unknown and left to VACUUM.
    """
    over = [over_bins(context.spark, task, RECORD_SCHEMA) for task in tasks]
    has_own_bound = {ROWS_SETTING, BYTES_SETTING} & context.spec.spark_conf.keys()
    narrow = [] if has_own_bound else [frame.narrow_records() for frame in frames]

    def of_any_width() -> DataFrame:
        return union_of([*over, *(frame.records() for frame in frames)])

    if not narrow or None in narrow:
        return staged_of(context, collect(of_any_width(), what))
    records = union_of([*over, *(frame for frame in narrow if frame is not None)])
    return staged_of(context, collect_narrow(context.spark, records, of_any_width, what, context.log))


def load(context: JobContext, task: Task, what: str) -> list[StagedFile]:
    """The files in which a task writes rows that it reads; in this process where all are the work of one task.

    Raises as `collect_records` does.
    """
    if len(task.bins) == 1:
        return staged_of(context, run_here([(task, bin_number(0))], RECORD_SCHEMA, what, 1))
    return staged_of(context, context.executor.run([task], RECORD_SCHEMA, what))


def staged_here(context: JobContext, task: WriteTask, rows: pa.RecordBatch, what: str) -> list[StagedFile]:
    """The files in which a task writes rows that this process has. Raises as `collect_records` does."""
    return staged_of(context, run_here([(task, rows)], RECORD_SCHEMA, what, 1))


def staged_of(context: JobContext, records: pa.Table) -> list[StagedFile]:
    """The files that writing tasks report. Raises the first TxlogError among the records, after deleting the files."""
    reported = [staged_or_error(record) for record in records.column(RECORD_COLUMN).to_pylist()]
    staged = [entry for entry in reported if isinstance(entry, StagedFile)]
    errors = [entry for entry in reported if isinstance(entry, TxlogError)]
    if errors:
        unstage(context.store, staged)
        raise errors[0]
    return staged


# --- batches between the JVM and Python -------------------------------------------------------------------------------
# Spark bounds the bytes of a batch by measuring all of it before each of its rows, which takes half of the time that
# the rows take on their way. Rows that are known to be narrow need no such bound: the number of rows in a batch is one.
# A text that is too long is known only when it is there, so it ends the evaluation, which is then repeated under
# Spark's own bound. The invariant: only a whole evaluation counts, so a frame that writes leaves at most files that no
# commit names. Source: soundness B10.


def of_narrow_rows(rows: DataFrame, types: Mapping[str, DataType]) -> DataFrame | None:
    """The same rows, whose evaluation fails at one that is wider than NARROW_BYTES; None where the types do not say,
    or where there are very many texts.

    `types` are those of their columns, whose names need no quotes.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415 - a job without Spark imports no PySpark

    texts = []
    for name, kind in types.items():
        # Of a nested value Spark does not know the width without a look at all of it.
        if kind.simpleString() in ("string", "binary"):
            texts.append(name)
        elif kind.typeName() not in OF_FIXED_WIDTH:
            return None
    if not texts:
        return rows
    if len(texts) > MOST_TEXTS:
        return None
    widths = (F.coalesce(F.octet_length(name), F.lit(0)).cast("long") for name in texts)
    is_narrow = reduce(lambda one, other: one + other, widths) <= NARROW_BYTES
    return rows.withColumn(texts[-1], F.when(is_narrow, F.col(texts[-1])).otherwise(F.raise_error(F.lit(_TOO_WIDE))))


def collect_narrow(
    spark: SparkSession, narrow: DataFrame, any_width: Callable[[], DataFrame], what: str, log: Callable[[str], None]
) -> pa.Table:
    """The rows of `narrow`, which is made of what `of_narrow_rows` gives; of `any_width()` where a row is too wide.

    Raises as `collect` does.
    """
    try:
        with session_settings(spark, {ROWS_SETTING: str(NARROW_ROWS), BYTES_SETTING: _UNBOUNDED}):
            return collect(narrow, what)
    except TxlogError as error:
        if _TOO_WIDE not in str(error.__cause__):
            raise
    log(
        f"a row has more than {NARROW_BYTES // 1024} KiB of text: the query is evaluated once more, in batches of "
        f"bounded bytes. A spark_conf with {BYTES_SETTING}=64m goes that way at once"
    )
    return collect(any_width(), what)
