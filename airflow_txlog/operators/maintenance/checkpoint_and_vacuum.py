"""CheckpointOperator and VacuumOperator: write a checkpoint, and delete the data files that no kept version needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from airflow_txlog.contract.operations import Checkpoint, Operation, Vacuum
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


class VacuumOperator(TxlogOperator):
    """Delete files that the table no longer references: removed longer ago than the retention, or never committed.

    :param retention_hours: how long removed files are kept for readers and time travel. None uses the table's own
        `delta.deletedFileRetentionDuration` (one week by default).
    :param dry_run: only report the files that would be deleted.
    :param check_retention: refuse a retention below the table's own (RetentionTooShort). With False, such a vacuum
        makes time travel to the affected versions impossible.
    :param mode: "full" lists every file of the table. "lite" lists no files and deletes the files that the log has
        removed since the last vacuum. This is fast, but never finds files of killed tasks. It raises CannotVacuumLite
        if the log no longer reaches back to that vacuum.
    :param inventory: the path or the URI of a Parquet or CSV file with path, modificationTime, size and isDir that
        replaces the listing. Its files are checked before they are deleted. (templated)
    :param include_foreign: also delete unrelated files if the table was created in a folder with other files
        (`allow_non_empty`). Without it a full vacuum of such a table raises FolderNotEmpty.
    :param parallelism: the number of files that are deleted at once.

    A vacuum carries no application transaction. A second run simply finds less to do. Other arguments: `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Vacuum
    template_fields: Sequence[str] = (*TxlogOperator.template_fields, "inventory")

    def __init__(
        self,
        *,
        retention_hours: float | None = None,
        dry_run: bool = False,
        check_retention: bool = True,
        mode: Literal["full", "lite"] = "full",
        inventory: str | None = None,
        include_foreign: bool = False,
        parallelism: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.retention_hours = retention_hours
        self.is_dry_run = dry_run
        self.check_retention = check_retention
        self.mode = mode
        self.inventory = inventory
        self.include_foreign = include_foreign
        self.parallelism = parallelism
        self.check_literals()
