"""DeltaApplySnapshotOperator: give a table the rows of a whole snapshot, and change only what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import ApplySnapshot, Operation
from airflow_txlog.operators.checked import SourceOperator


class DeltaApplySnapshotOperator(SourceOperator):
    """Replace the rows of a Delta table with the rows of a complete snapshot, by keys, in one commit.

    A row of the snapshot is inserted if the table has no row with its keys. Otherwise it updates that row if a column
    differs. Unchanged rows stay in their files. If two rows have the same key, the task fails with AmbiguousMerge
    unless `deduplicate_by` chooses one of them. If a key column contains NULL, it fails with SchemaMismatch.

    :param source: the snapshot: `sources.files(…)`, `sources.table(…)` or `sources.query(…)`. It has all rows of the
        table, or with `partition_predicate` all rows of these partitions. (templated)
    :param keys: the columns, of the table and of the snapshot, that together identify a row. (templated)
    :param max_deleted_fraction: the maximum fraction of the table's rows, from 0 to 1, that one snapshot may delete.
        Otherwise the task fails with ExpectationFailed, and nothing changes. A snapshot without rows deletes no rows.
    :param hard_deletes: "delete" deletes the rows of the table that are not in the snapshot, "ignore" keeps them.
    :param schema_evolution: add snapshot columns that are missing in the table, and widen types, as in
        DeltaMergeOperator with `"*"`.

    Example: `DeltaApplySnapshotOperator(task_id="load", table_uri="/lake/shops", source=files("/in/{{ ds }}"),
    keys=["shop_id"], max_deleted_fraction=0.05)`. Other arguments: `DataChangingOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = ApplySnapshot
    template_fields: Sequence[str] = (*SourceOperator.template_fields, "source", "keys")

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        keys: str | Sequence[str],
        max_deleted_fraction: float,
        hard_deletes: str = "delete",
        schema_evolution: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_deleted_fraction=max_deleted_fraction, **kwargs)
        self.source = source
        self.keys = keys
        self.hard_deletes = hard_deletes
        self.schema_evolution = schema_evolution
        self.check_literals()
