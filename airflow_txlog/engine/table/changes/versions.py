"""What each commit after a version did: for a reader that follows a table and wants no version twice or left out.

The invariant: the commits come ascending and without a gap, or an error says what is missing; nothing else is read.
Source: protocol, "Delta Log Entries".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.change_rows import CHANGE_TYPE_COLUMN, CHANGE_TYPE_FIELD, DELETE, INSERT
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.conversion import nullable_schema
from airflow_txlog.engine.log.actions import (
    Add,
    Cdc,
    Commit,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
    decode_commit,
)
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.log.names import commit_name, version_prefix
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.log.tail import LogTail, list_tail
from airflow_txlog.engine.table.schema.column_mapping import partition_keys, table_schema
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.types import ArrayType, DataType, MapType, StructType
from airflow_txlog.engine.table.snapshot.commit_times import commits_among, in_commit_ms, list_commits
from airflow_txlog.engine.table.snapshot.files import record_count
from airflow_txlog.engine.table.snapshot.scan import FileRows, data_file, partition_constants, read_file, selected
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, is_same_log
from airflow_txlog.errors import (
    CorruptDataFile,
    CorruptDeletionVector,
    CorruptTable,
    FilesMissing,
    LogGap,
    TableReplaced,
    UnsupportedFeature,
    VersionNotFound,
)
from airflow_txlog.storage.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChanges:
    """What one commit did. Lists keep the order of its file."""

    version: int
    timestamp_ms: int
    """Milliseconds since the epoch, as `Snapshot.timestamp_ms` of this version."""
    info: Mapping[str, Any]
    """commitInfo as it was written; empty where the commit has none."""
    adds: list[Add]
    removes: list[Remove]
    cdc: list[Cdc]
    metadata: Metadata | None
    """The new metadata (schema, properties), None where it did not change."""
    protocol: Protocol | None
    """The new protocol, None where it did not change."""
    transactions: list[SetTransaction]
    domains: list[DomainMetadata]

    @property
    def operation(self) -> str | None:
        """What the writer called it: WRITE, DELETE, MERGE, OPTIMIZE, …; None where it did not say."""
        name = self.info.get("operation")
        return name if isinstance(name, str) else None

    @property
    def data_change(self) -> bool:
        """Whether rows were added or removed; False for a compaction, a change of properties, a record in the log."""
        return any(add.data_change for add in self.adds) or any(remove.data_change for remove in self.removes)


def changes_since(snapshot: Snapshot, start: int) -> Iterator[VersionChanges]:
    """What each commit after version `start` did, up to the snapshot's version, ascending; -1: from the first on.

    The log is listed at once, so an error about what it no longer holds comes before anything is yielded; a commit is
    read when it is asked for.

    Raises VersionNotFound (earliest, latest) where `start` is later than the snapshot or the log was cleaned past it,
    LogGap where a commit between is missing, TableReplaced where the log is another one, CorruptCommit.
    """
    store, end, end_file, properties = snapshot.store, snapshot.version, snapshot.commit_file, snapshot.table_properties
    if not -1 <= start <= end:
        raise _not_found(store.root, start, None, end)
    if start == end:
        return iter(())
    # The times of files are adjusted over the whole log; in-commit timestamps are what they are.
    first = start + 1 if _has_own_times(properties, start + 1) else 0
    tail = list_tail(store, first, complete_after=start)
    if end_file is not None:
        if not is_same_log(store, tail, end, end_file):
            raise TableReplaced(
                f"{store.root}: {end_file.path} is not the file that version {end} was read from, so the table was "
                "dropped and created again, or its log was rewritten. Nothing was read. Open the table again.",
                table=store.root,
            )
        tail = replace(tail, commits={**tail.commits, end: end_file})
    _check_complete(tail, start, end)
    return _read(store, tail, start, end, properties)


def _check_complete(tail: LogTail, start: int, end: int) -> None:
    # By what is there: a file of the log may claim a version that is billions away.
    held = sorted(version for version in tail.commits if start < version <= end)
    if len(held) == end - start:
        return
    if held == list(range(end - len(held) + 1, end + 1)):
        # Cleaned from the front, as log cleanup does.
        raise _not_found(tail.table, start, held[0] if held else None, end)
    missing = next(version for version in range(start + 1, end + 1) if version not in tail.commits)
    raise _gap(tail.table, missing, start)


def _read(store: Store, tail: LogTail, start: int, end: int, properties: TableProperties) -> Iterator[VersionChanges]:
    file_times: dict[int, int] = {}
    for version in range(start + 1, end + 1):
        file = tail.commits[version]
        try:
            data = store.read(file.path)
        except FileNotFoundError as error:
            raise _gap(store.root, version, start) from error
        commit = decode_commit(version, data, file.path)
        moment_ms = in_commit_ms(properties, version, commit.info)
        if moment_ms is None:
            # A commit that owes its in-commit timestamp has the time of its file, like any other without one.
            file_times = file_times or _file_times(store, tail)
            moment_ms = file_times.get(version, file.modified_ms)
        yield _changes(commit, moment_ms)


def _has_own_times(properties: TableProperties, version: int) -> bool:
    """Whether in-commit timestamps give the times from this version on."""
    start = properties.in_commit_start
    return start is not None and version >= start[0]


def _file_times(store: Store, tail: LogTail) -> dict[int, int]:
    """The adjusted times of the commit files by version; a tail that begins later needs another listing."""
    commits = commits_among(tail.commits.values()) if tail.start == 0 else list_commits(store)
    return {commit.version: commit.file_time_ms for commit in commits}


def _changes(commit: Commit, timestamp_ms: int) -> VersionChanges:
    return VersionChanges(
        version=commit.version,
        timestamp_ms=timestamp_ms,
        info=commit.info or {},
        adds=commit.adds,
        removes=commit.removes,
        cdc=commit.cdc,
        metadata=commit.metadata,
        protocol=commit.protocol,
        transactions=commit.transactions,
        domains=commit.domains,
    )


def _not_found(table: str, version: int, earliest: int | None, latest: int) -> VersionNotFound:
    held = "" if earliest is None else f", and the log holds the commits from version {earliest} on"
    return VersionNotFound(
        f"VersionNotFound: the changes after version {version} of {table} were asked for; the snapshot is of version "
        f"{latest}{held}. Start again from a snapshot, and follow the table from there.",
        table=table,
        version=version,
        earliest=earliest,
        latest=latest,
    )


def _gap(table: str, missing: int, start: int) -> LogGap:
    return LogGap(
        f"LogGap: {commit_name(missing)} of {table} is missing, and the changes after version {start} cannot be known "
        "without it. Start again from a snapshot, and follow the table from there.",
        table=table,
        path=f"{version_prefix(missing)}.json",
        version=missing,
    )


COMMIT_VERSION_COLUMN = "_commit_version"
COMMIT_TIMESTAMP_COLUMN = "_commit_timestamp"

_COMMIT_FIELDS = [
    pa.field(COMMIT_VERSION_COLUMN, pa.int64()),
    pa.field(COMMIT_TIMESTAMP_COLUMN, pa.timestamp("us", tz="UTC")),
]


def change_rows(
    table: str,
    snapshot_of: Callable[[int | None], Snapshot],
    start: int,
    end: int | None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The change rows of the versions `start` to `end` (None: the latest), both inclusive; see `read_change_rows`.

    Raises VersionNotFound where there is no such range, or the log holds it no longer; LogGap.
    """
    last = snapshot_of(end)
    if not 0 <= start <= last.version:
        raise VersionNotFound(
            f"VersionNotFound: the changes of versions {start} to {last.version} of {table} were asked for; a range "
            "begins at 0 at the earliest, and not after its end.",
            table=table,
            version=start,
            latest=last.version,
        )
    commits = list(changes_since(last, start - 1))
    metadata = commits[0].metadata
    if metadata is None:
        # It did not change since: then there is no need to rebuild an old version.
        is_unchanged = all(commit.metadata is None for commit in commits)
        metadata = last.metadata if is_unchanged else snapshot_of(start).metadata
    return pa.Table.from_batches(read_change_rows(last, metadata, commits, columns), change_schema(last, columns))


