"""APPLY CHANGES: a MERGE of the newest event of each key, which acts only if it is newer than the row that it meets.

The events are written down once. Each attempt folds them, with the deletions that the table remembers, to one row for
each key. The merge does the rest: matching, deletion vectors, change rows, conflicts. The invariant: after a commit
the table, with its tombstones, is what the events so far leave if they are applied in the order of their sequences.
Source: docs/decisions/tombstones.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow.compute as pc

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import (
    AnyClause,
    ApplyChanges,
    DeleteClause,
    InsertClause,
    Merge,
    UpdateClause,
)
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.tasks.change_rows import (
    COUNT_SCHEMA,
    DELETES_COLUMN,
    Events,
    NewestEvent,
    counted_until,
    deletions,
)
from airflow_txlog.datafiles.tasks.folded_rows import Input
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import Task
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.predicate import plain_condition
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType, bare_columns, bare_type
from airflow_txlog.errors import SchemaMismatch, UnsupportedPredicate
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import bins_for
from airflow_txlog.jobs.operations.changes.tombstones import Recording, Tombstones, check_life, tombstones_of
from airflow_txlog.jobs.operations.merge.by_keys import kept_as_null
from airflow_txlog.jobs.operations.merge.job import MergeRows, PreparedMerge
from airflow_txlog.jobs.operations.merge.keys import (
    NOT_AS_THEY_ARE,
    SOURCE_ALIAS,
    TARGET_ALIAS,
    PairColumns,
    equal_columns,
)
from airflow_txlog.jobs.resume.attempts import Change
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.operation import Found, StagedWork
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.source.folded import check_compared, folded
from airflow_txlog.jobs.source.materialized import (
    MaterializedSource,
    input_scan,
    read_input,
    stored_of,
    unmatched_plan,
)
from airflow_txlog.jobs.sql.columns import check_has_columns, missing_column
from airflow_txlog.jobs.sql.gate import quoted
from airflow_txlog.sql.expression import Column, Expression, columns_of
from airflow_txlog.sql.sql_text import sql_text

KEPT_SEQUENCE = "__SEQUENCE"
"""The column of the table with the sequence of each row's event, if the rows do not get `sequence_by` itself."""

_NEEDED_TO = "bring events into their order"


