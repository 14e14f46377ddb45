"""Scans of files that no log names: a job's and a source's. An unreadable file is no sign of a corrupt table."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.deletion_vectors.positions import addresses
from airflow_txlog.datafiles.deletion_vectors.rows import between
from airflow_txlog.datafiles.failures import adjacent_objects, row_does_not_fit, text_of
from airflow_txlog.datafiles.json_objects import has_adjacent_objects
from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, leaves
from airflow_txlog.datafiles.parquet.output import WrittenRows
from airflow_txlog.datafiles.parquet.physical import FileFields
from airflow_txlog.datafiles.parquet.reading import BATCH_ROWS, FIRST_SAFE_DAY
from airflow_txlog.datafiles.tasks.plans import PlannedFile
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN, FileScan
from airflow_txlog.datafiles.text_lines import (
    INFLATED,
    TextFormat,
    TooMuchText,
    Uncertain,
    UnfitRow,
    compression_of,
    line_number,
    lines_of,
)
from airflow_txlog.errors import CorruptDataFile, InvalidInput, JobError
from airflow_txlog.storage.base import is_about_bytes, is_about_name
from airflow_txlog.storage.limits import LOCAL_FILE_BYTES

LINE_SCHEMA = pa.schema([pa.field("value", pa.string())])

# ORC keeps a column's Spark type under this key, if Spark wrote the column.
ORC_TYPE_KEY = b"spark.sql.catalyst.type"
# An ORC file up to this size is read in one request: its chunks are small and many.
_WHOLE_ORC_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityValues:
    """Values of identity columns for the rows of a scan: they follow from a row's number alone.

    `columns`: for each column its name, the value of row 0 and the step. `starts`: the number of the first row of each
    file, by its index; the other rows of the file follow in their order.
    """

    columns: tuple[tuple[str, int, int], ...]
    starts: tuple[int, ...]

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(name, pa.int64()) for name, _, _ in self.columns]

    def beside(self, index: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file with their values."""
        number = self.starts[index]
        for rows in batches:
            numbers = addresses(0, number, rows.num_rows)
            for field, (_, first, step) in zip(self.fields, self.columns, strict=True):
                # A product that leaves the range wraps around, and so does the sum: the driver has checked the result.
                rows = rows.append_column(field, pc.add(pc.multiply(numbers, step), first))
            number += rows.num_rows
            yield rows


@dataclass(frozen=True, kw_only=True)
class MaterializedScan(FileScan):
    """A scan of the files of a job's materialized source, encrypted if there is a `key`.

    `only`: the numbers of the wanted rows, ascending; then the scan needs ROW_ID_COLUMN. `identities`: values of
    columns that follow those of the files; every file is the work of one task. The rows of files that `written` has are
    not read again.
    """

    key: bytes | None = dataclasses.field(default=None, repr=False)
    only: pa.Array | None = None
    identities: IdentityValues | None = None
    written: WrittenRows | None = dataclasses.field(default=None, repr=False, compare=False)
    is_read_again: bool = True
    joins_files: ClassVar[bool] = False

    @cached_property
    def output_schema(self) -> pa.Schema:
        if self.identities is None:
            return super().output_schema
        return pa.schema([*replace(self, identities=None).output_schema, *self.identities.fields])

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file. Raises JobError, retryable, if the file is not as the job has written it."""
        if self.identities is not None:
            yield from self.identities.beside(planned.index, replace(self, identities=None).rows_of(planned))
            return
        rows_here = None if self.written is None or self.only is not None else self.written.of(planned.file.path)
        if rows_here is not None:
            batches = rows_here.select(self.schema.names).to_batches(max_chunksize=BATCH_ROWS)
            starts = itertools.accumulate((batch.num_rows for batch in batches), initial=0)
            yield from self.rows_kept(planned, zip(starts, batches, strict=False), rows_here.num_rows)
            return
        planned = replace(planned, file=replace(planned.file, key=self.key))
        try:
            for rows in super().rows_of(planned):
                yield rows if self.only is None else self._wanted(planned, rows, self.only)
        except CorruptDataFile as error:
            raise not_as_written(planned.file.name, is_missing=error.is_missing) from error

    def _groups(self, planned: PlannedFile, parquet: pq.ParquetFile) -> Sequence[int]:
        groups = super()._groups(planned, parquet)
        return groups if self.only is None else [group for group in groups if self._has_wanted(parquet, group)]

    def _has_wanted(self, parquet: pq.ParquetFile, group: int) -> bool:
        ends = row_id_bounds(parquet.metadata, group)
        return ends is None or self.only is None or len(between(self.only, ends[0], ends[1] + 1)) > 0

    def _wanted(self, planned: PlannedFile, rows: pa.RecordBatch, only: pa.Int64Array) -> pa.RecordBatch:
        numbers = rows.column(ROW_ID_COLUMN)
        if not rows.num_rows:
            return rows
        first = numbers[0].as_py()
        if not numbers.equals(addresses(0, first, rows.num_rows)):
            raise not_as_written(planned.file.name)
        wanted = between(only, first, first + rows.num_rows)
        return rows if len(wanted) == rows.num_rows else rows.take(pc.subtract(wanted, first))


def not_as_written(name: str, *, is_missing: bool = False) -> JobError:
    """Return the error for a file of the job's source rows that is missing or changed."""
    return JobError(
        f"The file {name}, in which this job keeps its source's rows, "
        f"{'is gone' if is_missing else 'is not what the job has written'}. Nothing was committed. Run the job again; "
        "if this comes back, find out what deletes or changes files in the table's folder.",
        retryable=True,
    )