def read_change_rows(
    end: Snapshot, started_with: Metadata, commits: Sequence[VersionChanges], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The change rows of the commits, ascending by version, in no order inside one; read when they are asked for.

    `end` is the snapshot of the last of them: rows are given in its schema (`columns`: some of it); a column that came
    later is null before, one that was renamed has its new name. `started_with` is the metadata of the first.
    Behind the columns stand `_change_type`, `_commit_version` and `_commit_timestamp` (UTC). No batch is empty.

    Raises UnknownColumn; VersionNotFound where the feed was off at some version (its changes were not recorded);
    UnsupportedFeature where the partitioning or a type changed in between; FilesMissing where a VACUUM took what is to
    be read; CorruptDataFile, CorruptDeletionVector, CorruptTable.
    """
    schema = pa.schema([*selected(end, columns), CHANGE_TYPE_FIELD])
    first = commits[0].version if commits else end.version
    known = [(first, started_with), *((c.version, c.metadata) for c in commits if c.metadata is not None)]
    for version, metadata in known:
        _check_metadata(end, version, metadata)
    return _change_batches(end, schema, commits)


def change_schema(end: Snapshot, columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema of the batches that `read_change_rows` gives."""
    return _output_schema(pa.schema([*selected(end, columns), CHANGE_TYPE_FIELD]))


def _output_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*nullable_schema(schema), *_COMMIT_FIELDS])


