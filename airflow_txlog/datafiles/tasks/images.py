"""What Spark's Python workers run to write new images of rows: some columns from Spark, the source or what an author's
plain text says, the others from the file.

Only the columns that Spark computes go through the JVM; the rest of each row is read by the task that writes it,
which copies the rows that stay while it reads. The invariants are those of `scan_and_write`, and: each computed row
comes with its address, and is put beside the row of the file that has this address; a row that is missing, or in
another order than the plan's, fails the task.
Source: docs/decisions/positions-not-rows.md; soundness A17.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.datafiles.change_rows import CHANGE_TYPE_FIELD
from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS, unpack
from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.datafiles.tasks.plans import Bins
from airflow_txlog.datafiles.tasks.row_values import RowValues
from airflow_txlog.datafiles.tasks.scan_and_write import (
    ADDRESS_COLUMN,
    RewriteTask,
    ScanTask,
    records,
    task_numbers,
    use_one_thread,
    without_values,
    writing,
)
from airflow_txlog.datafiles.tasks.source_rows import SourceRows
from airflow_txlog.datafiles.tasks.violations import without_violations
from airflow_txlog.errors import JobError

_MakeImages: TypeAlias = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, kw_only=True)
class _ImageTask:
    """New images of the rows at the plan's positions; one record a file.

    Files never mix segments of the plan, and those that it says are copied. `change_type`: the images are change rows
    of it too.
    """

    bins: Bins
    layout: Layout
    change_type: str | None = None

    def _write_bin(
        self, number: int, attempt: str, read: pa.Schema, images_of: _MakeImages, writer: PartitionedWriter
    ) -> Iterator[pa.RecordBatch]:
        """Writes the images of the bin's files, made of their columns `read` and ADDRESS_COLUMN. Records of copies."""
        scan = ScanTask(bins=self.bins, schema=read, rows="only", with_address=True, with_segment=True)
        copies = RewriteTask(bins=self.bins, layout=self.layout)

        for planned in self.bins.files(number, self.bins.store_beside(writer.store)):
            if planned.is_copied:
                # Each batch that the copy reads is looked at once more, for the rows that do not stay.
                rows_of = functools.partial(scan.asked_rows, planned, unpack(planned.positions))
                look = functools.partial(self._write, images_of, writer, rows_of)
                staged = copies.copied(planned, attempt, writer.store, look)
                if staged is not None:
                    yield records([staged])
            else:
                self._write(images_of, writer, scan.rows_of, planned)

    def _write(
        self,
        images_of: _MakeImages,
        writer: PartitionedWriter,
        rows_of: Callable[..., Iterator[pa.RecordBatch]],
        *of: Any,
    ) -> None:
        for rows in rows_of(*of):
            for image in images_of(rows):
                if self.change_type is not None:
                    change = pa.repeat(self.change_type, image.num_rows)
                    writer.write(image.append_column(CHANGE_TYPE_FIELD, change))
                else:
                    writer.write(image)


