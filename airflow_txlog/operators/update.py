"""DeltaUpdateOperator: assign new values to the rows that satisfy a predicate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Operation, Update
from airflow_txlog.operators.checked import CheckedOperator


class DeltaUpdateOperator(CheckedOperator):
    """Assign new values to columns of the rows for which a predicate is true, in one commit.

    :param set: SQL expressions by column. Each uses the values of the row before the update. (templated)
    :param predicate: one boolean Spark SQL expression over the table's columns, with `:name` for values, or None for
        all rows. A row for which it is null is not updated. (templated)
    :param target_alias: the name of the table in the SQL texts.
    :param require_match: fail with MatchNotFound, changing nothing, if the predicate is true for no row.

    Example: `DeltaUpdateOperator(task_id="forget", table_uri="/lake/users", set={"email": "NULL", "gone": "TRUE"},
    predicate="last_seen < :day", parameters={"day": "{{ ds }}"})`. Other arguments: `DataChangingOperator` and
    `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Update
    template_fields: Sequence[str] = (*CheckedOperator.template_fields, "set", "predicate")

    def __init__(
        self,
        *,
        set: Mapping[str, str],
        predicate: str | None = None,
        target_alias: str = "t",
        require_match: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.set = set
        self.predicate = predicate
        self.target_alias = target_alias
        self.require_match = require_match
        self.check_literals()
