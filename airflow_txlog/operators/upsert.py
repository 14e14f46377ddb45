"""DeltaUpsertOperator: update the rows of a table that have the keys of a source, and insert the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Operation, Upsert
from airflow_txlog.operators.checked import SourceOperator


class DeltaUpsertOperator(SourceOperator):
    """Bring the rows of a source into a Delta table by their keys, in one commit: a merge without its SQL.

    A source row updates the table row with equal key columns, and is inserted if there is none. Two source rows of one
    key fail the task with AmbiguousMerge, and a NULL in a key column fails it with SchemaMismatch.

    :param source: the rows: `sources.files(…)`, `sources.table(…)` or `sources.query(…)`. (templated)
    :param keys: the columns, of the table and of the source, that together identify a row. (templated)
    :param columns: the columns that an update changes; None: all of them. An insert writes every column. (templated)
    :param schema_evolution: add columns of the source that the table lacks, and widen types, as in DeltaMergeOperator
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
