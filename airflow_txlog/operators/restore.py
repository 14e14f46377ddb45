"""DeltaRestoreOperator: make an earlier version of a table the latest one again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Operation, Restore
from airflow_txlog.operators.arguments.given import moment_text, version_number
from airflow_txlog.operators.base import ExactlyOnceOperator


class DeltaRestoreOperator(ExactlyOnceOperator):
    """Restore the content and the metadata of an earlier version with a new commit, without Spark.

    :param version: the version to restore, as a number or, from a template, as a string. (templated)
    :param timestamp: restore the last version that was committed at or before this time: a datetime or ISO-8601, in UTC
        if it has no zone. Pass exactly one of `version` and `timestamp`. (templated)
    :param ignore_missing: leave out files that a vacuum has deleted, and lose their rows. Otherwise missing files raise
        FilesMissing.

    If another commit is made while the restore runs, it fails with ConcurrentWrite and is not retried, because the next
    try would undo that commit. Example:
    `DeltaRestoreOperator(task_id="undo", table_uri="/lake/orders", version="{{ params.good }}")`. Other arguments:
    `ExactlyOnceOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Restore
    template_fields: Sequence[str] = (*ExactlyOnceOperator.template_fields, "version", "timestamp")

    def __init__(
        self,
        *,
        version: int | str | None = None,
        timestamp: dt.datetime | str | None = None,
        ignore_missing: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.version = version
        self.timestamp = timestamp
        self.ignore_missing = ignore_missing
        self.check_literals()

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields, with `version` as a number if its text is one, and `timestamp` as a text."""
        version, timestamp = version_number(self.version), moment_text(self.timestamp)
        return {**super().job_arguments(), "version": version, "timestamp": timestamp}
