"""What a job may read: the conditions of the author as the engine's predicate, for pruning and for conflicts.

The invariant: the predicate that is registered is the author's text itself, all of it: whatever else narrows the files
(Spark's answer on partitions) only narrows what is worked on. Source: soundness A9, A13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.predicate import Predicate, read_predicate
from airflow_txlog.engine.table.predicate.tree import all_of, any_of
from airflow_txlog.errors import AppendOnlyViolation
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.sql.gate import SqlGate, aliased
from airflow_txlog.jobs.sql.partitions import Partitions
from airflow_txlog.jobs.sql.schemas import spark_table_schema


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


def read_scope(
    context: JobContext, gate: SqlGate, snapshot: Snapshot, partitions: Partitions
) -> tuple[str | None, Predicate | None]:
    """The job's `partition_predicate`, accepted: its text, and the engine's reading. None where there is none."""
    text = context.arguments["partition_predicate"]
    if text is None:
        return None, None
    partitions.check_scope(text)
    # Spark names the parameters once more, on the whole table, so that exactly those are bound in the engine.
    used = gate.condition(text, aliased(gate.shape(spark_table_schema(snapshot))))
    return text, read_condition(context, snapshot, text, used)


def files_inside(partitions: Partitions, scope: str | None, files: pa.Table) -> pa.Table:
    """The files (rows of a table `FILES`) whose partition the scope accepts."""
    if scope is None:
        return files
    return files.filter(pa.array(partitions.accepted(scope, partitions.tuples_of(files)), pa.bool_()))


def check_may_remove_rows(snapshot: Snapshot, operation: str) -> None:
    """Raises AppendOnlyViolation before anything is staged where the table only grows."""
    if snapshot.table_properties.append_only:
        raise AppendOnlyViolation(
            f"Table {snapshot.uri} is append-only (delta.appendOnly), so {operation} cannot remove or change rows. "
            "Nothing was staged.",
            table=snapshot.uri,
        )


def known_sum(counts: Sequence[int | None]) -> int | None:
    """The sum, or None where one of the counts is not known."""
    return None if None in counts else sum(count for count in counts if count is not None)
