"""APPLY CHANGES with the history of the rows: the events of a key, brought together with its rows of the table.

Each attempt reads the rows of the keys that have events, folds both to the rows that are to be written and to be
dropped, and merges these by key and start. The invariant: the rows of a key never overlap, and follow from all its
events in the order of their sequences, also from those that the table remembers without a row.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import DeleteClause, InsertClause, Merge, UpdateClause
from airflow_txlog.datafiles.tasks.change_rows import DELETES_COLUMN
from airflow_txlog.datafiles.tasks.history_rows import (
    ACTION_COLUMN,
    AT_COLUMN,
    DROP,
    REMEMBER,
    WRITE,
    History,
    remembered_events,
)
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan, Task
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType, bare_columns, bare_type
from airflow_txlog.errors import SchemaMismatch
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import bins_for, plan_files
from airflow_txlog.jobs.operations.changes.apply_changes import Met, NewestEvents
from airflow_txlog.jobs.operations.changes.tombstones import Tombstones, tombstones_of
from airflow_txlog.jobs.operations.merge.keys import SOURCE_ALIAS, TARGET_ALIAS, equal_columns
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.source.folded import folded
from airflow_txlog.jobs.source.materialized import MaterializedSource, input_scan, read_input, stored_of
from airflow_txlog.jobs.sql.columns import check_has_columns
from airflow_txlog.jobs.sql.gate import quoted
from airflow_txlog.jobs.sql.scope import partition_scope


def keep_history(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    return run_row_operation(context, KeptHistory)


class KeptHistory(NewestEvents):
    """The pipeline's view of a job that keeps the history of rows. See `NewestEvents`."""

    def meet(self, snapshot: Snapshot, columns: StructType) -> None:
        super().meet(snapshot, columns)
        changes, met, table, root = self._changes, self._met, snapshot.delta_schema, self._context.root
        check_has_columns("end_column", [changes.end_column], table.names, root)
        check_has_columns("current_column", [*filter(None, [changes.current_column])], table.names, root)
        tracked = changes.track_history_column_list or ()
        check_has_columns("track_history_column_list", tracked, met.columns, "A row")
        sequence = columns.by_name[met.sequence.lower()].type
        wanted = {name: columns.by_name[name.lower()].type for name in met.columns}
        wanted |= {changes.start_column: sequence, changes.end_column: sequence}
        wanted |= {} if changes.current_column is None else {changes.current_column: Primitive.BOOLEAN}
        taken = [name for name in met.columns if name.lower() in {each.lower() for each in self._times}]
        held = {name: bare_type(table.by_name[name.lower()].type) for name in wanted}
        wrong = taken or [name for name, kind in wanted.items() if held[name] != bare_type(kind)]
        if wrong:
            raise SchemaMismatch(
                f"{root}: the columns {', '.join(wrong)} of the table cannot hold the history of its rows. The start "
                f"and the end must have the type of {met.sequence!r} ({sequence}), current_column must be BOOLEAN, and "
                "the source must bring none of them. All other columns must have the types of the source. Cast columns "
                "in the source's SQL, name them in except_column_list, or alter the table. Nothing was changed.",
                table=root,
                columns=wrong,
            )

    @property
    def _times(self) -> list[str]:
        changes = self._changes
        return [name for name in (changes.start_column, changes.end_column, changes.current_column) if name is not None]

    def merge_of(self, met: Met) -> Merge:
        """Return the merge of the folded rows by key and start. Its texts are quoted names and comparisons."""
        changes, start = self._changes, quoted(self._changes.start_column)
        action = f"{SOURCE_ALIAS}.{ACTION_COLUMN}"
        values = {quoted(name): f"{SOURCE_ALIAS}.{quoted(name)}" for name in (*met.columns, *self._times)}
        kept = {start, *map(quoted, met.keys)}
        return Merge(
            source=changes.source,
            partition_predicate=changes.partition_predicate,
            parameters=changes.parameters,
            target_alias=TARGET_ALIAS,
            source_alias=SOURCE_ALIAS,
            on=f"{equal_columns(met.keys)} AND {TARGET_ALIAS}.{start} = {SOURCE_ALIAS}.{AT_COLUMN}",
            clauses=(
                DeleteClause(when="matched", condition=f"{action} = {DROP}"),
                UpdateClause(when="matched", set={name: value for name, value in values.items() if name not in kept}),
                InsertClause(condition=f"{action} = {WRITE}", values=values),
            ),
        )

    def columns_met(self, columns: StructType) -> StructType:
        """Return the columns of the folded rows: the table's, the start of the row that they meet, and the action."""
        sequence = columns.by_name[self._met.sequence.lower()].type
        fields = [columns.by_name[name.lower()] for name in self._met.columns]
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
        values = [pa.field(DELETES_COLUMN, pa.bool_())]
        for name in self._values:
            kind = snapshot.schema.field(snapshot.delta_schema.by_name[name.lower()].name).type
            values.append(pa.field(self._held(snapshot, name), kind))
        known = tombstones_of(context, tx, snapshot, met.keys, met.kept_sequence, hours, values)
        with context.step("fold"):
            self._folded = self._histories(tx, snapshot, events, known)
        self._events, self._tombstones = events, known
        context.log(f"{events.num_rows} events change {self._folded.num_rows} rows or remembered events")
        return self._folded

    @property
    def _values(self) -> list[str]:
        """The columns of a row that are neither keys nor times."""
        return [name for name in self._met.columns if name not in self._met.keys]

    @staticmethod
    def _held(snapshot: Snapshot, name: str) -> str:
        """Return the name of a value in the files of remembered events, which a renamed column keeps."""
        return f"_txlog_value_{snapshot.delta_schema.by_name[name.lower()].physical_name}"

    def _histories(
        self, tx: Transaction, snapshot: Snapshot, events: MaterializedSource, known: Tombstones
    ) -> MaterializedSource:
        context, changes, met = self._context, self._changes, self._met
        columns = self.columns_met(events.columns)
        first, described, size_bytes = self.described(events, met.columns)
        tracked = changes.track_history_column_list
        if tracked is None:
            chosen = [name for name in self._values if name != met.sequence]
        else:
            wanted = {name.lower() for name in tracked}
            chosen = [name for name in self._values if name.lower() in wanted]
        names = [snapshot.delta_schema.by_name[name.lower()].name for name in (*met.columns, *self._times)]
        held = dict(zip(met.keys, known.keys, strict=True))
        fold = History(
            events=described,
            tracked=tuple(chosen),
            times=tuple(self._times),
            of_row=tuple(names),
            of_remembered=tuple(held.get(name) or self._held(snapshot, name) for name in met.columns),
        )
        rows = self._rows(tx, snapshot, names)
        keys = tuple(snapshot.delta_schema.by_name[name.lower()].name for name in met.keys)
        inputs = [first, (rows, keys), *((each, known.keys) for each in known.scans(context))]
        return folded(context, inputs, fold, columns, size_bytes=size_bytes)

    def _rows(self, tx: Transaction, snapshot: Snapshot, names: list[str]) -> FileScan:
        """Return the scan of the table's rows in the scope; a commit that changes it conflicts from now on."""
        context = self._context
        scope = partition_scope(context, self._gate, snapshot)
        files = scope.files_inside(tx.read(scope.read))
        plan = plan_files(snapshot, files, context.spec.time_zone, context.executor.instants)
        schema = pa.schema([snapshot.schema.field(name) for name in names])
        return FileScan(bins=bins_for(context, plan), schema=schema)

    def to_remember(self, source: MaterializedSource) -> Task | None:
        context, met, known = self._context, self._met, self._tombstones
        assert known is not None
        if not source.num_rows:
            return None
        actions = read_input(context, source.files, stored_of(source, [ACTION_COLUMN]), "look for events to remember")
        if not pc.any(pc.equal(actions.column(ACTION_COLUMN), REMEMBER)).as_py():
            return None
        start, end, *_ = self._times
        read = {*met.columns, start, end, ACTION_COLUMN}
        values = list(zip(self._values, (field.name for field in known.values[1:]), strict=True))
        step = partial(remembered_events, met.keys, start, end, values)
        return Task(source=input_scan(context, source.files, stored_of(source, read)), steps=(step,))
