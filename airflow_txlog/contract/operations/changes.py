"""The operations that bring what has changed into a table, by key columns or by versions of a source: their records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from airflow_txlog.contract.operations.base import REPLACED, Operation, SourceOperation, register
from airflow_txlog.contract.operations.fields import (
    AnySource,
    Bytes,
    Clauses,
    ColumnNames,
    Hours,
    Moment,
    PairText,
    QuerySource,
    RangeView,
    Share,
    SomeColumnNames,
    TableText,
    TableView,
    Text,
    TextMap,
    Version,
)
from airflow_txlog.contract.operations.reading import want
from airflow_txlog.contract.operations.records import Merge, Write, is_in_reach, looks_plain, may_be_read_here

_JOBS = "airflow_txlog.jobs.operations.changes"
_OF_HISTORY = ("track_history_column_list", "start_column", "end_column", "current_column")


def check_distinct(argument: str, columns: tuple[str, ...] | None) -> None:
    """Raise InvalidJobSpec if the argument names a column twice."""
    given = columns or ()
    distinct = len({column.lower() for column in given}) == len(given)
    want(f"arguments.{argument}", distinct, "a list of different column names", given)


class KeyedOperation(SourceOperation, frozen=True, kw_only=True):
    """An operation on the rows of a table that have the `keys` of a source's rows."""

    needs_spark = True
    changes_rows = True

    keys: SomeColumnNames

    def check(self) -> None:
        check_distinct("keys", self.keys)

    @property
    def columns_named(self) -> dict[str, tuple[str, ...]]:
        """The columns of the table and of the source that arguments name, by the argument."""
        return {"keys": self.keys}

    @property
    def may_spare_spark(self) -> bool:
        return _may_spare_spark(self)

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return _likely_spares_spark(self, is_spark_here=is_spark_here)


def _may_spare_spark(operation: SourceOperation) -> bool:
    return may_be_read_here(operation.source) and not operation.schema_evolution


def _likely_spares_spark(operation: SourceOperation, *, is_spark_here: bool) -> bool:
    is_plain = all(map(looks_plain, operation.expectations.values()))
    return operation.may_spare_spark and is_plain and is_in_reach(operation.source, is_spark_here=is_spark_here)


@register
class Upsert(KeyedOperation, frozen=True, kw_only=True, tag="upsert"):
    """Merge by `keys`: update the rows whose keys a source row has, and insert the other source rows.

    `columns`: those that an update changes; null: all.
    """

    job = "airflow_txlog.jobs.operations.upsert:upsert"
    rows = {"numTargetRowsUpdated": "updated", "numTargetRowsInserted": "inserted"}

    columns: SomeColumnNames | None = None

    def check(self) -> None:
        super().check()
        check_distinct("columns", self.columns)

    @property
    def columns_named(self) -> dict[str, tuple[str, ...]]:
        return {"keys": self.keys, "columns": self.columns or ()}


