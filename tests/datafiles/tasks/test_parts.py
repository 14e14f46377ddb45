"""A large file is the work of several tasks: its parts together are the file, whatever is asked of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import pack
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.copies import CopyTask
from airflow_txlog.datafiles.tasks.plans import Bins, in_parts, planned_files
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, FileScan, Task
from airflow_txlog.sql.expression import Call, Column, Values
from airflow_txlog.storage import LocalStore
from tests.helpers.files import bins_of, plan_of_files, store_of

ROWS = pa.table({"k": range(50), "text": [f"t{k % 7}" for k in range(50)]})
POSITIONS = [0, 9, 10, 25, 49]
PARTS = [1, 2, 3, 5, 8]


def plan_of(path: Path, positions: list[int] | None = None) -> pa.Table:
    size, packed = path.stat().st_size, None if positions is None else pack(positions)
    row = {"index": 3, "path": path.name, "size_bytes": size, "num_records": ROWS.num_rows, "positions": packed}
    return plan_of_files(row)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five row groups of ten rows."""
    pq.write_table(ROWS, tmp_path / "f.parquet", row_group_size=10)
    return tmp_path / "f.parquet"


def run(task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], count: int) -> pa.Table:
    """What tasks of these numbers give, all in one worker."""
    numbers = pa.record_batch({"id": pa.array(range(count), pa.int64())})
    return pa.Table.from_batches(list(task(iter([numbers]))))


def in_bins(path: Path, plan: pa.Table, parts: int) -> Bins:
    return bins_of(path.parent, in_parts(plan, [parts]), [[part] for part in range(parts)])


@pytest.mark.parametrize("parts", PARTS)
def test_parts_of_a_file_have_each_row_group_once(path: Path, parts: int) -> None:
    files = list(planned_files(in_parts(plan_of(path), [parts]), LocalStore(str(path.parent))))
    assert [(file.part, file.parts) for file in files] == [(part, parts) for part in range(parts)]
    for count in (0, 1, 5, 64):
        assert [group for file in files for group in file.row_groups(count)] == list(range(count))


@pytest.mark.parametrize("parts", PARTS)
def test_a_scan_in_parts_gives_the_rows_and_addresses_of_the_whole(path: Path, parts: int) -> None:
    row_filter = Call("!=", (Column("text"), Values(pa.array(["t3"]))))
    for asked in (None, row_filter):
        options: dict[str, Any] = {"schema": ROWS.schema, "with_address": True, "row_filter": asked}
        whole = run(Task(source=FileScan(bins=in_bins(path, plan_of(path), 1), **options)), 1)
        assert run(Task(source=FileScan(bins=in_bins(path, plan_of(path), parts), **options)), parts) == whole
        assert whole.num_rows == (50 if asked is None else 43)
        assert whole.column(ADDRESS_COLUMN)[0].as_py() == 3 << 40


@pytest.mark.parametrize("parts", PARTS)
def test_copies_in_parts_hold_together_what_no_position_names(path: Path, parts: int) -> None:
    layout = Layout(store=store_of(path.parent), schema=ROWS.schema, partition_columns=(), job_id="job")
    bins = in_bins(path, plan_of(path, POSITIONS), parts)
    records = run(CopyTask(bins=bins, layout=layout), parts).column(0).to_pylist()
    staged = [json.loads(record)["staged"] for record in records]
    # A part without row groups makes no file.
    assert len({file["path"] for file in staged}) == len(staged) == min(parts, 5)
    assert {file["source"] for file in staged} == {3}
    copies = [pq.read_table(path.parent / file["path"]) for file in staged]
    assert pa.concat_tables(copies) == ROWS.take([row for row in range(50) if row not in POSITIONS])
    assert [json.loads(file["stats"])["numRecords"] for file in staged] == [copy.num_rows for copy in copies]
