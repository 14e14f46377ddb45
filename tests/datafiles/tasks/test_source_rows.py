"""Rows of a source by their numbers, each as often as rows of the table have met it."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import pack
from airflow_txlog.datafiles.parquet.output import RowGroupWriter, WrittenRows
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector
from airflow_txlog.datafiles.tasks.plans import NO_ROW
from airflow_txlog.datafiles.tasks.row_values import SourceRows, SourceTable, bytes_of_largest
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, ROW_ID_COLUMN
from airflow_txlog.errors import JobError
from airflow_txlog.storage import LocalStore
from tests.helpers.calls import counted
from tests.helpers.files import bins_of, plan_of_files

MIB = 1024 * 1024


def table_of(values: list[object], kind: pa.DataType) -> SourceTable:
    """Rows numbered 10, 11, ..., of the column `v`."""
    numbers = pa.array(range(10, 10 + len(values)), pa.int64())
    return SourceTable(pa.table({"v": pa.array(values, kind), ROW_ID_COLUMN: numbers}))


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string())], ids=["text", "nested"])
def test_a_large_row_that_many_rows_have_met_is_taken_a_few_times_at_once(kind: pa.DataType) -> None:
    large = "x" * MIB
    values = ["small", None, large] if kind == pa.string() else [["small"], None, [large]]
    numbers = [10, 11, *[12] * 100, 10]
    batches = list(table_of(values, kind).take(pa.array(numbers, pa.int64())))
    assert max(batch.nbytes for batch in batches) <= 65 * MIB
    found = [value for batch in batches for value in batch.column("v").to_pylist()]
    assert found == [values[number - 10] for number in numbers]


@pytest.mark.parametrize("held", [[10, 11], [10, 2**40]], ids=["one part", "two parts"])
def test_a_row_is_found_by_its_number_and_one_that_is_not_there_is_an_error(held: list[int]) -> None:
    rows = SourceTable(pa.table({"v": ["a", "b"], ROW_ID_COLUMN: pa.array(held, pa.int64())}))
    (found,) = rows.take(pa.array([held[1], NO_ROW, held[0]], pa.int64()))
    assert found.column("v").to_pylist() == ["b", None, "a"]
    for missing in (9, 12, 2**41):
        with pytest.raises(JobError, match="1 matched rows are not in the source"):
            list(rows.take(pa.array([10, missing, NO_ROW], pa.int64())))


def test_the_bins_of_one_process_read_the_source_once(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"v": ["a", "b"], ROW_ID_COLUMN: pa.array([0, 1], pa.int64())}), file)
    bins = bins_of(tmp_path, plan_of_files({"path": file.name, "size_bytes": file.stat().st_size}))
    schema = pa.schema([("v", pa.string()), (ROW_ID_COLUMN, pa.int64())])
    source = SourceRows(scan=MaterializedScan(bins=bins, schema=schema), num_rows=2, size_bytes=100)
    elsewhere = pickle.loads(pickle.dumps(source))
    met = pa.RecordBatch.from_pydict({ROW_ID_COLUMN: pa.array([1, 0]), ADDRESS_COLUMN: pa.array([7, 8])})
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: list(source.beside(iter([met]))), range(8)))
    file.unlink()
    found.append(list(source.beside(iter([met]))))
    assert [batch.column(0).to_pylist() for (batch,) in found] == [["b", "a"]] * 9
    with pytest.raises(JobError, match="is gone"):
        list(elsewhere.beside(iter([met])))


def rows_written(folder: Path, keeps: WrittenRows) -> MaterializedScan:
    """The scan, with addresses and without the row 2, of a file of six rows in three row groups."""
    rows = pa.table({"v": pa.array([None, "b", "c", "d", "", "f"]), ROW_ID_COLUMN: pa.array(range(6), pa.int64())})
    writer = RowGroupWriter(
        LocalStore(str(folder)),
        "rows.parquet",
        rows.schema,
        options={},
        statistics=StatisticsCollector(rows.schema),
        keeps=keeps,
    )
    for batch in rows.to_batches(max_chunksize=2):
        writer.write(batch)
        writer.end_row_group()
    staged = writer.close({})
    assert staged is not None
    deleted = pack(pa.array([2], pa.int64()))
    plan = plan_of_files({"path": "rows.parquet", "size_bytes": staged.size_bytes, "deleted": deleted})
    return MaterializedScan(bins=bins_of(folder, plan), schema=rows.schema, with_address=True, written=keeps)


def test_rows_that_this_process_has_written_are_those_of_the_file(tmp_path: Path) -> None:
    scan = rows_written(tmp_path, WrittenRows(MIB))
    elsewhere = pickle.loads(pickle.dumps(scan))
    in_file = pa.Table.from_batches(elsewhere.all_rows(), scan.output_schema)
    assert in_file.column("v").to_pylist() == [None, "b", "d", "", "f"]
    (tmp_path / "rows.parquet").unlink()
    assert pa.Table.from_batches(scan.all_rows(), scan.output_schema).equals(in_file)
    with pytest.raises(JobError, match="is gone"):
        list(elsewhere.all_rows())


def test_rows_that_take_too_much_memory_are_read_from_their_file(tmp_path: Path) -> None:
    scan = rows_written(tmp_path, WrittenRows(50))
    assert pa.Table.from_batches(scan.all_rows()).num_rows == 5
    (tmp_path / "rows.parquet").unlink()
    with pytest.raises(JobError, match="is gone"):
        list(scan.all_rows())


VALUES: dict[str, tuple[pa.DataType, list[object]]] = {
    "integers": (pa.int64(), [1, None, 3]),
    "booleans": (pa.bool_(), [True, False, None]),
    "texts": (pa.string(), ["a", None, "x" * 100_000]),
    "bytes": (pa.binary(), [b"", b"x" * 70_000, None]),
    "decimals": (pa.decimal128(38, 2), [None, 1, 2]),
    "structs": (pa.struct([("s", pa.string())]), [{"s": "x" * 50_000}, None, {"s": None}]),
    "lists": (pa.list_(pa.string()), [["x" * 30_000, "y" * 30_000], [], None]),
    "nulls": (pa.null(), [None, None, None]),
}


def test_no_row_takes_more_than_the_largest_value_of_each_column() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(given, kind) for kind, given in VALUES.values()], names=list(VALUES))
    largest = max(rows.slice(index, 1).nbytes for index in range(rows.num_rows))
    assert largest <= bytes_of_largest(rows) < 3 * largest


def test_the_largest_row_of_many_columns_is_found_without_a_look_at_each_row() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(["x" * 30] * 5_000)] * 500, names=[f"c{n}" for n in range(500)])
    with counted() as calls:
        bytes_of_largest(rows)
    assert calls[0] < 50 * rows.num_columns


@pytest.mark.parametrize("kind", [pa.decimal128(23, 4), pa.decimal256(50, 0), pa.binary(16)])
def test_the_size_of_a_value_of_a_fixed_width_is_known_without_a_look_at_the_rows(kind: pa.DataType) -> None:
    rows = pa.RecordBatch.from_arrays([pa.nulls(5_000, kind)], names=["v"])
    with counted() as calls:
        assert bytes_of_largest(rows) == kind.bit_width // 8
        table_of([1] if pa.types.is_decimal(kind) else [b"x" * 16], kind)
    assert calls[0] < 500
