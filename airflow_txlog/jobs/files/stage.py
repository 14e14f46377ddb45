"""Stage data files, which no commit names yet: copies, new images and new rows.

The invariant: when an error leaves this module, every file that was reported is deleted again, because no commit of
process can have named it. A lost executor or a second attempt leaves an orphan, never a row.
Source: soundness A17, B10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from typing import Protocol as Interface

import msgspec
import pyarrow as pa

from airflow_txlog.datafiles.parquet.judging import FAILED_COLUMN, Expected, Judged, quarantine_schema
from airflow_txlog.datafiles.parquet.physical import ParquetFormat
from airflow_txlog.datafiles.parquet.writing import TARGET_BYTES_DEFAULT, Layout
from airflow_txlog.datafiles.staged_files import CHANGE_TYPE_COLUMN, CHANGE_TYPE_FIELD, INSERT, StagedFile
from airflow_txlog.datafiles.tasks.compaction import CompactTask
from airflow_txlog.datafiles.tasks.copies import CopyTask, ImageTask, leaving_task, of_type
from airflow_txlog.datafiles.tasks.plans import Bins
from airflow_txlog.datafiles.tasks.row_values import NewImages
from airflow_txlog.datafiles.tasks.scan_and_write import RECORD_COLUMN, RECORD_SCHEMA, Elsewhere, Task, report_of
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.commit.content.clustering import clustering_columns, indexed_columns
from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.table.schema.column_mapping import arrow_schema, mapping_mode, table_schema
from airflow_txlog.engine.table.schema.features import check_rows_have_place, writer_features
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.rules import constraints_of, may_break_rules
from airflow_txlog.engine.table.schema.schema import to_arrow
from airflow_txlog.engine.table.schema.types import Path, bare_columns
from airflow_txlog.errors import SchemaMismatch, TxlogError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import BinTask, FilePlan, bin_number, bins_by_segment, bins_for, run_here
from airflow_txlog.jobs.files.staged import unstage
from airflow_txlog.jobs.sql.expectations import expectations_of
from airflow_txlog.jobs.sql.plain_checks import plain_rules
from airflow_txlog.storage import Store, StoreReference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_txlog.jobs.files.frames import FrameImages

WRITING = "write the data files"
# Rows that follow are decoded while these are encoded.
_INPUT_GROUP_BYTES = 16 * 1024 * 1024
MOST_SAMPLES = 100
"""The most rows of each type of change that a dry run writes to a table of samples."""


def layout_of(context: JobContext, snapshot: Snapshot) -> Layout:
    """Return the layout of new files of the snapshot's table. Raises as `layout_for` does."""
    clustering = clustering_columns(snapshot.state.domains.values(), snapshot.uri)
    return layout_for(context, snapshot.protocol, snapshot.metadata, clustering)


def layout_for(context: JobContext, protocol: Protocol, metadata: Metadata, clustering: Iterable[Path]) -> Layout:
    """Return the layout of new files of a table that has, or is about to get, this protocol and metadata.

    `clustering`: the clustering columns, as paths of physical names. Raises InvalidProperty if the table demands files
    that this engine does not write, UnsupportedFeature if no file can hold its rows.
    """
    plain = plain_layout(context.store, protocol, metadata, clustering, context.job_id)
    schema = table_schema(metadata, context.root)
    expectations = tuple(each.expected for each in expectations_of(context, schema))
    columns = to_arrow(bare_columns(schema))
    samples = samples_layout(context, columns)
    return replace(
        plain,
        must_check=may_break_rules(metadata, schema) or any(each.condition is None for each in expectations),
        expectations=expectations,
        rules=plain_rules(context, schema, constraints_of(metadata)),
        discards=context.is_dry_run,
        elsewhere=samples or quarantine_layout(context, columns, expectations),
        samples=None if samples is None else MOST_SAMPLES,
    )


