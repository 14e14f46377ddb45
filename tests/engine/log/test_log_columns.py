"""File actions as columns, and their statistics packed."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.engine.log.actions import Add, Remove
from airflow_txlog.engine.log.columns import (
    FILES,
    TOMBSTONES,
    adds_to_table,
    nulls,
    pack,
    removes_to_table,
    table_to_adds,
    table_to_removes,
)
from tests.engine.log.log_strategies import ADDS, REMOVES


@given(st.lists(ADDS, max_size=6), st.booleans(), st.data())
def test_adds_survive_the_way_through_columns(adds: list[Add], data_change: bool, data: st.DataObject) -> None:
    table = adds_to_table(adds)
    table.validate(full=True)
    assert table.schema.equals(FILES)
    expected = [Add(**{**_fields(add), "data_change": data_change}) for add in adds]
    assert table_to_adds(table, data_change) == expected
    start = data.draw(st.integers(0, len(adds)))
    sliced = pa.concat_tables([table.slice(start), table.slice(0, start)])
    assert table_to_adds(sliced, data_change) == expected[start:] + expected[:start]


@given(st.lists(ADDS, max_size=6))
def test_a_remove_knows_of_its_file_what_the_add_said(adds: list[Add]) -> None:
    removes = table_to_removes(adds_to_table(adds), 1234, True)
    assert [
        (r.path, r.partition_values, r.size, r.tags, r.deletion_vector, r.base_row_id, r.default_row_commit_version)
        for r in removes
    ] == [
        (a.path, a.partition_values, a.size, a.tags, a.deletion_vector, a.base_row_id, a.default_row_commit_version)
        for a in adds
    ]
    assert all(r.deletion_timestamp == 1234 and r.data_change and r.extended_file_metadata for r in removes)


@given(st.lists(REMOVES, max_size=6))
def test_tombstones_keep_every_field(removes: list[Remove]) -> None:
    table = removes_to_table(removes)
    table.validate(full=True)
    assert table.schema.equals(TOMBSTONES)
    assert table.column("path").to_pylist() == [remove.path for remove in removes]
    assert table.column("deletion_timestamp").to_pylist() == [remove.deletion_timestamp for remove in removes]
    maps = table.column("partition_values").to_pylist()
    assert [None if m is None else dict(m) for m in maps] == [remove.partition_values for remove in removes]


def test_300_000_adds_become_columns_in_seconds() -> None:
    adds = [
        Add(
            path=f"day={i % 365}/part-{i:08d}.parquet",
            partition_values={"day": str(i % 365)},
            size=i,
            modification_time=i,
            data_change=True,
            stats='{"numRecords":1000}',
        )
        for i in range(300_000)
    ]
    start = time.thread_time()
    table = adds_to_table(adds)
    assert table_to_adds(table, True) == adds
    assert time.thread_time() - start < 20  # 1.5 s on an idle machine


def _fields(add: Add) -> dict[str, object]:
    return {name: getattr(add, name) for name in add.__struct_fields__}


# --- packed statistics ------------------------------------------------------------------------------------------------


def files(count: int) -> pa.RecordBatch:
    adds = [
        Add(
            path=f"part-{number}",
            partition_values={"p": None if number % 5 else "x"},
            size=number,
            modification_time=1,
            data_change=True,
            stats=None if number % 7 == 0 else f'{{"numRecords":{number},"minValues":{{"a":"{"é" * 40}"}}}}',
        )
        for number in range(count)
    ]
    (batch,) = adds_to_table(adds).to_batches()
    return batch


@pytest.mark.parametrize(("start", "count"), [(0, 20_000), (3, 15_001)])
def test_a_large_batch_comes_back_as_it_was(start: int, count: int) -> None:
    batch = files(20_000).slice(start, count)
    packed = pack(batch)
    assert packed.packed is not None
    assert packed.packed.size < batch.column("stats").nbytes / 3
    assert packed.light.column("stats").null_count == count
    assert packed.light.drop_columns(["stats"]).equals(batch.drop_columns(["stats"]))
    assert packed.full().equals(batch)
    assert packed.with_paths() is packed.light


@pytest.mark.parametrize(("start", "count"), [(0, 20_000), (3, 15_001)])
def test_packed_paths_come_back_alone_and_with_the_statistics(start: int, count: int) -> None:
    batch = files(20_000).slice(start, count)
    packed = pack(batch, packs_paths=True)
    assert [packed.light.column(name).null_count for name in ("path", "stats")] == [count, count]
    with_paths = packed.with_paths()
    assert with_paths.drop_columns(["stats"]).equals(batch.drop_columns(["stats"]))
    assert with_paths.column("stats").null_count == count
    assert packed.full().equals(batch)


def test_a_packed_batch_holds_no_memory_beyond_its_content() -> None:
    batch = files(20_000)
    allocated = pa.total_allocated_bytes()
    packed = pack(batch)
    assert packed.packed is not None
    assert pa.total_allocated_bytes() - allocated + packed.packed.size < batch.column("stats").nbytes / 3


def test_a_small_batch_and_one_of_tombstones_stay_as_they_are() -> None:
    batch = files(10)
    assert pack(batch).light is batch
    assert pack(batch).full() is batch
    (removes,) = removes_to_table([Remove(path="a", data_change=True)]).to_batches()
    assert pack(removes).full() is removes


def test_where_the_codec_is_missing_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoCodec:
        @staticmethod
        def is_available(name: str) -> bool:
            return False

    monkeypatch.setattr(pa, "Codec", NoCodec)
    batch = files(20_000)
    assert pack(batch).light is batch


def test_columns_of_nulls_share_their_memory() -> None:
    first = nulls(100_000, pa.string())
    allocated = pa.total_allocated_bytes()
    second = nulls(50_000, pa.string())
    assert pa.total_allocated_bytes() == allocated
    assert (len(first), first.null_count, len(second), second.null_count) == (100_000, 100_000, 50_000, 50_000)
    assert nulls(200_000, pa.int64()).null_count == 200_000
