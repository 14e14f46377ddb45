"""Tasks in this process leave it as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa

from airflow_txlog.datafiles.tasks.scan_and_write import use_one_thread
from airflow_txlog.jobs.files.scan import bin_number, run_here

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
