"""Isolation levels, and which one a commit is checked at.

Source: delta-spark, OptimisticTransaction.commit (canDowngradeToSnapshotIsolation) and IsolationLevels.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from airflow_txlog.engine.log.actions import Action, Add, Cdc, DomainMetadata, Remove

ROW_TRACKING_DOMAIN = "delta.rowTracking"


class IsolationLevel(enum.StrEnum):
    """How much a commit must know of the commits that landed since it read; the values stand in commitInfo."""

    SERIALIZABLE = "Serializable"
    WRITE_SERIALIZABLE = "WriteSerializable"
    SNAPSHOT = "SnapshotIsolation"


# Operations that move or describe rows without changing which rows the table holds.
NON_DATA_CHANGING = frozenset(
    {
        "OPTIMIZE",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "ADD COLUMNS",
        "ADD CONSTRAINT",
        "DROP CONSTRAINT",
        "CHANGE COLUMN",
        "UPDATE SCHEMA",
        "UPGRADE PROTOCOL",
        "ADD FEATURE",
    }
)

# Operations whose commit may be left out where it would record nothing.
SKIPPED_WHEN_EMPTY = frozenset({"WRITE", "DELETE", "UPDATE", "MERGE", "OPTIMIZE", "REORG"})


def operation_changes_data(operation: str) -> bool:
    return operation not in NON_DATA_CHANGING


def effective_isolation(table_level: str, operation: str, actions: Iterable[Action]) -> IsolationLevel:
    """The level at which one commit is checked: the table's, or snapshot isolation where no row changes.

    Any metadata, protocol, application transaction or domain (but the row-tracking one) forbids the downgrade. At
    WriteSerializable the operation must besides be of a kind that never changes data.
    """
    level = IsolationLevel(table_level)
    if level is IsolationLevel.WRITE_SERIALIZABLE and operation_changes_data(operation):
        return level
    return IsolationLevel.SNAPSHOT if all(map(_moves_no_row, actions)) else level


def _moves_no_row(action: Action) -> bool:
    if isinstance(action, Add | Remove | Cdc):
        return not action.data_change
    return isinstance(action, DomainMetadata) and action.domain == ROW_TRACKING_DOMAIN


def may_skip_empty(operation: str, level: IsolationLevel) -> bool:
    """Whether a commit of this operation that records nothing is left out.

    Under WriteSerializable an empty data-changing commit is recorded: it marks where the operation stands in the order.
    """
    return operation in SKIPPED_WHEN_EMPTY and level is not IsolationLevel.WRITE_SERIALIZABLE
