"""DeltaDeleteOperator: delete the rows that satisfy a predicate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from airflow_txlog.operators.base import DataChangingOperator


class DeltaDeleteOperator(DataChangingOperator):
    """Delete the rows for which a predicate is true, in one commit.

    :param predicate: one boolean Spark SQL expression over the table's columns, with `:name` for values; "TRUE" for
        every row. A row for which it is null stays. (templated)

    Example: `DeltaDeleteOperator(task_id="forget", table_uri="/lake/users", predicate="user_id = :user",
    parameters={"user": "{{ params.user }}"})`. Other arguments: `DataChangingOperator` and `TxlogOperator`.
    """

    operation: ClassVar[str] = "delete"
    template_fields: Sequence[str] = (*DataChangingOperator.template_fields, "predicate")

    def __init__(self, *, predicate: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.predicate = predicate

    def job_arguments(self) -> dict[str, Any]:
        """`predicate` and the shared ones."""
        return {**super().job_arguments(), "predicate": self.predicate}
