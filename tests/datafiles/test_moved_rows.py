"""The rows that a task reads and writes are counted in a folder of the driver's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.moved_rows import CountedTask, counts_kept, rows_moved
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file, read_batches
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector
from airflow_txlog.storage import LocalStore

ROWS = pa.table({"id": pa.array(range(100), pa.int64())})


def copy(store: LocalStore, path: str) -> Iterator[pa.RecordBatch]:
    """Write half of each batch to the new file, and yield the batch."""
    file = DataFile(store=store, path="a.parquet")
    writer = RowGroupWriter(store, path, ROWS.schema, options={}, statistics=StatisticsCollector(ROWS.schema))
    with open_data_file(file) as parquet:
        for _, batch in read_batches(file, parquet):
            writer.write(batch.slice(0, batch.num_rows // 2))
            yield batch
    writer.close({})


def test_rows_read_and_written_are_counted_while_the_task_runs(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet", row_group_size=40)
    store = LocalStore(str(tmp_path))
    task = CountedTask(task=lambda batches: copy(store, next(batches)), folder=str(tmp_path / "counts"))
    for _ in range(2):
        with counts_kept(task.folder):
            for number in range(2):
                seen = []
                for _ in task(iter([f"{secrets.token_hex()}.parquet"])):
                    seen.append(rows_moved(task.folder))
                assert seen == [(100 * number + read, 50 * number) for read in (40, 80, 100)]
            list(copy(store, f"{secrets.token_hex()}.parquet"))
            assert rows_moved(task.folder) == (200, 100)
        assert rows_moved(task.folder) == (0, 0)


def test_a_folder_of_another_machine_fails_no_task(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    store = LocalStore(str(tmp_path))
    task = CountedTask(task=lambda batches: copy(store, next(batches)), folder=str(tmp_path / "elsewhere"))
    assert sum(batch.num_rows for batch in task(iter(["b.parquet"]))) == 100
    assert not (tmp_path / "elsewhere").exists()


def test_tasks_that_overlap_do_not_end_the_counts_of_each_other(tmp_path: Path) -> None:
    folder = str(tmp_path / "counts")
    with counts_kept(folder):
        abandoned, running = (CountedTask(task=lambda batches: batches, folder=folder)(iter([1, 2])) for _ in range(2))
        next(abandoned)
        next(running)
        abandoned.close()
        assert list(running) == [2]
