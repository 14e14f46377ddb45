"""DeltaOptimizeOperator: compact small files, cluster or sort rows so that readers skip files, purge deleted rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Operation, Optimize
from airflow_txlog.operators.base import TxlogOperator


class DeltaOptimizeOperator(TxlogOperator):
    """Rewrite files without changing a row: combine small files of a partition into one of about the target size.

    A table with clustering columns is clustered instead: unclustered files are sorted by these columns, together with
    clustered files that are not much larger.

    :param zorder_by: columns that readers filter by (`a`, or `a.b` for a member of a struct). All files in scope are
        rewritten so that rows with near values in all of these columns are in the same file. (templated)
    :param purge: rewrite only the files that have deleted rows (deletion vectors), so that a vacuum removes these rows
        from storage. Cannot be combined with `zorder_by`.
    :param full: also cluster the files that are clustered by other columns, and combine the results of several runs.
        Only for tables with clustering columns.
    :param target_bytes: the target size of files. None uses the table's `delta.targetFileSize`, or 256 MiB.
    :param batch_bytes: the number of bytes that are rewritten in one commit. A retry does not repeat the commits of a
        killed task. None rewrites everything in one commit.
    :param partition_predicate: the partitions to rewrite, as SQL over partition columns with `:name` for values.
        (templated)
    :param parameters: the values of `:name`, bound and never pasted. (templated)

    A second run finds nothing to do, except with `zorder_by`, which sorts again. The operation carries no application
    transaction and conflicts with no append. If another commit removes one of the files to replace, the other files are
    still replaced. Other arguments: `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Optimize
    template_fields: Sequence[str] = (
        *TxlogOperator.template_fields,
        "zorder_by",
        "partition_predicate",
        "parameters",
    )

    def __init__(
        self,
        *,
        zorder_by: str | Sequence[str] | None = None,
        purge: bool = False,
        full: bool = False,
        target_bytes: int | None = None,
        batch_bytes: int | None = 32 * 1024**3,
        partition_predicate: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.zorder_by = zorder_by
        self.purge = purge
        self.full = full
        self.target_bytes = target_bytes
        self.batch_bytes = batch_bytes
        self.partition_predicate = partition_predicate
        self.parameters = parameters
        self.check_literals()
