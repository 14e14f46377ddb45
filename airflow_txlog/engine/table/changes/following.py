"""A log that is followed commit by commit, and the conditions that sensors, triggers and other readers wait for.

Each look is one listing, of the whole log at first and later from the last known version on; each commit is read once.
The invariants: a look belongs to one log, and nothing known is kept for a table that was dropped and created again. If
the log no longer holds a commit in question, or is another one, a condition counts as reached: the reader is woken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_txlog.engine.log.actions import Commit, Metadata, decode_commit
from airflow_txlog.engine.log.names import commit_name, version_prefix
from airflow_txlog.engine.log.segment import Listing, look
from airflow_txlog.engine.log.tail import list_tail, read_files
from airflow_txlog.engine.table.columns.partitions import parse_partition_values
from airflow_txlog.engine.table.predicate.pruning import partitions_of
from airflow_txlog.engine.table.schema.column_mapping import partition_keys
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import Primitive
from airflow_txlog.engine.table.snapshot.commit_times import commits_among, in_commit_ms
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, is_same_log, latest_metadata
from airflow_txlog.errors import InvalidInput, LogGap
from airflow_txlog.storage.base import FileInfo, Store

# The number of commits whose facts are kept, and of commits read ahead.
_KEPT_FACTS, _READ_AHEAD = 2000, 8

PartitionValues = tuple[tuple[str, str | None], ...]
"""The partition values of a file as written in the log, by physical names, sorted by name."""
_NOT_WRITTEN: PartitionValues = (("", None),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A version that a reader has reached, -1 for none; another file of the same version has another mark."""

    version: int
    commit_mark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """The facts of one commit."""

    version: int
    timestamp_ms: int
    """Milliseconds since the epoch: the in-commit timestamp if it counts, else the time of the commit's file."""
    operation: str | None
    data_change: bool
    """Whether rows were added or removed."""
    tags: Mapping[str, str]
    """The tags of commitInfo."""
    partitions: frozenset[PartitionValues]
    """The partitions that got or lost rows; one that no table has for a remove without partition values."""
    filled: frozenset[PartitionValues]
    """The partitions that got rows."""


