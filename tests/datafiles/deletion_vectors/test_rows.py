"""Bitmaps of masked rows: every kind of container, read whole and in parts, and every way to be broken."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions, kept_by_both
from airflow_txlog.errors import CorruptDeletionVector
from tests.helpers.vectors import MAGIC, Kind, bitmap, bitmap32

RANDOM = random.Random(11)
SHAPES: dict[str, list[int]] = {
    "nothing": [],
    "one row": [0],
    "the last row of a container": [65535],
    "containers with a gap between them": [3, 65536, 65537, 700000, 700001],
    "as many as an array holds": sorted(RANDOM.sample(range(65536), 4096)),
    "one more": sorted(RANDOM.sample(range(65536), 4097)),
    "a whole container": list(range(65536)),
    "a run over two containers": list(range(65000, 66000)),
    "five containers": sorted(RANDOM.sample(range(5 * 65536), 3000)),
    "beyond 32 bits": [7, (1 << 32) + 1, (3 << 32) + 65536],
}


@pytest.mark.parametrize("kind", ["plain", "runs"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_bitmap_reads_to_its_positions(shape: str, kind: Kind) -> None:
    masked = RowPositions(bitmap(SHAPES[shape], kind), "x")
    masked.check()
    assert masked.num_rows == len(SHAPES[shape])
    assert masked.positions().type == pa.int64()
    assert masked.positions().to_pylist() == SHAPES[shape]


@pytest.mark.parametrize("kind", ["plain", "runs"])
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "beyond 32 bits"])
@pytest.mark.parametrize("batch", [1000, 65536, 131072, 100_001])
def test_every_batch_keeps_what_no_position_names(shape: str, kind: Kind, batch: int) -> None:
    rows = 400_000
    masked = RowPositions(bitmap([row for row in SHAPES[shape] if row < rows], kind), "x")
    gone: list[int] = []
    for start in range(0, rows, batch):
        length = min(batch, rows - start)
        keep = masked.keep(start, length)
        if keep is None:
            assert masked.positions(start, start + length).to_pylist() == []
            continue
        assert len(keep) == length
        assert keep.null_count == 0
        found = [start + index for index, is_kept in enumerate(keep.to_pylist()) if not is_kept]
        assert masked.positions(start, start + length).to_pylist() == found
        gone += found
    assert gone == [row for row in SHAPES[shape] if row < rows]


@settings(deadline=None)
@given(st.sets(st.integers(0, 300_000), max_size=60), st.integers(0, 300_000), st.integers(1, 200_000), st.booleans())
def test_any_window_of_any_bitmap_is_that_of_a_set(positions: set[int], start: int, length: int, runs: bool) -> None:
    masked = RowPositions(bitmap(positions, "runs" if runs else "plain"), "x")
    inside = sorted(row for row in positions if start <= row < start + length)
    assert masked.positions(start, start + length).to_pylist() == inside
    keep = masked.keep(start, length)
    gone = [] if keep is None else [start + index for index, is_kept in enumerate(keep.to_pylist()) if not is_kept]
    assert gone == inside


def test_two_masks_keep_what_both_keep() -> None:
    one, other = pa.array([True, True, False]), pa.array([False, True, True])
    assert kept_by_both(one, other).to_pylist() == [False, True, False]  # type: ignore[union-attr]
    assert kept_by_both(None, other) is other
    assert kept_by_both(one, None) is one
    assert kept_by_both(None, None) is None


def header(*containers: tuple[int, int]) -> bytes:
    """Magic number, one bitmap without runs, and the descriptions (key, rows) of its containers with their offsets."""
    described = b"".join(struct.pack("<HH", key, rows - 1) for key, rows in containers)
    count = len(containers)
    return struct.pack("<iQIII", MAGIC, 1, 0, 12346, count) + described + bytes(4 * count)


def runs(rows: int, *pairs: tuple[int, int]) -> bytes:
    start = struct.pack("<iQIIB", MAGIC, 1, 0, 12347, 1) + struct.pack("<HH", 0, rows - 1)
    return start + struct.pack("<H", len(pairs)) + b"".join(struct.pack("<HH", *pair) for pair in pairs)


BROKEN = {
    "no bytes": b"",
    "half a magic number": b"\xd1\xd3",
    "another magic number": struct.pack("<iQ", 17, 0),
    "the magic number alone": struct.pack("<i", MAGIC),
    "more bitmaps than bytes": struct.pack("<iQ", MAGIC, 1 << 63),
    "no bitmap after its key": struct.pack("<iQI", MAGIC, 1, 0),
    "an unknown cookie": struct.pack("<iQII", MAGIC, 1, 0, 99),
    "more containers than there are": struct.pack("<iQIII", MAGIC, 1, 0, 12346, 1 << 31),
    "more containers than bytes": struct.pack("<iQIII", MAGIC, 1, 0, 12346, 65536),
    "bitmaps that descend": struct.pack("<iQ", MAGIC, 2) + 2 * (struct.pack("<I", 5) + bitmap32([1])),
    "a bitmap beyond 64 bits": struct.pack("<iQ", MAGIC, 1) + struct.pack("<I", 1 << 31) + bitmap32([1]),
    "containers that descend": header((1, 1), (1, 1)) + bytes(4),
    "an array that ends early": header((0, 3)) + bytes(4),
    "an array that repeats": header((0, 2)) + struct.pack("<HH", 7, 7),
    "an array that descends": header((0, 3)) + struct.pack("<HHH", 1, 9, 8),
    "a bitmap that ends early": header((0, 5000)) + bytes(8191),
    "a bitmap with fewer rows": header((0, 5000)) + bytes(8192),
    "a bitmap with more rows": header((0, 5000)) + b"\xff" * 8192,
    "no runs": runs(1),
    "runs that overlap": runs(4, (0, 1), (1, 1)),
    "runs that descend": runs(2, (9, 0), (3, 0)),
    "a run over the end": runs(3, (65534, 2)),
    "runs with fewer rows": runs(65536, (0, 1)),
    "runs with more rows": runs(1, (0, 65535)),
    "bytes after the end": bitmap([1, 2]) + b"\x00",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_bitmap_is_an_error_and_no_row_is_believed(name: str) -> None:
    with pytest.raises(CorruptDeletionVector) as caught:
        RowPositions(BROKEN[name], "dv.bin").check()
    assert caught.value.vector == "dv.bin"
    assert not caught.value.retryable
    with pytest.raises(CorruptDeletionVector):
        RowPositions(BROKEN[name], "dv.bin").keep(0, 131072)
    with pytest.raises(CorruptDeletionVector):
        RowPositions(BROKEN[name], "dv.bin").positions()


def test_a_row_that_the_file_does_not_have_is_an_error() -> None:
    masked = RowPositions(bitmap([3, 99]), "x")
    masked.check(100)
    with pytest.raises(CorruptDeletionVector, match="deletes row 99 of a file that has 99 rows"):
        masked.check(99)


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_native_layout_reads_in_either_byte_order(order: str) -> None:
    first, third = bitmap32([3, 70000]), bitmap32([5], "runs")
    parts = b"".join(struct.pack(f"{order}I", len(part)) + part for part in (first, bitmap32([]), third))
    data = struct.pack(f"{order}II", MAGIC - 1, 3) + parts
    assert RowPositions(data, "x").positions().to_pylist() == [3, 70000, (2 << 32) + 5]
    wrong = struct.pack(f"{order}III", MAGIC - 1, 1, len(first) + 1) + first
    with pytest.raises(CorruptDeletionVector, match="bytes, and has"):
        RowPositions(wrong, "x")


@pytest.mark.long("traces each allocation of 65,536 containers")
def test_a_bitmap_that_claims_four_billion_rows_takes_the_memory_of_the_rows_looked_at() -> None:
    count = 65536
    flags, offsets = b"\xff" * (count // 8), bytes(4 * count)
    described = b"".join(struct.pack("<HH", key, 65535) for key in range(count))
    body = struct.pack("<HHH", 1, 0, 65535) * count
    data = struct.pack("<iQII", MAGIC, 1, 0, 12347 | (count - 1) << 16) + flags + described + offsets + body
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    masked = RowPositions(data, "x")
    assert masked.num_rows == 1 << 32
    masked.check()
    assert masked.keep(1 << 31, 131072).true_count == 0  # type: ignore[union-attr]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * len(data)
    assert pa.total_allocated_bytes() - before < 1_000_000
