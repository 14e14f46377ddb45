"""The facts of the page of a commit: its reads and changes, the commits that it met, and how each was resolved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.met import EXPLANATIONS, Meeting
from airflow_txlog.engine.log.actions import Commit, Metadata, decode_commit
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.snapshot.commit_times import ListedCommit, commits_among
from airflow_txlog.engine.table.snapshot.snapshot import latest_metadata
from airflow_txlog.errors import TxlogError, VersionNotFound
from airflow_txlog.locations import shown
from airflow_txlog.window.facts.overview import Sees, seen
from airflow_txlog.window.facts.shape import SchemaChange, compared, shown_values
from airflow_txlog.window.facts.version_lines import MOST_DECODED_BYTES, KeptLines, VersionLine, chars_of, clipped

MOST_BETWEEN = 50
MOST_SHOWN_PARTITIONS = 20
_LOOK_BACK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """A commit that landed after the version that a job read, and before the job's own commit."""

    line: VersionLine
    meeting: Meeting | None
    """How the job resolved it; None if the job did not record it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """The files of one partition that a commit added and removed."""

    values: Mapping[str, str | None]
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCommit:
    """Everything on the page of a commit."""

    uri: str
    line: VersionLine
    latest: int
    previous: int | None
    next: int | None
    between: tuple[Between, ...]
    between_count: int
    """All commits between; `between` has the newest ones, oldest first."""
    between_missing: bool
    """Whether the log no longer shows some of them."""
    partitions: tuple[PartitionChange, ...]
    partition_count: int
    schema_change: SchemaChange | None
    transactions: int
    domains: tuple[str, ...]
    others: tuple[Meeting, ...]
    """Other meetings of the job: earlier tries, and commits that the log no longer shows."""
    kept_files: int
    """Staged files that the job used again after conflicts."""
    kept_bytes: int
    redone_files: int

    @property
    def chars(self) -> int:
        """About the memory that it takes."""
        return chars_of(self.line) + sum(chars_of(each.line) for each in self.between)

    def for_user(self, sees: Sees) -> OneCommit:
        """Return the facts without the names of DAGs that the user may not see."""
        between = tuple(replace(each, line=replace(each.line, by=seen(each.line.by, sees))) for each in self.between)
        return replace(self, line=replace(self.line, by=seen(self.line.by, sees)), between=between)


def commit_facts(table: Table, kept: KeptLines, version: int) -> OneCommit:
    """Return the facts of one commit. Raises TableNotFound, VersionNotFound, and the store's errors."""
    commits = commits_among(table.store.list(LOG_DIRECTORY))
    by_version = {each.version: each for each in commits}
    listed = by_version.get(version)
    if listed is None:
        known = f" It holds versions {commits[0].version} to {commits[-1].version}." if commits else ""
        raise VersionNotFound(f"The log of {shown(table.uri)} no longer has the commit of version {version}.{known}")
    metadata = _metadata(table)
    properties = TableProperties({} if metadata is None else metadata.configuration, table.uri).readable()[0]
    read = next(iter(kept.read(table.store, [listed], properties)), None)
    if read is None:
        raise VersionNotFound(f"The log of {shown(table.uri)} no longer has the commit of version {version}.")
    line = read.line
    start = version if line.read_version is None else max(line.read_version + 1, 0)
    # A job that redid work reads again, so the conflict's version may be before the one that it read last.
    met = {each.version for each in line.met.last if each.version is not None and each.version < version}
    numbers = sorted({*range(max(start, version - _LOOK_BACK), version), *met})
    there = [by_version[number] for number in numbers[-MOST_BETWEEN:] if number in by_version]
    between = [each.line for each in kept.read(table.store, there, properties)]
    meetings = {each.version: each for each in line.met.last}
    numbered = {each.version for each in between}
    content = _content(table, listed)
    partitions, partition_count = _partitions(content, _logical_names(metadata))
    return OneCommit(
        uri=shown(table.uri),
        line=line,
        latest=commits[-1].version,
        previous=version - 1 if version - 1 in by_version else None,
        next=version + 1 if version + 1 in by_version else None,
        between=tuple(Between(line=each, meeting=meetings.get(each.version)) for each in between),
        between_count=max(version - start, len(numbers), line.met.total),
        between_missing=len(between) < min(len(numbers), MOST_BETWEEN),
        partitions=partitions,
        partition_count=partition_count,
        schema_change=_schema_change(table, kept, properties, by_version, listed),
        transactions=0 if content is None else len(content.transactions),
        domains=() if content is None else tuple(clipped(each.domain, 100) for each in content.domains[:20]),
        others=tuple(each for each in line.met.last if each.version not in numbered),
        kept_files=sum(each.kept_files for each in line.met.last),
        kept_bytes=sum(each.kept_bytes for each in line.met.last),
        redone_files=sum(each.redone_files for each in line.met.last),
    )


def resolution(meeting: Meeting) -> str:
    """Return how a job resolved a commit, as a sentence."""
    return EXPLANATIONS.get(meeting.how, meeting.how.replace("_", " ") or "It did not record how.")


def _metadata(table: Table) -> Metadata | None:
    """Return the metadata of the latest version; None if the table cannot be read."""
    try:
        return latest_metadata(table.store)
    except TxlogError:
        return None


def _logical_names(metadata: Metadata | None) -> Mapping[str, str]:
    """Return the columns by their names in the log, which differ from their own with column mapping."""
    try:
        fields = () if metadata is None else parse_schema(metadata.schema_string)
        return {each.physical_name: each.name for each in fields}
    except TxlogError:
        return {}


def _content(table: Table, listed: ListedCommit) -> Commit | None:
    if listed.info.size_bytes <= MOST_DECODED_BYTES:
        with suppress(TxlogError, FileNotFoundError):
            return decode_commit(listed.version, table.store.read(listed.info.path), listed.info.path)
    return None


def _partitions(content: Commit | None, names: Mapping[str, str]) -> tuple[tuple[PartitionChange, ...], int]:
    """Return the partitions with the most changed files, and the number of all changed ones."""
    if content is None:
        return (), 0
    added = Counter(tuple((each.partition_values or {}).items()) for each in content.adds)
    removed = Counter(tuple((each.partition_values or {}).items()) for each in content.removes)
    both = added + removed
    both.pop((), None)
    found = [
        PartitionChange(
            values=shown_values({names.get(name, name): value for name, value in key}),
            added=added[key],
            removed=removed[key],
        )
        for key, _ in both.most_common(MOST_SHOWN_PARTITIONS)
    ]
    return tuple(found), len(both)


def _schema_change(
    table: Table,
    kept: KeptLines,
    properties: TableProperties,
    by_version: Mapping[int, ListedCommit],
    listed: ListedCommit,
) -> SchemaChange | None:
    """Return how the commit changed the metadata; None if it did not, or if the log shows no earlier metadata."""
    read = next(iter(kept.read(table.store, [listed], properties)), None)
    if read is None or read.metadata is None:
        return None
    if listed.version == 0:
        return SchemaChange(version=0, is_first=True)
    earlier = [by_version[n] for n in range(max(0, listed.version - _LOOK_BACK), listed.version) if n in by_version]
    before = [each.metadata for each in kept.read(table.store, earlier, properties) if each.metadata is not None]
    return compared(listed.version, before[-1], read.metadata) if before else None