class LogFollower:
    """The log of the table in `store`, followed from look to look. For one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[int, FileInfo] = {}
        self._times: dict[int, int] = {}
        self._latest = self._seen = -1
        self._facts: OrderedDict[int, CommitFacts] = OrderedDict()
        self._metadata: Metadata | None = None

    def look(self, up_to: int | None = None) -> Position:
        """Return the latest version, -1 without a table, by one listing. Raises LogGap if it lacks a commit.

        `up_to`: the latest version that counts.
        """
        if self._latest < 0 or not self._look_further():
            self._look_at_all()
        self._seen = self._latest
        self._latest = self._latest if up_to is None else min(self._latest, up_to)
        return self.position

    @property
    def position(self) -> Position:
        """The latest version at the last look."""
        return self.position_of(self._latest)

    def position_of(self, version: int) -> Position:
        """Return a version of the last look with its mark, None if the log does not hold its commit."""
        file = self._files.get(version)
        return Position(version=version, commit_mark=None if file is None else self._store.mark_of(file))

    @property
    def earliest(self) -> int:
        """The first version from which on the log holds every commit; one past the latest if it holds none."""
        version = self._latest + 1
        while version - 1 in self._files:
            version -= 1
        return version

    def is_another_log(self, position: Position) -> bool:
        """Return whether the position is later than the log, or has another mark; False while there is no table."""
        if self._latest < 0 or position.version < 0:
            return False
        file = self._files.get(position.version)
        return position.version > self._seen or (
            file is not None and position.commit_mark is not None and self._store.mark_of(file) != position.commit_mark
        )

    def _look_further(self) -> bool:
        """Return whether the log is still the same; if so, add its new commits."""
        tail = list_tail(self._store, self._latest)
        if not is_same_log(self._store, tail, self._latest, self._files.get(self._latest)):
            return False
        try:
            newer = tail.after(self._latest)
        except LogGap:
            return False
        for version, file in enumerate(newer, self._latest + 1):
            self._files[version] = file
            self._times[version] = max(file.modified_ms, self._times.get(version - 1, -1) + 1)
            self._latest = version
        return True

    def _look_at_all(self) -> None:
        listing = look(self._store, 0)
        if _missing(listing) is not None:
            # A gap counts if it is seen twice, as in `list_segment`.
            listing = look(self._store, 0)
        missing = _missing(listing)
        if missing is not None:
            raise LogGap(
                f"LogGap: {commit_name(missing)} of {self._store.root} is missing, and version {listing.latest} cannot "
                "be rebuilt without it: a file of the log was lost, or the log was cut before a usable checkpoint.",
                table=self._store.root,
                path=f"{version_prefix(missing)}.json",
                version=missing,
            )
        self._files, self._latest = listing.commits, listing.latest
        ascending = (file for _, file in sorted(listing.commits.items()))
        self._times = {each.version: each.file_time_ms for each in commits_among(ascending)}
        self._facts, self._metadata = OrderedDict(), None

    def newest_first(self, after: int) -> Iterator[CommitFacts | None]:
        """Yield the commits from the latest down to the first after `after`; None instead of missing ones."""
        for version in range(self._latest, after, -1):
            if version not in self._facts and version in self._files:
                self._read(range(version, max(after, version - _READ_AHEAD), -1))
            facts = self._facts.get(version)
            yield facts
            if facts is None:
                return

    def facts(self, version: int) -> CommitFacts | None:
        """Return the facts of a commit; None if the log does not hold it. Raises CorruptCommit, LimitExceeded."""
        if version in self._files and version not in self._facts:
            self._read([version])
        return self._facts.get(version)

    def _read(self, versions: Sequence[int]) -> None:
        wanted = [version for version in versions if version in self._files and version not in self._facts]
        files = [self._files[version] for version in wanted]
        contents = read_files(self._store, files)
        for version, file in zip(wanted, files, strict=True):
            try:
                data = next(contents)
            except FileNotFoundError:
                # Cleaned since it was listed, like all older ones.
                return
            self._facts[version] = self._facts_of(decode_commit(version, data, file.path))
        while len(self._facts) > _KEPT_FACTS:
            self._facts.popitem(last=False)

    def _facts_of(self, commit: Commit) -> CommitFacts:
        info = commit.info or {}
        if commit.metadata is not None:
            self._metadata = None
        moment_ms = None
        if "inCommitTimestamp" in info:
            # Only now, because that needs the table's metadata.
            properties = TableProperties(self.metadata().configuration, self._store.root)
            moment_ms = in_commit_ms(properties, commit.version, info)
        tags, operation = info.get("tags"), info.get("operation")
        filled = frozenset(_values(add.partition_values) for add in commit.adds if add.data_change)
        emptied = frozenset(
            _NOT_WRITTEN if each.partition_values is None else _values(each.partition_values)
            for each in commit.removes
            if each.data_change
        )
        return CommitFacts(
            version=commit.version,
            timestamp_ms=self._times[commit.version] if moment_ms is None else moment_ms,
            operation=operation if isinstance(operation, str) else None,
            data_change=bool(filled or emptied),
            tags={str(name): str(value) for name, value in tags.items()} if isinstance(tags, dict) else {},
            partitions=filled | emptied,
            filled=filled,
        )

    def metadata(self) -> Metadata:
        """Return the table's latest metadata, read again only after a change. Raises TableNotFound, CorruptTable."""
        if self._metadata is None:
            self._metadata = latest_metadata(self._store)
        return self._metadata

    def any_is(self, partition: Mapping[str, str | None], values: frozenset[PartitionValues]) -> bool:
        """Return whether a value (texts by column) is the partition, compared as typed values. Raises InvalidInput."""
        metadata = self.metadata()
        schema = parse_schema(metadata.schema_string)
        columns = {name.lower(): name for name in metadata.partition_columns}
        candidates = [dict(each) for each in values]
        for name, text in partition.items():
            spelled = columns.get(name.lower())
            member = None if spelled is None else schema.find(spelled)
            if spelled is None or member is None:
                raise InvalidInput(
                    f"partition names {name!r}, which is no partition column of {self._store.root}; "
                    f"it has {metadata.partition_columns or 'none'}.",
                    table=self._store.root,
                )
            (key,) = partition_keys(schema, [spelled])
            texts = pa.array([text, *(each.get(key) for each in candidates)], pa.string())
            parsed = parse_partition_values(texts, member.type)
            if not parsed.known[0].as_py():
                form = ", written as YYYY-MM-DD" if member.type is Primitive.DATE else ""
                raise InvalidInput(
                    f"partition: the value of {name!r} is no value of its type, {member.type}{form}.",
                    table=self._store.root,
                )
            asked, *found = zip(parsed.values.to_pylist(), parsed.known.to_pylist(), strict=True)
            candidates = [each for each, value in zip(candidates, found, strict=True) if value == asked]
        return bool(candidates)

    def partitions(self, commits: Iterable[CommitFacts]) -> list[dict[str, str | None]] | None:
        """Return the partitions that the commits changed, as the log's texts by column; None if they are not known."""
        found = sorted(set().union(*(each.partitions for each in commits)), key=str)
        if not any(found):
            return []
        metadata = self.metadata()
        columns = metadata.partition_columns
        keys = partition_keys(parse_schema(metadata.schema_string), columns)
        values = [dict(each) for each in found]
        if not columns and all(each in ((), _NOT_WRITTEN) for each in found):
            return []
        if any(each.keys() != set(keys) for each in values):
            return None
        return [{name: each[key] or None for name, key in zip(columns, keys, strict=True)} for each in values]


