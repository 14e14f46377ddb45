"""The times of versions: one rule for snapshots, history, changes and time travel.

From the version that enabled them (`TableProperties.in_commit_start`), a version's time is its in-commit timestamp.
Otherwise it is the modification time of its commit file, adjusted over the whole log so that times grow: a file that is
not younger than its predecessor counts as one millisecond younger. The two are never mixed; if in-commit timestamps
were switched off again, history and time travel use file times, as delta-spark does. The invariant: times are adjusted
from the first commit that the log holds, wherever a reader begins. Source: delta-spark, DeltaHistoryManager; protocol,
"In-Commit Timestamps".
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import LOG_DIRECTORY, LogKind, parse_name
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.errors import CorruptTable, InvalidInput, TimestampOutOfRange
from airflow_txlog.storage.base import FileInfo, Store

if TYPE_CHECKING:
    from airflow_txlog.engine.table.snapshot.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCommit:
    """A commit file of the log and its adjusted time."""

    version: int
    info: FileInfo
    file_time_ms: int


def list_commits(store: Store) -> list[ListedCommit]:
    """Return the commit files of the log, ascending, with adjusted times."""
    return commits_among(store.list(LOG_DIRECTORY))


def commits_among(listed: Iterable[FileInfo]) -> list[ListedCommit]:
    """Return the commit files in a listing of the log, which is sorted by name."""
    found: list[ListedCommit] = []
    for info in listed:
        name = parse_name(info.path)
        if name is None or name.kind is not LogKind.COMMIT:
            continue
        least = found[-1].file_time_ms + 1 if found else info.modified_ms
        found.append(ListedCommit(version=name.version, info=info, file_time_ms=max(info.modified_ms, least)))
    return found


def in_commit_ms(properties: TableProperties, version: int, info: Mapping[str, Any] | None) -> int | None:
    """Return the in-commit timestamp in a commitInfo, None if it does not count by properties of then or later."""
    value = (info or {}).get("inCommitTimestamp")
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    start = properties.in_commit_start
    return value if start is not None and version >= start[0] else None


Moment = int | str | datetime
"""Milliseconds since the epoch, ISO-8601 text, or a datetime; UTC if it has no zone."""

# The range of a datetime in UTC.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def parse_moment(moment: Moment) -> int:
    """Return milliseconds since the epoch. Raises InvalidInput if not ISO-8601, or not in the years 1 to 9999."""
    if isinstance(moment, bool) or not isinstance(moment, int | str | datetime):
        raise InvalidInput(f"a timestamp is milliseconds, ISO-8601 text or a datetime, not {moment!r}.")
    found_ms = moment if isinstance(moment, int) else _milliseconds(moment)
    if not _FIRST_MS <= found_ms <= _LAST_MS:
        raise InvalidInput("A timestamp is a moment of the years 1 to 9999, in UTC.")
    return found_ms


def _milliseconds(moment: str | datetime) -> int:
    try:
        at = datetime.fromisoformat(moment.strip()) if isinstance(moment, str) else moment
    except ValueError as error:
        raise InvalidInput(f"{moment!r} is no ISO-8601 date or time, such as 2026-03-01T12:00:00Z.") from error
    zoned = at if at.tzinfo else at.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


def version_at(store: Store, head: Snapshot, moment: Moment) -> int:
    """Return the last version committed at or before `moment`. Raises TimestampOutOfRange outside the log."""
    asked_ms = parse_moment(moment)
    commits = [commit for commit in list_commits(store) if commit.version <= head.version]
    if not commits:
        raise _out_of_range(head, asked_ms, None, None, "has no commit file left that shows the time")
    enabled_from, enabled_ms = head.table_properties.in_commit_start or (None, 0)
    if enabled_from is not None and asked_ms >= enabled_ms:
        timed = [commit for commit in commits if commit.version >= enabled_from]
        position = bisect.bisect_right(timed, asked_ms, key=lambda commit: in_commit_time(store, commit))
        latest_ms = head.timestamp_ms
    else:
        timed = [commit for commit in commits if enabled_from is None or commit.version < enabled_from]
        position = bisect.bisect_right([commit.file_time_ms for commit in timed], asked_ms)
        latest_ms = timed[-1].file_time_ms if timed else 0
    if position == 0:
        earliest_ms = timed[0].file_time_ms if timed else None
        raise _out_of_range(head, asked_ms, earliest_ms, latest_ms, "has no version that old in its log")
    if asked_ms > latest_ms and timed[-1].version == head.version:
        raise _out_of_range(head, asked_ms, None, latest_ms, f"was last changed before that (version {head.version})")
    return timed[position - 1].version


def in_commit_time(store: Store, listed: ListedCommit) -> int:
    """Read the in-commit timestamp of a commit. Raises CorruptTable if it has none."""
    commit = decode_commit(listed.version, store.read(listed.info.path), listed.info.path)
    value = (commit.info or {}).get("inCommitTimestamp")
    if not isinstance(value, int):
        raise CorruptTable(
            f"{store.root}: version {listed.version} carries no inCommitTimestamp, though the table enabled them.",
            table=store.root,
            path=listed.info.path,
        )
    return value


def _out_of_range(
    head: Snapshot, asked_ms: int, earliest_ms: int | None, latest_ms: int | None, why: str
) -> TimestampOutOfRange:
    asked, *bounds = (moment_text(value) for value in (asked_ms, earliest_ms, latest_ms))
    known = " to ".join(text for text in bounds if text)
    return TimestampOutOfRange(
        f"{head.uri} {why}: asked for {asked}" + (f", the log knows {known}." if known else "."),
        table=head.uri,
        timestamp_ms=asked_ms,
        earliest_ms=earliest_ms,
        latest_ms=latest_ms,
    )


def moment_text(moment_ms: int | None) -> str:
    """Return the moment as ISO-8601 text in UTC, to the millisecond; empty for None."""
    if moment_ms is None:
        return ""
    if not _FIRST_MS <= moment_ms <= _LAST_MS:
        return f"{moment_ms} ms"  # of another writer's log
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
