"""Tasks that copy data files without some of their rows, and tasks that write new images of rows, and change rows.

A new image has some columns from Spark, the source or an expression, and the others from the file, which is read by the
task that writes the image. Only computed columns go through the JVM. The invariants: foreseen errors are returned as
records, never raised. A row that stays is in exactly one copy. A computed row is combined with the row of the file that
has its address, and a missing or misplaced one fails the task. Source: docs/decisions/positions-not-rows.md; soundness
A17; protocol, "Change Data Files".
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS, unpack
from airflow_txlog.datafiles.deletion_vectors.rows import deleted_rows
from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch
from airflow_txlog.datafiles.parquet.judging import VIOLATION_COLUMN, without_violations
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.physical import FileFields, physical_field
from airflow_txlog.datafiles.parquet.reading import SMALL_BYTES, corrupt_column
from airflow_txlog.datafiles.parquet.rewriting import (
    copy_key_values,
    copy_options,
    copy_schema,
    copy_without,
    open_for_copy,
)
from airflow_txlog.datafiles.parquet.splicing import ChunkMismatch
from airflow_txlog.datafiles.parquet.whole_groups import GroupsWriter, add_statistics, split_groups, whole_groups
from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.datafiles.row_ids import RowIds
from airflow_txlog.datafiles.staged_files import CHANGE_TYPE_FIELD, DELETE, UPDATE_PREIMAGE
from airflow_txlog.datafiles.tasks.in_place import InPlace, MakeImages
from airflow_txlog.datafiles.tasks.plans import Bins, PlannedFile
from airflow_txlog.datafiles.tasks.row_values import NewImages
from airflow_txlog.datafiles.tasks.scan_and_write import (
    ADDRESS_COLUMN,
    CLAUSE_COLUMN,
    FileScan,
    Task,
    records,
    task_numbers,
    use_one_thread,
    without_values,
    writing,
)
from airflow_txlog.datafiles.tasks.whole_files import FileTask, Written, in_advance
from airflow_txlog.errors import JobError
from airflow_txlog.storage import Store
from airflow_txlog.storage.limits import Limits


@dataclass(frozen=True, kw_only=True)
class CopyTask(FileTask):
    """Copies data files without the plan's positions and without deleted rows; one record a file or part of a file.

    A copy without rows is not made.
    """

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.staged(batches, _alone, lambda files, *at: self.copied(files[0], *at))

    def copied(
        self,
        planned: PlannedFile,
        attempt: str,
        store: Store,
        look: Callable[[int, pa.RecordBatch], None] | None = None,
    ) -> Written:
        """Write the copy of one file in `store`. A failed copy leaves nothing.

        `look`: see `copy_without`.
        """
        writer: RowGroupWriter | None = None
        number = f"{planned.index:05d}" if planned.parts == 1 else f"{planned.index:05d}-{planned.part}"
        try:
            with open_for_copy(planned.file) as parquet:
                deleted = deleted_rows(planned.deleted, planned.file.name, parquet.metadata.num_rows)
                options = copy_options(parquet, self.layout.parquet)
                try:
                    schema, ids = copy_schema(parquet, self.layout.schema), self.layout.row_ids
                except ColumnMismatch as error:
                    raise corrupt_column(planned.file, error) from error
                lacking = _lacking(schema, self.layout)
                completed = functools.partial(_completed, ids, lacking, planned.constants) if ids or lacking else None
                groups = planned.row_groups(parquet.metadata.num_row_groups)
                leaving = planned.leaving or planned.positions or b""
                whole, partly = split_groups(parquet, groups, [unpack(leaving), deleted])
                splice = None if completed else whole_groups(parquet, whole, self.layout, schema, options)
                # Rows that leave are only read for their images.
                read = {*whole, *partly} if look is None else {*groups}
                statistics = self.layout.statistics_for(schema)
                if splice is not None:
                    read -= {*splice.groups}
                    add_statistics(statistics, splice, planned.file, self.layout.data_schema)
                make = RowGroupWriter if splice is None else functools.partial(GroupsWriter, splice)
                writer = make(
                    store,
                    self.layout.path_in(planned.directory, attempt, number, options),
                    pa.schema([*(schema if ids is None else ids.added_to(schema)), *map(physical_field, lacking)]),
                    options=options,
                    key_values=copy_key_values(parquet),
                    statistics=statistics,
                    discards=self.layout.discards,
                )
                try:
                    copy_without(planned.file, parquet, leaving, writer, deleted, sorted(read), look, completed)
                except ChunkMismatch as error:
                    raise corrupt_column(planned.file, error) from error
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise
        close = functools.partial(writer.close, planned.partition_values, source=planned.index)
        return Written(close=close, abandon=writer.abandon)


def _lacking(schema: pa.Schema, layout: Layout) -> list[pa.Field]:
    """Return the partition columns that a copy must contain and the file, which has this schema, does not."""
    held = FileFields(schema)
    return [field for field in layout.materialized if held.find(field) is None]


def _completed(
    ids: RowIds | None,
    lacking: Sequence[pa.Field],
    constants: Mapping[str, pa.Scalar],
    start: int,
    rows: pa.RecordBatch,
) -> pa.RecordBatch:
    """Return rows of a file, the first of which has the ordinal `start`, with their ids and partition columns."""
    if ids is not None:
        rows = ids.of_copied(constants, start, rows)
    for field in lacking:
        values = pa.repeat(constants[field.name].cast(field.type), rows.num_rows)
        rows = rows.append_column(physical_field(field), values)
    return rows


def _alone(planned: PlannedFile) -> tuple[int, int]:
    return planned.index, planned.part


# The columns of this package beside those that Spark computes.
_OF_TASKS = (ADDRESS_COLUMN, VIOLATION_COLUMN)


@dataclass(frozen=True, kw_only=True)
class SentColumns:
    """Columns that Spark sends: the batches are the rows of a scan of the same bins, in the same tasks and order.

    `names` are the columns, in order, with ADDRESS_COLUMN, and the violations if the layout must check. `first_files`
    are the indexes of each bin's first file.
    """

    names: tuple[str, ...]
    first_files: tuple[int, ...]

    def bin_of(self, address: int) -> int:
        """Return the number of the bin whose first row has this address."""
        first = address >> POSITION_BITS
        if first not in self.first_files:
            raise out_of_order()
        return self.first_files.index(first)


@dataclass(frozen=True, kw_only=True)
class ImageTask(CopyTask):
    """Writes new images of the rows at the plan's positions; one record a file, and no file of two segments.

    The images take the columns of `values`: sent by Spark, or computed from the rows themselves and the source's rows
    that the plan's `row_ids` name. Only in the first case are the batches not a numbered range. The other rows of a
    file that the plan marks as copied are copied. With a `change_type` the images are change rows too.
    """

    values: SentColumns | NewImages
    change_type: str | None = None

    @property
    def weight(self) -> int:
        source = self.values.source if isinstance(self.values, NewImages) else None
        return self.bins.weight + (0 if source is None else source.scan.bins.weight)

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield records of staged files, or of an error: then every image of this task is deleted.

        Copies that are complete by then stay; no commit names them.
        """
        use_one_thread()
        attempt = SYSTEM_CLOCK.unique_id()
        with writing(self.layout, batches) as (writer, report):
            store = self.bins.store_beside(writer.store)
            with in_advance(self._copies(batches, attempt, store, writer), writer.store) as copies:
                for copy in copies:
                    staged = copy.publish()
                    if staged is not None:
                        yield records([staged])
        yield from report

    def _copies(
        self, batches: Iterator[pa.RecordBatch], attempt: str, store: Store, writer: PartitionedWriter
    ) -> Generator[Written]:
        """Write the images of all bins; yield the copies."""
        for number, images_of in self._work(batches, store):
            yield from self._write_bin(number, images_of, attempt, store, writer)
        # The last copies are being published meanwhile.
        writer.finish()

    def _work(self, batches: Iterator[pa.RecordBatch], store: Store) -> Iterator[tuple[int, MakeImages]]:
        """Yield the number of each bin, and a callable that makes images of the rows of its files, in order."""
        match self.values:
            case NewImages(source=source) as values:
                for number in task_numbers(batches):
                    beside = None if source is None else _Rows(source.beside(self._met(number, store))).images
                    yield number, functools.partial(_computed, values, beside)
            case SentColumns() as sent:
                must_check = self.layout.must_check
                rows = _Rows(without_violations(b.rename_columns(sent.names), must_check=must_check) for b in batches)
                while (address := rows.next_address()) is not None:
                    yield sent.bin_of(address), rows.images

    def _met(self, number: int, store: Store) -> Iterator[pa.RecordBatch]:
        """Yield the addresses of the bin's rows, with the numbers of the source rows that they met."""
        scan = FileScan(bins=self.bins, schema=pa.schema([]), rows="only", with_address=True, with_row_id=True)
        for planned in self.bins.files(number, store):
            yield from scan.rows_of(planned)

    @functools.cached_property
    def _scan(self) -> FileScan:
        """Return the scan of the columns that images keep, or are computed from."""
        match self.values:
            case SentColumns(names=names):
                unneeded, with_address, with_clause = frozenset(names), True, False
            case NewImages() as values:
                unneeded, with_address, with_clause = values.replaced, values.source is not None, values.has_clauses
        return FileScan(
            bins=self.bins,
            schema=pa.schema([field for field in self.layout.schema if field.name not in unneeded]),
            rows="only",
            with_address=with_address or self.layout.row_ids is not None,
            with_clause=with_clause,
            with_segment=True,
        )

    def _write_bin(
        self, number: int, images_of: MakeImages, attempt: str, store: Store, writer: PartitionedWriter
    ) -> Iterator[Written]:
        """Write the images of the bin's files; yield the copies."""
        scan, are_small = self._scan, functools.partial(self._is_small, writer.store.limits)
        for is_small, files in itertools.groupby(self.bins.files(number, store), are_small):
            if is_small:
                self._write(images_of, writer, None, scan.rows_of_files, files)
            else:
                yield from self._write_each(files, attempt, images_of, writer)

    def _is_small(self, limits: Limits, planned: PlannedFile) -> bool:
        """Return whether only the images of a file are written, and many such files may be read together."""
        is_small = 0 < (planned.file.size_bytes or 0) <= min(SMALL_BYTES, limits.changed_in_place_bytes - 1)
        return is_small and not planned.is_copied and self.layout.row_ids is None

    def _write_each(
        self, files: Iterator[PlannedFile], attempt: str, images_of: MakeImages, writer: PartitionedWriter
    ) -> Iterator[Written]:
        scan = self._scan
        for planned in files:
            in_place = self._in_place
            changed = None if in_place is None else in_place.changed(planned, images_of, attempt, writer.store)
            if changed is not None:
                yield changed
            elif planned.is_copied:
                # Each batch that the copy reads is filtered once more, for the rows that do not stay.
                rows_of = functools.partial(scan.asked_rows, planned, unpack(planned.positions))
                look = functools.partial(self._write, images_of, writer, planned, rows_of)
                yield self.copied(planned, attempt, writer.store, look)
            else:
                self._write(images_of, writer, planned, scan.rows_of, planned)

    @functools.cached_property
    def _in_place(self) -> InPlace | None:
        """Return how the images take the places of their rows; None if no file can be changed so."""
        match self.values:
            case SentColumns(names=names):
                assigned, read, row_bytes = [name for name in names if name not in _OF_TASKS], frozenset[str](), 0
            case NewImages(clauses=clauses, source=source) if len(clauses) == 1:
                (values,) = clauses.values()
                assigned, read, row_bytes = list(values.values), values.columns_read, values.constant_bytes
                row_bytes += 0 if source is None else source.size_bytes // max(1, source.num_rows)
            case _:
                # Images of several clauses come clause by clause.
                return None
        is_single = sum(files for files, _ in self.bins.amounts) == 1
        found = InPlace(
            layout=self.layout, assigned=tuple(assigned), read=read, row_bytes=row_bytes, is_single=is_single
        )
        return found if self.change_type is None and found.is_possible else None

    def _write(
        self,
        images_of: MakeImages,
        writer: PartitionedWriter,
        planned: PlannedFile | None,
        rows_of: Callable[..., Iterator[pa.RecordBatch]],
        *of: Any,
    ) -> None:
        made = (image for rows in rows_of(*of) for image in images_of(self._with_ids(planned, rows)))
        images = writer.kept(made)
        for image in images if self.change_type is None else of_type(self.change_type, images):
            writer.write(image)

    def _with_ids(self, planned: PlannedFile | None, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a file with their ids, if rows keep them."""
        if self.layout.row_ids is None or planned is None:
            return rows
        numbered = self.layout.row_ids.of_changed(planned.constants, _ordinals(rows), rows)
        has_addresses = isinstance(self.values, SentColumns) or self.values.source is not None
        return numbered if has_addresses else numbered.drop_columns([ADDRESS_COLUMN])


def _computed(values: NewImages, beside: MakeImages | None, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the images of the rows; `beside` adds the columns of the source rows that they met."""
    for joined in (rows,) if beside is None else beside(rows):
        yield from values.of(joined)


def kept_ids(ids: RowIds, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows, read with the columns of `RowIds.read_by` and their addresses, with KEPT_ID_COLUMN instead of those;
    a step of a task.
    """
    return (ids.as_one_column(batch, _ordinals(batch)).drop_columns([ADDRESS_COLUMN]) for batch in rows)


def _ordinals(rows: pa.RecordBatch) -> pa.Array:
    """Return the ordinals of the rows in their files."""
    return pc.bit_wise_and(rows.column(ADDRESS_COLUMN), (1 << POSITION_BITS) - 1)


def leaving_task(bins: Bins, layout: Layout, updates: frozenset[int] = frozenset()) -> Task:
    """Return the task that writes change rows of the rows at the plan's positions, which leave their files.

    Of a file without positions these are all rows that are not deleted. A row is an old image if one of the clauses
    `updates` acts on it, otherwise a delete. `layout` is the table's; if it has samples, only those are written.
    """
    plain = layout.without_row_ids()
    scan = FileScan(bins=bins, schema=plain.schema, rows="only", with_clause=True, with_segment=True)
    # The rows were in the table before, so that nothing judges them.
    written = layout.for_changes() if layout.samples is None else replace(plain, expectations=(), rules=())
    return Task(source=scan, steps=(functools.partial(_by_clause, updates),), layout=written)


def _by_clause(updates: frozenset[int], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    numbers = pa.array(list(updates), pa.int32())
    for batch in rows:
        is_update = pc.is_in(batch.column(CLAUSE_COLUMN), value_set=numbers)
        types = pc.if_else(is_update, UPDATE_PREIMAGE, DELETE)
        yield batch.drop_columns([CLAUSE_COLUMN]).append_column(CHANGE_TYPE_FIELD, types)


def of_type(change_type: str, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows as change rows of this type."""
    for batch in rows:
        yield batch.append_column(CHANGE_TYPE_FIELD, pa.repeat(pa.scalar(change_type, pa.string()), batch.num_rows))


def out_of_order() -> JobError:
    return JobError(
        "Rows came back from Spark in another order than they were sent in, or not exactly those. Nothing was "
        "committed. Report this as a bug."
    )


class _Rows:
    """Batches of computed columns as one stream of rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._waiting: pa.RecordBatch | None = None

    def next_address(self) -> int | None:
        """Return the address of the next row; None at the end."""
        waiting = self._next()
        return None if waiting is None else int(waiting.column(ADDRESS_COLUMN)[0].as_py())

    def images(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file with the next computed values. Raises JobError for other addresses."""
        start = 0
        while start < rows.num_rows:
            waiting = self._next()
            if waiting is None:
                count = rows.num_rows - start
                raise JobError(f"Spark gave {count} rows too few back. Nothing was committed. Report this as a bug.")
            values = waiting.slice(0, rows.num_rows - start)
            self._waiting = waiting.slice(values.num_rows)
            yield _beside(rows.slice(start, values.num_rows), values)
            start += values.num_rows

    def _next(self) -> pa.RecordBatch | None:
        while self._waiting is None or not self._waiting.num_rows:
            self._waiting = next(self._batches, None)
            if self._waiting is None:
                return None
        return self._waiting


def _beside(rows: pa.RecordBatch, values: pa.RecordBatch) -> pa.RecordBatch:
    if not rows.column(ADDRESS_COLUMN).equals(values.column(ADDRESS_COLUMN)):
        raise out_of_order()
    columns = [*zip(values.schema, values.columns, strict=True), *zip(rows.schema, rows.columns, strict=True)]
    kept = [(field, column) for field, column in columns if field.name != ADDRESS_COLUMN]
    fields, arrays = zip(*kept, strict=True) if kept else ((), ())
    return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))
