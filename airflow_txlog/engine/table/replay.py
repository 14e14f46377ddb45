"""From the actions of a log to the state of one version.

The invariant: the newest action of a file wins. A file is known by its key, the canonical path together with the id of
its deletion vector; commits are looked at newest first, and the first action seen for a key is final. Tombstones are
never filtered here: dropping an expired one would let an older add through.
Source: protocol, "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

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
from airflow_txlog.engine.table.files import file_key, file_keys
from airflow_txlog.engine.table.state import TableState
from airflow_txlog.errors import CorruptTable


@dataclass(slots=True)
class _Newest:
    """What commits said, newest first; the first word on a subject stays."""

    seen: set[str] = field(default_factory=set)
    adds: list[Add] = field(default_factory=list)
    removes: list[Remove] = field(default_factory=list)
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    transactions: dict[str, SetTransaction] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)

    def look_at(self, commit: Commit, root: str) -> None:
        seen, adds, removes = self.seen, self.adds, self.removes
        # A commit that adds and removes one key breaks the protocol; the add stands, so that no row is lost.
        for add in commit.adds:
            key = file_key(add.path, add.deletion_vector, root)
            if key not in seen:
                seen.add(key)
                adds.append(add)
        for remove in commit.removes:
            key = file_key(remove.path, remove.deletion_vector, root)
            if key not in seen:
                seen.add(key)
                removes.append(remove)
        self.protocol = self.protocol or commit.protocol
        self.metadata = self.metadata or commit.metadata
        for transaction in commit.transactions:
            self.transactions.setdefault(transaction.app_id, transaction)
        for domain in commit.domains:
            self.domains.setdefault(domain.domain, domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBase:
    """Where a replay starts: the content of a checkpoint or the state of an earlier version; nothing for version 0."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    transactions: dict[str, SetTransaction] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    live: pa.Table = field(default_factory=FILES.empty_table)
    tombstones: pa.Table = field(default_factory=TOMBSTONES.empty_table)


def replay(base: ReplayBase, commits: Sequence[Commit], *, root: str, version: int, timestamp_ms: int) -> TableState:
    """The state after `base` and then `commits` (ascending, contiguous), which end at `version`.

    Raises CorruptTable where neither holds a protocol or metadata.
    Source: protocol, "Action Reconciliation".
    """
    newest = _Newest()
    for commit in reversed(commits):
        newest.look_at(commit, root)
    protocol = newest.protocol or base.protocol
    metadata = newest.metadata or base.metadata
    if protocol is None or metadata is None:
        missing = "protocol" if protocol is None else "metaData"
        raise CorruptTable(
            f"{root}: the log up to version {version} holds no {missing} action, so the table cannot be read.",
            table=root,
        )
    live, tombstones = _reconcile(base, newest, root)
    in_commit_ms = _in_commit_timestamp(commits[-1].info) if commits else None
    return TableState(
        version=version,
        protocol=protocol,
        metadata=metadata,
        transactions={**base.transactions, **newest.transactions},
        domains={name: domain for name, domain in {**base.domains, **newest.domains}.items() if not domain.removed},
        live=live,
        tombstones=tombstones,
        timestamp_ms=timestamp_ms if in_commit_ms is None else in_commit_ms,
    )


def base_of(state: TableState) -> ReplayBase:
    """A base from which later commits can be replayed onto `state`."""
    return ReplayBase(
        protocol=state.protocol,
        metadata=state.metadata,
        transactions=dict(state.transactions),
        domains=dict(state.domains),
        live=state.live,
        tombstones=state.tombstones,
    )


def _reconcile(base: ReplayBase, newest: _Newest, root: str) -> tuple[pa.Table, pa.Table]:
    if not newest.seen:
        return base.live, base.tombstones
    spoken_of = pa.array(newest.seen, pa.string())
    live = _without(base.live, spoken_of, root)
    tombstones = _without(base.tombstones, spoken_of, root)
    if newest.adds:
        live = pa.concat_tables([live, adds_to_table(newest.adds)])
    if newest.removes:
        tombstones = pa.concat_tables([tombstones, removes_to_table(newest.removes)])
    return live, tombstones


def _without(files: pa.Table, keys: pa.Array, root: str) -> pa.Table:
    if not files.num_rows:
        return files
    return files.filter(pc.invert(pc.is_in(file_keys(files, root), value_set=keys)))


def _in_commit_timestamp(info: dict[str, object] | None) -> int | None:
    value = (info or {}).get("inCommitTimestamp")
    return value if isinstance(value, int) else None
