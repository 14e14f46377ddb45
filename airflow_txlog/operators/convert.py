"""DeltaConvertOperator: make a folder of Parquet files a Delta table, without moving data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Convert, Operation
from airflow_txlog.operators.base import ExactlyOnceOperator


class DeltaConvertOperator(ExactlyOnceOperator):
    """Convert a folder of Parquet files into a Delta table in one commit, without moving data and without Spark.

    :param partition_schema: the partition columns in folder names such as `day=2024-01-01`, with their types:
        `"day DATE, shop STRING"`. Required if there are such folders. (templated)
    :param properties: table properties of the new table. Column mapping and constraints are refused, because the files
        have no physical names and no verified rows.
    :param collect_statistics: read each column's bounds and null count from the files' footers, so that readers can
        skip files. False reads only row counts.
    :param dry_run: check everything, report the files that would be converted, and commit nothing.

    `table_uri` is the folder. If a file cannot be part of a table, an error names it. Hidden files and files that are
    not Parquet stay in the folder, outside of the table. Stop writing to the folder first: if a file changes, appears
    or disappears while the task runs, it fails with FolderChanged. Example:
    `DeltaConvertOperator(task_id="convert", table_uri="/lake/events", partition_schema="day DATE")`. Other arguments:
    `ExactlyOnceOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Convert
    may_create = True
    template_fields: Sequence[str] = (*ExactlyOnceOperator.template_fields, "partition_schema")

    def __init__(
        self,
        *,
        partition_schema: str | None = None,
        properties: Mapping[str, Any] | None = None,
        collect_statistics: bool = True,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.partition_schema = partition_schema
        self.properties = properties
        self.collect_statistics = collect_statistics
        self.is_dry_run = dry_run
        self.check_literals()
