"""What a write replaces: the files that leave the table when its new rows come.

An overwrite replaces what its scope accepts: the whole table, the partitions of `partition_predicate`, those of a
`replace_where` over partition columns. The scope binds both ways: no new row may lie outside of it. An overwrite of
partitions replaces those that the new rows came to lie in. The invariant: a file goes whole only where Spark, or the
equality of typed partition values, says that every row of it is to go. Source: delta-spark, WriteIntoDelta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.contract.operations import Write
from airflow_txlog.datafiles.parquet.output import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.errors import PartitionMismatch
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.scope import (
    Partitions,
    PartitionScope,
    accepted_by_spark,
    both,
    partition_scope,
    read_condition,
)


@dataclass(frozen=True, kw_only=True)
class WriteScope(PartitionScope):
    """The part of a table that a write may touch.

    `rows`: a condition over data columns that every row of a new table must satisfy.
    """

    rows: str | None = None


def scope_of_new_table(context: JobContext, partitions: Partitions) -> WriteScope:
    """The scope on a table that is made here: nothing is read, and the new rows must lie inside."""
    text = context.record(Write).partition_predicate
    if text is not None:
        partitions.check_scope(text)
    replaced = context.record(Write).replace_where
    if replaced is None:
        return WriteScope(partitions=partitions, text=text)
    if not partitions.speaks_of_partitions_only(replaced):
        return WriteScope(partitions=partitions, text=text, rows=replaced)
    return WriteScope(partitions=partitions, text=_joined(text, replaced))


def scope_of(context: JobContext, gate: SqlGate, snapshot: Snapshot, partitions: Partitions) -> WriteScope:
    """`partition_predicate` and `replace_where` over partition columns, accepted.

    Raises InvalidPredicate and its siblings.
    """
    scope = partition_scope(context, gate, snapshot, partitions)
    text, read = scope.text, scope.read
    replaced = context.record(Write).replace_where
    if replaced is None:
        return WriteScope(partitions=partitions, text=text, read=read)
    used = accepted_by_spark(gate, snapshot, replaced)
    read = both(read_condition(context, snapshot, replaced, used), read)
    return WriteScope(partitions=partitions, text=_joined(text, replaced), read=read)


def files_in_scope(tx: Transaction, scope: WriteScope) -> pa.Table:
    """The live files (a table `FILES`) that an overwrite of this scope removes."""
    return scope.files_inside(tx.read_whole_table() if scope.read is None else tx.read(scope.read))


def check_has_partitions(context: JobContext, columns: Sequence[str]) -> None:
    """Raises PartitionMismatch for an overwrite of the partitions of a table that has none."""
    if not columns:
        raise PartitionMismatch(
            f'{context.root} is not partitioned, so mode "overwrite_partitions" has nothing to go by. Use mode '
            '"overwrite" for the whole table, or replace_where for a part of it. Nothing was staged.',
            table=context.root,
        )


def files_of_partitions(tx: Transaction, partitions: Partitions, staged: Sequence[StagedFile]) -> pa.Table:
    """The live files of the partitions that the staged files lie in: what a dynamic partition overwrite removes."""
    chosen = list(dict.fromkeys(partitions.tuple_of(file.partition_values) for file in staged))
    if not chosen:
        return tx.read_partitions([])
    read = tx.read_partitions([dict(zip(partitions.columns, values, strict=True)) for values in chosen])
    # What was read is every file that may lie there; only one whose values are known to be equal goes.
    return read.filter(pa.array(partitions.among(partitions.tuples_of(read), chosen), pa.bool_()))


def _joined(scope: str | None, replaced: str) -> str:
    return replaced if scope is None else f"(\n{scope}\n) AND (\n{replaced}\n)"
