"""Rows of a source by their numbers, each as often as rows of the table have met it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.tasks.plans import Bins
from airflow_txlog.datafiles.tasks.row_values import RowValues
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedTask
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN
from airflow_txlog.datafiles.tasks.source_rows import SourceRows, SourceTable
from airflow_txlog.errors import JobError
from tests.helpers.files import store_of

MIB = 1024 * 1024


def table_of(values: list[object], kind: pa.DataType, tmp_path: Path) -> SourceTable:
    """Rows numbered 10, 11, ...; the column `v` is the table's `w`."""
    schema = pa.schema([("v", kind)])
    scan = MaterializedTask(bins=Bins(store=store_of(tmp_path)), schema=schema)
    numbers = pa.array(range(10, 10 + len(values)), pa.int64())
    rows = pa.table({"v": pa.array(values, kind), ROW_ID_COLUMN: numbers})
    constants = RowValues(values={})
    source = SourceRows(scan=scan, columns=(("w", "v"),), constants=constants, num_rows=0, size_bytes=0)
    return SourceTable(source, rows)


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string())], ids=["text", "nested"])
def test_a_large_row_that_many_rows_have_met_is_taken_a_few_times_at_once(kind: pa.DataType, tmp_path: Path) -> None:
    large = "x" * MIB
    values = ["small", None, large] if kind == pa.string() else [["small"], None, [large]]
    numbers = [10, 11, *[12] * 100, 10]
    batches = list(table_of(values, kind, tmp_path).take(pa.array(numbers, pa.int64())))
    assert max(batch.nbytes for batch in batches) <= 65 * MIB
    found = [value for batch in batches for value in batch.column("w").to_pylist()]
    assert found == [values[number - 10] for number in numbers]


def test_a_row_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="1 matched rows are not in the source"):
        list(table_of([1, 2], pa.int32(), tmp_path).take(pa.array([10, 12], pa.int64())))
