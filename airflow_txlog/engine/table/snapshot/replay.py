"""From the actions of a log to the state of one version.

The invariant: the newest action of a file wins. A file is known by its key, the canonical path together with the id of
its deletion vector; commits are looked at newest first, and the first action seen for a key is final. Tombstones are
never filtered here: dropping an expired one would let an older add through.
Source: protocol, "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa

from airflow_txlog.engine.log.actions import (
    Add,
    Commit,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
)
from airflow_txlog.engine.log.columns import FILES, TOMBSTONES, adds_to_table, removes_to_table
from airflow_txlog.engine.log.packing import PackedBatch, pack
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.snapshot.commit_times import in_commit_ms
from airflow_txlog.engine.table.snapshot.file_index import FileIndex
from airflow_txlog.engine.table.snapshot.files import action_keys
from airflow_txlog.engine.table.snapshot.state import TableState
from airflow_txlog.errors import CorruptTable

_Action = TypeVar("_Action", Add, Remove)

# So many actions become columns at once: as a Python object each they take five times the room. And so many rows are
# one chunk of the table.
_ACTIONS_AT_ONCE = 2048
_CHUNK_ROWS = 32_768


@dataclass(slots=True)
class _Columns(Generic[_Action]):
    """Actions on their way into columns."""

    to_table: Callable[[Sequence[_Action]], pa.Table]
    _chunks: list[PackedBatch] = field(default_factory=list)
    _tables: list[pa.Table] = field(default_factory=list)
    _waiting: list[_Action] = field(default_factory=list)

    def extend(self, actions: list[_Action]) -> None:
        self._waiting += actions
        if len(self._waiting) >= _ACTIONS_AT_ONCE:
            self._tables.append(self.to_table(self._waiting))
            self._waiting = []
        if len(self._tables) * _ACTIONS_AT_ONCE >= _CHUNK_ROWS:
            self._pack()

    def chunks(self) -> list[PackedBatch]:
        """All of them, in the order in which they came."""
        if self._waiting:
            self._tables.append(self.to_table(self._waiting))
            self._waiting = []
        if self._tables:
            self._pack()
        return self._chunks

    def _pack(self) -> None:
        self._chunks += map(pack, pa.concat_tables(self._tables).combine_chunks().to_batches())
        self._tables = []


@dataclass(slots=True)
class _Newest:
    """What commits said, newest first; the first word on a subject stays."""

    seen: set[str] = field(default_factory=set)
    adds: _Columns[Add] = field(default_factory=lambda: _Columns(adds_to_table))
    removes: _Columns[Remove] = field(default_factory=lambda: _Columns(removes_to_table))
    info: Mapping[str, Any] | None = None
    """What the newest commit says of itself."""
    is_started: bool = False
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    transactions: dict[str, SetTransaction] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)

    def look_at(self, commit: Commit, root: str) -> None:
        if not self.is_started:
            self.info, self.is_started = commit.info, True
        # A commit that adds and removes one key breaks the protocol; the add stands, so that no row is lost.
        self.adds.extend(self._first_spoken_of(commit.adds, root))
        self.removes.extend(self._first_spoken_of(commit.removes, root))
        self.protocol = self.protocol or commit.protocol
        self.metadata = self.metadata or commit.metadata
        for transaction in commit.transactions:
            self.transactions.setdefault(transaction.app_id, transaction)
        for domain in commit.domains:
            self.domains.setdefault(domain.domain, domain)

    def _first_spoken_of(self, actions: list[_Action], root: str) -> list[_Action]:
        """Those whose key is seen for the first time; from now on it counts as seen."""
        keys = action_keys(actions, root)
        distinct = set(keys)
        if len(distinct) == len(keys) and self.seen.isdisjoint(distinct):
            self.seen |= distinct
            return actions
        fresh: list[_Action] = []
        for key, action in zip(keys, actions, strict=True):
            if key not in self.seen:
                self.seen.add(key)
                fresh.append(action)
        return fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBase:
    """Where a replay starts: the content of a checkpoint or the state of an earlier version; nothing for version 0."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    transactions: dict[str, SetTransaction] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    files: FileIndex = field(default_factory=lambda: FileIndex(FILES))
    removed_files: FileIndex = field(default_factory=lambda: FileIndex(TOMBSTONES))


def replay_newest_first(base: ReplayBase, commits: Iterable[Commit], *, root: str, version: int) -> TableState:
    """The state after `base` and then `commits` (descending, contiguous), of which the first is `version`.

    Costs what the commits hold: what `base` holds is shared (see `file_index`). A commit is let go before the next is
    taken. Raises CorruptTable where neither holds a protocol or metadata.
    Source: protocol, "Action Reconciliation".
    """
    newest = _Newest()
    for commit in commits:
        newest.look_at(commit, root)
    protocol = newest.protocol or base.protocol
    metadata = newest.metadata or base.metadata
    if protocol is None or metadata is None:
        missing = "protocol" if protocol is None else "metaData"
        raise CorruptTable(
            f"{root}: the log up to version {version} holds no {missing} action, so the table cannot be read.",
            table=root,
        )
    return TableState(
        version=version,
        protocol=protocol,
        metadata=metadata,
        transactions={**base.transactions, **newest.transactions},
        domains={name: domain for name, domain in {**base.domains, **newest.domains}.items() if not domain.removed},
        files=base.files.after(newest.seen, newest.adds.chunks(), root),
        removed_files=base.removed_files.after(newest.seen, newest.removes.chunks(), root),
        in_commit_ms=in_commit_ms(TableProperties(metadata.configuration, root), version, newest.info),
    )


def base_of(state: TableState) -> ReplayBase:
    """A base from which later commits can be replayed onto `state`."""
    return ReplayBase(
        protocol=state.protocol,
        metadata=state.metadata,
        transactions=dict(state.transactions),
        domains=dict(state.domains),
        files=state.files,
        removed_files=state.removed_files,
    )
