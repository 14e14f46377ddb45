"""Files whose columns are encoded by two threads: they are the files that Arrow writes, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet import halves
from airflow_txlog.datafiles.parquet.halves import FEWEST_ROWS, HalvesWriter
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector, file_statistics
from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.storage import LocalStore, StoreReference

ROWS = FEWEST_ROWS + 7


def table(rows: int = ROWS) -> pa.Table:
    """Columns of each kind: repeated and distinct values, nulls, decimals, times, a struct, a list and a map."""
    rng = np.random.default_rng(3)
    numbers = pa.array(rng.integers(0, 50, rows))
    texts = pc.if_else(pa.array(rng.random(rows) < 0.3), pa.scalar(None, pa.string()), numbers.cast(pa.string()))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), numbers)
    return pa.table(
        {
            "id": pa.array(rng.permutation(rows)),
            "text": texts,
            "nothing": pa.nulls(rows, pa.int32()),
            "price": numbers.cast(pa.decimal128(19, 0)).cast(pa.decimal128(23, 4)),
            "at": pa.array(rng.integers(0, 10**15, rows)).cast(pa.timestamp("us", "UTC")),
            "place": pa.StructArray.from_arrays([texts, pa.array(rng.random(rows))], ["street", "x"]),
            "tags": lists,
            "flag": pa.array(rng.random(rows) < 0.5),
            "dictionary": texts.dictionary_encode(),
        }
    )


def written(
    kind: type[RowGroupWriter], folder: Path, groups: list[pa.Table], options: dict[str, Any], **more: Any
) -> bytes:
    """The bytes of a file with these row groups; its record says what the file is."""
    schema = groups[0].schema
    store = LocalStore(str(folder))
    statistics = StatisticsCollector(schema)
    writer = kind(store, f"{kind.__name__}.parquet", schema, options=options, statistics=statistics, **more)
    for group in groups:
        for batch in group.to_batches():
            writer.write(batch)
        writer.end_row_group()
    staged = writer.close({})
    assert staged is not None
    data = (folder / staged.path).read_bytes()
    assert (staged.size_bytes, staged.num_records) == (len(data), sum(group.num_rows for group in groups))
    assert staged.stats == file_statistics(pa.concat_tables(groups))
    return data


def both(folder: Path, groups: list[pa.Table], options: dict[str, Any], **more: Any) -> tuple[bytes, bytes]:
    return written(HalvesWriter, folder, groups, options, **more), written(
        RowGroupWriter, folder, groups, options, **more
    )


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "ZSTD"},
        {"compression": "SNAPPY", "data_page_version": "2.0"},
        {"compression": {"id": "GZIP", "place.street": "ZSTD"}, "use_dictionary": ["text", "place.street"]},
        {"compression": "NONE", "use_dictionary": False, "store_decimal_as_integer": True},
    ],
    ids=str,
)
def test_a_file_is_the_one_that_arrow_writes(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = table()
    found, expected = both(tmp_path, [rows], options)
    assert found == expected
    assert pq.read_table(pa.BufferReader(found)).equals(pq.read_table(pa.BufferReader(expected)))


def test_so_is_one_with_several_row_groups_and_entries_of_its_footer(tmp_path: Path) -> None:
    groups = [table(), table(5), table(3 * ROWS)]
    found, expected = both(tmp_path, groups, {"compression": "ZSTD"}, key_values={b"a": b"1"}, with_digest=True)
    assert found == expected
    assert pq.ParquetFile(pa.BufferReader(found)).metadata.num_row_groups == 3


def test_so_is_one_whose_first_row_group_is_small(tmp_path: Path) -> None:
    found, expected = both(tmp_path, [table(5), table()], {"compression": "ZSTD"})
    assert found == expected


@pytest.mark.parametrize("columns", [["id", "place"], ["place", "id"], ["nothing", "flag"], ["tags", "price", "id"]])
def test_so_is_one_of_few_columns(tmp_path: Path, columns: list[str]) -> None:
    found, expected = both(tmp_path, [table().select(columns)], {"compression": "ZSTD"})
    assert found == expected


def test_a_row_group_of_more_rows_than_arrow_writes_at_once_becomes_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves, "_MOST_ROWS", 10_000)
    rows = table()
    found = written(HalvesWriter, tmp_path, [rows], {"compression": "ZSTD"})
    metadata = pq.ParquetFile(pa.BufferReader(found)).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [10_000, ROWS - 10_000]
    assert pq.read_table(pa.BufferReader(found)).column("id").equals(rows.column("id"))


@pytest.mark.parametrize("partition_columns", [(), ("p",)])
def test_new_files_of_a_table_have_all_rows(tmp_path: Path, partition_columns: tuple[str, ...]) -> None:
    rows = table(5 * ROWS).select(["id", "text", "price"]).append_column("p", pa.array(np.arange(5 * ROWS) % 3))
    layout = Layout(
        store=StoreReference.of(LocalStore(str(tmp_path))),
        schema=rows.schema,
        partition_columns=partition_columns,
        job_id="0123456789abcdef",
        in_halves=True,
    )
    writer = PartitionedWriter(layout)
    for batch in rows.to_batches(max_chunksize=10_000):
        writer.write(batch)
    staged = writer.finish()
    found = pa.concat_tables(pq.ParquetFile(tmp_path / file.store_path).read() for file in staged)
    assert found.sort_by("id").select(["id", "text"]).equals(rows.sort_by("id").select(["id", "text"]))
    assert len(staged) == (3 if partition_columns else 1)
    for file in staged:
        held = pq.ParquetFile(tmp_path / file.store_path).read()
        assert json.loads(file.stats)["minValues"]["id"] == pc.min(held.column("id")).as_py()
        assert json.loads(file.stats)["numRecords"] == held.num_rows == file.num_records


def test_a_file_that_is_given_up_is_gone(tmp_path: Path) -> None:
    rows = table()
    writer = HalvesWriter(
        LocalStore(str(tmp_path)), "f.parquet", rows.schema, options={}, statistics=StatisticsCollector(rows.schema)
    )
    writer.write(rows.to_batches()[0])
    writer.end_row_group()
    assert (tmp_path / "f.parquet").exists()
    writer.abandon()
    assert list(tmp_path.iterdir()) == []
