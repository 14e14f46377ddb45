"""DeltaRestoreOperator: make an earlier version of a table the latest one again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Operation, Restore
from airflow_txlog.operators.arguments.given import moment_text, version_number
from airflow_txlog.operators.base import ExactlyOnceOperator


class DeltaRestoreOperator(ExactlyOnceOperator):
    """Make the content and the metadata of an earlier version the latest again, by a new commit, without Spark.

    :param version: the version to go back to, as a number or, from a template, its text. (templated)
    :param timestamp: or the moment: a datetime or ISO-8601, in UTC if it names no zone; selects the last version
        committed at or before it. Exactly one of the two. (templated)
    :param ignore_missing: leave out files that a vacuum has deleted, and lose their rows; otherwise FilesMissing.

    Any commit that lands while it runs is a ConcurrentWrite, which is not retried: the next try would undo that commit.
    Example: `DeltaRestoreOperator(task_id="undo", table_uri="/lake/orders", version="{{ params.good }}")`. Other
    arguments: `ExactlyOnceOperator` and `TxlogOperator`.
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
