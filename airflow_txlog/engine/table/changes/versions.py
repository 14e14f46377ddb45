"""The changes of each version: the actions of its commit, and the rows that it inserted, deleted and updated.

The invariants: commits come ascending and without a gap, or an error names the missing one. A version without a record
of its row changes, or with columns that cannot be identified, is refused before a row is returned.

A commit with `cdc` actions records its row changes in files of change rows, and only there. For any other commit, the
changes are the rows of files that it added or removed with dataChange = true, less the rows that vectors delete; for a
file that was added again with another vector, they are the difference between the vectors.
Source: protocol, "Delta Log Entries", "Add CDC File" and "Change Data Files"; delta-spark, CDCReader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.conversion import nullable_schema
from airflow_txlog.datafiles.staged_files import CHANGE_TYPE_COLUMN, CHANGE_TYPE_FIELD, DELETE, INSERT
from airflow_txlog.engine.log.actions import Add, Commit, Metadata, Remove, decode_commit
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


class VersionChanges(Commit, frozen=True, kw_only=True):
    """The changes of one commit; metadata and protocol are None if unchanged, `info` is {} if the commit has none."""

    info: dict[str, Any]
    timestamp_ms: int
    """Milliseconds since the epoch, as `Snapshot.timestamp_ms` of this version."""

    @property
    def operation(self) -> str | None:
        """The writer's name for it: WRITE, DELETE, MERGE, OPTIMIZE, …; None if the commit has none."""
        name = self.info.get("operation")
        return name if isinstance(name, str) else None

    @property
    def data_change(self) -> bool:
        """Whether rows were added or removed; False for a compaction, a change of properties, a record in the log."""
        return any(add.data_change for add in self.adds) or any(remove.data_change for remove in self.removes)


def changes_since(snapshot: Snapshot, start: int) -> Iterator[VersionChanges]:
    """Yield the changes of each commit after version `start` (-1: all), up to the snapshot's, ascending.

    The log is listed at once, before anything is yielded; a commit is read when it is needed. Raises VersionNotFound
    (earliest, latest) if `start` is later than the snapshot or the log was cleaned past it, LogGap if a commit is
    missing, TableReplaced if the log is another one, CorruptCommit.
    """
    store, end, end_file, properties = snapshot.store, snapshot.version, snapshot.commit_file, snapshot.table_properties
    if not -1 <= start <= end:
        raise _not_found(store.root, start, None, end)
    if start == end:
        return iter(())
    # The times of files are adjusted over the whole log; in-commit timestamps are not.
    timed_from = properties.in_commit_start
    first = start + 1 if timed_from is not None and start + 1 >= timed_from[0] else 0
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
    # By the existing commits: the name of a file of the log may hold a version that is billions away.
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
            if not file_times:
                commits = commits_among(tail.commits.values()) if tail.start == 0 else list_commits(store)
                file_times = {each.version: each.file_time_ms for each in commits}
            moment_ms = file_times.get(version, file.modified_ms)
        stated = msgspec.structs.asdict(commit)
        yield VersionChanges(**{**stated, "info": commit.info or {}, "timestamp_ms": moment_ms})


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


# --- rows ------------------------------------------------------------------------------------------------------------

_MOMENT = pa.timestamp("us", tz="UTC")
_COMMIT_FIELDS = [pa.field("_commit_version", pa.int64()), pa.field("_commit_timestamp", _MOMENT)]


