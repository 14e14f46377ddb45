"""The history of rows from their events: one row for each time in which its values were the same, or only the last one.

A fold of events, of remembered events, and of the table's rows with the same keys. The invariant: the rows of a key are
the result of all its events in the order of their sequence. An event that no row shows is remembered, because a late
event may belong between it and the event before it.
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
WRITE, DROP, REMEMBER, REMEMBER_DELETION = 1, 2, 3, 4

# Where an item of a history comes from. Of two of one sequence, the first in this order counts.
_REMEMBERED, _OF_ROW, _NEW = range(3)


@dataclass(frozen=True, kw_only=True)
class History:
    """A fold of events, of the table's rows, and of remembered events if there are any, to changes of the table's rows.

    `tracked`: the columns whose change begins a new row. `times`: the names of the start, of the end and, if there is
    one, of the mark of the present row. `of_row`: the names of the events' columns and of the times in the table's
    rows. `of_remembered`: the names of the events' columns in remembered events. `carried`: the columns in which NULL
    stands for the value of the event before.
    """

    events: Events
    tracked: tuple[str, ...]
    times: tuple[str, ...]
    of_row: tuple[str, ...]
    of_remembered: tuple[str, ...]
    carried: tuple[str, ...] = ()

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
        before = self._of_table(tables[1].select(self.of_row).rename_columns([*of.columns, *self.times]))
        before = before.filter(_has_keys_of(tables[0], before, of.keys))
        new = self._items(of.as_kept(tables[0]), of.sequence, of.deleting(tables[0]), _NEW)
        parts = [new, *self._items_of_rows(before)]
        for each in tables[2:]:
            deletes, sequence = each.column(DELETES_COLUMN), each.column(SEQUENCE_COLUMN)
            named = each.select(self.of_remembered).rename_columns(of.columns)
            named = named.append_column(SEQUENCE_COLUMN, sequence)
            known = self._items(named, SEQUENCE_COLUMN, deletes, _REMEMBERED).cast(new.schema)
            parts.append(self._that_add_up(known.filter(_has_keys_of(tables[0], known, of.keys)), before))
        items = pa.concat_tables([part.cast(new.schema) for part in parts])
        items = self._without_doubles(items.take(self._order(items)))
        values = CarriedValues(items, of.keys, self.carried)
        found = Runs(values.items, of.keys, self.tracked)
        rows = self._rows(values.items, found)
        kept = self._remembered(items, values, found, rows.schema)
        return pa.concat_tables([self._changed(rows, before), kept]).combine_chunks()

    def _of_table(self, rows: pa.Table) -> pa.Table:
        """Return the rows of the table that take part: one without a start has no place in a history, and stays."""
        return rows.filter(rows.column(self.start).is_valid())

    def _that_add_up(self, remembered: pa.Table, before: pa.Table) -> pa.Table:
        """Return the remembered events that count, given the rows of the table."""
        return remembered

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
        """Return the numbers of the items by key and sequence; one without a sequence is the first of its key."""
        marked = items.append_column(_HAS_PLACE, items.column(SEQUENCE_COLUMN).is_valid().cast(pa.int8()))
        return sorted_by(marked, self.events.keys, [_HAS_PLACE, SEQUENCE_COLUMN, _ORIGIN], ["ascending"] * 3)

    def _without_doubles(self, items: pa.Table) -> pa.Table:
        """Return the first item of each key and sequence. Raises AmbiguousMerge."""
        of, origin = self.events, whole(items.column(_ORIGIN))
        keys = [whole(items.column(name)) for name in of.keys]
        repeats = same_as_before([*keys, whole(items.column(SEQUENCE_COLUMN))])
        places = pa.array(range(items.num_rows), pa.int64())
        first = pc.fill_null_forward(pc.if_else(repeats, None, places))
        both_new = pc.and_(repeats, pc.equal(origin.take(first), _NEW))
        of.check_clear(items, whole(items.column(DELETES_COLUMN)), (places.filter(both_new), first.filter(both_new)))
        return items.filter(pc.invert(repeats)).combine_chunks()

    # --- rows --------------------------------------------------------------------------------------------------------

    @property
    def _met_by(self) -> tuple[str, ...]:
        """The columns that match a row of the fold with one of the table."""
        return (*self.events.keys, self.start)

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
        met = self._met_by
        side = pa.chunked_array([pa.repeat(pa.scalar(n, pa.int8()), t.num_rows) for n, t in enumerate((rows, before))])
        both = pa.concat_tables([rows, before]).append_column(_ORIGIN, side)
        both = both.take(sorted_by(both, met, [_ORIGIN], ["ascending"])).combine_chunks()
        is_new = pc.equal(whole(both.column(_ORIGIN)), 0)
        meets = same_as_before([whole(both.column(name)) for name in met])
        columns = [whole(both.column(name)) for name in rows.column_names]
        same = pc.and_(meets, same_as_before(columns))
        written = pc.and_(is_new, pc.invert(_after(same, False)))
        dropped = pc.invert(pc.or_(is_new, meets))
        return pa.concat_tables([self._acting(both.filter(written), WRITE), self._acting(both.filter(dropped), DROP)])

    def _acting(self, rows: pa.Table, action: int) -> pa.Table:
        """Return rows of the table with what is done with them, as the fold returns them."""
        rows = rows.select([name for name in rows.column_names if name != _ORIGIN])
        rows = rows.append_column(AT_COLUMN, rows.column(self.start))
        return rows.append_column(ACTION_COLUMN, pa.repeat(pa.scalar(action, pa.int32()), rows.num_rows))

    def _remembered(self, items: pa.Table, values: CarriedValues, runs: Runs, schema: pa.Schema) -> pa.Table:
        """Return the events that no row shows and no file remembers, with the columns of the rows, `schema`."""
        is_new = pc.not_equal(whole(items.column(_ORIGIN)), _REMEMBERED)
        found = items.filter(pc.and_(is_new, self._has_no_row(items, values, runs))).combine_chunks()
        rows = found.select(self.events.columns).append_column(self.start, whole(found.column(SEQUENCE_COLUMN)))
        for name in self.times[1:]:
            rows = rows.append_column(name, pa.nulls(found.num_rows, schema.field(name).type))
        rows = rows.append_column(AT_COLUMN, pa.nulls(found.num_rows, schema.field(self.start).type))
        deletes = whole(found.column(DELETES_COLUMN))
        return rows.append_column(ACTION_COLUMN, pc.if_else(deletes, REMEMBER_DELETION, REMEMBER).cast(pa.int32()))

    def _has_no_row(self, items: pa.Table, values: CarriedValues, runs: Runs) -> pa.BooleanArray:
        """Return for each item whether the rows do not show it: its place and its values, or its deletion."""
        is_shown = pc.and_(runs.begins, values.are_those_of(items, self.events.columns, runs.last_of_each()))
        return pc.if_else(runs.deletes, pc.invert(runs.closes), pc.invert(is_shown))


@dataclass(frozen=True, kw_only=True)
class CurrentRow(History):
    """The same fold to the last row of each key alone, whose `times` are only the sequence of its last event.

    It remembers the events that have given the row a value, unless the last one has given all of them; and the newest
    deletion. Remembered events that do not add up to the row of the table do not count: another operation has changed
    it, or some of them have expired. The values of the row then count as those of its last event.
    """

    @property
    def _met_by(self) -> tuple[str, ...]:
        return self.events.keys

    def _of_table(self, rows: pa.Table) -> pa.Table:
        return rows

    def _items_of_rows(self, rows: pa.Table) -> list[pa.Table]:
        return [self._items(rows, self.start, pa.repeat(pa.scalar(False), rows.num_rows), _OF_ROW)]

    def _that_add_up(self, remembered: pa.Table, before: pa.Table) -> pa.Table:
        keys = self.events.keys
        items = remembered.take(self._order(remembered)).combine_chunks()
        at = [whole(items.column(name)) for name in (*keys, SEQUENCE_COLUMN)]
        items = items.filter(pc.invert(same_as_before(at))).combine_chunks()
        values = CarriedValues(items, keys, self.carried)
        rows = self._rows(values.items, Runs(values.items, keys, self.tracked))
        both = pa.concat_tables([rows, before.select(rows.column_names).cast(rows.schema)])
        both = both.take(sorted_by(both, keys, [], [])).combine_chunks()
        proven = both.filter(same_as_before([whole(both.column(name)) for name in both.column_names])).select(keys)
        adds_up = _has_keys_of(proven, items, keys)
        return items.filter(pc.or_(adds_up, whole(items.column(DELETES_COLUMN))))

    def _rows(self, items: pa.Table, runs: Runs) -> pa.Table:
        last = runs.last.filter(pc.is_null(runs.ended_by))
        rows = items.select(self.events.columns).take(last)
        return rows.append_column(self.start, whole(items.column(SEQUENCE_COLUMN)).take(last))

    def _has_no_row(self, items: pa.Table, values: CarriedValues, runs: Runs) -> pa.BooleanArray:
        """Return for each item whether it has to be remembered."""
        places, last = pa.array(range(items.num_rows), pa.int64()), runs.last_of_each()
        is_given = pc.equal(places, last)
        for given_by in values.given_by.values():
            is_given = pc.or_(is_given, pc.fill_null(pc.equal(given_by.take(last), places), False))
        is_whole = values.are_those_of(items, self.events.columns, last).take(last)
        keys = [whole(items.column(name)) for name in self.events.keys]
        of_key = _numbered(pc.invert(same_as_before(keys)))
        deleted_later = _after(pc.fill_null_backward(pc.if_else(runs.deletes, places, None)), None)
        is_newest = pc.invert(pc.fill_null(pc.equal(of_key.take(deleted_later), of_key), False))
        is_needed = pc.and_(is_newest, pc.and_(is_given, pc.invert(is_whole)))
        return pc.if_else(runs.deletes, is_newest, is_needed)


@dataclass(frozen=True, kw_only=True)
class WithGoneRows:
    """A fold of a snapshot and of the table's rows to the rows of the snapshot, and those that it lacks.

    `keys` and `columns` are those of the snapshot, and `of_row` the names of the columns in the table. Of its rows,
    those take part that have not ended, by the column `end`, and are not marked by `deleted`, as the gone ones are.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    of_row: tuple[str, ...]
    end: str
    deleted: str

    def __call__(self, tables: Sequence[pa.Table]) -> pa.Table:
        rows, held = tables[0].select(self.columns), tables[1]
        is_deleted = pc.fill_null(held.column(self.deleted), False)
        held = held.filter(pc.and_(held.column(self.end).is_null(), pc.invert(is_deleted)))
        held = held.select(self.of_row).rename_columns(self.columns).cast(rows.schema)
        is_gone = pc.invert(_has_keys_of(rows, held, self.keys))
        # NULL equals nothing, so that a row without a key has never come from a snapshot.
        for name in self.keys:
            is_gone = pc.and_(is_gone, whole(held.column(name)).is_valid())
        gone = held.filter(is_gone)
        marks = pa.concat_arrays([pa.repeat(False, rows.num_rows), pa.repeat(True, gone.num_rows)])
        return pa.concat_tables([rows, gone]).append_column(self.deleted, marks)


