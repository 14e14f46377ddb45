"""The rows that the caller of a job holds in its own process: an Arrow stream, written as it comes.

`rows_in_process` makes them the source of the jobs that run inside the block (`RowsInProcess` in their description).
The invariants: no more of the stream is held than the writers gather, and no row of it is read twice. Columns take the
table's types only by conversions that keep every value or fail; any other column is refused before a row is read.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from airflow_txlog.contract.operations import ByKeys
from airflow_txlog.contract.operations.base import SourceOperation
from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, convert_array
from airflow_txlog.datafiles.tasks.plans import PlannedFile
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.commit.content.metadata import WIDENING_PROPERTY
from airflow_txlog.engine.table.schema.rules import read_rules
from airflow_txlog.engine.table.schema.schema import INTEGERS, arrow_type, from_arrow
from airflow_txlog.engine.table.schema.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
    bare_columns,
)
from airflow_txlog.errors import InvalidJobSpec, JobError, SchemaMismatch
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import plan_of, sent_bins
from airflow_txlog.jobs.sql.columns import (
    check_names_are_free,
    no_such_column,
    rows_do_not_fit,
    shown_type,
    shown_types,
    without_not_null_column,
)

# A batch of the stream is passed on in pieces of so many rows.
_ROWS_AT_ONCE = 65_536
# So many bytes of rows become one file; more are written by several threads, a file each.
_FEW_BYTES = 32 * 1024 * 1024

_TIMES = (Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)
_FLOATS = (Primitive.FLOAT, Primitive.DOUBLE)
_WHAT = (
    "an Arrow table, record batch or reader, a pandas or polars DataFrame, or any other object with __arrow_c_stream__ "
    "(a relation of DuckDB)"
)


class ArrowRows:
    """Rows given as an object of Arrow, pandas or polars, or as any other Arrow stream. Read once.

    Nothing of a stream is read before the rows are staged. Raises InvalidJobSpec for another object, and SchemaMismatch
    for a column that no Arrow type or no table holds.
    """

    def __init__(self, data: object) -> None:
        schema, self._open = _stream_of(data)
        # What a sender notes about a column is no property of the table's.
        self.schema = schema.remove_metadata()
        self.schema = pa.schema([pa.field(each.name, each.type) for each in self.schema])
        if not self.schema.names:
            raise SchemaMismatch("The rows have no column. Nothing was staged.", columns=[])
        check_names_are_free(self.schema.names, "The source")
        self.columns = bare_columns(from_arrow(self.schema))
        self.error: BaseException | None = None
        """The error that the caller's own stream has raised."""
        self._is_read = False

    def feed(self, writers: int = 1) -> Feed:
        """Return the rows for at most this many writers, and only one if they are few. Raises JobError, retryable."""
        if self._is_read:
            raise JobError(
                "The rows of this task were read already, and are needed again: the table's rules have changed while "
                "they were written. Nothing was committed. Run the task again.",
                retryable=True,
            )
        self._is_read = True
        batches = self._guarded()
        first, size_bytes = list[pa.RecordBatch](), 0
        while writers > 1 and size_bytes < _FEW_BYTES:
            batch = next(batches, None)
            if batch is None:
                writers = 1
                break
            first.append(batch)
            size_bytes += batch.nbytes
        return Feed(itertools.chain(_given_away(first), batches), writers)

    def _guarded(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._open():
                # Readers may differ from their schema in nullability and notes.
                columns = list(batch.columns)
                whole = pa.RecordBatch.from_arrays(columns, schema=self.schema)
                for start in range(0, whole.num_rows, _ROWS_AT_ONCE):
                    yield whole.slice(start, _ROWS_AT_ONCE)
        except Exception as error:
            self.error = error
            # By class: then the files of all writers are deleted, also those of writers that had no part in it.
            raise JobError("The rows that the caller gives raised an error. Nothing was committed.") from error


class Feed:
    """The batches of a stream, for several threads that take turns."""

    def __init__(self, batches: Iterator[pa.RecordBatch], writers: int) -> None:
        self.writers = writers
        self._batches = batches
        self._lock = threading.Lock()
        self._is_over = False

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch; None after the last one, and after an error in any thread."""
        with self._lock:
            if self._is_over:
                return None
            try:
                batch = next(self._batches, None)
            except BaseException:
                self._is_over = True
                raise
            self._is_over = batch is None
            return batch

    def stop(self) -> None:
        """End the stream for all threads."""
        self._is_over = True


@dataclass(frozen=True, kw_only=True)
class GivenScan(FileScan):
    """The rows of a feed as the source of tasks of this process."""

    feed: Feed
    joins_files: ClassVar[bool] = False

    @cached_property
    def output_schema(self) -> pa.Schema:
        return self.schema

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        try:
            while (batch := self.feed.next()) is not None:
                yield batch
        finally:
            # A writer that fails leaves none of the others at work.
            self.feed.stop()


_held: ContextVar[ArrowRows | None] = ContextVar("rows_in_process", default=None)


@contextlib.contextmanager
def rows_in_process(rows: ArrowRows | None) -> Iterator[None]:
    """Make the rows the source of jobs that run in this thread inside the block."""
    token = _held.set(rows)
    try:
        yield
    finally:
        _held.reset(token)


@dataclass(frozen=True, kw_only=True)
class GivenRows:
    """The rows of the running job, in `columns` that fit its table."""

    rows: ArrowRows
    columns: StructType

    def scan(self, context: JobContext, writers: int = 1) -> GivenScan:
        """Return the scan of all rows, as the work of at most this many tasks."""
        feed = self.rows.feed(writers)
        names = ["rows"] * feed.writers
        plan = plan_of(context.store, self.rows.schema, names, [0] * feed.writers)
        bins = sent_bins(context, plan, [[number] for number in range(feed.writers)])
        return GivenScan(feed=feed, bins=bins, schema=self.rows.schema)

    def values_of(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column. Raises SchemaMismatch."""
        field = self.columns.find(name)
        assert field is not None
        wanted, feed = arrow_type(field.type), self.rows.feed()
        try:
            arrays = [convert_array(batch.column(name), wanted, name) for batch in iter(feed.next, None)]
        except ColumnMismatch as error:
            raise SchemaMismatch(f"The rows: {error}. Nothing was changed.", columns=[name]) from error
        return pa.chunked_array(arrays, wanted)


def given_rows(context: JobContext, argument: str, target: Snapshot | None) -> GivenRows:
    """Return the rows that the caller has given, in columns that fit the `target` if they become rows of it.

    `argument` is the source's name in errors. Raises InvalidJobSpec without rows, SchemaMismatch and
    ConstraintViolation for columns that do not fit.
    """
    rows = _held.get()
    if rows is None:
        raise InvalidJobSpec(
            f'{argument}: rows="in_process" are the rows that TxlogHook().append and its siblings are given, and no '
            "operator takes them. Nothing was read.",
            argument=argument,
        )
    operation, columns = context.operation, rows.columns
    if isinstance(operation, SourceOperation) and target is not None:
        columns = _fitted(columns, target, operation)
    context.lineage.forget_source()
    context.lineage.views[""] = columns.names
    return GivenRows(rows=rows, columns=columns)


def _fitted(columns: StructType, target: Snapshot, operation: SourceOperation) -> StructType:
    table, is_upsert = target.delta_schema, isinstance(operation, ByKeys)
    may_widen = operation.schema_evolution and target.metadata.configuration.get(WIDENING_PROPERTY) == "true"
    fitted, problems = [], []
    for column in columns:
        wanted = table.find(column.name)
        if wanted is not None and _can_become(column.type, wanted.type, is_whole=is_upsert) and not may_widen:
            column = StructField(column.name, bare_columns(StructType((wanted,))).fields[0].type)
        elif wanted is None and not is_upsert:
            problems.append(no_such_column(column.name))
        elif wanted is not None:
            problems.append(f"{column.name}: {shown_type(column.type)} is not {shown_type(wanted.type)}")
        fitted.append(column)
    if operation.schema_evolution:
        return StructType(tuple(fitted))
    fills = read_rules(target.metadata, table, target.uri).fills
    for column in table:
        if columns.find(column.name) is not None or column.name in fills:
            continue
        if not column.nullable:
            raise without_not_null_column(target.uri, column.name)
        if is_upsert:
            problems.append(f"{column.name}: the source has no such column, and * needs one")
    if problems:
        where = "before you give the rows"
        raise rows_do_not_fit(problems, shown_types(columns), shown_types(table), target.uri, where)
    return StructType(tuple(fitted))


def _can_become(found: DataType, wanted: DataType, *, is_whole: bool) -> bool:
    """Return whether `convert_array` makes one type of the other, value by value, or fails on a value.

    `is_whole`: a struct needs every member of the wanted one. Times without a zone are those of UTC.
    """
    match found, wanted:
        case (Primitive.VOID, _):
            return wanted is not Primitive.VOID
        case (StructType(), StructType()):
            lacks = any(found.find(member.name) is None for member in wanted)
            pairs = [(member, wanted.find(member.name)) for member in found]
            return not (lacks and is_whole) and all(
                other is not None and _can_become(member.type, other.type, is_whole=is_whole) for member, other in pairs
            )
        case (ArrayType(), ArrayType()):
            return _can_become(found.element, wanted.element, is_whole=is_whole)
        case (MapType(), MapType()):
            return _can_become(found.key, wanted.key, is_whole=is_whole) and _can_become(
                found.value, wanted.value, is_whole=is_whole
            )
        case (DecimalType(), DecimalType()):
            return found.scale <= wanted.scale
        case (DecimalType(scale=0), _):
            # Unsigned 64-bit integers, and sums of DuckDB.
            return wanted in INTEGERS
    if found in INTEGERS:
        return wanted in INTEGERS or wanted in _FLOATS or isinstance(wanted, DecimalType)
    is_time = found in _TIMES and wanted in _TIMES
    is_longer = (found, wanted) in ((Primitive.FLOAT, Primitive.DOUBLE), (Primitive.DATE, Primitive.TIMESTAMP_NTZ))
    return found == wanted or is_time or is_longer


# --- Arrow streams --------------------------------------------------------------------------------------------------


def _stream_of(data: object) -> tuple[pa.Schema, Callable[[], Iterator[pa.RecordBatch]]]:
    """Return the columns of the data, and a function that opens their stream. Raises InvalidJobSpec, SchemaMismatch."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        table = data
        return table.schema, lambda: iter(table.to_batches(max_chunksize=_ROWS_AT_ONCE))
    kind = type(data)
    if kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas":
        return _stream_of_pandas(data)
    if isinstance(data, pa.RecordBatchReader):
        reader = data
    else:
        if not hasattr(data, "__arrow_c_stream__"):
            raise InvalidJobSpec(
                f"The rows must be {_WHAT}; found {kind.__name__}. A list of dicts becomes one by "
                "pyarrow.Table.from_pylist(rows, schema), a generator of batches by "
                "pyarrow.RecordBatchReader.from_batches(schema, batches). Nothing was read.",
                argument="rows",
            )
        try:
            reader = pa.RecordBatchReader.from_stream(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidJobSpec(
                f"The rows must be {_WHAT}; the {kind.__name__} gives a stream that has no columns. Nothing was read.",
                argument="rows",
            ) from error
    return reader.schema, lambda: iter(reader)


def _stream_of_pandas(frame: Any) -> tuple[pa.Schema, Callable[[], Iterator[pa.RecordBatch]]]:
    """Return the stream of a pandas frame; an index with a name is a column, any other is left out."""
    if any(name is not None for name in frame.index.names):
        taken = [str(name) for name in frame.index.names if name is not None and name in frame.columns]
        if taken:
            raise SchemaMismatch(
                f"The pandas frame has an index and a column of the same name: {taken}. An index with a name becomes a "
                "column: rename one, or leave the index out by .reset_index(drop=True). Nothing was staged.",
                columns=taken,
            )
        frame = frame.reset_index()
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    schema = pa.schema([pa.field(name, _type_of(name, column)) for name, column in frame.items()])

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(frame), _ROWS_AT_ONCE):
            yield pa.RecordBatch.from_pandas(
                frame.iloc[start : start + _ROWS_AT_ONCE], schema=schema, preserve_index=False
            )

    return schema, batches


def _type_of(name: str, column: Any) -> pa.DataType:
    try:
        found: pa.DataType = pa.array(column, from_pandas=True).type
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        # Arrow's text quotes the value, and a traceback shows the text of a cause.
        raise SchemaMismatch(
            f"The pandas column {name!r} ({column.dtype}) has values that no single Arrow type holds. Convert it, for "
            "example by .astype(str). Nothing was staged.",
            columns=[name],
        ) from None
    return found


def _given_away(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while batches:
        yield batches.pop(0)
