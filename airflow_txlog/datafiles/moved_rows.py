"""The numbers of rows that the tasks of a Spark on this machine have read and written so far, for the job's log.

Spark does not see the files that a task itself reads and writes. So each task keeps its counts in a file, in one of the
driver's folders. The invariant: counting fails no task.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK

_COUNTS = struct.Struct("<qq")


class _Counts:
    """The counts of one task, and the file that shows them."""

    def __init__(self, folder: str) -> None:
        self._read = self._written = 0
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(os.path.join(folder, SYSTEM_CLOCK.unique_id()), os.O_CREAT | os.O_WRONLY, 0o600)

    def add(self, read: int, written: int) -> None:
        self._read += read
        self._written += written
        with contextlib.suppress(OSError):
            os.pwrite(self._file, _COUNTS.pack(self._read, self._written), 0)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)


# A worker of Spark runs one task at a time; a job's own threads count nothing.
_counts: _Counts | None = None


def count_rows(*, read: int = 0, written: int = 0) -> None:
    """Add rows to the counts of the running task, if it is counted."""
    if _counts is not None:
        _counts.add(read, written)


@dataclass(frozen=True, kw_only=True)
class CountedTask:
    """A task whose rows are counted in a file in `folder` while it runs."""

    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the task's rows."""
        global _counts
        # Two tasks overlap if one is abandoned: neither ends the counts of the other.
        own = _counts = _Counts(self.folder)
        try:
            yield from self.task(batches)
        finally:
            own.close()
            if _counts is own:
                _counts = None


def rows_moved(folder: str) -> tuple[int, int]:
    """Return how many rows the tasks that count in `folder` have read and written so far."""
    read = written = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with open(entry.path, "rb") as file:
                data = file.read(_COUNTS.size)
            if len(data) == _COUNTS.size:
                counts = _COUNTS.unpack(data)
                read, written = read + counts[0], written + counts[1]
    return read, written


@contextlib.contextmanager
def counts_kept(folder: str) -> Iterator[None]:
    """Keep an empty folder for counts while the block runs. Later counts are lost."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.mkdir(folder, 0o700)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
