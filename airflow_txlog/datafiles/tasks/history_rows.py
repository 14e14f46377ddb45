"""The history of rows from their events: one row for each time in which its values were the same.

A fold of events, of remembered events, and of the table's rows with the same keys. The invariant: the rows of a key are
what all its events leave in the order of their sequence. An event that has no row of its own is remembered, because a
late event may come between it and the event before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import whole
from airflow_txlog.datafiles.tasks.change_rows import DELETES_COLUMN, SEQUENCE_COLUMN, Events, key_column
from airflow_txlog.datafiles.tasks.folded_rows import same_as_before, same_values, sorted_by

AT_COLUMN = "__txlog_at"
"""The start of the row that a row of the fold meets in the table; null for an event that is only remembered."""
ACTION_COLUMN = "__txlog_action"
"""What is done with a row of the fold: one of the numbers below."""
WRITE, DROP, REMEMBER = 1, 2, 3

# Where an item of a history comes from. Of two of one sequence, the first in this order counts.
_REMEMBERED, _OF_ROW, _NEW = range(3)


@dataclass(frozen=True, kw_only=True)
class History:
    """A fold of events, of the table's rows, and of remembered events if there are any, to changes of the table's rows.

    `tracked`: the columns whose change begins a new row. `times`: the names of the start, of the end and, if there is
    one, of the mark of the present row. `of_row`: the names of the events' columns and of the times in the table's
    rows. `of_remembered`: the names of the events' columns in remembered events.
    """

    events: Events
    tracked: tuple[str, ...]
    times: tuple[str, ...]
    of_row: tuple[str, ...]
    of_remembered: tuple[str, ...]

    @property
    def start(self) -> str:
        return self.times[0]

    @property
    def end(self) -> str:
        return self.times[1]

    @property
    def current(self) -> str | None:
        return self.times[2] if len(self.times) > 2 else None

    def __call__(self, tables: Sequence[pa.Table]) -> pa.Table:
        of = self.events
        of.check_whole(tables[0])
        before = tables[1].select(self.of_row).rename_columns([*of.columns, *self.times])
        # A row without a start has no place in a history, and stays as it is.
        before = before.filter(before.column(self.start).is_valid())
        new = self._items(of.as_kept(tables[0]), of.sequence, of.deleting(tables[0]), _NEW)
        parts = [new, *self._items_of_rows(before)]
        for each in tables[2:]:
            deletes, sequence = each.column(DELETES_COLUMN), each.column(SEQUENCE_COLUMN)
            named = each.select(self.of_remembered).rename_columns(of.columns)
            parts.append(
                self._items(named.append_column(SEQUENCE_COLUMN, sequence), SEQUENCE_COLUMN, deletes, _REMEMBERED)
            )
        schema = parts[0].schema
        items = pa.concat_tables([part.cast(schema) for part in parts])
        items = self._without_doubles(items.take(self._order(items)))
        found = Runs(items, of.keys, self.tracked)
        rows = self._rows(items, found)
        kept = self._remembered(items, found)
        return pa.concat_tables([self._changed(rows, before), kept]).combine_chunks()

    # --- items: the events of a key, whatever they come from ---------------------------------------------------------

    def _items(self, rows: pa.Table, sequence: str, deletes: pa.Array, origin: int) -> pa.Table:
        found = rows.select(self.events.columns)
        found = found.append_column(SEQUENCE_COLUMN, rows.column(sequence))
        found = found.append_column(DELETES_COLUMN, deletes)
        return found.append_column(_ORIGIN, pa.repeat(pa.scalar(origin, pa.int8()), rows.num_rows))

    def _items_of_rows(self, rows: pa.Table) -> list[pa.Table]:
        """Return the events that the table's rows stand for: each began one, and some ended by a deletion."""
        begun = self._items(rows, self.start, pa.repeat(pa.scalar(False), rows.num_rows), _OF_ROW)
        at = sorted_by(rows, self.events.keys, [self.start], ["ascending"])
        ordered = rows.take(at).combine_chunks()
        # A row that the next one of its key follows at once ended by that one's event.
        keys = [whole(ordered.column(name)) for name in self.events.keys]
        follows = _after(same_as_before(keys), False)
        starts = _after(whole(ordered.column(self.start)), None)
        at_once = pc.and_(follows, pc.fill_null(pc.equal(whole(ordered.column(self.end)), starts), False))
        ended = ordered.filter(pc.and_(pc.is_valid(ordered.column(self.end)), pc.invert(at_once)))
        return [begun, self._items(ended, self.end, pa.repeat(pa.scalar(True), ended.num_rows), _OF_ROW)]

    def _order(self, items: pa.Table) -> pa.Array:
        return sorted_by(items, self.events.keys, [SEQUENCE_COLUMN, _ORIGIN], ["ascending", "ascending"])

    def _without_doubles(self, items: pa.Table) -> pa.Table:
        """Return the first item of each key and sequence, of the keys that have an event. Raises AmbiguousMerge."""
        of, origin = self.events, whole(items.column(_ORIGIN))
        keys = [whole(items.column(name)) for name in of.keys]
        repeats = same_as_before([*keys, whole(items.column(SEQUENCE_COLUMN))])
        places = pa.array(range(items.num_rows), pa.int64())
        first = pc.fill_null_forward(pc.if_else(repeats, None, places))
        both_new = pc.and_(repeats, pc.equal(origin.take(first), _NEW))
        of.check_clear(items, whole(items.column(DELETES_COLUMN)), (places.filter(both_new), first.filter(both_new)))
        with_event = _with_a(pc.equal(origin, _NEW), keys)
        return items.filter(pc.and_(pc.invert(repeats), with_event)).combine_chunks()

    # --- rows --------------------------------------------------------------------------------------------------------

    def _rows(self, items: pa.Table, runs: Runs) -> pa.Table:
        """Return the rows that the items leave, with their times."""
        rows = items.select(self.events.columns).take(runs.last)
        sequence = whole(items.column(SEQUENCE_COLUMN))
        rows = rows.append_column(self.start, sequence.take(runs.first))
        rows = rows.append_column(self.end, sequence.take(runs.ended_by))
        if self.current is not None:
            rows = rows.append_column(self.current, pc.is_null(rows.column(self.end)))
        return rows

    def _changed(self, rows: pa.Table, before: pa.Table) -> pa.Table:
        """Return the rows to write, because they are new or differ, and the rows of the table to drop."""
        before = before.select(rows.column_names).cast(rows.schema)
        keys = self.events.keys
        side = pa.chunked_array([pa.repeat(pa.scalar(n, pa.int8()), t.num_rows) for n, t in enumerate((rows, before))])
        both = pa.concat_tables([rows, before]).append_column(_ORIGIN, side)
        both = both.take(sorted_by(both, keys, [self.start, _ORIGIN], ["ascending", "ascending"])).combine_chunks()
        is_new = pc.equal(whole(both.column(_ORIGIN)), 0)
        meets = same_as_before([*(whole(both.column(name)) for name in keys), whole(both.column(self.start))])
        columns = [whole(both.column(name)) for name in rows.column_names]
        same = pc.and_(meets, same_as_before(columns))
        written = pc.and_(is_new, pc.invert(_after(same, False)))
        # A key without an event has no row among the new ones.
        dropped = pc.and_(pc.invert(pc.or_(is_new, meets)), _with_a(is_new, columns[: len(keys)]))
        return pa.concat_tables([self._acting(both.filter(written), WRITE), self._acting(both.filter(dropped), DROP)])

    def _acting(self, rows: pa.Table, action: int) -> pa.Table:
        """Return rows of the table with what is done with them, as the fold returns them."""
        rows = rows.select([name for name in rows.column_names if name != _ORIGIN])
        starts = rows.column(self.start)
        at = pa.nulls(rows.num_rows, starts.type) if action == REMEMBER else starts
        rows = rows.append_column(AT_COLUMN, at)
        return rows.append_column(ACTION_COLUMN, pa.repeat(pa.scalar(action, pa.int32()), rows.num_rows))

    def _remembered(self, items: pa.Table, runs: Runs) -> pa.Table:
        """Return the events that no row shows and no file remembers. The end of a deletion is its sequence."""
        is_new = pc.not_equal(whole(items.column(_ORIGIN)), _REMEMBERED)
        found = items.filter(pc.and_(is_new, self._has_no_row(items, runs))).combine_chunks()
        sequence, deletes = whole(found.column(SEQUENCE_COLUMN)), whole(found.column(DELETES_COLUMN))
        rows = found.select(self.events.columns).append_column(self.start, sequence)
        rows = rows.append_column(self.end, pc.if_else(deletes, sequence, None))
        if self.current is not None:
            rows = rows.append_column(self.current, pc.invert(deletes))
        return self._acting(rows, REMEMBER)

    def _has_no_row(self, items: pa.Table, runs: Runs) -> pa.BooleanArray:
        """Return for each item whether the rows do not show it: its place and its values, or its deletion."""
        places = pa.array(range(items.num_rows), pa.int64())
        of_run = pc.subtract(_numbered(runs.begins), 1)
        # Of items before the first run, which are deletions, any run will do.
        last = runs.last.take(pc.max_element_wise(of_run, 0)) if len(runs.last) else places
        is_shown = runs.begins
        columns = [whole(items.column(name)) for name in self.events.columns]
        is_shown = pc.and_(is_shown, same_values(((each, each.take(last)) for each in columns), items.num_rows))
        return pc.if_else(runs.deletes, pc.invert(runs.closes), pc.invert(is_shown))


