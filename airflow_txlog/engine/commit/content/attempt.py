"""A transaction's reads and changes as one value, one side of every conflict rule; and its isolation level.

An attempt is never changed. A rule that must adapt the commit (another base row id, the winner's metadata) returns
another attempt.
Source: delta-spark, OptimisticTransaction.commit (canDowngradeToSnapshotIsolation) and IsolationLevels.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from typing import Protocol as Interface

from airflow_txlog.engine.commit.content.met import NONE_MET, Meetings
from airflow_txlog.engine.log.actions import (
    Action,
    Add,
    Cdc,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
)
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.schema.column_mapping import table_schema
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import TxlogError

E = TypeVar("E", bound=TxlogError)

ROW_TRACKING_DOMAIN = "delta.rowTracking"


class Guard(Interface):
    """Decides which rows a commit may bring into its table."""

    def admitted(
        self, snapshot: Snapshot | None, metadata: Metadata | None, adds: Sequence[Add], changes: Sequence[Cdc]
    ) -> Sequence[Add]:
        """Return the files that the commit adds instead of `adds`. `metadata` is the table's metadata after it.

        Raises the error that forbids the commit.
        """

    def check_again(self) -> None:
        """Raise the error that forbids to commit what was admitted, after other commits have come first."""


class IsolationLevel(enum.StrEnum):
    """The isolation levels, by their values in commitInfo."""

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
        "ERASE",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "ADD COLUMNS",
        "ADD CONSTRAINT",
        "DROP CONSTRAINT",
        "CHANGE COLUMN",
        "CHANGE COLUMNS",
        "RENAME COLUMN",
        "DROP COLUMNS",
        "CLUSTER BY",
        "UPDATE SCHEMA",
        "UPGRADE PROTOCOL",
        "ADD FEATURE",
        "DROP FEATURE",
        "ALTER TABLE",
        "RESERVE IDENTITY",
    }
)

# Operations whose commit is skipped if it would record nothing.
SKIPPED_WHEN_EMPTY = frozenset({"WRITE", "DELETE", "UPDATE", "MERGE", "OPTIMIZE", "REORG"})


def operation_changes_data(operation: str) -> bool:
    return operation not in NON_DATA_CHANGING


def effective_isolation(table_level: str, operation: str, actions: Iterable[Action]) -> IsolationLevel:
    """Return the level at which a commit is checked: the table's, or snapshot isolation if no row changes.

    Metadata, a protocol, an application transaction or a domain (but the row-tracking one) forbids the downgrade, and
    at WriteSerializable so does an operation that may change data.
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
    """Return whether an empty commit is skipped. At WriteSerializable one that could change data marks its place."""
    return operation in SKIPPED_WHEN_EMPTY and level is not IsolationLevel.WRITE_SERIALIZABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSet:
    """Everything a transaction has read of its snapshot.

    Files are identified by canonical path alone: a new deletion vector changes a file that we read.
    Source: delta-spark, OptimisticTransaction (readPredicates, readFiles, readTheWholeTable, readTxn).
    """

    predicates: tuple[Predicate, ...] = ()
    paths: frozenset[str] = frozenset()
    whole_table: bool = False
    application_ids: frozenset[str] = frozenset()
    unmatched: Mapping[str, int | None] = field(default_factory=dict)
    """Those of `paths` in which a scan found no match, with their row counts, if known."""

    @property
    def reads_data(self) -> bool:
        return bool(self.predicates or self.paths or self.whole_table)

    def with_predicate(self, predicate: Predicate) -> ReadSet:
        return replace(self, predicates=(*self.predicates, predicate))

    def with_paths(self, paths: Iterable[str]) -> ReadSet:
        return replace(self, paths=self.paths | frozenset(paths))

    def with_unmatched(self, row_counts: Mapping[str, int | None]) -> ReadSet:
        unmatched = {**self.unmatched, **row_counts} if self.unmatched else row_counts
        # For a large table a set of all paths takes a hundred megabytes: never build it twice.
        paths = self.paths if row_counts.keys() <= self.paths else self.paths | row_counts.keys()
        return replace(self, paths=paths, unmatched=unmatched)

    def with_application(self, app_id: str) -> ReadSet:
        return replace(self, application_ids=self.application_ids | {app_id})

    def reading_whole_table(self) -> ReadSet:
        return replace(self, whole_table=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A transaction that is about to commit, relative to the version that it was last checked against."""

    table: str
    """The table's URI, for messages and for canonical paths."""
    read_version: int
    """The snapshot's version; -1 if the table did not exist."""
    operation: str
    reads: ReadSet
    schema: StructType
    """The schema at the read version: predicates were read against it."""
    partition_columns: tuple[str, ...]
    """The partitioning at the read version."""
    protocol: Protocol | None
    """The protocol in force: the snapshot's, or that of a winner which was adopted. None for a new table."""
    current_metadata: Metadata | None
    """The metadata in force: the snapshot's, or that of a winner which was adopted. None for a new table."""
    isolation: IsolationLevel
    is_blind_append: bool
    adds: tuple[Add, ...] = ()
    added_paths: frozenset[str] = frozenset()
    """The canonical paths of `adds`, computed once: no rule changes the path of an added file."""
    removes: tuple[Remove, ...] = ()
    cdc: tuple[Cdc, ...] = ()
    new_metadata: Metadata | None = None
    new_protocol: Protocol | None = None
    transactions: tuple[SetTransaction, ...] = ()
    domains: tuple[DomainMetadata, ...] = ()
    prepared_ms: int = 0
    """When the commit was first attempted: commitInfo.timestamp, and the least in-commit timestamp."""
    never_rebases: bool = False
    trust_statistics: bool = True
    row_id_high_water: int | None = None
    """The highest row id handed out at the version last checked against; None without row tracking."""
    keeps_row_ids: bool = False
    """Whether rows that were moved to new files carry their ids along, in the materialized columns."""
    in_commit_timestamp_ms: int | None = None
    """The timestamp to write; None if the table has no in-commit timestamps."""
    met: Meetings = NONE_MET
    """The commits over which it was rebased, after those that its job met before."""

    @property
    def resulting_protocol(self) -> Protocol | None:
        return self.new_protocol or self.protocol

    @property
    def resulting_metadata(self) -> Metadata | None:
        return self.new_metadata or self.current_metadata

    @property
    def resulting_properties(self) -> TableProperties:
        """The properties after the commit; the defaults for a new table without metadata."""
        metadata = self.resulting_metadata
        return TableProperties({} if metadata is None else metadata.configuration, self.table)

    @property
    def resulting_layout(self) -> tuple[StructType, Sequence[str]]:
        """The schema and the partition columns after the commit."""
        if self.new_metadata is None:
            return self.schema, self.partition_columns
        return table_schema(self.new_metadata, self.table), self.new_metadata.partition_columns

    def canonical(self, action: Add | Remove | Cdc) -> str:
        return canonical_path(action.path, self.table)

    def error(self, kind: type[E], what: str, **facts: Any) -> E:
        """Return an error of this kind about the table."""
        return kind(f"{self.table}: {what}", table=self.table, **facts)

    def actions(self) -> list[Action]:
        """Return the actions to write, in the order of the reference writer: protocol and metadata first."""
        found: list[Action] = []
        if self.new_protocol is not None:
            found.append(self.new_protocol)
        if self.new_metadata is not None:
            found.append(self.new_metadata)
        return [*found, *self.transactions, *self.domains, *self.removes, *self.adds, *self.cdc]
