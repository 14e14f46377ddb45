"""The files of the log that make up one version, a checkpoint and the commits after it; and reading those commits.

`_last_checkpoint` names the version at which a listing may start. It is only a hint: it may be missing, stale, torn or
wrong, and never affects a table's content. Two invariants. A segment is complete: it starts at version 0 or at a whole
checkpoint, and no commit from there to its version is missing; an incomplete segment is an error, never a shorter
table. And a log compaction file never changes a replay: it is used whole or not at all, only inside the segment, and
never instead of the last commit, which alone has the time of the version. A cold open costs one small read (the hint)
and one listing.
Source: protocol, "Last Checkpoint File", "File Types", "Checkpoints" and "Log Compaction Files"; delta-spark,
SnapshotManagement.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_txlog.engine.log.actions import UNREADABLE, Commit, decode_commit
from airflow_txlog.engine.log.names import (
    LAST_CHECKPOINT,
    LOG_DIRECTORY,
    MAX_VERSION,
    LogKind,
    commit_name,
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
from airflow_txlog.storage.limits import LOG_FILE
from airflow_txlog.storage.local_files import is_local_file

log = logging.getLogger(__name__)

_seen: set[tuple[str, str]] = set()


def warn_once(log: logging.Logger, table: str, path: str, what: str) -> None:
    """Log, once per process, that the file `path` is skipped; `what` is the reason and the alternative."""
    if (table, path) not in _seen:
        _seen.add((table, path))
        log.warning("%s: %s is passed over: %s", table, path, what)


class V2Hint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The content of a V2 checkpoint, as delta-spark repeats it in the hint. Written for others; we never read it."""

    path: str
    """The name of the top level, in the log."""
    size_in_bytes: int
    modification_time: int
    non_file_actions: Sequence[Mapping[str, Any]] | None = None
    """Every action of the top level but those that name sidecars, each under its name."""
    sidecar_files: Sequence[msgspec.Struct] | None = None


class LastCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The hint as we write it. Sizes are informative."""

    version: int
    size: int | None = None
    """Number of actions in the checkpoint."""
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None
    v2_checkpoint: V2Hint | None = None


# Only the version is used, so a wrong type anywhere else must not cost the hint.
class _VersionOnly(msgspec.Struct, frozen=True):
    version: int


_hint_decoder = msgspec.json.Decoder(_VersionOnly)


def read_hint(store: Store) -> int | None:
    """Return the version that `_last_checkpoint` names; None if there is no such file, or it is a link or malformed."""
    try:
        version = _hint_decoder.decode(store.read(LAST_CHECKPOINT)).version
    except (FileNotFoundError, LimitExceeded, OutsideTable, *UNREADABLE):
        return None
    return version if 0 <= version <= MAX_VERSION else None


def write_hint(store: Store, hint: LastCheckpoint) -> None:
    """Replace the hint, unless it names a later checkpoint. A stale one, after a race, costs a reader time alone."""
    known = read_hint(store)
    if known is None or known <= hint.version:
        store.put(LAST_CHECKPOINT, msgspec.json.encode(hint))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """A checkpoint that is complete by its names: one file (of V2 the top level), or all parts in order."""

    version: int
    files: tuple[FileInfo, ...]

    @property
    def path(self) -> str:
        """The path of the (first) file, relative to the table, which identifies the checkpoint."""
        return self.files[0].path


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFile:
    """One file that holds the reconciled actions of the commits `start` to `end`, both inclusive."""

    start: int
    end: int
    info: FileInfo


@dataclass(slots=True)
class Listing:
    """The files that one listing of the log names. Nothing was opened.

    Checkpoints that are incomplete by their names are left out; only reading shows which of the others is valid.
    """

    commits: dict[int, FileInfo] = field(default_factory=dict)
    checkpoints: dict[int, list[CheckpointFiles]] = field(default_factory=dict)
    """By version, in the order in which a reader should try them: classic (one request), V2, in parts."""
    compactions: list[CompactedFile] = field(default_factory=list)

    @property
    def latest(self) -> int:
        """The last version that any file names, or -1."""
        return max([*self.commits, *self.checkpoints], default=-1)

    @property
    def earliest(self) -> int | None:
        """The first version that can be rebuilt, unless there are gaps."""
        return 0 if 0 in self.commits else min(self.checkpoints, default=None)


def look(store: Store, start: int) -> Listing:
    """Return the files of version `start` and later, from one request."""
    listing = Listing()
    if start > MAX_VERSION:
        return listing
    parts: dict[tuple[int, int], dict[int, FileInfo]] = defaultdict(dict)
    whole: list[tuple[int, str, CheckpointFiles]] = []
    first = version_prefix(start).removeprefix(f"{LOG_DIRECTORY}/")
    for info in store.list(LOG_DIRECTORY, start_from=first):
        name = parse_name(info.path)
        if name is None:
            continue
        if name.kind is LogKind.COMMIT:
            listing.commits[name.version] = info
        # A file without bytes was left by a writer on a store that shows unfinished files.
        elif info.size_bytes == 0:
            continue
        elif name.end_version is not None:
            listing.compactions.append(CompactedFile(start=name.version, end=name.end_version, info=info))
        elif name.part is not None and name.parts is not None:
            parts[name.version, name.parts][name.part] = info
        elif name.kind in (LogKind.CLASSIC_CHECKPOINT, LogKind.V2_CHECKPOINT):
            rank = int(name.kind is LogKind.V2_CHECKPOINT)
            whole.append((rank, info.path, CheckpointFiles(version=name.version, files=(info,))))
    # Two writers may cut one version differently; only a complete set counts.
    for (version, count), by_number in parts.items():
        if len(by_number) == count:
            files = tuple(by_number[part] for part in range(1, count + 1))
            whole.append((2, files[0].path, CheckpointFiles(version=version, files=files)))
    for *_, checkpoint in sorted(whole, key=lambda each: each[:2]):
        listing.checkpoints.setdefault(checkpoint.version, []).append(checkpoint)
    return listing


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """The files of `version`: the checkpoint, if any, and then every commit, ascending and without a gap."""

    version: int
    checkpoint: CheckpointFiles | None
    commits: list[FileInfo]
    compactions: tuple[CompactedFile, ...] = ()
    """Files that each hold the actions of several of `commits`; using them is optional."""
    commit_file: FileInfo | None = None
    """The commit of `version` itself; None if log cleanup has deleted it."""


def list_segment(store: Store, version: int | None = None, *, without: Collection[str] = ()) -> LogSegment:
    """Return the files that make up `version`, by default the latest.

    `without` names checkpoints (`CheckpointFiles.path`) that turned out unreadable. Raises TableNotFound without a
    commit; VersionNotFound (earliest, latest) if the version was never written or can no longer be rebuilt; LogGap if a
    commit that it needs is missing.
    """
    hint = None if without else read_hint(store)
    if hint and (version is None or hint <= version):
        # A hint whose checkpoint is gone or torn is ignored.
        with suppress(TableError):
            return _segment_of(look(store, hint), version, store.root, without)
    # A gap counts if it is seen twice: a listing may race with writers and show commit 8 without commit 7, or race with
    # a log cleanup and miss both a checkpoint and the commits before it.
    with suppress(LogGap):
        return _segment_of(look(store, 0), version, store.root, without)
    return _segment_of(look(store, 0), version, store.root, without)


def _segment_of(listing: Listing, wanted: int | None, table: str, without: Collection[str]) -> LogSegment:
    latest = listing.latest
    if latest < 0:
        has_none = f"has no {LOG_DIRECTORY} with a commit in it"
        found = "is a file, and a table is a folder" if is_local_file(table) else has_none
        raise TableNotFound(
            f"{table} {found}. Check the table's URI. Nothing was read or written.",
            table=table,
        )
    # Unreadable checkpoints still count for the latest version: a table never shrinks because a file cannot be read.
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
    # Files before a later checkpoint may be cleaned in any order: the table is sound, that version is gone.
    if wanted is not None and any(each > version for each in listing.checkpoints):
        raise _not_found(table, version, listing)
    if wanted is not None and checkpoint is None and 0 not in listing.commits and listing.earliest is not None:
        raise _not_found(table, version, listing)
    path = commit_name(gap)
    raise LogGap(
        f"LogGap: {path} of {table} is missing, and version {version} cannot be rebuilt without it: the log was cut "
        "before a usable checkpoint, or a file of it was lost. Nothing was changed.",
        table=table,
        path=path,
        version=gap,
    )


def _checkpoint_for(listing: Listing, version: int, without: Collection[str]) -> CheckpointFiles | None:
    """Return the latest checkpoint up to `version`; of one version the first that may be tried."""
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


def read_at_once(store: Store, segment: LogSegment) -> dict[FileInfo, bytes]:
    """Return the bytes of the segment's files by their `FileInfo`, read at once so that a remote store is awaited once.

    Empty for a store that is not remote, without a checkpoint, and for a segment with many bytes, with a file of more
    than `LOG_FILE` allows, or with compactions, which are read in their turn. Raises FileNotFoundError if log cleanup
    took a file.
    """
    if not store.is_remote or segment.checkpoint is None or segment.compactions:
        return {}
    files = [*segment.checkpoint.files, *reversed(segment.commits)]
    sizes = [info.size_bytes for info in files]
    # The limit is not for checkpoints in Parquet, but `read_all` knows no other.
    if sum(sizes) > store.limits.read_log_bytes or max(sizes) > LOG_FILE.allowed:
        return {}
    return dict(zip(files, store.read_all([info.path for info in files]), strict=True))


def read_commits(
    store: Store, segment: LogSegment, contents: Mapping[FileInfo, bytes] | None = None
) -> Iterator[Commit]:
    """Yield the commits of the segment, newest first; a run of them may be one `Commit` with the version of its last.

    The last commit of the segment comes first, on its own: again in a compaction, its actions are the newest there.
    `contents`: bytes of commits that were read before, by their files. Raises CorruptCommit, FileNotFoundError if log
    cleanup took one.
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
    """Return the fewest files that cover versions `first` to `last`, each once: (start, end, compaction)."""
    by_start: dict[int, list[CompactedFile]] = {}
    for each in compactions:
        if first <= each.start and each.end <= last:
            by_start.setdefault(each.start, []).append(each)
    if not by_start:
        return [(version, version, None) for version in range(first, last + 1)]
    cost = {last + 1: 0}
    step: dict[int, _Step] = {}
    for version in range(last, first - 1, -1):
        cost[version], step[version] = 1 + cost[version + 1], (version, version, None)
        for each in by_start.get(version, ()):
            # The last commit is always read separately, too.
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
    """Return the actions of a compaction as one commit; None if it cannot be used, and the commits are read instead."""
    path = compaction.info.path
    try:
        commit = decode_commit(compaction.end, store.read(path), path)
    except (CorruptCommit, FileNotFoundError, LimitExceeded) as error:
        warn_once(log, store.root, path, f"{error} The commits that it stands for are read.")
        return None
    files = [
        {(each.path, each.deletion_vector and each.deletion_vector.unique_id) for each in actions}
        for actions in (commit.adds, commit.removes)
    ]
    if not files[0].isdisjoint(files[1]):
        # Which of the two came last cannot be known from one file.
        why = "it adds and removes one file, so it is not reconciled. The commits that it stands for are read."
        warn_once(log, store.root, path, why)
        return None
    return msgspec.structs.replace(commit, info=None)
