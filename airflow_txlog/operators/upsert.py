"""DeltaUpsertOperator: update the rows of a table that have the keys of a source, and insert the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Operation, Upsert
from airflow_txlog.operators.checked import SourceOperator


class DeltaUpsertOperator(SourceOperator):
    """Update or insert the rows of a source in a Delta table by their keys, in one commit: a merge without SQL.

    A source row updates the table row with the same key, and is inserted if there is no such row. If two source rows
    have the same key, the task fails with AmbiguousMerge. If a key column contains NULL, it fails with SchemaMismatch.

    :param source: the rows: `files(…)`, `table(…)` or `query(…)`. (templated)
    :param keys: the columns, of the table and of the source, that together identify a row. (templated)
    :param columns: the columns that an update changes, or None for all columns. An insert writes every column.
        (templated)
    :param schema_evolution: add source columns that are missing in the table, and widen types, as in DeltaMergeOperator
        with `"*"`.

    Example: `DeltaUpsertOperator(task_id="upsert", table_uri="/lake/users", source=files("/in/users"),
    keys=["user_id"])`. Other arguments: `DataChangingOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Upsert
    template_fields: Sequence[str] = (*SourceOperator.template_fields, "source", "keys", "columns")

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        keys: str | Sequence[str],
        columns: str | Sequence[str] | None = None,
        schema_evolution: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.keys = keys
        self.columns = columns
        self.schema_evolution = schema_evolution
        self.check_literals()