@dataclass(frozen=True, kw_only=True)
class _ComputedImageTask(_ImageTask):
    """New images with the columns `names` from elsewhere."""

    names: tuple[str, ...]

    def _write_computed(
        self, number: int, attempt: str, computed: _Rows, writer: PartitionedWriter
    ) -> Iterator[pa.RecordBatch]:
        computed_names = set(self.names)
        kept = pa.schema([field for field in self.layout.schema if field.name not in computed_names])
        return self._write_bin(number, attempt, kept, functools.partial(self._images, computed), writer)

    def _images(self, computed: _Rows, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of the file with the computed values of the same addresses."""
        start = 0
        for values in computed.take(rows.num_rows):
            yield self._image(rows.slice(start, values.num_rows), values)
            start += values.num_rows

    def _image(self, rows: pa.RecordBatch, values: pa.RecordBatch) -> pa.RecordBatch:
        if not rows.column(ADDRESS_COLUMN).equals(values.column(ADDRESS_COLUMN)):
            raise out_of_order()
        columns = [*zip(values.schema, values.columns, strict=True), *zip(rows.schema, rows.columns, strict=True)]
        kept = [(field, column) for field, column in columns if field.name != ADDRESS_COLUMN]
        fields, arrays = zip(*kept, strict=True) if kept else ((), ())
        return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


@dataclass(frozen=True, kw_only=True)
class ImageTask(_ComputedImageTask):
    """New images of which Spark sends some columns.

    The batches are the rows of a scan of the same `bins`, in the same tasks and order: columns `names`, in order,
    ADDRESS_COLUMN among them, with the violations where the layout must check. `first_files` are the indexes of each
    bin's first file.
    """

    first_files: tuple[int, ...]

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records of staged files, or one of what went wrong: then every image of this task is gone again.

        Copies that are whole by then stay, in no commit, as those of other tasks do.
        """
        use_one_thread()
        attempt = SYSTEM_CLOCK.unique_id()
        with writing(self.layout, batches) as (writer, report):
            computed = _Rows(self._checked(batch) for batch in batches)
            while (address := computed.next_address()) is not None:
                yield from self._write_computed(self._bin_of(address), attempt, computed, writer)
        yield from report

    def _bin_of(self, address: int) -> int:
        first = address >> POSITION_BITS
        if first not in self.first_files:
            raise out_of_order()
        return self.first_files.index(first)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return without_violations(batch.rename_columns(self.names), must_check=self.layout.must_check)


@dataclass(frozen=True, kw_only=True)
class SourceImageTask(_ComputedImageTask):
    """New images of which the rows that the plan's `row_ids` name give the columns `names`, those of `source`.

    For a numbered range like a scan's.
    """

    source: SourceRows

    @property
    def weight(self) -> int:
        """What it costs to read all files, as of Bins."""
        return self.bins.weight + self.source.scan.bins.weight

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records of staged files, as those of ImageTask."""
        use_one_thread()
        attempt = SYSTEM_CLOCK.unique_id()
        with writing(self.layout, batches) as (writer, report):
            for number in task_numbers(batches):
                values = _Rows(self.source.beside(self._met(number, writer)))
                yield from self._write_computed(number, attempt, values, writer)
        yield from report

    def _met(self, number: int, writer: PartitionedWriter) -> Iterator[pa.RecordBatch]:
        """The addresses of the bin's rows, and which rows of the source they met."""
        scan = ScanTask(bins=self.bins, schema=pa.schema([]), rows="only", with_address=True, with_row_id=True)
        for planned in self.bins.files(number, self.bins.store_beside(writer.store)):
            yield from scan.rows_of(planned)


@dataclass(frozen=True, kw_only=True)
class ValueImageTask(_ImageTask):
    """New images that follow from the rows themselves, which take the assigned columns of `values`.

    For a numbered range like a scan's.
    """

    values: RowValues

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records of staged files, as those of ImageTask."""
        use_one_thread()
        attempt = SYSTEM_CLOCK.unique_id()
        schema, values = self.layout.schema, self.values
        unneeded = set(values.names) - values.columns_read
        needed = [field for field in schema if field.name not in unneeded]
        with writing(self.layout, batches) as (writer, report):
            for number in task_numbers(batches):
                yield from self._write_bin(number, attempt, pa.schema(needed), self._images, writer)
        yield from report

    def _images(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self.values.assigned(rows.drop_columns([ADDRESS_COLUMN]))


def out_of_order() -> JobError:
    """The error for rows that are not those of the plan, or not in its order."""
    return JobError(
        "Rows came back from Spark in another order than they were sent in, or not exactly those. Nothing was "
        "committed. Report this as a bug."
    )


class _Rows:
    """Batches as one stream of rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._waiting: pa.RecordBatch | None = None

    def next_address(self) -> int | None:
        """The address of the next row; None at the end."""
        waiting = self._next()
        return None if waiting is None else int(waiting.column(ADDRESS_COLUMN)[0].as_py())

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        """The next `count` rows. Raises JobError where there are fewer."""
        while count:
            waiting = self._next()
            if waiting is None:
                raise JobError(f"Spark gave {count} rows too few back. Nothing was committed. Report this as a bug.")
            taken = waiting.slice(0, count)
            self._waiting = waiting.slice(taken.num_rows)
            count -= taken.num_rows
            yield taken

    def _next(self) -> pa.RecordBatch | None:
        while self._waiting is None or not self._waiting.num_rows:
            self._waiting = next(self._batches, None)
            if self._waiting is None:
                return None
        return self._waiting
