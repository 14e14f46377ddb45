"""Z-order: the number of a row, by hand and by what it promises."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.datafiles.tasks.plans import Bins, plan_rows
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan, Task
from airflow_txlog.datafiles.tasks.zorder import ZOrder, bits_for, buckets, cuts, sampled, values_at
from airflow_txlog.jobs.files.scan import bin_number, plan_files
from airflow_txlog.storage import StoreReference
from tests.helpers.rows import make_table

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [-5, 0, 0, 7, 2**31 - 1]),
    "double": (pa.float64(), [float("-inf"), -1.5, 0.0, 2.0, float("inf"), float("nan")]),
    "text": (pa.string(), ["", "a", "ab", "b", "é"]),
    "bytes": (pa.binary(), [b"", b"\x00", b"a", b"\xff", b"\xff\x00"]),
    "decimal": (pa.decimal128(38, 2), [decimal.Decimal(n) for n in (-10, 0, 1, 5, 10**30)]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(2024, 1, 1), dt.date(9999, 12, 31)]),
    "instant": (pa.timestamp("us", "UTC"), [dt.datetime(1, 1, 1), dt.datetime(2024, 1, 1), dt.datetime(9999, 1, 1)]),
    "bool": (pa.bool_(), [False, True]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_buckets_keep_the_order_of_every_type_and_nulls_come_last(name: str) -> None:
    kind, values = COLUMNS[name]
    array = pa.array(values, kind)
    boundaries = cuts(pa.array([None, *values], kind), 1024)
    found = buckets(pa.array([*values, None], kind), boundaries).to_pylist()
    assert found == sorted(found)
    assert found[-1] == len(boundaries) == len(array.unique())
    # As fine as can be: each distinct value has its own.
    assert len(set(found[:-1])) == len(array.unique())


@given(st.lists(st.one_of(st.none(), st.integers(-20, 20))), st.lists(st.integers(-20, 20), unique=True))
def test_a_bucket_counts_the_boundaries_that_are_not_above(values: list[int | None], boundaries: list[int]) -> None:
    limits = sorted(boundaries)
    found = buckets(pa.array(values, pa.int64()), pa.array(limits, pa.int64())).to_pylist()
    assert found == [len(limits) if value is None else sum(limit <= value for limit in limits) for value in values]


@given(st.lists(st.integers(0, 1000)), st.integers(1, 64))
def test_cuts_are_distinct_ascending_and_of_the_sample(values: list[int], count: int) -> None:
    found = cuts(pa.array(values, pa.int64()), count).to_pylist()
    assert found == sorted(set(found))
    assert set(found) <= set(values)
    assert len(found) < max(count, 1)


def test_cuts_make_parts_of_equal_size() -> None:
    boundaries = cuts(pa.array(range(1000), pa.int64()), 4)
    assert boundaries.to_pylist() == [250, 500, 750]
    sizes = buckets(pa.array(range(1000), pa.int64()), boundaries).value_counts().field(1).to_pylist()
    assert sizes == [250] * 4


def test_bits_of_the_columns_are_interleaved_the_first_ones_highest() -> None:
    order = ZOrder(columns=(("a",), ("b",)), boundaries=(pa.array([1, 2, 3]), pa.array([1, 2, 3])), bits=2)
    grid = pa.table({"a": [a for a in range(4) for _ in range(4)], "b": list(range(4)) * 4})
    # Morton's own picture of four by four.
    assert order.values(grid).to_pylist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]


@pytest.mark.parametrize("columns", [1, 2, 3, 6, 7, 8])
def test_a_z_value_fits_63_bits_and_grows_with_each_column(columns: int) -> None:
    paths = tuple((f"c{number}",) for number in range(columns))
    count = 2 ** bits_for(columns)
    order = ZOrder(
        columns=paths, boundaries=tuple(pa.array(range(1, count), pa.int64()) for _ in paths), bits=bits_for(columns)
    )
    top = pa.table({path[0]: [count] for path in paths})
    assert order.values(top).to_pylist() == [2 ** (bits_for(columns) * columns) - 1]
    for path in paths:
        rows = pa.table({other[0]: list(range(count)) if other == path else [3] * count for other in paths})
        found = order.values(rows).to_pylist()
        assert found == sorted(set(found))


@pytest.mark.parametrize(("columns", "groups"), [(1, 1), (2, 1), (6, 8), (7, 2), (8, 100_000)])
def test_z_values_of_a_group_are_greater_than_those_of_the_groups_before_it(columns: int, groups: int) -> None:
    bits = bits_for(columns, groups)
    assert bits >= 5
    order = ZOrder(columns=tuple((f"c{n}",) for n in range(columns)), boundaries=(), bits=bits)
    ends = pa.array([0, 2 ** (bits * columns) - 1], pa.int64())
    found = [
        z for group in sorted({0, 1, groups - 1} & set(range(groups))) for z in order.in_group(ends, group).to_pylist()
    ]
    assert found == sorted(set(found))
    assert found[-1] == groups * 2 ** (bits * columns) - 1 < 2**63


def test_members_of_structs_and_empty_columns_are_values_too() -> None:
    rows = pa.table({"s": [{"x": 1}, None, {"x": None}]})
    assert values_at(rows, ("s", "x")).to_pylist() == [1, None, None]
    empty = pa.table({"x": pa.chunked_array([], pa.int64())})
    order = ZOrder.of_sample([("x",)], empty)
    assert order.values(empty).to_pylist() == []
    assert order.values(pa.table({"x": [5, None]})).to_pylist() == [0, 0]


@pytest.mark.parametrize("one_in", [1, 2, 16, 40, 1000])
def test_a_sample_is_even_and_blind_to_no_period(tmp_path: Path, one_in: int) -> None:
    count = 64_000
    rows = pa.table({"id": range(count), "shard": [n % 16 for n in range(count)]})
    table = make_table(tmp_path / "t", rows, rows.slice(0, 7))
    snapshot = table.snapshot()
    plan = plan_files(snapshot, snapshot.files(), "UTC")
    packed = [[number] for number in range(plan.num_files)]
    bins = Bins(store=StoreReference.of(plan.store), inline=tuple(plan_rows(plan.table, rows) for rows in packed))
    scan = FileScan(bins=bins, schema=snapshot.schema, with_address=True)
    task = Task(source=scan, steps=(partial(sampled, one_in, count),))
    parts = [pa.Table.from_batches(list(task(iter([bin_number(number)])))) for number in (0, 1)]
    large, small = sorted(parts, key=len, reverse=True)
    assert abs(len(large) - count / one_in) <= 3
    assert large["id"][0].as_py() == small["id"][0].as_py() == 0
    # As many of each half, and nearly as many of each shard.
    ids = large["id"].to_pylist()
    assert abs(2 * sum(each < count // 2 for each in ids) - len(ids)) <= 4
    counts = pc.value_counts(large["shard"]).field("counts").to_pylist()
    assert len(counts) == 16
    assert max(counts) - min(counts) <= 4 + len(ids) // 160
    few = replace(task, steps=(partial(sampled, one_in, 3),))
    sizes = [sum(batch.num_rows for batch in few(iter([bin_number(number)]))) for number in (0, 1)]
    assert max(sizes) == 3
