"""Tasks run in this process, bin after bin, where Spark has no part in the work: the same classes that Spark's workers
run.

The invariant: what a task yields, raises and leaves behind is what it would in a worker; nothing is decided here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from airflow_txlog.datafiles.failures import TaskFailed, error_in
from airflow_txlog.datafiles.tasks.scan_and_write import Step
from airflow_txlog.jobs.spark.errors import of_worker
from airflow_txlog.locations import LOCAL, scheme_of
from airflow_txlog.storage.local_files import stat_linked

THREADS = 4
"""How many bins are worked on at once without Spark, at most: most of the time a task waits for its store."""


def threads_for(root: str) -> int:
    """How many bins of a table's files are worked on at once without Spark: on a local disk no more than cores."""
    return min(THREADS, _cores()) if scheme_of(root) == LOCAL else THREADS


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


class _ThreadsOfArrow:
    """Gives Arrow back as many threads as it had: a task leaves it one, as a worker of Spark's should.

    The number is the process's, and jobs in threads of one process share it: the first that begins remembers it, and
    the last that ends restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._before = pa.cpu_count()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                pa.set_cpu_count(self._before)


_threads_of_arrow = _ThreadsOfArrow()


class TooManyRows(Exception):
    """The tasks have made more than the caller would hold."""


def run_here(
    work: Sequence[tuple[Step, pa.RecordBatch]],
    schema: pa.Schema,
    what: str,
    threads: int,
    most_bytes: int | None = None,
) -> pa.Table:
    """The rows that each task makes of its batch, as one table. `what` says in an error what was being done.

    Raises the TxlogError of a task, and TooManyRows as soon as the rows of all take more than `most_bytes`.
    """
    held = _Held(most_bytes)
    try:
        with _threads_of_arrow, ThreadPoolExecutor(min(threads, max(1, len(work)))) as pool:
            found = list(pool.map(lambda each: held.all_of(each[0](iter([each[1]]))), work))
    except TaskFailed as failed:
        error = error_in(str(failed))
        assert error is not None
        raise of_worker(error, what) from failed
    return pa.Table.from_batches([batch for batches in found for batch in batches], schema)


class _Held:
    """What the tasks of several threads have made together."""

    def __init__(self, most_bytes: int | None) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._bytes = 0

    def all_of(self, batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The batches. Raises TooManyRows."""
        found = []
        for batch in batches:
            found.append(batch)
            with self._lock:
                self._bytes += batch.nbytes
                if self._most_bytes is not None and self._bytes > self._most_bytes:
                    raise TooManyRows
        return found


def bin_number(number: int) -> pa.RecordBatch:
    """What Spark sends a task of a numbered range."""
    return pa.RecordBatch.from_pydict({"id": pa.array([number], pa.int64())})


def has_settings_of_its_own() -> bool:
    """Whether a file of settings may lie where a Spark that is started here looks for one."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    return bool(folder) and stat_linked(os.path.join(str(folder), "spark-defaults.conf")) is not None
