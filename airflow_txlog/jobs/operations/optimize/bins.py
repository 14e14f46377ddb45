"""The files of a table to rewrite, and their grouping: pure functions of a snapshot's files.

A *bin* is files of one partition that are rewritten together. The invariant: a bin never holds files of two partitions,
no file is in two bins, and no bin would yield one sound file again. So optimizing again at once finds nothing to do,
unless the new files are so much smaller than their sources that two of them fit into one.
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

    `size_bytes` is their size, `live_bytes` about that of their rows without the deleted ones. `is_worn`: one of them
    is to be rewritten whatever its size.
    """

    files: pa.Table
    size_bytes: int
    live_bytes: int
    is_worn: bool

    def keys(self, root: str) -> frozenset[str]:
        """Return the files' keys: canonical path and deletion vector."""
        return frozenset(file_keys(self.files, root).to_pylist())


@dataclass(frozen=True, slots=True)
class DescribedFile:
    """The facts about a file for packing; `row` is its row in the table `FILES`."""

    row: int
    partition: Partition
    size_bytes: int
    live_bytes: int
    is_worn: bool


def compaction_bins(files: pa.Table, target_bytes: int, open_bins: int = _OPEN_BINS) -> list[Bin]:
    """Return the bins of small and of worn files.

    A file is worn if many of its rows are deleted, or if another engine's VACUUM would not know its path
    (`misspelled`). The rows of a bin take no more than the target now, unless it is one worn file.
    """
    is_small = pc.less(files.column("size"), int(LARGE_SHARE * target_bytes))
    candidates = pc.or_(is_small, _may_be_worn(files))
    small, files = is_small.filter(candidates).to_pylist(), files.filter(candidates)
    chosen = [file for file in described(files) if file.is_worn or small[file.row]]
    packed = _packed(chosen, target_bytes, open_bins)
    return [bin_of(files, each) for each in packed if len(each) > 1 or each[0].is_worn]


def purge_bins(files: pa.Table, target_bytes: int) -> list[Bin]:
    """Return the bins of all files that have a deletion vector; a clustered file is alone, to stay clustered."""
    files = files.filter(pc.is_valid(files.column("deletion_vector")))
    clustered = pc.is_valid(files.column("clustering_provider")).to_pylist()
    alone: list[list[DescribedFile]] = []
    others: list[DescribedFile] = []
    for file in described(files):
        if clustered[file.row]:
            alone.append([file])
        else:
            others.append(file)
    return [bin_of(files, each) for each in (*_packed(others, target_bytes), *alone)]


def partition_bins(files: pa.Table) -> list[Bin]:
    """Return all files of each partition as one bin."""
    groups: dict[Partition, list[DescribedFile]] = {}
    for file in described(files):
        groups.setdefault(file.partition, []).append(file)
    return [bin_of(files, group) for group in groups.values()]


def worn(files: pa.Table) -> pa.Array:
    """Return for each file whether it is to be rewritten whatever its size (see `compaction_bins`)."""
    candidates = pc.indices_nonzero(_may_be_worn(files))
    rows = [file.row for file in described(files.take(candidates)) if file.is_worn]
    chosen = candidates.take(pa.array(rows, pa.int64())).cast(pa.int64())
    return pc.is_in(pa.array(range(files.num_rows), pa.int64()), value_set=chosen)


def _may_be_worn(files: pa.Table) -> pa.ChunkedArray:
    return pc.or_(pc.is_valid(files.column("deletion_vector")), misspelled(files.column("path")))


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


def _packed(
    files: Sequence[DescribedFile], target_bytes: int, open_bins: int = _OPEN_BINS
) -> list[list[DescribedFile]]:
    """Pack files into bins, first fit in the given order: files written together stay together if they fit."""
    least = min(_FILE_COST_BYTES, target_bytes // _FILES_A_BIN)
    found: list[list[DescribedFile]] = []
    places_of: dict[Partition, list[tuple[int, list[DescribedFile]]]] = {}
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


def described(files: pa.Table) -> list[DescribedFile]:
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
        found.append(DescribedFile(row, tuple(sorted(partitions[row] or [])), sizes[row], live, is_worn))
    return found


def bin_of(files: pa.Table, members: Sequence[DescribedFile]) -> Bin:
    """Return the bin of these members of a table `FILES`."""
    return Bin(
        files=files.take(pa.array([file.row for file in members], pa.int64())),
        size_bytes=sum(file.size_bytes for file in members),
        live_bytes=sum(file.live_bytes for file in members),
        is_worn=any(file.is_worn for file in members),
    )
