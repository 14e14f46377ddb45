"""DeltaWriteOperator: append rows to a table, or overwrite it or a part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Operation, Write
from airflow_txlog.operators.checked import SourceOperator


class DeltaWriteOperator(SourceOperator):
    """Write the rows of a source into a Delta table, in one commit.

    :param source: the rows: `files(…)`, `table(…)` or `query(…)`. (templated)
    :param mode: "append" adds the rows. "overwrite" replaces the table's rows, or with `partition_predicate` the rows
        of the selected partitions. "overwrite_partitions" replaces only the partitions that occur in the source.
    :param replace_where: one boolean SQL expression with `:name` for values. An overwrite replaces the rows for which
        it is true. Every new row must satisfy it too, or the task fails. (templated)
    :param replace_using: columns. An overwrite replaces the rows whose values in all these columns occur in a row of
        the source, and adds every row of the source. Null equals nothing, so a row with a null in these columns is
        added and replaces no row. If all of them are partition columns, whole partitions are replaced. (templated)
    :param on_conflict: the reaction of an overwrite to a conflict, such as rows that another commit adds to its scope.
        "replan" replaces these rows too. "fail" fails the task permanently, so that it never replaces a row that was
        committed after the first try started.
    :param create: create a missing table; False raises TableNotFound instead.
    :param partition_by: partition columns of a table that is created here.
    :param cluster_by: clustering columns of a table that is created here, instead of partition columns: at most four,
        `a` or `a.b` for a member of a struct. Appended rows are not clustered until `DeltaOptimizeOperator` clusters
        them.
    :param allow_non_empty: create the table even in a folder with files that belong to no table. By default this raises
        FolderNotEmpty, because a VACUUM of the table would delete them.
    :param properties: table properties of a table that is created here. `delta.constraints.<name>` is a CHECK
        constraint.
    :param schema_evolution: adapt the table's schema to the source in the same commit: add new columns and new members
        of structs, and widen types if the table allows type widening. Without it, such differences are an error.

    Example: `DeltaWriteOperator(task_id="load", table_uri="/lake/flights", source=files("/in/{{ ds }}"),
    partition_by=["flight_date"])`. Other arguments: `DataChangingOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Write
    may_create = True
    template_fields: Sequence[str] = (*SourceOperator.template_fields, "source", "replace_where", "replace_using")

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        mode: str = "append",
        replace_where: str | None = None,
        replace_using: str | Sequence[str] | None = None,
        on_conflict: str = "replan",
        create: bool = True,
        allow_non_empty: bool = False,
        partition_by: str | Sequence[str] | None = None,
        cluster_by: str | Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        schema_evolution: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.mode = mode
        self.replace_where = replace_where
        self.replace_using = replace_using
        self.on_conflict = on_conflict
        self.create = create
        self.allow_non_empty = allow_non_empty
        self.partition_by = partition_by
        self.cluster_by = cluster_by
        self.properties = properties
        self.schema_evolution = schema_evolution
        self.check_literals()
