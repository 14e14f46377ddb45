"""Which files of the log make up one version: a checkpoint and the commits after it.

The one invariant: a segment is complete. It starts at version 0 or at a whole checkpoint, and no commit between there
and its version is missing; what cannot be completed is an error, never a shorter table. Only names are looked at here;
reading them is left to others. A cold open costs one small read (the hint) and one listing.
Source: delta-spark, SnapshotManagement; protocol, "Checkpoints" and "Log Compaction Files".
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from airflow_txlog.engine.log.last_checkpoint import read_hint
from airflow_txlog.engine.log.listing import CheckpointFiles, CompactedFile, Listing, look
from airflow_txlog.engine.log.names import LOG_DIRECTORY, version_prefix
from airflow_txlog.errors import LogGap, TableError, TableNotFound, VersionNotFound
from airflow_txlog.storage.base import FileInfo, Store


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
