"""Tasks in this process leave it as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.tasks.plans import Bins
from airflow_txlog.datafiles.tasks.scan_and_write import use_one_thread
from airflow_txlog.jobs.executor import local
from airflow_txlog.jobs.files.scan import bin_number, run_here
from airflow_txlog.locations import PLAIN
from airflow_txlog.storage import StoreReference
from tests.helpers.specs import job_spec

WAIT_S = 60


def test_two_jobs_of_one_process_give_arrow_back_its_threads() -> None:
    """The second begins while the first has one thread, and ends after it."""
    has_begun, may_end = ([threading.Event() for _ in range(2)] for _ in range(2))
    before = pa.cpu_count()

    def job(number: int) -> None:
        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            use_one_thread()
            has_begun[number].set()
            assert may_end[number].wait(WAIT_S)
            yield from batches

        batch = bin_number(number)
        assert run_here([(task, batch)], batch.schema, "wait", 1).num_rows == 1

    jobs = [threading.Thread(target=job, args=(number,)) for number in range(2)]
    try:
        # A machine of one core has one thread anyway.
        pa.set_cpu_count(3)
        for number, each in enumerate(jobs):
            each.start()
            assert has_begun[number].wait(WAIT_S)
        for number, each in enumerate(jobs):
            may_end[number].set()
            each.join(WAIT_S)
            assert not each.is_alive()
        assert pa.cpu_count() == 3
    finally:
        pa.set_cpu_count(before)


@dataclass(frozen=True)
class Reading:
    """A task of two bins that reads files of this cost. It remembers the threads it ran in."""

    weight: int
    threads: set[int] = field(default_factory=set)
    bins: Bins = field(default_factory=lambda: Bins(store=StoreReference(root="/t", access=PLAIN), inline=(b"", b"")))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.threads.add(threading.get_ident())
        yield from batches


@pytest.mark.parametrize(
    ("root", "weight", "is_here"), [("/t", 2**17, True), ("/t", 2**23, False), ("s3://b/t", 2**17, False)]
)
def test_only_tasks_that_read_little_from_a_local_disk_run_in_the_thread_of_the_job(
    monkeypatch: pytest.MonkeyPatch, root: str, weight: int, is_here: bool
) -> None:
    monkeypatch.setattr(local, "cores", lambda: 2)
    executor = local.LocalExecutor(job_spec(operation="truncate", table_uri=root))
    task = Reading(weight)
    assert executor.run([task, task], bin_number(0).schema, "read").column("id").to_pylist() == [0, 1, 0, 1]
    assert (task.threads == {threading.get_ident()}) == is_here
