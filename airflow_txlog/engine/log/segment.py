"""Which files of the log make up one version: a checkpoint and the commits after it.

The one invariant: a segment is complete. It starts at version 0 or at a whole checkpoint, and no commit between there
and its version is missing; what cannot be completed is an error, never a shorter table. Only names are looked at here;
reading them is left to others. A cold open costs one small read (the hint) and one listing.
Source: delta-spark, SnapshotManagement; protocol, "Checkpoints" and "Log Compaction Files".
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_txlog.engine.log.actions import Commit, decode_commit
from airflow_txlog.engine.log.names import (
    LAST_CHECKPOINT,
    LOG_DIRECTORY,
    MAX_VERSION,
    LogFile,
    LogKind,
    parse_name,
    version_prefix,
)
from airflow_txlog.engine.log.tail import read_files
from airflow_txlog.errors import (
    CorruptCommit,
    LimitExceeded,
    LogGap,
    OutsideTable,
    TableError,
    TableNotFound,
    VersionNotFound,
)
from airflow_txlog.storage.base import FileInfo, Store

_seen: set[tuple[str, str]] = set()


def warn_once(log: logging.Logger, table: str, path: str, what: str) -> None:
    """Log that the file `path` of the table is passed over; `what` says why, and what is done instead."""
    if (table, path) not in _seen:
        _seen.add((table, path))
        log.warning("%s: %s is passed over: %s", table, path, what)


class V2Hint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the hint says of a V2 checkpoint, as delta-spark writes it: others need not read the top level then.

    We never believe it: the checkpoint itself says the same.
    """

    path: str
    """The name of the top level, in the log."""
    size_in_bytes: int
    modification_time: int
    non_file_actions: Sequence[Mapping[str, Any]] | None = None
    """Every action of the top level but those that name sidecars, each under its name."""
    sidecar_files: Sequence[msgspec.Struct] | None = None


class LastCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What we write, and of what others write the part that is of use. Sizes are informative."""

    version: int
    size: int | None = None
    """Number of actions in the checkpoint."""
    parts: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None
    v2_checkpoint: V2Hint | None = None


# Of a hint only the version is used, so a wrong type anywhere else must not cost the hint.
class _VersionOnly(msgspec.Struct, frozen=True):
    version: int


_hint_decoder = msgspec.json.Decoder(_VersionOnly)


def read_hint(store: Store) -> int | None:
    """The version that `_last_checkpoint` names, or None where no such file is, or it is a link or makes no sense."""
    try:
        version = _hint_decoder.decode(store.read(LAST_CHECKPOINT)).version
    except (
        FileNotFoundError,
        LimitExceeded,
        OutsideTable,
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):
        return None
    return version if 0 <= version <= MAX_VERSION else None


def write_hint(store: Store, hint: LastCheckpoint) -> None:
    """Replace the hint, unless the one that is there names a later checkpoint.

    Two writers may still interleave and leave the older one: a stale hint costs a reader time, never an answer.
    """
    known = read_hint(store)
    if known is None or known <= hint.version:
        store.put(LAST_CHECKPOINT, msgspec.json.encode(hint))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """A checkpoint that is complete by its names: one file, or all the parts in their order.

    The file of a V2 checkpoint is its top level; which sidecars belong to it stands inside.
    """

    version: int
    files: tuple[FileInfo, ...]

    @property
    def path(self) -> str:
        """The path of the (first) file, relative to the table: no two checkpoints share one."""
        return self.files[0].path


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFile:
    """One file that holds the reconciled actions of the commits `start` to `end`, both inclusive."""

    start: int
    end: int
    info: FileInfo


@dataclass(slots=True)
class Listing:
    """What one listing of the log names."""

    commits: dict[int, FileInfo] = field(default_factory=dict)
    checkpoints: dict[int, list[CheckpointFiles]] = field(default_factory=dict)
    """By version; those of one version in the order in which a reader should try them."""
    compactions: list[CompactedFile] = field(default_factory=list)

    @property
    def latest(self) -> int:
        """The last version that any file of the log names, or -1."""
        return max([*self.commits, *self.checkpoints], default=-1)

    @property
    def earliest(self) -> int | None:
        """The first version that can be rebuilt, as far as is known without looking for gaps."""
        return 0 if 0 in self.commits else min(self.checkpoints, default=None)


def look(store: Store, start: int) -> Listing:
    """What the log names of version `start` and later, from one request."""
    listing = Listing()
    if start > MAX_VERSION:
        return listing
    parts: dict[tuple[int, int], dict[int, FileInfo]] = defaultdict(dict)
    singles: dict[int, list[tuple[LogKind, FileInfo]]] = defaultdict(list)
    first = version_prefix(start).removeprefix(f"{LOG_DIRECTORY}/")
    for info in store.list(LOG_DIRECTORY, start_from=first):
        name = parse_name(info.path)
        if name is None:
            continue
        if name.kind is LogKind.COMMIT:
            listing.commits[name.version] = info
        # What has no bytes was left by a writer on a store where half a file can be seen.
        elif info.size_bytes == 0:
            continue
        elif name.kind is LogKind.COMPACTED and name.end_version is not None:
            listing.compactions.append(CompactedFile(start=name.version, end=name.end_version, info=info))
        elif name.kind is LogKind.MULTIPART_CHECKPOINT:
            _add_part(parts, name, info)
        elif name.kind in (LogKind.CLASSIC_CHECKPOINT, LogKind.V2_CHECKPOINT):
            singles[name.version].append((name.kind, info))
    listing.checkpoints = _checkpoints(singles, parts)
    return listing


def _add_part(parts: dict[tuple[int, int], dict[int, FileInfo]], name: LogFile, info: FileInfo) -> None:
    if name.part is not None and name.parts is not None:
        parts[name.version, name.parts][name.part] = info


def _checkpoints(
    singles: dict[int, list[tuple[LogKind, FileInfo]]], parts: dict[tuple[int, int], dict[int, FileInfo]]
) -> dict[int, list[CheckpointFiles]]:
    """By version: a classic one first (one request reads it), then V2, then those in parts."""
    found: dict[int, list[CheckpointFiles]] = defaultdict(list)
    for version, files in singles.items():
        for _, info in sorted(files, key=lambda each: (each[0] is not LogKind.CLASSIC_CHECKPOINT, each[1].path)):
            found[version].append(CheckpointFiles(version=version, files=(info,)))
    # Two writers may cut one version differently; only a set that is whole counts.
    for (version, count), by_number in sorted(parts.items()):
        if len(by_number) == count:
            ordered = tuple(by_number[part] for part in range(1, count + 1))
            found[version].append(CheckpointFiles(version=version, files=ordered))
    return dict(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """What to read for `version`: the checkpoint, if any, and then every commit, ascending and without a gap."""

    version: int
    checkpoint: CheckpointFiles | None
    commits: list[FileInfo]
    compactions: tuple[CompactedFile, ...] = ()
    """Files that hold what several of `commits` hold together; using them is optional."""
    commit_file: FileInfo | None = None
    """The commit of `version` itself as it was listed; None where log cleanup had taken it."""


def list_segment(store: Store, version: int | None = None, *, without: Collection[str] = ()) -> LogSegment:
    """The files that make up `version`, or the latest version.

    `without` names checkpoints (`CheckpointFiles.path`) that turned out unreadable: the segment leads past them, from
    another checkpoint of the version, an earlier one, or the first commit.

    Raises TableNotFound where there is no log or nothing in it; VersionNotFound (earliest, latest) where the version
    was never written or can no longer be rebuilt; LogGap where a commit is missing that the version needs.
    """
    hint = None if without else read_hint(store)
    if hint and (version is None or hint <= version):
        # A hint that leads nowhere (its checkpoint is gone or torn) is forgotten.
        with suppress(TableError):
            return _segment_of(look(store, hint), version, store.root, without)
    # A gap is believed when it is seen twice: a listing that runs beside writers may show commit 8 and not commit 7,
    # and one that runs beside a log cleanup may miss a checkpoint and find the commits before it gone.
    with suppress(LogGap):
        return _segment_of(look(store, 0), version, store.root, without)
    return _segment_of(look(store, 0), version, store.root, without)


def _segment_of(listing: Listing, wanted: int | None, table: str, without: Collection[str]) -> LogSegment:
    latest = listing.latest
    if latest < 0:
        raise TableNotFound(
            f"TableNotFound: {table} has no {LOG_DIRECTORY} with a commit in it. Nothing was read or written.",
            table=table,
        )
    # What is left out still shows which version is the latest: a table never shrinks because a file cannot be read.
    version = latest if wanted is None else wanted
    if not 0 <= version <= latest:
        raise _not_found(table, version, listing)
    checkpoint = _checkpoint_for(listing, version, without)
    start = 0 if checkpoint is None else checkpoint.version + 1
    gap = next((each for each in range(start, version + 1) if each not in listing.commits), None)
    if gap is None:
        return LogSegment(
            version=version,
            checkpoint=checkpoint,
            commits=[listing.commits[each] for each in range(start, version + 1)],
            compactions=tuple(each for each in listing.compactions if start <= each.start and each.end <= version),
            commit_file=listing.commits.get(version),
        )
    # What lies before a later checkpoint may be cleaned, and in any order: the table is sound, that version is gone.
    if wanted is not None and any(each > version for each in listing.checkpoints):
        raise _not_found(table, version, listing)
    if wanted is not None and checkpoint is None and 0 not in listing.commits and listing.earliest is not None:
        raise _not_found(table, version, listing)
    raise _gap(table, gap, version)


def _checkpoint_for(listing: Listing, version: int, without: Collection[str]) -> CheckpointFiles | None:
    """The latest checkpoint up to `version`, and of that version the first one that may be tried."""
    for each in sorted((each for each in listing.checkpoints if each <= version), reverse=True):
        usable = [checkpoint for checkpoint in listing.checkpoints[each] if checkpoint.path not in without]
        if usable:
            return usable[0]
    return None


def _not_found(table: str, version: int, listing: Listing) -> VersionNotFound:
    return VersionNotFound(
        f"VersionNotFound: version {version} of {table} cannot be read; "
        f"the log reaches from version {listing.earliest} to {listing.latest}.",
        table=table,
        version=version,
        earliest=listing.earliest,
        latest=listing.latest,
    )


def _gap(table: str, missing: int, needed_for: int) -> LogGap:
    path = f"{version_prefix(missing)}.json"
    return LogGap(
        f"LogGap: {path} of {table} is missing, and version {needed_for} cannot be rebuilt without it: the log was cut "
        "before a usable checkpoint, or a file of it was lost. Nothing was changed.",
        table=table,
        path=path,
        version=missing,
    )


log = logging.getLogger(__name__)


def read_commits(
    store: Store, segment: LogSegment, contents: Mapping[FileInfo, bytes] | None = None
) -> Iterator[Commit]:
    """The commits of the segment, newest first; a run of them may be one `Commit` that bears the version of its last.

    Few are in memory at a time. The first to come, the last one of the segment, is always there by itself. Where it
    ends a compaction it comes twice, which changes nothing: its actions are the newest of that range. `contents` are
    bytes of commits that were read before, by their files.

    Raises CorruptCommit for a commit that cannot be read, FileNotFoundError where log cleanup took one.
    """
    first = segment.version - len(segment.commits) + 1
    held = contents or {}

    def read(versions: Sequence[int]) -> Iterator[Commit]:
        files = [segment.commits[version - first] for version in versions]
        unread = read_files(store, [info for info in files if info not in held])
        for version, info in zip(versions, files, strict=True):
            yield decode_commit(version, held[info] if info in held else next(unread), info.path)

    singles: list[int] = []
    for start, end, compaction in reversed(_shortest(first, segment.version, segment.compactions)):
        compacted = None if compaction is None else _read_compacted(store, compaction)
        if compacted is None:
            singles += range(end, start - 1, -1)
            continue
        yield from read(singles)
        singles = []
        if end == segment.version:
            yield from read([end])
        yield compacted
    yield from read(singles)


_Step = tuple[int, int, CompactedFile | None]


def _shortest(first: int, last: int, compactions: Iterable[CompactedFile]) -> list[_Step]:
    """The fewest files that cover the versions `first` to `last`, each version once: (start, end, compaction)."""
    by_start: dict[int, list[CompactedFile]] = {}
    for each in compactions:
        # One that begins before the segment or reaches beyond the version holds what does not belong there.
        if first <= each.start and each.end <= last:
            by_start.setdefault(each.start, []).append(each)
    if not by_start:
        return [(version, version, None) for version in range(first, last + 1)]
    cost = {last + 1: 0}
    step: dict[int, _Step] = {}
    for version in range(last, first - 1, -1):
        cost[version], step[version] = 1 + cost[version + 1], (version, version, None)
        for each in by_start.get(version, ()):
            # The last commit is read beside the compaction that holds it.
            price = 1 + cost[each.end + 1] + (each.end == last)
            if price < cost[version]:
                cost[version], step[version] = price, (version, each.end, each)
    found: list[_Step] = []
    version = first
    while version <= last:
        found.append(step[version])
        version = step[version][1] + 1
    return found


def _read_compacted(store: Store, compaction: CompactedFile) -> Commit | None:
    """The actions of a compaction as one commit, or None where it is not what the protocol demands."""
    path = compaction.info.path
    try:
        commit = decode_commit(compaction.end, store.read(path), path)
    except (CorruptCommit, FileNotFoundError, LimitExceeded) as error:
        warn_once(log, store.root, path, f"{error} The commits that it stands for are read.")
        return None
    removed = {(each.path, each.deletion_vector and each.deletion_vector.unique_id) for each in commit.removes}
    if removed and any(
        (each.path, each.deletion_vector and each.deletion_vector.unique_id) in removed for each in commit.adds
    ):
        # Which of the two came last cannot be known from one file.
        why = "it adds and removes one file, so it is not reconciled. The commits that it stands for are read."
        warn_once(log, store.root, path, why)
        return None
    return msgspec.structs.replace(commit, info=None)
