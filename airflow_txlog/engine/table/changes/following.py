"""A log that is followed: which versions it holds by now, and what each commit did, in a few facts.

For readers that wait for a table or process it version by version, without a snapshot. Each look is one listing, of the
whole log the first time and from the last known version on after that; a commit is read once. The invariant: what a
look shows belongs to one log. A table that was dropped and created again is another one, and nothing known is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.engine.log.actions import Commit, Metadata, Remove
from airflow_txlog.engine.log.listing import Listing, look
from airflow_txlog.engine.log.names import commit_name, version_prefix
from airflow_txlog.engine.log.tail import list_tail, read_files
from airflow_txlog.engine.log.wire import decode_commit
from airflow_txlog.engine.table.columns.partitions import parse_partition_values
from airflow_txlog.engine.table.schema.column_mapping import partition_keys
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.snapshot.commit_times import commits_among, in_commit_ms
from airflow_txlog.engine.table.snapshot.snapshot import latest_metadata
from airflow_txlog.errors import InvalidInput, LogGap
from airflow_txlog.storage.base import FileInfo, Store

# Facts of this many commits are kept, and this many commits are read ahead of where a reader stands.
_KEPT_FACTS, _READ_AHEAD = 2000, 8

PartitionValues = tuple[tuple[str, str | None], ...]
"""The partition values of a file as the log writes them, by physical names, sorted by name."""
_NOT_WRITTEN: PartitionValues = (("", None),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A version that a reader has come to; -1 is before the first.

    `commit_mark` distinguishes the version's commit file from any other of its name: a table that was dropped and
    created again has another mark at the same version. None where it is not known.
    """

    version: int
    commit_mark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """What one commit did."""

    version: int
    timestamp_ms: int
    """Milliseconds since the epoch: the in-commit timestamp where it counts, else the time of the commit's file."""
    operation: str | None
    data_change: bool
    """Whether rows were added or removed; False for a compaction, a change of properties, a record in the log."""
    tags: Mapping[str, str]
    """The tags of commitInfo."""
    partitions: frozenset[PartitionValues]
    """The partitions that got or lost rows. What a remove without partition values emptied is no partition of any
    table, for `LogFollower.partitions` to find out."""
    filled: frozenset[PartitionValues]
    """Those of them that got rows."""