class CarriedValues:
    """Items without doubles in their order, with the value of the event before for NULL in the `carried` columns.

    `given_by`: for each such column, the place of the item that has given the value of each item; null for none. A
    deletion gives no value, and no value is carried past it.
    """

    def __init__(self, items: pa.Table, keys: Sequence[str], carried: Sequence[str]) -> None:
        self.items, self.given_by = items, dict[str, pa.Array]()
        if not carried or not items.num_rows:
            return
        places, deletes = pa.array(range(items.num_rows), pa.int64()), whole(items.column(DELETES_COLUMN))
        begins = pc.or_(deletes, pc.invert(same_as_before([whole(items.column(name)) for name in keys])))
        since = pc.fill_null_forward(pc.if_else(begins, places, None))
        for name in carried:
            column = whole(items.column(name))
            gives = pc.and_(pc.is_valid(column), pc.invert(deletes))
            by = pc.fill_null_forward(pc.if_else(gives, places, None))
            by = pc.if_else(pc.and_(pc.greater_equal(by, since), pc.invert(deletes)), by, None)
            self.given_by[name] = by
            self.items = self.items.set_column(self.items.column_names.index(name), name, column.take(by))

    def are_those_of(self, items: pa.Table, names: Sequence[str], others: pa.Array) -> pa.BooleanArray:
        """Return for each of the items whether its own values are those that the other item has here."""
        pairs = ((whole(items.column(name)), whole(self.items.column(name)).take(others)) for name in names)
        return same_values(pairs, items.num_rows)


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

    def last_of_each(self) -> pa.Array:
        """Return for each item the place of the one that gives the values of its time; any place if it has no time."""
        of_run = pc.subtract(_numbered(self.begins), 1)
        # Items before the first run are deletions.
        return self.last.take(pc.max_element_wise(of_run, 0)) if len(self.last) else pc.add(of_run, 1)


