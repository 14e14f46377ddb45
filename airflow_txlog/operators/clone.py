"""DeltaCloneOperator: make a table a clone of another one, shallow or deep."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Clone, Operation
from airflow_txlog.operators.arguments.given import moment_text, version_number
from airflow_txlog.operators.base import ExactlyOnceOperator


class DeltaCloneOperator(ExactlyOnceOperator):
    """Create or update `table_uri` as a clone of a Delta table, in one commit, without Spark.

    :param source: the table to clone, as `sources.table(uri)`, or `table(uri, version=7)`. (templated)
    :param timestamp: instead of a version, clone the last version that was committed at or before this time: a datetime
        or ISO-8601, in UTC if it has no zone. (templated)
    :param shallow: True copies no data. The clone reads the source's own files, until a VACUUM of the source deletes
        them. False copies every file, and the clone is independent.
    :param replace: allow `table_uri` to be an existing table. Its rows are replaced by the source's rows, and its
        history stays. A deep clone copies only the files that are new since the last clone.
    :param properties: table properties that replace the source's properties of the same names.

    If a task is killed, its retry continues and copies no file twice. The clone has the source's schema, partitioning,
    constraints, properties and features, and a new id. It has none of the source's application transactions, because a
    task that wrote to the source has not written to the clone. Example:
    `DeltaCloneOperator(task_id="copy", table_uri="/lake/orders_dev", source=table("/lake/orders"), shallow=True)`.
    Other arguments: `ExactlyOnceOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Clone
    may_create = True
    template_fields: Sequence[str] = (*ExactlyOnceOperator.template_fields, "source", "timestamp")

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        timestamp: dt.datetime | str | None = None,
        shallow: bool = False,
        replace: bool = False,
        properties: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.timestamp = timestamp
        self.shallow = shallow
        self.replace = replace
        self.properties = properties
        self.check_literals()

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields, with the source's `version` as a number if its text is one."""
        arguments = super().job_arguments()
        source = {**arguments["source"]}
        if "version" in source:
            source["version"] = version_number(source["version"])
        return {**arguments, "source": source, "timestamp": moment_text(self.timestamp)}
