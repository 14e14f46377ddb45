"""A step of a task as a Python worker of Spark runs it.

The process is Spark's, and may run other code between our tasks: nothing here changes a result.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.datafiles.failures import TaskFailed
from airflow_txlog.datafiles.installed import check_worker
from airflow_txlog.datafiles.tasks.scan_and_write import Step
from airflow_txlog.errors import UnfitExecutor


@dataclass(frozen=True)
class InWorker:
    """Runs the step in a worker that can run it, after freezing loaded modules for the collector."""

    step: Step

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _prepare()
        return self.step(batches)


@functools.cache
def _prepare() -> None:
    # Spark collects garbage after each task. That takes tens of milliseconds, nearly all of them for loaded modules.
    gc.freeze()
    try:
        check_worker()
    except UnfitExecutor as error:
        raise TaskFailed(error) from None
