"""From the actions of a log to the state of one version.

The invariant: the newest action of a file wins. A file is known by its key, the canonical path together with the id of
its deletion vector; commits are looked at newest first, and the first action seen for a key is final. Tombstones are
never filtered here: dropping an expired one would let an older add through.
Source: protocol, "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

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
from airflow_txlog.engine.log.checksum import Checksum
from airflow_txlog.engine.log.columns import FILES, TOMBSTONES, PackedBatch, adds_to_table, pack, removes_to_table
from airflow_txlog.engine.log.names import checksum_name
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.snapshot.commit_times import in_commit_ms
from airflow_txlog.engine.table.snapshot.file_index import FileIndex
from airflow_txlog.engine.table.snapshot.files import action_keys
from airflow_txlog.errors import CorruptTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """One version. If it exists, it has a protocol and metadata."""

    version: int
    protocol: Protocol
    metadata: Metadata
    transactions: Mapping[str, SetTransaction]
    """The latest application transaction of each application id, expired ones included."""
    domains: Mapping[str, DomainMetadata]
    """Domains that were not removed, by name."""
    files: FileIndex
    """The live files."""
    removed_files: FileIndex
    """The tombstones, expired ones included."""
    in_commit_ms: int | None
    """The in-commit timestamp of the version; None where the table has none."""

    @property
    def live(self) -> pa.Table:
        """Schema `FILES`, one row a live file, in no order. Put together when first asked for."""
        return self.files.table

    @property
    def tombstones(self) -> pa.Table:
        """Schema `TOMBSTONES`, one row a removed file, expired ones included. Put together when first asked for."""
        return self.removed_files.table


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


def check_against(state: TableState, checksum: Checksum, table: str) -> None:
    """Raises CorruptTable, naming every field that differs with what both sides say, unless the two agree."""
    differences = [
        f"{name} is {ours!r}, and the checksum says {theirs!r}" for name, ours, theirs in _differences(state, checksum)
    ]
    if differences:
        path = checksum_name(state.version)
        raise CorruptTable(
            f"CorruptTable: version {state.version} of {table} is not what {path} says that it is: "
            f"{'; '.join(differences)}. Nothing was changed. Either a file of the log was lost, damaged or replaced, "
            "or the writer of the checksum was wrong; compare with another reader before you write to the table.",
            table=table,
            path=path,
        )


def _differences(state: TableState, checksum: Checksum) -> Iterator[tuple[str, Any, Any]]:
    live = state.live
    vectors = live.column("deletion_vector")
    ours: dict[str, Any] = {
        "numFiles": live.num_rows,
        "tableSizeBytes": _sum(live.column("size")),
        "numDeletionVectorsOpt": len(vectors) - vectors.null_count,
        "numDeletedRecordsOpt": _sum(pc.struct_field(vectors, "cardinality")),
    }
    theirs: dict[str, Any] = {
        "numFiles": checksum.num_files,
        "tableSizeBytes": checksum.table_size_bytes,
        "numDeletionVectorsOpt": checksum.num_deletion_vectors_opt,
        "numDeletedRecordsOpt": checksum.num_deleted_records_opt,
    }
    if checksum.metadata is not None:
        ours |= _metadata_facts(state.metadata)
        theirs |= _metadata_facts(checksum.metadata)
    if checksum.protocol is not None:
        ours |= _protocol_facts(state.protocol)
        theirs |= _protocol_facts(checksum.protocol)
    if checksum.in_commit_timestamp_opt is not None:
        ours["inCommitTimestampOpt"] = state.in_commit_ms
        theirs["inCommitTimestampOpt"] = checksum.in_commit_timestamp_opt
    if checksum.domain_metadata is not None:
        ours["domainMetadata"] = _domains({name: each.configuration for name, each in state.domains.items()})
        theirs["domainMetadata"] = _domains(
            {each.domain: each.configuration for each in checksum.domain_metadata if not each.removed}
        )
    for transaction in checksum.set_transactions or ():
        known = state.transactions.get(transaction.app_id)
        if known is not None:
            ours[f"setTransactions[{transaction.app_id}]"] = known.version
            theirs[f"setTransactions[{transaction.app_id}]"] = transaction.version
    for name, value in ours.items():
        if theirs[name] is not None and theirs[name] != value:
            yield name, value, theirs[name]


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column, min_count=0).as_py())


def _metadata_facts(metadata: Metadata) -> dict[str, Any]:
    return {
        "metadata.id": metadata.id,
        "metadata.schemaString": metadata.schema_string,
        "metadata.partitionColumns": metadata.partition_columns,
        "metadata.configuration": dict(metadata.configuration),
    }


def _protocol_facts(protocol: Protocol) -> dict[str, Any]:
    return {
        "protocol.minReaderVersion": protocol.min_reader_version,
        "protocol.minWriterVersion": protocol.min_writer_version,
        "protocol.readerFeatures": sorted(protocol.reader_features or ()),
        "protocol.writerFeatures": sorted(protocol.writer_features or ()),
    }


def _domains(configurations: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(configurations.items()))
