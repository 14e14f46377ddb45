"""Alone in showing how rows of one key are brought together and compared, by one task or by several."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import whole
from airflow_txlog.datafiles.tasks.folded_rows import _in_part, rows_after_first, same_as_before
from airflow_txlog.datafiles.tasks.found_rows import united
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("at", pa.int32()), (ROW_ID_COLUMN, pa.int64())])


def drawn(rng: random.Random, count: int) -> pa.Table:
    rows = [
        {"k": rng.choice([None, 1, 2, -3]), "p": rng.choice([None, "", "a", "é"]), "at": rng.choice([None, 1, 2, 3])}
        for _ in range(count)
    ]
    return pa.Table.from_pylist([{**row, ROW_ID_COLUMN: number} for number, row in enumerate(rows)], SCHEMA)


@pytest.mark.parametrize("seed", range(8))
def test_all_rows_but_the_first_of_each_key_are_found_in_whatever_part_they_are(seed: int) -> None:
    rng = random.Random(seed)
    rows, direction = drawn(rng, rng.choice([0, 1, 60, 60])), rng.choice(["ascending", "descending"])
    sign = 1 if direction == "ascending" else -1
    first: dict[tuple[object, ...], tuple[bool, int, int]] = {}
    with_key = [row for row in rows.to_pylist() if None not in (row["k"], row["p"])]
    for row in with_key:
        key, place = (row["k"], row["p"]), (row["at"] is None, sign * (row["at"] or 0), row[ROW_ID_COLUMN])
        first[key] = min(first.get(key, place), place)
    expected = {row[ROW_ID_COLUMN] for row in with_key} - {place[2] for place in first.values()}
    batch = pa.record_batch([whole(column) for column in rows.columns], schema=SCHEMA)
    for parts in (1, 3):
        of_parts = [
            pa.Table.from_batches([batch.filter(_in_part(batch, ["k", "p"], part, parts))]) for part in range(parts)
        ]
        assert sum(part.num_rows for part in of_parts) == rows.num_rows
        found = [united(rows_after_first(["k", "p"], ["at"], [direction], [part])) for part in of_parts]
        numbers = [number for of_part in found for each in of_part.values() for number in each.positions().to_pylist()]
        assert sorted(numbers) == sorted(expected)


@pytest.mark.parametrize(
    ("values", "same"),
    [
        (pa.array([], pa.int32()), []),
        (pa.array([1, 1, None, None, 2]), [False, True, False, True, False]),
        (pa.array([0.0, -0.0, float("nan"), float("nan"), None]), [False, True, False, True, False]),
        (pa.array([[1], [1], None, None, [2]]), [False, True, False, True, False]),
        (pa.array([{"a": 1}, {"a": 1}, {"a": None}]), [False, True, False]),
    ],
    ids=str,
)
def test_rows_are_the_same_as_sql_groups_them(values: pa.Array, same: list[bool]) -> None:
    assert same_as_before([values]).to_pylist() == same
