"""What each commit after a version did: for a reader that follows a table and wants no version twice or left out.

The invariant: the commits come ascending and without a gap, or an error says what is missing; nothing else is read.
Source: protocol, "Delta Log Entries".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_txlog.engine.log.actions import (
    Add,
    Cdc,
    Commit,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
)
from airflow_txlog.engine.log.names import commit_name, version_prefix
from airflow_txlog.engine.log.tail import LogTail, list_tail
from airflow_txlog.engine.log.wire import decode_commit
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.snapshot.commit_times import commits_among, in_commit_ms, list_commits
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import LogGap, TableReplaced, VersionNotFound
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
    if tail.commits.get(end) != end_file and end_file is not None:
        # A listing may lag behind: only the name itself says that the log is another one.
        if store.stat(end_file.path) != end_file:
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