def plain_layout(
    store: Store, protocol: Protocol | None, metadata: Metadata, clustering: Iterable[Path], job_id: str
) -> Layout:
    """Return the layout of files of a table for rows that were checked before. Raises as `layout_for` does."""
    properties = TableProperties(metadata.configuration, store.root)
    schema = table_schema(metadata, store.root)
    check_rows_have_place(schema, metadata.partition_columns, store.root)
    # The metadata may spell a partition column in another case than the schema.
    partition_columns = [(name, schema.find(name)) for name in metadata.partition_columns]
    return Layout(
        store=StoreReference.of(store),
        schema=arrow_schema(schema, mapping_mode(metadata.configuration, store.root)),
        partition_columns=tuple(name if found is None else found.name for name, found in partition_columns),
        job_id=job_id,
        indexed_columns=indexed_columns(schema, properties, clustering),
        num_indexed_columns=properties.num_indexed_columns,
        target_bytes=properties.target_file_bytes or TARGET_BYTES_DEFAULT,
        parquet=properties.parquet,
        materializes=protocol is not None and "materializePartitionColumns" in writer_features(protocol),
    )


def input_layout(context: JobContext, schema: pa.Schema) -> Layout:
    """Return the layout of files of the inputs folder with these columns."""
    context.has_inputs = True
    return Layout(
        store=StoreReference.of(context.store),
        folder=context.inputs_folder,
        schema=schema,
        partition_columns=(),
        job_id=context.job_id,
        indexed_columns=(),
        # Read back soon and then deleted: small size is not worth slow writing. Without dictionaries the footers have
        # the bytes of the values, however often they repeat.
        parquet=ParquetFormat(codec="SNAPPY", with_dictionaries=False),
        with_digests=context.seal is not None,
        row_group_bytes=_INPUT_GROUP_BYTES,
    )


def quarantine_layout(context: JobContext, schema: pa.Schema, expectations: Sequence[Expected]) -> Layout | None:
    """Return the layout of rows with these columns in quarantine; None if no expectation quarantines.

    Raises SchemaMismatch for a column that has the name of another one there.
    """
    if context.is_dry_run or all(each.quarantines is None for each in expectations):
        return None
    if any(field.name.lower() == FAILED_COLUMN for field in schema):
        raise SchemaMismatch(
            f"{context.root}: rows in quarantine have a column {FAILED_COLUMN!r}, and the rows have one of that name "
            "too. Rename it in the source. Nothing was staged.",
            columns=[FAILED_COLUMN],
        )
    return input_layout(context, quarantine_schema(schema))


def samples_layout(context: JobContext, schema: pa.Schema) -> Layout | None:
    """Return the layout of samples of rows with these columns; None unless the job is a dry run with samples.

    Raises SchemaMismatch for a column that has the name of another one there.
    """
    if not context.takes_samples:
        return None
    if any(field.name.lower() == CHANGE_TYPE_COLUMN for field in schema):
        raise SchemaMismatch(
            f"{context.root}: samples_to writes rows with a column {CHANGE_TYPE_COLUMN!r}, and the table has one of "
            "that name too. Leave samples_to out. Nothing was staged.",
            columns=[CHANGE_TYPE_COLUMN],
        )
    return input_layout(context, pa.schema([*(field.with_nullable(True) for field in schema), CHANGE_TYPE_FIELD]))


@dataclass(kw_only=True)
class Work:
    """The work of one `Executor.write`: tasks, and frames, which only a Spark session can give.

    `rows` are frames of whole new rows; `images` are new images, each with the type of their change rows.
    """

    layout: Layout
    tasks: list[BinTask] = field(default_factory=list)
    rows: list[DataFrame] = field(default_factory=list)
    images: list[tuple[FrameImages, str | None]] = field(default_factory=list)


class NewRows(Interface):
    """New rows of a table, or new images of rows."""

    copies_files: ClassVar[bool]
    """Whether the task that writes the images also copies the other rows of a file, if the plan marks it as copied."""

    def add_to(self, work: Work, change_type: str | None) -> None:
        """Add the rows to the work; with a change type, they are also written as change rows of that type."""


@dataclass(frozen=True)
class TaskRows:
    """Rows that a task reads: they have columns of the table, of its types, and maybe a segment. See `NewRows`."""

    task: Task
    copies_files: ClassVar[bool] = False

    def add_to(self, work: Work, change_type: str | None) -> None:
        typed = () if change_type is None else (partial(of_type, change_type),)
        work.tasks.append(replace(self.task, layout=work.layout, steps=(*self.task.steps, *typed)))


