"""Which files of the log make up one version: a checkpoint, or none, and the commits after it.

The invariant: a segment is contiguous. Between its checkpoint (or version 0) and its version no commit is missing, and
its version is the newest that the listing showed, or the one that was asked for. What `_last_checkpoint` says is only a
hint of where to begin: it may be stale, missing or garbage.
Source: delta-spark, SnapshotManagement.getLogSegmentForVersion; protocol, "Delta Log Entries".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_txlog.engine.log.last_checkpoint import read_last_checkpoint
from airflow_txlog.engine.log.names import LOG_DIRECTORY, LogFile, LogKind, parse_name, version_prefix
from airflow_txlog.engine.store.base import FileInfo, Store
from airflow_txlog.errors import LogGap, TableNotFound, UnsupportedFeature, VersionNotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """A complete checkpoint of one version: one classic file, or every part in order."""

    version: int
    parts: tuple[FileInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """What to read for one version: the checkpoint first, then the commits, ascending and contiguous."""

    version: int
    checkpoint: CheckpointFiles | None
    commits: list[FileInfo]


@dataclass(slots=True)
class _Listing:
    """The files of the log by kind; only what readers know, and nothing empty."""

    commits: dict[int, FileInfo]
    checkpoints: dict[int, CheckpointFiles]
    v2_checkpoints: set[int]


def list_segment(store: Store, version: int | None = None) -> LogSegment:
    """The segment of `version`, or of the latest one.

    One read of the hint and one listing where the hint is good. Raises TableNotFound, VersionNotFound (with the
    earliest and latest that can be rebuilt), LogGap, UnsupportedFeature where only a V2 checkpoint would do.
    """
    hint = read_last_checkpoint(store)
    if hint is not None and (version is None or hint <= version):
        listing = _list(store, hint)
        # The hint may lie, or its checkpoint may be of a form that we do not read: then everything is listed.
        if any(hint <= found and (version is None or found <= version) for found in listing.checkpoints):
            return _segment(store, listing, version)
    listing = _list(store, 0)
    if not listing.commits and not listing.checkpoints:
        if listing.v2_checkpoints:
            raise _needs_v2(store, max(listing.v2_checkpoints))
        raise TableNotFound(
            f"{store.root} holds no Delta table: its {LOG_DIRECTORY} has no commit. Check the path, or create it.",
            table=store.root,
        )
    return _segment(store, listing, version)


def list_commits_after(store: Store, version: int) -> list[FileInfo]:
    """The commits that follow `version`, ascending; empty where there is none.

    Raises LogGap where a later commit exists and the next one does not: the log was cleaned past `version`.
    """
    listing = _list(store, version + 1)
    found = sorted(listing.commits)
    if not found and any(checkpoint > version for checkpoint in listing.checkpoints):
        raise _gap(store, version + 1)
    _check_contiguous(store, found, version + 1)
    return [listing.commits[one] for one in found]


def _list(store: Store, start: int) -> _Listing:
    """The log from version `start` on."""
    commits: dict[int, FileInfo] = {}
    parts: dict[tuple[int, int], dict[int, FileInfo]] = {}
    v2: set[int] = set()
    prefix = version_prefix(start).removeprefix(f"{LOG_DIRECTORY}/")
    for info in store.list(LOG_DIRECTORY, start_from=prefix):
        name = parse_name(info.path)
        if name is None:
            continue
        if name.kind is LogKind.COMMIT:
            commits[name.version] = info
        elif name.kind is LogKind.V2_CHECKPOINT:
            v2.add(name.version)
        # An empty checkpoint is one whose writer died.
        elif name.kind in (LogKind.CLASSIC_CHECKPOINT, LogKind.MULTIPART_CHECKPOINT) and info.size_bytes:
            parts.setdefault((name.version, _count(name)), {})[name.part or 1] = info
    return _Listing(commits=commits, checkpoints=_complete(parts), v2_checkpoints=v2)


def _count(name: LogFile) -> int:
    """How many parts the checkpoint has; 0 for a classic one, so that it is preferred over parts of its version."""
    return name.parts or 0


def _complete(parts: dict[tuple[int, int], dict[int, FileInfo]]) -> dict[int, CheckpointFiles]:
    """The checkpoints of which every part is there."""
    found: dict[int, CheckpointFiles] = {}
    for (version, count), files in sorted(parts.items()):
        if version not in found and len(files) == max(count, 1):
            found[version] = CheckpointFiles(version=version, parts=tuple(files[part] for part in sorted(files)))
    return found


def _segment(store: Store, listing: _Listing, version: int | None) -> LogSegment:
    latest = max([*listing.commits, *listing.checkpoints])
    wanted = latest if version is None else version
    if not 0 <= wanted <= latest:
        raise _not_found(store, listing, wanted, latest)
    usable = [found for found in listing.checkpoints if found <= wanted]
    checkpoint = listing.checkpoints[max(usable)] if usable else None
    start = checkpoint.version + 1 if checkpoint else 0
    commits = sorted(found for found in listing.commits if start <= found <= wanted)
    if not checkpoint and 0 not in listing.commits:
        newer = [found for found in listing.v2_checkpoints if found <= wanted]
        if newer:
            raise _needs_v2(store, max(newer))
        if version is not None and listing.checkpoints:
            raise _not_found(store, listing, wanted, latest)
        raise _gap(store, 0)
    _check_contiguous(store, commits, start)
    if start + len(commits) - 1 != wanted:
        raise _gap(store, start + len(commits))
    return LogSegment(version=wanted, checkpoint=checkpoint, commits=[listing.commits[one] for one in commits])


def _check_contiguous(store: Store, versions: Iterable[int], start: int) -> None:
    for expected, found in enumerate(versions, start=start):
        if found != expected:
            raise _gap(store, expected)


def _gap(store: Store, version: int) -> LogGap:
    path = f"{version_prefix(version)}.json"
    return LogGap(
        f"{store.root}: version {version} is missing from the log ({path}), though later ones are there and no "
        "checkpoint stands in for it. The table cannot be read past it. Restore the file, or restore the table.",
        table=store.root,
        path=path,
        version=version,
    )


def _not_found(store: Store, listing: _Listing, version: int, latest: int) -> VersionNotFound:
    earliest = 0 if 0 in listing.commits else min(listing.checkpoints, default=latest)
    return VersionNotFound(
        f"{store.root}: version {version} cannot be rebuilt; the log holds versions {earliest} to {latest}.",
        table=store.root,
        version=version,
        earliest=earliest,
        latest=latest,
    )


def _needs_v2(store: Store, version: int) -> UnsupportedFeature:
    return UnsupportedFeature(
        f'{store.root} can only be read through its checkpoint of version {version}, which has the V2 form (feature '
        '"v2Checkpoint"); this engine reads classic and multi-part checkpoints. Nothing was read.',
        table=store.root,
        feature="v2Checkpoint",
        needed_to="read",
    )
