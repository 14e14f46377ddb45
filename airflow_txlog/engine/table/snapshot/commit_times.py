"""When a version was committed: one rule for snapshots, history, changes and time travel.

A version's time is its in-commit timestamp from the version on that enabled them (`TableProperties.in_commit_start`);
before that, and in any other table, the modification time of its commit file, adjusted over the whole log so that it
grows: a file that is not younger than its predecessor counts as one millisecond younger. The invariant: times are
adjusted from the first commit that the log holds, never from where a reader happens to begin.
Where in-commit timestamps were switched off again, history and time travel go by file times, as delta-spark does.
Source: delta-spark, DeltaHistoryManager.getHistory; protocol, "In-Commit Timestamps".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_txlog.engine.log.names import LOG_DIRECTORY, LogKind, parse_name
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.storage.base import FileInfo, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCommit:
    """A commit file of the log and the time that its version has by file times."""

    version: int
    info: FileInfo
    file_time_ms: int


def list_commits(store: Store) -> list[ListedCommit]:
    """The commit files of the log, ascending, with monotonic file times."""
    return commits_among(store.list(LOG_DIRECTORY))


def commits_among(listed: Iterable[FileInfo]) -> list[ListedCommit]:
    """The same of a listing of the log, which is in the order of names."""
    found: list[ListedCommit] = []
    for info in listed:
        name = parse_name(info.path)
        if name is None or name.kind is not LogKind.COMMIT:
            continue
        least = found[-1].file_time_ms + 1 if found else info.modified_ms
        found.append(ListedCommit(version=name.version, info=info, file_time_ms=max(info.modified_ms, least)))
    return found


def in_commit_ms(properties: TableProperties, version: int, info: Mapping[str, Any] | None) -> int | None:
    """The in-commit timestamp in the commitInfo of a version, None where it has none or it does not count.

    `properties` are those of that version or of a later one.
    """
    value = (info or {}).get("inCommitTimestamp")
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    start = properties.in_commit_start
    return value if start is not None and version >= start[0] else None
