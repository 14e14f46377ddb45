"""Copies of data files in which some rows have new values in some columns: only those columns are read and written.

An UPDATE of a few columns spares most of a copy's work this way. Rows keep their places. The invariants: a row at the
planned positions has its new values, and every other row, like every other column, has those of the file. A file
that needs more than that (rows leave it, its timestamps change their form) is not changed in place.
Source: docs/decisions/positions-not-rows.md; soundness A17, A19.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import addresses, unpack
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.conversion import conforming, forbids_null
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet
from airflow_txlog.datafiles.parquet.footer_statistics import chunks_of, leaves_of_footer
from airflow_txlog.datafiles.parquet.judging import Judge
from airflow_txlog.datafiles.parquet.physical import (
    DEFAULT_FORMAT,
    PARQUET_ID_KEY,
    FileFields,
    is_as_held,
    physical_field,
)
from airflow_txlog.datafiles.parquet.reading import (
    corrupt_column,
    names_in_file,
    open_data_file,
    read_batches,
    row_group_starts,
    table_columns,
)
from airflow_txlog.datafiles.parquet.rewriting import copy_options
from airflow_txlog.datafiles.parquet.splicing import ChunkMismatch, Splice, SplicedWriter
from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN, as_in_file
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.plans import PlannedFile
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN
from airflow_txlog.datafiles.tasks.whole_files import Written
from airflow_txlog.errors import JobError
from airflow_txlog.sql.expression import columns_of
from airflow_txlog.storage import Store

MakeImages: TypeAlias = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]
"""Yields the new images of rows, in their order."""


# A file is rewritten if less than an eighth of it stays as it is.
_MOST_OF_FILE = 8


class NotInPlace(Exception):
    """The file must be rewritten."""


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """New values of the columns `assigned`, which are made from the columns `read`.

    `row_bytes` are the bytes that a new row takes from elsewhere: its constants and, on average, its source row.
    `is_single`: no other file changes, so that there is none to be joined with.
    """

    layout: Layout
    assigned: tuple[str, ...]
    read: frozenset[str]
    row_bytes: int = 0
    is_single: bool = False

    @property
    def is_possible(self) -> bool:
        """Whether files of the table can have such values in place, if nothing in them is against it."""
        layout = self.layout
        is_usual = not (layout.is_change or layout.row_ids or layout.with_digests or layout.key)
        # Expectations count and drop whole rows, and the bytes of whole files are counted.
        is_usual = is_usual and not (layout.expectations or layout.discards)
        return is_usual and layout.parquet == DEFAULT_FORMAT and set(self.assigned) < set(layout.data_schema.names)

    def changed(self, planned: PlannedFile, images_of: MakeImages, attempt: str, store: Store) -> Written | None:
        """Write the copy of a planned file with new values at its positions. None: the file must be rewritten.

        `images_of` gets rows with the columns `read` and their addresses, and its batches have the assigned columns.
        A failed copy leaves nothing. Raises TxlogError.
        """
        is_large = (planned.file.size_bytes or 0) >= self.layout.store.limits.changed_in_place_bytes
        is_worth = is_large or self.is_single
        if not is_worth or planned.leaving is not None or planned.deleted is not None or planned.parts > 1:
            return None
        with open_data_file(planned.file, reads_all=True) as parquet:
            rows = parquet.metadata.num_rows
            asked = unpack(planned.positions) if planned.positions is not None else None
            changed = rows if asked is None else asked.num_rows
            if not planned.is_copied and changed < rows:
                # Another task copies the other rows.
                return None
            try:
                copy = _Copy(self, planned, parquet, changed)
            except NotInPlace:
                return None
            writer = copy.writer(store, attempt)
            try:
                copy.write(writer, asked, images_of)
            except ChunkMismatch as error:
                writer.abandon()
                raise corrupt_column(planned.file, error) from error
            except BaseException:
                writer.abandon()
                raise
        close = functools.partial(
            writer.close,
            planned.partition_values,
            source=planned.index,
            segment=planned.segment,
            num_kept=rows - changed,
        )
        return Written(close=close, abandon=writer.abandon)


class _Copy:
    """The copy of one file. The assigned columns are in the order of the file."""

    def __init__(self, change: InPlace, planned: PlannedFile, parquet: OpenParquet, num_changed: int) -> None:
        """Raise NotInPlace for a file that must be rewritten."""
        layout = change.layout
        self._change, self._layout, self._planned, self._parquet = change, layout, planned, parquet
        self._held = parquet.schema_arrow
        members = FileFields(self._held)
        found = [members.find(layout.data_schema.field(name)) for name in change.assigned]
        places = sorted(place for place in found if place is not None)
        lacking = any(members.find(field) is None for field in layout.materialized)
        if lacking or len(places) < len(found) or len(set(self._held.names)) < len(self._held):
            raise NotInPlace("a column is not in the file, or twice")
        of_table = {members.find(field): field for field in layout.data_schema}
        if change.is_single and None in of_table:
            raise NotInPlace("a copy of a small file has statistics of a column that the table got later")
        for place, field in enumerate(self._held):
            if place in of_table and not is_as_held(of_table[place], field):
                raise NotInPlace("a column has another name or type in the file")
        self._assigned = pa.schema([of_table[place] for place in places])
        self._written = pa.schema([_as_written(of_table[place], self._held.field(place)) for place in places])
        groups = planned.row_groups(parquet.metadata.num_row_groups)
        splice = Splice.of(parquet, frozenset(places), groups)
        if splice is None or any(forbids_null(field.type) for field in self._assigned):
            raise NotInPlace("the file is of another writer")
        if _MOST_OF_FILE * splice.kept_bytes < splice.all_bytes:
            # A rewrite keeps dictionaries, and is faster for nearly all of the bytes.
            raise NotInPlace("most of the file changes")
        self._splice = splice
        self._statistics = layout.statistics_for(pa.schema(list(self._held)))
        chunks, leaves = chunks_of(parquet), leaves_of_footer(parquet)
        counted = self._statistics.add_kept(chunks, leaves, self._assigned.names)
        self._judge = Judge((), layout.schema, SEGMENT_COLUMN, rules=layout.rules) if layout.rules else None
        # For the new images: what they are made from, and what the rules judge.
        self._of_images = change.read.union(*(columns_of(rule.condition) for rule in layout.rules))
        needed = {*self._assigned.names, *self._of_images}
        self._counted = needed.intersection(counted)
        # These columns may be too large to be held for a whole row group.
        self._only_counted = [name for name in counted if name not in needed]
        self._read = pa.schema([field.with_nullable(True) for field in layout.schema if field.name in needed])
        most_new = min(num_changed, max(parquet.metadata.row_group(group).num_rows for group in splice.groups))
        are_small = most_new * change.row_bytes <= layout.store.limits.row_group_bytes
        if not are_small or not splice.fits(names_in_file(planned.file, self._held, self._in_file(needed))):
            raise NotInPlace("a row group takes too much memory")

    def _in_file(self, names: Collection[str]) -> list[pa.Field]:
        return [field for field in self._layout.data_schema if field.name in names]

    def writer(self, store: Store, attempt: str) -> SplicedWriter:
        """Return the writer of the copy."""
        options, planned = copy_options(self._parquet), self._planned
        path = self._layout.path_in(planned.directory, attempt, f"{planned.index:05d}", options)
        return SplicedWriter(self._splice, store, path, self._written, options=options, statistics=self._statistics)

    def write(self, writer: SplicedWriter, asked: RowPositions | None, images_of: MakeImages) -> None:
        """Write all row groups; `asked` are the rows that change, None for all."""
        file = self._planned.file
        if self._only_counted:
            fields = self._in_file(self._only_counted)
            for _, batch in read_batches(file, self._parquet, fields, row_groups=self._splice.groups):
                self._statistics.add_values(batch, self._only_counted)
        ends = set(row_group_starts(self._parquet)[1:])
        batches = read_batches(file, self._parquet, self._in_file(self._read.names), row_groups=self._splice.groups)
        for start, batch in batches:
            self._statistics.add_values(batch, self._counted)
            columns = table_columns(file, batch, self._read, self._planned.constants)
            rows = pa.RecordBatch.from_arrays(columns, schema=self._read)
            stays = _none(batch.num_rows) if asked is None else asked.keep(start, batch.num_rows)
            writer.write(self._changed(start, rows, stays, images_of))
            if start + batch.num_rows in ends:
                writer.end_row_group()

    def _changed(
        self, start: int, rows: pa.RecordBatch, stays: pa.BooleanArray | None, images_of: MakeImages
    ) -> pa.RecordBatch:
        """Return the assigned columns of rows of the file, with new values in those that do not stay as they are.

        If `stays` is None, all do.
        """
        old = self._as_written(rows.select(self._assigned.names))
        if stays is None or not stays.false_count:
            return old
        numbers = addresses(self._planned.index, start, rows.num_rows)
        read = rows.select([name for name in rows.schema.names if name in self._of_images])
        leaving = read.append_column(ADDRESS_COLUMN, numbers)
        if stays.true_count:
            leaving = leaving.filter(pc.invert(stays))
        chosen = leaving.drop_columns([name for name in read.schema.names if name not in self._change.read])
        images = [image.select(self._assigned.names) for image in images_of(chosen)]
        if sum(image.num_rows for image in images) != chosen.num_rows:
            raise JobError("Some changed rows have no new value. Nothing was committed. Report this as a bug.")
        # As rows that are written anew are: of the table's types, and checked against NOT NULL and the table's rules.
        conformed = [conforming(image, self._assigned) for image in images]
        self._check(leaving, conformed)
        made = [self._as_written(image) for image in conformed]
        new = pa.RecordBatch.from_arrays(
            [pa.concat_arrays(each) for each in zip(*made, strict=True)], schema=self._written
        )
        if not stays.true_count:
            return new
        merged = [_merged(stays, *pair) for pair in zip(old.columns, new.columns, strict=True)]
        return pa.RecordBatch.from_arrays(merged, schema=self._written)

    def _check(self, leaving: pa.RecordBatch, images: Iterable[pa.RecordBatch]) -> None:
        """Raise ConstraintViolation if a new image of one of the `leaving` rows, in their order, breaks a rule."""
        if self._judge is None:
            return
        at = 0
        for image in images:
            row = dict(zip(leaving.schema.names, leaving.slice(at, image.num_rows).columns, strict=True))
            row |= dict(zip(image.schema.names, image.columns, strict=True))
            at += image.num_rows
            collections.deque(self._judge.kept(iter([pa.RecordBatch.from_pydict(row)])), maxlen=0)

    def _as_written(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return as_in_file(rows, self._assigned, self._written)


def _none(count: int) -> pa.BooleanArray:
    return pa.repeat(pa.scalar(False), count)


def _merged(stays: pa.BooleanArray, old: pa.Array, new: pa.Array) -> pa.Array:
    """Return the old values of the rows that stay, and the new ones of the others, in order."""
    if not pa.types.is_nested(old.type):
        return pc.replace_with_mask(old, pc.invert(stays), new)
    changed = pc.cumulative_sum(pc.invert(stays).cast(pa.int64()))
    places = pc.if_else(stays, pa.array(range(len(old)), pa.int64()), pc.add(changed, len(old) - 1))
    return pa.concat_arrays([old, new]).take(places)


def _as_written(field: pa.Field, held: pa.Field) -> pa.Field:
    """Return the field of the copy: that of a new file, with the nulls that the file has."""
    found = physical_field(field)
    ids = {key: value for key, value in (held.metadata or {}).items() if key == PARQUET_ID_KEY}
    nullable = field.nullable or held.nullable
    return found.with_nullable(nullable).with_metadata(found.metadata or ids)
