"""A step of a task that finds the rows of a source that come after another row with the same key.

The invariants: null equals nothing, so no other row has the key of a row with a null in it. Null comes last in every
order. The numbers of rows decide between rows that are equal in the order, so that the same rows give the same result
each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import whole
from airflow_txlog.datafiles.tasks.found_rows import packed_rows
from airflow_txlog.datafiles.tasks.scan_and_write import gathered

# Sorted at once, together with the first row of each key so far.
_ROWS_AT_ONCE = 1_000_000


def rows_after_first(
    keys: int, directions: Sequence[str], rows: Iterator[pa.RecordBatch], at_once: int = _ROWS_AT_ONCE
) -> Iterator[pa.RecordBatch]:
    """Yield the numbers of all rows except the first one of each key, as PACKED_SCHEMA.

    `rows` have the columns of the key, a column for each of the `directions` ("ascending", "descending"), and the
    number of the row. All rows of a key must be among them. The distinct keys and `at_once` bound the memory.
    """
    wanted, first = (*("ascending",) * keys, *directions, "ascending"), list[pa.Table]()
    for more in gathered(rows, at_once):
        # By number: Arrow would take a name that begins with a dot for a path.
        named = more.rename_columns([f"c{number}" for number in range(more.num_columns)])
        has_key = reduce(pc.and_, (column.is_valid() for column in named.columns[:keys]))
        found = pa.concat_tables([*first, named.filter(has_key)])
        by = list(zip(found.column_names, wanted, strict=True))
        # Arrow sorts nulls to the end.
        found = found.take(pc.sort_indices(found, sort_keys=by))
        columns = [whole(column) for column in found.columns]
        follows = _are_repeated(columns[:keys])
        if follows.true_count:
            yield packed_rows(columns[-1].filter(follows))
        first = [found.filter(pc.invert(follows))]


def _are_repeated(columns: Sequence[pa.Array]) -> pa.BooleanArray:
    """Return whether each row equals the row before it in all columns."""
    later = reduce(pc.and_, (pc.equal(column[1:], column[:-1]) for column in columns))
    return pa.concat_arrays([pa.array([False] * min(1, len(columns[0])), pa.bool_()), later])
