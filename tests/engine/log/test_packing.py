"""What is packed comes back as it was, and takes less room meanwhile."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_txlog.engine.log.actions import Add, Remove
from airflow_txlog.engine.log.columns import adds_to_table, nulls, pack, removes_to_table


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
