"""DeltaWriteOperator: append rows to a table, or overwrite it or a part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Operation, Write
from airflow_txlog.operators.checked import SourceOperator


class DeltaWriteOperator(SourceOperator):
    """Write the rows of a source into a Delta table, in one commit.

    :param source: the rows: `sources.files(…)`, `sources.table(…)` or `sources.query(…)`. (templated)
    :param mode: "append"; "overwrite": replace the table's rows, or with `partition_predicate` those of the partitions
        it names; "overwrite_partitions": replace only the partitions that occur in the source.
    :param replace_where: one boolean SQL expression with `:name` for values: an overwrite replaces the rows for which
        it is true, and a new row for which it is not is an error. (templated)
    :param replace_using: columns: an overwrite replaces the rows whose values in all of them occur in a row of the
        source, and adds every row of the source. Null equals nothing: a row with a null there is added and replaces
        none. If all are partition columns, whole partitions leave. (templated)
    :param on_conflict: what an overwrite does after a conflict, such as rows that landed in its scope while it ran:
        "replan" replaces them too, "fail" fails the task for good. Under "fail" no row is replaced that landed after
        the first try began.
    :param create: create a missing table; False raises TableNotFound instead.
    :param partition_by: partition columns of a table that is created here.
    :param cluster_by: clustering columns of a table that is created here, in place of partition columns: at most four,
        `a` or `a.b` for a member of a struct. Appended rows are not clustered; `DeltaOptimizeOperator` clusters them.
    :param allow_non_empty: create the table also in a folder that holds files of no table. By default that is
        FolderNotEmpty, because a VACUUM of the table would delete them.
    :param properties: table properties of a table that is created here; `delta.constraints.<name>` is a CHECK.
    :param schema_evolution: add what the source has more of than the table, in the same commit: new columns, new
        members of structs, and wider types if the table allows type widening. Without it, an error.

    Example: `DeltaWriteOperator(task_id="load", table_uri="/lake/flights", source=files("/in/{{ ds }}"),
    partition_by=["flight_date"])`. Other arguments: `DataChangingOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Write
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