class Runs:
    """The times in which the values of a key were the same, in items without doubles in their order.

    `first` and `last` are the places of the items that begin a time and that give its values, and `ended_by` of the one
    that ends it, null for none. `begins` and `closes` mark items that begin a time, and deletions that end one.
    """

    def __init__(self, items: pa.Table, keys: Sequence[str], tracked: Sequence[str]) -> None:
        count = items.num_rows
        places = pa.array(range(count), pa.int64())
        self.deletes = deletes = whole(items.column(DELETES_COLUMN))
        follows = same_as_before([whole(items.column(name)) for name in keys])
        follows_value = pc.and_(follows, pc.invert(_before(deletes, True)))
        columns = [whole(items.column(name)) for name in tracked]
        same = same_as_before(columns) if columns else pa.repeat(pa.scalar(True), count)
        self.begins = pc.and_(pc.invert(deletes), pc.invert(pc.and_(follows_value, same)))
        self.closes = pc.and_(deletes, follows_value)
        bounds = pc.or_(self.begins, self.closes)
        self.first = places.filter(self.begins)
        # The next item that begins a time, ends one, or is of another key.
        ends = pc.or_(bounds, pc.invert(follows))
        after = pc.fill_null_backward(_after(pc.if_else(ends, places, None), None))
        after = after.filter(self.begins)
        self.last = pc.subtract(pc.fill_null(after, count), 1)
        is_of_key = pc.fill_null(follows.take(after), False)
        self.ended_by = pc.if_else(is_of_key, after, None)


