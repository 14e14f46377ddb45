"""The timeline of a table: its newest versions, and rows, bytes and files after each of them.

The numbers after a version follow from the latest snapshot and the commits after it, walked backwards, so no second
snapshot is read. Where a commit does not show a number, the numbers before it are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.snapshot.commit_times import ListedCommit
from airflow_txlog.storage.base import Store
from airflow_txlog.window.facts.version_lines import KeptLines, ReadCommit, VersionLine

PAGE = 100
"""Versions on a page."""
WIDE = 1_000
"""Versions of the widest charts."""
MOST_POINTS = 150
MOST_TRENDS = 50
# The operations of which the counts of rows show how the number of rows changes.
_COUNTED = {"+": 1, "-": -1, "~": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The size of a table at one version. A number that is not known is None."""

    rows: int | None
    size_bytes: int | None
    files: int | None
    small_files: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The size of a table after a version."""

    version: int
    moment_ms: int
    totals: Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationTrend:
    """The outcomes of one expectation over versions, oldest first."""

    name: str
    versions: tuple[int, ...]
    failed: tuple[int, ...]
    passed: tuple[int, ...]

    @property
    def last_failed(self) -> int:
        return self.failed[-1]

    @property
    def last_failing_version(self) -> int | None:
        """The newest version whose rows failed it; None if no row of these versions did."""
        failing = [version for version, failed in zip(self.versions, self.failed, strict=True) if failed]
        return failing[-1] if failing else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Versions of a table, newest first, and the range of the log."""

    lines: tuple[VersionLine, ...]
    commits: int
    """Commit files in the log."""
    earliest: int | None
    latest: int | None
    older: int | None
    """Show the versions before this one next; None if there is none."""
    newer: bool = False
    """Whether the log holds newer versions than these."""


def page_of(commits: Sequence[ListedCommit], before: int | None, count: int = PAGE) -> list[ListedCommit]:
    """Return the newest commits before a version, newest first."""
    end = len(commits)
    if before is not None:
        end = next((number for number, each in enumerate(commits) if each.version >= before), end)
    return list(reversed(commits[max(0, end - count) : end]))


def read_timeline(
    store: Store, commits: Sequence[ListedCommit], properties: TableProperties, kept: KeptLines, before: int | None
) -> tuple[Timeline, list[ReadCommit]]:
    """Return a page of versions, and the commits that it was read from, newest first."""
    wanted = page_of(commits, before)
    read = kept.read(store, wanted, properties)
    last = wanted[-1].version if wanted else None
    timeline = Timeline(
        lines=tuple(each.line for each in read),
        commits=len(commits),
        earliest=commits[0].version if commits else None,
        latest=commits[-1].version if commits else None,
        older=last if last is not None and last > commits[0].version else None,
        newer=bool(wanted) and wanted[0].version < commits[-1].version,
    )
    return timeline, read


def points(latest: Totals, lines: Sequence[VersionLine]) -> list[Point]:
    """Return the size after each version, oldest first; `lines` are the newest ones, newest first."""
    found, totals = list[Point](), latest
    for number, line in enumerate(lines):
        if number and line.version != lines[number - 1].version - 1:
            break
        found.append(Point(version=line.version, moment_ms=line.moment_ms, totals=totals))
        totals = _before(totals, line)
    return found[::-1]


def sampled(given: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most this many points, evenly, with the first and the last one."""
    if len(given) <= most:
        return list(given)
    step = (len(given) - 1) / (most - 1)
    return [given[round(number * step)] for number in range(most)]


def _before(after: Totals, line: VersionLine) -> Totals:
    files = line.files
    if files is None:
        return Totals(rows=None, size_bytes=None, files=None, small_files=None)
    gone_bytes, gone_small = files.removed_bytes, files.removed_small
    return Totals(
        rows=_minus(after.rows, _rows_change(line)),
        size_bytes=_minus(after.size_bytes, None if gone_bytes is None else files.added_bytes - gone_bytes),
        files=_minus(after.files, files.added - files.removed),
        small_files=_minus(after.small_files, None if gone_small is None else files.added_small - gone_small),
    )


def _minus(total: int | None, change: int | None) -> int | None:
    return None if total is None or change is None else max(0, total - change)


def _rows_change(line: VersionLine) -> int | None:
    """Return by how many rows a commit changed the table; None if it does not show that."""
    files = line.files
    assert files is not None
    if not files.changes_data:
        return 0
    if not files.removed:
        return files.added_rows
    if line.operation.upper() not in ("DELETE", "UPDATE", "MERGE", "TRUNCATE"):
        return None
    change = 0
    for part in line.rows.split():
        sign, count = part[:1], part[1:]
        if part == "0":
            continue
        if sign not in _COUNTED or not count.isdigit():
            return None
        change += _COUNTED[sign] * int(count)
    return change if line.rows else None


def trends(lines: Iterable[VersionLine]) -> list[ExpectationTrend]:
    """Return the expectations that these commits counted, those that failed last first; `lines` are newest first."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for line in lines:
        for name, counts in line.expectations.items():
            found.setdefault(name, []).append((line.version, counts["failed"], counts["passed"]))
    result = []
    for name, outcomes in sorted(found.items(), key=lambda each: (not each[1][0][1], each[0]))[:MOST_TRENDS]:
        versions, failed, passed = zip(*reversed(outcomes), strict=True)
        result.append(ExpectationTrend(name=name, versions=versions, failed=failed, passed=passed))
    return result


def metadata_changes(read: Sequence[ReadCommit]) -> list[tuple[int, Metadata]]:
    """Return the versions that wrote metadata, with it, oldest first."""
    return [(each.line.version, each.metadata) for each in reversed(read) if each.metadata is not None]
