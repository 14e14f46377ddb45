"""Levels of files: whatever the order of changes, what is visible is what a dictionary of keys would hold."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_txlog.engine.log.actions import Add, DeletionVector
from airflow_txlog.engine.log.columns import FILES, adds_to_table, table_to_adds
from airflow_txlog.engine.table.columns import statistics
from airflow_txlog.engine.table.columns.statistic_columns import read_statistics
from airflow_txlog.engine.table.predicate import FileQuestion
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.engine.table.snapshot import file_index
from airflow_txlog.engine.table.snapshot.file_index import FileIndex
from airflow_txlog.engine.table.snapshot.files import file_key
from airflow_txlog.storage.limits import Limits
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


@pytest.fixture(params=["packed", "packed with paths", "some packed with paths", "plain"])
def limits(request: pytest.FixtureRequest) -> Limits:
    """Small batches are not packed; here every one is, or none."""
    plain_paths = {"packed with paths": 0, "some packed with paths": 500}.get(request.param, 1 << 40)
    return Limits(packed_bytes=1 << 40 if request.param == "plain" else 0, plain_paths=plain_paths)


class Model:
    """The levels, and beside them a dictionary that says the same."""

    def __init__(self, adds: list[Add], limits: Limits) -> None:
        self.expected = {key_of(each): each.size for each in adds}
        self.files = FileIndex.of(adds_to_table(adds), ROOT, limits)

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
def test_levels_hold_what_a_dictionary_of_keys_holds(changes: list[Any], limits: Limits) -> None:
    model = Model([], limits)
    for number, (spoken_of, added) in enumerate(changes):
        distinct = {key_of(add(path, 0, vector)): add(path, number, vector) for path, vector in added}
        model.change([add(path, 0, vector) for path, vector in spoken_of], list(distinct.values()))
        model.check()


@pytest.mark.parametrize("is_large", [True, False], ids=["looked through, then indexed", "indexed at once"])
def test_many_changes_of_a_large_base_keep_few_levels_and_few_chunks(is_large: bool, limits: Limits) -> None:
    limits = replace(limits, indexed_files=10 if is_large else 4096, cut_files=3, chunk_files=50)
    chooser = random.Random(7)
    model = Model([add(f"base/{number}", number) for number in range(1000)], limits)
    for number in range(200):
        known = sorted(model.expected)
        gone = [add(path, 0) for path in chooser.sample(known, min(len(known), chooser.randrange(6)))]
        model.change(gone, [add(f"new/{number}-{each}", number) for each in range(chooser.randrange(5))])
        if number % 40 == 0:
            model.check()
    model.check()
    assert len(model.files._levels) <= 11
    assert model.files.table.column("path").num_chunks <= 60


def test_an_earlier_version_stays_what_it_was(limits: Limits) -> None:
    model = Model([add(f"f{number}", number) for number in range(100)], limits)
    before, expected = model.files, dict(model.expected)
    model.change([add("f7", 0)], [add("f8", 1), add("new", 2)])
    model.check()
    assert before.count == 100
    assert sizes_by_key(before.table) == expected


def test_files_are_found_by_path_whatever_their_deletion_vector(limits: Limits) -> None:
    limits = replace(limits, indexed_files=10)
    model = Model([add(f"f{number}", number) for number in range(100)], limits)
    model.change([add("f7", 0)], [add("f7", 1007, "x"), add("z%20z", 5)])
    model.change([add("f9", 0)], [])
    for _ in range(6):  # looked through at first, by the index later
        found = model.files.at_paths({"f7", "f8", "f9", "z z", "none"})
        assert sizes_by_key(found) == {key: model.expected[key] for key in ("f7\x00ux@1", "f8", "z z")}
    assert model.files.at_paths(set()).num_rows == 0
    assert model.files.at_paths({"none"}).schema == FILES


def test_two_paths_with_one_hash_are_two_files(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    monkeypatch.setattr(file_index, "hash", lambda text: len(text), raising=False)
    model = Model([add(f"f{number}", number) for number in range(10, 99)], limits)
    model.change([add("f50", 0)], [])
    model.check()
    assert sizes_by_key(model.files.at_paths({"f51", "f50", "g99"})) == {"f51": 51}


def test_a_version_shares_the_memory_of_the_one_before(limits: Limits) -> None:
    base = adds_to_table([add(f"f{number}", number) for number in range(50_000)])
    before = FileIndex.of(base, ROOT, limits)
    allocated = pa.total_allocated_bytes()
    after = before.after({"f1", "f2", "new"}, adds_to_table([add("new", 1)]), ROOT)
    found = after.select(["path", "size"])
    assert (found.num_rows, found.column_names) == (49_999, ["path", "size"])
    assert pa.total_allocated_bytes() - allocated < base.nbytes / 10


SCHEMA = StructType((StructField("p", Primitive.LONG), StructField("n", Primitive.LONG)))


def question(sql: str) -> FileQuestion:
    return FileQuestion(read_predicate(sql, SCHEMA), SCHEMA, ["p"])


def parsed_rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """What is parsed from now on: of how many files, and which columns."""
    seen: list[tuple[int, list[str]]] = []

    def parse(texts: pa.StringArray, asked: Any) -> Any:
        seen.append((len(texts), [column.keys[0] for column in asked]))
        return read_statistics(texts, asked)

    monkeypatch.setattr(statistics, "read_statistics", parse)
    return seen


def numbered(number: int) -> Add:
    """A file of partition `number % 10` whose column `n` is `number` in all rows."""
    stats = f'{{"numRecords":1,"minValues":{{"n":{number},"p":0}},"maxValues":{{"n":{number}}},"nullCount":{{"n":0}}}}'
    return msgspec.structs.replace(add(f"f{number}", number), partition_values={"p": str(number % 10)}, stats=stats)


@pytest.fixture
def many(limits: Limits) -> FileIndex:
    """500 such files in small chunks; every seventh was taken away, and those of them added again that are even."""
    limits = replace(limits, asked_files=64, chunk_files=20)
    files = FileIndex.of(adds_to_table([numbered(number) for number in range(500)]), ROOT, limits)
    for number in range(0, 500, 7):
        keys = {key_of(numbered(number))}
        files = files.after(keys, adds_to_table([numbered(number)] if number % 2 == 0 else []), ROOT)
    return files


def there(numbers: range) -> list[int]:
    return [number for number in numbers if number % 7 or number % 2 == 0]


def test_a_question_is_asked_of_partitions_first_and_of_statistics_for_what_is_left(
    many: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = parsed_rows(monkeypatch)
    found = many.where(question("p = 3"))
    assert sorted(found.column("size").to_pylist()) == [number for number in there(range(500)) if number % 10 == 3]
    assert (sum(rows for rows, _ in parsed), found.column("stats").null_count) == (0, 0)
    found = many.where(question("p = 3 AND n < 100"), ["size"])
    assert sorted(found.column("size").to_pylist()) == [number for number in there(range(100)) if number % 10 == 3]
    assert sum(rows for rows, _ in parsed) == sum(number % 10 == 3 for number in there(range(500)))


def test_the_statistics_of_a_file_and_a_column_are_parsed_once(
    many: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = parsed_rows(monkeypatch)
    for low, high in ((0, 100), (250, 260), (0, 500), (499, 0)):
        found = many.where(question(f"n >= {low} AND n < {high}"))
        assert sorted(found.column("size").to_pylist()) == there(range(low, high))
        assert found.column("stats").null_count == 0
    # Every row of the chunks, those that are hidden included.
    once = 500 + 36
    assert sum(rows for rows, _ in parsed) == once
    # What is kept answers a question about few files, too.
    assert sorted(many.where(question("p = 3 AND n < 20"), ["size"]).column("size").to_pylist()) == [3, 13]
    assert sum(rows for rows, _ in parsed) == once


def test_a_later_version_parses_what_is_new(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    limits = replace(limits, chunk_files=20)
    before = FileIndex.of(adds_to_table([numbered(number) for number in range(500)]), ROOT, limits)
    parsed = parsed_rows(monkeypatch)
    before.where(question("n < 5"))
    later = before.after({key_of(numbered(3)), key_of(numbered(500))}, adds_to_table([numbered(500)]), ROOT)
    assert sorted(later.where(question("n < 5 OR n > 498")).column("size").to_pylist()) == [0, 1, 2, 4, 499, 500]
    assert [rows for rows, _ in parsed] == [500, 1]
    # The earlier version still sees what it held.
    assert sorted(before.where(question("n < 5")).column("size").to_pylist()) == [0, 1, 2, 3, 4]
    assert len(parsed) == 2


def test_a_column_of_another_type_is_parsed_anew(many: FileIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    assert many.where(question("n = 300")).num_rows == 1
    parsed = parsed_rows(monkeypatch)
    texts = StructType((StructField("p", Primitive.LONG), StructField("n", Primitive.STRING)))
    # No statistic of a number is one of a text: every file may match.
    asked = FileQuestion(read_predicate("n = '300'", texts), texts, ["p"])
    assert many.where(asked).num_rows == many.count
    assert parsed


def kept_bytes(files: FileIndex) -> dict[str, int]:
    columns = files._kept_bounds._columns
    return {name: sum(size for _, size in column.batches.values()) for name, column in columns.items()}


def test_kept_statistics_are_bounded_and_the_column_asked_for_longest_ago_makes_room(
    monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    limits = replace(limits, asked_files=64)
    schema = StructType(tuple(StructField(name, Primitive.LONG) for name in "abc"))

    def one(number: int) -> Add:
        values = f'{{"a":{number},"b":{number},"c":{number}}}'
        stats = f'{{"numRecords":1,"minValues":{values},"maxValues":{values}}}'
        return msgspec.structs.replace(add(f"f{number}", number), stats=stats)

    chunks = [adds_to_table([one(number) for number in range(start, start + 50)]) for start in range(0, 500, 50)]
    files = FileIndex.of(pa.concat_tables(chunks), ROOT, limits)

    def ask(name: str) -> None:
        asked = FileQuestion(read_predicate(f"{name} < 7", schema), schema, [])
        assert sorted(files.where(asked, ["size"]).column("size").to_pylist()) == list(range(7))

    ask("a")
    whole = kept_bytes(files)["a"]
    assert whole >= 500 * 4 * 8
    monkeypatch.setenv("TXLOG_KEPT_STATISTICS_BYTES", str(2 * whole))
    for name in "bac":
        ask(name)
    assert kept_bytes(files) == {"a": whole, "c": whole}
    # A column that is larger than all that is allowed keeps what fits, and parses only the rest again.
    monkeypatch.setenv("TXLOG_KEPT_STATISTICS_BYTES", str(whole // 2))
    parsed = parsed_rows(monkeypatch)
    for _ in range(3):
        ask("b")
    assert list(kept_bytes(files)) == ["b"]
    assert 0 < kept_bytes(files)["b"] <= whole // 2
    assert sum(rows for rows, _ in parsed) == 500 + 2 * 250


def test_what_is_kept_goes_with_the_last_version_that_has_the_files(limits: Limits) -> None:
    files = FileIndex.of(adds_to_table([numbered(number) for number in range(50)]), ROOT, limits)
    files.where(question("n < 5"))
    assert kept_bytes(files)["n"] > 0
    files = files.after({key_of(numbered(number)) for number in range(50)}, adds_to_table([numbered(50)]), ROOT)
    assert kept_bytes(files)["n"] == 0


def test_all_files_are_one_table_for_as_long_as_somebody_holds_it(limits: Limits) -> None:
    model = Model([add(f"f{number}", number) for number in range(10)], limits)
    first = model.files.table
    assert model.files.table is first
    assert model.files.select(None) is first
    assert model.files.select(["stats", "path"]).column_names == ["stats", "path"]


def test_paths_are_packed_in_a_table_that_grows_beyond_the_limit_by_commits() -> None:
    limits = Limits(packed_bytes=0, plain_paths=60, chunk_files=10)
    files = FileIndex.of(adds_to_table([numbered(number) for number in range(50)]), ROOT, limits)
    for number in range(50, 100):
        files = files.after({key_of(numbered(number))}, adds_to_table([numbered(number)]), ROOT)
    plain = [batch.column("path").drop_null() for chunk in files._chunks() for batch in chunk.light()]
    assert 50 <= sum(map(len, plain)) <= 60
    assert sorted(files.select(["path"]).column("path").to_pylist()) == sorted(
        numbered(number).path for number in range(100)
    )