@dataclass(frozen=True, kw_only=True)
class TaskImages:
    """Images with values that follow from the row and the source row that it met. See `NewRows`, `ImageTask`."""

    values: NewImages
    bins: Bins
    copies_files: ClassVar[bool] = True

    def add_to(self, work: Work, change_type: str | None) -> None:
        work.tasks.append(ImageTask(bins=self.bins, layout=work.layout, values=self.values, change_type=change_type))


def type_of_new(layout: Layout) -> str | None:
    """Return the change type of rows that a write adds: none, unless samples of them are taken."""
    return None if layout.samples is None else INSERT


class Staged(NamedTuple):
    """New files, and how their rows were judged by the expectations of the job, by segment.

    `elsewhere` are files of the inputs folder with rows for another table.
    """

    files: list[StagedFile]
    judged: list[Judged]
    elsewhere: Sequence[StagedFile] = ()


def stage(
    context: JobContext,
    layout: Layout,
    new: Sequence[tuple[NewRows, str | None]],
    *,
    copies: FilePlan | None = None,
    joint: FilePlan | None = None,
    leaving: FilePlan | None = None,
    updates: frozenset[int] = frozenset(),
) -> Staged:
    """Stage `new` rows, each with its change type, and copies of planned files without their positions, all at once.

    The files of a segment of `joint` are copied into one, as a compaction does it.
    Change rows are written of the rows at the positions of `leaving`; the clauses `updates` update a row.
    Raises the first error of a task, after deleting the staged files.
    """
    work = Work(layout=layout)
    if copies is not None and copies.num_files:
        work.tasks.append(CopyTask(bins=bins_for(context, copies, in_pieces=True), layout=layout))
    if joint is not None and joint.num_files:
        work.tasks.append(CompactTask(bins=bins_by_segment(context, joint)[0], layout=layout, rows="others"))
    if leaving is not None and leaving.num_files:
        work.tasks.append(leaving_task(bins_for(context, leaving, in_pieces=True), layout, updates))
    for rows, change_type in new:
        rows.add_to(work, change_type)
    if not (work.tasks or work.rows or work.images):
        return Staged([], [])
    return reported(context, context.executor.write(context, work))


def load(context: JobContext, task: Task, what: str) -> Staged:
    """Stage the rows that a task reads; in this process if they are the work of one task. Raises as `reported`."""
    if len(task.bins) == 1:
        return reported(context, run_here([(task, bin_number(0))], RECORD_SCHEMA, what, 1))
    return reported(context, context.executor.run([task], RECORD_SCHEMA, what))


class _Record(msgspec.Struct):
    staged: StagedFile | None = None


_STAGED = msgspec.json.Decoder(_Record)
"""Reads the records of staged files, of which there may be many, in a tenth of the time."""


def _read(record: str) -> StagedFile | Judged | Elsewhere | TxlogError:
    try:
        return _STAGED.decode(record).staged or report_of(record)
    except msgspec.DecodeError:
        # Python's JSON of an error may have NaN, or half a character of a file's name.
        return report_of(record)


def staged_of(context: JobContext, records: pa.Table) -> list[StagedFile]:
    """Return the files in a table RECORD_SCHEMA. Raises as `reported` does."""
    return reported(context, records).files


def reported(context: JobContext, records: pa.Table) -> Staged:
    """Return the files and the counts in a table RECORD_SCHEMA.

    Raises the first TxlogError among the records, after deleting the files.
    """
    found = [_read(text) for text in records.column(RECORD_COLUMN).to_pylist()]
    staged = [entry for entry in found if isinstance(entry, StagedFile)]
    errors = [entry for entry in found if isinstance(entry, TxlogError)]
    elsewhere = [entry.file for entry in found if isinstance(entry, Elsewhere)]
    if errors:
        unstage(context.store, [*staged, *elsewhere])
        raise errors[0]
    return Staged(staged, [entry for entry in found if isinstance(entry, Judged)], elsewhere)