_ORIGIN = "__txlog_origin"


def _with_a(marks: pa.BooleanArray, keys: Sequence[pa.Array]) -> pa.BooleanArray:
    """Return for each row, sorted by the keys, whether a row of its key is marked."""
    group = _numbered(pc.invert(same_as_before(keys)))
    return pc.is_in(group, pc.unique(group.filter(marks)))


def _numbered(marks: pa.BooleanArray) -> pa.Array:
    """Return for each place how many marks there are up to it."""
    return pc.cumulative_sum(marks.cast(pa.int64()))


def _after(values: pa.Array, last: object) -> pa.Array:
    """Return for each place the value of the next one."""
    return pa.concat_arrays([values.slice(1), pa.array([last], values.type)]) if len(values) else values


def _before(values: pa.Array, first: object) -> pa.Array:
    """Return for each place the value of the one before it."""
    if not len(values):
        return values
    return pa.concat_arrays([pa.array([first], values.type), values.slice(0, len(values) - 1)])


def remembered_events(
    keys: Sequence[str], start: str, end: str, columns: Sequence[tuple[str, str]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a fold that are to be remembered, as the table remembers events.

    `columns`: of each value its column and its name in the files.
    """
    names = [*(key_column(number) for number in range(len(keys))), SEQUENCE_COLUMN, DELETES_COLUMN]
    for batch in batches:
        rows = batch.filter(pc.equal(batch.column(ACTION_COLUMN), REMEMBER))
        arrays = [*(rows.column(name) for name in keys), rows.column(start), pc.is_valid(rows.column(end))]
        arrays += [rows.column(name) for name, _ in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=[*names, *(name for _, name in columns)])
