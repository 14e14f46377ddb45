"""A step of a task that finds rows by their key: the rows of files that have one of a list of keys, or none of them.

The invariants: a row has a key exactly if its columns equal those of the key by value, and null equals nothing. So the
columns must have types whose values all engines compare alike. A row that has several keys is found once for each.
Memory is bounded by the keys and by the rows that are looked up at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import addresses, places_of_different, whole
from airflow_txlog.datafiles.tasks.row_values import ActingClauses, bytes_of_largest, of_source
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, RESERVED_PREFIX, ROW_ID_COLUMN, gathered
from airflow_txlog.storage.limits import USUAL

# The rows of the table that are looked up at once: each time the smaller side is hashed, which takes 90 bytes a row.
_ROWS_AT_ONCE = 2_000_000
# If the keys are the smaller side, at least this many rows for each key, so that the keys are not hashed too often.
_ROWS_FOR_A_KEY = 8
# The join holds all pairs of this many rows: each may meet many.
_PROBED_AT_ONCE = 4096
# The most bytes that pairs take, with what conditions read of both rows: many pairs may repeat one long text.
_PAIR_BYTES = 64 * 1024 * 1024
# The most bytes in one array of texts.
_ARRAY_BYTES = 2**31 - 1
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_ROW_PLACE, _KEY_PLACE = f"{RESERVED_PREFIX}row_place", f"{RESERVED_PREFIX}key_place"
NEAR = 16
"""Whole numbers are near each other if they are this part of all numbers between them: a place takes four bytes."""


@dataclass(frozen=True, kw_only=True)
class HeldKeys:
    """Keys that the driver holds: their numbers, and a column for each column of the scan, in its order and types."""

    columns: tuple[pa.Array, ...]
    numbers: pa.Array

    def read(self) -> pa.Table:
        """Return the keys, and the numbers as the last column."""
        return pa.Table.from_arrays([*self.columns, self.numbers], names=_names(len(self.columns)))


@dataclass(frozen=True, kw_only=True)
class SourceKeys:
    """The keys of a job's materialized source. `scan` reads its key columns, those of conditions, and ROW_ID_COLUMN.

    `columns`: for each key column of the table's scan the source's column, and the type in which the table's scan has
    it. `conditions_read`: the columns of the source that conditions read.
    """

    scan: MaterializedScan
    columns: tuple[tuple[str, pa.DataType], ...]
    conditions_read: tuple[str, ...] = ()

    def read(self) -> pa.Table:
        """Return as HeldKeys does, with the columns of conditions after them. Raises JobError, retryable."""
        table = pa.Table.from_batches(self.scan.all_rows(), self.scan.output_schema)
        keys = [table.column(held).cast(kind) for held, kind in self.columns]
        more = [table.column(name) for name in self.conditions_read]
        names = [*_names(len(keys)), *map(of_source, self.conditions_read)]
        return pa.Table.from_arrays([*keys, table.column(ROW_ID_COLUMN), *more], names=names)


@dataclass(frozen=True, kw_only=True)
class Acting:
    """The clauses that act on rows with a key, and on rows without one."""

    matched: ActingClauses
    unmatched: ActingClauses = field(default_factory=ActingClauses)

    @property
    def columns_read(self) -> frozenset[str]:
        return self.matched.columns_read | self.unmatched.columns_read


def pairs_of_keys(
    keys: HeldKeys | SourceKeys,
    clauses: Acting,
    rows: Iterator[pa.RecordBatch],
    *,
    may_meet_many: bool = True,
    rows_at_once: int = _ROWS_AT_ONCE,
    bytes_at_once: int = USUAL.looked_up_bytes,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that have one of the keys: address, number of the key, and the clause that acts on them, if one
    does; and the other rows on which a clause acts, with a null instead of the number.

    `rows` begin with the keys' columns, in their order, and end with addresses. If a row may not meet several keys
    (`may_meet_many`), the search ends soon after one does: the caller refuses it, and all pairs may be too many to
    hold.
    """
    scanned = (batch for batch in rows if batch.num_rows)
    first = next(scanned, None)
    if first is None:
        return
    table = keys.read()
    if table.num_rows <= rows_at_once:
        rows_at_once = max(rows_at_once, _ROWS_FOR_A_KEY * table.num_rows)
    for looked_up in gathered(chain([first], scanned), rows_at_once, bytes_at_once):
        found = 0
        for pairs in _found(table, clauses, looked_up):
            yield pairs
            found += pairs.num_rows - pairs.column(1).null_count
            if found > looked_up.num_rows and not may_meet_many:
                return


