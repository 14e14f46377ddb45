"""What rows take once they are decoded is bounded, however few bytes of a file stand for them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet.decoded_sizes import (
    BATCH_BYTES,
    MOST_BATCH_BYTES,
    OpenParquet,
    decoded_bytes,
    rows_at_once,
    spelled_out,
)
from airflow_txlog.datafiles.parquet.reading import BATCH_ROWS, DataFile, open_data_file, read_batches
from airflow_txlog.storage import LocalStore

LONG = 100_000
ROWS = 20_000


def written(folder: Path, table: pa.Table, **options: Any) -> DataFile:
    pq.write_table(table, folder / "a.parquet", **options)
    return DataFile(store=LocalStore(str(folder)), path="a.parquet")


def repeated(text: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[OpenParquet]:
    """Two gigabytes of text in less than 64 KiB."""
    rows = pa.table({"id": range(ROWS), "text": repeated("x" * LONG, ROWS)})
    file = written(tmp_path, rows, compression="zstd", store_schema=False)
    assert (tmp_path / "a.parquet").stat().st_size < 64 * 1024
    with open_data_file(file) as parquet:
        yield parquet


def test_a_text_that_a_dictionary_holds_once_is_weighed_for_each_of_its_rows(bomb: OpenParquet) -> None:
    assert decoded_bytes(bomb) >= ROWS * LONG
    assert rows_at_once(bomb, 0, None, BATCH_ROWS) * LONG <= BATCH_BYTES
    # Of the other column nothing is long.
    assert rows_at_once(bomb, 0, ["id"], BATCH_ROWS) == BATCH_ROWS


def test_without_a_count_of_its_bytes_the_dictionary_says_how_long_it_is(bomb: OpenParquet) -> None:
    bomb.text_bytes = {}
    assert decoded_bytes(bomb) >= ROWS * LONG
    assert rows_at_once(bomb, 0, None, BATCH_ROWS) * LONG <= 4 * BATCH_BYTES


@pytest.mark.parametrize("claimed", [0, 1, LONG])
def test_a_footer_that_claims_few_bytes_does_not_fill_the_memory(bomb: OpenParquet, claimed: int) -> None:
    bomb.text_bytes = {(0, 1): claimed}
    assert rows_at_once(bomb, 0, None, BATCH_ROWS) * LONG <= MOST_BATCH_BYTES


def test_batches_are_small_and_hold_every_row_in_order_with_its_position(tmp_path: Path) -> None:
    count = 2_000
    rows = pa.table({"id": range(count), "text": repeated("x" * LONG, count)})
    file = written(tmp_path, rows, store_schema=False, row_group_size=1_500)
    found, most = [], 0
    with open_data_file(file) as parquet:
        for position, batch in read_batches(file, parquet):
            assert batch.column(0)[0].as_py() == position
            found += batch.column(0).to_pylist()
            most = max(most, batch.nbytes)
    assert found == list(range(count))
    assert most <= 1.1 * BATCH_BYTES


def test_the_rows_of_a_wide_file_are_read_few_at_a_time(tmp_path: Path) -> None:
    columns = {f"c{number}": pa.nulls(BATCH_ROWS, pa.int64()) for number in range(200)}
    with open_data_file(written(tmp_path, pa.table(columns))) as parquet:
        assert rows_at_once(parquet, 0, None, BATCH_ROWS) * 200 * 8 <= BATCH_BYTES


def test_a_text_that_differs_from_the_one_before_it_may_be_long(tmp_path: Path) -> None:
    texts = ["x" * LONG] * 3_000
    options: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    with open_data_file(written(tmp_path, pa.table({"text": texts}), **options)) as parquet:
        assert rows_at_once(parquet, 0, None, BATCH_ROWS) == 1_024


def test_an_ordinary_file_is_read_in_batches_of_the_usual_size(tmp_path: Path) -> None:
    count = 2 * BATCH_ROWS
    texts = pa.array([f"customer-{number % 5_000:08}" for number in range(count)])
    with open_data_file(written(tmp_path, pa.table({"id": range(count), "name": texts}))) as parquet:
        assert rows_at_once(parquet, 0, None, BATCH_ROWS) == BATCH_ROWS
        parquet.text_bytes = {}
        assert rows_at_once(parquet, 0, None, BATCH_ROWS) == BATCH_ROWS


STRUCT = pa.struct([("v", pa.float64())])
KINDS = (pa.int32(), pa.int64(), pa.string(), pa.decimal128(25, 2), pa.list_(pa.int64()), STRUCT)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("is_null", [True, False])
def test_a_file_is_weighed_by_what_arrow_holds_of_it(tmp_path: Path, kind: pa.DataType, is_null: bool) -> None:
    values = {pa.string(): "a" * 50, KINDS[3]: Decimal("1.00"), KINDS[4]: [1, 2, 3], STRUCT: {"v": 1.0}}
    table = pa.table({"v": pa.array([None if is_null else values.get(kind, 0)] * 10_000, kind)})
    with open_data_file(written(tmp_path, table)) as parquet:
        assert decoded_bytes(parquet) >= 0.85 * table.nbytes


def test_the_schema_of_an_open_file_is_made_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "f.parquet")
    with open_data_file(DataFile(store=LocalStore(str(tmp_path)), path="f.parquet")) as parquet:
        assert parquet.schema_arrow is parquet.schema_arrow


def test_a_copy_that_keeps_dictionaries_reads_no_dictionary_for_its_size(tmp_path: Path) -> None:
    texts = [f"{number:06d}" for number in range(9_000)]
    file = written(tmp_path, pa.table({"text": texts * 20}), store_schema=False)
    with open_data_file(file, dictionaries=lambda parquet: ["text"]) as parquet:
        parquet.source = None
        assert rows_at_once(parquet, 0, None, BATCH_ROWS, keeps_dictionaries=True) == BATCH_ROWS


def test_rows_that_are_spelled_out_come_in_slices_of_a_size_that_is_allowed() -> None:
    batch = pa.record_batch({"id": pa.array(range(ROWS)), "text": repeated("x" * LONG, ROWS)})
    slices = list(spelled_out(batch))
    assert pa.Table.from_batches(slices).column("id").to_pylist() == list(range(ROWS))
    assert max(each.num_rows for each in slices) * LONG <= MOST_BATCH_BYTES < ROWS * LONG
    assert list(spelled_out(batch.select(["id"]))) == [batch.select(["id"])]
    assert list(spelled_out(batch.slice(0, 0))) == []
