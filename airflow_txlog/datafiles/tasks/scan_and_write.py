"""Tasks: callables for `mapInArrow` over a numbered range, or over rows that Spark sends to be written.

A task has parts: a source of rows, steps that change the rows, and a sink, which yields or writes them (`layout`). All
parts are values of module-level classes and functions, so that they travel by reference and carry nothing but data.

The invariants: a scan raises errors in a form that the driver can read back from any text (`TaskFailed`). A task that
writes returns foreseen errors as records, so that the driver learns of every staged file; its records are true only if
they were collected, once. Rows of a table whose rules can be broken are never written without the column of violations.
Source: soundness B9, B10, A17, C8.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import pyarrow as pa

from airflow_txlog.datafiles.deletion_vectors.positions import (
    addresses,
    addresses_in_files,
    addresses_of,
    named_rows,
    unpack,
)
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions, deleted_rows, kept_by_both
from airflow_txlog.datafiles.failures import TaskFailed, text_of
from airflow_txlog.datafiles.installed import unfit_for_store
from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet
from airflow_txlog.datafiles.parquet.judging import Judged, without_violations
from airflow_txlog.datafiles.parquet.reading import (
    names_in_file,
    open_data_file,
    read_batches,
    row_group_starts,
    table_columns,
)
from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN
from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.plans import Bins, PlannedFile
from airflow_txlog.datafiles.tasks.small_files import Run, in_runs
from airflow_txlog.errors import JobError, TxlogError, from_dict
from airflow_txlog.sql.evaluation import passing
from airflow_txlog.sql.expression import Expression
from airflow_txlog.storage import Store

ADDRESS_COLUMN = "_txlog_address"
ROW_ID_COLUMN = "_txlog_row"
CLAUSE_COLUMN = "_txlog_clause"
PART_COLUMN = "_txlog_part"
RECORD_COLUMN = "record"
RESERVED_PREFIX = "_txlog_"
# The rows that are written at once.
_WRITTEN_ROWS = 8192
_WRITTEN_BYTES = 4 * 1024 * 1024
RECORD_SCHEMA = pa.schema([pa.field(RECORD_COLUMN, pa.string())])

_Task = TypeVar("_Task")
_Batches = Iterator[pa.RecordBatch]

Step: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The sink of a task's rows: a function of this package, its other arguments bound by `functools.partial`."""


def without_values(call: Callable[[_Task, _Batches], _Batches]) -> Callable[[_Task, _Batches], _Batches]:
    """Wrap a task's call so that it raises only TaskFailed: another exception's text may quote a row's value."""

    @functools.wraps(call)
    def guarded(task: _Task, batches: _Batches) -> _Batches:
        try:
            yield from call(task, batches)
        except TaskFailed:
            raise
        except TxlogError as error:
            raise TaskFailed(unfit_for_store(error)) from None
        except Exception as error:
            raise TaskFailed(JobError(text_of(error), cause_type=type(error).__name__)) from None

    return guarded


