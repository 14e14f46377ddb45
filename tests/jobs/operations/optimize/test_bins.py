"""Alone in showing which files OPTIMIZE rewrites together, and that a second look finds nothing to do."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.log.actions import Add, DeletionVector
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.jobs.operations.optimize.bins import (
    Bin,
    batches_of,
    compaction_bins,
    partition_bins,
    purge_bins,
    size_metrics,
)


def add(path: str, size: int, *, time: int = 0, day: str | None = None, deleted: int = 0, **more: Any) -> Add:
    """A file of 100 rows, of which so many are masked."""
    vector = None
    if deleted:
        vector = DeletionVector(storage_type="i", path_or_inline_dv=path, size_in_bytes=1, cardinality=deleted)
    stats = more.pop("stats", json.dumps({"numRecords": 100}))
    return Add(
        path=path,
        partition_values={} if day is None else {"day": day},
        size=size,
        modification_time=time,
        data_change=True,
        stats=stats,
        deletion_vector=vector,
        **more,
    )


def paths(bins: list[Bin]) -> list[list[str]]:
    return [each.files.column("path").to_pylist() for each in bins]


def test_small_files_of_a_partition_go_together_in_the_order_in_which_they_were_written() -> None:
    files = adds_to_table(
        [
            add("b", 400, time=2, day="1"),
            add("a", 400, time=1, day="1"),
            add("other", 400, time=1, day="2"),
            add("c", 400, time=3, day="1"),
            add("large", 750, time=0, day="1"),
            add("alone", 100, time=0, day=None),
            add("d", 100, time=4, day="1"),
        ]
    )
    # c does not fit any more, d does; a large file, and one without company, are left alone.
    found = compaction_bins(files, 1000)
    assert paths(found) == [["a", "b", "d"]]
    assert (found[0].size_bytes, found[0].live_bytes) == (900, 900)
    files = pa.concat_tables([files, adds_to_table([add("e", 1, time=5, day="1"), add("f", 600, time=6, day="1")])])
    assert paths(compaction_bins(files, 1000)) == [["a", "b", "d", "e"], ["c", "f"]]


def test_a_worn_file_is_rewritten_whatever_its_size() -> None:
    files = adds_to_table(
        [
            add("worn", 5000, deleted=6),
            add("fresh", 5000, deleted=5),
            add("unknown", 5000, deleted=1, stats=None),
            add("small", 100, deleted=1),
            add("most", 1000, deleted=90),
        ]
    )
    found = compaction_bins(files, 1000)
    # What little is left of one file goes with another small one.
    assert sorted(paths(found)) == [["most", "small"], ["unknown"], ["worn"]]
    assert {each.live_bytes for each in found} == {4700, 5000, 198}


def test_a_purge_takes_the_files_with_vectors_and_no_others() -> None:
    files = adds_to_table([add("a", 900, deleted=1), add("b", 50, deleted=1), add("c", 100), add("d", 40, deleted=40)])
    assert paths(purge_bins(files, 1000)) == [["a", "b", "d"]]
    assert paths(purge_bins(files, 500)) == [["a"], ["b", "d"]]
    assert purge_bins(adds_to_table([add("c", 100)]), 1000) == []


def test_files_of_a_table_that_is_no_longer_clustered_are_joined_as_others() -> None:
    files = adds_to_table(
        [
            add("a", 10, clustering_provider="liquid"),
            add("b", 10, clustering_provider="liquid"),
            add("worn", 10, clustering_provider="liquid", deleted=50),
            add("c", 10),
            add("d", 10),
        ]
    )
    assert paths(compaction_bins(files, 1000)) == [["a", "b", "c", "d", "worn"]]


@pytest.mark.parametrize("seed", range(20))
def test_no_file_is_in_two_bins_and_what_comes_of_them_is_left_alone(seed: int) -> None:
    rng = random.Random(seed)
    target = 10_000
    adds = [
        add(
            f"f{number}",
            rng.choice([1, 10, 500, 3000, 7400, 7600, 20_000]),
            time=rng.randrange(100),
            day=rng.choice([None, "1", "2"]),
            deleted=rng.choice([0, 0, 0, 1, 50, 100]),
        )
        for number in range(300)
    ]
    found = compaction_bins(adds_to_table(adds), target)
    taken = [path for each in paths(found) for path in each]
    assert max(Counter(taken).values()) == 1
    by_path = {each.path: each for each in adds}
    left = [each for each in adds if each.path not in set(taken)]
    for number, each in enumerate(found):
        members = [by_path[path] for path in each.files.column("path").to_pylist()]
        assert len({tuple(member.partition_values.items()) for member in members}) == 1
        assert each.live_bytes <= target or len(members) == 1
        left.append(add(f"new{number}", each.live_bytes, time=200 + number, day=members[0].partition_values.get("day")))
    assert compaction_bins(adds_to_table(left), target) == []


def test_a_thousand_empty_files_fill_a_bin() -> None:
    found = compaction_bins(adds_to_table([add(f"f{number:05d}", 0) for number in range(2500)]), 1000)
    assert [each.files.num_rows for each in found] == [1000, 1000, 500]


def test_a_partition_with_many_bins_is_packed_without_looking_at_all_of_them() -> None:
    sizes = [600, 500, 550, 300, 300]
    files = adds_to_table([add(f"f{n}", size, time=n) for n, size in enumerate(sizes)])
    found = compaction_bins(files, 1000, open_bins=2)
    # The first bin was the fullest when a third one was opened.
    assert paths(found) == [["f1", "f3"], ["f2", "f4"]]


def test_all_files_of_a_partition_are_one_bin() -> None:
    files = adds_to_table([add("a", 10**6, day="1"), add("b", 1, day="2"), add("c", 1, day="1"), add("d", 5)])
    assert sorted(paths(partition_bins(files))) == [["a", "c"], ["b"], ["d"]]


def test_a_batch_holds_at_least_one_bin_and_no_more_than_fits() -> None:
    files = adds_to_table([add(f"f{n}", 400, day=str(n)) for n in range(5)])
    bins = partition_bins(files)
    assert [len(batch) for batch in batches_of(bins, 1000)] == [2, 2, 1]
    assert [len(batch) for batch in batches_of(bins, 1)] == [1] * 5
    assert [len(batch) for batch in batches_of(bins, None)] == [5]
    assert list(batches_of([], None)) == []


def test_sizes_are_told_in_quarters() -> None:
    assert size_metrics([]) == {}
    assert size_metrics([5]) == dict.fromkeys(
        ["minFileSize", "p25FileSize", "p50FileSize", "p75FileSize", "maxFileSize"], 5
    )
    assert list(size_metrics([40, 10, 30, 20]).values()) == [10, 20, 30, 40, 40]
