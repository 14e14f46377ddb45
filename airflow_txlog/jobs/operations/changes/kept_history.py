"""APPLY CHANGES whose events need the rows of their keys: it keeps the history, or the values that an event lacks.

Each attempt reads the rows of the keys that have events, folds both to the rows that are to be written and to be
dropped, and merges these by key and start, or by key alone. The invariant: the rows of a key never overlap, and follow
from all its events in the order of their sequences, also from those that the table remembers without a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import DeleteClause, InsertClause, Merge, UpdateClause
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.tasks.change_rows import DELETES_COLUMN
from airflow_txlog.datafiles.tasks.history_rows import (
    ACTION_COLUMN,
    AT_COLUMN,
    DROP,
    REMEMBER,
    WRITE,
    CurrentRow,
    History,
    acting_rows,
    remembered_events,
)
from airflow_txlog.datafiles.tasks.scan_and_write import Task
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.commit.content.remembered_deletions import VALUE_PREFIX
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.schema.types import (
    DataType,
    Primitive,
    StructField,
    StructType,
    bare_columns,
    bare_type,
)
from airflow_txlog.errors import SchemaMismatch
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.stage import input_layout, load
from airflow_txlog.jobs.operations.changes.apply_changes import Met, NewestEvents
from airflow_txlog.jobs.operations.changes.tombstones import Tombstones, tombstones_of
from airflow_txlog.jobs.operations.merge.clauses import Clauses
from airflow_txlog.jobs.operations.merge.keys import SOURCE_ALIAS, TARGET_ALIAS, PairColumns, equal_columns
from airflow_txlog.jobs.operations.merge.source_scope import can_scope, inside_of
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.operation import Found
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.source.folded import FOLDING, folded, rows_in_scope
from airflow_txlog.jobs.source.materialized import (
    MaterializedSource,
    input_scan,
    read_input,
    stored_of,
    with_row_id,
)
from airflow_txlog.jobs.sql.columns import check_has_columns
from airflow_txlog.jobs.sql.gate import quoted
from airflow_txlog.jobs.sql.scope import both

if TYPE_CHECKING:
    from airflow_txlog.jobs.operations.merge.by_spark import JudgedMerge

_IGNORING = ("ignore_null_updates_column_list", "ignore_null_updates_except_column_list")


def keep_history(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    return run_row_operation(context, KeptHistory)


def keep_values(context: JobContext) -> JobResult:
    """Run the job of `context.spec`, in which NULL in an event keeps the value of the row; raises TxlogError."""
    return run_row_operation(context, KeptValues)


class KeptHistory(NewestEvents):
    """The pipeline's view of a job that keeps the history of rows. See `NewestEvents`."""

    fold: ClassVar[type[History]] = History
    memory: ClassVar[str] = ""
    """A mark of the events that it remembers, which other kinds of jobs do not read."""

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        self._bounds = Predicate.true()

    def meet(self, snapshot: Snapshot, columns: StructType) -> None:
        super().meet(snapshot, columns)
        met, table, root = self._met, snapshot.delta_schema, self._context.root
        for name in ("track_history_column_list", *_IGNORING):
            check_has_columns(name, getattr(self._changes, name) or (), met.columns, "A row")
        sequence = columns.by_name[met.sequence.lower()].type
        times = self._kinds_of_times(snapshot, sequence)
        wanted = {name: columns.by_name[name.lower()].type for name in self._columns} | {**times}
        taken = [name for name in self._columns if name.lower() in {each.lower() for each in times}]
        held = {name: bare_type(table.by_name[name.lower()].type) for name in wanted}
        wrong = taken or [name for name, kind in wanted.items() if held[name] != bare_type(kind)]
        if wrong:
            of_times = (
                f"The start and the end must have the type of {met.sequence!r} ({sequence}), current_column must be "
                "BOOLEAN, and the source must bring none of them. "
            )
            raise SchemaMismatch(
                f"{root}: the columns {', '.join(wrong)} of the table cannot hold the values of the events. "
                f"{of_times if len(times) > 1 else ''}All other columns must have the types of the source. Cast "
                "columns in the source's SQL, name them in except_column_list, or alter the table. Nothing was "
                "changed.",
                table=root,
                columns=wrong,
            )

    def _kinds_of_times(self, snapshot: Snapshot, sequence: DataType) -> Mapping[str, DataType]:
        """Return the types that the columns of times must have. Raises UnknownColumn."""
        changes, root = self._changes, self._context.root
        for name in ("end_column", "current_column"):
            check_has_columns(name, [*filter(None, [getattr(changes, name)])], snapshot.delta_schema.names, root)
        return {name: sequence if number < 2 else Primitive.BOOLEAN for number, name in enumerate(self._times)}

    @property
    def _times(self) -> list[str]:
        changes = self._changes
        return [name for name in (changes.start_column, changes.end_column, changes.current_column) if name is not None]

    @property
    def _columns(self) -> tuple[str, ...]:
        """The columns of a row without the times."""
        return self._met.columns

    def _met_by(self) -> list[str]:
        """Return the columns that, with the keys, match a folded row with its row in the table."""
        return [quoted(self._changes.start_column)]

    @property
    def _tracked(self) -> tuple[str, ...]:
        tracked = self._changes.track_history_column_list
        if tracked is None:
            return tuple(name for name in self._values if name != self._met.sequence)
        wanted = {name.lower() for name in tracked}
        return tuple(name for name in self._values if name.lower() in wanted)

    @property
    def _carried(self) -> tuple[str, ...]:
        """The columns in which NULL in an event keeps the value of the row."""
        changes, values = self._changes, [name for name in self._values if name != self._met.sequence]
        if not changes.ignores_nulls:
            return ()
        listed, excepted = (getattr(changes, name) for name in _IGNORING)
        wanted = {*map(str.lower, listed or values)} - {*map(str.lower, excepted or ())}
        return tuple(name for name in values if name.lower() in wanted)

    def merge_of(self, met: Met) -> Merge:
        """Return the merge of the folded rows. Its texts are quoted names and comparisons."""
        changes, action, met_by = self._changes, f"{SOURCE_ALIAS}.{ACTION_COLUMN}", self._met_by()
        values = {quoted(name): f"{SOURCE_ALIAS}.{quoted(name)}" for name in (*met.columns, *self._times)}
        kept = {*met_by, *map(quoted, met.keys)}
        also = "".join(f" AND {TARGET_ALIAS}.{start} = {SOURCE_ALIAS}.{AT_COLUMN}" for start in met_by)
        return Merge(
            source=changes.source,
            partition_predicate=changes.partition_predicate,
            parameters=changes.parameters,
            target_alias=TARGET_ALIAS,
            source_alias=SOURCE_ALIAS,
            on=equal_columns(met.keys) + also,
            clauses=(
                DeleteClause(when="matched", condition=f"{action} = {DROP}"),
                UpdateClause(when="matched", set={name: value for name, value in values.items() if name not in kept}),
                InsertClause(condition=f"{action} = {WRITE}", values=values),
            ),
        )

    def columns_met(self, columns: StructType) -> StructType:
        """Return the columns of the folded rows: the table's, the start of the row that they meet, and the action."""
        sequence = columns.by_name[self._met.sequence.lower()].type
        fields = [columns.by_name[name.lower()] for name in self._columns]
        kinds = dict.fromkeys(self._times[:2], sequence)
        fields += [StructField(name, kinds.get(name, Primitive.BOOLEAN)) for name in self._times]
        fields += [StructField(AT_COLUMN, sequence), StructField(ACTION_COLUMN, Primitive.INTEGER)]
        return bare_columns(StructType(tuple(fields)))

    def _source(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> MaterializedSource:
        """Return the folded rows, in each attempt those that the table's present rows need."""
        context, hours = self._context, self._changes.tombstone_hours
        events = self.events(tx, snapshot, memory)
        met = self._met
        # The findings so far are of other rows.
        memory.forget()
        self._bounds = self._bounds_of(snapshot, events)
        values = [pa.field(DELETES_COLUMN, pa.bool_())]
        for name in self._values:
            kind = snapshot.schema.field(snapshot.delta_schema.by_name[name.lower()].name).type
            values.append(pa.field(self._held(snapshot, name), kind))
        known = tombstones_of(context, tx, snapshot, met.keys, met.kept_sequence, hours, values, self.memory)
        with context.step("fold"):
            self._folded = self._histories(tx, snapshot, events, known)
        self._events, self._tombstones = events, known
        given = plural(events.num_rows, "event")
        context.log(f"{given}, for which {plural(self._folded.num_rows, 'row')} or remembered events change")
        return self._folded

    def _bounds_of(self, snapshot: Snapshot, events: MaterializedSource) -> Predicate:
        """Return a predicate for all rows that have keys of the events: between the least and the greatest of each."""
        fields = [snapshot.delta_schema.by_name[name.lower()] for name in self._met.keys]
        names = [name for name, field in zip(self._met.keys, fields, strict=True) if can_scope(field)]
        if not names or events.bytes_of(names) > self._context.limits.scope_bytes:
            return Predicate.true()
        rows = read_input(self._context, events.files, stored_of(events, names), "find the range of the keys")
        return inside_of(list(filter(can_scope, fields)), [rows.column(name) for name in names])

    def _of_interest(
        self,
        snapshot: Snapshot,
        pair: PairColumns,
        judged: Callable[[str], JudgedMerge],
        clauses: Clauses,
        source: MaterializedSource,
    ) -> Predicate:
        return both(super()._of_interest(snapshot, pair, judged, clauses, source), self._bounds)

    @property
    def _values(self) -> list[str]:
        """The columns of a row that are neither keys nor times."""
        return [name for name in self._columns if name not in self._met.keys]

    @staticmethod
    def _held(snapshot: Snapshot, name: str) -> str:
        """Return the name of a value in the files of remembered events, which a renamed column keeps."""
        return f"{VALUE_PREFIX}{snapshot.delta_schema.by_name[name.lower()].physical_name}"

    def _histories(
        self, tx: Transaction, snapshot: Snapshot, events: MaterializedSource, known: Tombstones
    ) -> MaterializedSource:
        context, met = self._context, self._met
        columns = self.columns_met(events.columns)
        first, described, size_bytes = self.described(events, self._columns)
        names = [snapshot.delta_schema.by_name[name.lower()].name for name in (*self._columns, *self._times)]
        held = dict(zip(met.keys, known.keys, strict=True))
        fold = self.fold(
            events=described,
            tracked=self._tracked,
            times=tuple(self._times),
            of_row=tuple(names),
            of_remembered=tuple(held.get(name) or self._held(snapshot, name) for name in self._columns),
            carried=self._carried,
        )
        rows = rows_in_scope(context, self._gate, tx, snapshot, names, self._bounds)
        keys = tuple(snapshot.delta_schema.by_name[name.lower()].name for name in met.keys)
        inputs = [first, (rows, keys), *((each, known.keys) for each in known.scans(context))]
        return folded(context, inputs, fold, columns, size_bytes=size_bytes)

    @property
    def _inserting(self) -> tuple[str, str, bool | int] | None:
        return None

    def _ignored(self, given: int, kept: int, found: Found) -> dict[str, int]:
        """Return nothing: a row may follow from many events, also from those that were remembered."""
        return {}

    def to_remember(self, source: MaterializedSource) -> Task | None:
        context, met, known = self._context, self._met, self._tombstones
        assert known is not None
        if not source.num_rows:
            return None
        actions = read_input(context, source.files, stored_of(source, [ACTION_COLUMN]), "look for events to remember")
        if not pc.any(pc.greater_equal(actions.column(ACTION_COLUMN), REMEMBER)).as_py():
            return None
        read = {*self._columns, self._times[0], ACTION_COLUMN}
        values = list(zip(self._values, (field.name for field in known.values[1:]), strict=True))
        step = partial(remembered_events, met.keys, self._times[0], values)
        return Task(source=input_scan(context, source.files, stored_of(source, read)), steps=(step,))


class KeptValues(KeptHistory):
    """The pipeline's view of a job that keeps one row of each key, with values that its newest event lacks."""

    fold = CurrentRow
    memory = "ignore_null_updates"

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        self._all: MaterializedSource | None = None

    def _kinds_of_times(self, snapshot: Snapshot, sequence: DataType) -> Mapping[str, DataType]:
        return {self._met.kept_sequence: sequence}

    @property
    def _times(self) -> list[str]:
        return [self._met.kept_sequence]

    @property
    def _columns(self) -> tuple[str, ...]:
        return tuple(name for name in self._met.columns if name != self._met.kept_sequence)

    @property
    def _tracked(self) -> tuple[str, ...]:
        return ()

    def _met_by(self) -> list[str]:
        return []

    @property
    def _inserting(self) -> tuple[str, str, bool | int] | None:
        return self._met.kept_sequence, ACTION_COLUMN, WRITE

    def _histories(
        self, tx: Transaction, snapshot: Snapshot, events: MaterializedSource, known: Tombstones
    ) -> MaterializedSource:
        """Return the rows to write and to drop. Those to remember would meet the same rows of the table."""
        self._all = found = super()._histories(tx, snapshot, events, known)
        layout = input_layout(self._context, with_row_id(found.stored))
        scan = input_scan(self._context, found.files, found.stored)
        task = Task(source=scan, steps=(acting_rows,), layout=layout, numbers_rows=True)
        return replace(found, files=tuple(load(self._context, task, FOLDING).files))

    def to_remember(self, source: MaterializedSource) -> Task | None:
        assert self._all is not None
        return super().to_remember(self._all)
