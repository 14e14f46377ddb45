"""DeltaApplySnapshotOperator: give a table the rows of a complete snapshot, and change only rows that differ."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import ApplySnapshot, Operation
from airflow_txlog.operators.arguments.given import moment_text
from airflow_txlog.operators.checked import SourceOperator


class DeltaApplySnapshotOperator(SourceOperator):
    """Replace the rows of a Delta table with the rows of a complete snapshot, by keys, in one commit.

    A row of the snapshot is inserted if the table has no row with its keys. Otherwise it updates that row if a column
    differs. Unchanged rows stay in their files. If two rows have the same key, the task fails with AmbiguousMerge
    unless `deduplicate_by` chooses one of them. If a key column contains NULL, it fails with SchemaMismatch.

    :param source: the snapshot: `sources.files(…)`, `sources.table(…)` or `sources.query(…)`. It has all rows of the
        table, or with `partition_predicate` all rows of these partitions. (templated)
    :param keys: the columns, of the table and of the snapshot, that together identify a row. (templated)
    :param max_deleted_fraction: the maximum fraction of the table's rows, from 0 to 1, that one snapshot may delete, or
        of type 2 the maximum fraction of the current rows that it may end. Otherwise the task fails with
        ExpectationFailed, and nothing changes. A snapshot without rows deletes and ends none.
    :param stored_as_scd_type: 1: the table has the rows of the newest snapshot. 2: the table keeps each version of a
        row. A row that differs ends, and the row of the snapshot is inserted.
    :param hard_deletes: what happens to rows that are not in the snapshot. Of type 1: "delete" them, the default, or
        "ignore" them. Of type 2: "invalidate", the default, ends them, and "ignore" leaves them current. "new_record"
        ends them and inserts a copy that is current and has TRUE in `deleted_column`.
    :param track_history_column_list: of type 2: the columns whose change begins a new version; None: all but the keys.
        A change of other columns only updates the current version. (templated)
    :param start_column: of type 2: the column of the table with the time from which a version is valid.
    :param end_column: the column with the time at which the version ends; NULL in current rows.
    :param current_column: a boolean column that is true in current rows; None: there is none.
    :param deleted_column: with "new_record": a boolean column of the table that is true in rows that are not in the
        snapshot.
    :param snapshot_at: of type 2: the time of the snapshot, as a datetime or as ISO 8601, such as
        `"{{ data_interval_end }}"`; in UTC if it names no zone. By default the job's current time. (templated)
    :param schema_evolution: add snapshot columns that are missing in the table, and widen types, as in
        DeltaMergeOperator with `"*"`.

    Example: `DeltaApplySnapshotOperator(task_id="load", table_uri="/lake/shops", source=files("/in/{{ ds }}"),
    keys=["shop_id"], max_deleted_fraction=0.05)`. Other arguments: `DataChangingOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = ApplySnapshot
    template_fields: Sequence[str] = (
        *SourceOperator.template_fields,
        "source",
        "keys",
        "track_history_column_list",
        "snapshot_at",
    )

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        keys: str | Sequence[str],
        max_deleted_fraction: float,
        stored_as_scd_type: int = 1,
        hard_deletes: str | None = None,
        track_history_column_list: str | Sequence[str] | None = None,
        start_column: str = "__START_AT",
        end_column: str = "__END_AT",
        current_column: str | None = None,
        deleted_column: str = "__IS_DELETED",
        snapshot_at: dt.datetime | str | None = None,
        schema_evolution: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_deleted_fraction=max_deleted_fraction, **kwargs)
        self.source = source
        self.keys = keys
        self.stored_as_scd_type = stored_as_scd_type
        self.hard_deletes = hard_deletes
        self.track_history_column_list = track_history_column_list
        self.start_column = start_column
        self.end_column = end_column
        self.current_column = current_column
        self.deleted_column = deleted_column
        self.snapshot_at = snapshot_at
        self.schema_evolution = schema_evolution
        self.check_literals()

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields, with `snapshot_at` as a text."""
        return {**super().job_arguments(), "snapshot_at": moment_text(self.snapshot_at)}
