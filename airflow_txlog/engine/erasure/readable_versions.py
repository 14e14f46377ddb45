"""The versions of a table that can still be read: the log can rebuild them, and all their files exist."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

import pyarrow.compute as pc

from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.engine.log.paths import canonical_path, canonical_paths
from airflow_txlog.engine.log.segment import LogSegment, look, read_commits
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.errors import TableError
from airflow_txlog.locations import is_absolute

_File = tuple[str, str | None]


def readable_versions(table: DeltaTable) -> list[range] | None:
    """Return the versions that can be read now, in order, without a gap in each range; None if that is unknown.

    It is unknown where a commit of the log is damaged, or vanishes meanwhile. Files elsewhere, as a shallow clone has
    them, count as there. Raises the errors of the store.
    """
    store = table.store
    listing = look(store, 0)
    first, latest = listing.earliest, listing.latest
    if first is None:
        return []
    there = {info.path for info in store.walk(lambda folder: None)}
    try:
        lost = list(_lifetimes_of_gone(table, first, latest, there))
    except (TableError, FileNotFoundError, KeyError):
        return None
    # Each lifetime takes its versions away.
    ends = sorted({first, latest + 1, *(end for each in lost for end in (each.start, each.stop))})
    parts = [range(start, end) for start, end in pairwise(ends)]
    starts, stops = sorted(each.start for each in lost), sorted(each.stop for each in lost)
    found: list[range] = []
    begun = ended = 0
    for part in parts:
        while begun < len(starts) and starts[begun] <= part.start:
            begun += 1
        while ended < len(stops) and stops[ended] <= part.start:
            ended += 1
        if begun > ended:
            continue
        if found and found[-1].stop == part.start:
            found[-1] = range(found[-1].start, part.stop)
        else:
            found.append(part)
    return found


def ended(before: list[range] | None, after: list[range] | None) -> str:
    """Return the versions that could be read before, and cannot be read after, as a text: `0-4, 7`; empty for none."""
    if before is None or after is None:
        return "unknown"
    left = sorted({each for part in before for each in part}.difference(*after))
    runs: list[list[int]] = []
    for version in left:
        if runs and runs[-1][1] == version - 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return ", ".join(str(start) if start == end else f"{start}-{end}" for start, end in runs)


def _lifetimes_of_gone(table: DeltaTable, first: int, latest: int, there: Collection[str]) -> Iterator[range]:
    """Yield the versions in which each file was live that is gone, or whose deletion vector is."""
    store = table.store
    commits = look(store, 0).commits
    segment = LogSegment(
        version=latest, checkpoint=None, commits=[commits[each] for each in range(first + 1, latest + 1)]
    )
    is_gone = _is_gone(store.root, there)
    removed: dict[_File, int] = {}
    # Newest first: a file ends before it begins.
    for commit in read_commits(store, segment) if segment.commits else ():
        for add in commit.adds:
            key = canonical_path(add.path, store.root), _vector_of(add.deletion_vector, store.root)
            end = removed.pop(key, latest + 1)
            if is_gone(key):
                yield range(commit.version, end)
        for remove in commit.removes:
            removed[canonical_path(remove.path, store.root), _vector_of(remove.deletion_vector, store.root)] = (
                commit.version
            )
    live = table.snapshot(first).state.live
    paths = canonical_paths(live.column("path"), store.root).to_pylist()
    vectors = live.column("deletion_vector")
    with_vector = pc.is_valid(vectors).to_pylist()
    for at, (path, has_vector) in enumerate(zip(paths, with_vector, strict=True)):
        vector = None
        if has_vector:
            one = vectors[at].as_py()
            vector = vector_file(one["storage_type"], one["path_or_inline_dv"], store.root)
        if is_gone((path, vector)):
            yield range(first, removed.get((path, vector), latest + 1))


def _is_gone(root: str, there: Collection[str]) -> Callable[[_File], bool]:
    def is_gone(file: _File) -> bool:
        return any(each is not None and not is_absolute(each) and each not in there for each in file)

    return is_gone


def _vector_of(vector: DeletionVector | None, root: str) -> str | None:
    return None if vector is None else vector_file(vector.storage_type, vector.path_or_inline_dv, root)
