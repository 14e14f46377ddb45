"""Alone in showing how a task packs the rows that Spark has found: it packs every address once, in any order."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import (
    PAIRS,
    POSITION_BITS,
    pack_pairs,
    united_pairs,
    unpack_pairs,
)
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.tasks import found_rows
from airflow_txlog.datafiles.tasks.found_rows import PACKED_SCHEMA, PAIRS_SCHEMA, pairs_packed, rows_packed


def address(file: int, position: int) -> int:
    return (file << POSITION_BITS) | position


def batches_of(addresses: list[int], length: int) -> list[pa.RecordBatch]:
    parts = [addresses[start : start + length] for start in range(0, len(addresses), length)]
    return [pa.record_batch([pa.array(part, pa.int64())], ["a"]) for part in parts]


def rows_in(packed: list[pa.RecordBatch]) -> list[int]:
    """The addresses that bitmaps name, sorted; none of them twice."""
    found = [
        address(row["_txlog_file"], position)
        for batch in packed
        for row in batch.to_pylist()
        for position in RowPositions(row["_txlog_positions"], "packed").positions().to_pylist()
    ]
    assert len(found) == len(set(found))
    return sorted(found)


@pytest.mark.parametrize("order", ["ascending", "any"])
def test_every_address_is_in_one_bitmap_of_its_file(order: str) -> None:
    chance = random.Random(3)
    addresses = sorted({address(chance.choice([0, 1, 7, 40_000]), chance.randrange(200_000)) for _ in range(2_000)})
    given = addresses if order == "ascending" else chance.sample(addresses, len(addresses))
    packed = list(rows_packed(iter(batches_of(given, 130)), 500))
    assert all(batch.schema.equals(PACKED_SCHEMA) for batch in packed)
    assert len(packed) == 4
    assert rows_in(packed) == addresses


def test_nothing_found_is_no_row() -> None:
    assert list(rows_packed(iter([]))) == []
    assert sum(batch.num_rows for batch in rows_packed(iter(batches_of([], 1)))) == 0


def test_pairs_and_rows_without_a_source_row_are_packed_by_file() -> None:
    """The driver gets one value for each file, and no row for a pair."""
    chance = random.Random(4)
    rows = [
        (address(file, position), chance.choice([None, address(2, position), position + 1]), chance.choice([0, 2]))
        for file in range(3)
        for position in range(0, 90_000, 200)
    ]
    rows += [(address(5, 1), 9, None), (address(5, 1), 10, None)]
    # The last row that a file may have, and the clause of a long list.
    rows += [(address(5, (1 << 32) - 1), address((1 << 23) - 1, (1 << 32) - 1), 300)]
    chance.shuffle(rows)
    columns = [pa.array([row[number] for row in rows], kind) for number, kind in enumerate(found_rows._PAIR_TYPES)]
    table = pa.table(columns, names=["a", "r", "c"])
    packed = list(pairs_packed(iter(table.to_batches(max_chunksize=37)), 200))
    found = pa.Table.from_batches(packed, PAIRS_SCHEMA).to_pylist()
    assert len(found) <= 4 * 6 + 2 * 3 * 3
    pairs = [
        (address(row["_txlog_file"], position), *met)
        for row in found
        if row["_txlog_pairs"] is not None
        for position, *met in zip(*unpack_pairs(row["_txlog_pairs"]).to_pydict().values(), strict=True)
    ]
    assert sorted(pairs, key=repr) == sorted((row for row in rows if row[1] is not None), key=repr)
    for clause in (0, 2):
        chosen = [
            batch.filter(pa.array([row["_txlog_clause"] == clause for row in batch.to_pylist()], pa.bool_()))
            for batch in packed
        ]
        assert rows_in(chosen) == sorted(row[0] for row in rows if row[1] is None and row[2] == clause)


def test_pairs_of_one_file_that_several_tasks_have_packed_are_in_the_order_of_rows() -> None:
    pairs = [(position, row, 1) for position in (0, 3, (1 << 32) - 1) for row in (2, 7, 9)]
    parts = [pairs[5::-2], pairs[4::-2], pairs[6:]]
    packed = [pack_pairs(pa.table([list(column) for column in zip(*part, strict=True)], PAIRS)) for part in parts]
    assert [tuple(row.values()) for row in unpack_pairs(united_pairs(packed)).to_pylist()] == pairs


def test_a_row_that_no_file_has_is_in_no_pair() -> None:
    with pytest.raises(ValueError, match="32 bits"):
        pack_pairs(pa.table([[1 << 32], [0], [1]], PAIRS))
