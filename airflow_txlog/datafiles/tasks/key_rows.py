"""Rows found by their key in the task that reads them: which rows of which files have one of a list of keys.

A callable for `mapInArrow`, as those of `scan_and_write`. The invariant: a row is found exactly where each of its
columns equals that of a key by value, and null equals nothing; so the columns are of types whose values all engines
compare alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.tasks.scan_and_write import (
    ADDRESS_COLUMN,
    CLAUSE_COLUMN,
    ROW_ID_COLUMN,
    ScanTask,
    without_values,
)

# The row's address, the number of the key that it has, and the clause that acts on it.
KEY_ROWS_SCHEMA = pa.schema([(ADDRESS_COLUMN, pa.int64()), (ROW_ID_COLUMN, pa.int64()), (CLAUSE_COLUMN, pa.int32())])


class KeyPlaces:
    """Keys of one column or several, none of them null, and where among them a row's key is."""

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        """`keys`: one array for each column."""
        # For each column its distinct values, and the distinct combinations with the columns before it, as numbers.
        self._steps: list[tuple[pa.Array, pa.Array | None]] = []
        found: pa.Array | None = None
        for column in keys:
            values = column.unique()
            numbers = pc.index_in(column, value_set=values).cast(pa.int64())
            combinations = None
            if found is not None:
                numbers = _combined(found, numbers, len(values))
                combinations = numbers.unique()
                numbers = pc.index_in(numbers, value_set=combinations).cast(pa.int64())
            self._steps.append((values, combinations))
            found = numbers
        assert found is not None
        self.are_distinct = len(found.unique()) == len(found)
        """Whether no key stands there twice. Only then does `of` give places among the keys as they came."""

    def of(self, columns: Sequence[pa.Array]) -> pa.Array:
        """For each row, the place of its key among the keys; null for a key that is not there, or has a null."""
        found: pa.Array | None = None
        for (values, combinations), column in zip(self._steps, columns, strict=True):
            numbers = pc.index_in(column, value_set=values, skip_nulls=True)
            if found is not None and combinations is not None:
                numbers = _combined(found.cast(pa.int64()), numbers.cast(pa.int64()), len(values))
                numbers = pc.index_in(numbers, value_set=combinations, skip_nulls=True)
            found = numbers
        return found


def _combined(numbers: pa.Array, others: pa.Array, count: int) -> pa.Array:
    """Two columns of numbers as one; `others` are below `count`."""
    # There are never more combinations than keys, so a number stays below keys x values: 64 bits always hold it.
    return pc.add(pc.multiply(numbers, count), others)


@dataclass(frozen=True, kw_only=True)
class KeyRowsTask:
    """The rows of a scan, of the keys' columns and addresses alone, that have one of `keys`: rows of KEY_ROWS_SCHEMA.

    `keys` are distinct, not null, and of the columns' types: an array for each column of the scan, in its order;
    `numbers` are what each key is known by, and `clause` is what acts on its rows.
    """

    scan: ScanTask
    keys: tuple[pa.Array, ...]
    numbers: pa.Array
    clause: int | None

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of the rows that were found; raises TaskFailed."""
        keys = KeyPlaces(self.keys)
        for batch in self.scan(batches):
            places = keys.of(batch.columns[: len(self.keys)])
            found = places.is_valid()
            if not found.true_count:
                continue
            numbers = self.numbers.take(places.filter(found))
            clauses = pa.repeat(pa.scalar(self.clause, pa.int32()), len(numbers))
            addresses = batch.column(len(self.keys)).filter(found)
            yield pa.RecordBatch.from_arrays([addresses, numbers, clauses], schema=KEY_ROWS_SCHEMA)
