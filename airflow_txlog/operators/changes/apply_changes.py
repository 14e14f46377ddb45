"""DeltaApplyChangesOperator: apply the events of another system to a table, in whatever order they arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from airflow_txlog.contract.operations import ApplyChanges, Operation
from airflow_txlog.operators.checked import SourceOperator


class DeltaApplyChangesOperator(SourceOperator):
    """Apply change events to a Delta table in the order of their sequence, in one commit.

    Events may arrive in any order, late, several for one key, and more than once. The table is the same as if all
    events so far had been applied in order. The arguments have the names of Spark's AUTO CDC.

    :param source: the events: `sources.files(…)`, `sources.table(…)` or `sources.query(…)`. (templated)
    :param keys: the columns, of the table and of the source, that together identify a row. (templated)
    :param sequence_by: the column of the source that orders the events of a key. (templated)
    :param apply_as_deletes: a SQL condition on the source's columns: events for which it is TRUE delete their row.
        None: no event deletes. (templated)
    :param column_list: the columns of the source that rows get; None: all but `except_column_list`. (templated)
    :param except_column_list: columns of the source that rows do not get. (templated)
    :param ignore_null_updates: NULL in an event keeps the value that the row has, in all columns but the keys and
        `sequence_by`. A deletion starts over: the row of a later event has NULL in such a column.
    :param ignore_null_updates_column_list: the same in these columns only. (templated)
    :param ignore_null_updates_except_column_list: the same in all columns but these. (templated)
    :param schema_evolution: add columns of the source that the table lacks, and widen types, as in DeltaMergeOperator
        with `"*"`.
    :param tombstone_hours: the minimum time for which the table remembers a deletion, so that an older event that
        arrives late does not bring the row back.
    :param stored_as_scd_type: 1 keeps the newest row of each key. 2 keeps the history: a row for each period in which
        the values of a key did not change.
    :param track_history_column_list: with type 2, the columns whose change begins a new row; None: all but the keys and
        `sequence_by`. A change of other columns updates the row. (templated)
    :param start_column: with type 2, the column of the table with the sequence at which a row began. (templated)
    :param end_column: the same for its end; NULL in the current row of a key. (templated)
    :param current_column: with type 2, a BOOLEAN column of the table that is true in the current row. (templated)

    Example: `DeltaApplyChangesOperator(task_id="apply", table_uri="/lake/users", source=files("/in/events"),
    keys=["user_id"], sequence_by="changed_at", apply_as_deletes="op = 'd'", except_column_list=["op"])`. Other
    arguments: `DataChangingOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = ApplyChanges
    template_fields: Sequence[str] = (
        *SourceOperator.template_fields,
        *("source", "keys", "sequence_by", "apply_as_deletes", "column_list", "except_column_list"),
        *("ignore_null_updates_column_list", "ignore_null_updates_except_column_list"),
        *("track_history_column_list", "start_column", "end_column", "current_column"),
    )

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        keys: str | Sequence[str],
        sequence_by: str,
        apply_as_deletes: str | None = None,
        column_list: str | Sequence[str] | None = None,
        except_column_list: str | Sequence[str] | None = None,
        ignore_null_updates: bool = False,
        ignore_null_updates_column_list: str | Sequence[str] | None = None,
        ignore_null_updates_except_column_list: str | Sequence[str] | None = None,
        schema_evolution: bool = False,
        tombstone_hours: float = 168,
        stored_as_scd_type: Literal[1, 2] = 1,
        track_history_column_list: str | Sequence[str] | None = None,
        start_column: str = "__START_AT",
        end_column: str = "__END_AT",
        current_column: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.keys = keys
        self.sequence_by = sequence_by
        self.apply_as_deletes = apply_as_deletes
        self.column_list = column_list
        self.except_column_list = except_column_list
        self.ignore_null_updates = ignore_null_updates
        self.ignore_null_updates_column_list = ignore_null_updates_column_list
        self.ignore_null_updates_except_column_list = ignore_null_updates_except_column_list
        self.schema_evolution = schema_evolution
        self.tombstone_hours = tombstone_hours
        self.stored_as_scd_type = stored_as_scd_type
        self.track_history_column_list = track_history_column_list
        self.start_column = start_column
        self.end_column = end_column
        self.current_column = current_column
        self.check_literals()
