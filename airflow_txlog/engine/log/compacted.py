"""The commits of a segment, read: through log compaction files where these make it shorter.

The invariant: with and without compaction files the replay is the same. A compaction is used whole or not at all, only
inside the segment, and never instead of the last commit, which alone has the time of the version. One that cannot be
read is passed over for the commits that it stands for: they are all listed, or there is no segment.
Source: protocol, "Log Compaction Files".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from airflow_txlog.engine.log.actions import Commit
from airflow_txlog.engine.log.listing import CompactedFile
from airflow_txlog.engine.log.segment import LogSegment
from airflow_txlog.engine.log.tail import read_files
from airflow_txlog.engine.log.warned import warn_once
from airflow_txlog.engine.log.wire import decode_commit
from airflow_txlog.errors import CorruptCommit, LimitExceeded
from airflow_txlog.storage.base import FileInfo, Store

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
