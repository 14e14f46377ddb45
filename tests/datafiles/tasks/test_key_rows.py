"""Keys of one column and of several: which key a row has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.datafiles.deletion_vectors.positions import places_of_different, unpack_pairs
from airflow_txlog.datafiles.tasks import key_rows
from airflow_txlog.datafiles.tasks.found_rows import pairs_packed
from airflow_txlog.datafiles.tasks.key_rows import Acting, HeldKeys, pairs_of_keys
from airflow_txlog.datafiles.tasks.row_values import ActingClauses, of_source
from airflow_txlog.sql.expression import Call, Column, Values

NUMBERS = st.integers(-2, 2)
TEXTS = st.sampled_from(["", "a", "A", "a ", "\u00e9", "e\u0301"])
KEYS = st.lists(st.tuples(*(st.none() | values for values in (NUMBERS, TEXTS, NUMBERS))), max_size=12)
ROWS = st.lists(st.tuples(*(st.none() | values for values in (NUMBERS, TEXTS, NUMBERS))), max_size=30)
TYPES = (pa.int64(), pa.string(), pa.int32())
ACTING = Acting(matched=ActingClauses(conditions={3: None}))
NAMES = ("c0", "c1", "c2")


def columns(rows: list[tuple[object, ...]], count: int) -> list[pa.Array]:
    return [pa.array([row[number] for row in rows], TYPES[number]) for number in range(count)]


def searched(
    keys: list[pa.Array], batches: list[pa.RecordBatch], packed_at_once: int = 1000, **options: Any
) -> Iterator[pa.RecordBatch]:
    """Look for keys, numbered from 100 on, in rows whose addresses are their numbers."""
    held = HeldKeys(columns=tuple(keys), numbers=pa.array(range(100, 100 + len(keys[0])), pa.int64()))
    return pairs_packed(pairs_of_keys(held, ACTING, iter(batches), **options), packed_at_once)


def found(
    keys: list[tuple[object, ...]], rows: list[tuple[object, ...]], count: int, **options: int
) -> list[tuple[int, int]]:
    """The position and the number of the key of each row that has one."""
    table = pa.table([*columns(rows, count), pa.array(range(len(rows)), pa.int64())], names=[*NAMES[:count], "address"])
    batches = searched(columns(keys, count), table.to_batches(max_chunksize=7), **options)
    pairs = [unpack_pairs(packed) for batch in batches for packed in batch.column("_txlog_pairs").to_pylist()]
    assert {clause for part in pairs for clause in part["clause"].to_pylist()} <= {3}
    return sorted((p, row) for part in pairs for p, row, _ in zip(*part.to_pydict().values(), strict=True))


@given(
    keys=KEYS,
    rows=ROWS,
    count=st.integers(1, 3),
    at_once=st.sampled_from([1, 200, 10_000]),
    rows_at_once=st.sampled_from([1, 10_000]),
)
def test_a_row_is_found_once_for_each_key_that_all_its_columns_equal(
    keys: list[tuple[object, ...]], rows: list[tuple[object, ...]], count: int, at_once: int, rows_at_once: int
) -> None:
    """`=` is TRUE for equal values that are not null, and a conjunction is TRUE if each part is."""
    assert found(keys, rows, count, rows_at_once=rows_at_once, bytes_at_once=at_once) == [
        (position, 100 + number)
        for position, row in enumerate(rows)
        for number, key in enumerate(keys)
        if row[:count] == key[:count] and None not in row[:count]
    ]


@given(
    keys=st.lists(st.none() | st.integers(-6, 6), max_size=12),
    rows=st.lists(st.none() | st.integers(-9, 9), max_size=30),
    kind=st.sampled_from([pa.int8(), pa.int32(), pa.int64()]),
    factor=st.sampled_from([1, 14]),
    base=st.sampled_from([0, (1 << 63) - 150, -(1 << 63) + 150]),
)
def test_rows_with_a_key_and_rows_without_one_are_told_apart_wherever_the_numbers_lie(
    keys: list[int | None], rows: list[int | None], kind: pa.DataType, factor: int, base: int
) -> None:
    """Keys that lie near each other and differ are looked up in an array, and others in a hash table."""
    shift = base if kind == pa.int64() else 0
    given_keys, values = (
        pa.array([None if n is None else n * factor + shift for n in numbers], kind) for numbers in (keys, rows)
    )
    acting = Acting(matched=ActingClauses(conditions={3: None}), unmatched=ActingClauses(conditions={5: None}))
    held = HeldKeys(columns=(given_keys,), numbers=pa.array(range(100, 100 + len(keys)), pa.int64()))
    table = pa.table({"c0": values, "address": pa.array(range(len(rows)), pa.int64())})
    pairs = [
        pair
        for batch in pairs_of_keys(held, acting, iter(table.to_batches(max_chunksize=7)))
        for pair in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    expected = [(n, 100 + k, 3) for n, row in enumerate(rows) for k, key in enumerate(keys) if row == key is not None]
    alone = [(n, None, 5) for n, row in enumerate(rows) if row is None or row not in keys]
    assert Counter(pairs) == Counter(expected + alone)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_a_row_without_a_key_is_found_if_a_clause_acts_on_it(kind: pa.DataType) -> None:
    rows = pa.table({"c0": pa.array([1, 2, 3, None]).cast(kind), "n": [0, 0, 1, 0], "address": [0, 1, 2, 3]})
    acting = Acting(
        matched=ActingClauses(conditions={3: Call("is null", (Column("n"),))}),
        unmatched=ActingClauses(conditions={5: Call("=", (Column("n"), Values(pa.array([0]))))}),
    )
    keys = HeldKeys(columns=(pa.array([1]).cast(kind),), numbers=pa.array([100], pa.int64()))
    pairs = pa.Table.from_batches(pairs_of_keys(keys, acting, iter(rows.to_batches()))).to_pylist()
    assert sorted(tuple(pair.values()) for pair in pairs if pair["row"] is None) == [(1, None, 5), (3, None, 5)]
    assert [tuple(pair.values()) for pair in pairs if pair["row"] is not None] == [(0, 100, None)]


def test_numbers_that_lie_far_apart_have_no_array_of_places() -> None:
    assert places_of_different(pa.array([7, 107], pa.int64()), 100) is None


def test_a_search_that_allows_one_key_a_row_ends_soon_after_the_second() -> None:
    same, numbers = pa.repeat(pa.scalar(7, pa.int64()), 3000), pa.array(range(3000), pa.int64())
    rows = pa.record_batch([same, numbers], names=["c0", "address"])
    batches = searched([same], [rows], may_meet_many=False)
    pairs = [unpack_pairs(packed) for batch in batches for packed in batch.column("_txlog_pairs").to_pylist()]
    met = [part["position"].to_pylist() for part in pairs]
    assert 3000 < sum(map(len, met)) < 3000 * 3000 / 5
    assert max(Counter(position for part in met for position in part).values()) > 1


def test_all_pairs_of_a_key_that_stands_there_often_are_never_held_together() -> None:
    same, numbers = pa.repeat(pa.scalar(7, pa.int64()), 600), pa.array(range(600), pa.int64())
    rows = pa.record_batch([same, numbers], names=["c0", "address"])
    counts = [
        unpack_pairs(packed).num_rows
        for batch in searched([same], [rows], packed_at_once=1)
        for packed in batch.column("_txlog_pairs").to_pylist()
    ]
    assert sum(counts) == 600 * 600
    assert max(counts) < 600 * 600 / 5


@pytest.mark.parametrize(("num_keys", "sizes"), [(20, [100]), (21, [21, 21, 21, 21, 16])])
def test_no_more_rows_are_hashed_than_there_is_memory_for(
    monkeypatch: pytest.MonkeyPatch, num_keys: int, sizes: list[int]
) -> None:
    """Few keys are hashed, and then only the bytes of the rows are bounded."""
    looked_up: list[int] = []
    find = key_rows._found

    def finding(keys: pa.Table, clauses: Acting, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        looked_up.append(rows.num_rows)
        return find(keys, clauses, rows)

    monkeypatch.setattr(key_rows, "_found", finding)
    rows = [(number,) for number in range(100)]
    assert len(found([(number,) for number in range(90, 90 + num_keys)], rows, 1, rows_at_once=20)) == 10
    assert looked_up == sizes


class WithText(HeldKeys):
    def read(self) -> pa.Table:
        keys = super().read()
        return keys.append_column(of_source("note"), pa.array(["x" * 100, "y"][: keys.num_rows]))


@pytest.mark.parametrize("array_bytes", [100, 2**31])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_texts_that_conditions_read_are_not_repeated_for_more_pairs_than_fit(
    monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, array_bytes: int
) -> None:
    """Numbers are looked up by their place, and texts in a hash table."""
    held, types = list[int](), set[pa.DataType]()

    class Clauses(ActingClauses):
        def on(self, rows: pa.RecordBatch) -> pa.Array:
            held.append(rows.nbytes)
            types.update(rows.schema.types)
            return super().on(rows)

    monkeypatch.setattr(key_rows, "_PAIR_BYTES", 10_000)
    monkeypatch.setattr(key_rows, "_ARRAY_BYTES", array_bytes)
    rows = pa.record_batch(
        [pa.array([7, 8, 9, None] * 500).cast(kind), pa.array(range(2000), pa.int64())], names=["c0", "address"]
    )
    keys = WithText(columns=(pa.array([7, 8]).cast(kind),), numbers=pa.array([0, 1], pa.int64()))
    acting = Acting(matched=Clauses(conditions={3: None}), unmatched=ActingClauses(conditions={5: None}))
    pairs = pa.Table.from_batches(pairs_of_keys(keys, acting, iter([rows]))).to_pylist()
    assert Counter((pair["row"], pair["clause"]) for pair in pairs) == {(0, 3): 500, (1, 3): 500, (None, 5): 1000}
    assert max(held) <= 10_000 < sum(held)
    assert types == {pa.int64(), pa.string()}


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_a_text_longer_than_pairs_may_be_is_taken_alone(monkeypatch: pytest.MonkeyPatch, kind: pa.DataType) -> None:
    monkeypatch.setattr(key_rows, "_PAIR_BYTES", 10)
    rows = pa.record_batch([pa.array([7] * 5).cast(kind), pa.array(range(5), pa.int64())], names=["c0", "address"])
    keys = WithText(columns=(pa.array([7]).cast(kind),), numbers=pa.array([0], pa.int64()))
    assert [batch.num_rows for batch in pairs_of_keys(keys, ACTING, iter([rows]))] == [1] * 5


class Unread(HeldKeys):
    def read(self) -> pa.Table:
        raise AssertionError


def test_where_no_row_is_left_no_key_is_read() -> None:
    none = pa.record_batch([pa.array([], pa.int64())] * 2, names=["c0", "address"])
    unread = Unread(columns=(), numbers=pa.array([], pa.int64()))
    assert not list(pairs_of_keys(unread, ACTING, iter([none])))
