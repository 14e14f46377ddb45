"""One version of a table: its schema, its properties and the files that hold its rows.

A snapshot never changes; `refresh` returns a newer one. It holds no open file, and any number of threads may use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.engine.log.actions import Metadata, Protocol, decode_commit, decode_metadata
from airflow_txlog.engine.log.checkpoints.reading import read_checkpoint, read_metadata
from airflow_txlog.engine.log.columns import FILES, Packing
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.log.segment import LogSegment, list_segment, read_at_once, read_commits, warn_once
from airflow_txlog.engine.log.tail import (
    LogTail,
    OwnCommit,
    list_tail,
    proven_by,
    up_to_own_commits,
    verify_own_commits,
)
from airflow_txlog.engine.log.vectors import read_vectors, vector_file
from airflow_txlog.engine.table.predicate import FileQuestion, Predicate, may_hold_match
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.schema import column_mapping
from airflow_txlog.engine.table.schema.features import check_committer, check_readable
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.commit_times import in_commit_ms, list_commits
from airflow_txlog.engine.table.snapshot.file_index import FileIndex
from airflow_txlog.engine.table.snapshot.files import most_rows, vectors_of
from airflow_txlog.engine.table.snapshot.replay import (
    ReplayBase,
    TableState,
    check_against,
    read_checksum,
    replay_newest_first,
)
from airflow_txlog.errors import (
    CorruptCheckpoint,
    CorruptDeletionVector,
    CorruptTable,
    FilesMissing,
    LogGap,
    TableError,
    UnsupportedFeature,
)
from airflow_txlog.locations import readable
from airflow_txlog.storage.base import FileInfo, Store, check_may_read, is_about_bytes

log = logging.getLogger(__name__)
T = TypeVar("T")


class Snapshot:
    """One version of the table at `uri`, made by `load_snapshot` or `refresh`, which check that it can be read."""

    def __init__(
        self,
        store: Store,
        state: TableState,
        commit_file: FileInfo | None,
        checkpoint_files: tuple[FileInfo, ...] = (),
    ) -> None:
        self.store = store
        self.state = state
        self.commit_file = commit_file
        """The commit file of this version as listed, None if log cleanup has removed it."""
        self.checkpoint_files = checkpoint_files
        """The files of the checkpoint, as listed, from which the state was read; none if it was built without one."""
        self.anchor = commit_file or next(iter(checkpoint_files), None)
        """The file by which a later refresh recognizes this log: see `commit.loop`."""

    def __repr__(self) -> str:
        return f"Snapshot({self.uri!r}, version={self.version}, files={self.num_files})"

    @property
    def uri(self) -> str:
        """The canonical URI of the table, without a trailing slash."""
        return self.store.root

    def path_to_read(self, wire_path: str) -> str:
        """Return the store's path of an action's file. Raises OutsideTable unless opened with allow_absolute_paths."""
        path = canonical_path(wire_path, self.uri)
        check_may_read(self.uri, path, self.store.access)
        return path

    @property
    def version(self) -> int:
        """The number of this version, 0 for the first."""
        return self.state.version

    @cached_property
    def timestamp_ms(self) -> int:
        """The time of the commit in milliseconds since the epoch, 0 if the log no longer shows it.

        May list the log: see `commit_times`.
        """
        if self.state.in_commit_ms is not None:
            return self.state.in_commit_ms
        if self.commit_file is None:
            return 0
        adjusted = {commit.info: commit.file_time_ms for commit in list_commits(self.store)}
        # The log may have been cleaned or replaced.
        return adjusted.get(self.commit_file, self.commit_file.modified_ms)

    @property
    def protocol(self) -> Protocol:
        """The protocol of this version."""
        return self.state.protocol

    @property
    def metadata(self) -> Metadata:
        """The metadata of this version."""
        return self.state.metadata

    @property
    def partition_columns(self) -> list[str]:
        """The names of the partition columns, in their order."""
        return list(self.metadata.partition_columns)

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties as set; `table_properties` has the known ones typed, with defaults."""
        return dict(self.metadata.configuration)

    @cached_property
    def table_properties(self) -> TableProperties:
        """The properties that this engine knows, typed. An invalid one raises InvalidProperty when it is read."""
        return TableProperties(self.metadata.configuration, self.uri)

    @cached_property
    def delta_schema(self) -> StructType:
        """The schema in the log, including partition columns; its names are logical."""
        return column_mapping.table_schema(self.metadata, self.uri)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema in Arrow's types, marked with the columns' names in data files if the table maps columns."""
        mode = column_mapping.mapping_mode(self.metadata.configuration, self.uri)
        return column_mapping.arrow_schema(self.delta_schema, mode)

    def with_metadata(self, metadata: Metadata) -> Snapshot:
        """Return the same files and version under metadata that a transaction is about to commit."""
        return Snapshot(self.store, replace(self.state, metadata=metadata), self.commit_file, self.checkpoint_files)

    @property
    def num_files(self) -> int:
        """The number of live files."""
        return self.state.files.count

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of the live files."""
        sizes = self.state.files.select(["size"]).column("size")
        return sum(sum(chunk.to_pylist()) for chunk in sizes.chunks)

    def application_version(self, app_id: str) -> int | None:
        """Return the recorded version of an application transaction, also if it has expired, or None.

        None means "not done" only for work younger than delta.setTransactionRetentionDuration (soundness B4).
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
        """Return the live files that may hold a row satisfying the predicate: a `FILES` table, or some of its columns.

        The result may include files without such a row but never omits one that has it. Without `stats` it is several
        times smaller. Raises InvalidPredicate, UnknownColumn.
        Source: protocol, "Per-file Statistics" and "Partition Value Serialization".
        """
        if predicate is None:
            return self.state.files.select(columns)
        read = self.read_predicate(predicate, parameters=parameters, time_zone=time_zone)
        trust = self.table_properties.trust_statistics
        return self.state.files.where(FileQuestion(read, self.delta_schema, self.partition_columns, trust), columns)

    def read_predicate(
        self, predicate: str | Predicate, *, parameters: Mapping[str, object] | None = None, time_zone: str = "UTC"
    ) -> Predicate:
        """Return the predicate in the closed grammar, read with this version's schema."""
        if isinstance(predicate, Predicate):
            return predicate
        return read_predicate(predicate, self.delta_schema, parameters=parameters, time_zone=time_zone)

    def may_hold_match(self, predicate: Predicate, files: pa.Table) -> pa.BooleanArray:
        """Return which of these files may hold a row satisfying the predicate, as the files of this version."""
        trust = self.table_properties.trust_statistics
        return may_hold_match(predicate, files, self.delta_schema, self.partition_columns, trust_statistics=trust)

    def deleted_rows(self, files: pa.Table) -> list[RowPositions | None]:
        """Return the deleted rows of each file of a `FILES` table, None without a vector. Raises as `read_vectors`."""
        vectors = vectors_of(files)
        stats = files.column("stats").take(pa.array(list(vectors), pa.int64())).to_pylist()
        wanted = [(vector, most_rows(text, vector)) for vector, text in zip(vectors.values(), stats, strict=True)]
        found: list[RowPositions | None] = [None] * files.num_rows
        for number, deleted in zip(vectors, read_vectors(self.store, wanted), strict=True):
            found[number] = deleted
        return found

    def verify_checksum(self) -> bool:
        """Return whether this version has a checksum file. Raises CorruptTable, naming every field that differs."""
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
        contents: Mapping[int, bytes] | None = None,
        handed: Callable[[], Mapping[int, bytes]] = dict,
    ) -> Snapshot:
        """Return the latest version, or `version` (not before this one), reading only the new commits.

        If nothing is new, it returns itself after one listing; the table is read anew if the log is another one now.

        `own`: commits that were acknowledged to this process; CommitOverwritten is raised if one is gone. `contents`:
        bytes of commits, by version, that were read before; `handed` returns more of them. Those count that the etags
        of their files prove. Raises as `load_snapshot`.
        """
        tail = list_tail(self.store, min([self.version, *(commit.version for commit in own)]))
        tail = up_to_own_commits(self.store, tail, own)
        proven = proven_by(tail, contents or {}) | verify_own_commits(self.store, tail, own)
        if not is_same_log(self.store, tail, self.version, self.commit_file):
            return load_snapshot(self.store, version)
        try:
            newer = tail.after(self.version)
            if version is not None:
                newer = newer[: max(0, version - self.version)]
            if not newer:
                return self
            if not proven.keys() >= set(newer):
                proven |= proven_by(tail, handed())
            segment = LogSegment(
                version=self.version + len(newer), checkpoint=None, commits=newer, commit_file=newer[-1]
            )
            return _checked(_build(self.store, self.state, segment, proven, self.checkpoint_files))
        except (LogGap, FileNotFoundError):
            return load_snapshot(self.store, version)