@register
class ApplySnapshot(KeyedOperation, frozen=True, kw_only=True, tag="apply_snapshot"):
    """Give the table the rows of the source, a whole snapshot: insert new ones, and update those that differ.

    `hard_deletes`: of a row that is not in the snapshot: "delete" it, "ignore" it, end its validity, "invalidate", or
    also insert it again with TRUE in `deleted_column`, "new_record". `max_deleted_fraction` has no default: half a
    snapshot must not delete half of the table. With `stored_as_scd_type` 2 the table keeps each version of a row, valid
    from `start_column` until `end_column`, which is NULL in the rows that `current_column` marks. A change begins a new
    version if it changes a column of `track_history_column_list` (null: any column); other changes update the row.
    `snapshot_at`: the time of the snapshot, ISO-8601, in UTC if it names no zone; null: the job's current time.
    """

    job = f"{_JOBS}.apply_snapshot:apply_snapshot"
    rows = {
        "numTargetRowsUpdated": "updated",
        "numTargetRowsDeleted": "deleted",
        "numTargetRowsInserted": "inserted",
    }

    max_deleted_fraction: Share
    stored_as_scd_type: Literal[1, 2] = 1
    hard_deletes: Literal["delete", "ignore", "invalidate", "new_record"] | None = None
    track_history_column_list: SomeColumnNames | None = None
    start_column: Text = "__START_AT"
    end_column: Text = "__END_AT"
    current_column: Text | None = None
    deleted_column: Text = "__IS_DELETED"
    snapshot_at: Moment | None = None

    def __post_init__(self) -> None:
        if self.hard_deletes is None:
            gone = "delete" if self.stored_as_scd_type == 1 else "invalidate"
            msgspec.structs.force_setattr(self, "hard_deletes", gone)
        super().__post_init__()

    def check(self) -> None:
        super().check()
        given, gone = self.given_arguments(), self.hard_deletes
        if self.stored_as_scd_type == 1:
            want("arguments.hard_deletes", gone in ("delete", "ignore"), '"delete" or "ignore"', gone)
            for name in (*_OF_HISTORY, "deleted_column", "snapshot_at"):
                want(f"arguments.{name}", name not in given, "left out without stored_as_scd_type 2")
            return
        want("arguments.hard_deletes", gone != "delete", '"invalidate", "new_record" or "ignore"', gone)
        possible = gone == "new_record" or "deleted_column" not in given
        want("arguments.deleted_column", possible, 'left out without hard_deletes "new_record"')
        names = [name.lower() for name in (*self.keys, *self.history_columns)]
        want("arguments.end_column", len(set(names)) == len(names), "another column than the keys and other times")
        check_distinct("track_history_column_list", self.track_history_column_list)
        tracked = {column.lower() for column in self.track_history_column_list or ()}
        want("arguments.track_history_column_list", not tracked & set(names), "a list without the keys and the times")
        want("arguments.schema_evolution", not self.schema_evolution, "false with stored_as_scd_type 2")

    @property
    def history_columns(self) -> tuple[str, ...]:
        """The columns of the table that the snapshot does not have."""
        if self.stored_as_scd_type == 1:
            return ()
        current = () if self.current_column is None else (self.current_column,)
        deleted = (self.deleted_column,) if self.hard_deletes == "new_record" else ()
        return (self.start_column, self.end_column, *current, *deleted)


class EventOperation(SourceOperation, frozen=True, kw_only=True):
    """An operation that may apply events to rows with their keys.

    An event for which `apply_as_deletes` is true deletes its row; any other writes it. `column_list`: the columns of
    the source that rows get; `except_column_list`: those that they do not get. `tombstone_hours`: how long the table
    remembers a deletion, so that an older event does not bring the row back. `ignore_null_updates`: NULL in an event
    keeps the value of the row, in all columns; or in those of `ignore_null_updates_column_list`; or in all but those of
    `ignore_null_updates_except_column_list`.

    `stored_as_scd_type` 2 keeps the history: a row for each time in which the columns of `track_history_column_list`
    (null: all but the keys and the sequence) were the same, from `start_column` to `end_column`, null for the present
    row; `current_column` is true in that one.
    """

    apply_as_deletes: TableText | None = None
    column_list: SomeColumnNames | None = None
    except_column_list: SomeColumnNames | None = None
    ignore_null_updates: bool = False
    ignore_null_updates_column_list: SomeColumnNames | None = None
    ignore_null_updates_except_column_list: SomeColumnNames | None = None
    tombstone_hours: Hours = 168
    stored_as_scd_type: Literal[1, 2] = 1
    track_history_column_list: SomeColumnNames | None = None
    start_column: Text = "__START_AT"
    end_column: Text = "__END_AT"
    current_column: Text | None = None


_OF_EVENTS = tuple(name for name in EventOperation.__struct_fields__ if name not in SourceOperation.__struct_fields__)


