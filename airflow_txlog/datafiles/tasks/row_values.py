"""New values of columns that follow from a row alone: constants, other columns, and what is computed of these.

What the driver has read out of the plain texts of an UPDATE or a MERGE (`jobs/sql/plain_values`); of a MERGE the row
may be the source's. The invariant: a value is the one that Spark computes from the author's text, and no row makes the
computation fail. Source: docs/decisions/spark-computes.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.sql.evaluation import values_of
from airflow_txlog.sql.expression import Expression, Values, columns_of


@dataclass(frozen=True, kw_only=True)
class RowValues:
    """The new value of each column that is assigned. All of them see the row as it was."""

    values: Mapping[str, Expression]
    most_bytes: int = 64 * 1024 * 1024
    """What the constants of a batch of new rows take at most."""

    @property
    def names(self) -> tuple[str, ...]:
        """The assigned columns."""
        return tuple(self.values)

    @property
    def columns_read(self) -> frozenset[str]:
        """The columns that the new values are made of."""
        return frozenset[str]().union(*map(columns_of, self.values.values()))

    def assigned(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with the assigned columns, in the place of those they had, in batches of a bounded size.

        `rows` have `columns_read`, and a column at least.
        """
        for part, new in self._new(rows):
            kept = {name: part.column(name) for name in part.schema.names if name not in new}
            yield pa.RecordBatch.from_pydict(new | kept)

    def alone(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The assigned columns alone, of which there is one at least, in such batches."""
        return (pa.RecordBatch.from_pydict(new) for _, new in self._new(rows))

    def _new(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, dict[str, pa.Array]]]:
        constants = sum(each.array.nbytes for each in self.values.values() if isinstance(each, Values))
        at_once = max(1, self.most_bytes // max(1, constants))
        for start in range(0, rows.num_rows, at_once):
            part = rows.slice(start, at_once)
            yield part, {name: values_of(value, part) for name, value in self.values.items()}


def only_values(values: RowValues, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The assigned columns alone, as the step of a task."""
    for batch in rows:
        yield from values.alone(batch)
