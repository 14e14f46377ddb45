"""Tasks that write whole files, each from planned ones, and yield one record a file.

A file is written and then published: a remote store does not show it before. There the next files are written while
some are published, because an answer takes longer than a small file. The invariant: a file whose record is not yielded
is deleted.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.plans import Bins, PlannedFile
from airflow_txlog.datafiles.tasks.scan_and_write import error_record, records, task_numbers, use_one_thread
from airflow_txlog.errors import TxlogError
from airflow_txlog.storage import Store

# So many files of a task are published at once. Each holds a part of an upload at most (`Bucket.part_bytes`).
_PUBLISHED_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file that is written: `close` publishes it, and returns it unless it has no rows; `abandon` deletes it."""

    close: Callable[[], StagedFile | None]
    abandon: Callable[[], None] = lambda: None

    def publish(self) -> StagedFile | None:
        """Return the staged file; None if it has no rows. An error leaves nothing of it."""
        try:
            return self.close()
        except BaseException:
            self.abandon()
            raise


@dataclass(frozen=True, kw_only=True)
class FileTask:
    """Writes new files from planned ones, for a numbered range; one record a file."""

    bins: Bins
    layout: Layout

    @property
    def weight(self) -> int:
        return self.bins.weight

    def staged(
        self,
        batches: Iterator[pa.RecordBatch],
        key: Callable[[PlannedFile], Hashable],
        write: Callable[[list[PlannedFile], str, Store], Written],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the files that `write` makes of neighbours with equal keys; for a failure, the error."""
        use_one_thread()
        store = self.layout.store.open()
        with in_advance(self._written(batches, key, write, store), store) as files:
            for written in files:
                try:
                    staged = written.publish()
                except TxlogError as error:
                    yield error_record(error)
                    continue
                if staged is not None:
                    yield records([staged])

    def _written(
        self,
        batches: Iterator[pa.RecordBatch],
        key: Callable[[PlannedFile], Hashable],
        write: Callable[[list[PlannedFile], str, Store], Written],
        store: Store,
    ) -> Generator[Written]:
        attempt, planned_store = SYSTEM_CLOCK.unique_id(), self.bins.store_beside(store)
        for number in task_numbers(batches):
            try:
                planned = self.bins.files(number, planned_store)
            except TxlogError as error:
                yield Written(close=functools.partial(_raise, error))
                continue
            for _, files in itertools.groupby(planned, key):
                try:
                    yield write(list(files), attempt, store)
                except TxlogError as error:
                    yield Written(close=functools.partial(_raise, error))


@contextlib.contextmanager
def in_advance(written: Generator[Written], store: Store) -> Iterator[Iterator[Written]]:
    """Yield the files; in a remote store the next ones are written while the threads of a pool publish others.

    After the block no thread publishes, and a file that was written but not yielded is deleted.
    """
    with contextlib.closing(written):
        if not store.is_remote:
            yield written
            return
        with (
            ThreadPoolExecutor(_PUBLISHED_AT_ONCE, thread_name_prefix="txlog-publish") as pool,
            contextlib.closing(_published_beside(written, pool)) as published,
        ):
            yield published


def _published_beside(files: Iterator[Written], pool: ThreadPoolExecutor) -> Generator[Written]:
    """Yield the files in their order; the pool publishes each, and what is yielded waits for it."""
    under_way: deque[Written] = deque()
    try:
        for file in files:
            publishing = pool.submit(file.publish)
            under_way.append(Written(close=publishing.result, abandon=functools.partial(_drop, publishing, file)))
            if len(under_way) == _PUBLISHED_AT_ONCE:
                yield under_way.popleft()
        while under_way:
            yield under_way.popleft()
    finally:
        for file in under_way:
            file.abandon()


def _drop(publishing: Future[StagedFile | None], file: Written) -> None:
    """Delete a file, once it is no longer being published."""
    if not publishing.cancel():
        wait((publishing,))
    file.abandon()


def _raise(error: TxlogError) -> NoReturn:
    raise error