def _change_batches(end: Snapshot, schema: pa.Schema, commits: Iterable[VersionChanges]) -> Iterator[pa.RecordBatch]:
    output = _output_schema(schema)
    for commit in commits:
        moment = pa.scalar(commit.timestamp_ms, pa.timestamp("ms", tz="UTC")).cast(_COMMIT_FIELDS[1].type)
        try:
            for batch in _rows_of(end, schema, commit):
                beside = [pa.repeat(pa.scalar(commit.version, pa.int64()), len(batch)), pa.repeat(moment, len(batch))]
                yield pa.RecordBatch.from_arrays([*batch.columns, *beside], schema=output)
        except (CorruptDataFile, CorruptDeletionVector) as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise _gone(end.uri, commit.version, error) from error
            raise


def _rows_of(end: Snapshot, schema: pa.Schema, commit: VersionChanges) -> Iterator[pa.RecordBatch]:
    if commit.cdc:
        yield from _change_files(end, schema, commit.cdc)
    elif not _has_no_change(commit):
        yield from _whole_files(end, schema, commit)


def _has_no_change(commit: VersionChanges) -> bool:
    """A MERGE that only copied rows, as delta-spark once wrote it. Source: CDCReader.shouldSkipFileActionsInCommit."""
    metrics = commit.info.get("operationMetrics")
    if commit.operation != "MERGE" or not isinstance(metrics, Mapping):
        return False
    names = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    return all(str(metrics.get(name)) == "0" for name in names)


