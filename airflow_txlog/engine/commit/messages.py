"""The text and the facts of a conflict, so that every rule says the same things in the same order."""

from __future__ import annotations

from typing import Any, TypeVar

from airflow_txlog.engine.commit.attempt import Attempt
from airflow_txlog.engine.log.actions import Add, Commit, Remove
from airflow_txlog.errors import CommitConflict

C = TypeVar("C", bound=CommitConflict)


def conflict(kind: type[C], attempt: Attempt, winner: Commit, what: str, hint: str = "", **facts: Any) -> C:
    """A conflict of this kind: which version did what, at which version we had read, and what to do now.

    `what` continues the sentence "version 18 of s3://lake/orders (DELETE) …"; `hint` is one more sentence.
    """
    operation = (winner.info or {}).get("operation")
    who = f"version {winner.version} of {attempt.table}" + (f" ({operation})" if operation else "")
    return kind(
        f"CommitConflict ({kind.__name__}): {who} {what}; this transaction read version {attempt.read_version}. "
        f"Nothing of this {attempt.operation} is in the table: read the table again and repeat the operation."
        + (f" {hint}" if hint else ""),
        table=attempt.table,
        read_version=attempt.read_version,
        winning_version=winner.version,
        winning_operation=operation,
        **facts,
    )


def file_facts(action: Add | Remove) -> dict[str, Any]:
    """The facts that name one file: its path and its partition."""
    return {"path": action.path, "partition": dict(action.partition_values) if action.partition_values else None}


# A partition value may be anything, also a person's name: a log line needs enough of it to tell the partition.
MAX_VALUE_CHARS = 40


def _cut(value: str | None) -> str | None:
    return value if value is None or len(value) <= MAX_VALUE_CHARS else value[: MAX_VALUE_CHARS - 1] + "…"


def file_text(action: Add | Remove) -> str:
    """The file, and the partition that it belongs to where it has one."""
    values = action.partition_values or {}
    if not values:
        return action.path
    place = "/".join(f"{name}={_cut(value)}" for name, value in values.items())
    return f"{action.path} (partition {place})"
