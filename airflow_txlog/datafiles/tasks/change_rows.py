"""Events brought together key by key: which of them decides, and what the table remembers of the others.

The invariant: the rows that leave a fold follow from the events of each key in the order of their sequence, whatever
the order in which a source has them and however often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import whole
from airflow_txlog.datafiles.tasks.folded_rows import same_as_before, same_values, sorted_by
from airflow_txlog.errors import AmbiguousMerge, SchemaMismatch
from airflow_txlog.sql.evaluation import passing
from airflow_txlog.sql.expression import Expression

DELETES_COLUMN = "__txlog_deletes"
"""Whether an event deletes its row. No column of a source or a table may begin with `__txlog_` (or `_txlog_`)."""
SEQUENCE_COLUMN = "_txlog_sequence"
"""The sequence of an event that the table remembers; its keys are named by `key_column`."""
KEY_PREFIX = "_txlog_key_"
COUNT_SCHEMA = pa.schema([("count", pa.int64())])


def key_column(number: int) -> str:
    """Return the name of a key's column in the rows of remembered events, by its place among the keys."""
    return f"{KEY_PREFIX}{number}"


@dataclass(frozen=True, kw_only=True)
class Events:
    """The events of a source: the columns that order and identify them, and those that rows get.

    `deletes`: the condition of an event that deletes its row, bound to the source's columns; None: no event does.
    `nulls`: columns whose empty value the table stores as NULL. `table` is for errors.
    """

    keys: tuple[str, ...]
    sequence: str
    columns: tuple[str, ...]
    deletes: Expression | None
    nulls: frozenset[str]
    table: str

    def deleting(self, rows: pa.Table) -> pa.BooleanArray:
        """Return for each row, in one chunk, whether it deletes. Raises as `evaluation.passing` does."""
        if self.deletes is None or not rows.num_rows:
            return pa.repeat(pa.scalar(False), rows.num_rows)
        (batch,) = rows.combine_chunks().to_batches()
        return passing(self.deletes, batch)

    def as_kept(self, rows: pa.Table) -> pa.Table:
        """Return the rows with NULL for each value that the table stores as NULL."""
        for name in self.nulls:
            column = rows.column(name)
            kept = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
            rows = rows.set_column(rows.column_names.index(name), name, kept)
        return rows

    def check_whole(self, rows: pa.Table) -> None:
        """Raise SchemaMismatch for an event without a key or a sequence."""
        for name in (*self.keys, self.sequence):
            column = rows.column(name)
            count = column.null_count
            if name in self.nulls:
                count += pc.sum(pc.equal(column, ""), min_count=0).as_py()
            if count:
                what = "a key" if name in self.keys else "the sequence"
                empty = ", or an empty text, which the table's partitions store as NULL" if name in self.nulls else ""
                raise SchemaMismatch(
                    f"{self.table}: in {count} of {rows.num_rows} events the column {name!r}, which is {what}, is NULL"
                    f"{empty}. "
                    "Their place in the history is not known. Leave these events out in the source's SQL, or by "
                    "expect_or_quarantine. Nothing was changed.",
                    table=self.table,
                    columns=[name],
                )

    def check_clear(self, rows: pa.Table, deletes: pa.BooleanArray, pairs: tuple[pa.Array, pa.Array]) -> None:
        """Raise AmbiguousMerge if two events of one key and one sequence differ, given the numbers of such pairs."""
        one, other = pairs
        alike = pc.equal(deletes.take(one), deletes.take(other))
        both = pc.and_(deletes.take(one), deletes.take(other))
        columns = [whole(rows.column(name)) for name in self.columns]
        values = same_values(((column.take(one), column.take(other)) for column in columns), len(one))
        unclear = pc.invert(pc.and_(alike, pc.or_(both, values)))
        if unclear.true_count:
            raise AmbiguousMerge(
                f"{self.table}: at least {unclear.true_count} of {rows.num_rows} events have the key and the sequence "
                f"of another one ({', '.join(self.keys)}; {self.sequence}) and differ from it. It is not defined which "
                "of them is the later one: give sequence_by a column that orders the events of a key. Nothing was "
                "changed.",
                table=self.table,
            )


@dataclass(frozen=True, kw_only=True)
class NewestEvent:
    """A fold of events, and of remembered deletions if there are any: the newest event of each key.

    An event that is not newer than a remembered deletion of its key is left out.
    """

    events: Events

    def __call__(self, tables: Sequence[pa.Table]) -> pa.Table:
        rows, of = tables[0], self.events
        of.check_whole(rows)
        deletes = of.deleting(rows)
        keys = [key_column(number) for number in range(len(of.keys))]
        given = rows.select([*of.keys, of.sequence]).rename_columns([*keys, SEQUENCE_COLUMN])
        parts = [each.select([*keys, SEQUENCE_COLUMN]).cast(given.schema) for each in tables[1:]]
        # A remembered deletion comes before an event of the same sequence, and has no number.
        before = pa.nulls(sum(part.num_rows for part in parts), pa.int64())
        numbers = pa.concat_arrays([before, pa.array(range(rows.num_rows), pa.int64())])
        together = pa.concat_tables([*parts, given])
        at = sorted_by(together, keys, [SEQUENCE_COLUMN])
        columns = [whole(together.column(name)).take(at) for name in (*keys, SEQUENCE_COLUMN)]
        number = numbers.take(at)
        is_first = pc.invert(same_as_before(columns[:-1]))
        self._check_clear(rows, deletes, columns[-1], number, is_first)
        newest = number.filter(is_first).drop_null()
        return rows.select(of.columns).take(newest).append_column(DELETES_COLUMN, deletes.take(newest))

    def _check_clear(
        self, rows: pa.Table, deletes: pa.BooleanArray, sequence: pa.Array, number: pa.Array, is_first: pa.BooleanArray
    ) -> None:
        """Check the events that are as new as the newest of their key, which `is_first` marks in its sorted rows."""
        places = pa.array(range(len(number)), pa.int64())
        first = pc.fill_null_forward(pc.if_else(is_first, places, None))
        is_as_new = pc.and_(pc.equal(sequence, sequence.take(first)), pc.invert(is_first))
        one, other = number.filter(is_as_new), number.take(first).filter(is_as_new)
        are_events = pc.and_(pc.is_valid(one), pc.is_valid(other))
        self.events.check_clear(rows, deletes, (one.filter(are_events), other.filter(are_events)))


def greatest_sequence(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the greatest sequence of each batch of remembered events."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.repeat(pc.max(batch.column(SEQUENCE_COLUMN)), 1)], [SEQUENCE_COLUMN])


def counted_until(
    horizon: pa.Array, sequence: str, acting: tuple[str, bool | int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield how many rows of each batch have at most this sequence, and the value of `acting` in its column.

    `horizon` has one value. Python has no form for some times.
    """
    name, value = acting
    for batch in batches:
        is_late = pc.less_equal(batch.column(sequence), horizon[0])
        found = pc.and_(is_late, pc.equal(batch.column(name), value))
        yield pa.RecordBatch.from_arrays([pa.array([found.true_count])], COUNT_SCHEMA.names)


def deletions(keys: Sequence[str], sequence: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the keys and the sequences of the events that delete, as the table remembers them."""
    names = [*(key_column(number) for number in range(len(keys))), SEQUENCE_COLUMN]
    for batch in batches:
        yield batch.filter(batch.column(DELETES_COLUMN)).select([*keys, sequence]).rename_columns(names)