def change_rows(
    table: str,
    snapshot_of: Callable[[int | None], Snapshot],
    start: int,
    end: int | None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return the change rows of the versions `start` to `end` (None: the latest), both inclusive.

    Versions ascend; rows of one version are in no order. The columns (`columns`: some of them) are those of version
    `end`, null in versions that lack them, and then `_change_type`, `_commit_version` and `_commit_timestamp` (UTC).

    Raises UnknownColumn; VersionNotFound if the log does not hold the range or the feed was off in it; LogGap;
    UnsupportedFeature if the partitioning or a type changed; FilesMissing after a VACUUM; CorruptDataFile,
    CorruptDeletionVector, CorruptTable.
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
    changed = [(commit.version, commit.metadata) for commit in commits if commit.metadata is not None]
    if commits[0].metadata is None:
        # If the metadata has not changed since, the old version need not be rebuilt.
        changed.insert(0, (start, snapshot_of(start).metadata if changed else last.metadata))
    wanted = pa.schema([*selected(last, columns), CHANGE_TYPE_FIELD])
    for version, metadata in changed:
        _check_metadata(last, version, metadata)
    output = pa.schema([*nullable_schema(wanted), *_COMMIT_FIELDS])
    return pa.Table.from_batches(_change_batches(last, wanted, output, commits), output)


def _change_batches(
    end: Snapshot, schema: pa.Schema, output: pa.Schema, commits: Iterable[VersionChanges]
) -> Iterator[pa.RecordBatch]:
    for commit in commits:
        version, moment = pa.scalar(commit.version, pa.int64()), pa.scalar(commit.timestamp_ms * 1000, _MOMENT)
        try:
            for batch in _rows_of(end, schema, commit):
                about = [pa.repeat(version, len(batch)), pa.repeat(moment, len(batch))]
                yield pa.RecordBatch.from_arrays([*batch.columns, *about], schema=output)
        except (CorruptDataFile, CorruptDeletionVector) as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            path = str(error.path)
            raise FilesMissing(
                f"FilesMissing: the changes of version {commit.version} of {end.uri} cannot be read: {path} is not "
                "there. A VACUUM takes change files and removed files once they are older than the retention "
                "(delta.deletedFileRetentionDuration). Start at a later version, and take the rows before from a "
                "snapshot.",
                table=end.uri,
                version=commit.version,
                count=1,
                examples=[path],
            ) from error


def _rows_of(end: Snapshot, schema: pa.Schema, commit: VersionChanges) -> Iterator[pa.RecordBatch]:
    if commit.cdc:
        table = adds_to_table([as_add(file.path, file.partition_values, file.size) for file in commit.cdc])
        constants = partition_constants(end, table, schema)
        for index, file in enumerate(commit.cdc):
            values = {name: column[index] for name, column in constants.items()}
            yield from read_file(FileRows(data_file(end, file.path, file.size, None), schema, values))
    elif not only_copies(commit):
        yield from _whole_files(end, schema, commit)


def only_copies(commit: VersionChanges) -> bool:
    """Return whether it is a MERGE of an old delta-spark that changed no row (CDCReader, `shouldSkip…InCommit`)."""
    metrics = commit.info.get("operationMetrics")
    if commit.operation != "MERGE" or not isinstance(metrics, Mapping):
        return False
    names = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    return all(str(metrics.get(name)) == "0" for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A file that a commit added or removed."""

    action: Add | Remove
    deleted: RowPositions | None
    values: Mapping[str, pa.Scalar]


def _whole_files(end: Snapshot, schema: pa.Schema, commit: VersionChanges) -> Iterator[pa.RecordBatch]:
    """Yield the rows that were added or removed with whole files or by a change of deletion vectors."""
    added = _sides(end, schema, commit, [add for add in commit.adds if add.data_change])
    removed = _sides(end, schema, commit, [remove for remove in commit.removes if remove.data_change])
    for path in {**removed, **added}:
        before, after = removed.get(path), added.get(path)
        if before is not None:
            yield from _rows_that(end, schema, before, DELETE, absent=after)
        if after is not None:
            yield from _rows_that(end, schema, after, INSERT, absent=before)


def _sides(
    end: Snapshot, schema: pa.Schema, commit: VersionChanges, actions: Sequence[Add | Remove]
) -> dict[str, _Side]:
    """Return the files by canonical path, of which the adds of a commit, and its removes, have each at most once."""
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
        adds.append(as_add(action.path, values or {}, action.size or 0, action))
    table = adds_to_table(adds)
    constants, deletions = partition_constants(end, table, schema), end.deleted_rows(table)
    return {
        canonical_path(action.path, end.uri): _Side(
            action=action, deleted=deletions[index], values={name: column[index] for name, column in constants.items()}
        )
        for index, action in enumerate(actions)
    }


def _rows_that(
    end: Snapshot, schema: pa.Schema, side: _Side, kind: str, *, absent: _Side | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that `side` shows and `absent` does not, with their change type."""
    in_files = pa.schema([field for field in schema if field.name != CHANGE_TYPE_COLUMN])
    num_records = record_count(side.action.stats, side.action.deletion_vector)
    file = data_file(end, side.action.path, side.action.size, num_records)

    def keep(start: int, length: int) -> pa.BooleanArray | None:
        shown = None if side.deleted is None else side.deleted.keep(start, length)
        if absent is None:
            return shown
        other = None if absent.deleted is None else absent.deleted.keep(start, length)
        if other is None:
            return pa.array([False] * length)
        return pc.invert(other) if shown is None else pc.and_not(shown, other)

    for batch in read_file(FileRows(file, in_files, side.values), keep, side.deleted):
        types = pa.repeat(pa.scalar(kind, pa.string()), batch.num_rows)
        yield pa.RecordBatch.from_arrays([*batch.columns, types], schema=nullable_schema(schema))


def as_add(path: str, values: Mapping[str, str | None], size: int, source: Add | Remove | None = None) -> Add:
    """Return a file of changes, or one that was added or removed (`source`), as a live file."""
    return Add(
        path=path,
        partition_values=dict(values),
        size=size,
        modification_time=0,
        data_change=False,
        stats=None if source is None else source.stats,
        deletion_vector=None if source is None else source.deletion_vector,
        base_row_id=None if source is None else source.base_row_id,
        default_row_commit_version=None if source is None else source.default_row_commit_version,
    )


def _check_metadata(end: Snapshot, version: int, metadata: Metadata) -> None:
    """Raise if changes under this metadata cannot be returned in the schema of the end."""
    if not TableProperties(metadata.configuration, end.uri).change_data_feed:
        raise VersionNotFound(
            f"VersionNotFound: {end.uri} had no change data feed at version {version} (delta.enableChangeDataFeed), so "
            "its changes were not recorded. Start at a version from which on it was always on, and take the rows "
            "before from a snapshot.",
            table=end.uri,
            version=version,
            latest=end.version,
        )
    found = incompatible(metadata, end.metadata)
    if found is not None:
        raise UnsupportedFeature(
            f"{end.uri} was, at version {version}, {found}: its changes cannot be read together with those of version "
            f"{end.version}. Read up to the version before the change, and then from there.",
            table=end.uri,
            feature="changeDataFeed",
            needed_to="read",
        )


def incompatible(before: Metadata, after: Metadata) -> str | None:
    """Return, in words, why files under the metadata `before` cannot be read as under `after`; None if they can."""
    schema, now = (table_schema(each, "the table") for each in (before, after))
    keys, now_keys = (partition_keys(s, m.partition_columns) for s, m in ((schema, before), (now, after)))
    if set(keys) != set(now_keys):
        return f"partitioned by {before.partition_columns}, and now by {after.partition_columns}"
    return _changed_type(schema, now)


def _changed_type(before: DataType, after: DataType) -> str | None:
    """Return the difference between the types, in words, or None if the parts that both have can be read as `after`."""
    if isinstance(before, StructType) and isinstance(after, StructType):
        known = {field.physical_name.lower(): field for field in after}
        for field in before:
            now = known.get(field.physical_name.lower())
            # The values of a widened column are checked when they are read.
            found = None if now is None or now.is_widened else _changed_type(field.type, now.type)
            if found is not None:
                return f"with {field.name} {found}"
        return None
    if isinstance(before, ArrayType) and isinstance(after, ArrayType):
        return _changed_type(before.element, after.element)
    if isinstance(before, MapType) and isinstance(after, MapType):
        return _changed_type(before.key, after.key) or _changed_type(before.value, after.value)
    return None if before == after else f"of type {before}, now {after}"