@register
class ApplyChanges(EventOperation, frozen=True, kw_only=True, tag="apply_changes"):
    """Apply events to the rows with their `keys`, in the order of `sequence_by`; they may arrive in any order.

    See `EventOperation`.
    """

    job = f"{_JOBS}.apply_changes:apply_changes"
    needs_spark = True
    changes_rows = True
    # Its tombstones are written before the commit that names them.
    may_wait = False
    rows = {
        "numTargetRowsUpdated": "updated",
        "numTargetRowsDeleted": "deleted",
        "numTargetRowsInserted": "inserted",
    }

    keys: SomeColumnNames
    sequence_by: Text

    def check(self) -> None:
        check_distinct("keys", self.keys)
        check_distinct("column_list", self.column_list)
        check_distinct("except_column_list", self.except_column_list)
        possible = self.column_list is None or self.except_column_list is None
        want("arguments.except_column_list", possible, "None with column_list", self.except_column_list)
        keys = {column.lower() for column in self.keys}
        is_key = self.sequence_by.lower() in keys
        want("arguments.sequence_by", not is_key, "a column that is none of the keys", self.sequence_by)
        excepted = keys & {column.lower() for column in self.except_column_list or ()}
        want("arguments.except_column_list", not excepted, "a list without the keys", self.except_column_list)
        self._check_ignored()
        self._check_history()

    def _check_ignored(self) -> None:
        lists = ("ignore_null_updates_column_list", "ignore_null_updates_except_column_list")
        for name in lists:
            columns = getattr(self, name)
            check_distinct(name, columns)
            both = any(getattr(self, other) for other in ("ignore_null_updates", *lists) if other != name)
            want(f"arguments.{name}", not (columns and both), "None if another argument chooses these columns", columns)
            taken = {self.sequence_by.lower(), *map(str.lower, self.keys)} & {*map(str.lower, columns or ())}
            want(f"arguments.{name}", not taken, "a list without the keys and sequence_by", columns)
        possible = not (self.ignores_nulls and self.schema_evolution)
        want("arguments.schema_evolution", possible, "false if NULL in an event is ignored", self.schema_evolution)

    @property
    def ignores_nulls(self) -> bool:
        """Whether NULL in some column of an event keeps the value of the row."""
        lists = (self.ignore_null_updates_column_list, self.ignore_null_updates_except_column_list)
        return self.ignore_null_updates or lists != (None, None)

    def _check_history(self) -> None:
        keeps, given = self.stored_as_scd_type == 2, self.given_arguments()
        for name in _OF_HISTORY:
            want(f"arguments.{name}", keeps or name not in given, "left out without stored_as_scd_type 2")
        check_distinct("track_history_column_list", self.track_history_column_list)
        times = [name for name in (self.start_column, self.end_column, self.current_column) if name is not None]
        distinct = len({name.lower() for name in times}) == len(times)
        want("arguments.end_column", distinct, "a column that is no other one of the times", self.end_column)
        possible = not (keeps and self.schema_evolution)
        want("arguments.schema_evolution", possible, "false with stored_as_scd_type 2", self.schema_evolution)

    @property
    def job_here(self) -> str:
        if self.stored_as_scd_type == 2:
            return f"{_JOBS}.kept_history:keep_history"
        return f"{_JOBS}.kept_history:keep_values" if self.ignores_nulls else self.job

    @property
    def columns_named(self) -> dict[str, tuple[str, ...]]:
        """As of `KeyedOperation`."""
        return {"keys": self.keys}

    @property
    def may_spare_spark(self) -> bool:
        return _may_spare_spark(self)

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return looks_plain(self.apply_as_deletes) and _likely_spares_spark(self, is_spark_here=is_spark_here)


ByKeys = KeyedOperation | ApplyChanges
"""The operations on the rows of a table that have the `keys` of a source's rows."""


