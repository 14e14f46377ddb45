"""Spark runs a task more than once: second attempts, speculative copies, attempts that are cut off in the middle.

Each attempt is the same pickled task over the same input, run here one after another; what Spark collects is the
records of one of them. Source: soundness B10, A17.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import pack
from airflow_txlog.datafiles.failures import TaskFailed
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.copies import CopyTask
from airflow_txlog.datafiles.tasks.plans import Bins
from airflow_txlog.datafiles.tasks.scan_and_write import WriteTask, report_of
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.jobs.files.scan import plan_files
from airflow_txlog.storage import StoreReference
from tests.helpers.jobs import SCHEMA, files_on_disk, ids, live_files, rows
from tests.helpers.rows import make_table

NUMBER = pa.record_batch({"id": pa.array([0], pa.int64())})


def layout(table: Table) -> Layout:
    return Layout(store=StoreReference.of(table.store), schema=SCHEMA, partition_columns=(), job_id="job")


def rewriting(table: Table, positions: list[int]) -> bytes:
    """The task that copies every file of the table without these rows, as Spark sends it."""
    snapshot = table.snapshot()
    plan = plan_files(snapshot, snapshot.files(), "UTC")
    plan = plan.with_column("positions", [pack(positions)] * plan.num_files)
    bins = Bins(store=StoreReference.of(table.store), inline=(plan.table,))
    return pickle.dumps(CopyTask(bins=bins, layout=layout(table)))


def attempt(task: bytes, batches: Iterator[pa.RecordBatch]) -> list[StagedFile]:
    """One attempt in a worker of its own: what it tells."""
    told = [text for batch in pickle.loads(task)(batches) for text in batch.column(0).to_pylist()]
    found = [report_of(text) for text in told]
    assert all(isinstance(file, StagedFile) for file in found), found
    return found  # type: ignore[return-value]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "t", rows(5), rows(5, start=10))


def test_b10_two_attempts_of_a_copy_write_files_of_their_own_and_one_of_them_counts(table: Table) -> None:
    before = live_files(table)
    task = rewriting(table, [1])
    first, second = attempt(task, iter([NUMBER])), attempt(task, iter([NUMBER]))
    assert len(first) == len(second) == 2
    assert {file.path for file in first}.isdisjoint(file.path for file in second)
    # Spark collects the second; what the first one wrote is in no commit, and harms nobody.
    tx = table.begin()
    tx.remove(sorted(before))
    tx.add([_add(file) for file in second])
    tx.commit("DELETE")
    assert ids(table) == [0, 2, 3, 4, 10, 12, 13, 14]
    assert files_on_disk(table) - live_files(table) - before == {file.path for file in first}


def test_b10_two_attempts_of_a_write_write_files_of_their_own(table: Table) -> None:
    task = pickle.dumps(WriteTask(layout=layout(table)))
    batches = rows(7, start=100).to_batches(max_chunksize=3)
    (first,), (second,) = attempt(task, iter(batches)), attempt(task, iter(batches))
    assert first.path != second.path
    assert (first.num_records, first.stats) == (second.num_records, second.stats)
    root = Path(table.uri.removeprefix("file://"))
    assert pq.read_table(root / first.path).equals(pq.read_table(root / second.path))


@pytest.mark.parametrize("how", ["closed", "failed"])
def test_a17_an_attempt_that_is_cut_off_in_the_middle_leaves_no_file(table: Table, how: str) -> None:
    before = files_on_disk(table)
    task = WriteTask(layout=layout(table))

    def cut_off() -> Iterator[pa.RecordBatch]:
        yield from rows(1000, start=100).to_batches()
        raise (GeneratorExit if how == "closed" else RuntimeError)("cut off")

    with pytest.raises((GeneratorExit, TaskFailed)):
        list(task(cut_off()))
    assert files_on_disk(table) == before


def _add(file: StagedFile) -> Add:
    return Add(
        path=file.path,
        partition_values=file.partition_values,
        size=file.size_bytes,
        modification_time=file.modification_time_ms,
        data_change=True,
        stats=file.stats,
    )


def test_a_plan_goes_to_another_process_as_arrow_ipc_and_names_the_same_files_there(table: Table) -> None:
    snapshot = table.snapshot()
    plan = plan_files(snapshot, snapshot.files(), "UTC").with_column("positions", [pack([1]), None])
    here = Bins(store=StoreReference.of(table.store), inline=(plan.table,), weight=7, amounts=((2, 9),))
    there = pickle.loads(pickle.dumps(here))
    assert isinstance(there.inline[0], bytes)
    assert (there.weight, there.amounts, len(there)) == (7, ((2, 9),), 1)
    assert list(there.files(0, table.store)) == list(here.files(0, table.store))
    # A worker may send it on.
    assert pickle.loads(pickle.dumps(there)) == there
