"""Alone in showing how rows of one key are brought together and compared, by one task or by several."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.tasks.folded_rows import _in_part, latest, same_as_before

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("at", pa.int32()), ("n", pa.int64())])


def drawn(rng: random.Random, count: int) -> pa.Table:
    rows = [
        {"k": rng.choice([None, 1, 2, -3]), "p": rng.choice([None, "", "a", "é"]), "at": rng.choice([None, 1, 2, 3])}
        for _ in range(count)
    ]
    return pa.Table.from_pylist([{**row, "n": number} for number, row in enumerate(rows)], SCHEMA)


@pytest.mark.parametrize("seed", range(5))
def test_the_last_row_of_each_key_stays_in_whatever_part_it_is(seed: int) -> None:
    rng = random.Random(seed)
    rows = drawn(rng, 60)
    wanted: dict[tuple[object, ...], tuple[int, int]] = {}
    for row in rows.to_pylist():
        key, place = (row["k"], row["p"]), (0 if row["at"] is None else row["at"], -row["n"])
        wanted[key] = max(wanted.get(key, place), place)
    (batch,) = rows.combine_chunks().to_batches()
    for parts in (1, 3):
        of_parts = [
            pa.Table.from_batches([batch.filter(_in_part(batch, ["k", "p"], part, parts))]) for part in range(parts)
        ]
        assert sum(part.num_rows for part in of_parts) == rows.num_rows
        found = pa.concat_tables([latest(["k", "p"], ["at"], [part]) for part in of_parts]).to_pylist()
        assert {(row["k"], row["p"]): -row["n"] for row in found} == {key: place[1] for key, place in wanted.items()}
        assert len(found) == len(wanted)


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
