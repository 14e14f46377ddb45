"""Keys of one column and of several: which key a row has."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.datafiles.tasks.key_rows import KeyPlaces

NUMBERS = st.integers(-2, 2)
TEXTS = st.sampled_from(["", "a", "A", "a ", "\u00e9", "e\u0301"])
KEYS = st.lists(st.tuples(NUMBERS, TEXTS, NUMBERS), max_size=12)
ROWS = st.lists(st.tuples(*(st.none() | values for values in (NUMBERS, TEXTS, NUMBERS))), max_size=30)
TYPES = (pa.int64(), pa.string(), pa.int32())


def columns(rows: list[tuple[object, ...]], count: int) -> list[pa.Array]:
    return [pa.array([row[number] for row in rows], TYPES[number]) for number in range(count)]


@given(keys=KEYS, rows=ROWS, count=st.integers(1, 3))
def test_a_row_has_the_key_that_all_its_columns_equal(
    keys: list[tuple[object, ...]], rows: list[tuple[object, ...]], count: int
) -> None:
    """`=` is TRUE of equal values that are not null, and a conjunction where each part is."""
    found = KeyPlaces(columns(keys, count))
    assert found.are_distinct == (len({key[:count] for key in keys}) == len(keys))
    distinct = list(dict.fromkeys(key[:count] for key in keys))
    places = KeyPlaces(columns(distinct, count)).of(columns(rows, count))
    expected = [distinct.index(row[:count]) if row[:count] in distinct else None for row in rows]
    assert places.to_pylist() == expected
