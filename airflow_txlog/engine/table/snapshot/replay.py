"""The state of one version of a table, replayed from the actions of its log; and checked against its checksum file.

The invariant: the newest action of a file wins. A file is known by its key, the canonical path with the id of its
deletion vector. Commits are read newest first, and the first action seen for a key is final. Tombstones are never
filtered here: dropping an expired one would let an older add through. Source: protocol, "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.actions import (
    UNREADABLE,
    Add,
    Commit,
    DomainMetadata,
    Int64,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
)
from airflow_txlog.engine.log.columns import FILES, TOMBSTONES, PackedBatch, adds_to_table, pack, removes_to_table
from airflow_txlog.engine.log.names import checksum_name
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.snapshot.commit_times import in_commit_ms
from airflow_txlog.engine.table.snapshot.file_index import FileIndex
from airflow_txlog.engine.table.snapshot.files import action_keys
from airflow_txlog.errors import CorruptTable
from airflow_txlog.storage.base import Store

_Action = TypeVar("_Action", Add, Remove)

ENGINES_KEPT = 5
"""How many of the newest commits are checked for their writer."""

# Actions that become columns at once (as Python objects they take five times the memory), and rows of a chunk.
_ACTIONS_AT_ONCE = 2048
_CHUNK_ROWS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBase:
    """The start of a replay: the content of a checkpoint or an earlier state; nothing for version 0."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    transactions: Mapping[str, SetTransaction] = field(default_factory=dict)
    """The latest application transaction of each application id, expired ones included."""
    domains: Mapping[str, DomainMetadata] = field(default_factory=dict)
    """Domains that were not removed, by name."""
    files: FileIndex = field(default_factory=lambda: FileIndex(FILES))
    """The live files."""
    removed_files: FileIndex = field(default_factory=lambda: FileIndex(TOMBSTONES))
    """The tombstones, expired ones included."""
    engines: Mapping[int, str | None] = field(default_factory=dict)
    """The writers of the last ENGINES_KEPT commits by version, as far as these were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState(ReplayBase):
    """One version, with a protocol and metadata. Its files are Arrow tables of the fields as they were written."""

    version: int
    protocol: Protocol
    metadata: Metadata
    in_commit_ms: int | None
    """The in-commit timestamp of the version, None if the table has none."""

    @property
    def live(self) -> pa.Table:
        """One row per live file, schema `FILES`, in no order. Put together when first used."""
        return self.files.table

    @property
    def tombstones(self) -> pa.Table:
        """One row per removed file, schema `TOMBSTONES`, expired ones included. Put together when first used."""
        return self.removed_files.table


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
            self._tabulate()
        if len(self._tables) * _ACTIONS_AT_ONCE >= _CHUNK_ROWS:
            self._pack()

    def chunks(self) -> list[PackedBatch]:
        """Return all actions, in the order in which they were added."""
        if self._waiting:
            self._tabulate()
        if self._tables:
            self._pack()
        return self._chunks

    def _tabulate(self) -> None:
        self._tables.append(self.to_table(self._waiting))
        self._waiting = []

    def _pack(self) -> None:
        self._chunks += map(pack, pa.concat_tables(self._tables).combine_chunks().to_batches())
        self._tables = []


@dataclass(slots=True)
class _Newest:
    """The content of commits, newest first; the first action on a subject stays."""

    seen: set[str] = field(default_factory=set)
    adds: _Columns[Add] = field(default_factory=lambda: _Columns(adds_to_table))
    removes: _Columns[Remove] = field(default_factory=lambda: _Columns(removes_to_table))
    info: Mapping[str, Any] | None = None
    """The commitInfo of the newest commit."""
    is_started: bool = False
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    transactions: dict[str, SetTransaction] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    engines: dict[int, str | None] = field(default_factory=dict)

    def look_at(self, commit: Commit, root: str) -> None:
        if not self.is_started:
            self.info, self.is_started = commit.info, True
        # A compaction, which stands for several commits, has no commitInfo.
        if commit.info is not None and len(self.engines) < ENGINES_KEPT:
            self.engines[commit.version] = commit.engine
        # A commit that adds and removes one key breaks the protocol; the add wins, so that no row is lost.
        self.adds.extend(self._first_spoken_of(commit.adds, root))
        self.removes.extend(self._first_spoken_of(commit.removes, root))
        self.protocol = self.protocol or commit.protocol
        self.metadata = self.metadata or commit.metadata
        for transaction in commit.transactions:
            self.transactions.setdefault(transaction.app_id, transaction)
        for domain in commit.domains:
            self.domains.setdefault(domain.domain, domain)

    def _first_spoken_of(self, actions: list[_Action], root: str) -> list[_Action]:
        """Return the actions with new keys, which are known from now on."""
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


def replay_newest_first(base: ReplayBase, commits: Iterable[Commit], *, root: str, version: int) -> TableState:
    """Return the state after `base` and then `commits` (descending, contiguous), of which the first is `version`.

    It costs as much as the commits hold; each is released before the next is taken. Raises CorruptTable without
    protocol or metadata.
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
        engines={
            number: engine
            for number, engine in {**base.engines, **newest.engines}.items()
            if number > version - ENGINES_KEPT
        },
        in_commit_ms=in_commit_ms(TableProperties(metadata.configuration, root), version, newest.info),
    )


