"""What Spark's Python workers run: callables for `mapInArrow` over a numbered range, or over rows to be written.

A task is made of parts: a source of rows (`FileScan` and its siblings), steps that change the rows, and what becomes of
them: they are yielded, or written (`layout`). All parts are values of module-level classes and functions, so that they
travel by reference to this package and carry nothing but data.
The invariants: a scan raises what is wrong in a form that the driver can read back from any text (`TaskFailed`); a
stage that writes never raises what it foresees, but returns it as a record, so that the driver still learns of every
file that was staged. Results of a writing task are true only when they were collected, once.
Source: soundness B9, B10, A17.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import addresses, addresses_of, named_rows, unpack
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions, deleted_rows
from airflow_txlog.datafiles.failures import TaskFailed, text_of
from airflow_txlog.datafiles.installed import check_worker, unfit_for_store
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet
from airflow_txlog.datafiles.parquet.reading import (
    names_in_file,
    open_data_file,
    read_batches,
    row_group_starts,
    table_columns,
)
from airflow_txlog.datafiles.parquet.writing import SEGMENT_COLUMN, Layout, PartitionedWriter
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.plans import Bins, PlannedFile
from airflow_txlog.errors import ConstraintViolation, JobError, TxlogError, from_dict
from airflow_txlog.sql.evaluation import passing
from airflow_txlog.sql.expression import Expression
from airflow_txlog.storage import Store

VIOLATION_COLUMN = "_txlog_violation"


def without_violations(batch: pa.RecordBatch, *, must_check: bool) -> pa.RecordBatch:
    """The batch without the column of violations. Raises ConstraintViolation for the first row that breaks a rule.

    Raises JobError where the column is owed (`must_check`) and not there: a mistake of ours, not of the rows.
    """
    index = batch.schema.get_field_index(VIOLATION_COLUMN)
    if index < 0:
        if must_check:
            raise JobError("New rows reached the writer without a check of the table's rules. Nothing was committed.")
        return batch
    column = batch.column(index)
    if column.null_count < len(column):
        broken = column.drop_null()
        first = broken[0]
        raise _violation(first.as_py(), pc.sum(pc.equal(broken, first)).as_py())
    return batch.remove_column(index)


def _violation(text: str, count: int) -> ConstraintViolation:
    """The error that names the rule, the columns that it reads, and how many rows break it; never what is in them.

    `text`: `{"constraint", "column", "what", "columns": [names]}`; `count`: the rows of one batch.
    """
    violation = json.loads(text)
    columns = ", ".join(violation.get("columns") or [])
    return ConstraintViolation(
        f"{f'{count} rows or more break' if count > 1 else 'A row breaks'} {violation['what']}"
        f"{f' (it reads {columns})' if columns else ''}. Nothing was committed. Correct such rows, or leave them out, "
        "in the SQL that makes them.",
        constraint=violation["constraint"],
        column=violation.get("column"),
    )


ADDRESS_COLUMN = "_txlog_address"
ROW_ID_COLUMN = "_txlog_row"
CLAUSE_COLUMN = "_txlog_clause"
PART_COLUMN = "_txlog_part"
RECORD_COLUMN = "record"
RESERVED_PREFIX = "_txlog_"

RECORD_SCHEMA = pa.schema([pa.field(RECORD_COLUMN, pa.string())])

_Task = TypeVar("_Task")
_Batches = Iterator[pa.RecordBatch]

Step: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What becomes of a task's rows: a function of this package, its other arguments bound by `functools.partial`."""


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
class FileScan:
    """A source of rows: a table's data files.

    Columns: those of `schema`, then, where asked, the row's address (int64), for each position the row id (int64) and
    the clause (int32) that the plan has beside it, and the file's segment (int32). `rows` says which rows: all that no
    deletion vector deletes, or ("only") those at the plan's positions; of a file without positions they are all. An
    address counts the rows as the file has them, deleted ones too. Rows come in the order of the bin's files, and in
    each in the file's. `row_filter`, where all rows are read, drops rows that are of no interest; it looks at columns
    of `schema`.
    """

    bins: Bins
    schema: pa.Schema
    rows: Literal["all", "only"] = "all"
    with_address: bool = False
    with_row_id: bool = False
    with_clause: bool = False
    with_segment: bool = False
    row_filter: Expression | None = None

    @cached_property
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

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        """The rows of one file of the plan. Raises TxlogError."""
        in_file = [field for field in self.schema if field.name not in planned.constants]
        asked = None if self.rows == "all" or planned.positions is None else unpack(planned.positions)
        if asked is not None and not in_file:
            # Nothing of the file is wanted but which rows there are, and those are known.
            for first, positions in asked.parts():
                rows, numbers = _rows_without_columns(len(positions)), addresses_of(planned.index, positions)
                yield self._output(planned, rows, numbers, (first, first + len(positions)))
            return
        with open_data_file(planned.file) as parquet:
            yield from self.rows_in(planned, parquet, asked)

    def rows_in(
        self, planned: PlannedFile, parquet: OpenParquet, asked: RowPositions | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a file that is open; those of `asked` alone where it is given."""
        in_file = [field for field in self.schema if field.name not in planned.constants]
        groups = self._groups(planned, parquet)
        if asked is not None:
            groups = _groups_with_positions(asked, parquet, groups)
        deleted = deleted_rows(planned.deleted, planned.file.name, parquet.metadata.num_rows)
        for start, batch in read_batches(planned.file, parquet, in_file, row_groups=groups):
            if asked is not None:
                yield from self.asked_rows(planned, asked, start, batch)
            else:
                # Numbered as the file has its rows, and only then filtered (soundness A19).
                numbers = addresses(planned.index, start, batch.num_rows) if self.with_address else None
                keep = None if deleted is None else deleted.keep(start, batch.num_rows)
                yield from self._filtered(self._output(planned, batch, numbers, None, keep))

    def _groups(self, planned: PlannedFile, parquet: OpenParquet) -> Sequence[int]:
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
        """The columns of `schema` for these rows of the file."""
        return table_columns(planned.file, rows, self.schema, planned.constants)


class RowSource(Protocol):
    """Where a task's rows come from: files of a plan, cut into bins."""

    @property
    def bins(self) -> Bins:
        """The work of each task."""

    @property
    def output_schema(self) -> pa.Schema:
        """What the batches hold."""

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        """The rows of one file of the plan. Raises TxlogError."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The rows of a source, which go through the steps, for `spark.range(0, len(bins), 1, len(bins))`.

    The rows are yielded; where there is a `layout`, they are written to new data files, and what is yielded is one
    record for each file, after the last row. Written rows have columns of the layout, of the same types, or some of
    them. `numbers_rows`: as of WriteTask, by the number of the bin. `more_weight`: what it costs to read all files that
    steps read, as of Bins.
    """

    source: RowSource
    steps: tuple[Step, ...] = ()
    layout: Layout | None = None
    numbers_rows: bool = False
    more_weight: int = 0

    @property
    def bins(self) -> Bins:
        """The work of each task."""
        return self.source.bins

    @property
    def weight(self) -> int:
        """What it costs to read all files, as of Bins."""
        return self.source.bins.weight + self.more_weight

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows; raises TaskFailed. Or records of staged files, and of what went wrong: then every file of this task
        is gone again."""
        use_one_thread()
        if self.layout is None:
            store = self.bins.store.open()
            for number in task_numbers(batches):
                yield from self._rows(number, store)
            return
        with writing(self.layout, batches) as (writer, report):
            store = self.bins.store_beside(writer.store)
            for number in task_numbers(batches):
                for batch in self._rows(number, store):
                    writer.write(batch)
        yield from report

    def _rows(self, number: int, store: Store) -> Iterator[pa.RecordBatch]:
        files = self.bins.files(number, store)
        rows: Iterator[pa.RecordBatch] = itertools.chain.from_iterable(map(self.source.rows_of, files))
        for step in self.steps:
            rows = step(rows)
        return _numbered(rows, number) if self.numbers_rows else rows


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
            rows = map(self._checked, batches)
            for batch in _numbered(rows) if self.numbers_rows else rows:
                writer.write(batch)
        yield from report

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        named = batch if self.names is None else batch.rename_columns(self.names)
        return without_violations(named, must_check=self.layout.must_check)


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


def _numbered(batches: Iterator[pa.RecordBatch], part: int | None = None) -> Iterator[pa.RecordBatch]:
    """The rows with ROW_ID_COLUMN: numbers of this part, which the rows say as PART_COLUMN where it is None."""
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


def _rows_without_columns(count: int) -> pa.RecordBatch:
    # Arrow counts rows by a column, so there is one, under a name that no table column has.
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=[RESERVED_PREFIX])


def _chosen(values: pa.Array | None, kind: pa.DataType, chosen: tuple[int, int]) -> pa.Array:
    """The values of the chosen positions; one value alone is that of them all, and none is -1."""
    first, end = chosen
    if values is None or len(values) == 1:
        return pa.repeat(pa.scalar(-1, kind) if values is None else values[0], end - first)
    return values.slice(first, end - first)


def gathered(batches: Iterable[pa.RecordBatch], most_rows: int, most_bytes: float = math.inf) -> Iterator[pa.Table]:
    """The rows of the batches, about so many or so many bytes of them at once."""
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
    """The numbers of the bins that are this task's work."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def use_one_thread() -> None:
    """Keep Arrow from starting a thread for each core in this worker."""
    # As many tasks run as there are cores; more threads would only take turns.
    pa.set_cpu_count(1)
