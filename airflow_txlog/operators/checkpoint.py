"""CheckpointOperator: write a checkpoint of a table's latest version."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_txlog.contract.operations import Checkpoint, Operation
from airflow_txlog.operators.base import TxlogOperator


class CheckpointOperator(TxlogOperator):
    """Write a checkpoint, so that a reader opens the table without replaying its commits.

    The engine writes a checkpoint every `delta.checkpointInterval` commits. Use this operator for a table that only
    other writers change. It changes no row, makes no version and carries no application transaction.

    Arguments: `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Checkpoint

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check_literals()
