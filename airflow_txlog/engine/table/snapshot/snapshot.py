"""One version of a table, read: its schema, its properties and the files that hold its rows.

A snapshot never changes; `refresh` gives a newer one. It holds no open file, and any number of threads may use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.engine.log.actions import Metadata, Protocol, decode_commit, decode_metadata
from airflow_txlog.engine.log.checkpoints.reading import read_checkpoint, read_metadata
from airflow_txlog.engine.log.checksum import read_checksum
from airflow_txlog.engine.log.columns import FILES, PackedBatch, pack
from airflow_txlog.engine.log.paths import store_path
from airflow_txlog.engine.log.segment import LogSegment, list_segment, read_commits, warn_once
from airflow_txlog.engine.log.tail import LogTail, OwnCommit, list_tail, up_to_own_commits, verify_own_commits
from airflow_txlog.engine.log.vectors import read_vectors, vector_file
from airflow_txlog.engine.table.predicate import FileQuestion, Predicate, may_hold_match
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.schema import column_mapping
from airflow_txlog.engine.table.schema.features import check_readable
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.commit_times import in_commit_ms, list_commits
from airflow_txlog.engine.table.snapshot.file_index import FileIndex
from airflow_txlog.engine.table.snapshot.files import most_rows, vectors_of
from airflow_txlog.engine.table.snapshot.replay import (
    ReplayBase,
    TableState,
    base_of,
    check_against,
    replay_newest_first,
)
from airflow_txlog.errors import CorruptCheckpoint, CorruptDeletionVector, CorruptTable, LogGap, TableError
from airflow_txlog.locations import readable
from airflow_txlog.storage.base import FileInfo, Store, check_may_read

log = logging.getLogger(__name__)
T = TypeVar("T")


class Snapshot:
    """One version of the table at `uri`.

    Made by `load_snapshot` or `refresh`, which refuse a table with a feature that cannot be read here.
    """

    def __init__(
        self, store: Store, state: TableState, commit_file: FileInfo | None, checkpoint_file: FileInfo | None = None
    ) -> None:
        self.store = store
        self.state = state
        self.commit_file = commit_file
        """The commit file of this version as it was listed; None where log cleanup had taken it."""
        self.anchor = commit_file or checkpoint_file
        """The file of the log by which a later look recognizes this log: see `commit.loop`."""

    def __repr__(self) -> str:
        return f"Snapshot({self.uri!r}, version={self.version}, files={self.num_files})"

    @property
    def uri(self) -> str:
        return self.store.root

    def path_to_read(self, wire_path: str) -> str:
        """What the store calls the file of an action with this path (as on the wire).

        Raises OutsideTable for one outside of the table, unless the table was opened with allow_absolute_paths.
        """
        path = store_path(wire_path, self.uri)
        check_may_read(self.uri, path, self.store.access)
        return path

    @property
    def version(self) -> int:
        return self.state.version

    @cached_property
    def timestamp_ms(self) -> int:
        """When this version was committed, in milliseconds since the epoch; 0 where the log no longer says.

        Where the table has no in-commit timestamps, the first look lists the log: see `commit_times`.
        """
        if self.state.in_commit_ms is not None:
            return self.state.in_commit_ms
        if self.commit_file is None:
            return 0
        adjusted = {commit.info: commit.file_time_ms for commit in list_commits(self.store)}
        # Not listed any more: the log was cleaned, or is another one by now.
        return adjusted.get(self.commit_file, self.commit_file.modified_ms)

    @property
    def protocol(self) -> Protocol:
        return self.state.protocol

    @property
    def metadata(self) -> Metadata:
        return self.state.metadata

    @property
    def partition_columns(self) -> list[str]:
        return list(self.metadata.partition_columns)

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties as they were set; `table_properties` has the known ones typed, with defaults."""
        return dict(self.metadata.configuration)

    @cached_property
    def table_properties(self) -> TableProperties:
        return TableProperties(self.metadata.configuration, self.uri)

    @cached_property
    def delta_schema(self) -> StructType:
        """The schema as the log states it, partition columns included; its names are the logical ones."""
        return column_mapping.table_schema(self.metadata, self.uri)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema in Arrow's types: timestamps in microseconds, UTC.

        Where the table has column mapping, the fields say how data files hold them (`datafiles/parquet/physical`).
        """
        mode = column_mapping.mapping_mode(self.metadata.configuration, self.uri)
        return column_mapping.arrow_schema(self.delta_schema, mode)

    def with_metadata(self, metadata: Metadata) -> Snapshot:
        """The same files and version as they are to be read under metadata that a transaction is about to commit."""
        return Snapshot(self.store, replace(self.state, metadata=metadata), self.commit_file, self.anchor)

    @property
    def num_files(self) -> int:
        return self.state.files.count

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of the live files."""
        sizes = self.state.files.select(["size"]).column("size")
        return sum(sum(chunk.to_pylist()) for chunk in sizes.chunks)

    def application_version(self, app_id: str) -> int | None:
        """The recorded version of an application transaction, or None where the table has none for this id.

        One that delta.setTransactionRetentionDuration has expired is returned while it is still there: recorded means
        done, however long ago. None means "not done" only for work younger than that retention (soundness B4).
        """
        transaction = self.state.transactions.get(app_id)
        return None if transaction is None else transaction.version

    def files(
        self,
        predicate: str | Predicate | None = None,
        *,
        parameters: Mapping[str, object] | None = None,
        time_zone: str = "UTC",
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The live files that may hold a row satisfying the predicate, as a table of schema `FILES`, or of some of its
        columns: without `stats` it is several times smaller.

        May include a file with no such row; never leaves out one that has. Raises InvalidPredicate, UnknownColumn.
        Source: protocol, "Per-file Statistics" and "Partition Value Serialization".
        """
        if predicate is None:
            return self.state.files.select(columns)
        read = self.read_predicate(predicate, parameters=parameters, time_zone=time_zone)
        trust = self.table_properties.trust_statistics
        return self.state.files.where(FileQuestion(read, self.delta_schema, self.partition_columns, trust), columns)

    def read_predicate(
        self,
        predicate: str | Predicate,
        *,
        parameters: Mapping[str, object] | None = None,
        time_zone: str = "UTC",
    ) -> Predicate:
        """The predicate in the engine's closed grammar, read against this version's schema."""
        if isinstance(predicate, Predicate):
            return predicate
        return read_predicate(predicate, self.delta_schema, parameters=parameters, time_zone=time_zone)

    def may_hold_match(self, predicate: Predicate, files: pa.Table) -> pa.BooleanArray:
        """Which of these files may hold a row satisfying the predicate, by this version's schema and properties."""
        trust = self.table_properties.trust_statistics
        return may_hold_match(predicate, files, self.delta_schema, self.partition_columns, trust_statistics=trust)

    def deleted_rows(self, files: pa.Table) -> list[RowPositions | None]:
        """Of each of these files (rows of a table `FILES`), in order: the rows that its vector deletes, if any.

        Each file of vectors is read once. Raises what `read_vectors` raises.
        """
        vectors = vectors_of(files)
        stats = files.column("stats").take(pa.array(list(vectors), pa.int64())).to_pylist()
        wanted = [(vector, most_rows(text, vector)) for vector, text in zip(vectors.values(), stats, strict=True)]
        found: list[RowPositions | None] = [None] * files.num_rows
        for number, deleted in zip(vectors, read_vectors(self.store, wanted), strict=True):
            found[number] = deleted
        return found

    def verify_checksum(self) -> bool:
        """Whether this version has a checksum file, which then agrees with what was read. One request.

        Raises CorruptTable (path), naming every field that differs, or where the file is no checksum.
        """
        checksum = read_checksum(self.store, self.version)
        if checksum is None:
            return False
        check_against(self.state, checksum, self.uri)
        return True

    def refresh(
        self,
        version: int | None = None,
        *,
        own: Sequence[OwnCommit] = (),
        contents: Mapping[FileInfo, bytes] | None = None,
    ) -> Snapshot:
        """The latest version, or `version` (not before this one), reading only the commits that are not known yet.

        Itself where there is nothing new, for the price of one listing. Where the log was cleaned past this version,
        or it is another log (the table was made again), the table is read afresh: a reader gets the new table.

        `own` are commits that were acknowledged to this process: CommitOverwritten is raised where one is not there
        any more. `contents` are bytes of commits that were read before, by their files.

        Raises what `load_snapshot` raises.
        """
        tail = list_tail(self.store, min([self.version, *(commit.version for commit in own)]))
        tail = up_to_own_commits(self.store, tail, own)
        contents = {**(contents or {}), **verify_own_commits(self.store, tail, own)}
        if not self._is_in(tail):
            return load_snapshot(self.store, version)
        try:
            newer = tail.after(self.version)
            if version is not None:
                newer = newer[: max(0, version - self.version)]
            if not newer:
                return self
            segment = LogSegment(
                version=self.version + len(newer), checkpoint=None, commits=newer, commit_file=newer[-1]
            )
            return _checked(_build(self.store, base_of(self.state), segment, contents))
        except (LogGap, FileNotFoundError):
            return load_snapshot(self.store, version)

    def _is_in(self, tail: LogTail) -> bool:
        """Whether the log is still the one that holds this version; where a listing lags, the file's name counts."""
        found = tail.commits.get(self.version)
        if self.commit_file is None:
            return tail.latest >= self.version and found is None
        return found == self.commit_file or self.store.stat(self.commit_file.path) == self.commit_file


def load_snapshot(store: Store, version: int | None = None) -> Snapshot:
    """The snapshot of `version`, or of the latest one.

    A checkpoint whose bytes cannot be read is passed over, with a warning that names it, for another one of its
    version, an earlier one or the first commit, and never for an earlier version of the table. Where nothing else
    leads to the version, the error of the newest checkpoint is raised; so it is where a checkpoint reads well and lacks
    what the protocol demands, because then its writer cannot be trusted with the rest of the log either.

    Raises TableNotFound, VersionNotFound, CorruptTable (also LogGap), UnsupportedFeature.
    """
    return _checked(_load(store, version))


def latest_metadata(store: Store) -> Metadata:
    """The metadata of the latest version, also where the table has a feature that cannot be read here.

    Reads no file actions: the commits back to the last one with metadata, or of a checkpoint what describes the table.
    Raises TableNotFound, CorruptTable.
    """
    return _from_usable(store, None, lambda segment: _metadata_of(store, segment))


def _checked(snapshot: Snapshot) -> Snapshot:
    """The snapshot, where its rows can be read here. Raises UnsupportedFeature, CorruptTable."""
    metadata = snapshot.metadata
    # Without a schema only the log can be read; asking for the schema raises.
    schema = StructType(()) if metadata.schema_string is None else snapshot.delta_schema
    check_readable(snapshot.protocol, metadata, schema, snapshot.uri)
    return snapshot


def _load(store: Store, version: int | None) -> Snapshot:
    return _from_usable(store, version, lambda segment: _build(store, _checkpoint_base(store, segment), segment))


def _from_usable(store: Store, version: int | None, read: Callable[[LogSegment], T]) -> T:
    """What `read` finds in the files that make up a version; one with a damaged checkpoint is passed over."""
    unreadable: dict[str, CorruptCheckpoint] = {}
    latest_seen = -1
    was_gone = False
    while True:
        segment = _segment_past(store, version, latest_seen, unreadable)
        latest_seen = segment.version
        try:
            return read(segment)
        except CorruptCheckpoint as error:
            if segment.checkpoint is None or segment.checkpoint.path in unreadable or not error.damaged:
                raise
            warn_once(log, store.root, segment.checkpoint.path, str(error))
            unreadable[segment.checkpoint.path] = error
        except FileNotFoundError as error:
            # Log cleanup may take what was listed a moment ago; the next listing begins at a later checkpoint.
            if was_gone:
                raise LogGap(
                    f"{store.root}: a file of the log was listed twice and is not there: {error}. Nothing was read.",
                    table=store.root,
                ) from error
            was_gone = True


def _segment_past(
    store: Store, version: int | None, latest_seen: int, unreadable: Mapping[str, CorruptCheckpoint]
) -> LogSegment:
    """The segment that needs none of these checkpoints; the error of the first of them where there is no such."""
    try:
        segment = list_segment(store, version, without=unreadable)
    except TableError as error:
        if not unreadable:
            raise
        raise next(iter(unreadable.values())) from error
    if unreadable and segment.version < latest_seen:
        # A listing that shows less than an earlier one is no reason to give an older table.
        raise next(iter(unreadable.values()))
    return segment


def _checkpoint_base(store: Store, segment: LogSegment) -> ReplayBase:
    if segment.checkpoint is None:
        return ReplayBase()
    packed: list[PackedBatch] = []

    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        packed.append(pack(batch, store.limits.packed_bytes))
        return packed[-1].light

    content = read_checkpoint(store, segment.checkpoint, keep)
    return ReplayBase(
        protocol=content.protocol,
        metadata=content.metadata,
        transactions=dict(content.transactions),
        domains=dict(content.domains),
        files=FileIndex.of_packed(FILES, packed, store.root, store.limits),
        removed_files=FileIndex.of(content.removes, store.root, store.limits),
    )


def _metadata_of(store: Store, segment: LogSegment) -> Metadata:
    for info in reversed(segment.commits):
        metadata = decode_metadata(store.read(info.path), info.path)
        if metadata is not None:
            return metadata
    if segment.checkpoint is None:
        raise CorruptTable(
            f"{store.root}: the log up to version {segment.version} holds no metaData action, so the table cannot be "
            "read.",
            table=store.root,
        )
    return read_metadata(store, segment.checkpoint)


def _build(
    store: Store, base: ReplayBase, segment: LogSegment, contents: Mapping[FileInfo, bytes] | None = None
) -> Snapshot:
    """The snapshot of the segment's version. `contents` are bytes of commits that were read before."""
    commits = read_commits(store, segment, contents)
    commit_file = segment.commit_file
    state = replay_newest_first(base, commits, root=store.root, version=segment.version)
    # A version that a checkpoint holds alone may still have its commit file: it has the time of the version.
    if not segment.commits and commit_file is not None:
        state = _with_in_commit_timestamp(store, state, commit_file)
    checkpoint_file = None if segment.checkpoint is None else segment.checkpoint.files[0]
    return Snapshot(store, state, commit_file, checkpoint_file)


def _with_in_commit_timestamp(store: Store, state: TableState, commit_file: FileInfo) -> TableState:
    """The state of a version that came whole from a checkpoint, with the time that only its commit file knows."""
    properties = TableProperties(state.metadata.configuration, store.root)
    if properties.in_commit_start is None:
        return state
    info = decode_commit(state.version, store.read(commit_file.path), commit_file.path).info
    return replace(state, in_commit_ms=in_commit_ms(properties, state.version, info))


def is_missing_from(snapshot: Snapshot, error: CorruptTable) -> bool:
    """Whether the error is about a file that is not there and that this version names: a live file, or its vector."""
    if not error.is_missing or error.path is None:
        return False
    root = snapshot.uri
    if isinstance(error, CorruptDeletionVector):
        vectors = vectors_of(snapshot.files(columns=["deletion_vector"])).values()
        return error.path in {vector_file(each.storage_type, each.path_or_inline_dv, root) for each in vectors}
    paths = snapshot.files(columns=["path"]).column("path").to_pylist()
    return any(readable(root, store_path(path, root)) == error.path for path in paths)