def _values(values: Mapping[str, str | None]) -> PartitionValues:
    return tuple(sorted(values.items()))


def mark_at(store: Store, version: int) -> str | None:
    """Return the mark of the version's commit; None if the log does not hold the commit."""
    info = None if version < 0 else store.stat(commit_name(version))
    return None if info is None else store.mark_of(info)


def _missing(listing: Listing) -> int | None:
    """Return the first version without a commit that the latest one needs, or None."""
    start = max(listing.checkpoints, default=-1) + 1
    return next((version for version in range(start, listing.latest + 1) if version not in listing.commits), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The condition that a version must satisfy. At most one of the first three is given.

    - `version`: this one or a later one. Alone, no commit is read.
    - `newer_than`: later than this one. If the table was created again since, every version is later.
    - `since_ms`: committed at or after this moment, milliseconds since the epoch.
    - `operations`: by one of these operations, named as in commitInfo, in any case.
    - `tags`: with these tags in commitInfo.
    - `partition`: added rows to the partition, given by column as texts of the log. Without `operations`, `tags` and
      the first three: the table has rows of the partition.
    - `data_changes_only`: added or removed rows. None: true unless `operations` are given.
    """

    version: int | None = None
    newer_than: Position | None = None
    since_ms: int | None = None
    operations: frozenset[str] = frozenset()
    tags: Mapping[str, str] = field(default_factory=dict)
    partition: Mapping[str, str | None] = field(default_factory=dict)
    data_changes_only: bool | None = None

    def __post_init__(self) -> None:
        ranges = [each for each in (self.version, self.newer_than, self.since_ms) if each is not None]
        if len(ranges) > 1:
            raise InvalidInput("A condition has at most one of version, newer_than and since.")
        if not ranges and not (self.operations or self.tags or self.partition):
            raise InvalidInput("A condition needs one of version, newer_than, since, operation, tags and partition.")

    def accepts(self, facts: CommitFacts, follower: LogFollower) -> bool:
        """Return whether a commit of the range satisfies the rest. Raises InvalidInput, as `LogFollower.any_is`."""
        needs_data_change = not self.operations if self.data_changes_only is None else self.data_changes_only
        if needs_data_change and not facts.data_change:
            return False
        if self.operations and (facts.operation or "").upper() not in {each.upper() for each in self.operations}:
            return False
        if any(facts.tags.get(name) != text for name, text in self.tags.items()):
            return False
        return not self.partition or follower.any_is(self.partition, facts.filled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionAnswer:
    """Whether the latest version, at `position`, reaches a condition."""

    reached: bool
    position: Position
    """The latest version, -1 if there is no table; pass it as `checked` to check only later versions."""
    after: int
    """Only versions later than this one were considered."""
    match: CommitFacts | None
    """The newest commit that satisfies the condition; None if a number, existing rows or missing commits do."""
    is_another_log: bool
    """Whether the table was dropped and recreated since `checked`, or since the condition's `newer_than`."""


def ask(
    condition: Condition, follower: LogFollower, snapshot: Callable[[], Snapshot], checked: Position | None = None
) -> ConditionAnswer:
    """Return the answer according to the follower's last look; nothing up to version `checked` is looked at again.

    `snapshot` is read only for a partition that may have rows already. Raises InvalidInput, and as reading the log.
    """
    position, began = follower.position, condition.newer_than
    is_another_log = any(each is not None and follower.is_another_log(each) for each in (checked, began))
    if checked is not None and follower.is_another_log(checked):
        checked = None
    after = _begin(condition, follower)
    if checked is not None:
        after = max(after, checked.version)

    def answer(reached: bool, match: CommitFacts | None = None) -> ConditionAnswer:
        return ConditionAnswer(
            reached=reached, position=position, after=after, match=match, is_another_log=is_another_log
        )

    if position.version < 0:
        return answer(False)
    asks_for_commits = condition.operations or condition.tags
    if condition.version is not None and not (asks_for_commits or condition.partition or condition.data_changes_only):
        return answer(position.version >= condition.version)
    is_of_a_state = not asks_for_commits and (condition.version, began, condition.since_ms) == (None, None, None)
    if is_of_a_state and checked is None:
        return answer(_has_rows(snapshot(), condition.partition, follower))
    for facts in follower.newest_first(after):
        if facts is None:
            return answer(True)
        if condition.since_ms is not None and facts.timestamp_ms < condition.since_ms:
            return answer(False)
        if condition.accepts(facts, follower):
            return answer(True, facts)
    return answer(False)


def _begin(condition: Condition, follower: LogFollower) -> int:
    """Return the version after which the condition's range begins."""
    if condition.version is not None:
        return condition.version - 1
    if condition.newer_than is not None:
        return -1 if follower.is_another_log(condition.newer_than) else condition.newer_than.version
    return -1 if condition.since_ms is not None else follower.earliest - 1


def _has_rows(snapshot: Snapshot, partition: Mapping[str, str | None], follower: LogFollower) -> bool:
    """Return whether a live file lies in the partition. Raises InvalidInput, as `LogFollower.any_is`."""
    follower.any_is(partition, frozenset())
    # `any_is` decides, the same as for a commit.
    files = snapshot.files(partitions_of([partition]), columns=["partition_values"])
    batches = files.to_batches(max_chunksize=1000)
    found = (batch.column(0).to_pylist() for batch in batches)
    return any(follower.any_is(partition, frozenset(tuple(sorted(each)) for each in chunk)) for chunk in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersions:
    """The versions after `after`, up to `position`."""

    after: Position
    position: Position
    commits: tuple[CommitFacts, ...]
    """The commits that added or removed rows, ascending."""
    is_complete: bool
    """False if the log no longer holds a commit in between, or the table was dropped and recreated. Then read the table
    as of `position`."""


def new_versions(follower: LogFollower, after: Position, up_to: Position | None = None) -> NewVersions:
    """Return the versions of the follower's last look after `after`, up to `up_to` (None: the latest)."""
    is_complete = not follower.is_another_log(after)
    if up_to is None or follower.is_another_log(up_to):
        up_to = follower.position
    start = after.version if is_complete else follower.earliest - 1
    commits: list[CommitFacts] = []
    for facts in follower.newest_first(start):
        if facts is None:
            is_complete = False
        elif facts.version <= up_to.version and facts.data_change:
            commits.append(facts)
    return NewVersions(after=after, position=up_to, commits=tuple(reversed(commits)), is_complete=is_complete)