def row_id_bounds(metadata: pq.FileMetaData, group: int) -> tuple[int, int] | None:
    """Return the least and the greatest row id in one row group; None if the footer lacks them."""
    chunks = (metadata.row_group(group).column(number) for number in range(metadata.num_columns))
    chunk = next((chunk for chunk in chunks if chunk.path_in_schema == ROW_ID_COLUMN), None)
    if chunk is None or not chunk.is_stats_set or not chunk.statistics.has_min_max:
        return None
    return chunk.statistics.min, chunk.statistics.max


@contextlib.contextmanager
def reading_source(name: str, kind: str) -> Iterator[None]:
    """Raise errors of reading a source's file as errors of the source.

    Raises JobError, retryable, if the file is gone; InvalidInput if its bytes are not of its kind. A fault of the store
    passes unchanged.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise _gone(name) from error
    except CorruptDataFile as error:
        if error.is_missing:
            raise _gone(name) from error
        reason = error.message.removeprefix(f"Data file {name}: ").partition(". Nothing was changed")[0]
        raise _unreadable(name, kind, reason) from error
    except ColumnMismatch as error:
        raise _unreadable(name, kind, str(error)) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if not (is_about_bytes(error) or is_about_name(error)):
            raise
        # The exception quotes the bytes of a text that cannot be decoded.
        raise _unreadable(name, kind, text_of(error)) from error


def _gone(name: str) -> JobError:
    return JobError(
        f"The source's file {name} existed when the job listed the files, and is gone. Nothing was committed. Run "
        "the job again when the source no longer changes.",
        retryable=True,
    )


def _unreadable(name: str, kind: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"The source's file {name} cannot be read as {kind}: {reason}. Nothing was committed. Correct the file, or the "
        "source's format, schema and options."
    )


@contextlib.contextmanager
def _reading_rows(name: str) -> Iterator[None]:
    """Do the same as `reading_source` for the rows of Parquet files.

    Arrow is stricter than other readers. If Arrow cannot decode a file, the error has the path as the fact
    `unread_by_arrow`.
    """
    try:
        with reading_source(name, "Parquet"):
            yield
    except InvalidInput as error:
        found = error.__cause__
        if not isinstance(found, CorruptDataFile) or not isinstance(found.__cause__, pa.ArrowException | OSError):
            raise
        reason = error.message.partition(". Nothing was committed")[0]
        raise InvalidInput(
            f"{reason} (pyarrow {pa.__version__}). Nothing was committed. Other readers may read it: put the file on a "
            "disk that Spark's workers share, where Spark's own reader is asked, or have it written by another version "
            "of its writer.",
            unread_by_arrow=name,
        ) from error


@dataclass(frozen=True, kw_only=True)
class ParquetScan(FileScan):
    """A scan of a source's Parquet files, whose columns are found by name.

    A column that a file lacks has its value of `defaults`, or is null. Texts of the columns in `padded` are padded to
    this number of characters, as Spark reads a column of the type `char(n)`.
    """

    defaults: Mapping[str, pa.Scalar] = dataclasses.field(default_factory=dict)
    padded: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        with _reading_rows(planned.file.name):
            yield from super().rows_of(planned)

    def _columns(self, planned: PlannedFile, rows: pa.RecordBatch) -> list[pa.Array]:
        members = FileFields(rows.schema)
        for field in self.schema:
            found = members.find_name(field.name)
            if found is None:
                continue
            column = rows.column(found)
            if column.type == field.type and not (column.type.num_fields or pa.types.is_decimal128(column.type)):
                continue
            if _takes_instant_for_wall(column.type, field.type):
                raise ColumnMismatch(field.name, column.type, field.type, "an instant has a zone")
            _check_decimals(field, column)
        columns = super()._columns(planned, rows)
        for index, name in enumerate(self.schema.names if self.defaults or self.padded else ()):
            if name in self.defaults and members.find_name(name) is None:
                columns[index] = pa.repeat(self.defaults[name], rows.num_rows)
            if name in self.padded:
                columns[index] = pc.utf8_rpad(columns[index], width=self.padded[name], padding=" ")
        return columns


def _check_decimals(field: pa.Field, column: pa.Array) -> None:
    """Raise ColumnMismatch if a value has more digits than its type: Arrow reads it, and would write it truncated."""
    for leaf in leaves(column):
        if not pa.types.is_decimal128(leaf.type):
            continue
        bounds = pc.min_max(leaf)
        for bound in (bounds["min"].as_py(), bounds["max"].as_py()):
            if bound is not None and len(bound.as_tuple().digits) > leaf.type.precision:
                raise ColumnMismatch(field.name, leaf.type, field.type, "a value has more digits")


def _takes_instant_for_wall(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a timestamp with a zone would be read as one without, which Spark refuses."""
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        return found.tz is not None and wanted.tz is None
    if pa.types.is_nested(found) and found.num_fields == wanted.num_fields:
        pairs = zip(range(found.num_fields), range(found.num_fields), strict=True)
        return any(_takes_instant_for_wall(found.field(one).type, wanted.field(other).type) for one, other in pairs)
    return False