class LogFollower:
    """The log of the table in `store`, followed from look to look. For one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[int, FileInfo] = {}
        self._times: dict[int, int] = {}
        self._latest = -1
        self._facts: OrderedDict[int, CommitFacts] = OrderedDict()
        self._metadata: Metadata | None = None

    # --- what is there ----------------------------------------------------------------------------------------------

    def look(self) -> Position:
        """The table's latest version; -1 where there is no table yet. One listing, and no commit is read.

        Raises LogGap where a commit is missing that the latest version needs, and what the store raises.
        """
        if self._latest < 0 or not self._look_further():
            self._look_at_all()
        return self.position

    @property
    def position(self) -> Position:
        """The latest version at the last look."""
        return self.position_of(self._latest)

    def position_of(self, version: int) -> Position:
        """A version of the last look with its mark, which is None where the log does not hold its commit."""
        file = self._files.get(version)
        return Position(version=version, commit_mark=None if file is None else _mark(file))

    @property
    def earliest(self) -> int:
        """The first version whose commit the log holds, with every later one; one past the latest where none is."""
        version = self._latest + 1
        while version - 1 in self._files:
            version -= 1
        return version

    def is_another_log(self, position: Position) -> bool:
        """Whether the position is of another log than the one of the last look: it is later than all, or its mark
        differs.

        A table that is gone (no version at all) is not called another one before it is created again.
        """
        if self._latest < 0 or position.version < 0:
            return False
        file = self._files.get(position.version)
        return position.version > self._latest or (
            file is not None and position.commit_mark is not None and _mark(file) != position.commit_mark
        )

    def _look_further(self) -> bool:
        """Whether the log is the one that is known; if so, with what came after."""
        seen = self._files.get(self._latest)
        tail = list_tail(self._store, self._latest)
        # A listing may lag behind: only the name itself says that the log is another one.
        if seen is None:
            if tail.latest < self._latest:
                return False
        elif tail.commits.get(self._latest) != seen and self._store.stat(seen.path) != seen:
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
            # A gap is believed when it is seen twice, as in `list_segment`.
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

    # --- what the commits did ---------------------------------------------------------------------------------------

    def newest_first(self, after: int) -> Iterator[CommitFacts | None]:
        """The commits of the last look, from the latest down to the first one later than `after`.

        None, as the last item, for the commits that the log no longer holds. Commits are read as they are asked for.

        Raises CorruptCommit, LimitExceeded.
        """
        for version in range(self._latest, after, -1):
            if version not in self._facts and version in self._files:
                self._read(range(version, max(after, version - _READ_AHEAD), -1))
            facts = self._facts.get(version)
            yield facts
            if facts is None:
                return

    def facts(self, version: int) -> CommitFacts | None:
        """What the commit of a version of the last look did; None where the log does not hold it.

        Raises CorruptCommit, LimitExceeded.
        """
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
                # Cleaned since it was listed; so is what is older.
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
            # Whether it counts is asked only where there is one: it takes the table's metadata.
            properties = TableProperties(self.metadata().configuration, self._store.root)
            moment_ms = in_commit_ms(properties, commit.version, info)
        tags, operation = info.get("tags"), info.get("operation")
        filled = frozenset(_values(add.partition_values) for add in commit.adds if add.data_change)
        emptied = frozenset(_values_removed(each) for each in commit.removes if each.data_change)
        return CommitFacts(
            version=commit.version,
            timestamp_ms=self._times[commit.version] if moment_ms is None else moment_ms,
            operation=operation if isinstance(operation, str) else None,
            data_change=bool(filled or emptied),
            tags={str(name): str(value) for name, value in tags.items()} if isinstance(tags, dict) else {},
            partitions=filled | emptied,
            filled=filled,
        )

    # --- partitions -------------------------------------------------------------------------------------------------

    def metadata(self) -> Metadata:
        """The table's latest metadata, read once and after each commit that changes it.

        Raises TableNotFound, CorruptTable.
        """
        if self._metadata is None:
            self._metadata = latest_metadata(self._store)
        return self._metadata

    def any_is(self, partition: Mapping[str, str | None], values: frozenset[PartitionValues]) -> bool:
        """Whether one of these is the partition, whose values are texts by column name; typed values are compared.

        Columns that `partition` leaves out may have any value. Raises InvalidInput where it names what is no partition
        column, or a text that is no value of its column.
        """
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
                raise InvalidInput(
                    f"partition: the value of {name!r} is no value of its type, {member.type}.", table=self._store.root
                )
            asked, *found = zip(parsed.values.to_pylist(), parsed.known.to_pylist(), strict=True)
            candidates = [each for each, value in zip(candidates, found, strict=True) if value == asked]
        return bool(candidates)

    def partitions(self, commits: Iterable[CommitFacts]) -> list[dict[str, str | None]] | None:
        """The partitions that the commits changed, each once: the log's texts by column, in the table's order of
        columns. Empty for a table without partitions. None where they are not known: a commit removes files without
        their partition values, as the protocol allows, or the table had other partition columns then.

        Raises TableNotFound, CorruptTable.
        """
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


def _values_removed(remove: Remove) -> PartitionValues:
    return _NOT_WRITTEN if remove.partition_values is None else _values(remove.partition_values)


def _values(values: Mapping[str, str | None]) -> PartitionValues:
    return tuple(sorted(values.items()))


def _mark(file: FileInfo) -> str:
    """What distinguishes the file from another of its name, as a short text."""
    return file.etag.strip('"') if file.etag else f"{file.modified_ms:x}-{file.size_bytes:x}"


def _missing(listing: Listing) -> int | None:
    """The first version that the latest one needs and that has no commit; None where it can be rebuilt."""
    start = max(listing.checkpoints, default=-1) + 1
    return next((version for version in range(start, listing.latest + 1) if version not in listing.commits), None)
