"""DeltaTruncateOperator: remove every row of a table, by its log alone."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_txlog.contract.operations import Operation, Truncate
from airflow_txlog.operators.base import ExactlyOnceOperator


class DeltaTruncateOperator(ExactlyOnceOperator):
    """Remove every row of a Delta table in one commit, without reading rows and without Spark.

    The files stay for readers of older versions until a vacuum removes them. Use `DeltaDeleteOperator` to remove a part
    of a table. It reads no file either if its predicate uses only partition columns.

    :param publish: as in `DataChangingOperator`. Any other commit to the table then prevents the publication.

    Example: `DeltaTruncateOperator(task_id="empty", table_uri="/lake/staging")`. Other arguments: `ExactlyOnceOperator`
    and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Truncate

    def __init__(self, *, publish: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.publish = publish
        self.check_literals()