@dataclass(frozen=True, kw_only=True)
class OrcScan(FileScan):
    """A scan of a source's ORC files; columns are found by name, and one that a file lacks is null."""

    joins_files: ClassVar[bool] = False

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        file = planned.file
        with reading_source(file.name, "ORC"), file.store.open_input(file.path) as source:
            small = source.size() <= _WHOLE_ORC_BYTES
            orc = pyarrow.orc.ORCFile(pa.BufferReader(source.read()) if small else source)
            names, members = orc.schema.names, FileFields(orc.schema)
            found = (members.find_name(field.name) for field in self.schema)
            wanted = [names[index] for index in found if index is not None]
            for stripe in planned.row_groups(orc.nstripes):
                batch = orc.read_stripe(stripe, columns=wanted or names[:1])
                yield self._output(planned, _orc_values(batch, orc.schema), None, None)


def _orc_values(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the values as Spark reads them. Raises ColumnMismatch if Arrow does not show them."""
    columns, names = [], batch.schema.names
    for name, column in zip(names, batch.columns, strict=True):
        metadata = schema.field(name).metadata or {}
        if metadata.get(ORC_TYPE_KEY) == b"timestamp_ntz":
            column = column.cast(pa.int64()).cast(pa.timestamp("us"))
        elif pa.types.is_timestamp(column.type):
            raise ColumnMismatch(name, column.type, pa.timestamp("us"), "the zone of its writer is not known")
        elif pa.types.is_date(column.type) and len(column):
            first = pc.min(column.cast(pa.int32())).as_py()
            if first is not None and first < FIRST_SAFE_DAY:
                raise ColumnMismatch(name, column.type, pa.date32(), "a date before 1582-10-15 may be of two calendars")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=names)


@dataclass(frozen=True, kw_only=True)
class TextScan(FileScan):
    """A scan of CSV or JSON files with these `columns`; it yields only rows that Spark certainly reads alike.

    `kind` is the format's name in errors. `parse` makes the rows of lines, or raises Uncertain or UnfitRow.
    `most_weights`: a compressed file may have this many times the text for which it was admitted.
    """

    columns: pa.Schema
    text: TextFormat
    kind: str
    parse: Callable[[pa.StringArray, pa.Schema], pa.RecordBatch]
    most_weights: int
    joins_files: ClassVar[bool] = False

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file. Raises InvalidInput with the fact `only_spark` if Spark must decide, JobError.

        Raises InvalidInput without it for a row that Spark would refuse too.
        """
        file, number = planned.file, 0
        try:
            with reading_source(file.name, self.kind), file.store.open_input(file.path) as source:
                codec = compression_of(file.path)
                most = self.most_weights * max(LOCAL_FILE_BYTES, INFLATED * source.size())
                for lines in lines_of(source, codec, self.text, most_bytes=most):
                    yield self._output(planned, self.parse(lines, self.columns), None, None)
                    number += len(lines)
        except UnfitRow as error:
            row, misfit = error.args
            with reading_source(file.name, self.kind), file.store.open_input(file.path) as source:
                line = line_number(source, compression_of(file.path), self.text, number + row)
            raise row_does_not_fit(file.path, misfit, line=line) from None
        except TooMuchText as error:
            why = "it is compressed, and has more text than a job reads at once without Spark"
            raise InvalidInput(
                f"The source's file {file.name}: {why}. Nothing was committed.", only_spark=why
            ) from error
        except (Uncertain, InvalidInput) as error:
            why = error.args[0] if isinstance(error, Uncertain) else "it cannot be decoded"
            message = f"Spark may read the source's file {file.name} in another way: {why}. Nothing was committed."
            raise InvalidInput(message, only_spark=why) from error


@dataclass(frozen=True, kw_only=True)
class LinesScan(FileScan):
    """Lines of text files, as one column `value`. `kind` is the format's name in errors.

    `is_one_object`: no line may be several objects of JSON.
    """

    text: TextFormat
    kind: str
    is_one_object: bool = False
    schema: pa.Schema = LINE_SCHEMA
    joins_files: ClassVar[bool] = False

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        file = planned.file
        kind = f"{self.kind} in {self.text.encoding.upper()}"
        with reading_source(file.name, kind), file.store.open_input(file.path) as source:
            ends = [number * source.size() // planned.parts for number in (planned.part, planned.part + 1)]
            end = ends[1] if planned.part + 1 < planned.parts else None
            for lines in lines_of(source, compression_of(file.path), self.text, ends[0], end):
                if self.is_one_object and has_adjacent_objects(lines):
                    raise adjacent_objects(file.path, is_whole=self.text.is_whole)
                yield pa.RecordBatch.from_arrays([lines], schema=self.output_schema)
