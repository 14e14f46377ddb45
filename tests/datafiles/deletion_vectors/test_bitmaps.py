"""Bitmaps that we write: read back by our own reader and by another implementation, and in the smallest form."""

from __future__ import annotations

import random
import tracemalloc

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_txlog.datafiles.deletion_vectors.positions import (
    addresses,
    covers,
    difference,
    encode_bitmap,
    occurring,
    union,
)
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.errors import CorruptDeletionVector
from tests.datafiles.deletion_vectors.test_rows import SHAPES
from tests.helpers.vectors import Kind, bitmap


def encoded(positions: list[int]) -> RowPositions:
    return RowPositions(encode_bitmap(pa.array(positions, pa.int64())), "ours")


def read(masked: RowPositions) -> list[int]:
    masked.check()
    found: list[int] = masked.positions().to_pylist()
    assert masked.num_rows == len(found)
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bitmap_is_read_back_to_its_positions(shape: str) -> None:
    assert read(encoded(SHAPES[shape])) == SHAPES[shape]


@pytest.mark.parametrize("length", [0, 1, 131_071, 131_072, 131_073])
def test_addresses_are_consecutive_in_batches_of_any_length(length: int) -> None:
    first = (3 << 40) + 7
    assert addresses(3, 7, length).equals(pa.array(range(first, first + length), pa.int64()))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_part_takes_more_room_than_the_format_demands(shape: str) -> None:
    plain, runs = bitmap(SHAPES[shape], "plain"), bitmap(SHAPES[shape], "runs")
    # The header of a bitmap without runs is a few bytes longer.
    assert len(encoded(SHAPES[shape]).data) <= min(len(plain), len(runs)) + 16


def test_a_run_and_scattered_rows_are_kept_side_by_side() -> None:
    positions = [*range(50_000), *range(65_536, 2 * 65_536, 3), 200_000, 200_002, 300_000]
    masked = encoded(positions)
    assert read(masked) == positions
    # A run of 50,000 rows, 21,846 rows as bits, two and one as positions.
    assert len(masked.data) < 8192 + 100


@pytest.mark.parametrize("kind", ["plain", "runs"])
@given(
    st.sets(st.integers(0, 3 * 65_536) | st.integers(1 << 32, (1 << 32) + 100), max_size=60),
    st.sets(st.integers(0, 3 * 65_536) | st.integers(1 << 33, (1 << 33) + 100), max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_sets_of_rows_are_joined_taken_away_and_compared(kind: Kind, new: set[int], old: set[int]) -> None:
    ours, theirs = encoded(sorted(new)), RowPositions(bitmap(old, kind), "theirs")
    assert read(RowPositions(union([ours, theirs]), "both")) == sorted(new | old)
    assert read(RowPositions(union([theirs, ours, theirs]), "both")) == sorted(new | old)
    assert read(RowPositions(difference(ours, theirs), "left")) == sorted(new - old)
    assert covers(ours, theirs) == (old <= new)
    assert covers(RowPositions(union([ours, theirs]), "both"), theirs)


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 70_000)), max_size=5))
@settings(max_examples=25, deadline=None)
def test_runs_of_any_length_are_read_back(runs: list[tuple[int, int]]) -> None:
    rows = sorted({row for start, length in runs for row in range(start, start + length)})
    assert read(encoded(rows)) == rows


@pytest.mark.parametrize(
    "positions",
    [
        pa.array([2, 1], pa.int64()),
        pa.array([1, 1], pa.int64()),
        pa.array([-1, 1], pa.int64()),
        pa.array([None], pa.int64()),
        pa.array([1], pa.int32()),
    ],
    ids=["descending", "twice", "negative", "null", "of another type"],
)
def test_positions_that_are_no_set_of_rows_are_refused(positions: pa.Array) -> None:
    with pytest.raises(ValueError, match="ascending"):
        encode_bitmap(positions)


def test_a_vector_that_is_broken_is_not_written_again() -> None:
    data = bytearray(bitmap([1, 2, 3, 70_000]))
    data[-8:-6] = b"\xff\xff"
    with pytest.raises(CorruptDeletionVector):
        union([encoded([9]), RowPositions(bytes(data), "theirs")])


def test_a_slice_of_positions_is_what_is_written() -> None:
    positions = pa.array(range(0, 200_000, 7), pa.int64())
    assert (
        read(RowPositions(encode_bitmap(positions.slice(100, 5000)), "ours")) == positions.slice(100, 5000).to_pylist()
    )


def test_a_hundred_million_masked_rows_grow_by_one_in_bounded_memory() -> None:
    # 1,526 whole parts of one run each: spelled out they would be 800 MB.
    many = RowPositions(bitmap_of_whole_parts(1526), "theirs")
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    grown = union([many, encoded([1526 * 65_536 + 5])])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert RowPositions(grown, "ours").num_rows == many.num_rows + 1
    assert peak < 20_000_000
    assert pa.total_allocated_bytes() - before < 20_000_000
    assert len(grown) < 1527 * 20


def bitmap_of_whole_parts(count: int) -> bytes:
    """The rows of so many whole parts, without spelling them out."""
    part = bitmap(range(65_536), "runs")
    body = part[-6:]
    keys = b"".join(key.to_bytes(2, "little") + b"\xff\xff" for key in range(count))
    header = (12347 | (count - 1) << 16).to_bytes(4, "little") + b"\xff" * (count // 8) + bytes([(1 << count % 8) - 1])
    at = len(header) + len(keys) + 4 * count
    offsets = b"".join((at + 6 * number).to_bytes(4, "little") for number in range(count))
    return part[:12] + (0).to_bytes(4, "little") + header + keys + offsets + body * count


def test_random_sets_of_every_density_are_read_back() -> None:
    chance = random.Random(5)
    for rows in (1, 100, 4095, 4096, 4097, 30_000, 65_535):
        positions = sorted(chance.sample(range(65_536), rows))
        assert read(encoded(positions)) == positions


@given(st.sets(st.integers(0, 200_000), max_size=60), st.lists(st.integers(0, 200_100), max_size=10))
@settings(max_examples=60, deadline=None)
def test_rows_are_counted_up_to_any_position(rows: set[int], ends: list[int]) -> None:
    found = encoded(sorted(rows))
    assert [found.num_before(end) for end in ends] == [sum(row < end for row in rows) for end in ends]


def test_parts_are_packed_alike_by_every_release_of_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(range(0, 65_536, 3))
    packed = encoded(rows).data
    monkeypatch.delattr(pc, "InversePermutationOptions", raising=False)
    assert encoded(rows).data == packed
    assert read(encoded(rows)) == rows


def test_numbers_that_occur_are_told_by_every_release_of_arrow_and_no_numbers_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(pc, "InversePermutationOptions", raising=False)
    assert [occurring(pa.array([2, 0, 2], pa.int32()), count).to_pylist() for count in (3, 4)] == [
        [True, False, True],
        [True, False, True, False],
    ]
    assert occurring(pa.array([], pa.int32()), 0).to_pylist() == []
    before = pa.total_allocated_bytes()
    occurring(pa.array([2], pa.int32()), 1_000_000)
    assert pa.total_allocated_bytes() - before < 1_000_000
