"""Rows reach the files of their own partition, whatever the number of partition columns and of their values."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN, split_by_partition
from airflow_txlog.datafiles.parquet.writing import Layout
from tests.helpers.files import store_of


def layout_of(columns: int) -> Layout:
    names = [f"p{number}" for number in range(columns)]
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])
    return Layout(store=store_of("/nowhere"), schema=schema, partition_columns=tuple(names), job_id="job")


def split(layout: Layout, rows: list[tuple[str | None, ...]], segments: list[int] | None = None) -> dict[int, tuple]:
    """The partition, and the segment, that each row was put into, by the row's number."""
    data = {"id": pa.array(range(len(rows)), pa.int64())}
    for position, name in enumerate(layout.partition_columns):
        data[name] = pa.array([row[position] for row in rows], pa.string())
    if segments is not None:
        data[SEGMENT_COLUMN] = pa.array(segments, pa.int32())
    found: dict[int, tuple] = {}
    groups: Counter[tuple] = Counter()
    for key, part in split_by_partition(pa.table(data), layout):
        where = (*key.partition, key.segment)
        groups[where] += 1
        ids = part.column("id").to_pylist()
        assert ids == sorted(ids), "rows keep their order"
        found.update(dict.fromkeys(ids, where))
    assert not [where for where, times in groups.items() if times > 1], "a partition is given once"
    return found


@pytest.mark.parametrize("columns", [1, 2, 7, 8, 9, 12, 40])
def test_no_number_of_partition_columns_puts_a_row_into_another_partition(columns: int) -> None:
    # 300 values a column: from the eighth column on, the product of the numbers of values is beyond 64 bits.
    rows = [tuple(f"{column}-{row * 7919 % 300}" for column in range(columns)) for row in range(300)]
    assert split(layout_of(columns), rows) == {number: (*row, None) for number, row in enumerate(rows)}


@given(st.data(), st.integers(1, 30))
def test_each_row_is_in_the_partition_of_its_own_values(data: st.DataObject, columns: int) -> None:
    value = st.one_of(st.none(), st.integers(0, 10**6).map(str), st.text(max_size=2))
    rows = data.draw(st.lists(st.tuples(*[value] * columns), min_size=1, max_size=40))
    segments = data.draw(st.none() | st.lists(st.integers(0, 5), min_size=len(rows), max_size=len(rows)))
    # The empty string is stored as null.
    expected = {
        number: (*(text or None for text in row), None if segments is None else segments[number])
        for number, row in enumerate(rows)
    }
    assert split(layout_of(columns), rows, segments) == expected
