"""The files of a table to rewrite, and their grouping: pure functions of a snapshot's files.

A *bin* is files of one partition that are rewritten together. The invariant: a bin never holds files of two partitions,
no file is in two bins, and no bin would yield one sound file again. So optimizing again at once finds nothing to do.
Source: delta-spark, OptimizeTableCommand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.paths import misspelled
from airflow_txlog.engine.table.snapshot.files import file_keys, stated_count, vectors_of

# A file of at least this share of the target is left alone: growing it by a quarter is not worth a rewrite.
LARGE_SHARE = 0.75
# A file with a larger share of deleted rows is rewritten whatever its size, as delta-spark does.
WORN_SHARE = 0.05
# The cost of a file in its bin even if it is empty: a task that opens ten thousand files one by one takes too long.
_FILE_COST_BYTES = 128 * 1024
_FILES_A_BIN = 1000
# Bins of a partition that still accept files. With more, files fit a little better, at a quadratic cost.
_OPEN_BINS = 32

Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Files that are rewritten together: rows of a table `FILES`, in the order in which their rows are written.

    `size_bytes` is their size, `live_bytes` about that of their rows without the deleted ones.
    """

    files: pa.Table
    size_bytes: int
    live_bytes: int

    def keys(self, root: str) -> frozenset[str]:
        """Return the files' keys: canonical path and deletion vector."""
        return frozenset(file_keys(self.files, root).to_pylist())


@dataclass(frozen=True, slots=True)
class _File:
    row: int
    partition: Partition
    size_bytes: int
    live_bytes: int
    is_worn: bool


def compaction_bins(files: pa.Table, target_bytes: int, open_bins: int = _OPEN_BINS) -> list[Bin]:
    """Return the bins of small and of worn files.

    A file is worn if many of its rows are deleted, or if another engine's VACUUM would not know its path
    (`misspelled`). Files that another engine has clustered are left alone unless they are worn. The rows of a bin take
    no more than the target now, unless it is one worn file.
    """
    is_small = pc.less(files.column("size"), int(LARGE_SHARE * target_bytes))
    is_free = pc.and_(is_small, pc.is_null(files.column("clustering_provider")))
    may_be_worn = pc.or_(pc.is_valid(files.column("deletion_vector")), misspelled(files.column("path")))
    candidates = pc.or_(is_free, may_be_worn)
    free, files = is_free.filter(candidates).to_pylist(), files.filter(candidates)
    chosen = [file for file in _described(files) if file.is_worn or free[file.row]]
    packed = _packed(chosen, target_bytes, open_bins)
    return [_bin(files, each) for each in packed if len(each) > 1 or each[0].is_worn]


def purge_bins(files: pa.Table, target_bytes: int) -> list[Bin]:
    """Return the bins of all files that have a deletion vector."""
    files = files.filter(pc.is_valid(files.column("deletion_vector")))
    return [_bin(files, each) for each in _packed(_described(files), target_bytes)]


def partition_bins(files: pa.Table) -> list[Bin]:
    """Return all files of each partition as one bin."""
    groups: dict[Partition, list[_File]] = {}
    for file in _described(files):
        groups.setdefault(file.partition, []).append(file)
    return [_bin(files, group) for group in groups.values()]


def batches_of(bins: Sequence[Bin], batch_bytes: int | None) -> Iterator[list[Bin]]:
    """Yield the bins in batches of at most `batch_bytes`, but at least one bin. Each batch becomes a commit."""
    batch: list[Bin] = []
    taken = 0
    for each in bins:
        if batch and batch_bytes is not None and taken + each.size_bytes > batch_bytes:
            yield batch
            batch, taken = [], 0
        batch.append(each)
        taken += each.size_bytes
    if batch:
        yield batch


def size_metrics(sizes: Sequence[int]) -> Mapping[str, int]:
    """Return quantiles of the sizes of the added files, as delta-spark counts them."""
    if not sizes:
        return {}
    found = sorted(sizes)
    return {
        "minFileSize": found[0],
        "p25FileSize": found[len(found) // 4],
        "p50FileSize": found[len(found) // 2],
        "p75FileSize": found[len(found) * 3 // 4],
        "maxFileSize": found[-1],
    }


def _packed(files: Sequence[_File], target_bytes: int, open_bins: int = _OPEN_BINS) -> list[list[_File]]:
    """Pack files into bins, first fit in the given order: files written together stay together if they fit."""
    least = min(_FILE_COST_BYTES, target_bytes // _FILES_A_BIN)
    found: list[list[_File]] = []
    places_of: dict[Partition, list[tuple[int, list[_File]]]] = {}
    for file in files:
        cost = max(file.live_bytes, least)
        places = places_of.setdefault(file.partition, [])
        fitting = next((index for index, (taken, _) in enumerate(places) if taken + cost <= target_bytes), None)
        if fitting is not None:
            taken, members = places[fitting]
            members.append(file)
            places[fitting] = (taken + cost, members)
            continue
        found.append([file])
        places.append((cost, found[-1]))
        if len(places) > open_bins:
            # The fullest bin has the least room.
            places.remove(max(places, key=lambda place: place[0]))
    return found


def _described(files: pa.Table) -> list[_File]:
    """Return the facts for packing, oldest file first."""
    order = pc.sort_indices(files, [("modification_time", "ascending"), ("path", "ascending")]).to_pylist()
    vectors, unknown_paths = vectors_of(files), misspelled(files.column("path")).to_pylist()
    sizes, partitions = files.column("size").to_pylist(), files.column("partition_values").to_pylist()
    found = []
    for row in order:
        live, is_worn = sizes[row], unknown_paths[row]
        vector = vectors.get(row)
        if vector is not None:
            # A count of the rows that are left makes a file look more worn than it is; rewriting it does no harm.
            # Without a count, neither the share of deleted rows nor the worth of the file's statistics is known.
            records = stated_count(files.column("stats")[row].as_py())
            share = min(vector.cardinality / records, 1.0) if records else 1.0
            live, is_worn = int(live * (1 - share)) if records else live, is_worn or share > WORN_SHARE
        found.append(_File(row, tuple(sorted(partitions[row] or [])), sizes[row], live, is_worn))
    return found


def _bin(files: pa.Table, members: Sequence[_File]) -> Bin:
    return Bin(
        files=files.take(pa.array([file.row for file in members], pa.int64())),
        size_bytes=sum(file.size_bytes for file in members),
        live_bytes=sum(file.live_bytes for file in members),
    )
