"""Alone in showing which files of a clustered table OPTIMIZE sorts anew, and that a second look finds nothing to do."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.jobs.operations.optimize import cubes
from airflow_txlog.jobs.operations.optimize.bins import Bin, purge_bins
from airflow_txlog.jobs.operations.optimize.cubes import cluster_bins, cube_fields, kept_fields
from tests.jobs.operations.optimize.test_bins import add

COLUMNS = [("id",), ("s", "a b")]


def in_cube(path: str, size: int, cube: str, columns: Any = COLUMNS, **more: Any) -> Add:
    return add(path, size, **cube_fields(columns, cube), **more)


def chosen(adds: list[Add], **how: Any) -> list[set[str]]:
    return [set(each.files.column("path").to_pylist()) for each in cluster_bins(adds_to_table(adds), COLUMNS, **how)]


def test_the_tags_are_those_of_delta_spark() -> None:
    assert cube_fields(COLUMNS, "7") == {
        "clustering_provider": "liquid",
        "tags": {"ZCUBE_ID": "7", "ZCUBE_ZORDER_BY": '["id", "s.`a b`"]', "ZCUBE_ZORDER_CURVE": "zorder"},
    }


def test_files_of_no_cube_become_one_and_then_stay() -> None:
    assert chosen([add("a", 10), add("b", 2000)]) == [{"a", "b"}]
    # One file too: afterwards every file is clustered.
    assert chosen([add("a", 10)]) == [{"a"}]
    assert chosen([in_cube("a", 10, "1"), in_cube("b", 2000, "1")]) == []
    assert chosen([]) == []


def test_a_cube_grows_until_it_is_large_beside_the_new_files() -> None:
    cube = [in_cube("x", 300, "1"), in_cube("y", 99, "1")]
    assert chosen([*cube, add("new", 100)]) == [{"new", "x", "y"}]
    assert chosen([*cube, in_cube("z", 1, "1"), add("new", 100)]) == [{"new"}]
    # The smaller ones come first, and what they add up to counts.
    more = [in_cube("large", 1900, "2"), in_cube("huge", 10_000, "3")]
    assert chosen([*more, *cube, add("new", 100)]) == [{"new", "x", "y", "large"}]
    # Without new files cubes stay: rewritten ones need not have the size of their sources.
    cubes_of_one_size = [*cube, in_cube("z", 500, "2")]
    assert chosen(cubes_of_one_size) == []
    assert chosen(cubes_of_one_size, full=True) == [{"x", "y", "z"}]


def test_what_others_have_clustered_stays_unless_all_is_to_be_clustered() -> None:
    others = [
        in_cube("columns", 10, "1", [("id",)]),
        in_cube("order", 10, "1", COLUMNS[::-1]),
        add("provider", 10, clustering_provider="theirs"),
        add("broken", 10, clustering_provider="liquid", tags={"ZCUBE_ID": "4", "ZCUBE_ZORDER_BY": "["}),
    ]
    loose = [
        add("untagged", 10, clustering_provider="liquid", tags={"ZCUBE_ID": "4"}),
        add("a", 10, tags={"other": "1"}),
        add("no value", 10, tags={"ZCUBE_ID": None, "ZCUBE_ZORDER_BY": '["id"]'}),
    ]
    assert chosen([*others, *loose]) == [{"untagged", "a", "no value"}]
    everything = {each.path for each in (*others, *loose)}
    assert chosen([*others, *loose], full=True) == [everything]
    # A worn one is rewritten anyway.
    worn = in_cube("worn", 10, "1", [("id",)], deleted=50)
    assert chosen([*others, worn]) == [{"worn"}]
    assert cluster_bins(adds_to_table([worn]), COLUMNS)[0].is_worn


def test_a_worn_file_leaves_its_cube() -> None:
    cube = [in_cube("x", 3000, "1"), in_cube("y", 300, "1", deleted=50), in_cube("z", 3000, "1", deleted=1)]
    assert chosen(cube) == [{"y"}]


def test_all_small_cubes_become_one_if_all_is_to_be_clustered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cubes, "WHOLE_CUBE_BYTES", 50_000)
    adds = [in_cube("a", 100, "1"), in_cube("b", 10_000, "2"), in_cube("whole", 50_000, "3")]
    assert chosen(adds) == []
    assert chosen(adds, full=True) == [{"a", "b"}]
    assert chosen([adds[1], adds[2]], full=True) == []


def test_a_bin_takes_no_more_than_is_allowed() -> None:
    loose = [add(f"f{number}", 40, time=number) for number in range(5)]
    assert chosen(loose, most_bytes=100) == [{"f0", "f1"}, {"f2", "f3"}, {"f4"}]
    cubes = [in_cube("small", 50, "1"), in_cube("more", 60, "2")]
    assert chosen([*loose, *cubes], most_bytes=100) == [{"f0", "f1"}, {"f2", "f3"}, {"f4", "small"}]
    assert chosen([*loose, *cubes], most_bytes=100, full=True) == [{"f0", "f1"}, {"f2", "f3"}, {"f4", "small"}]
    assert chosen(cubes, most_bytes=100, full=True) == []
    # What does not fit is left alone, also with others of its size.
    cubes = [in_cube("small", 70, "1"), in_cube("more", 71, "2"), in_cube("most", 72, "3")]
    assert chosen([loose[0], *cubes], most_bytes=150) == [{"f0", "small"}]
    assert chosen([loose[0], *cubes], most_bytes=150, full=True) == [{"f0", "small"}, {"more", "most"}]
    assert chosen(loose, most_bytes=0) == [{f"f{number}"} for number in range(5)]


@pytest.mark.parametrize("seed", range(20))
def test_no_file_is_in_two_bins_and_clustering_again_finds_nothing(seed: int) -> None:
    rng = random.Random(seed)
    names = [str(number) for number in range(8)]
    adds = []
    for number in range(300):
        path, size = f"f{number}", rng.choice([1, 10, 500, 3000, 20_000])
        deleted = rng.choice([0, 0, 0, 1, 50])
        cube = in_cube(path, size, rng.choice(names), rng.choice([COLUMNS, [("id",)]]), deleted=deleted)
        adds.append(rng.choice([cube, cube, add(path, size, deleted=deleted)]))
    full, most = rng.choice([True, False]), rng.choice([None, 50_000])
    found = cluster_bins(adds_to_table(adds), COLUMNS, full=full, most_bytes=most)
    taken = [path for each in found for path in each.files.column("path").to_pylist()]
    assert max(Counter(taken).values()) == 1
    assert all(each.size_bytes <= (most or each.size_bytes) for each in found)
    left = [each for each in adds if each.path not in set(taken)]
    assert not any(each.clustering_provider is None for each in left)
    grown = rng.choice([0.5, 1, 3])
    left += [in_cube(f"new{number}", int(grown * each.size_bytes), f"new{number}") for number, each in enumerate(found)]
    again = cluster_bins(adds_to_table(left), COLUMNS, full=full, most_bytes=most)
    # Cubes that a limit has cut may fit together.
    assert again == [] or (full and most is not None)


def test_a_purge_keeps_a_clustered_file_in_its_cube() -> None:
    files = adds_to_table(
        [
            in_cube("x", 10, "1", deleted=1),
            add("a", 10, deleted=1),
            in_cube("y", 10, "1", deleted=1),
            in_cube("z", 10, "1"),
            add("b", 10, deleted=1),
        ]
    )
    assert sorted(each.files.column("path").to_pylist() for each in purge_bins(files, 1000)) == [
        ["a", "b"],
        ["x"],
        ["y"],
    ]
    (first, second, *_) = files.to_pylist()
    assert kept_fields(first) == cube_fields(COLUMNS, "1")
    assert kept_fields(second) == {}
    untagged = adds_to_table([add("u", 1, clustering_provider="liquid", tags={"INSERTION_TIME": "3"})]).to_pylist()[0]
    assert kept_fields(untagged) == {"clustering_provider": "liquid", "tags": None}


def test_a_million_files_of_a_clustered_table_are_chosen_by_columns_not_one_by_one() -> None:
    files = adds_to_table([in_cube(f"f{number}", 10, str(number % 3)) for number in range(1000)])
    many = pa.concat_tables([files] * 200)
    assert cluster_bins(many, COLUMNS, most_bytes=10) == []


def bytes_of(bins: list[Bin]) -> int:
    return sum(each.size_bytes for each in bins)


def test_many_small_appends_are_rewritten_a_few_times_each() -> None:
    live, written, appended = [], 0, 0
    for number in range(500):
        live.append(add(f"new{number}", 100))
        appended += 100
        bins = cluster_bins(adds_to_table(live), COLUMNS)
        gone = {path for each in bins for path in each.files.column("path").to_pylist()}
        written += bytes_of(bins)
        live = [each for each in live if each.path not in gone]
        live += [in_cube(f"cube{number}-{n}", each.size_bytes, f"{number}-{n}") for n, each in enumerate(bins)]
        assert sum(each.size for each in live) == appended
        assert len(live) <= 5
    assert written < 10 * appended
    assert json.loads(live[0].tags["ZCUBE_ZORDER_BY"]) == ["id", "s.`a b`"]
