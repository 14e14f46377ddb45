"""Alone in showing which row of each key comes first, against sorting in Python."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.tasks.first_rows import rows_after_first
from airflow_txlog.datafiles.tasks.found_rows import PACKED_SCHEMA, united

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [None, -(2**63), 0, 2**63 - 1],
    pa.bool_(): [None, True, False],
    pa.string(): [None, "", "B", "a", "é", "🙂"],
    pa.decimal128(10, 2): [None, Decimal("1.50"), Decimal("-2.00")],
    pa.date32(): [None, dt.date(1, 1, 1), dt.date(2024, 1, 1)],
    pa.timestamp("us", tz="UTC"): [
        None,
        dt.datetime(1582, 10, 4, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    ],
}


def later_rows(rows: list[tuple[Any, ...]], kinds: list[pa.DataType], keys: int, directions: list[str]) -> set[int]:
    columns = zip(*rows, strict=True) if rows else [[] for _ in range(len(kinds) + 1)]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, [*kinds, pa.int64()], strict=True)]
    batch = pa.record_batch(arrays, names=[f".{number}" for number in range(len(arrays))])
    parts = [batch.slice(start, 7) for start in range(0, len(rows), 7)]
    found = pa.Table.from_batches(list(rows_after_first(keys, directions, iter(parts), at_once=20)), PACKED_SCHEMA)
    return {number for part in united(found).values() for number in part.positions().to_pylist()}


def expected(rows: list[tuple[Any, ...]], keys: int, directions: list[str]) -> set[int]:
    found = sorted((row for row in rows if None not in row[:keys]), key=lambda row: row[-1])
    for column, direction in reversed(list(enumerate(directions, keys))):

        def value(row: tuple[Any, ...], column: int = column) -> Any:
            return row[column].encode() if isinstance(row[column], str) else row[column]

        known = sorted((row for row in found if row[column] is not None), key=value, reverse=direction == "descending")
        found = [*known, *(row for row in found if row[column] is None)]
    first: dict[tuple[Any, ...], int] = {}
    for row in found:
        first.setdefault(row[:keys], row[-1])
    return {row[-1] for row in found} - set(first.values())


@pytest.mark.parametrize("seed", range(40))
def test_all_rows_but_the_first_of_each_key_are_found(seed: int) -> None:
    rng = random.Random(seed)
    keys, ordered = rng.randint(1, 2), rng.randint(0, 2)
    kinds = rng.choices(list(VALUES), k=keys + ordered)
    directions = [rng.choice(["ascending", "descending"]) for _ in range(ordered)]
    rows = [
        (*(rng.choice(VALUES[kind]) for kind in kinds), number) for number in range(5, 5 + rng.choice([0, 1, 30, 200]))
    ]
    assert later_rows(rows, kinds, keys, directions) == expected(rows, keys, directions)
