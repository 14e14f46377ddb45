"""The rows of a range of versions, as files: those that each commit added, or all of its changes.

A range is read in the schema of its last version. The invariants: every row of the range is in exactly one of the
returned files, and a commit in which new rows look like rows that only moved is refused by its number, before a
file is read.
Source: protocol, "Add CDC File" and "Change Data Files"; delta-spark, CDCReader and DeltaSource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_txlog.datafiles.staged_files import DELETE, INSERT
from airflow_txlog.engine.log.actions import Add, Metadata, Remove
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.table.changes.versions import VersionChanges, as_add, incompatible, only_copies
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import SourceGap

# It brings back files that an earlier version held, so the files that it adds hold no new rows.
_BRINGS_BACK = "RESTORE"
# The most files of one range: each is an object in memory.
MOST_FILES = 100_000


MetadataBefore = Callable[[], Metadata | None]
"""Returns the metadata of the version before a range; None if the log no longer shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFile:
    """A file with rows of one commit.

    `kind`: the change type of its rows; None if the file has a column of them. With `among`, the same file under
    another deletion vector, only the rows count that this vector deletes. `is_moved`: rows of it may only have moved
    between files of the commit, which their ids show.
    """

    add: Add
    kind: str | None
    version: int
    timestamp_ms: int
    among: Add | None = None
    is_moved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeBounds:
    """The most versions, files and bytes of a range; None for no bound. A range has one commit at least."""

    versions: int | None = None
    files: int | None = None
    size_bytes: int | None = None


def commits_within(
    commits: Iterable[VersionChanges], bounds: RangeBounds, before: MetadataBefore
) -> Iterator[VersionChanges]:
    """Yield the first commits of a range that fit the bounds and that one schema can read.

    A commit that changes the metadata so that earlier files cannot be read by it begins another range.
    """
    versions = files = size_bytes = 0
    last: Metadata | None = None
    most_files = MOST_FILES if bounds.files is None else min(bounds.files, MOST_FILES)
    for commit in commits:
        added, has_files = [add for add in commit.adds if add.data_change], files > 0
        versions, files = versions + 1, files + len(added) + len(commit.cdc)
        size_bytes += sum(add.size for add in added) + sum(file.size for file in commit.cdc)
        is_beyond = (
            (bounds.versions is not None and versions > bounds.versions)
            or (has_files and files > most_files)
            or (has_files and bounds.size_bytes is not None and size_bytes > bounds.size_bytes)
        )
        if commit.metadata is not None and versions > 1:
            last = last or before()
            is_beyond |= last is None or incompatible(last, commit.metadata) is not None
        last = commit.metadata or last
        if versions > 1 and is_beyond:
            return
        yield commit


def appended_files(end: Snapshot, commits: Iterable[VersionChanges], *, skips_changes: bool) -> list[CommitFile]:
    """Return the files that the commits added, each with new rows only.

    `skips_changes`: leave out commits that change or remove rows, with the rows that they add. Raises SourceGap.
    """
    found: list[CommitFile] = []
    for commit in commits:
        if not commit.data_change or only_copies(commit):
            continue
        removed = [remove for remove in commit.removes if remove.data_change]
        if removed or commit.operation == _BRINGS_BACK:
            if skips_changes:
                continue
            raise _refused(
                end,
                commit,
                "changes or removes rows, and the consumer reads rows that are added",
                "Give skip_change_commits=True to leave such commits out, changes=True to process their changes",
            )
        found += (_file(commit, add, INSERT) for add in commit.adds if add.data_change)
    return found


def changed_files(end: Snapshot, commits: Sequence[VersionChanges], before: MetadataBefore) -> list[CommitFile]:
    """Return the files with all changes of the commits.

    Raises SourceGap for a commit that rewrote rows without a change data feed or row tracking.
    """
    found: list[CommitFile] = []
    is_unchanged = all(commit.metadata is None for commit in commits)
    metadata = end.metadata if is_unchanged else before()
    for commit in commits:
        metadata = commit.metadata or metadata
        if commit.cdc:
            files = (as_add(file.path, file.partition_values, file.size) for file in commit.cdc)
            found += (_file(commit, file, None) for file in files)
        elif commit.data_change and not only_copies(commit):
            has_feed = metadata is not None and TableProperties(metadata.configuration, end.uri).change_data_feed
            found += _whole_files(end, commit, has_feed=has_feed)
    return found


def _whole_files(end: Snapshot, commit: VersionChanges, *, has_feed: bool) -> Iterator[CommitFile]:
    """Yield the rows that come and go with whole files, and with deletion vectors."""
    added = _by_path(end, [add for add in commit.adds if add.data_change])
    removes = [remove for remove in commit.removes if remove.data_change]
    if any(each.size is None or (end.partition_columns and each.partition_values is None) for each in removes):
        raise _refused(
            end,
            commit,
            "does not name the size or the partition of a file that it removed",
            "Start the consumer again after that version",
        )
    removed = _by_path(end, removes)
    gone, new = removed.keys() - added.keys(), added.keys() - removed.keys()
    is_moved = bool(gone and new) and not has_feed
    if is_moved and not _has_row_ids(end, [*(removed[path] for path in gone), *(added[path] for path in new)]):
        raise _refused(
            end,
            commit,
            "replaces files by others without a change data feed or row ids, so that rows which changed look like "
            "those which moved",
            "Set delta.enableChangeDataFeed on the source, and start the consumer again after that version",
        )
    for path in sorted({*removed, *added}):
        before, after = removed.get(path), added.get(path)
        if before is not None and after is not None:
            # The rows that the one version shows, and the vector of the other one deletes.
            if after.deletion_vector is not None:
                yield _file(commit, before, DELETE, among=after)
            if before.deletion_vector is not None:
                yield _file(commit, after, INSERT, among=before)
        elif before is not None:
            yield _file(commit, before, DELETE, is_moved=is_moved)
        elif after is not None:
            yield _file(commit, after, INSERT, is_moved=is_moved)


def _has_row_ids(end: Snapshot, files: Iterable[Add]) -> bool:
    numbered = (None not in (file.base_row_id, file.default_row_commit_version) for file in files)
    return end.table_properties.row_tracking and all(numbered)


def _by_path(end: Snapshot, actions: Sequence[Add | Remove]) -> dict[str, Add]:
    return {
        canonical_path(each.path, end.uri): as_add(each.path, each.partition_values or {}, each.size or 0, each)
        for each in actions
    }


def _file(
    commit: VersionChanges, add: Add, kind: str | None, *, among: Add | None = None, is_moved: bool = False
) -> CommitFile:
    version, moment_ms = commit.version, commit.timestamp_ms
    return CommitFile(add=add, kind=kind, version=version, timestamp_ms=moment_ms, among=among, is_moved=is_moved)


def _refused(end: Snapshot, commit: VersionChanges, why: str, instead: str) -> SourceGap:
    return SourceGap(
        f"version {commit.version} ({commit.operation or 'unnamed'}) of {end.uri} {why}. Nothing was processed. "
        f'{instead}, or on_gap="full" to rebuild the target from the whole source.',
        table=end.uri,
        version=commit.version,
    )
