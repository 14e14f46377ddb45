"""Rows found by their key in the task that reads them: which rows of which files have one of a list of keys.

A callable for `mapInArrow`, as those of `scan_and_write`. The invariant: a row is found exactly where its column equals
a key by value; so the column is of a type whose values all engines compare alike.
"""

from __future__ import annotations

from collections.abc import Iterator
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


@dataclass(frozen=True, kw_only=True)
class KeyRowsTask:
    """The rows of a scan, of the key's column and addresses alone, that have one of `keys`: rows of KEY_ROWS_SCHEMA.

    `keys` are distinct, not null, and of the column's type; `numbers` are what each is known by.
    """

    scan: ScanTask
    keys: pa.Array
    numbers: pa.Array

    @without_values
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of the rows that were found; raises TaskFailed."""
        for batch in self.scan(batches):
            places = pc.index_in(batch.column(0), value_set=self.keys)
            found = places.is_valid()
            if not found.true_count:
                continue
            numbers = self.numbers.take(places.filter(found))
            clauses = pa.repeat(pa.scalar(0, pa.int32()), len(numbers))
            yield pa.RecordBatch.from_arrays([batch.column(1).filter(found), numbers, clauses], schema=KEY_ROWS_SCHEMA)