# --- the checksum file -----------------------------------------------------------------------------------------------


class Checksum(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The totals and the metadata in `N.crc`, as its writer states them; None for the fields that it left out.

    Nothing in it ever decides what a table holds. Source: protocol, "Version Checksum File".
    """

    table_size_bytes: Int64 | None = None
    num_files: Int64 | None = None
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    in_commit_timestamp_opt: Int64 | None = None
    set_transactions: list[SetTransaction] | None = None
    domain_metadata: list[DomainMetadata] | None = None
    num_deleted_records_opt: Int64 | None = None
    num_deletion_vectors_opt: Int64 | None = None


_decoder = msgspec.json.Decoder(Checksum)


def read_checksum(store: Store, version: int) -> Checksum | None:
    """Return the checksum of the version, None without one. Raises CorruptTable (path) for a malformed file."""
    path = checksum_name(version)
    try:
        return _decoder.decode(store.read(path))
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise CorruptTable(
            f"CorruptTable: {path} of {store.root} is no checksum of a version: {error}. The table "
            "can be read without this file. You may delete it.",
            table=store.root,
            path=path,
        ) from error


def check_against(state: TableState, checksum: Checksum, table: str) -> None:
    """Raise CorruptTable, naming every differing field, unless the state agrees with the version's checksum file.

    The checksum may omit fields. Source: protocol, "Version Checksum File".
    """
    differences = [
        f"{name} is {ours!r}, and the checksum says {theirs!r}"
        for name, ours, theirs in _facts(state, checksum)
        if theirs is not None and theirs != ours
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


def _facts(state: TableState, checksum: Checksum) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each field with its value in the state and in the checksum."""
    live = state.live
    vectors = live.column("deletion_vector")
    yield "numFiles", live.num_rows, checksum.num_files
    yield "tableSizeBytes", _sum(live.column("size")), checksum.table_size_bytes
    yield "numDeletionVectorsOpt", len(vectors) - vectors.null_count, checksum.num_deletion_vectors_opt
    yield "numDeletedRecordsOpt", _sum(pc.struct_field(vectors, "cardinality")), checksum.num_deleted_records_opt
    if checksum.metadata is not None:
        ours, theirs = state.metadata, checksum.metadata
        yield "metadata.id", ours.id, theirs.id
        yield "metadata.schemaString", ours.schema_string, theirs.schema_string
        yield "metadata.partitionColumns", ours.partition_columns, theirs.partition_columns
        yield "metadata.configuration", dict(ours.configuration), dict(theirs.configuration)
    if checksum.protocol is not None:
        held, stated = state.protocol, checksum.protocol
        yield "protocol.minReaderVersion", held.min_reader_version, stated.min_reader_version
        yield "protocol.minWriterVersion", held.min_writer_version, stated.min_writer_version
        yield "protocol.readerFeatures", sorted(held.reader_features or ()), sorted(stated.reader_features or ())
        yield "protocol.writerFeatures", sorted(held.writer_features or ()), sorted(stated.writer_features or ())
    yield "inCommitTimestampOpt", state.in_commit_ms, checksum.in_commit_timestamp_opt
    if checksum.domain_metadata is not None:
        domains = {each.domain: each.configuration for each in checksum.domain_metadata if not each.removed}
        known = {name: state.domains[name].configuration for name in sorted(state.domains)}
        yield "domainMetadata", known, dict(sorted(domains.items()))
    for transaction in checksum.set_transactions or ():
        found = state.transactions.get(transaction.app_id)
        if found is not None:
            yield f"setTransactions[{transaction.app_id}]", found.version, transaction.version


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column, min_count=0).as_py())
