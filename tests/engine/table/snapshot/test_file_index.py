"""Levels of files: whatever the order of changes, what is visible is what a dictionary of keys would hold."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_txlog.engine.log import packing
from airflow_txlog.engine.log.actions import Add, DeletionVector
from airflow_txlog.engine.log.columns import FILES, adds_to_table, table_to_adds
from airflow_txlog.engine.table.snapshot import file_index
from airflow_txlog.engine.table.snapshot.file_index import FileIndex
from airflow_txlog.engine.table.snapshot.files import file_key
from tests.helpers.depth import depth

ROOT = "memory://t"


def add(path: str, size: int, vector: str | None = None) -> Add:
    found = None
    if vector is not None:
        found = DeletionVector(storage_type="u", path_or_inline_dv=vector, offset=1, size_in_bytes=1, cardinality=1)
    return Add(
        path=path,
        partition_values={},
        size=size,
        modification_time=1,
        data_change=True,
        stats=stats_of(size),
        deletion_vector=found,
    )


def stats_of(size: int) -> str | None:
    return None if size % 5 == 0 else f'{{"numRecords":{size}}}'


@pytest.fixture(autouse=True, params=["packed", "plain"])
def packing_or_not(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are not packed; here every one is, or none."""
    monkeypatch.setattr(packing, "_LEAST_BYTES", 0 if request.param == "packed" else 1 << 40)


class Model:
    """The levels, and beside them a dictionary that says the same."""

    def __init__(self, adds: list[Add]) -> None:
        self.expected = {key_of(each): each.size for each in adds}
        self.files = FileIndex.of(adds_to_table(adds), ROOT)

    def change(self, spoken_of: list[Add], added: list[Add]) -> None:
        keys = {key_of(each) for each in [*spoken_of, *added]}
        self.expected = {key: size for key, size in self.expected.items() if key not in keys}
        self.expected |= {key_of(each): each.size for each in added}
        self.files = self.files.after(keys, adds_to_table(added), ROOT)

    def check(self) -> None:
        assert self.files.count == len(self.expected) == self.files.table.num_rows
        assert sizes_by_key(self.files.table) == self.expected


def key_of(each: Add) -> str:
    return file_key(each.path, each.deletion_vector, ROOT)


def sizes_by_key(files: pa.Table) -> dict[str, int]:
    adds = table_to_adds(files, data_change=False)
    assert [each.stats for each in adds] == [stats_of(each.size) for each in adds]
    return {key_of(each): each.size for each in adds}


_FILE = st.tuples(
    st.sampled_from(["a", "b", "c%20d", "c d", f"{ROOT}/a", "./b", "e"]), st.sampled_from([None, "x", "y"])
)
_CHANGE = st.tuples(st.lists(_FILE, max_size=3), st.lists(_FILE, max_size=3))


@pytest.mark.seeded
@settings(max_examples=depth(30, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(_CHANGE, max_size=12))
def test_levels_hold_what_a_dictionary_of_keys_holds(changes: list[Any]) -> None:
    model = Model([])
    for number, (spoken_of, added) in enumerate(changes):
        distinct = {key_of(add(path, 0, vector)): add(path, number, vector) for path, vector in added}
        model.change([add(path, 0, vector) for path, vector in spoken_of], list(distinct.values()))
        model.check()


@pytest.mark.parametrize("is_large", [True, False], ids=["looked through, then indexed", "indexed at once"])
def test_many_changes_of_a_large_base_keep_few_levels_and_few_chunks(
    is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:
        monkeypatch.setattr(file_index, "_SMALL_ROWS", 10)
    monkeypatch.setattr(file_index, "_CUTS", 3)
    monkeypatch.setattr(file_index, "_ONE_CHUNK_ROWS", 50)
    chooser = random.Random(7)
    model = Model([add(f"base/{number}", number) for number in range(1000)])
    for number in range(200):
        known = sorted(model.expected)
        gone = [add(path, 0) for path in chooser.sample(known, min(len(known), chooser.randrange(6)))]
        model.change(gone, [add(f"new/{number}-{each}", number) for each in range(chooser.randrange(5))])
        if number % 40 == 0:
            model.check()
    model.check()
    assert len(model.files._levels) <= 11
    assert model.files.table.column("path").num_chunks <= 60


def test_an_earlier_version_stays_what_it_was() -> None:
    model = Model([add(f"f{number}", number) for number in range(100)])
    before, expected = model.files, dict(model.expected)
    model.change([add("f7", 0)], [add("f8", 1), add("new", 2)])
    model.check()
    assert before.count == 100
    assert sizes_by_key(before.table) == expected


def test_files_are_found_by_path_whatever_their_deletion_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "_SMALL_ROWS", 10)
    model = Model([add(f"f{number}", number) for number in range(100)])
    model.change([add("f7", 0)], [add("f7", 1007, "x"), add("z%20z", 5)])
    model.change([add("f9", 0)], [])
    for _ in range(6):  # looked through at first, by the index later
        found = model.files.at_paths({"f7", "f8", "f9", "z z", "none"})
        assert sizes_by_key(found) == {key: model.expected[key] for key in ("f7\x00ux@1", "f8", "z z")}
    assert model.files.at_paths(set()).num_rows == 0
    assert model.files.at_paths({"none"}).schema == FILES


def test_two_paths_with_one_hash_are_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "hash", lambda text: len(text), raising=False)
    model = Model([add(f"f{number}", number) for number in range(10, 99)])
    model.change([add("f50", 0)], [])
    model.check()
    assert sizes_by_key(model.files.at_paths({"f51", "f50", "g99"})) == {"f51": 51}


def test_a_version_shares_the_memory_of_the_one_before() -> None:
    base = adds_to_table([add(f"f{number}", number) for number in range(50_000)])
    before = FileIndex.of(base, ROOT)
    allocated = pa.total_allocated_bytes()
    after = before.after({"f1", "f2", "new"}, adds_to_table([add("new", 1)]), ROOT)
    found = after.select(["path", "size"])
    assert (found.num_rows, found.column_names) == (49_999, ["path", "size"])
    assert pa.total_allocated_bytes() - allocated < base.nbytes / 10


def test_a_question_is_asked_of_light_files_first_and_of_statistics_for_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_index, "_ROWS_AT_ONCE", 64)
    monkeypatch.setattr(file_index, "_ONE_CHUNK_ROWS", 20)
    model = Model([add(f"f{number}", number) for number in range(500)])
    for number in range(0, 500, 7):
        model.change([add(f"f{number}", 0)], [add(f"new{number}", number + 1)] if number % 3 else [])
    asked: list[int] = []

    def keeps(files: pa.Table) -> pa.BooleanArray:
        return pc.less(files.column("size").combine_chunks(), 40)

    def keeps_by_statistics(files: pa.Table) -> pa.BooleanArray:
        asked.append(files.num_rows)
        return pc.starts_with(pc.fill_null(files.column("stats").combine_chunks(), ""), '{"numRecords":1')

    small = {key: size for key, size in model.expected.items() if size < 40}
    assert sizes_by_key(model.files.where(keeps, None)) == small
    found = sizes_by_key(model.files.where(keeps, keeps_by_statistics))
    assert found == {key: size for key, size in small.items() if (stats_of(size) or "").startswith('{"numRecords":1')}
    assert sum(asked) == len(small)


def test_all_files_are_one_table_for_as_long_as_somebody_holds_it() -> None:
    model = Model([add(f"f{number}", number) for number in range(10)])
    first = model.files.table
    assert model.files.table is first
    assert model.files.select(None) is first
    assert model.files.select(["stats", "path"]).column_names == ["stats", "path"]