_START = '"snapshot", a version from 0 on, or a date or time in ISO 8601'
Consumer = Annotated[
    str,
    Meta(pattern=r"\A[A-Za-z0-9][\w.-]{0,99}\Z", description="a name of letters, digits, '.', '_' and '-'"),
]
Start = Annotated[Literal["snapshot"] | Version | Moment, Meta(description=_START, extra={"is_shown": True})]
Positive = Annotated[int, Meta(ge=1, description="a whole number from 1 on")]


@dataclass(frozen=True, kw_only=True)
class SourceRange:
    """The versions of a source that one run processes: those after `after`, up to `version`; all its rows for null.

    `source` and `table_id` identify the source, `base` is the text of the watermark that the range follows (null:
    none). `mark`: that of the commit of `version`, if it is known. `others`: the versions of the other tables by the
    names of their views. `replaces`: the rows of the target become those of the range.
    """

    source: str
    table_id: str
    after: int | None
    version: int
    base: str | None
    mark: str | None = None
    others: dict[str, int] = field(default_factory=dict)
    replaces: bool = False


# The modes in which an argument may be given.
_MODES = {
    "keys": ("upsert", "apply_changes"),
    "columns": ("upsert",),
    **dict.fromkeys(("on", "clauses", "target_alias", "source_alias"), ("merge",)),
    **dict.fromkeys(("sequence_by", *_OF_EVENTS), ("apply_changes",)),
    **dict.fromkeys(("partition_by", "cluster_by", "properties"), ("append",)),
}
_NEEDED = {"upsert": ("keys",), "merge": ("on", "clauses"), "apply_changes": ("keys", "sequence_by"), "append": ()}
# Their rows are not those of the source, so they cannot be made anew from it.
_NOT_REBUILT = ("merge", "apply_changes")


Applied = Write | Upsert | Merge | ApplyChanges
"""The operations that may bring a range into the target."""