def apply_changes(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    return run_row_operation(context, NewestEvents)


@dataclass(frozen=True, kw_only=True)
class Met:
    """What the source's columns are to the table: keys, the sequence, the columns that rows get, and what deletes.

    All are spelled as the source spells them; `kept_sequence` is the table's column. `deletes`: the bound condition, or
    why only Spark evaluates it; None if no event deletes.
    """

    keys: tuple[str, ...]
    sequence: str
    kept_sequence: str
    columns: tuple[str, ...]
    deletes: Expression | str | None
    nulls: frozenset[str] = frozenset()
    """Columns of rows whose empty value the table stores as NULL."""


def met_columns(context: JobContext, changes: ApplyChanges, snapshot: Snapshot, columns: StructType) -> Met:
    """Return what these columns of the source are to the table.

    Raises UnknownColumn, SchemaMismatch and UnsupportedFeature, before an event is read.
    """
    root, table = context.root, snapshot.delta_schema
    keys = check_compared("keys", changes.keys, columns, root, _NEEDED_TO)
    (sequence,) = check_compared("sequence_by", [changes.sequence_by], columns, root, _NEEDED_TO)
    for name in ("column_list", "except_column_list"):
        check_has_columns(name, getattr(changes, name) or (), columns.names, "The source")
    excepted = {name.lower() for name in changes.except_column_list or ()}
    listed = {name.lower() for name in (*(changes.column_list or columns.names), *keys)} - excepted
    chosen = tuple(name for name in columns.names if name.lower() in listed)
    for name in chosen:
        if table.find(name) is None and not (changes.schema_evolution and name not in (*keys, sequence)):
            what = f"{root} has no column {name!r}, which rows would get from the source"
            end = "Name it in except_column_list, or add it to the table. Nothing was changed."
            raise missing_column(what, name, table.names, end)
    kept = sequence if sequence in chosen else KEPT_SEQUENCE
    if changes.stored_as_scd_type == 2:
        kept = changes.start_column
        check_has_columns("start_column", [kept], table.names, root)
    if table.find(kept) is None:
        raise SchemaMismatch(
            f"{root} has no column {kept}, in which it keeps the sequence of each row if rows do not get the column "
            f"{sequence!r} itself. Add it by DeltaAlterTableOperator(add_columns=…) with the type "
            f"{columns.by_name[sequence.lower()].type}, or let rows get {sequence!r}. Nothing was changed.",
            table=root,
            columns=[kept],
        )
    check_compared("keys", keys, table, root, _NEEDED_TO, root)
    for name, held in (*((key, key) for key in keys), (sequence, kept)):
        given, wanted = columns.by_name[name.lower()].type, table.by_name[held.lower()].type
        if bare_type(given) != bare_type(wanted):
            raise SchemaMismatch(
                f"{root}: the column {name!r} of the source is {given}, and {held!r} of the table is {wanted}. Keys "
                "and sequences are compared as they are: cast the source's column in its SQL. Nothing was changed.",
                table=root,
                columns=[name],
            )
    nulls = {name.lower() for name in kept_as_null(snapshot)}
    return Met(
        # In one order, whatever the order of the argument: tombstones have no names of columns.
        keys=tuple(sorted(keys, key=lambda name: table.by_name[name.lower()].physical_name)),
        sequence=sequence,
        kept_sequence=kept,
        columns=chosen,
        deletes=_condition(context, changes, columns),
        nulls=frozenset(name for name in chosen if name.lower() in nulls),
    )


def _condition(context: JobContext, changes: ApplyChanges, columns: StructType) -> Expression | str | None:
    text = changes.apply_as_deletes
    if text is None:
        return None
    used = {name: context.parameters[name] for name in sql_text(text).parameters if name in context.parameters}
    may_fail, zone = not context.leaves_values_to_spark, context.spec.time_zone
    return plain_condition(text, columns, used, may_fail=may_fail, time_zone=zone)


def as_merge(changes: ApplyChanges, met: Met) -> Merge:
    """Return the merge of folded events. Its texts are quoted names and comparisons."""
    kept = quoted(met.kept_sequence)
    older = f"({TARGET_ALIAS}.{kept} IS NULL OR {TARGET_ALIAS}.{kept} < {SOURCE_ALIAS}.{quoted(met.sequence)})"
    deletes = f"{SOURCE_ALIAS}.{DELETES_COLUMN}"
    values = {quoted(name): f"{SOURCE_ALIAS}.{quoted(name)}" for name in met.columns}
    values[kept] = f"{SOURCE_ALIAS}.{quoted(met.sequence)}"
    updated = {name: value for name, value in values.items() if name not in {*map(quoted, met.keys)}}
    deleting: tuple[AnyClause, ...] = (DeleteClause(when="matched", condition=f"{deletes} AND {older}"),)
    return Merge(
        source=changes.source,
        schema_evolution=changes.schema_evolution,
        partition_predicate=changes.partition_predicate,
        parameters=changes.parameters,
        target_alias=TARGET_ALIAS,
        source_alias=SOURCE_ALIAS,
        on=equal_columns(met.keys),
        clauses=(
            *(deleting if met.deletes is not None else ()),
            UpdateClause(when="matched", condition=older, set=updated),
            InsertClause(condition=f"NOT {deletes}", values=values),
        ),
    )


class NewestEvents(MergeRows):
    """The pipeline's view of a job that applies changes. See `MergeRows`."""

    clauses_not_plain = NOT_AS_THEY_ARE

    def __init__(self, context: JobContext) -> None:
        self._changes = context.record(ApplyChanges)
        # The columns of the source are not known yet.
        unmet = Met(keys=self._changes.keys, sequence="", kept_sequence="", columns=(), deletes=None)
        self._met = unmet
        super().__init__(context, self.merge_of(unmet))
        self._events: MaterializedSource | None = None
        self._folded: MaterializedSource | None = None
        self._tombstones: Tombstones | None = None
        self._num_revived = 0
        self._recording = Recording(context, self._changes.tombstone_hours)

    def meet(self, snapshot: Snapshot, columns: StructType) -> None:
        """Check the source's columns, and make the merge of them.

        Raises UnknownColumn, SchemaMismatch and UnsupportedFeature.
        """
        context, text = self._context, self._changes.apply_as_deletes
        check_life(context, snapshot, self._changes.tombstone_hours)
        self._met = met_columns(context, self._changes, snapshot, columns)
        self._merge = self.merge_of(self._met)
        if text is not None:
            self._gate.used |= set(self._gate.parameters_in(text))
            try:
                self._gate.check_clocks(text, columns.names)
            except UnsupportedPredicate:
                # Only Spark knows which of both the name means.
                self._met = replace(self._met, deletes="a name that is a column and a clock")

    def merge_of(self, met: Met) -> Merge:
        """Return the merge of the folded events."""
        return as_merge(self._changes, met)

    def columns_met(self, columns: StructType) -> StructType:
        """Return the columns of the folded events: those that rows get, the sequence, and whether the event deletes."""
        met = self._met
        fields = [columns.by_name[name.lower()] for name in dict.fromkeys((*met.columns, met.sequence))]
        return bare_columns(StructType((*fields, StructField(DELETES_COLUMN, Primitive.BOOLEAN))))

    def _why_spark(self, snapshot: Snapshot, pair: PairColumns) -> str | None:
        if isinstance(self._met.deletes, str):
            return f"apply_as_deletes is more than a plain condition: it has {self._met.deletes}"
        return super()._why_spark(snapshot, pair)

    def _source(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> MaterializedSource:
        """Return the folded events: the same in each attempt, unless another job has recorded tombstones since."""
        context, hours = self._context, self._changes.tombstone_hours
        events = self.events(tx, snapshot, memory)
        met = self._met
        known = tombstones_of(context, tx, snapshot, met.keys, met.kept_sequence, hours)
        if self._folded is None or events is not self._events or self._tombstones != known:
            if context.saved_inputs.tombstones != known.number:
                # The findings so far are of rows that a newer tombstone may leave out.
                memory.forget()
                context.saved_inputs.tombstones = known.number
            with context.step("fold"):
                self._folded = self._fold(events, known)
            self._events, self._tombstones = events, known
            given = plural(events.num_rows, "event")
            context.log(f"{self._folded.num_rows} of {given} are the newest of their key and newer than its tombstone")
        return self._folded

    def events(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> MaterializedSource:
        """Return all events, written down once."""
        return super()._source(tx, snapshot, memory)

    def _fold(self, events: MaterializedSource, known: Tombstones) -> MaterializedSource:
        """Return the newest event of each key that is newer than the key's tombstones."""
        columns = self.columns_met(events.columns)
        first, described, size_bytes = self.described(events, tuple(columns.names[:-1]))
        inputs = [first, *((each, known.keys) for each in known.scans(self._context))]
        fold = NewestEvent(events=described)
        return folded(self._context, inputs, fold, columns, size_bytes=size_bytes + known.size_bytes)

    def described(self, events: MaterializedSource, columns: tuple[str, ...]) -> tuple[Input, Events, int]:
        """Return the scan of the events, what a fold knows of them, and about the memory that they take.

        `columns`: those of a folded event that come from the source.
        """
        met, condition = self._met, self._met.deletes
        if isinstance(condition, str):
            text = self._changes.apply_as_deletes
            assert text is not None
            events = self._context.executor.answered(self._context, self._gate, events, text, DELETES_COLUMN)
            condition = Column(DELETES_COLUMN)
        read = {*columns, met.sequence, *(() if condition is None else columns_of(condition))}
        scan = input_scan(self._context, events.files, stored_of(events, read))
        found = Events(
            keys=met.keys,
            sequence=met.sequence,
            columns=columns,
            deletes=condition,
            nulls=met.nulls,
            table=self._context.root,
        )
        return (scan, met.keys), found, events.bytes_of(read)

    def completed(self, tx: Transaction, prepared: PreparedMerge, change: Change) -> Change:
        """Return the change with the tombstones of the folded events."""
        known, new = self._tombstones, None if self._context.is_dry_run else self.to_remember(prepared.source)
        assert known is not None
        if new is None:
            self._recording.forget(tx, known)
            return change
        write, first = self._recording.begin(tx, known, new), change.before_commit

        def before_commit() -> None:
            write()
            if first is not None:
                first()

        return replace(change, before_commit=before_commit, is_recorded=True)

    def to_remember(self, source: MaterializedSource) -> Task | None:
        """Return the task that yields the new tombstones; None if there are none."""
        context, met = self._context, self._met
        if met.deletes is None or not source.num_rows:
            return None
        rows = read_input(context, source.files, stored_of(source, [DELETES_COLUMN]), "look for deletions")
        if not pc.any(rows.column(DELETES_COLUMN)).as_py():
            return None
        scan = input_scan(context, source.files, stored_of(source, {*met.keys, met.sequence, DELETES_COLUMN}))
        return Task(source=scan, steps=(partial(deletions, met.keys, met.sequence),))

    def check(self, prepared: PreparedMerge, found: Found) -> None:
        """Check as a merge does; warn if a row that is inserted may be one whose tombstone has been dropped."""
        super().check(prepared, found)
        self._num_revived = self._may_revive(prepared.source, found)
        if self._num_revived:
            self._context.log(
                f"warning: {plural(self._num_revived, 'event')} of keys without a row are not newer than the newest "
                "tombstone that the table has dropped. If one of these rows was deleted, this run brings it back. "
                "Delete it again, and raise tombstone_hours if such events come"
            )

    def _may_revive(self, source: MaterializedSource, found: Found) -> int:
        """Return how many inserted rows are not newer than the newest tombstone that the table has dropped."""
        context, inserting, known = self._context, self._inserting, self._tombstones
        horizon = None if known is None else known.greatest_dropped
        if horizon is None or inserting is None or not source.num_rows:
            return 0
        sequence, name, value = inserting
        matched, buckets = found.matches.source_rows.parts, range(source.num_buckets)
        plan = unmatched_plan(context, source, [sequence, name], matched, buckets)
        if not plan.num_files:
            return 0
        scan = MaterializedScan(bins=bins_for(context, plan), schema=plan.schema, written=context.written_rows)
        task = Task(source=scan, steps=(partial(counted_until, horizon, sequence, (name, value)),))
        counts = context.executor.run([task], COUNT_SCHEMA, "compare events with dropped tombstones")
        return pc.sum(counts.column("count"), min_count=0).as_py() or 0

    @property
    def _inserting(self) -> tuple[str, str, bool | int] | None:
        """The columns of a folded row with its sequence and with what it does, and the value of one that inserts.

        None if a deletion leaves a row, which a late event meets.
        """
        return self._met.sequence, DELETES_COLUMN, False

    def metrics(self, prepared: PreparedMerge, found: Found, work: StagedWork) -> dict[str, int]:
        assert self._events is not None
        counted, given = super().metrics(prepared, found, work), self._events.num_rows
        late = {"numPossiblyRevivedRows": self._num_revived}
        return {**counted, "numEvents": given, **self._ignored(given, prepared.source.num_rows, found), **late}

    def _ignored(self, given: int, kept: int, found: Found) -> dict[str, int]:
        """Return the count of events without an effect: a row, a tombstone or another event of the key is newer."""
        unmoved = found.matches.source_rows.num_rows - found.removed.num_rows
        return {"numIgnoredEvents": given - kept + max(unmoved, 0)}
