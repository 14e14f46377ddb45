"""Which files of the log make up one version: a checkpoint and the commits after it.

The one invariant: a segment is complete. It starts at version 0 or at a whole checkpoint, and no commit between there
and its version is missing; what cannot be completed is an error, never a shorter table. Only names are looked at here;
reading them is left to others. A cold open costs one small read (the hint) and one listing.
Source: delta-spark, SnapshotManagement; protocol, "Checkpoints" and "Log Compaction Files" (which we leave unread).
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

from airflow_txlog.engine.log.last_checkpoint import read_hint
from airflow_txlog.engine.log.names import LOG_DIRECTORY, MAX_VERSION, LogKind, parse_name, version_prefix
from airflow_txlog.engine.store.base import FileInfo, Store
from airflow_txlog.errors import LogGap, TableError, TableNotFound, UnsupportedFeature, VersionNotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """A whole checkpoint: one file, or all the parts in their order."""

    version: int
    files: tuple[FileInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """What to read for `version`: the checkpoint, if any, and then every commit, ascending and without a gap."""

    version: int
    checkpoint: CheckpointFiles | None
    commits: list[FileInfo]


@dataclass(slots=True)
class _Listing:
    """One look at the log, from some version on."""

    commits: dict[int, FileInfo] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointFiles] = field(default_factory=dict)
    v2_checkpoints: set[int] = field(default_factory=set)

    @property
    def latest(self) -> int:
        """The last version that anything speaks of, or -1."""
        return max([*self.commits, *self.checkpoints, *self.v2_checkpoints], default=-1)

    @property
    def earliest(self) -> int | None:
        """The first version that can be rebuilt, as far as one can tell without looking for gaps."""
        return 0 if 0 in self.commits else min(self.checkpoints, default=None)


def list_segment(store: Store, version: int | None = None) -> LogSegment:
    """The files that make up `version`, or the latest version.

    Raises TableNotFound where there is no log or nothing in it; VersionNotFound (earliest, latest) where the version
    was never written or can no longer be rebuilt; LogGap where a commit is missing that the version needs;
    UnsupportedFeature("v2Checkpoint") where only a V2 checkpoint covers what was cleaned away.
    """
    hint = read_hint(store)
    if hint and (version is None or hint <= version):
        # A hint that leads nowhere (its checkpoint is gone, torn, or of a kind that we cannot read) is forgotten.
        with suppress(TableError, UnsupportedFeature):
            return _segment_of(_look(store, hint), version, store.root)
    # A gap is believed when it is seen twice: a listing that runs beside writers may show commit 8 and not commit 7,
    # and one that runs beside a log cleanup may miss a checkpoint and find the commits before it gone.
    with suppress(LogGap):
        return _segment_of(_look(store, 0), version, store.root)
    return _segment_of(_look(store, 0), version, store.root)


def _look(store: Store, start: int) -> _Listing:
    listing = _Listing()
    if start > MAX_VERSION:
        return listing
    parts: dict[tuple[int, int], dict[int, FileInfo]] = defaultdict(dict)
    first = version_prefix(start).removeprefix(f"{LOG_DIRECTORY}/")
    for info in store.list(LOG_DIRECTORY, start_from=first):
        name = parse_name(info.path)
        if name is None:
            continue
        if name.kind is LogKind.COMMIT:
            listing.commits[name.version] = info
        # A checkpoint of no bytes is what a writer leaves on a store where half a file can be seen.
        elif info.size_bytes == 0:
            continue
        elif name.kind is LogKind.CLASSIC_CHECKPOINT:
            listing.checkpoints[name.version] = CheckpointFiles(version=name.version, files=(info,))
        elif name.kind is LogKind.MULTIPART_CHECKPOINT and name.part and name.parts:
            parts[name.version, name.parts][name.part] = info
        elif name.kind is LogKind.V2_CHECKPOINT:
            listing.v2_checkpoints.add(name.version)
    for (version, count), found in parts.items():
        # Two writers may cut one version differently; only a set that is whole counts, and a single file is as good.
        if len(found) == count and version not in listing.checkpoints:
            files = tuple(found[part] for part in range(1, count + 1))
            listing.checkpoints[version] = CheckpointFiles(version=version, files=files)
    return listing


def _segment_of(listing: _Listing, wanted: int | None, table: str) -> LogSegment:
    latest = listing.latest
    if latest < 0:
        raise TableNotFound(
            f"TableNotFound: {table} has no {LOG_DIRECTORY} with a commit in it. Nothing was read or written.",
            table=table,
        )
    version = latest if wanted is None else wanted
    if not 0 <= version <= latest:
        raise _not_found(table, version, listing)
    checkpoint = max(
        (each for each in listing.checkpoints.values() if each.version <= version),
        key=lambda each: each.version,
        default=None,
    )
    start = 0 if checkpoint is None else checkpoint.version + 1
    gap = next((each for each in range(start, version + 1) if each not in listing.commits), None)
    if gap is None:
        commits = [listing.commits[each] for each in range(start, version + 1)]
        return LogSegment(version=version, checkpoint=checkpoint, commits=commits)
    if any(gap <= each <= version for each in listing.v2_checkpoints):
        raise UnsupportedFeature(
            f"UnsupportedFeature: version {version} of {table} can only be read from a V2 checkpoint (feature "
            '"v2Checkpoint"), which this engine does not read yet; no classic checkpoint and no complete run of '
            "commits leads there. Nothing was read.",
            table=table,
            feature="v2Checkpoint",
            needed_to="read",
        )
    # What lies before a later checkpoint may be cleaned, and in any order: the table is sound, that version is gone.
    if wanted is not None and any(each > version for each in listing.checkpoints):
        raise _not_found(table, version, listing)
    if wanted is not None and checkpoint is None and 0 not in listing.commits and listing.earliest is not None:
        raise _not_found(table, version, listing)
    raise _gap(table, gap, version)


def _not_found(table: str, version: int, listing: _Listing) -> VersionNotFound:
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