def _change_files(end: Snapshot, schema: pa.Schema, files: Sequence[Cdc]) -> Iterator[pa.RecordBatch]:
    table = adds_to_table([_as_add(file.path, file.partition_values, file.size) for file in files])
    constants = partition_constants(end, table, schema)
    for index, file in enumerate(files):
        values = {name: column[index] for name, column in constants.items()}
        rows = FileRows(data_file(end, file.path, file.size, None), schema, values)
        yield from _not_empty(read_file(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A file that a commit added or removed."""

    action: Add | Remove
    deleted: RowPositions | None
    values: Mapping[str, pa.Scalar]


def _whole_files(end: Snapshot, schema: pa.Schema, commit: VersionChanges) -> Iterator[pa.RecordBatch]:
    """The rows that came and went with whole files, or with a deletion vector that changed."""
    added = _sides(end, schema, commit, [add for add in commit.adds if add.data_change])
    removed = _sides(end, schema, commit, [remove for remove in commit.removes if remove.data_change])
    for path in [*removed, *(path for path in added if path not in removed)]:
        before, after = removed.get(path), added.get(path)
        if before is not None:
            yield from _rows_that(end, schema, before, DELETE, present=before, absent=after)
        if after is not None:
            yield from _rows_that(end, schema, after, INSERT, present=after, absent=before)


def _sides(
    end: Snapshot, schema: pa.Schema, commit: VersionChanges, actions: Sequence[Add | Remove]
) -> dict[str, _Side]:
    """By canonical path; a path stands at most once among the adds of a commit, and among its removes."""
    expected = set(partition_keys(end.delta_schema, end.partition_columns))
    adds = []
    for action in actions:
        values = action.partition_values
        # A null value may be left out, as delta-spark does in a remove; a remove may also have no values at all.
        if (values is None and expected) or not expected.issuperset(values or {}):
            raise CorruptTable(
                f"{end.uri}: version {commit.version} does not have the partition values of {action.path}, so its "
                "change rows cannot be read. Start after that version.",
                table=end.uri,
            )
        adds.append(_as_add(action.path, values or {}, action.size or 0, action))
    table = adds_to_table(adds)
    constants, deletions = partition_constants(end, table, schema), end.deleted_rows(table)
    return {
        canonical_path(action.path, end.uri): _Side(
            action=action,
            deleted=deletions[index],
            values={name: column[index] for name, column in constants.items()},
        )
        for index, action in enumerate(actions)
    }


def _rows_that(
    end: Snapshot, schema: pa.Schema, side: _Side, kind: str, *, present: _Side, absent: _Side | None
) -> Iterator[pa.RecordBatch]:
    """The rows of the side's file that `present` shows and `absent` does not, with their change type."""
    in_files = pa.schema([field for field in schema if field.name != CHANGE_TYPE_COLUMN])
    num_records = record_count(side.action.stats, side.action.deletion_vector)
    file = data_file(end, side.action.path, side.action.size, num_records)

    def keep(start: int, length: int) -> pa.BooleanArray | None:
        shown = None if present.deleted is None else present.deleted.keep(start, length)
        if absent is None:
            return shown
        other = None if absent.deleted is None else absent.deleted.keep(start, length)
        if other is None:
            return pa.array([False] * length)
        return pc.invert(other) if shown is None else pc.and_not(shown, other)

    for batch in _not_empty(read_file(FileRows(file, in_files, side.values), keep, side.deleted)):
        types = pa.repeat(pa.scalar(kind, pa.string()), batch.num_rows)
        yield pa.RecordBatch.from_arrays([*batch.columns, types], schema=nullable_schema(schema))


def _not_empty(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if batch.num_rows)


def _as_add(path: str, values: Mapping[str, str | None], size: int, source: Add | Remove | None = None) -> Add:
    return Add(
        path=path,
        partition_values=dict(values),
        size=size,
        modification_time=0,
        data_change=False,
        stats=None if source is None else source.stats,
        deletion_vector=None if source is None else source.deletion_vector,
    )


# --- what may be read together --------------------------------------------------------------------------------------


def _check_metadata(end: Snapshot, version: int, metadata: Metadata) -> None:
    """Raises where changes recorded under this metadata cannot be given in the schema of the end."""
    if not TableProperties(metadata.configuration, end.uri).change_data_feed:
        raise VersionNotFound(
            f"VersionNotFound: {end.uri} had no change data feed at version {version} (delta.enableChangeDataFeed), so "
            "its changes were not recorded. Start at a version from which on it was always on, and take the rows "
            "before from a snapshot.",
            table=end.uri,
            version=version,
            latest=end.version,
        )
    schema = table_schema(metadata, end.uri)
    before = partition_keys(schema, metadata.partition_columns)
    found = None
    if set(before) != set(partition_keys(end.delta_schema, end.partition_columns)):
        found = f"partitioned by {metadata.partition_columns}, and now by {end.partition_columns}"
    else:
        found = _changed_type(schema, end.delta_schema)
    if found is not None:
        raise UnsupportedFeature(
            f"{end.uri} was, at version {version}, {found}: its changes cannot be read together with those of version "
            f"{end.version}. Read up to the version before the change, and then from there.",
            table=end.uri,
            feature="changeDataFeed",
            needed_to="read",
        )


def _changed_type(before: DataType, after: DataType) -> str | None:
    """What is not the same column any more, in words; None where everything that both have can be read as `after`."""
    if isinstance(before, StructType) and isinstance(after, StructType):
        known = {field.physical_name.lower(): field for field in after}
        for field in before:
            now = known.get(field.physical_name.lower())
            # Of a widened one each value is checked when it is read.
            if now is not None and not now.is_widened:
                found = _changed_type(field.type, now.type)
                if found is not None:
                    return f"with {field.name} {found}"
        return None
    if isinstance(before, ArrayType) and isinstance(after, ArrayType):
        return _changed_type(before.element, after.element)
    if isinstance(before, MapType) and isinstance(after, MapType):
        return _changed_type(before.key, after.key) or _changed_type(before.value, after.value)
    return None if before == after else f"of type {before}, now {after}"


def _gone(table: str, version: int, error: Exception) -> FilesMissing:
    path = str(getattr(error, "path", ""))
    return FilesMissing(
        f"FilesMissing: the changes of version {version} of {table} cannot be read: {path} is not there. A VACUUM "
        "takes change files and removed files once they are older than the retention "
        "(delta.deletedFileRetentionDuration). Start at a later version, and take the rows before from a snapshot.",
        table=table,
        version=version,
        count=1,
        examples=[path],
    )