def is_same_log(store: Store, tail: LogTail, version: int, commit_file: FileInfo | None) -> bool:
    """Return whether the log still has this commit file (None: has no file) at its version."""
    if commit_file is None:
        return tail.latest >= version and version not in tail.commits
    # A listing may lag behind; the store's answer for the file counts.
    return tail.commits.get(version) == commit_file or store.stat(commit_file.path) == commit_file


def load_snapshot(store: Store, version: int | None = None) -> Snapshot:
    """Return the snapshot of `version`, or of the latest version.

    A checkpoint that cannot be read is replaced, with a warning, by another way to the same version. Without one, or if
    it is readable and lacks something that the protocol demands, its error is raised.

    Raises TableNotFound, VersionNotFound, CorruptTable (also LogGap), UnsupportedFeature.
    """

    def read(segment: LogSegment) -> Snapshot:
        contents = read_at_once(store, segment)
        return _build(store, _checkpoint_base(store, segment, contents), segment, contents)

    return _checked(_from_usable(store, version, read))


def rebuilt_without(
    store: Store, version: int, checkpoints: Collection[str], *, passes_over_damaged: bool = False
) -> Snapshot | None:
    """Return a version rebuilt from the log without these checkpoints (`CheckpointFiles.path`); None if impossible.

    `passes_over_damaged`: a checkpoint that cannot be read is left out, too. Raises FileNotFoundError for a file that
    was listed and is gone, and the errors of the store.
    """
    without = set(checkpoints)
    while True:
        segment = None
        try:
            segment = list_segment(store, version, without=without)
            return _checked(_build(store, _checkpoint_base(store, segment), segment))
        except (TableError, UnsupportedFeature) as error:
            base = segment.checkpoint if segment is not None else None
            if not isinstance(error, CorruptCheckpoint) or base is None or not passes_over_damaged:
                return None
            without.add(base.path)
        except OSError as error:
            if not is_about_bytes(error):
                raise
            return None
        # Arrow's and msgspec's errors, and Python's, for actions of another shape.
        except (pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            return None


def latest_metadata(store: Store) -> Metadata:
    """Return the latest metadata, also of a table that cannot be read here. Raises TableNotFound, CorruptTable."""
    return _from_usable(store, None, lambda segment: _metadata_of(store, segment))


def _checked(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot if its rows can be read here. Raises UnsupportedFeature, CorruptTable."""
    metadata = snapshot.metadata
    # Without a schema, only the log can be read.
    schema = StructType(()) if metadata.schema_string is None else snapshot.delta_schema
    check_readable(snapshot.protocol, metadata, schema, snapshot.uri)
    check_committer(snapshot.protocol, metadata.configuration, snapshot.store)
    return snapshot


def _from_usable(store: Store, version: int | None, read: Callable[[LogSegment], T]) -> T:
    """Return the result of `read` for a version's segment, passing over damaged checkpoints."""
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
            # Log cleanup may remove a listed file; the next listing begins at a later checkpoint.
            if was_gone:
                raise LogGap(
                    f"{store.root}: a file of the log was listed twice and is not there: {error}. Nothing was read.",
                    table=store.root,
                ) from error
            was_gone = True


def _segment_past(
    store: Store, version: int | None, latest_seen: int, unreadable: Mapping[str, CorruptCheckpoint]
) -> LogSegment:
    """Return a segment without these checkpoints, or raise the error of the first of them."""
    try:
        segment = list_segment(store, version, without=unreadable)
    except TableError as error:
        if not unreadable:
            raise
        raise next(iter(unreadable.values())) from error
    if unreadable and segment.version < latest_seen:
        # A later listing that shows less must not lead to an older table.
        raise next(iter(unreadable.values()))
    return segment


def _checkpoint_base(store: Store, segment: LogSegment, contents: Mapping[FileInfo, bytes] | None = None) -> ReplayBase:
    if segment.checkpoint is None:
        return ReplayBase()
    content = read_checkpoint(store, segment.checkpoint, Packing(store.limits), contents)
    return ReplayBase(
        protocol=content.protocol,
        metadata=content.metadata,
        transactions=dict(content.transactions),
        domains=dict(content.domains),
        files=FileIndex.of_packed(FILES, content.files, store.root, store.limits),
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
    store: Store,
    base: ReplayBase,
    segment: LogSegment,
    contents: Mapping[FileInfo, bytes] | None = None,
    checkpoint_files: tuple[FileInfo, ...] = (),
) -> Snapshot:
    """Return the snapshot of the segment's version. `contents`: bytes of commits that were read before.

    `checkpoint_files`: the checkpoint that `base` was read from, if the segment has none.
    """
    commits = read_commits(store, segment, contents)
    commit_file = segment.commit_file
    state = replay_newest_first(base, commits, root=store.root, version=segment.version)
    if not segment.commits and commit_file is not None:
        # Only the commit file has the time of a version that is read entirely from a checkpoint.
        properties = TableProperties(state.metadata.configuration, store.root)
        if properties.in_commit_start is not None:
            info = decode_commit(state.version, store.read(commit_file.path), commit_file.path).info
            state = replace(state, in_commit_ms=in_commit_ms(properties, state.version, info))
    return Snapshot(
        store, state, commit_file, checkpoint_files if segment.checkpoint is None else tuple(segment.checkpoint.files)
    )


def is_missing_from(snapshot: Snapshot, error: CorruptTable) -> bool:
    """Return whether the error is about a missing file that this version names: a live file, or its vector."""
    if not error.is_missing or error.path is None:
        return False
    root = snapshot.uri
    if isinstance(error, CorruptDeletionVector):
        vectors = vectors_of(snapshot.files(columns=["deletion_vector"])).values()
        return error.path in {vector_file(each.storage_type, each.path_or_inline_dv, root) for each in vectors}
    paths = snapshot.files(columns=["path"]).column("path").to_pylist()
    return any(readable(root, canonical_path(path, root)) == error.path for path in paths)


def vacuumed(snapshot: Snapshot, newest: Snapshot, error: CorruptTable) -> FilesMissing:
    """Return the error of a version of which a VACUUM has deleted the file that `error` is about."""
    return FilesMissing(
        f"FilesMissing: version {snapshot.version} of {snapshot.uri} cannot be read any more: {error.path} is not "
        f"there. A later version removed it and a VACUUM has deleted it; the latest version is {newest.version}. Read "
        "a later version; if a task has pinned this one for its run, clear that task.",
        table=snapshot.uri,
        version=snapshot.version,
        count=1,
        examples=[str(error.path)],
    )
