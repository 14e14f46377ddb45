"""The text and the facts of a conflict, so that every rule says the same things in the same order."""

from __future__ import annotations

from typing import Any, TypeVar

from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.log.actions import Add, Commit, Remove
from airflow_txlog.engine.table.schema.column_mapping import partition_keys
from airflow_txlog.errors import CommitConflict

C = TypeVar("C", bound=CommitConflict)


def conflict(kind: type[C], attempt: Attempt, winner: Commit, what: str, hint: str = "", **facts: Any) -> C:
    """A conflict of this kind: which version did what, at which version we had read, and what to do now.

    `what` continues the sentence "version 18 of s3://lake/orders (DELETE) …"; `hint` is one more sentence.
    """
    operation = (winner.info or {}).get("operation")
    who = f"version {winner.version} of {attempt.table}" + (f" ({operation})" if operation else "")
    return kind(
        f"{who} {what}; this transaction read version {attempt.read_version}. "
        f"Nothing of this {attempt.operation} is in the table: read the table again and repeat the operation."
        + (f" {hint}" if hint else ""),
        table=attempt.table,
        read_version=attempt.read_version,
        winning_version=winner.version,
        winning_operation=operation,
        **facts,
    )


def file_facts(attempt: Attempt, action: Add | Remove) -> dict[str, Any]:
    """The facts that name one file: its path and its partition, by the names that the table's readers know."""
    return {"path": action.path, "partition": _partition(attempt, action) or None}


# A partition value may be anything, also a person's name: a log line needs enough of it to recognize the partition.
MAX_VALUE_CHARS = 40


def _cut(value: str | None) -> str | None:
    return value if value is None or len(value) <= MAX_VALUE_CHARS else value[: MAX_VALUE_CHARS - 1] + "…"


def _partition(attempt: Attempt, action: Add | Remove) -> dict[str, str | None]:
    columns = attempt.partition_columns
    names = dict(zip(partition_keys(attempt.schema, columns), columns, strict=True))
    return {names.get(key, key): value for key, value in (action.partition_values or {}).items()}


def file_text(attempt: Attempt, action: Add | Remove) -> str:
    """The file, and the partition that it belongs to where it has one."""
    values = _partition(attempt, action)
    if not values:
        return action.path
    place = "/".join(f"{name}={_cut(value)}" for name, value in values.items())
    return f"{action.path} (partition {place})"
