"""What Spark's Python workers run: callables for `mapInArrow` over a numbered range, or over rows to be written.

They are values of module-level classes, so that they travel by reference to this package and carry nothing but data.
The invariants: a scan raises what is wrong in a form that the driver can read back from any text (`TaskFailed`); a
stage that writes never raises what it foresees, but returns it as a record, so that the driver still learns of every
file that was staged. Results of a writing task are true only when they were collected, once.
Source: soundness B9, B10, A17.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.datafiles.deletion_vectors.positions import addresses, addresses_of, named_rows, unpack
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions, deleted_rows
from airflow_txlog.datafiles.failures import TaskFailed, text_of
from airflow_txlog.datafiles.installed import check_worker, unfit_for_store
from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, columns_of_file
from airflow_txlog.datafiles.parquet.output import RowGroupWriter, StagedFile, file_suffix
from airflow_txlog.datafiles.parquet.reading import (
    corrupt_column,
    names_in_file,
    open_data_file,
    read_batches,
    row_group_starts,
)
from airflow_txlog.datafiles.parquet.rewriting import (
    copy_key_values,
    copy_options,
    copy_schema,
    copy_without,
    open_for_copy,
)
from airflow_txlog.datafiles.parquet.writing import SEGMENT_COLUMN, Layout, PartitionedWriter
from airflow_txlog.datafiles.partitioning import encode_add_path
from airflow_txlog.datafiles.tasks.plans import Bins, PlannedFile
from airflow_txlog.datafiles.tasks.row_filter import RowFilter, passing
from airflow_txlog.datafiles.tasks.violations import without_violations
from airflow_txlog.errors import JobError, TxlogError, from_dict
from airflow_txlog.storage import Store

ADDRESS_COLUMN = "_txlog_address"
ROW_ID_COLUMN = "_txlog_row"
CLAUSE_COLUMN = "_txlog_clause"
PART_COLUMN = "_txlog_part"
RECORD_COLUMN = "record"
RESERVED_PREFIX = "_txlog_"

RECORD_SCHEMA = pa.schema([pa.field(RECORD_COLUMN, pa.string())])

_Task = TypeVar("_Task")
_Batches = Iterator[pa.RecordBatch]


def without_values(call: Callable[[_Task, _Batches], _Batches]) -> Callable[[_Task, _Batches], _Batches]:
    """A task's call whose exceptions are all TaskFailed: the text of another may quote a row's value."""

    @functools.wraps(call)
    def guarded(task: _Task, batches: _Batches) -> _Batches:
        try:
            check_worker()
            yield from call(task, batches)
        except TaskFailed:
            raise
        except TxlogError as error:
            raise TaskFailed(unfit_for_store(error)) from None
        except Exception as error:
            raise TaskFailed(JobError(text_of(error), cause_type=type(error).__name__)) from None

    return guarded


@dataclass(frozen=True, kw_only=True)
class ScanTask:
    """Rows of data files as Spark wants them, for `spark.range(0, len(bins), 1, len(bins))`.

    Columns: those of `schema`, then, where asked, the row's address (int64), for each position the row id (int64) and
    the clause (int32) that the plan has beside it, and the file's segment (int32). `rows` says which rows: all that no
    deletion vector deletes, or only those at the plan's positions. An address counts the rows as the file has them,
    deleted ones too. Rows come in the order of the bin's files, and in each in the file's. `row_filter`, where all rows
    are read, drops rows that are of no interest; it looks at columns of `schema`.
    """

    bins: Bins
    schema: pa.Schema
    rows: Literal["all", "only"] = "all"
    with_address: bool = False
    with_row_id: bool = False
    with_clause: bool = False
    with_segment: bool = False
    row_filter: RowFilter | None = None

    @property
    def output_schema(self) -> pa.Schema:
        """What the batches hold; every column nullable."""
        fields = [field.with_nullable(True).remove_metadata() for field in self.schema]
        extra = [
            (ADDRESS_COLUMN, pa.int64(), self.with_address),
            (ROW_ID_COLUMN, pa.int64(), self.with_row_id),
            (CLAUSE_COLUMN, pa.int32(), self.with_clause),
            (SEGMENT_COLUMN, pa.int32(), self.with_segment),
        ]
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind, asked in extra if asked)])

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One batch for each batch of the files; raises TaskFailed."""
        use_one_thread()
        store = self.bins.store.open()
        for number in task_numbers(batches):
            for planned in self.bins.files(number, store):
                yield from self.rows_of(planned)

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        """The rows of one file of the plan. Raises TxlogError."""
        in_file = [field for field in self.schema if field.name not in planned.constants]
        asked = unpack(planned.positions)
        if self.rows == "only" and not in_file:
            # Nothing of the file is wanted but which rows there are, and those are known.
            for first, positions in asked.parts():
                rows, numbers = _rows_without_columns(len(positions)), addresses_of(planned.index, positions)
                yield self._output(planned, rows, numbers, (first, first + len(positions)))
            return
        with open_data_file(planned.file) as parquet:
            groups = self._groups(planned, parquet)
            if self.rows == "only":
                groups = _groups_with_positions(asked, parquet, groups)
            deleted = deleted_rows(planned.deleted, planned.file.name, parquet.metadata.num_rows)
            names = names_in_file(planned.file, parquet.schema_arrow, in_file)
            for start, batch in read_batches(planned.file, parquet, names, row_groups=groups):
                if self.rows == "only":
                    yield from self.asked_rows(planned, asked, start, batch)
                else:
                    # Numbered as the file has its rows, and only then filtered (soundness A19).
                    numbers = addresses(planned.index, start, batch.num_rows) if self.with_address else None
                    keep = None if deleted is None else deleted.keep(start, batch.num_rows)
                    yield from self._filtered(self._output(planned, batch, numbers, None, keep))

    def _groups(self, planned: PlannedFile, parquet: Any) -> Sequence[int]:
        """The row groups of an open file in which a wanted row may be."""
        return planned.row_groups(parquet.metadata.num_row_groups)

    def asked_rows(
        self, planned: PlannedFile, asked: RowPositions, start: int, batch: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        """The rows at the positions `asked` of one batch of the file, which begins at `start`; no batch for none.

        The batch may have more columns than are wanted. Raises TxlogError.
        """
        in_file = [field for field in self.schema if field.name not in planned.constants]
        names = names_in_file(planned.file, batch.schema, in_file)
        chosen, first, end = named_rows(asked, start, batch.select(names) if names else batch)
        if end > first:
            numbers = None
            if self.with_address:
                numbers = addresses_of(planned.index, asked.positions(start, start + batch.num_rows))
            yield self._output(planned, chosen, numbers, (first, end))

    def _filtered(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that pass the filter; no batch where none does."""
        if self.row_filter is not None:
            keep = passing(self.row_filter, dict(zip(rows.schema.names, rows.columns, strict=True)))
            if keep.false_count:
                rows = rows.filter(keep)
                if not rows.num_rows:
                    return
        yield rows

    def _output(
        self,
        planned: PlannedFile,
        batch: pa.RecordBatch,
        numbers: pa.Array | None,
        chosen: tuple[int, int] | None,
        keep: pa.BooleanArray | None = None,
    ) -> pa.RecordBatch:
        rows = batch if keep is None else batch.filter(keep)
        try:
            columns = columns_of_file(rows, self.schema, planned.constants)
        except ColumnMismatch as error:
            raise corrupt_column(planned.file, error) from error
        if self.with_address and numbers is not None:
            columns.append(numbers if keep is None else numbers.filter(keep))
        if chosen is not None and self.with_row_id:
            columns.append(_chosen(planned.row_ids, pa.int64(), chosen))
        if chosen is not None and self.with_clause:
            columns.append(_chosen(planned.clauses, pa.int32(), chosen))
        if self.with_segment:
            columns.append(pa.repeat(pa.scalar(planned.segment, pa.int32()), len(columns[0])))
        return pa.RecordBatch.from_arrays(columns, schema=self.output_schema)


@dataclass(frozen=True, kw_only=True)
class RewriteTask:
    """Copies of data files without the plan's positions, and without the rows that their deletion vectors delete.

    For a numbered range like a scan's; one record a file, or a part of a file. A copy of which no row is left is not
    made.
    """

    bins: Bins
    layout: Layout

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records of staged files, and of what went wrong."""
        use_one_thread()
        attempt = SYSTEM_CLOCK.unique_id()
        store = self.layout.store.open()
        planned_store = self.bins.store_beside(store)
        for number in task_numbers(batches):
            try:
                files = self.bins.files(number, planned_store)
            except TxlogError as error:
                yield error_record(error)
                continue
            for planned in files:
                try:
                    staged = self.copied(planned, attempt, store)
                except TxlogError as error:
                    yield error_record(error)
                    continue
                if staged is not None:
                    yield records([staged])

    def copied(
        self,
        planned: PlannedFile,
        attempt: str,
        store: Store,
        look: Callable[[int, pa.RecordBatch], None] | None = None,
    ) -> StagedFile | None:
        """The copy of one file in `store`, None where no row is left; a failed one leaves nothing.

        `look`: see `copy_without`.
        """
        writer: RowGroupWriter | None = None
        try:
            with open_for_copy(planned.file) as parquet:
                deleted = deleted_rows(planned.deleted, planned.file.name, parquet.metadata.num_rows)
                options = copy_options(parquet, self.layout.parquet)
                path = self._path(planned, attempt, options["compression"])
                schema = copy_schema(parquet, self.layout.schema)
                writer = RowGroupWriter(
                    store,
                    path,
                    schema,
                    options=options,
                    key_values=copy_key_values(parquet),
                    statistics=self.layout.statistics_for(schema),
                )
                groups = planned.row_groups(parquet.metadata.num_row_groups)
                copy_without(planned.file, parquet, planned.positions or b"", writer, deleted, groups, look)
            closed = writer.close()
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise
        if closed is None:
            return None
        size_bytes, modification_time_ms, stats = closed
        return StagedFile(
            path=encode_add_path(path),
            partition_values=planned.partition_values,
            size_bytes=size_bytes,
            modification_time_ms=modification_time_ms,
            num_records=writer.num_records,
            stats=stats,
            source=planned.index,
        )

    def _path(self, planned: PlannedFile, attempt: str, compression: str | dict[str, str]) -> str:
        number = f"{planned.index:05d}" if planned.parts == 1 else f"{planned.index:05d}-{planned.part}"
        name = f"part-{self.layout.job_id}-{attempt}.c{number}{file_suffix(compression)}"
        directory = planned.directory or self.layout.prefix(attempt)
        return f"{directory}/{name}" if directory else name


@dataclass(frozen=True, kw_only=True)
class WriteTask:
    """Rows from Spark as new data files; one record a file, after the last row.

    `numbers_rows`: the rows come with PART_COLUMN, one number a task, and leave with ROW_ID_COLUMN instead, which is
    unique among the collected files of a job. `names`: the columns' names, in order, where the batches use others.
    """

    layout: Layout
    names: tuple[str, ...] | None = None
    numbers_rows: bool = False

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records of staged files, or one of what went wrong: then every file of this task is gone again."""
        use_one_thread()
        with writing(self.layout, batches) as (writer, report):
            rows = 0
            for batch in batches:
                named = batch if self.names is None else batch.rename_columns(self.names)
                checked = without_violations(named, must_check=self.layout.must_check)
                writer.write(_numbered(checked, rows) if self.numbers_rows else checked)
                rows += batch.num_rows
        yield from report


@dataclass(frozen=True, kw_only=True)
class LoadTask:
    """Rows of files as new data files, read and written in one task; one record a file, after the last row.

    For a numbered range like a scan's. `scan` reads the columns of the layout, of the same types, or some of them.
    `numbers_rows`: as of WriteTask, by the number of the bin.
    """

    scan: ScanTask
    layout: Layout
    numbers_rows: bool = False

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records of staged files, or of what went wrong: then every file of this task is gone again."""
        use_one_thread()
        with writing(self.layout, batches) as (writer, report):
            bins = self.scan.bins
            store = bins.store.open()
            for number in task_numbers(batches):
                rows = 0
                for planned in bins.files(number, store):
                    for batch in self.scan.rows_of(planned):
                        if self.numbers_rows:
                            batch = batch.append_column(ROW_ID_COLUMN, addresses(number, rows, batch.num_rows))
                        writer.write(batch)
                        rows += batch.num_rows
        yield from report


@contextlib.contextmanager
def writing(
    layout: Layout, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[PartitionedWriter, list[pa.RecordBatch]]]:
    """A writer of a task's rows, and the records that the task is to yield once the block has ended.

    Where the block or the end of a file raises, every file of the writer is deleted; a TxlogError becomes the record,
    and does not leave the block. `batches` are what Spark sends the task.
    """
    report: list[pa.RecordBatch] = []
    writer = PartitionedWriter(layout)
    try:
        yield writer, report
        staged = writer.finish()
        if staged:
            report.append(records(staged))
    except TxlogError as error:
        writer.abandon()
        # Spark goes on sending; a worker that stops listening would look like one that died.
        for _ in batches:
            pass
        report.append(error_record(error))
    except BaseException:
        writer.abandon()
        raise


def staged_or_error(record: str) -> StagedFile | TxlogError:
    """What one record of a writing task says."""
    data = json.loads(record)
    return from_dict(data["error"]) if "error" in data else StagedFile(**data["staged"])


def records(staged: list[StagedFile]) -> pa.RecordBatch:
    """What a writing task reports of the files that it staged; `staged_or_error` reads it."""
    texts = [f'{{"staged":{file.to_json()}}}' for file in staged]
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=RECORD_SCHEMA)


def error_record(error: TxlogError) -> pa.RecordBatch:
    """What a writing task reports of an error; `staged_or_error` reads it."""
    text = json.dumps({"error": error.to_dict()}, default=str)
    return pa.RecordBatch.from_arrays([pa.array([text], pa.string())], schema=RECORD_SCHEMA)


def _numbered(batch: pa.RecordBatch, rows_before: int) -> pa.RecordBatch:
    part = batch.schema.get_field_index(PART_COLUMN)
    number = batch.column(part)[0].as_py() if batch.num_rows else 0
    names = [ROW_ID_COLUMN if name == PART_COLUMN else name for name in batch.schema.names]
    columns = list(batch.columns)
    columns[part] = addresses(number, rows_before, batch.num_rows)
    return pa.RecordBatch.from_arrays(columns, names=names)


def _groups_with_positions(asked: RowPositions, parquet: Any, groups: Sequence[int]) -> list[int]:
    starts = row_group_starts(parquet)
    return [group for group in groups if asked.num_before(starts[group]) < asked.num_before(starts[group + 1])]


def _rows_without_columns(count: int) -> pa.RecordBatch:
    # Arrow counts rows by a column, so there is one, under a name that no table column has.
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=[RESERVED_PREFIX])


def _chosen(values: pa.Array | None, kind: pa.DataType, chosen: tuple[int, int]) -> pa.Array:
    """The values of the chosen positions; one value alone is that of them all, and none is -1."""
    first, end = chosen
    if values is None or len(values) == 1:
        return pa.repeat(pa.scalar(-1, kind) if values is None else values[0], end - first)
    return values.slice(first, end - first)


def task_numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """The numbers of the bins that are this task's work."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def use_one_thread() -> None:
    """Keep Arrow from starting a thread for each core in this worker."""
    # As many tasks run as there are cores; more threads would only take turns.
    pa.set_cpu_count(1)
