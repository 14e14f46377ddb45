"""Change rows, read where they are and written whole, without a way through the JVM. Files of them never mix segments.

Source: protocol, "Change Data Files"; soundness A17.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.change_rows import CHANGE_TYPE_FIELD, DELETE, UPDATE_PREIMAGE
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.plans import Bins
from airflow_txlog.datafiles.tasks.scan_and_write import CLAUSE_COLUMN, FileScan, Task


def leaving_task(bins: Bins, layout: Layout, updates: frozenset[int] = frozenset()) -> Task:
    """The task that writes change rows of the rows at the plan's positions, which leave their files.

    Of a file without positions it is every row that no deletion vector deletes. `layout` is the table's. `updates` are
    the clauses of the plan that update a row, whose old image it is; any other, or none, deletes it.
    """
    scan = FileScan(bins=bins, schema=layout.schema, rows="only", with_clause=True, with_segment=True)
    return Task(source=scan, steps=(functools.partial(_by_clause, updates),), layout=layout.for_changes())


def _by_clause(updates: frozenset[int], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    numbers = pa.array(list(updates), pa.int32())
    for batch in rows:
        is_update = pc.is_in(batch.column(CLAUSE_COLUMN), value_set=numbers)
        types = pc.if_else(is_update, UPDATE_PREIMAGE, DELETE)
        yield batch.drop_columns([CLAUSE_COLUMN]).append_column(CHANGE_TYPE_FIELD, types)


def of_type(change_type: str, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, which are change rows of this type too."""
    for batch in rows:
        yield batch.append_column(CHANGE_TYPE_FIELD, pa.repeat(pa.scalar(change_type, pa.string()), batch.num_rows))