def _found(keys: pa.Table, clauses: Acting, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    names = keys.column_names[: keys.column_names.index(ROW_ID_COLUMN)]
    # By number: Arrow would take a name that begins with a dot for a path.
    named = (name for name in rows.column_names if name in clauses.columns_read)
    read = {f"{RESERVED_PREFIX}read{number}": name for number, name in enumerate(named)}
    columns = [*rows.columns[: len(names)], rows.columns[-1], *map(rows.column, read.values())]
    rows = pa.Table.from_arrays(columns, names=[*names, ADDRESS_COLUMN, *read])
    has_all, places = bool(clauses.unmatched.conditions), None
    if len(names) == 1:
        places = places_of_different(whole(keys.column(0)), NEAR * (len(keys) + len(rows)))
    joined = _hashed(keys, rows, names, has_all) if places is None else _placed(*places, keys, rows, has_all)
    for found in joined:
        yield from _acted_on(clauses, found.rename_columns([read.get(name, name) for name in found.schema.names]))


def _placed(
    places: pa.Int32Array, least: int, keys: pa.Table, rows: pa.Table, has_all: bool
) -> Iterator[pa.RecordBatch]:
    """Join rows to keys; with `has_all`, keep rows without one. `places`: of the keys, from the `least` on.

    To look a key up in an array takes a fifth of the time of a hash join.
    """
    of_keys = _without_keys(keys, 1)
    for batch in rows.to_batches(max_chunksize=_PAIR_BYTES // bytes_of_largest(of_keys) or 1):
        numbers = pc.subtract(batch.column(0).cast(pa.int64()), pa.scalar(least, pa.int64()))
        is_outside = pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, len(places)))
        if pc.any(is_outside).as_py():
            numbers = pc.if_else(is_outside, pa.scalar(None, pa.int64()), numbers)
        found = places.take(numbers)
        if found.null_count and not has_all:
            batch, found = batch.filter(found.is_valid()), found.drop_null()
        columns = [*batch.columns[1:], *_taken(of_keys, found, keys)]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names[1:], *of_keys.schema.names])


def _hashed(keys: pa.Table, rows: pa.Table, names: Sequence[str], has_all: bool) -> Iterator[pa.RecordBatch]:
    """Join by hash, for keys of any type."""
    # A job without keys imports this module too.
    from pyarrow.acero import Declaration, HashJoinNodeOptions, TableSourceNodeOptions  # noqa: PLC0415

    # Arrow yields 32,768 pairs at once, whatever they hold: the join has places, and the pairs take the rest from them.
    placed = [
        side.select(names).append_column(place, addresses(0, 0, side.num_rows))
        for side, place in ((keys, _KEY_PLACE), (rows, _ROW_PLACE))
    ]
    # The smaller side becomes the table in which the other is looked up.
    few, many = sorted(placed, key=lambda side: int(side.num_rows))
    many = pa.Table.from_batches(many.to_batches(max_chunksize=_PROBED_AT_ONCE), many.schema)
    sides = [Declaration("table_source", TableSourceNodeOptions(side)) for side in (many, few)]
    outputs = [side.column_names[len(names) :] for side in (many, few)]
    kind = "inner"
    if has_all:
        kind = "left outer" if few is placed[0] else "right outer"
    join = Declaration("hashjoin", HashJoinNodeOptions(kind, names, names, *outputs), inputs=sides)
    of_rows, of_keys = _without_keys(rows, len(names)), _without_keys(keys, len(names))
    at_once = _PAIR_BYTES // (bytes_of_largest(of_rows) + bytes_of_largest(of_keys)) or 1
    # Pairs are yielded as they are found: for a key that occurs often, all pairs together may be too many to hold.
    for pairs in join.to_reader(use_threads=False):
        for start in range(0, pairs.num_rows, at_once):
            part = pairs.slice(start, at_once)
            columns = _taken(of_rows, part.column(_ROW_PLACE), rows) + _taken(of_keys, part.column(_KEY_PLACE), keys)
            yield pa.RecordBatch.from_arrays(columns, names=[*of_rows.schema.names, *of_keys.schema.names])


def _without_keys(side: pa.Table, keys: int) -> pa.RecordBatch:
    """Return the other columns, each in one array: of a larger type where Arrow could not hold it otherwise."""
    columns = []
    for column in side.columns[keys:]:
        is_large = column.nbytes > _ARRAY_BYTES
        columns.append(whole(column.cast(_LARGE.get(column.type, column.type)) if is_large else column))
    return pa.RecordBatch.from_arrays(columns, names=side.column_names[keys:])


def _taken(rows: pa.RecordBatch, places: pa.Array, side: pa.Table) -> list[pa.Array]:
    """Return the columns of the rows at these places, in the types of `side`; nulls for a null."""
    return [
        column.take(places).cast(side.schema.field(name).type)
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]


def _acted_on(clauses: Acting, found: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the joined rows that have a key, and those of the others on which a clause acts."""
    is_pair = found.column(ROW_ID_COLUMN).is_valid()
    if is_pair.true_count:
        yield _numbered(found.filter(is_pair) if is_pair.false_count else found, clauses.matched)
    if is_pair.false_count:
        alone = _numbered(found.filter(pc.invert(is_pair)), clauses.unmatched)
        yield alone.filter(alone.column(2).is_valid())


def _numbered(rows: pa.RecordBatch, clauses: ActingClauses) -> pa.RecordBatch:
    columns = [rows.column(name) for name in (ADDRESS_COLUMN, ROW_ID_COLUMN)]
    return pa.RecordBatch.from_arrays([*columns, clauses.on(rows)], names=["address", "row", "clause"])


def without_source_rows(pairs: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the pairs of `pairs_of_keys` without the number of the key, which takes eight bytes for each row."""
    for batch in pairs:
        yield batch.set_column(1, "row", pa.nulls(batch.num_rows, pa.int64()))


def _names(keys: int) -> list[str]:
    return [*(f"{RESERVED_PREFIX}key{number}" for number in range(keys)), ROW_ID_COLUMN]
