"""What a job may read: the conditions of the author as the engine's predicate, for pruning and for conflicts.

The invariant: the predicate that is registered is the author's text itself, all of it: whatever else narrows the files
(Spark's answer on partitions) only narrows what is worked on. Source: soundness A9, A13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_txlog.contract.operations import ScopedOperation
from airflow_txlog.datafiles.parquet.output import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.sql.gate import SqlGate, aliased
from airflow_txlog.jobs.sql.partitions import Partitions
from airflow_txlog.sql.expression import all_of, any_of


def accepted_by_spark(gate: SqlGate, snapshot: Snapshot, text: str) -> dict[str, Any]:
    """Have Spark accept a condition on the table's rows; return the parameters that it uses."""
    from airflow_txlog.jobs.sql.schemas import spark_table_schema  # noqa: PLC0415 - only with Spark

    return gate.condition(text, aliased(gate.shape(spark_table_schema(snapshot))))


def read_condition(
    context: JobContext, snapshot: Snapshot, text: str, parameters: Mapping[str, Any], *, alias: str | None = None
) -> Predicate:
    """A condition that Spark accepted, as the engine reads it; `parameters` are exactly those that it uses."""
    return read_predicate(
        text,
        snapshot.delta_schema,
        parameters=parameters,
        time_zone=context.spec.time_zone,
        alias=alias,
        # Spark has parsed the text and resolved its names; what the engine cannot make of it only prunes nothing.
        unknown_columns="unknown",
        lenient=True,
    )


def both(one: Predicate, other: Predicate | None) -> Predicate:
    """The conjunction of two predicates of one table."""
    return one if other is None else _joined("AND", one, other)


def either(one: Predicate, other: Predicate) -> Predicate:
    """The disjunction of two predicates of one table."""
    return _joined("OR", one, other)


def _joined(connector: str, one: Predicate, other: Predicate) -> Predicate:
    columns = None if one.columns is None or other.columns is None else one.columns | other.columns
    trees = [one.tree, other.tree]
    return Predicate(
        f"(\n{one.sql}\n) {connector} (\n{other.sql}\n)",
        all_of(trees) if connector == "AND" else any_of(trees),
        columns,
    )


@dataclass(frozen=True, kw_only=True)
class PartitionScope:
    """The partitions that an attempt may touch: those of which the accepted `text` is TRUE; None: all of them.

    `read` is how the engine reads the text.
    """

    partitions: Partitions
    text: str | None = None
    read: Predicate | None = None

    def read_files(self, tx: Transaction, condition: Predicate) -> pa.Table:
        """The files (a table `FILES`) inside that may hold a row of the condition, which is registered as read."""
        return self.files_inside(tx.read(both(condition, self.read)))

    def files_inside(self, files: pa.Table) -> pa.Table:
        """Of the files (rows of a table `FILES`) those whose partition the scope accepts."""
        return files if self.text is None else self.files_accepted(self.text, files)

    def files_accepted(self, text: str, files: pa.Table) -> pa.Table:
        """Of the files those of whose partition an accepted condition over partition columns is TRUE."""
        return files.filter(pa.array(self.partitions.accepted(text, self.partitions.tuples_of(files)), pa.bool_()))

    def check_inside(self, staged: Iterable[StagedFile]) -> None:
        """Raises PartitionMismatch for the first new file that lies outside."""
        if self.text is not None:
            tuples = [self.partitions.tuple_of(file.partition_values) for file in staged]
            self.partitions.check_inside(self.text, tuples)

    def with_condition(self, condition: str) -> str:
        """The condition as a commit describes it: the scope belongs to it."""
        return condition if self.text is None else f"({self.text}) AND ({condition})"


def partition_scope(
    context: JobContext, gate: SqlGate, snapshot: Snapshot, partitions: Partitions | None = None
) -> PartitionScope:
    """The job's `partition_predicate`, accepted, on the snapshot's partitions unless others are given."""
    text = context.record(ScopedOperation).partition_predicate
    if partitions is None:
        partitions = Partitions(context, gate, snapshot.delta_schema, snapshot.partition_columns)
    if text is None:
        return PartitionScope(partitions=partitions)
    used = partitions.check_scope(text)
    gate.check_clocks(text, snapshot.delta_schema.names)
    return PartitionScope(partitions=partitions, text=text, read=read_condition(context, snapshot, text, used))