@dataclass(frozen=True, kw_only=True)
class FileScan:
    """A source of rows: a table's data files.

    The columns are those of `schema` and then, if requested, the row's address (int64), the row id (int64) and the
    clause (int32) that the plan has for each position, and the file's segment (int32). `rows` are all rows that no
    deletion vector deletes, or ("only") those at the plan's positions, which are all rows of a file without positions,
    or ("others") all rows that are not at them. An address counts deleted rows too. Rows keep the order of the bin's
    files and of each file. `row_filter` drops some of all rows; it reads columns of `schema`. `reads_all`: the schema
    has all columns of the files. `is_alone`: no other task runs, so the cores share the columns.
    """

    bins: Bins
    schema: pa.Schema
    rows: Literal["all", "only", "others"] = "all"
    with_address: bool = False
    with_row_id: bool = False
    with_clause: bool = False
    with_segment: bool = False
    row_filter: Expression | None = None
    reads_all: bool = False
    is_read_again: bool = False
    is_alone: bool = False
    joins_files: ClassVar[bool] = True
    """Whether small files of Parquet may be read together: `rows_of` reads them as they are."""

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The schema of the batches; every column is nullable."""
        fields = [field.with_nullable(True).remove_metadata() for field in self.schema]
        extra = [
            (ADDRESS_COLUMN, pa.int64(), self.with_address),
            (ROW_ID_COLUMN, pa.int64(), self.with_row_id),
            (CLAUSE_COLUMN, pa.int32(), self.with_clause),
            (SEGMENT_COLUMN, pa.int32(), self.with_segment),
        ]
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind, asked in extra if asked)])

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file of the plan. Raises TxlogError."""
        in_file = [field for field in self.schema if field.name not in planned.constants]
        asked = unpack(planned.positions) if self.rows == "only" and planned.positions is not None else None
        if asked is not None and not in_file:
            # Only the addresses of rows are wanted, and those are known without the file.
            for first, positions in asked.parts():
                # Arrow counts rows by a column, so there is one, under a name that no table column has.
                rows = pa.RecordBatch.from_arrays([pa.nulls(len(positions))], names=[RESERVED_PREFIX])
                numbers = addresses_of(planned.index, positions)
                yield self._output(planned, rows, numbers, (first, first + len(positions)))
            return
        with open_data_file(planned.file, reads_all=self.reads_all, is_read_again=self.is_read_again) as parquet:
            yield from self.rows_in(planned, parquet, asked)

    def all_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all bins. Raises TxlogError."""
        store = self.bins.store.open()
        for number in range(len(self.bins)):
            yield from self.rows_of_files(self.bins.files(number, store))

    def rows_of_files(self, files: Iterable[PlannedFile]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files of the plan, small neighbours of one partition together. Raises TxlogError."""
        if not self.joins_files or self.with_row_id or self.with_clause:
            yield from itertools.chain.from_iterable(map(self.rows_of, files))
            return
        for run in in_runs(files, self.schema, reads_all=self.reads_all, is_read_again=self.is_read_again):
            try:
                rows = None if run.rows is None else self._of_run(run, run.rows)
            # One by one, the error names its file.
            except (TxlogError, ColumnMismatch, pa.ArrowException):
                rows = None
            if rows is None:
                yield from itertools.chain.from_iterable(map(self.rows_of, run.files))
            else:
                yield from self._filtered(rows)

    def _of_run(self, run: Run, rows: pa.RecordBatch) -> pa.RecordBatch:
        indexes = [planned.index for planned in run.files]
        numbers = addresses_in_files(indexes, run.counts) if self.with_address else None
        return self._output(run.files[0], rows, numbers, None, run.wanted(self.rows))

    def rows_in(
        self, planned: PlannedFile, parquet: OpenParquet, asked: RowPositions | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an open file; only those of `asked` if it is given."""
        in_file = [field for field in self.schema if field.name not in planned.constants]
        groups = self._groups(planned, parquet)
        if asked is None:
            batches = read_batches(planned.file, parquet, in_file, row_groups=groups, use_threads=self.is_alone)
            yield from self.rows_kept(planned, batches, parquet.metadata.num_rows)
            return
        groups = _groups_with_positions(asked, parquet, groups)
        for start, batch in read_batches(planned.file, parquet, in_file, row_groups=groups):
            yield from self.asked_rows(planned, asked, start, batch)

    def rows_kept(
        self, planned: PlannedFile, batches: Iterable[tuple[int, pa.RecordBatch]], num_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of these batches of a file of `num_rows` rows, each with the position of its first."""
        deleted = deleted_rows(planned.deleted, planned.file.name, num_rows)
        leaving = unpack(planned.positions if self.rows == "others" else None)
        for start, batch in batches:
            # Rows are numbered as in the file, before they are filtered (soundness A19).
            numbers = addresses(planned.index, start, batch.num_rows) if self.with_address else None
            keep = None if deleted is None else deleted.keep(start, batch.num_rows)
            keep = kept_by_both(keep, leaving.keep(start, batch.num_rows))
            yield from self._filtered(self._output(planned, batch, numbers, None, keep))

    def _groups(self, planned: PlannedFile, parquet: OpenParquet) -> Sequence[int]:
        """Return the row groups that may contain a wanted row."""
        return planned.row_groups(parquet.metadata.num_row_groups)

    def asked_rows(
        self, planned: PlannedFile, asked: RowPositions, start: int, batch: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows at the positions `asked` of a batch that begins at `start`; no batch if there are none.

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
        """Yield the rows that pass the filter; no batch if none does."""
        if self.row_filter is not None:
            keep = passing(self.row_filter, rows)
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
        columns = self._columns(planned, rows)
        if self.with_address and numbers is not None:
            columns.append(numbers if keep is None else numbers.filter(keep))
        if self.with_row_id:
            columns.append(_chosen(planned.row_ids, pa.int64(), chosen or (0, rows.num_rows)))
        if self.with_clause:
            columns.append(_chosen(planned.clauses, pa.int32(), chosen or (0, rows.num_rows)))
        if self.with_segment:
            columns.append(pa.repeat(pa.scalar(planned.segment, pa.int32()), rows.num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.output_schema)

    def _columns(self, planned: PlannedFile, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of `schema` for these rows of the file."""
        return table_columns(planned.file, rows, self.schema, planned.constants)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The rows of a source after the steps, for `spark.range(0, len(bins), 1, len(bins))`.

    With a `layout` the rows are written, and the task yields one record for each file, after the last row. Written rows
    have columns of the layout, of its types; some may be missing. `numbers_rows`: as of WriteTask, with the number of
    the bin. `more_weight`: the cost of the files that steps read, as of Bins.
    """

    source: FileScan
    steps: tuple[Step, ...] = ()
    layout: Layout | None = None
    numbers_rows: bool = False
    more_weight: int = 0

    @property
    def bins(self) -> Bins:
        return self.source.bins

    @property
    def weight(self) -> int:
        return self.source.bins.weight + self.more_weight

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, or raise TaskFailed; or yield records of files, or of an error: then no file is left."""
        if not self.source.is_alone:
            use_one_thread()
        if self.layout is None:
            store = self.bins.store.open()
            for number in task_numbers(batches):
                yield from self._numbered(self._rows(number, store), number)
            return
        with writing(self.layout, batches) as (writer, report):
            store = self.bins.store_beside(writer.store)
            for number in task_numbers(batches):
                for rows in gathered(self._written(writer, number, store), _WRITTEN_ROWS, _WRITTEN_BYTES):
                    # Tiny batches, as of tiny files, are joined: each costs as much as thousands of rows.
                    for batch in rows.combine_chunks().to_batches():
                        writer.write(batch)
        yield from report

    def _rows(self, number: int, store: Store) -> Iterator[pa.RecordBatch]:
        files = self.bins.files(number, store)
        rows = self.source.rows_of_files(files)
        for step in self.steps:
            rows = step(rows)
        return rows

    def _written(self, writer: PartitionedWriter, number: int, store: Store) -> Iterator[pa.RecordBatch]:
        # The numbers of the rows that are written have no gaps.
        return self._numbered(writer.kept(self._rows(number, store)), number)

    def _numbered(self, rows: _Batches, number: int) -> _Batches:
        return _numbered(rows, number) if self.numbers_rows else rows


@dataclass(frozen=True, kw_only=True)
class WriteTask:
    """Writes rows from Spark as new data files; one record a file, after the last row.

    `numbers_rows`: the rows come with PART_COLUMN, one number a task, and are written with ROW_ID_COLUMN instead, which
    is unique in the job. `names` are the columns' names, in order, if the batches use others.
    """

    layout: Layout
    names: tuple[str, ...] | None = None
    numbers_rows: bool = False

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield records of staged files, or of an error: then every file of this task is deleted."""
        use_one_thread()
        with writing(self.layout, batches) as (writer, report):
            named = batches if self.names is None else (batch.rename_columns(self.names) for batch in batches)
            rows = (without_violations(b, must_check=self.layout.must_check) for b in writer.kept(named))
            for batch in _numbered(rows) if self.numbers_rows else rows:
                writer.write(batch)
        yield from report


@contextlib.contextmanager
def writing(
    layout: Layout, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[PartitionedWriter, list[pa.RecordBatch]]]:
    """Yield a writer, and the list of records that the task is to yield after the block.

    If the block or the end of a file raises, every file of the writer is deleted. A TxlogError becomes the record and
    does not leave the block. `batches` are the rows from Spark.
    """
    report: list[pa.RecordBatch] = []
    writer = PartitionedWriter(layout)
    try:
        yield writer, report
        staged = writer.finish()
        if staged:
            report.append(records(staged))
        elsewhere = writer.finish_elsewhere()
        if writer.judged or elsewhere:
            report.append(_judgements(writer.judged, elsewhere))
    except TxlogError as error:
        writer.abandon()
        # Spark keeps sending; a worker that stops listening would look like one that died.
        for _ in batches:
            pass
        report.append(error_record(error))
    except BaseException:
        writer.abandon()
        raise


@dataclass(frozen=True)
class Elsewhere:
    """A staged file of rows for another table."""

    file: StagedFile


def report_of(record: str) -> StagedFile | Judged | Elsewhere | TxlogError:
    """Return what a record of a writing task holds: a staged file, the counts of judged rows, or the error."""
    data = json.loads(record)
    if "elsewhere" in data:
        return Elsewhere(StagedFile(**data["elsewhere"]))
    if "judged" in data:
        return Judged(**data["judged"] | {"failed": tuple(data["judged"]["failed"])})
    return from_dict(data["error"]) if "error" in data else StagedFile(**data["staged"])


def records(staged: list[StagedFile]) -> pa.RecordBatch:
    """Return the records of staged files."""
    texts = [f'{{"staged":{file.to_json()}}}' for file in staged]
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=RECORD_SCHEMA)


def _judgements(judged: list[Judged], elsewhere: list[StagedFile]) -> pa.RecordBatch:
    """Return the records of counts, and of files of rows for another table."""
    texts = [json.dumps({"judged": dataclasses.asdict(each)}) for each in judged]
    texts += [f'{{"elsewhere":{file.to_json()}}}' for file in elsewhere]
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=RECORD_SCHEMA)


def error_record(error: TxlogError) -> pa.RecordBatch:
    """Return the record of an error."""
    text = json.dumps({"error": error.to_dict()}, default=str)
    return pa.RecordBatch.from_arrays([pa.array([text], pa.string())], schema=RECORD_SCHEMA)


def _numbered(batches: Iterator[pa.RecordBatch], part: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows with ROW_ID_COLUMN: numbers of this part, or of the part in PART_COLUMN if it is None."""
    before = 0
    for batch in batches:
        number, rows = part, batch
        if number is None:
            number = batch.column(PART_COLUMN)[0].as_py() if batch.num_rows else 0
            rows = batch.drop_columns([PART_COLUMN])
        yield rows.append_column(ROW_ID_COLUMN, addresses(number, before, batch.num_rows))
        before += batch.num_rows


def _groups_with_positions(asked: RowPositions, parquet: Any, groups: Sequence[int]) -> list[int]:
    starts = row_group_starts(parquet)
    return [group for group in groups if asked.num_before(starts[group]) < asked.num_before(starts[group + 1])]


def _chosen(values: pa.Array | None, kind: pa.DataType, chosen: tuple[int, int]) -> pa.Array:
    """Return the values of the chosen positions. A single value applies to all; without values each is -1."""
    first, end = chosen
    if values is None or len(values) == 1:
        return pa.repeat(pa.scalar(-1, kind) if values is None else values[0], end - first)
    return values.slice(first, end - first)


def gathered(batches: Iterable[pa.RecordBatch], most_rows: int, most_bytes: float = math.inf) -> Iterator[pa.Table]:
    """Yield the rows of the batches in tables of about `most_rows` rows or `most_bytes` bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        waiting.append(batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        if rows >= most_rows or size_bytes >= most_bytes:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if rows:
        yield pa.Table.from_batches(waiting)


def task_numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """Yield the numbers of the bins that are this task's work."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def use_one_thread() -> None:
    """Keep Arrow from starting a thread for each core in this worker."""
    # As many tasks run as there are cores; more threads would only take turns.
    pa.set_cpu_count(1)
