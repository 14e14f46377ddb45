"""VacuumOperator: delete the data files that no kept version needs."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_txlog.operators.base import TxlogOperator


class VacuumOperator(TxlogOperator):
    """Delete files that the table no longer names: removed longer ago than the retention, or never committed.

    :param retention_hours: how long removed files are kept, for readers and time travel; None takes the table's own
        `delta.deletedFileRetentionDuration` (one week by default).
    :param dry_run: only tell what would go.
    :param check_retention: refuse a retention below the table's own (RetentionTooShort). False takes it as given, and
        time travel to the versions that lose files ends.

    It carries no application transaction: a second run finds less to do. Other arguments: `TxlogOperator`.
    """

    operation: ClassVar[str] = "vacuum"

    def __init__(
        self,
        *,
        retention_hours: float | None = None,
        dry_run: bool = False,
        check_retention: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.retention_hours = retention_hours
        # Not `self.dry_run`, which is a method of every Airflow operator.
        self.only_tell = dry_run
        self.check_retention = check_retention

    def job_arguments(self) -> dict[str, Any]:
        """`retention_hours`, `dry_run`, `check_retention`."""
        return {
            "retention_hours": self.retention_hours,
            "dry_run": self.only_tell,
            "check_retention": self.check_retention,
        }