@register
class Incremental(EventOperation, frozen=True, kw_only=True, tag="incremental"):
    """Process the versions of one source table after the consumer's watermark, and move the watermark, in one commit.

    `driving`: the view of the query that is this table; null: its only table. The other tables are read at their
    newest versions, which the watermark records. `mode`: append the rows of the source, upsert them by `keys`, merge
    them by `on` and `clauses`, or apply them as events by `keys` and `sequence_by`. `changes`: the driving view has
    change rows. `starting`: the first range, of a consumer without a watermark. The maxima bound a range, which has one
    commit at least. `on_gap` "full": if changes cannot be read, the rows of the target become those of the query over
    the whole source. `on_schema_change`: what happens to columns of the source that the target lacks.
    """

    job = f"{_JOBS}.incremental:incremental"
    needs_spark = True
    changes_rows = True
    uses_ledger = True
    may_wait = False
    rows = {
        "numTargetRowsInserted": "inserted",
        "numTargetRowsUpdated": "updated",
        "numTargetRowsDeleted": "deleted",
        "numReplacedRows": REPLACED,
    }

    consumer: Consumer
    driving: Text | None = None
    mode: Literal["append", "upsert", "merge", "apply_changes"] = "append"
    keys: SomeColumnNames | None = None
    columns: SomeColumnNames | None = None
    on: PairText | None = None
    clauses: Clauses | None = None
    target_alias: Text = "t"
    source_alias: Text = "s"
    sequence_by: Text | None = None
    changes: bool = False
    starting: Start = "snapshot"
    max_versions: Positive | None = None
    max_files: Positive | None = None
    max_bytes: Bytes | None = None
    skip_change_commits: bool = False
    on_gap: Literal["fail", "full"] = "fail"
    on_schema_change: Literal["fail", "append_new_columns", "ignore"] = "fail"
    partition_by: ColumnNames | None = None
    cluster_by: ColumnNames | None = None
    properties: TextMap = msgspec.field(default_factory=dict)

    def check(self) -> None:
        views = self._tables
        want("arguments.source", bool(views), "a table, or a query over views of which one is a table")
        if self.driving is not None:
            want("arguments.driving", self.driving in views, f"one of the tables {sorted(views)}", self.driving)
        want("arguments.driving", self.driving is not None or len(views) == 1, "given: the source has several tables")
        is_open = not views[self.driving_view].names_version
        want("arguments.source", is_open, "a driving table without a version: the watermark decides it")
        possible = not (self.skip_change_commits and self.changes)
        want("arguments.skip_change_commits", possible, "false with changes, which change rows describe")
        given = self.given_arguments()
        for name, modes in _MODES.items():
            fits = self.mode in modes or name not in given
            want(f"arguments.{name}", fits, f'left out in mode "{self.mode}", which does not use it')
        for name in _NEEDED[self.mode]:
            want(f"arguments.{name}", bool(getattr(self, name)), f'given in mode "{self.mode}"')
        possible = self.on_gap == "fail" or self.mode not in _NOT_REBUILT
        want("arguments.on_gap", possible, f'"fail" in mode "{self.mode}", which needs the rows that are there')
        want("arguments.schema_evolution", not self.schema_evolution, "false: on_schema_change decides")
        _ = self.acting

    @property
    def _tables(self) -> dict[str, TableView]:
        """The views that are tables by their names; "" is the name of a source without a query."""
        views = self.source.views if isinstance(self.source, QuerySource) else {"": self.source}
        return {name: view for name, view in views.items() if isinstance(view, TableView)}

    @property
    def driving_view(self) -> str:
        """The name of the view that is read range by range."""
        return next(iter(self._tables)) if self.driving is None else self.driving

    @property
    def driving_table(self) -> str:
        """The place of the table that is read range by range."""
        return self._tables[self.driving_view].table

    @property
    def acting(self) -> Operation:
        return self.applied(self.source)

    def applied(self, source: AnySource, *, replaces: bool = False) -> Applied:
        """Return the operation that brings the rows of this source into the table; or that replaces its rows."""
        common = {name: getattr(self, name) for name in SourceOperation.__struct_fields__}
        common |= {"source": source, "schema_evolution": self.on_schema_change == "append_new_columns"}
        if replaces:
            return Write(**common, mode="overwrite")
        if self.mode == "upsert":
            return Upsert(**common, keys=self.keys or (), columns=self.columns)
        if self.mode == "merge":
            common |= {"target_alias": self.target_alias, "source_alias": self.source_alias}
            return Merge(**common, on=self.on or "", clauses=self.clauses or ())
        if self.mode == "apply_changes":
            events = {name: getattr(self, name) for name in _OF_EVENTS}
            return ApplyChanges(**common, keys=self.keys or (), sequence_by=self.sequence_by or "", **events)
        return Write(**common, partition_by=self.partition_by, cluster_by=self.cluster_by, properties=self.properties)

    def range_after(self, after: int | None) -> RangeView:
        """Return which rows of the driving table a range has that begins after this version."""
        return RangeView(after=after, changes=self.changes, skip_change_commits=self.skip_change_commits)

    def over(self, chosen: SourceRange) -> Applied:
        """Return the operation over one range of the driving table, with the other tables at their versions."""
        ranged = TableView(table=self.driving_table, version=chosen.version, range=self.range_after(chosen.after))
        if not isinstance(self.source, QuerySource):
            return self.applied(ranged, replaces=chosen.replaces)
        views = dict(self.source.views)
        for name, at in chosen.others.items():
            view = views[name]
            assert isinstance(view, TableView)
            views[name] = TableView(table=view.table, version=at)
        views[self.driving_view] = ranged
        return self.applied(QuerySource(sql=self.source.sql, views=views), replaces=chosen.replaces)

    @property
    def may_spare_spark(self) -> bool:
        return True

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        # Many runs find nothing new, and need neither a Spark nor a cluster.
        return True
