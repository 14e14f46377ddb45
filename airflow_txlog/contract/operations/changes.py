"""The operations that bring the rows of a source to a table by key columns: their records."""

from __future__ import annotations

from typing import Literal

import msgspec

from airflow_txlog.contract.operations.base import SourceOperation, register
from airflow_txlog.contract.operations.fields import Hours, Moment, Share, SomeColumnNames, TableText, Text
from airflow_txlog.contract.operations.reading import want
from airflow_txlog.contract.operations.records import is_in_reach, looks_plain, may_be_read_here


class KeyedOperation(SourceOperation, frozen=True, kw_only=True):
    """An operation on the rows of a table that have the `keys` of a source's rows."""

    needs_spark = True
    changes_rows = True

    keys: SomeColumnNames

    def check(self) -> None:
        distinct = len({column.lower() for column in self.keys}) == len(self.keys)
        want("arguments.keys", distinct, "a list of different column names", self.keys)

    @property
    def columns_named(self) -> dict[str, tuple[str, ...]]:
        """The columns of the table and of the source that arguments name, by the argument."""
        return {"keys": self.keys}

    @property
    def may_spare_spark(self) -> bool:
        return may_be_read_here(self.source) and not self.schema_evolution

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        is_plain = all(map(looks_plain, self.expectations.values()))
        return self.may_spare_spark and is_plain and is_in_reach(self.source, is_spark_here=is_spark_here)


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
        given = self.columns or ()
        distinct = len({column.lower() for column in given}) == len(given)
        want("arguments.columns", distinct, "a list of different column names", given)

    @property
    def columns_named(self) -> dict[str, tuple[str, ...]]:
        return {"keys": self.keys, "columns": self.columns or ()}


@register
class ApplySnapshot(KeyedOperation, frozen=True, kw_only=True, tag="apply_snapshot"):
    """Give the table the rows of the source, a whole snapshot: insert new ones, and update those that differ.

    `hard_deletes`: of a row that is not in the snapshot: "delete" it, "ignore" it, or end its validity, "invalidate".
    `max_deleted_fraction` has no default: half a snapshot must not delete half of the table. With `stored_as_scd_type`
    2 the table keeps each version of a row, valid from `start_column` until `end_column`, which is NULL in the rows
    that `current_column` marks. `snapshot_at`: the time of the snapshot, ISO-8601, in UTC if it names no
    zone; null: the job's current time.
    """

    job = "airflow_txlog.jobs.operations.changes.apply_snapshot:apply_snapshot"
    rows = {
        "numTargetRowsUpdated": "updated",
        "numTargetRowsDeleted": "deleted",
        "numTargetRowsInserted": "inserted",
    }

    max_deleted_fraction: Share
    stored_as_scd_type: Literal[1, 2] = 1
    hard_deletes: Literal["delete", "ignore", "invalidate"] | None = None
    start_column: Text = "__START_AT"
    end_column: Text = "__END_AT"
    current_column: Text | None = None
    snapshot_at: Moment | None = None

    def __post_init__(self) -> None:
        if self.hard_deletes is None:
            gone = "delete" if self.stored_as_scd_type == 1 else "invalidate"
            msgspec.structs.force_setattr(self, "hard_deletes", gone)
        super().__post_init__()

    def check(self) -> None:
        super().check()
        if self.stored_as_scd_type == 1:
            want("arguments.hard_deletes", self.hard_deletes != "invalidate", '"delete" or "ignore"', self.hard_deletes)
            for name in ("current_column", "snapshot_at"):
                possible = getattr(self, name) is None
                want(f"arguments.{name}", possible, "null without stored_as_scd_type 2", getattr(self, name))
            return
        want("arguments.hard_deletes", self.hard_deletes != "delete", '"invalidate" or "ignore"', self.hard_deletes)
        names = [name.lower() for name in (*self.keys, *self.history_columns)]
        distinct = len(set(names)) == len(names)
        want("arguments.end_column", distinct, "another column than the keys and the other columns of the history")
        want("arguments.schema_evolution", not self.schema_evolution, "false with stored_as_scd_type 2")

    @property
    def history_columns(self) -> tuple[str, ...]:
        """The columns of the table that the snapshot does not have."""
        current = () if self.current_column is None else (self.current_column,)
        return (self.start_column, self.end_column, *current) if self.stored_as_scd_type == 2 else ()


