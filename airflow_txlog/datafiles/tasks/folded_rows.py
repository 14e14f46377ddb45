"""Rows that one task makes of all rows with the same keys: the ones that follow the first, or any other fold.

A task reads all inputs and keeps the rows of its part of the keys, so that any number of rows fits into memory and
neither executor needs a shuffle. The invariants: all rows of one key are in one part, whatever machine computes it;
and the result depends on the rows alone, not on their order, if `order` distinguishes them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import ClassVar, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import whole
from airflow_txlog.datafiles.tasks.found_rows import packed_rows
from airflow_txlog.datafiles.tasks.plans import PlannedFile
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN, FileScan

_ROWS_AT_ONCE = 65_536

Input: TypeAlias = tuple[FileScan, tuple[str, ...]]
"""Rows, and the names of the keys in them. Keys of all inputs are in one order."""

Fold: TypeAlias = Callable[[Sequence[pa.Table]], pa.Table]
"""Returns the rows that follow from all rows with some keys, given the rows of each input."""


@dataclass(frozen=True, kw_only=True)
class FoldedScan(FileScan):
    """The rows that `fold` makes of the `inputs`. The number of a planned file is that of one of the `parts`.

    Each input comes with the names of its key columns, in the same order. The first input is read completely. A row
    of another input is read only if each of its keys occurs in the first input, possibly in different rows. With
    `needs_all` all rows of the part are read.
    """

    inputs: tuple[tuple[FileScan, tuple[str, ...]], ...]
    fold: Fold
    parts: int
    needs_all: bool = False
    joins_files: ClassVar[bool] = False

    @cached_property
    def output_schema(self) -> pa.Schema:
        return self.schema

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        (scan, keys), *others = self.inputs
        first = self._rows(scan, keys, planned.index)
        wanted = None if self.needs_all else [pc.unique(first.column(name)) for name in keys]
        found = self.fold([first, *(self._rows(*each, planned.index, wanted) for each in others)])
        yield from found.combine_chunks().to_batches(max_chunksize=_ROWS_AT_ONCE)

    def _rows(
        self, scan: FileScan, keys: tuple[str, ...], part: int, wanted: Sequence[pa.Array] | None = None
    ) -> pa.Table:
        batches = scan.all_rows()
        if wanted is not None:
            batches = (_with_keys(batch, keys, wanted) for batch in batches)
        elif self.parts > 1:
            batches = (batch.filter(_in_part(batch, keys, part, self.parts)) for batch in batches)
        return pa.Table.from_batches(list(batches), scan.output_schema).combine_chunks()


def _with_keys(rows: pa.RecordBatch, keys: Sequence[str], wanted: Sequence[pa.Array]) -> pa.RecordBatch:
    """Return the rows each of whose keys is among the wanted ones."""
    for name, values in zip(keys, wanted, strict=True):
        rows = rows.filter(pc.is_in(rows.column(name), value_set=values))
    return rows


def _in_part(rows: pa.RecordBatch, keys: Sequence[str], part: int, parts: int) -> pa.BooleanArray:
    """Return for each row whether its keys belong to a part."""
    total: pa.Array = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for name in keys:
        of_rows = pc.bit_wise_and(pc.fill_null(_codes(rows.column(name)), 0), 0x7FFF_FFFF)
        total = pc.bit_wise_and(pc.add(pc.multiply(total, 31), of_rows), 0x7FFF_FFFF)
    return pc.equal(pc.subtract(total, pc.multiply(pc.divide(total, parts), parts)), part)


def _codes(values: pa.Array) -> pa.Array:
    """Return a number for each value, the same for equal values on every machine; null for null."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    if pa.types.is_integer(values.type):
        values = values.cast(pa.int64())
        # Numbers that differ by a multiple of the number of parts are not all in one part.
        return pc.bit_wise_xor(values, pc.shift_right(values, 17))
    encoded = values.dictionary_encode()
    codes = [zlib.crc32(repr(value).encode(errors="surrogatepass")) for value in encoded.dictionary.to_pylist()]
    return pa.array(codes, pa.int64()).take(encoded.indices)


def rows_after_first(
    keys: Sequence[str], order: Sequence[str], directions: Sequence[str], tables: Sequence[pa.Table]
) -> pa.Table:
    """Return the numbers of all rows of the only table except the first one of each key, as PACKED_SCHEMA.

    NULL equals nothing in a key, and comes last in the order; each column of it has a direction, "ascending" or
    "descending". The numbers of rows, ROW_ID_COLUMN, decide between rows that are equal in the order.
    """
    (rows,) = tables
    rows = rows.filter(reduce(pc.and_, (rows.column(name).is_valid() for name in keys)))
    at = sorted_by(rows, keys, [*order, ROW_ID_COLUMN], [*directions, "ascending"])
    follows = same_as_before([rows.column(name).take(at) for name in keys])
    return pa.Table.from_batches([packed_rows(whole(rows.column(ROW_ID_COLUMN).take(at.filter(follows))))])


def sorted_by(
    rows: pa.Table, keys: Sequence[str], order: Sequence[str], directions: Sequence[str] | None = None
) -> pa.Array:
    """Return the numbers of the rows, by the keys and then by the order. Equal rows keep their order; NULL comes last.

    `directions` of the columns of the order: "ascending" or "descending", the default.
    """
    # By number: Arrow would take a name that begins with a dot for a path.
    numbered = pa.table(
        [rows.column(name) for name in (*keys, *order)], [f"c{n}" for n in range(len(keys) + len(order))]
    )
    ways = ["ascending"] * len(keys) + list(directions or ["descending"] * len(order))
    return pc.sort_indices(numbered, sort_keys=list(zip(numbered.column_names, ways, strict=True)))


def same_as_before(columns: Sequence[pa.ChunkedArray | pa.Array]) -> pa.BooleanArray:
    """Return for each row whether it equals the row before it in all columns, as GROUP BY compares them."""
    arrays = [whole(column) if isinstance(column, pa.ChunkedArray) else column for column in columns]
    count = len(arrays[0])
    if not count:
        return pa.array([], pa.bool_())
    pairs = ((column.slice(1), column.slice(0, count - 1)) for column in arrays)
    return pa.concat_arrays([pa.array([False]), same_values(pairs, count - 1)])


def same_values(pairs: Iterable[tuple[pa.Array, pa.Array]], count: int) -> pa.BooleanArray:
    """Return for each of `count` places whether both arrays of every pair have the same value there."""
    everywhere = pa.repeat(pa.scalar(True), count)
    return reduce(pc.and_, (_same(one, other) for one, other in pairs), everywhere)


def _same(one: pa.Array, other: pa.Array) -> pa.BooleanArray:
    if pa.types.is_nested(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        # NaN equals itself only by its text.
        return pa.array([a == b or repr(a) == repr(b) for a, b in pairs], pa.bool_())
    are_null = pc.and_(pc.is_null(one), pc.is_null(other))
    same = pc.or_(pc.fill_null(pc.equal(one, other), False), are_null)
    if not pa.types.is_floating(one.type):
        return same
    return pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