_ORIGIN = "__txlog_origin"
_HAS_PLACE = "__txlog_has_place"


def _has_keys_of(others: pa.Table, rows: pa.Table, keys: Sequence[str]) -> pa.BooleanArray:
    """Return for each of the rows whether one of the others has the same keys."""
    named = rows.select(keys)
    together = pa.concat_tables([named, others.select(keys).cast(named.schema)])
    at = sorted_by(together, keys, [], []).cast(pa.int64())
    group = _numbered(pc.invert(same_as_before([together.column(name).take(at) for name in keys])))
    is_other = pc.greater_equal(at, rows.num_rows)
    has_other = pc.is_in(group, value_set=pc.unique(group.filter(is_other)))
    return pc.is_in(pa.array(range(rows.num_rows), pa.int64()), value_set=at.filter(has_other))


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


def acting_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a fold that are written or dropped."""
    for batch in batches:
        yield batch.filter(pc.less(batch.column(ACTION_COLUMN), REMEMBER))


def remembered_events(
    keys: Sequence[str], start: str, columns: Sequence[tuple[str, str]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a fold that are to be remembered, as the table remembers events.

    `columns`: of each value its column and its name in the files.
    """
    names = [*(key_column(number) for number in range(len(keys))), SEQUENCE_COLUMN, DELETES_COLUMN]
    for batch in batches:
        rows = batch.filter(pc.greater_equal(batch.column(ACTION_COLUMN), REMEMBER))
        deletes = pc.equal(rows.column(ACTION_COLUMN), REMEMBER_DELETION)
        arrays = [*(rows.column(name) for name in keys), rows.column(start), deletes]
        arrays += [rows.column(name) for name, _ in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=[*names, *(name for _, name in columns)])