@register
class ApplyChanges(KeyedOperation, frozen=True, kw_only=True, tag="apply_changes"):
    """Apply events to the rows with their `keys`, in the order of `sequence_by`, whatever the order in which they come.

    An event for which `apply_as_deletes` is true deletes its row; any other writes it. `column_list`: the columns of
    the source that rows get; `except_column_list`: those that they do not get. `tombstone_hours`: how long the table
    remembers a deletion, so that an older event does not bring the row back.

    `stored_as_scd_type` 2 keeps the history: a row for each time in which the columns of `track_history_column_list`
    (null: all but the keys and the sequence) were the same, from `start_column` to `end_column`, null for the present
    row; `current_column` is true in that one.
    """

    job = "airflow_txlog.jobs.operations.changes.apply_changes:apply_changes"
    # Its tombstones are written before the commit that names them.
    may_wait = False
    rows = {
        "numTargetRowsUpdated": "updated",
        "numTargetRowsDeleted": "deleted",
        "numTargetRowsInserted": "inserted",
    }

    sequence_by: Text
    apply_as_deletes: TableText | None = None
    column_list: SomeColumnNames | None = None
    except_column_list: SomeColumnNames | None = None
    tombstone_hours: Hours = 168
    stored_as_scd_type: Literal[1, 2] = 1
    track_history_column_list: SomeColumnNames | None = None
    start_column: Text = "__START_AT"
    end_column: Text = "__END_AT"
    current_column: Text | None = None

    def check(self) -> None:
        super().check()
        for name, given in (("column_list", self.column_list), ("except_column_list", self.except_column_list)):
            distinct = len({column.lower() for column in given or ()}) == len(given or ())
            want(f"arguments.{name}", distinct, "a list of different column names", given)
        possible = self.column_list is None or self.except_column_list is None
        want("arguments.except_column_list", possible, "null with column_list", self.except_column_list)
        keys = {column.lower() for column in self.keys}
        is_key = self.sequence_by.lower() in keys
        want("arguments.sequence_by", not is_key, "a column that is none of the keys", self.sequence_by)
        excepted = {column.lower() for column in self.except_column_list or ()} & keys
        want("arguments.except_column_list", not excepted, "a list without the keys", self.except_column_list)
        self._check_history()

    def _check_history(self) -> None:
        keeps, tracked = self.stored_as_scd_type == 2, self.track_history_column_list or ()
        for name in ("track_history_column_list", "current_column"):
            given = getattr(self, name)
            want(f"arguments.{name}", keeps or given is None, "null without stored_as_scd_type 2", given)
        distinct = len({column.lower() for column in tracked}) == len(tracked)
        want("arguments.track_history_column_list", distinct, "a list of different column names", tracked)
        times = [name for name in (self.start_column, self.end_column, self.current_column) if name is not None]
        distinct = len({name.lower() for name in times}) == len(times)
        want("arguments.end_column", distinct, "a column that is no other one of the times", self.end_column)
        possible = not (keeps and self.schema_evolution)
        want("arguments.schema_evolution", possible, "false with stored_as_scd_type 2", self.schema_evolution)

    @property
    def job_here(self) -> str:
        if self.stored_as_scd_type == 2:
            return "airflow_txlog.jobs.operations.changes.kept_history:keep_history"
        return self.job

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return looks_plain(self.apply_as_deletes) and super().likely_spares_spark(is_spark_here=is_spark_here)
